"""The oracle: which solution it follows, and what it writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ptctl.engines.oracle import OracleEngine, choose_solution
from ptctl.errors import RowFailure, Unavailable, UsageError
from ptctl.protocols import Completion, EngineSettings, GenerateRequest
from ptctl.records import Message, ReferenceAction, ReferenceCall, Sampling, Solution, Task, Tool, make_task
from ptctl.tool_calls import parse_calls
from tiny_model import make_tiny_model

CALC = Tool(
    name="calc",
    description="",
    parameters_json='{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}',
    kind="calculator",
)
CALL = ReferenceCall(name="calc", arguments_json='{"expression":"12+34"}')
TOOLS = Solution(name="tools", weight=3.0, actions=(ReferenceAction(tool_calls=(CALL,)), ReferenceAction(content="46")))
GUESS = Solution(name="guess", weight=1.0, actions=(ReferenceAction(content="50 \n"),))


def _task(*solutions: Solution) -> Task:
    return make_task(
        task_id="math/1", domain="math", family="math", split="train", tools=(CALC,), solutions=solutions,
        prompt=(Message(role="user", content="what is 12 plus 34?"),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config and tokenizer only: the oracle needs no weights."""
    return make_tiny_model(tmp_path_factory.mktemp("policy"), weights=False)


def _act(policy: Path, request: GenerateRequest, tool_call_format: str = "hermes") -> Completion:
    async def run() -> Completion:
        engine = OracleEngine(EngineSettings(policy=policy, tool_call_format=tool_call_format))
        await engine.start()
        try:
            return await engine.generate(request)
        finally:
            await engine.close()

    return asyncio.run(run())


def _request(task: Task | None, num_actions: int = 0, episode_seed: int = 5) -> GenerateRequest:
    return GenerateRequest(
        request_id="r", prompt_ids=[3, 4], sampling=Sampling(), seed=1, task=task, num_actions=num_actions,
        episode_seed=episode_seed,
    )  # fmt: skip


def test_solutions_are_chosen_by_weight_and_stay_for_the_episode() -> None:
    task = _task(TOOLS, GUESS)
    chosen = [choose_solution(task, seed).name for seed in range(4000)]
    assert Counter(chosen)["tools"] == pytest.approx(3000, abs=110)  # four standard deviations
    assert chosen == [choose_solution(task, seed).name for seed in range(4000)]
    assert {choose_solution(_task(replace(TOOLS, weight=0.0), GUESS), seed).name for seed in range(50)} == {"guess"}


def test_actions_become_tokens_with_the_end_token(policy: Path) -> None:
    from ptctl.engines.tokenizer import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(policy)
    task = _task(TOOLS)
    first = _act(policy, _request(task))
    text = tokenizer.decode(first.token_ids)
    assert text.endswith("<|end|>")
    calls = parse_calls(text.removesuffix("<|end|>"), task.tools, "hermes").calls
    assert [(call.name, call.arguments_json) for call in calls] == [("calc", '{"expression":"12+34"}')]
    second = _act(policy, _request(task, num_actions=1))
    assert tokenizer.decode(second.token_ids) == "46<|end|>"
    assert (second.solution, second.finish_reason, second.logprobs) == ("tools", "stop", None)
    assert second.version_spans == ()
    assert tokenizer.decode(_act(policy, _request(_task(GUESS))).token_ids) == "50 \n<|end|>"


def test_the_format_of_calls_is_the_engines(policy: Path) -> None:
    from ptctl.engines.tokenizer import HuggingFaceTokenizer

    completion = _act(policy, _request(_task(TOOLS)), tool_call_format="function")
    assert HuggingFaceTokenizer(policy).decode(completion.token_ids) == "<|call|>calc(12+34)<|end|>"


def test_limits_cut_as_they_cut_a_policy(policy: Path) -> None:
    request = replace(_request(_task(TOOLS), num_actions=1), sampling=Sampling(max_new_tokens=2))
    completion = _act(policy, request)
    assert (len(completion.token_ids), completion.finish_reason) == (2, "length")
    with pytest.raises(RowFailure, match="no room"):
        _act(policy, replace(request, prompt_ids=[3] * 256))


@pytest.mark.parametrize(
    ("task", "num_actions", "named"),
    [
        (None, 0, "no task"),
        (_task(), 0, "no reference solution"),
        (_task(replace(GUESS, weight=0.0)), 0, "no reference solution"),
        (_task(GUESS), 1, "only 1 actions"),
    ],
)
def test_nothing_to_act_out_is_a_row_failure(policy: Path, task: Task | None, num_actions: int, named: str) -> None:
    with pytest.raises(RowFailure, match=named) as caught:
        _act(policy, _request(task, num_actions))
    assert caught.value.kind == "engine"


def test_life_cycle(policy: Path, tmp_path: Path) -> None:
    async def run() -> None:
        engine = OracleEngine(EngineSettings(policy=policy, context_length=32))
        with pytest.raises(Unavailable):
            await engine.generate(_request(_task(GUESS)))
        await engine.start()
        assert (engine.context_length, engine.policy_version) == (32, None)
        await engine.update_policy(make_tiny_model(tmp_path, weights=False, max_length=64), 3)
        assert engine.policy_version is None
        await engine.close()
        await engine.close()

    asyncio.run(run())
    with pytest.raises(UsageError, match="endpoint"):
        OracleEngine(EngineSettings(policy=policy, endpoint="http://localhost:1"))
