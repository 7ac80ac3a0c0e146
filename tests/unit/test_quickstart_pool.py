"""The task pool and the tiny model of recipes/quickstart."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ptctl.environments.tools import ToolsEnvironment
from ptctl.protocols import EnvironmentSettings
from ptctl.records import Message, Solution, Task
from ptctl.tool_calls import parse_calls, render_calls

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart"
MODEL = QUICKSTART / "model"
FAMILIES = {
    "math-1", "math-2", "math-3", "text-1", "text-2", "text-3", "facts-1", "facts-2", "compare-1", "compare-2",
}  # fmt: skip


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"quickstart_{name}", QUICKSTART / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_script("generate")


@pytest.fixture(scope="module")
def pool(generator: ModuleType) -> list[Task]:
    return list(generator.generate(0))


async def act_out(task: Task, solution: Solution) -> tuple[list[Message], str]:
    """Play a solution through the environment; returns the tool messages and how the episode ended."""
    environment = ToolsEnvironment(EnvironmentSettings(task=task, seed=0, tool_call_format="function"))
    await environment.reset()
    messages: list[Message] = []
    for action in solution.actions:
        observation = await environment.step(action.content + render_calls(action.tool_calls, task.tools, "function"))
        assert all(call.succeeded for call in observation.tool_calls)
        messages += observation.messages
        if observation.done:
            return messages, observation.stop_reason
    return messages, "not done"


def one_of_each(pool: list[Task]) -> list[Task]:
    return list({task.family: task for task in pool}.values())


# ── The pool ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_stratum_is_filled(pool: list[Task], generator: ModuleType) -> None:
    num_train = Counter(task.family for task in pool if task.split == "train")
    num_eval = Counter(task.family for task in pool if task.split == "eval")
    assert num_eval == dict.fromkeys(FAMILIES, 40)
    # 162 prompts of math/1 exist (9 x 9 x plus or minus), 42 of which are held out.
    assert num_train == dict.fromkeys(FAMILIES, generator.NUM_TRAIN) | {"math-1": 120}
    assert generator.NUM_TRAIN >= 500


def test_prompts_and_ids_are_distinct(pool: list[Task]) -> None:
    assert len({task.prompt for task in pool}) == len(pool)
    assert len({task.task_id for task in pool}) == len(pool)


def test_no_prompt_is_in_both_splits_even_across_seeds(pool: list[Task], generator: ModuleType) -> None:
    other = list(generator.generate(1))
    split_of = {task.prompt: task.split for task in pool}
    shared = [task for task in other if task.prompt in split_of]
    assert len(shared) >= 160  # nearly all of math/1, at least
    assert all(split_of[task.prompt] == task.split for task in shared)
    assert {task.prompt for task in other} != {task.prompt for task in pool}


def test_the_same_seed_gives_the_same_pool(pool: list[Task], generator: ModuleType) -> None:
    assert list(generator.generate(0)) == pool


def test_columns(pool: list[Task]) -> None:
    for task in pool:
        level = task.family[-1]
        assert task.family == f"{task.domain}-{level}"
        assert task.task_id.startswith(f"quickstart/{task.family}/")
        assert (task.strata, task.difficulty) == ({"level": level}, float(level))
        assert (task.environment, task.environment_json, task.verifier) == ("tools", '{"error_text":"?"}', "exact")
        assert [(tool.name, tool.kind) for tool in task.tools] == [("calc", "calculator"), ("lookup", "table")]
        assert (task.limits.max_turns, task.limits.max_tool_calls) == (4, 3)
        assert sum(solution.weight for solution in task.solutions) == 1.0


@pytest.mark.parametrize(
    ("domain", "expected"),
    [("math", {1}), ("text", {0}), ("compare", {0}), ("facts", {1, 2})],
)
def test_expected_tool_calls(pool: list[Task], domain: str, expected: set[int]) -> None:
    assert {task.expected_tool_calls for task in pool if task.domain == domain} == expected


def test_known_answers(generator: ModuleType) -> None:
    def answers(domain: str) -> dict[str, Any]:
        strata = [stratum for stratum in generator.STRATA if stratum.domain == domain]
        tasks = [task for stratum in strata for task in generator.generate_stratum(0, stratum)]
        return {task.prompt[0].content: json.loads(task.target_json) for task in tasks}

    for prompt, answer in answers("math").items():
        a, word, b = prompt.removeprefix("what is ").rstrip("?").split()
        value = {"plus": int(a) + int(b), "minus": int(a) - int(b), "times": int(a) * int(b)}[word]
        assert answer == str(value)
    for prompt, answer in answers("text").items():
        question, word = prompt.rsplit(" ", 1)
        texts = {"reverse": word[::-1], "last two letters of": word[-2:], "first two letters of": word[:2]}
        assert answer == texts[question]
    for prompt, answer in answers("compare").items():
        question, numbers = prompt.split(" of ")
        ordered = sorted(map(int, numbers.split()))
        assert answer == str(ordered[-1 if question == "largest" else 0])


def test_tools_lead_to_the_target(pool: list[Task]) -> None:
    solved = [task for task in pool if task.solutions[0].name == "tools"][::5]
    assert {task.domain for task in solved} == {"math", "facts"}

    async def act_out_all() -> list[tuple[list[Message], str]]:
        return [await act_out(task, task.solutions[0]) for task in solved]

    for task, (messages, ended) in zip(solved, asyncio.run(act_out_all()), strict=True):
        solution = task.solutions[0]
        assert ended == "completed"
        assert len(messages) == task.expected_tool_calls
        # The last tool result is the target, and it is what the solution answers.
        assert [messages[-1].content, solution.actions[-1].content] == [json.loads(task.target_json)] * 2


def test_answers_at_once_are_right_except_for_facts(pool: list[Task]) -> None:
    for task in pool:
        target = json.loads(task.target_json)
        at_once = [solution for solution in task.solutions if solution.name != "tools"]
        answers = [solution.actions[0].content for solution in at_once]
        if task.domain != "facts":
            assert answers == [target]
        else:
            assert len(answers) == 4
            assert all(10 <= int(answer) <= {"1": 80, "2": 140}[task.family[-1]] for answer in answers)
    facts = [task for task in pool if task.domain == "facts"]
    guesses = [s.actions[0].content == json.loads(t.target_json) for t in facts for s in t.solutions[1:]]
    assert 0 < sum(guesses) / len(guesses) < 0.03  # 1/71 and about 1/131 by chance


# ── The model ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(MODEL)


def test_the_committed_model_is_what_the_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    load_script("make_model").main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in MODEL.iterdir()}
    for path in tmp_path.iterdir():
        written, committed = path.read_text(), (MODEL / path.name).read_text()
        if path.name.endswith("config.json"):  # the version of transformers is no part of the model
            written, committed = (
                {key: value for key, value in json.loads(text).items() if key != "transformers_version"}
                for text in (written, committed)
            )
        assert written == committed, path.name


def test_config_is_the_measured_shape() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(MODEL)
    assert (config.model_type, config.vocab_size, config.hidden_size, config.num_hidden_layers) == ("llama", 106, 64, 2)
    assert (config.num_attention_heads, config.intermediate_size, config.initializer_range) == (4, 192, 0.125)
    assert (config.rope_parameters["rope_theta"], config.tie_word_embeddings) == (1000.0, True)
    assert (config.eos_token_id, config.pad_token_id, config.max_position_embeddings) == (6, 0, 128)
    with pytest.importorskip("torch").device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 113_600


def test_chat_template(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "how old is KIM?"},
        {"role": "assistant", "content": "<|call|>lookup(KIM)"},
        {"role": "tool", "content": "34", "name": "lookup"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|user|>how old is KIM?<|end|><|assistant|><|call|>lookup(KIM)<|end|><|tool|>34<|end|><|assistant|>"
    )
    assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(Exception, match="no such role: system"):
        tokenizer.apply_chat_template([{"role": "system", "content": "a"}], tokenize=False)


def test_special_tokens_and_words_are_one_token(tokenizer: Any) -> None:
    assert len(tokenizer) == 106
    assert tokenizer.encode("<|user|>how old is A7?<|end|>") == [
        tokenizer.convert_tokens_to_ids(t) for t in ["<|user|>", "how", " old", " is", " ", "A", "7", "?", "<|end|>"]
    ]
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == ("<|end|>", "<|pad|>", "<|unk|>")


def test_the_vocabulary_spells_everything(pool: list[Task], tokenizer: Any) -> None:
    unknown = tokenizer.unk_token_id
    texts = {"?"}
    for task in pool:
        texts |= {task.prompt[0].content, json.loads(task.target_json)}
        for solution in task.solutions:
            texts |= {a.content + render_calls(a.tool_calls, task.tools, "function") for a in solution.actions}
        texts |= {str(age) for age in json.loads(task.tools[1].config_json)["rows"].values()}
    for text, ids in zip(texts, tokenizer(list(texts))["input_ids"], strict=True):
        assert unknown not in ids
        assert tokenizer.decode(ids) == text


def test_episodes_fit_the_context(pool: list[Task], tokenizer: Any) -> None:
    for task in one_of_each(pool):
        solution = task.solutions[0]
        results, _ = asyncio.run(act_out(task, solution))
        text = f"<|user|>{task.prompt[0].content}<|end|>"
        for index, action in enumerate(solution.actions):
            calls = render_calls(action.tool_calls, task.tools, "function")
            assert len(parse_calls(calls, task.tools, "function").calls) == len(action.tool_calls)
            text += f"<|assistant|>{action.content}{calls}<|end|>"
            text += f"<|tool|>{results[index].content}<|end|>" if index < len(results) else ""
        assert len(tokenizer.encode(text)) <= 64
