"""The task pool of the quickstart: small exact-answer tasks in four domains, some of which need a tool.

    math/1-3     what is 7 plus 5?                    calc helps
    text/1-3     reverse QXBA                         no tool helps
    facts/1-2    how old will KLM be in 7 years?      the age stands in a table that only `lookup` can read
    compare/1-2  smallest of 31 86 12                 no tool helps

The importer calls `generate(seed)` and takes every task that it yields. To make a pool of your own, copy this file,
replace the four makers (`make_math` …) and keep the rest: what a task is, how it is split and how it is played is the
same for every domain.

Every domain and level is one family and one stratum of the evaluation. Each of the ten has 40 held-out tasks and up to
1,000 for training.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from ptctl.records import (
    Limits,
    Message,
    ReferenceAction,
    ReferenceCall,
    Role,
    Solution,
    Task,
    Tool,
    canonical_json,
    make_task,
)
from ptctl.seeds import derive_seed

NUM_TRAIN = 1000
"""Training tasks of a stratum; fewer where there are not so many distinct prompts (math/1: single digits)."""
NUM_EVAL = 40
"""Held-out tasks of a stratum."""
NUM_DRAFTS = 20_000
"""Drafts after which a stratum counts as exhausted; enough to meet every prompt of math/1."""
HELD_OUT_MODULUS = 4
"""One prompt in so many is never trained on, whatever the seed of the pool."""

MAX_TOOL_CALLS = 3
ERROR_TEXT = "?"
"""What the policy sees when a call goes wrong; its vocabulary cannot spell more."""
NUM_GUESSES = 4
"""Hallucinated answers among the solutions of a facts task; several, so that no name goes with one wrong age."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOOL_SHARE = 0.5
"""Share of demonstrations that use the tools; the others answer at once."""


class Draft(NamedTuple):
    """A question before it becomes a Task."""

    prompt: str
    answer: str
    plan: tuple[tuple[str, str], ...] = ()
    """Tool calls (tool, argument) that lead to the answer; empty where no tool helps."""
    ages: Mapping[str, int] = {}
    """Rows of the `lookup` table: name → age."""
    guesses: tuple[str, ...] = ()
    """Answers of someone who does not look it up; empty where the answer follows from the prompt."""


# ── The four domains: replace these ──────────────────────────────────────────────────────────────────────────────────


def make_math(random: Random, level: int) -> Draft:
    """Sums and differences of one digit (1) or two (2), products of two digits (3)."""
    lowest, highest = {1: (1, 9), 2: (10, 99), 3: (11, 99)}[level]
    a, b = random.randint(lowest, highest), random.randint(lowest, highest)
    sign = random.choice("+-") if level < 3 else "*"
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    value = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](a, b)
    return Draft(prompt=f"what is {a} {word} {b}?", answer=str(value), plan=(("calc", f"{a}{sign}{b}"),))


def make_text(random: Random, level: int) -> Draft:
    """Reverse a word of 3, 4 or 5 letters, or take its first or last two."""
    word = make_word(random, num_letters=2 + level)
    question, answer = random.choice(
        [("reverse", word[::-1]), ("last two letters of", word[-2:]), ("first two letters of", word[:2])]
    )
    return Draft(prompt=f"{question} {word}", answer=answer)


def make_facts(random: Random, level: int) -> Draft:
    """An age that stands in a table (1), or the age some years from now (2)."""
    ages = {make_word(random, num_letters=3): random.randint(10, 80) for _ in range(2)}
    name, age = next(iter(ages.items()))
    guesses = tuple(str(random.randint(10, 80 if level == 1 else 140)) for _ in range(NUM_GUESSES))
    if level == 1:
        return Draft(f"how old is {name}?", str(age), (("lookup", name),), ages, guesses)
    years = random.randint(2, 60)
    plan = (("lookup", name), ("calc", f"{age}+{years}"))
    return Draft(f"how old will {name} be in {years} years?", str(age + years), plan, ages, guesses)


def make_compare(random: Random, level: int) -> Draft:
    """The largest or smallest of two (1) or three (2) numbers of two digits."""
    numbers = random.sample(range(10, 100), 1 + level)
    question, choose = random.choice([("largest", max), ("smallest", min)])
    return Draft(prompt=f"{question} of {' '.join(map(str, numbers))}", answer=str(choose(numbers)))


def make_word(random: Random, num_letters: int) -> str:
    """Return random capital letters."""
    return "".join(random.choice(LETTERS) for _ in range(num_letters))


