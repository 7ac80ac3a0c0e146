"""verifiers: `results.jsonl`, a row a rollout, with `metadata.json` beside it.

The counts and averages in the metadata are not looked at: they are counted anew from the rows when it is written, and
what was there instead comes back only where the rows still are what they were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ptctl.converters.envelope import leftover_of, with_leftover
from ptctl.converters.json_input import member, read_document, read_lines
from ptctl.converters.leftovers import difference, restore
from ptctl.converters.output import refuse_existing, write_directory
from ptctl.converters.round_trip import read_rows, write_row
from ptctl.converters.verifiers_rows import VerifiersRows, ids_name_examples
from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import Sampling, Score, Task, Trajectory

RESULTS = "results.jsonl"
METADATA = "metadata.json"


class VerifiersConverter:
    """Reads a results file, or the directory that holds it; writes the directory."""

    name: ClassVar[str] = "verifiers"

    def __init__(self, settings: ConverterSettings) -> None:
        self.settings = settings

    def read(self, source: Path) -> Converted:
        """See Converter. The batch has the name of the directory."""
        results = source / RESULTS if source.is_dir() else source
        name = results.resolve().parent.name
        beside = results.with_name(METADATA)
        metadata = read_document(beside) if beside.is_file() else None
        lines = list(read_lines(results))
        rows = self._rows(metadata or {}, str(beside), name, trust_ids=ids_name_examples([row for _, row in lines]))
        return _with_metadata(read_rows(rows, lines, name, ()), metadata)

    def _rows(self, metadata: Mapping[str, Any], where: str, name: str, *, trust_ids: bool = True) -> VerifiersRows:
        environment = member(metadata, "env_id", "a string", where) or member(metadata, "env", "a string", where)
        return VerifiersRows(
            settings=self.settings,
            family=environment or name,
            model=member(metadata, "model", "a string", where) or "",
            sampling=_sampling(metadata, where),
            trust_ids=trust_ids,
        )

    def write(
        self, trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score], out: Path
    ) -> tuple[str, ...]:
        """See Converter. Nothing is left out: what has no member goes into `ptctl`."""
        refuse_existing(out)
        metadata = _restored(trajectories, derive_metadata(trajectories, tasks, scores))
        rows = self._rows(metadata or {}, METADATA, out.resolve().name)
        found = [write_row(rows, row, tasks[row.task_id], scores.get(row.trajectory_id)) for row in trajectories]
        files: dict[str, Any] = {RESULTS: found}
        if metadata is not None:
            files[METADATA] = metadata
        write_directory(out, files)
        return ()


def _sampling(metadata: Mapping[str, Any], where: str) -> Sampling:
    given = {**metadata, **(member(metadata, "sampling_args", "an object", where) or {})}
    temperature = member(given, "temperature", "a number", where)
    top_p = member(given, "top_p", "a number", where)
    max_tokens = member(given, "max_tokens", "an integer", where)
    default = Sampling()
    return Sampling(
        temperature=float(temperature) if temperature is not None else default.temperature,
        top_p=float(top_p) if top_p is not None else default.top_p,
        max_new_tokens=max_tokens if max_tokens is not None else default.max_new_tokens,
    )


def derive_metadata(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score]
) -> dict[str, Any]:
    """What the rows tell of the run."""
    found = [score for row in trajectories if (score := scores.get(row.trajectory_id)) is not None]
    metrics: dict[str, list[float]] = {}
    for score in found:
        for part in score.components:
            if part.value is not None:
                metrics.setdefault(part.name, []).append(part.value)
    sampling = trajectories[0].sampling
    return {
        "env_id": ",".join(dict.fromkeys(tasks[row.task_id].family for row in trajectories)),
        "env_args": {},
        "model": ",".join(dict.fromkeys(row.model for row in trajectories)),
        "num_examples": len({row.task_id for row in trajectories}),
        "rollouts_per_example": max(Counter(row.task_id for row in trajectories).values()),
        "sampling_args": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
        },
        "avg_reward": _mean([score.reward for score in found if score.reward is not None]),
        "avg_metrics": {name: _mean(values) for name, values in sorted(metrics.items())},
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _with_metadata(converted: Converted, metadata: Mapping[str, Any] | None) -> Converted:
    """Each row keeps what of the metadata the rows do not tell."""
    tasks = {task.task_id: task for task in converted.tasks}
    scores = {score.trajectory_id: score for score in converted.scores}
    changes = difference(metadata, derive_metadata(converted.trajectories, tasks, scores))
    told = {"metadata": changes} if metadata is not None else {"no_metadata": True}
    rows = [row if told == {"metadata": []} else _told(row, told) for row in converted.trajectories]
    return replace(converted, trajectories=tuple(rows))


def _told(row: Trajectory, told: Mapping[str, Any]) -> Trajectory:
    leftover = leftover_of(row, "verifiers") or {"own": True}
    return with_leftover(row, "verifiers", {**leftover, **told})


def _restored(trajectories: Sequence[Trajectory], derived: Mapping[str, Any]) -> dict[str, Any] | None:
    """The metadata to write: what was read, as far as it still holds and all rows agree on it; None where none was."""
    leftovers = [leftover_of(row, "verifiers") for row in trajectories]
    if all(leftover.get("no_metadata") for leftover in leftovers):
        return None
    first = leftovers[0].get("metadata", [])
    agreed = all(leftover.get("metadata", []) == first for leftover in leftovers)
    return restore(dict(derived), first if agreed else [], "metadata")
