"""TRL: data sets for SFT, DPO and KTO, as JSONL or Parquet.

Source: TRL's documentation, "Dataset formats and types". The type is told by the columns:

    messages                      a conversation (conversational language modelling)
    prompt, completion            prompt-completion
    prompt, completion, label     unpaired preference: the label is the verdict
    [prompt,] chosen, rejected    preference: a group of two, rewards 1 and 0

each with texts (standard) or messages (conversational). Prompt-only rows are tasks and no trajectories; `text` alone
does not tell prompt from completion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.converters.assembly import Draft, assemble
from ptctl.converters.envelope import leftover_of, with_leftover
from ptctl.converters.json_input import read_lines, require_file
from ptctl.converters.leftovers import difference, restore
from ptctl.converters.output import lines_of, refuse_existing, write_file
from ptctl.converters.trl_rows import Style, derive, has_completion, parse, row_type, success
from ptctl.errors import CorruptShard, DataError, UsageError
from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import Score, Task, Trajectory
from ptctl.shards.files import committed_file

KEY = "trl"
"""Under which all types leave what has no column."""
PARQUET = ".parquet"


class TrlConverter:
    """Reads every type; writes prompt-completion rows."""

    name: ClassVar[str] = "trl"
    written_type: ClassVar[str] = "prompt-completion"
    read_types: ClassVar[tuple[str, ...]] = ("messages", "prompt-completion", "unpaired", "preference")

    def __init__(self, settings: ConverterSettings) -> None:
        self.settings = settings

    def read(self, source: Path) -> Converted:
        """See Converter. The batch, and the family of its tasks, have the name of the file."""
        rows = _read_parquet(source) if source.suffix == PARQUET else list(read_lines(source))
        drafts: list[Draft] = []
        for number, (where, row) in enumerate(rows):
            drafts.extend(self._parse(row, where, source.stem, number))
        converted = assemble(source.stem, drafts, self.settings)
        tasks = {task.task_id: task for task in converted.tasks}
        scores = {score.trajectory_id: score for score in converted.scores}
        waiting = iter(converted.trajectories)
        told: list[Trajectory] = []
        for _, row in rows:
            kind, style = row_type(row, ""), Style.of(row)
            members = [next(waiting) for _ in range(2 if kind == "preference" else 1)]
            first = members[0]
            derived = derive(kind, style, members, tasks[first.task_id], [scores[one.trajectory_id] for one in members])
            leftover: dict[str, Any] = {"type": kind, "style": style.words()}
            told.append(with_leftover(first, KEY, {**leftover, "changes": difference(row, derived)}))
            told.extend(with_leftover(one, KEY, leftover) for one in members[1:])
        return replace(converted, trajectories=tuple(told))

    def _parse(self, row: Mapping[str, Any], where: str, family: str, number: int) -> list[Draft]:
        found = row_type(row, where)
        if found not in self.read_types:
            raise DataError(f"{where}: a {found} row, not {self.written_type}", hint="--from trl reads every type")
        return parse(row, where, self.settings, family=family, number=number)

    def write(
        self, trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score], out: Path
    ) -> tuple[str, ...]:
        """See Converter. Tokens, log-probabilities, times and identity have no place in these data sets."""
        if out.suffix not in (".jsonl", PARQUET):
            raise UsageError(f"{out} is neither *.jsonl nor *{PARQUET}")
        refuse_existing(out)
        usable = [row for row in trajectories if self._came_so(row) or has_completion(row, tasks[row.task_id])]
        chosen = self._members(usable, scores)
        rows = [self._row(members, tasks, scores) for members in chosen]
        if not rows:
            raise DataError(f"nothing to write as {self.written_type}", hint=self._need())
        _write(rows, out)
        left_out = len(trajectories) - sum(len(members) for members in chosen)
        notes = ["tokens, log-probabilities, versions, costs and identity"]
        if left_out:
            notes.append(f"{left_out} of {len(trajectories)} trajectories ({self._need()})")
        return tuple(notes)

    def _came_so(self, row: Trajectory) -> bool:
        """Whether the trajectory was read from a row of the type that is written."""
        return leftover_of(row, KEY).get("type") == self.written_type

    def _need(self) -> str:
        return "each needs a message of the policy"

    def _members(self, rows: Sequence[Trajectory], scores: Mapping[str, Score]) -> list[list[Trajectory]]:
        """The trajectories of each row to be written."""
        return [[row] for row in rows]

    def _row(
        self, members: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score]
    ) -> dict[str, Any]:
        first = members[0]
        leftover = leftover_of(first, KEY)
        found = [scores.get(row.trajectory_id) for row in members]
        row = derive(self.written_type, Style.read(leftover), members, tasks[first.task_id], found)
        changes = leftover.get("changes", []) if self._came_so(first) else []
        return restore(row, changes, f"trajectory {first.trajectory_id!r}")


class TrlMessagesConverter(TrlConverter):
    """Whole conversations, prompt included."""

    name: ClassVar[str] = "trl-messages"
    written_type: ClassVar[str] = "messages"
    read_types: ClassVar[tuple[str, ...]] = ("messages",)


class TrlUnpairedConverter(TrlConverter):
    """Prompt, completion and whether it was a success."""

    name: ClassVar[str] = "trl-unpaired"
    written_type: ClassVar[str] = "unpaired"
    read_types: ClassVar[tuple[str, ...]] = ("unpaired",)

    def _need(self) -> str:
        return "each needs a message of the policy and a score (--scores)"

    def _members(self, rows: Sequence[Trajectory], scores: Mapping[str, Score]) -> list[list[Trajectory]]:
        return [[row] for row in rows if success(scores.get(row.trajectory_id)) is not None]


class TrlPreferenceConverter(TrlConverter):
    """Pairs within a group: the best with the worst, the second best with the second worst, while rewards differ."""

    name: ClassVar[str] = "trl-preference"
    written_type: ClassVar[str] = "preference"
    read_types: ClassVar[tuple[str, ...]] = ("preference",)

    def _need(self) -> str:
        return "a pair needs two different rewards in one group (--scores)"

    def _members(self, rows: Sequence[Trajectory], scores: Mapping[str, Score]) -> list[list[Trajectory]]:
        groups: dict[str, list[tuple[float, Trajectory]]] = {}
        for row in rows:
            score = scores.get(row.trajectory_id)
            if score is not None and score.reward is not None:
                groups.setdefault(row.group_id, []).append((score.reward, row))
        pairs: list[list[Trajectory]] = []
        for members in groups.values():
            best_first = sorted(members, key=lambda member: -member[0])  # stable: equal rewards in source order
            for (high, better), (low, worse) in zip(best_first, reversed(best_first), strict=True):
                if high <= low:
                    break
                pairs.append([better, worse])
        return pairs


def _read_parquet(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        rows: list[dict[str, Any]] = pq.read_table(require_file(path)).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptShard(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    for number, row in enumerate(rows):
        try:
            json.dumps(row)
        except TypeError as error:
            raise DataError(f"{path}: row {number}: {error}", hint="only what JSON can hold is read") from error
    return [(f"{path}: row {number}", row) for number, row in enumerate(rows)]


def _write(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    if out.suffix != PARQUET:
        write_file(out, lines_of(rows))
        return
    columns = dict.fromkeys(key for row in rows for key in row)
    try:
        table = pa.table({key: [row.get(key) for row in rows] for key in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise DataError(f"Parquet cannot hold these rows: {error}", hint="write *.jsonl") from error
    with committed_file(out) as temporary:
        pq.write_table(table, temporary)