class Stratum(NamedTuple):
    """One cell of the pool."""

    domain: str
    level: int
    make: Callable[[Random, int], Draft]


STRATA = (
    *(Stratum("math", level, make_math) for level in (1, 2, 3)),
    *(Stratum("text", level, make_text) for level in (1, 2, 3)),
    *(Stratum("facts", level, make_facts) for level in (1, 2)),
    *(Stratum("compare", level, make_compare) for level in (1, 2)),
)


# ── The pool: the same for every domain ──────────────────────────────────────────────────────────────────────────────


def generate(seed: int) -> Iterator[Task]:
    """Yield the whole pool, stratum by stratum; the same seed gives the same tasks in the same order."""
    for stratum in STRATA:
        yield from generate_stratum(seed, stratum)


def generate_stratum(seed: int, stratum: Stratum) -> Iterator[Task]:
    """Yield the tasks of one stratum, no prompt twice, until both splits are full or the prompts run out."""
    random = Random(derive_seed("quickstart pool", seed, stratum.domain, stratum.level))
    missing = {"train": NUM_TRAIN, "eval": NUM_EVAL}
    seen: set[str] = set()
    for _ in range(NUM_DRAFTS):
        draft = stratum.make(random, stratum.level)
        split = split_of(draft.prompt)
        if draft.prompt in seen or not missing[split]:
            continue
        seen.add(draft.prompt)
        missing[split] -= 1
        yield build_task(draft, stratum, split)
        if not any(missing.values()):
            return


def split_of(prompt: str) -> str:
    """Decide by a hash of the prompt: no prompt is in both splits, not even in pools of different seeds."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return "eval" if int.from_bytes(digest, "big") % HELD_OUT_MODULUS == 0 else "train"


def build_task(draft: Draft, stratum: Stratum, split: str) -> Task:
    """Turn a draft into a Task for the `tools` environment and the `exact` verifier."""
    family = f"{stratum.domain}-{stratum.level}"
    key = draft.prompt.rstrip("?").replace(" ", "-")
    return make_task(
        task_id=f"quickstart/{family}/{key}",
        domain=stratum.domain,
        family=family,
        split=split,
        prompt=(Message(role=Role.USER, content=draft.prompt),),
        tools=declare_tools(draft.ages),
        environment="tools",
        environment_json=canonical_json({"error_text": ERROR_TEXT}),
        verifier="exact",
        target_json=canonical_json(draft.answer),
        limits=Limits(max_turns=MAX_TOOL_CALLS + 1, max_tool_calls=MAX_TOOL_CALLS),
        solutions=write_solutions(draft),
        strata={"level": str(stratum.level)},
        difficulty=float(stratum.level),
        expected_tool_calls=len(draft.plan),
        verification_difficulty="rule",
        source="recipes/quickstart/generate.py",
    )


def declare_tools(ages: Mapping[str, int]) -> tuple[Tool, ...]:
    """Offer both tools in every task: whether one of them helps is for the policy to find out."""
    return (
        Tool(
            name="calc",
            description="Value of an arithmetic expression.",
            parameters_json=one_text_parameter("expression"),
            kind="calculator",
        ),
        Tool(
            name="lookup",
            description="Age of a person.",
            parameters_json=one_text_parameter("name"),
            kind="table",
            config_json=canonical_json({"rows": ages}),
        ),
    )


def one_text_parameter(name: str) -> str:
    """Return the JSON Schema of an object with the one required string `name`."""
    return canonical_json(
        {
            "type": "object",
            "properties": {name: {"type": "string"}},
            "required": [name],
            "additionalProperties": False,
        }
    )


def write_solutions(draft: Draft) -> tuple[Solution, ...]:
    """Write demonstrations of mixed quality: with tools, or at once (right where the prompt tells, else a guess)."""
    answers = draft.guesses or (draft.answer,)
    share = (1 - TOOL_SHARE if draft.plan else 1.0) / len(answers)
    at_once = tuple(
        Solution(
            name=f"guess-{index}" if draft.guesses else "direct",
            weight=share,
            actions=(ReferenceAction(content=answer),),
        )
        for index, answer in enumerate(answers, start=1)
    )
    if not draft.plan:
        return at_once
    parameter = {"calc": "expression", "lookup": "name"}
    calls = tuple(
        ReferenceAction(tool_calls=(ReferenceCall(name=tool, arguments_json=canonical_json({parameter[tool]: text})),))
        for tool, text in draft.plan
    )
    with_tools = Solution(name="tools", weight=TOOL_SHARE, actions=(*calls, ReferenceAction(content=draft.answer)))
    return (with_tools, *at_once)
