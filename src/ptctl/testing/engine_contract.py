"""What every engine must do, as pytest tests. The author of an engine subclasses `EngineContract`:

class TestMyEngine(EngineContract):
    def make_engine(self, context_length=None):
        return MyEngine(EngineSettings(policy=MODEL, context_length=context_length))

    def other_policy(self):
        return OTHER_MODEL
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from ptctl.errors import PtctlError, RowFailure, Unavailable, UsageError
from ptctl.protocols import Completion, Engine, GenerateRequest
from ptctl.records import Message, Role, Sampling

_T = TypeVar("_T")


class EngineContract:
    """Tests of the `Engine` protocol for an engine that samples. Override `make_engine` and `other_policy`."""

    gives_logprobs: bool = True
    """False for an engine that returns None instead."""
    max_new_tokens: int = 64
    """Enough for some of 32 messages to end by themselves."""

    def make_engine(self, context_length: int | None = None) -> Engine:
        """A fresh engine, not started, that serves its first policy."""
        raise NotImplementedError

    def other_policy(self) -> Path:
        """A policy with other weights, which `update_policy` can load."""
        raise NotImplementedError

    def prompt(self, engine: Engine, index: int) -> list[int]:
        """Context number `index`; override where the chat template wants something else."""
        text = f"what is {index} plus {index * index}?"
        messages = [Message(role=Role.USER, content=text)]
        return engine.tokenizer.encode(engine.tokenizer.render(messages, (), add_generation_prompt=True))

    def request(self, engine: Engine, index: int, *, seed: int | None = None, **sampling: float) -> GenerateRequest:
        """Request number `index` with a seed of its own; `sampling` overrides fields of `Sampling`."""
        settings = {"max_new_tokens": self.max_new_tokens} | sampling
        return GenerateRequest(
            request_id=f"request-{index}",
            prompt_ids=self.prompt(engine, index),
            sampling=Sampling(**settings),  # pyright: ignore[reportArgumentType]
            seed=1000 + index if seed is None else seed,
            episode_seed=index,
        )

    def with_engine(self, use: Callable[[Engine], Awaitable[_T]], context_length: int | None = None) -> _T:
        """Run `use` with a started engine and close it afterwards."""

        async def run() -> _T:
            engine = self.make_engine(context_length)
            await engine.start()
            try:
                return await use(engine)
            finally:
                await engine.close()

        return asyncio.run(run())

    # ── what a completion says ──

    def test_ids_and_logprobs_belong_together(self) -> None:
        """One finite log-probability ≤ 0 for each id, and spans over exactly these ids."""
        for completion in self.with_engine(lambda engine: self._generate(engine, range(8))):
            num_tokens = len(completion.token_ids)
            assert 1 <= num_tokens <= self.max_new_tokens
            if self.gives_logprobs:
                assert completion.logprobs is not None
                assert len(completion.logprobs) == num_tokens
                assert all(math.isfinite(value) and value <= 0 for value in completion.logprobs)
            else:
                assert completion.logprobs is None
            _check_spans(completion)

    def test_a_message_ends_at_a_stop_token_or_at_its_limit(self) -> None:
        """`stop`: the last id, and no other, is a stop id. `length`: all tokens were used and none is."""

        async def use(engine: Engine) -> tuple[list[Completion], frozenset[int]]:
            return await self._generate(engine, range(32)), engine.tokenizer.stop_token_ids

        completions, stop_ids = self.with_engine(use)
        assert {completion.finish_reason for completion in completions} >= {"stop"}, "no message ended by itself"
        for completion in completions:
            assert completion.finish_reason in ("stop", "length")
            stops = [index for index, token_id in enumerate(completion.token_ids) if token_id in stop_ids]
            if completion.finish_reason == "stop":
                assert stops == [len(completion.token_ids) - 1]
            else:
                assert stops == []
                assert len(completion.token_ids) == self.max_new_tokens

    def test_max_new_tokens(self) -> None:
        """A limit of one gives one token, and a shorter limit gives a prefix of the longer message."""

        async def use(engine: Engine) -> tuple[Completion, Completion]:
            short = await engine.generate(self.request(engine, 0, max_new_tokens=1))
            return short, await engine.generate(self.request(engine, 0))

        short, long = self.with_engine(use)
        assert list(short.token_ids) == list(long.token_ids[:1])

    # ── reproducibility ──

    def test_the_same_request_gives_the_same_tokens(self) -> None:
        """Also in another process of the engine."""
        first = self.with_engine(lambda engine: self._generate(engine, range(4)))
        again = self.with_engine(lambda engine: self._generate(engine, range(4)))
        assert _ids(first) == _ids(again)

    def test_another_seed_gives_other_tokens(self) -> None:
        """The seed decides: eight seeds of one context are not all alike."""

        async def use(engine: Engine) -> Sequence[Completion]:
            return await asyncio.gather(*(engine.generate(self.request(engine, 0, seed=seed)) for seed in range(8)))

        assert len(set(_ids(self.with_engine(use)))) > 1

    def test_greedy_has_no_seed(self) -> None:
        """Temperature 0 gives the same message for every seed."""

        async def use(engine: Engine) -> Sequence[Completion]:
            requests = [self.request(engine, 0, seed=seed, temperature=0.0, max_new_tokens=8) for seed in range(4)]
            return await asyncio.gather(*(engine.generate(request) for request in requests))

        assert len(set(_ids(self.with_engine(use)))) == 1

    @pytest.mark.parametrize("size", [1, 3, 8, 17])
    def test_the_batch_does_not_matter(self, size: int) -> None:
        """The same tokens in batches of any size and order, and log-probabilities within 1e-3."""

        async def use(engine: Engine) -> tuple[list[Completion], dict[int, Completion]]:
            together = await self._generate(engine, range(20), max_new_tokens=12)
            shuffled = [index * 7 % 20 for index in range(20)]
            parts: dict[int, Completion] = {}
            for start in range(0, 20, size):
                part = shuffled[start : start + size]
                parts |= zip(part, await self._generate(engine, part, max_new_tokens=12), strict=True)
            return together, parts

        together, parts = self.with_engine(use)
        assert _ids(together) == _ids([parts[index] for index in range(20)])
        for index, completion in enumerate(together):
            if completion.logprobs is not None:
                assert parts[index].logprobs == pytest.approx(completion.logprobs, abs=1e-3)

    # ── what is refused ──

    def test_the_context_length_ends_a_message(self) -> None:
        """With room for three tokens there are at most three."""

        async def use(engine: Engine) -> Completion:
            length = engine.context_length - 3
            return await engine.generate(
                _with_prompt(self.request(engine, 0), _repeated(self.prompt(engine, 0), length))
            )

        completion = self.with_engine(use, context_length=64)
        assert 1 <= len(completion.token_ids) <= 3
        assert completion.finish_reason == ("length" if len(completion.token_ids) == 3 else "stop")

    @pytest.mark.parametrize("excess", [0, 1, 100])
    def test_a_context_without_room_is_a_typed_failure(self, excess: int) -> None:
        """Never cut; and the engine goes on."""

        async def use(engine: Engine) -> Completion:
            prompt = _repeated(self.prompt(engine, 0), engine.context_length + excess)
            with _engine_failure(str(engine.context_length)):
                await engine.generate(_with_prompt(self.request(engine, 0), prompt))
            return await engine.generate(self.request(engine, 1))

        assert len(self.with_engine(use, context_length=64).token_ids) >= 1

    def test_ids_outside_the_vocabulary_are_a_typed_failure(self) -> None:
        """Also alone in a batch of good requests; an empty context likewise."""

        async def use(engine: Engine) -> list[Completion | BaseException]:
            good = self.request(engine, 0)
            vocab_size = engine.tokenizer.vocab_size
            bad = [[*good.prompt_ids, vocab_size], [-1, *good.prompt_ids], []]
            requests = [good, *(_with_prompt(good, prompt) for prompt in bad)]
            return await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)

        good, *bad = self.with_engine(use)
        assert isinstance(good, Completion)
        for error in bad:
            assert isinstance(error, RowFailure)
            assert error.kind == "engine"

    @pytest.mark.parametrize(
        "sampling",
        [{"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 0.0}, {"top_k": 0}, {"max_new_tokens": 0}],
    )
    def test_sampling_that_cannot_be_drawn_from_is_a_usage_error(self, sampling: dict[str, float]) -> None:
        """Not silently replaced."""

        async def use(engine: Engine) -> None:
            with pytest.raises(UsageError):
                await engine.generate(self.request(engine, 0, seed=0, **sampling))

        self.with_engine(use)

    # ── policies ──

    def test_update_policy(self) -> None:
        """Afterwards other tokens, under the new version."""

        async def use(engine: Engine) -> tuple[list[Completion], list[Completion], int | None]:
            before = await self._generate(engine, range(8))
            await engine.update_policy(self.other_policy(), 7)
            return before, await self._generate(engine, range(8)), engine.policy_version

        before, after, version = self.with_engine(use)
        assert version == 7
        assert _ids(before) != _ids(after)
        for completion in after:
            assert [span.policy_version for span in completion.version_spans] == [7]
            _check_spans(completion)

    def test_update_policy_while_requests_run(self) -> None:
        """Every request ends, each token under one of the two versions, and new requests under the new one."""

        async def use(engine: Engine) -> tuple[list[Completion], Completion]:
            await engine.update_policy(self.other_policy(), 1)
            running = [asyncio.ensure_future(self._generate(engine, [index])) for index in range(8)]
            await asyncio.sleep(0.005)
            await engine.update_policy(self.other_policy(), 2)
            last = await engine.generate(self.request(engine, 9))
            return [completion for part in running for completion in await part], last

        completions, last = self.with_engine(use)
        for completion in completions:
            _check_spans(completion)
            assert {span.policy_version for span in completion.version_spans} <= {1, 2}
        assert [span.policy_version for span in last.version_spans] == [2]

    def test_a_policy_that_is_none_changes_nothing(self, tmp_path: Path) -> None:
        """The error is typed, and the engine serves what it served before."""

        async def use(engine: Engine) -> tuple[list[Completion], list[Completion], int | None, int | None]:
            version = engine.policy_version
            before = await self._generate(engine, range(2))
            with pytest.raises(PtctlError):
                await engine.update_policy(tmp_path / "nothing", 7)
            return before, await self._generate(engine, range(2)), version, engine.policy_version

        before, after, version_before, version_after = self.with_engine(use)
        assert _ids(before) == _ids(after)
        assert version_before == version_after

    # ── life cycle ──

    def test_a_cancelled_request_leaves_the_others(self) -> None:
        """They end with the tokens that they would have had without it."""

        async def use(engine: Engine) -> tuple[list[Completion], list[Completion]]:
            expected = await self._generate(engine, range(1, 6))
            given_up = asyncio.ensure_future(self._generate(engine, [0]))
            others = asyncio.ensure_future(self._generate(engine, range(1, 6)))
            await asyncio.sleep(0.002)
            given_up.cancel()
            return expected, await others

        expected, others = self.with_engine(use)
        assert _ids(expected) == _ids(others)

    def test_close_twice(self) -> None:
        """And nothing can be generated before the start and after the end."""

        async def use() -> None:
            engine = self.make_engine()
            await engine.start()
            request = self.request(engine, 0)
            await engine.close()
            await engine.close()
            with pytest.raises(Unavailable):
                await engine.generate(request)

        asyncio.run(use())

    async def _generate(self, engine: Engine, indices: Sequence[int], **sampling: int) -> list[Completion]:
        requests = [self.request(engine, index, seed=1000 + index, **sampling) for index in indices]
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


def _ids(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [tuple(completion.token_ids) for completion in completions]


def _repeated(prompt: list[int], length: int) -> list[int]:
    return (prompt * (length // len(prompt) + 1))[:length]


def _with_prompt(request: GenerateRequest, prompt: Sequence[int]) -> GenerateRequest:
    return GenerateRequest(
        request_id=request.request_id, prompt_ids=prompt, sampling=request.sampling, seed=request.seed, episode_seed=-1
    )


def _check_spans(completion: Completion) -> None:
    """Spans stand end to end over the completion; an engine without versions gives none."""
    place = 0
    for span in completion.version_spans:
        assert span.token_start == place
        assert span.token_end > place
        place = span.token_end
    assert place in (0, len(completion.token_ids))
    assert place > 0 or not completion.version_spans


@contextmanager
def _engine_failure(text: str) -> Generator[None]:
    with pytest.raises(RowFailure, match=text) as caught:
        yield
    assert caught.value.kind == "engine"
