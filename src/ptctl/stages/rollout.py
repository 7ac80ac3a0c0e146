"""`rollout`: draws + policy → trajectories.

Episodes run side by side; what is finished is committed without waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ptctl.episode import Player, Slot
from ptctl.errors import ConfigConflict, Interrupted, TooManyFailures
from ptctl.records import StopReason, Trajectory
from ptctl.shards.dataset import (
    check_inputs,
    is_complete,
    shards_in,
    tasks_by_id,
    upstream,
    write_manifest,
)
from ptctl.shards.files import sweep
from ptctl.shards.reader import read_rows, read_table, shard_metadata
from ptctl.shards.writer import Lineage, write_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """What one call of `run` needs."""

    draws: Iterable[Path]
    """Draw shards; may arrive one by one from a pipe."""
    out: Path
    """Dataset directory of the trajectories."""
    player: Player
    """Engine (started) and environments."""
    policy: str
    """What identifies the policy for resuming: hash of its weights, or the model's name."""
    tool_call_format: str
    max_in_flight: int
    max_attempts: int
    shard_rows: int
    shard_interval_s: float
    grace_s: float = 60.0
    """Seconds for which episodes in flight may go on after a stop."""
    max_errors: int | None = None
    """Failed rows allowed; None: anything short of all."""
    recipe_digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Facts of the batch, handed on to the trajectories."""
    on_commit: Callable[[Path], None] = lambda path: None
    """Called with each shard the moment it is committed."""
    stopped: Callable[[], bool] = lambda: False
    """Asked between episodes; True after a signal."""


async def run(options: RolloutOptions) -> None:
    """Play every drawn slot that has no row yet, and declare the dataset complete.

    Raises Interrupted (what is finished is committed), ConfigConflict where the dataset was begun with another policy
    or other sampling, TooManyFailures after everything was committed.
    """
    _check_resumable(options)
    sweep(options.out)
    await _Rollout(options).run()


def _configuration(options: RolloutOptions) -> dict[str, Any]:
    player = options.player
    return {
        "engine": player.engine.name,
        "policy": options.policy,
        "tool_call_format": options.tool_call_format,
        "context_length": player.context_length,
        **asdict(player.sampling),
    }


def _check_resumable(options: RolloutOptions) -> None:
    fresh = _configuration(options)
    for shard in shards_in(options.out)[:1]:
        stored = shard_metadata(shard)["facts"].get("rollout", {})
        changed = [
            f"{key}: {stored.get(key)!r} there, {fresh.get(key)!r} now"
            for key in sorted({*stored, *fresh})
            if stored.get(key) != fresh.get(key)
        ]
        if changed:
            raise ConfigConflict(
                f"{options.out} was begun with another configuration: {'; '.join(changed)}",
                hint="give the same settings to resume, or another -o",
            )


class _Rollout:
    """One run of the stage: a feeder, `max_in_flight` players and a committer around two queues."""

    def __init__(self, options: RolloutOptions) -> None:
        self.options = options
        self.slots: asyncio.Queue[Slot | None] = asyncio.Queue(maxsize=2 * options.max_in_flight)
        self.finished: list[Trajectory] = []
        self.changed = asyncio.Event()
        self.draws: Iterable[Path] = options.draws
        self.inputs: list[Path] = []
        self.ended = False
        self.num_failed = 0
        self.num_rows = 0
        self.ordinal = len(shards_in(options.out))

    async def run(self) -> None:
        if shards_in(self.options.out):
            self.draws = list(self.draws)  # a resume: what stands there must come from these draws
            check_inputs(self.options.out, self.draws)
        for shard in shards_in(self.options.out):
            self.options.on_commit(shard)
        if is_complete(self.options.out):
            return
        players = [asyncio.create_task(self._play_slots()) for _ in range(self.options.max_in_flight)]
        committer = asyncio.create_task(self._commit_loop())
        feeder = asyncio.create_task(self._feed())
        try:
            await self._until_played(feeder, players)
        finally:
            for task in (feeder, *players):
                task.cancel()
            await asyncio.gather(feeder, *players, return_exceptions=True)
            self.ended = True
            self.changed.set()
            await committer  # commits what is finished
        if self.options.stopped():
            raise Interrupted(f"stopped after {self.num_rows} trajectories", hint="the same command again goes on")
        self._finish()

    async def _until_played(self, feeder: asyncio.Task[None], players: list[asyncio.Task[None]]) -> None:
        """Wait for all work, or after a stop for at most the grace period."""
        work = asyncio.gather(feeder, *players)
        stop_at: float | None = None
        while not work.done():
            await asyncio.wait([work], timeout=0.2)
            if self.options.stopped() and stop_at is None:
                stop_at = time.monotonic() + self.options.grace_s
                feeder.cancel()
                self._release_players(len(players))
            if stop_at is not None and (time.monotonic() > stop_at or all(player.done() for player in players)):
                work.cancel()
                break
        if stop_at is None:
            await work  # raises what the feeder or a player raised

    def _release_players(self, count: int) -> None:
        while not self.slots.empty():
            self.slots.get_nowait()
        for _ in range(count):
            self.slots.put_nowait(None)

    async def _feed(self) -> None:
        done = self._done_slots()
        paths = iter(self.draws)
        while (path := await asyncio.to_thread(next, paths, None)) is not None:
            self.inputs.append(path)
            for slot in await asyncio.to_thread(_slots_of, path):
                if slot.key not in done:
                    await self.slots.put(slot)
        for _ in range(self.options.max_in_flight):
            await self.slots.put(None)

    def _done_slots(self) -> set[tuple[str, int]]:
        done: set[tuple[str, int]] = set()
        for shard in shards_in(self.options.out):
            table = read_table(shard, "trajectories", ["group_id", "index"])
            done.update(zip(table.column("group_id").to_pylist(), table.column("index").to_pylist(), strict=True))
        return done

    async def _play_slots(self) -> None:
        while not self.options.stopped() and (slot := await self.slots.get()) is not None:
            # Two statements: `self.finished.append(await …)` would bind the list before the wait, and a commit in
            # between would take that list away.
            row = await self._play(slot)
            self.finished.append(row)
            self.changed.set()

    async def _play(self, slot: Slot) -> Trajectory:
        """Play a slot, again where infrastructure failed; one final row each."""
        row = await self.options.player.play(slot)
        for attempt in range(1, self.options.max_attempts):
            if not StopReason(row.stop_reason).is_error or self.options.stopped():
                break
            row = await self.options.player.play(replace(slot, attempt=attempt))
        return row

    async def _commit_loop(self) -> None:
        """Commit when enough is finished, when the interval is over, and at the end."""
        first = 0.0
        while not self.ended:
            if not self.finished:
                self.changed.clear()
                await self.changed.wait()
                first = time.monotonic()
            elif (
                len(self.finished) >= self.options.shard_rows
                or time.monotonic() - first >= self.options.shard_interval_s
            ):
                await self._commit()
            else:
                await asyncio.sleep(min(0.05, self.options.shard_interval_s))
        await self._commit()

    async def _commit(self) -> None:
        rows, self.finished = self.finished, []
        if not rows:
            return
        rows.sort(key=lambda row: (row.task_id, row.group_id, row.index, row.attempt))
        self.num_failed += sum(StopReason(row.stop_reason).is_error for row in rows)
        self.num_rows += len(rows)
        path = await asyncio.to_thread(
            write_rows, rows, "trajectories", self.options.out, self._lineage(), ordinal=self.ordinal
        )
        self.ordinal += 1
        self.options.on_commit(path)

    def _lineage(self) -> Lineage:
        facts = {**self.options.facts, "rollout": _configuration(self.options)}
        return Lineage(inputs=tuple(self.inputs), recipe_digest=self.options.recipe_digest, facts=facts)

    def _finish(self) -> None:
        write_manifest(self.options.out, "trajectories", self._lineage())
        limit = self.options.max_errors
        if self.num_failed and (self.num_failed == self.num_rows if limit is None else self.num_failed > limit):
            raise TooManyFailures(
                f"{self.num_failed} of {self.num_rows} trajectories failed", hint=f"`ptctl show` on {self.options.out}"
            )


def _slots_of(path: Path) -> list[Slot]:
    draws = read_rows(path, "draws")
    tasks = tasks_by_id(upstream([path]), {draw.task_id: draw.task_digest for draw in draws})
    return [
        Slot(draw=draw, task=tasks[draw.task_id], index=index) for draw in draws for index in range(draw.group_size)
    ]
