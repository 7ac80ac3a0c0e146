"""The in-process engine: a transformers model that decodes many requests together, on a CPU or one GPU.

`generate` puts a request into a queue. One task, the pump, runs iterations of the decoder in a single thread, so that
tools and environments of other episodes go on meanwhile; requests join and leave between any two iterations. What a
request returns depends on its context, its seed and the policy, not on what else is being decoded.

Memory for keys and values grows with `max_running` times the longest sequence; lower `max_running` for large models.
torch is imported in `start`, not with this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ptctl.engines.admission import check_context, check_sampling, uniform_numbers
from ptctl.engines.model_directory import ModelDirectory, read_model_directory, weight_files
from ptctl.engines.tokenizer import HuggingFaceTokenizer
from ptctl.errors import MissingExtra, RowFailure, Unavailable, UsageError
from ptctl.protocols import Completion, EngineSettings, GenerateRequest
from ptctl.records import VersionSpan

if TYPE_CHECKING:
    from ptctl.engines.decoder import Row
    from ptctl.engines.served_model import ServedModel

_T = TypeVar("_T")

REQUIRES = ("torch", "transformers")
"""Modules that must be installed; see `ptctl.registry.check`."""
ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose state is keys and values alone."""
_DETAIL_CHARACTERS = 4000


@dataclass(slots=True, eq=False)
class _Pending:
    """A request with the place where its answer is awaited."""

    request: GenerateRequest
    context: list[int]
    limit: int
    answer: asyncio.Future[Completion]
    queued_at: float
    started_at: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    policy: Path
    policy_version: int
    done: asyncio.Future[None]


