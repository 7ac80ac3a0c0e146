"""Playing one episode: engine and environment take turns until one of them, or a limit, ends it."""

from __future__ import annotations

import asyncio
import hashlib
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ptctl.errors import PtctlError, RowFailure
from ptctl.protocols import Completion, Engine, Environment, GenerateRequest, Observation
from ptctl.records import (
    Costs,
    Draw,
    RowError,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    Turn,
    content_digest,
)
from ptctl.seeds import derive_seed
from ptctl.transcript import Transcript

MakeEnvironment = Callable[[Task, int], Environment]
"""(task, seed) → environment of one episode."""
T = TypeVar("T")
MAX_DETAIL_CHARS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One trajectory that is to be played: member `index` of the group that `draw` asks for."""

    draw: Draw
    task: Task
    index: int
    attempt: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """(group_id, index): exactly one final row each."""
        return (self.draw.group_id, self.index)

    @property
    def seed(self) -> int:
        """Seed of this try; a retry draws anew, since the failed try's tokens are not kept."""
        return derive_seed(self.draw.seed, self.index, self.attempt)

    @property
    def trajectory_id(self) -> str:
        """The same slot of the same draw gives the same id on every run."""
        name = f"{self.draw.group_id}\0{self.draw.seed}\0{self.index}\0{self.attempt}"
        return hashlib.sha256(name.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """What all episodes of a rollout share."""

    engine: Engine
    make_environment: MakeEnvironment
    sampling: Sampling
    context_length: int
    model: str
    """Policy directory or model name, for the row."""

    async def play(self, slot: Slot) -> Trajectory:
        """Play one episode to its end. Failures of engine or environment end up in the row, not as exceptions."""
        return await _Episode(self, slot).run()


class _Episode:
    """State of one episode; lives as long as `Player.play` runs."""

    def __init__(self, player: Player, slot: Slot) -> None:
        self.player = player
        self.slot = slot
        self.environment: Environment | None = None
        self.transcript: Transcript | None = None
        self.started_at = time.time()
        self.set_up_s = 0.0
        self.num_actions = 0
        self.solution: str | None = None
        self.error: RowError | None = None

    async def run(self) -> Trajectory:
        stop_reason = StopReason.COMPLETED
        try:
            async with asyncio.timeout(self.slot.task.limits.episode_timeout_s):
                stop_reason = await self._turns()
        except TimeoutError:
            stop_reason = StopReason.TIMEOUT
            self.error = RowError(
                kind="timeout", message=f"episode exceeded {self.slot.task.limits.episode_timeout_s} s"
            )
        except RowFailure as failure:
            stop_reason = StopReason.ENGINE_ERROR if failure.kind == "engine" else StopReason.ENV_ERROR
            self.error = RowError(kind=failure.kind, message=str(failure), detail=failure.detail)
        finally:
            if self.environment is not None:
                await self.environment.close()
        return self._row(stop_reason)

    async def _turns(self) -> StopReason:
        task = self.slot.task
        begin = time.perf_counter()
        self.environment = self.player.make_environment(task, self.slot.seed)
        opening = await _guarded(self.environment.reset())
        self.set_up_s = time.perf_counter() - begin
        self.transcript = Transcript(self.player.engine.tokenizer, task.tools, opening)
        while True:
            budget = self._token_budget()
            if budget < 1:
                return StopReason.TRUNCATED_CONTEXT
            completion = await self._generate(budget)
            if completion.finish_reason != "stop":
                return StopReason.TRUNCATED_TOKENS
            observation = await self._step(self.transcript.turns[-1].content)
            if observation.done:
                return StopReason(observation.stop_reason)
            if self.num_actions >= task.limits.max_turns:
                return StopReason.TRUNCATED_TURNS
            self.transcript.add_observation(observation.messages)

    def _token_budget(self) -> int:
        """Tokens that the next message may have."""
        assert self.transcript is not None
        limit = self.player.context_length
        if self.slot.task.limits.max_tokens is not None:
            limit = min(limit, self.slot.task.limits.max_tokens)
        return min(self.player.sampling.max_new_tokens, limit - len(self.transcript.prompt_ids))

    async def _generate(self, budget: int) -> Completion:
        assert self.transcript is not None
        prompt_ids = self.transcript.prompt_ids
        turn_at = time.time()
        request = GenerateRequest(
            request_id=f"{self.slot.trajectory_id}-{self.num_actions}",
            prompt_ids=prompt_ids,
            sampling=replace(self.player.sampling, max_new_tokens=budget),
            seed=derive_seed(self.slot.seed, "turn", self.num_actions),
            task=self.slot.task,
            num_actions=self.num_actions,
            episode_seed=self.slot.seed,
        )
        completion = await self.player.engine.generate(request)
        self.num_actions += 1
        self.solution = completion.solution or self.solution
        content = self.transcript.content_of(completion)
        facts = Turn(
            role="assistant", content="", segment=0, token_start=0, token_end=0,
            num_prompt_tokens=len(prompt_ids), started_at=turn_at,
        )  # fmt: skip
        self.transcript.add_completion(completion, content, facts)
        return completion

    async def _step(self, content: str) -> Observation:
        assert self.transcript is not None
        assert self.environment is not None
        begin = time.perf_counter()
        observation = await _guarded(self.environment.step(content))
        self.transcript.annotate_last(observation.tool_calls, observation.reward, time.perf_counter() - begin)
        return observation

    def _row(self, stop_reason: StopReason) -> Trajectory:
        draw, task, transcript = self.slot.draw, self.slot.task, self.transcript
        turns = tuple(transcript.turns) if transcript else ()
        spans = tuple(transcript.version_spans) if transcript else ()
        span_versions = [span.policy_version for span in spans]
        ended_at = time.time()
        return Trajectory(
            trajectory_id=self.slot.trajectory_id,
            group_id=draw.group_id,
            index=self.slot.index,
            attempt=self.slot.attempt,
            batch=draw.batch,
            purpose=draw.purpose,
            task_id=task.task_id,
            task_digest=task.task_digest,
            group_size=draw.group_size,
            seed=self.slot.seed,
            token_ids=np.asarray(transcript.token_ids if transcript else [], dtype=np.int32),  # pyright: ignore[reportArgumentType]
            loss_mask=np.asarray(transcript.loss_mask if transcript else [], dtype=np.bool_),  # pyright: ignore[reportArgumentType]
            rollout_logprobs=np.asarray(  # pyright: ignore[reportArgumentType]
                transcript.logprobs if transcript and transcript.has_logprobs else [], dtype=np.float32
            ),
            turns=turns,
            segments=transcript.segments if transcript else (),
            version_spans=spans,
            policy_version_min=min(span_versions, default=None),
            policy_version_max=max(span_versions, default=None),
            stop_reason=stop_reason,
            error=self.error,
            final_answer=_final_answer(turns),
            engine=self.player.engine.name,
            model=self.player.model,
            sampling=self.player.sampling,
            environment=task.environment,
            environment_digest=_environment_digest(task, self.environment),
            final_state_json=self.environment.final_state_json() if self.environment else None,
            costs=_costs(turns, self.set_up_s, ended_at - self.started_at),
            started_at=self.started_at,
            ended_at=ended_at,
            solution=self.solution,
        )


async def _guarded(call: Awaitable[T]) -> T:
    """Await an environment: whatever it raises is this row's failure, kept with its traceback."""
    try:
        return await call
    except PtctlError:
        raise
    except Exception as error:
        detail = traceback.format_exc()[-MAX_DETAIL_CHARS:]
        raise RowFailure(f"{type(error).__name__}: {error}", kind="environment", detail=detail) from error


def _final_answer(turns: tuple[Turn, ...]) -> str | None:
    """Text of the last turn where it is the assistant's, finished, and makes no call."""
    last = turns[-1] if turns else None
    if last is None or last.role != "assistant" or last.tool_calls or last.finish_reason != "stop":
        return None
    return last.content


def _environment_digest(task: Task, environment: Environment | None) -> str:
    version = environment.version if environment is not None else ""
    return content_digest([task.environment, version, task.environment_json, task.task_digest])


def _costs(turns: tuple[Turn, ...], set_up_s: float, wall_s: float) -> Costs:
    return Costs(
        num_turns=sum(turn.role == "assistant" for turn in turns),
        num_tool_calls=sum(len(turn.tool_calls) for turn in turns),
        num_prompt_tokens=sum(turn.num_prompt_tokens for turn in turns),
        num_cached_tokens=sum(turn.num_cached_tokens for turn in turns),
        num_completion_tokens=sum(turn.num_completion_tokens for turn in turns),
        queue_s=sum(turn.queue_s for turn in turns),
        engine_s=sum(turn.engine_s for turn in turns),
        environment_s=set_up_s + sum(turn.environment_s for turn in turns),
        wall_s=wall_s,
    )
