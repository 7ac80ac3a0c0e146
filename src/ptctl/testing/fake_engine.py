"""An engine without a model: logits are hashed from the last tokens, so that a stage can be tested in milliseconds.

It keeps the whole contract of an engine (`ptctl.testing.engine_contract` runs on it): ids in and out, exact
log-probabilities, seeds, stop tokens, limits, policy versions. What it writes is noise, unless a script says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ptctl.engines.admission import check_context, check_sampling, uniform_numbers
from ptctl.errors import InputNotFound, Unavailable, UsageError
from ptctl.protocols import Completion, EngineSettings, Float64Array, GenerateRequest
from ptctl.records import Message, Role, Tool, VersionSpan
from ptctl.seeds import derive_seed

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", *(f"<|{role}|>" for role in Role))
_SPECIAL_IDS = {token: 256 + index for index, token in enumerate(SPECIAL_TOKENS)}
_SPECIAL = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))
_END = _SPECIAL_IDS["<|end|>"]
_CONTEXT_TOKENS = 3
_END_BONUS = 5.0


class FakeTokenizer:
    """Implements `ptctl.protocols.Tokenizer`: the bytes of UTF-8 are ids 0–255, special tokens follow.

    The template writes `<|user|>text<|end|>`, tools as one system message of JSON, and `<|assistant|>` as generation
    prompt.
    """

    vocab_size: int = 256 + len(SPECIAL_TOKENS)
    stop_token_ids: frozenset[int] = frozenset({_END})

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool) -> str:
        """Apply the template."""
        parts: list[str] = []
        if tools:
            listing = json.dumps(
                [{"name": tool.name, "parameters": json.loads(tool.parameters_json)} for tool in tools]
            )
            parts.append(f"<|system|>{listing}<|end|>")
        parts += [f"<|{message.role}|>{message.content}<|end|>" for message in messages]
        return "".join(parts) + ("<|assistant|>" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        """Bytes of `text`, special tokens recognised."""
        ids: list[int] = []
        end = 0
        for match in _SPECIAL.finditer(text):
            ids += text[end : match.start()].encode()
            ids.append(_SPECIAL_IDS[match[0]])
            end = match.end()
        return [*ids, *text[end:].encode()]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are no UTF-8 become U+FFFD."""
        parts = (bytes([i]) if i < 256 else SPECIAL_TOKENS[i - 256].encode() for i in token_ids)
        return b"".join(parts).decode("utf-8", "replace")


class FakeEngine:
    """Engine `fake`. Implements `ptctl.protocols.Engine`; needs no model directory.

    `script` maps a request to the text of the message, instead of noise; it may raise RowFailure. `latency_s` is the
    time that a request takes, a number or a function of the request. `policy_version` overrides that of `policy.json`.
    """

    name: ClassVar[str] = "fake"
    tokenizer: FakeTokenizer
    context_length: int
    policy_version: int | None

    requests: list[GenerateRequest]
    """Every request that came, in order."""
    peak_running: int
    """Most requests that ran at the same time; never above `max_running`."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        script: Callable[[GenerateRequest], str] | None = None,
        latency_s: float | Callable[[GenerateRequest], float] = 0.0,
        policy_version: int | None = None,
    ) -> None:
        self.tokenizer = FakeTokenizer()
        self.context_length = settings.context_length or 4096
        self.policy_version = _read_version(settings.policy) if policy_version is None else policy_version
        self.requests = []
        self.peak_running = 0
        self._script = script
        self._latency_s = latency_s
        self._places = asyncio.Semaphore(settings.max_running)
        self._num_running = 0
        self._started = False

    async def start(self) -> None:
        """Nothing is loaded."""
        self._started = True

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate one message. Raises RowFailure or UsageError as every engine does; top-p and top-k are refused."""
        if not self._started:
            raise Unavailable("the fake engine is not running", hint="call start() first")
        self.requests.append(request)
        check_sampling(request.sampling)
        if request.sampling.top_k != -1 or request.sampling.top_p < 1:
            raise UsageError("the fake engine has neither top_k nor top_p")
        context, limit = check_context(
            request, vocab_size=self.tokenizer.vocab_size, context_length=self.context_length
        )
        queued_at = time.monotonic()
        async with self._places:
            started_at = time.monotonic()
            self._num_running += 1
            self.peak_running = max(self.peak_running, self._num_running)
            try:
                await asyncio.sleep(self._latency_s(request) if callable(self._latency_s) else self._latency_s)
                token_ids, logprobs = self._message(request, context, limit)
            finally:
                self._num_running -= 1
        version = self.policy_version
        span = (
            () if version is None else (VersionSpan(policy_version=version, token_start=0, token_end=len(token_ids)),)
        )
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason="stop" if token_ids[-1] == _END else "length",
            version_spans=span,
            queue_s=started_at - queued_at,
            engine_s=time.monotonic() - started_at,
        )

    async def update_policy(self, policy: Path, policy_version: int) -> None:
        """Other noise from now on. Raises InputNotFound where `policy` is no directory."""
        if not policy.is_dir():
            raise InputNotFound(f"no directory {policy}")
        self.policy_version = policy_version

    async def close(self) -> None:
        """Stop; safe to call twice."""
        self._started = False

    def _message(self, request: GenerateRequest, context: list[int], limit: int) -> tuple[list[int], list[float]]:
        wanted = None if self._script is None else [*self.tokenizer.encode(self._script(request)), _END][:limit]
        uniforms = uniform_numbers(request.seed, limit)
        token_ids: list[int] = []
        logprobs: list[float] = []
        for index in range(limit if wanted is None else len(wanted)):
            distribution = self._logprobs([*context[-_CONTEXT_TOKENS:], *token_ids], request.sampling.temperature)
            if wanted is not None:
                token_id = wanted[index]
            elif request.sampling.temperature == 0:
                token_id = int(distribution.argmax())
            else:
                cumulative: Float64Array = np.cumsum(np.exp(distribution))
                token_id = int(np.count_nonzero(cumulative <= uniforms[index] * cumulative[-1]))
            token_ids.append(token_id)
            logprobs.append(float(distribution[token_id]))
            if token_id == _END:
                break
        return token_ids, logprobs

    def _logprobs(self, context: list[int], temperature: float) -> Float64Array:
        """# [V] log-probabilities after `context`, of which only the last tokens count."""
        seed = derive_seed("fake", self.policy_version or 0, *context[-_CONTEXT_TOKENS:])
        logits = 4.0 * uniform_numbers(seed, self.tokenizer.vocab_size)
        logits[_END] += _END_BONUS
        scaled = logits / (temperature or 1.0)
        scaled -= scaled.max()
        return scaled - np.log(np.exp(scaled).sum())


def _read_version(policy: Path) -> int | None:
    file = policy / "policy.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["policy_version"]) if file.is_file() else None
