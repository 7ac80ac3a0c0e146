"""The engine contract on the fake engine, so that stage tests stand on firm ground."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ptctl.errors import RowFailure, UsageError
from ptctl.protocols import Engine, EngineSettings, GenerateRequest
from ptctl.records import Message, Sampling, Tool
from ptctl.testing.engine_contract import EngineContract
from ptctl.testing.fake_engine import FakeEngine, FakeTokenizer


class TestFakeEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make_engine(self, context_length: int | None = None) -> Engine:
        return FakeEngine(EngineSettings(policy=self.directory, context_length=context_length, max_running=8))

    def other_policy(self) -> Path:
        return self.directory


def _request(text: str = "hello", **sampling: float) -> GenerateRequest:
    settings = Sampling(**{"max_new_tokens": 32} | sampling)
    return GenerateRequest(request_id="r", prompt_ids=FakeTokenizer().encode(text), sampling=settings, seed=3)


def test_tokenizer_round_trip_and_template() -> None:
    tokenizer = FakeTokenizer()
    tool = Tool(name="calc", description="", parameters_json='{"type":"object"}', kind="calculator")
    text = tokenizer.render([Message(role="user", content="é 1+1?")], [tool], add_generation_prompt=True)
    assert text == (
        '<|system|>[{"name": "calc", "parameters": {"type": "object"}}]<|end|><|user|>é 1+1?<|end|><|assistant|>'
    )
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[-1] == tokenizer.encode("<|assistant|>")[0] >= 256
    assert tokenizer.encode("é") == [0xC3, 0xA9]


def test_script_writes_the_message_with_its_real_log_probabilities(tmp_path: Path) -> None:
    async def run() -> None:
        engine = FakeEngine(EngineSettings(policy=tmp_path), script=lambda request: "42", policy_version=4)
        await engine.start()
        completion = await engine.generate(_request())
        assert engine.tokenizer.decode(completion.token_ids) == "42<|end|>"
        assert completion.finish_reason == "stop"
        assert completion.version_spans[0].policy_version == 4
        assert completion.logprobs is not None
        assert all(value < 0 for value in completion.logprobs)
        cut = await engine.generate(_request(max_new_tokens=2))
        assert (engine.tokenizer.decode(cut.token_ids), cut.finish_reason) == ("42", "length")

    asyncio.run(run())


def test_latency_overlaps_up_to_max_running(tmp_path: Path) -> None:
    async def run() -> None:
        engine = FakeEngine(EngineSettings(policy=tmp_path, max_running=3), latency_s=0.001)
        await engine.start()
        await asyncio.gather(*(engine.generate(_request(str(index))) for index in range(10)))
        assert engine.peak_running == 3
        assert len(engine.requests) == 10

    asyncio.run(run())


def test_a_script_can_fail_one_row_and_truncation_is_refused(tmp_path: Path) -> None:
    def script(request: GenerateRequest) -> str:
        raise RowFailure("engine lost", kind="engine")

    async def run() -> None:
        engine = FakeEngine(EngineSettings(policy=tmp_path), script=script)
        await engine.start()
        with pytest.raises(RowFailure, match="engine lost"):
            await engine.generate(_request())
        with pytest.raises(UsageError, match="top_p"):
            await engine.generate(_request(top_p=0.5))

    asyncio.run(run())


def test_version_comes_from_policy_json(tmp_path: Path) -> None:
    assert FakeEngine(EngineSettings(policy=tmp_path)).policy_version is None
    (tmp_path / "policy.json").write_text('{"policy_version": 12}')
    assert FakeEngine(EngineSettings(policy=tmp_path)).policy_version == 12
