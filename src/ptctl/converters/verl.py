"""verl: the rollouts that its trainer dumps (`trainer.rollout_data_dir`, `validation_data_dir`), a JSONL file a step.

Source: `RayPPOTrainer._dump_generations` of verl: `input`, `output`, `gts` (newer versions), `score`, `step`, and a
member for each list of a reward function's extra information.

`input` is the rendered prompt without special tokens: roles cannot be told from text, so it becomes one user message.
Rows of a step with equal input and ground truth are one group; a prompt that was drawn twice in a step cannot be told
from a larger group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ptctl.converters import chat
from ptctl.converters.assembly import Draft, draft_score, draft_task, draft_trajectory
from ptctl.converters.envelope import MEMBER
from ptctl.converters.json_input import known_number, member, read_lines, require_file
from ptctl.converters.output import lines_of, refuse_existing, write_directory, write_file
from ptctl.converters.round_trip import read_rows, write_row
from ptctl.errors import InputNotFound
from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import Component, Role, Score, Task, Trajectory, Turn

KNOWN_KEYS = ("input", "output", "gts", "score", "step", MEMBER)
CORRECT = "acc"
"""Extra information that verl's own reward functions use for success, apart from the score."""


class VerlConverter:
    """Reads a dumped file or a directory of them; writes `*.jsonl`, or a directory with a file for each step."""

    name: ClassVar[str] = "verl"

    def __init__(self, settings: ConverterSettings) -> None:
        self.settings = settings

    def read(self, source: Path) -> Converted:
        """See Converter. Files of a directory are read in the order of their steps."""
        if source.is_dir():
            paths = sorted(source.glob("*.jsonl"), key=lambda path: (len(path.stem), path.stem))
            if not paths:
                raise InputNotFound(f"no *.jsonl in {source}")
        else:
            paths = [require_file(source)]
        rows = [pair for path in paths for pair in read_lines(path)]
        name = source.resolve().name if source.is_dir() else source.stem
        return read_rows(VerlRows(settings=self.settings), rows, name, ())

    def write(
        self, trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score], out: Path
    ) -> tuple[str, ...]:
        """See Converter. Nothing is left out: what has no member goes into `ptctl`."""
        refuse_existing(out)
        row_format = VerlRows(settings=self.settings)
        rows = [write_row(row_format, row, tasks[row.task_id], scores.get(row.trajectory_id)) for row in trajectories]
        if out.suffix == ".jsonl":
            write_file(out, lines_of(rows))
            return ()
        files: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            files.setdefault(f"{row.get('step', 0)}.jsonl", []).append(row)
        write_directory(out, files)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlRows:
    """The row format."""

    name: ClassVar[str] = "verl"

    settings: ConverterSettings

    def take_envelope(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """See RowFormat."""
        return {key: value for key, value in row.items() if key != MEMBER}, row.get(MEMBER)

    def put_envelope(self, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> dict[str, Any]:
        """See RowFormat."""
        return {**row, MEMBER: dict(envelope)}

    def parse(self, row: Mapping[str, Any], where: str) -> Draft:
        """See RowFormat."""
        prompt = member(row, "input", "a string", where, required=True)
        output = member(row, "output", "a string", where, required=True)
        step = member(row, "step", "an integer", where)
        source = row.get("data_source")
        family = source if isinstance(source, str) and source else self.name
        turns = [
            chat.make_turn(Role.USER.value, prompt, where),
            chat.make_turn(Role.ASSISTANT.value, output, where),
        ]
        key = json.dumps([prompt, row.get("gts")], sort_keys=True).encode("ascii")
        return Draft(
            task=draft_task(
                hashlib.sha256(key).hexdigest()[:16],
                turns[:1],
                self.settings,
                family=family,
                target=row.get("gts"),
                source=self.name,
            ),
            trajectory=draft_trajectory(self.name, turns, 1),
            score=draft_score(
                self.name,
                known_number(row, "score", where),
                components=tuple(_components(row)),
                passed=_passed(row.get(CORRECT)),
            ),
            group_key=str(step),
        )

    def derive(self, trajectory: Trajectory, task: Task, score: Score | None, *, own: bool) -> dict[str, Any]:
        """See RowFormat. A conversation of several messages is written as text, a role and its message a paragraph."""
        split = chat.num_prompt_turns(trajectory.turns, task)
        row: dict[str, Any] = {
            "input": _as_text(trajectory.turns[:split], Role.USER),
            "output": _as_text(trajectory.turns[split:], Role.ASSISTANT),
            "gts": json.loads(task.target_json),
            "score": score.reward if score is not None else None,
        }
        if own and trajectory.batch.isdecimal():
            row["step"] = int(trajectory.batch)
        for part in score.components if score is not None else ():
            if part.turn is None and part.name not in KNOWN_KEYS:
                row[part.name] = part.value if part.passed is None else part.passed
        return row


def _components(row: Mapping[str, Any]) -> list[Component]:
    """Extra information that is a number or a truth value. How it makes the score is not told: weight 0."""
    return [
        Component(
            name=key,
            value=known_number(row, key, "") if not isinstance(value, bool) else float(value),
            weight=0.0,
            passed=value if isinstance(value, bool) else None,
        )
        for key, value in row.items()
        if key not in KNOWN_KEYS and isinstance(value, bool | int | float)
    ]


def _passed(value: Any) -> bool | None:
    """Success, where `acc` is a truth value or says 0 or 1."""
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None


def _as_text(turns: Sequence[Turn], role: Role) -> str:
    if len(turns) == 1 and turns[0].role == role:
        return turns[0].content
    return "\n".join(f"{turn.role}\n{turn.content}" for turn in turns)