class LocalEngine:
    """Engine `local`. Implements `ptctl.protocols.Engine`.

    - Log-probabilities are those of the full vocabulary at the sampling temperature (at 1 for greedy), also with top-p
      and top-k.
    - `update_policy` lets requests in flight end with the policy that they began with; requests that come meanwhile
      wait for the new one. So a completion has one version span, and none where the policy has no version.
    - Rows of one context that arrive together are read once; the next turn of an episode (same `episode_seed`) reads
      only what is new. Both are counted in `num_cached_tokens`.
    - Sequences end at `context_length`, or at the sliding window of models that have one.
    """

    name: ClassVar[str] = "local"
    tokenizer: HuggingFaceTokenizer
    context_length: int
    policy_version: int | None

    def __init__(self, settings: EngineSettings) -> None:
        if settings.endpoint is not None:
            raise UsageError("the local engine has no endpoint", hint="leave it out, or name an engine that is served")
        if settings.max_running < 1 or settings.num_threads < 1:
            raise UsageError("max_running and num_threads must be at least 1")
        self._settings = settings
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ptctl-local-engine")
        self._waiting: deque[_Pending] = deque()
        self._running: dict[Row, _Pending] = {}
        self._updates: deque[_Update] = deque()
        self._wakeup = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load tokenizer and model.

        Raises MissingExtra without torch or transformers, InputNotFound or DataError for a directory that is no
        complete model, UsageError for an architecture or a context length that this engine cannot serve.
        """
        _require_extra()
        directory = read_model_directory(self._settings.policy)
        _check_supported(directory)
        self.context_length = directory.resolve_context_length(
            self._settings.context_length, at_most=directory.sliding_window
        )
        weight_files(directory.path)
        self.tokenizer = HuggingFaceTokenizer(directory.path)
        self.policy_version = directory.policy_version
        served = await self._in_thread(self._load)
        self._pump = asyncio.create_task(self._pump_requests(served), name="ptctl-local-engine")

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate one message.

        Raises RowFailure for a context that is empty, leaves no room or has ids outside the vocabulary, and for logits
        that are not numbers; UsageError for sampling settings that cannot be drawn from; Unavailable while not started.
        """
        self._check_running()
        check_sampling(request.sampling)
        context, limit = check_context(
            request, vocab_size=self.tokenizer.vocab_size, context_length=self.context_length
        )
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(request, context, limit, answer, time.monotonic()))
        self._wakeup.set()
        # Where the caller gives up, the future is cancelled with it, and the pump drops the row.
        return await answer

    async def update_policy(self, policy: Path, policy_version: int) -> None:
        """Serve the weights of `policy` once the requests in flight have ended; returns when that is done.

        Raises InputNotFound or DataError where the directory does not hold weights of the same architecture; the engine
        then goes on with the policy that it has.
        """
        self._check_running()
        done = asyncio.get_running_loop().create_future()
        self._updates.append(_Update(policy, policy_version, done))
        self._wakeup.set()
        await done

    async def close(self) -> None:
        """Stop and release the model; requests in flight fail. Safe to call twice."""
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

    def _check_running(self) -> None:
        if self._pump is None or self._pump.done():
            raise Unavailable("the local engine is not running", hint="call start() first")

    # ── in the engine's thread ──

    async def _in_thread(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def _load(self) -> ServedModel:
        from ptctl.engines.served_model import ServedModel

        return ServedModel(
            self._settings.policy,
            context_length=self.context_length,
            max_running=self._settings.max_running,
            num_threads=self._settings.num_threads,
            stop_token_ids=self.tokenizer.stop_token_ids,
        )

    # ── the pump ──

    async def _pump_requests(self, served: ServedModel) -> None:
        try:
            while True:
                if not (self._waiting or self._running or self._updates):
                    self._wakeup.clear()
                    await self._wakeup.wait()
                if self._updates and not self._running:
                    await self._apply(self._updates[0], served)
                    self._updates.popleft()
                else:
                    await self._iterate(served)
        finally:  # closed, or a bug: nobody may be left waiting for an answer
            _fail([*self._running.values(), *self._waiting], "the local engine was closed", None)
            self._running.clear()
            self._waiting.clear()
            for update in self._updates:
                if not update.done.done():
                    update.done.set_exception(Unavailable("the local engine was closed"))
            self._updates.clear()

    async def _iterate(self, served: ServedModel) -> None:
        leaving = [row for row, pending in self._running.items() if pending.answer.done()]
        for row in leaving:
            del self._running[row]
        # While an update waits, nobody joins: the rows that run end with the old policy.
        arriving = [] if self._updates else self._admit(served.decoder.num_free + len(leaving))
        try:
            finished = await self._in_thread(served.decoder.advance, arriving, leaving)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever the model raised becomes the rows' typed error
            detail = traceback.format_exc()[-_DETAIL_CHARACTERS:]
            _fail(self._running.values(), f"the model failed: {type(error).__name__}: {error}", detail)
            self._running.clear()
            await self._in_thread(served.decoder.reset)
            return
        for row in finished:
            self._answer(row, self._running.pop(row))

    def _admit(self, num_free: int) -> list[Row]:
        from ptctl.engines.decoder import Row

        rows: list[Row] = []
        now = time.monotonic()
        while self._waiting and len(rows) < num_free:
            pending = self._waiting.popleft()
            if pending.answer.done():
                continue  # its caller gave up
            pending.started_at = now
            request = pending.request
            uniforms = uniform_numbers(request.seed, pending.limit)
            row = Row(pending.context, request.sampling, uniforms, pending.limit, request.episode_seed)
            self._running[row] = pending
            rows.append(row)
        return rows

    def _answer(self, row: Row, pending: _Pending) -> None:
        if row.finish_reason not in ("stop", "length"):
            _fail([pending], f"the logits after {len(row.tokens)} tokens are not numbers", None)
            return
        if pending.answer.done():
            return
        version = self.policy_version
        num_tokens = len(row.tokens)
        spans = () if version is None else (VersionSpan(policy_version=version, token_start=0, token_end=num_tokens),)
        pending.answer.set_result(
            Completion(
                token_ids=row.tokens,
                logprobs=row.logprobs,
                finish_reason=row.finish_reason,
                version_spans=spans,
                num_cached_tokens=row.num_cached_tokens,
                queue_s=pending.started_at - pending.queued_at,
                engine_s=time.monotonic() - pending.started_at,
            )
        )

    async def _apply(self, update: _Update, served: ServedModel) -> None:
        try:
            await self._in_thread(served.load_policy, update.policy)
        except Exception as error:  # noqa: BLE001 - not handled here: it is raised where the update was asked for
            if not update.done.done():
                update.done.set_exception(error)
            return
        self.policy_version = update.policy_version
        if not update.done.done():
            update.done.set_result(None)


def _fail(requests: Iterable[_Pending], message: str, detail: str | None) -> None:
    for pending in requests:
        if not pending.answer.done():
            text = f"request {pending.request.request_id}: {message}"
            pending.answer.set_exception(RowFailure(text, kind="engine", detail=detail))


def _require_extra() -> None:
    """Say what is not installed before anything is read, so that a newcomer is not sent after weights first."""
    for module in REQUIRES:
        if find_spec(module) is None:
            raise MissingExtra(
                f"engine 'local' needs {module}, which is not installed", hint="pip install 'ptctl[local]'"
            )


def _check_supported(directory: ModelDirectory) -> None:
    other = sorted(directory.layer_types - ATTENTION_LAYERS)
    if other:
        raise UsageError(
            f"the local engine cannot run {directory.path}: it has layers of kind {', '.join(other)}",
            hint="serve this architecture with another engine, such as sglang",
        )
