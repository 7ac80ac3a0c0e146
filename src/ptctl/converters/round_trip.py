"""The two directions, for formats with one row a trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from ptctl.converters.assembly import Draft, assemble
from ptctl.converters.envelope import leftover_of, seal, unseal, with_leftover
from ptctl.converters.leftovers import difference, restore
from ptctl.errors import DataError
from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import Score, Task, Trajectory


class RowFormat(Protocol):
    """What a format says about itself."""

    name: ClassVar[str]

    @property
    def settings(self) -> ConverterSettings:
        """What the rows are imported for."""
        ...

    def parse(self, row: Mapping[str, Any], where: str) -> Draft:
        """Our rows of a foreign one. Raises DataError naming place and field."""
        ...

    def derive(self, trajectory: Trajectory, task: Task, score: Score | None, *, own: bool) -> dict[str, Any]:
        """The foreign row as far as our columns tell it; `own` rows show ptctl's identity where the format can."""
        ...

    def take_envelope(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """The row without the member `ptctl`, and the member (None where there is none)."""
        ...

    def put_envelope(self, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> dict[str, Any]:
        """The row with the member."""
        ...


def read_rows(
    row_format: RowFormat, rows: Iterable[tuple[str, Mapping[str, Any]]], name: str, facts: Sequence[Mapping[str, Any]]
) -> Converted:
    """Read (place, row) pairs as the batch `name`.

    What has no column is left in `original_json`, and with it the `facts` of each row that the source tells (an entry
    for each row, or none at all).
    """
    drafts: list[Draft] = []
    sources: list[tuple[str, dict[str, Any], bool]] = []
    for where, row in rows:
        bare, envelope = row_format.take_envelope(row)
        draft = row_format.parse(bare, where)
        if envelope is not None:
            draft = unseal(draft, envelope, where)
        drafts.append(draft)
        sources.append((where, bare, bool(draft.trajectory.trajectory_id)))
    converted = assemble(name, drafts, row_format.settings)
    tasks = {task.task_id: task for task in converted.tasks}
    trajectories: list[Trajectory] = []
    # Compared last, with the rows as they will be found when they are written again.
    for number, (trajectory, score) in enumerate(zip(converted.trajectories, converted.scores, strict=True)):
        where, bare, own = sources[number]
        try:
            changes = difference(bare, row_format.derive(trajectory, tasks[trajectory.task_id], score, own=own))
        except RecursionError as error:
            raise DataError(f"{where}: nested too deeply") from error
        leftover = {**(facts[number] if facts else {}), "changes": changes, **({"own": True} if own else {})}
        if own and not changes:
            leftover = {}
        trajectories.append(with_leftover(trajectory, row_format.name, leftover))
    return replace(converted, trajectories=tuple(trajectories))


def write_row(row_format: RowFormat, trajectory: Trajectory, task: Task, score: Score | None) -> dict[str, Any]:
    """Write a row, so that reading it gives the same columns."""
    leftover = leftover_of(trajectory, row_format.name)
    own = not leftover or leftover.get("own", False)
    where = f"trajectory {trajectory.trajectory_id!r}"
    row = restore(row_format.derive(trajectory, task, score, own=own), leftover.get("changes", []), where)
    envelope = seal(trajectory, task, score, row_format.parse(row, where), row_format.name, own=own)
    return row_format.put_envelope(row, envelope) if envelope is not None else row
