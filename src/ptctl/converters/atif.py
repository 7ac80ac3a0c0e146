"""ATIF, Harbor's trajectory documents: one JSON object a trajectory.

Source: Agent Trajectory Interchange Format, RFC 0001 of the Harbor project, versions 1.0 to 1.8.

A document says no reward. Where it lies in a trial directory (`TRIAL/agent/trajectory.json`), the reward is what the
trial's verifier wrote beside it: `verifier/reward.json`, a flat map of numbers, or `verifier/reward.txt`, one number.
Embedded trajectories of subagents stay with their parent and do not become rows of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ptctl.converters.atif_rows import AtifRows, Trial
from ptctl.converters.envelope import leftover_of
from ptctl.converters.json_input import decode, known_number, member, read_document, require_file
from ptctl.converters.output import as_text, refuse_existing, write_directory, write_file
from ptctl.converters.round_trip import read_rows, write_row
from ptctl.errors import DataError, InputNotFound, UsageError
from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import Component, Score, Task, Trajectory

REWARD = "reward"


class AtifConverter:
    """Reads a document or a directory of them; writes a directory, or one document to `*.json`."""

    name: ClassVar[str] = "atif"

    def __init__(self, settings: ConverterSettings) -> None:
        self.settings = settings

    def read(self, source: Path) -> Converted:
        """See Converter. In a directory, `trajectory*.json` at any depth; without any, each `*.json` in it."""
        paths = documents_in(source) if source.is_dir() else [require_file(source)]
        rows = [(str(path), read_document(path)) for path in paths]
        trials = {str(path): _trial(path) for path in paths}
        facts = [{"path": path.relative_to(source).as_posix()} for path in paths] if source.is_dir() else []
        name = source.resolve().name if source.is_dir() else source.stem
        return read_rows(AtifRows(settings=self.settings, trials=trials), rows, name, facts)

    def write(
        self, trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score], out: Path
    ) -> tuple[str, ...]:
        """See Converter. Documents that came from a directory get their place in it again."""
        refuse_existing(out)
        rows = AtifRows(settings=self.settings, trials={})
        documents: dict[str, Any] = {}
        for row in trajectories:
            name = leftover_of(row, self.name).get("path", "")
            if not name or name in documents:
                name = f"trajectory-{row.trajectory_id}.json"
            documents[name] = write_row(rows, row, tasks[row.task_id], scores.get(row.trajectory_id))
        if out.suffix != ".json":
            write_directory(out, documents)
        elif len(documents) == 1:
            write_file(out, (as_text(next(iter(documents.values()))) + "\n").encode("utf-8"))
        else:
            raise UsageError(f"{len(documents)} trajectories are {len(documents)} documents", hint="-o DIRECTORY")
        return ()


def documents_in(directory: Path) -> list[Path]:
    """Documents below a directory, in order of their paths. Raises InputNotFound where there are none.

    The trajectory of a simulated user (Harbor's `user-agent/`) is not the policy's and is passed over.
    """
    found = [path for path in directory.rglob("trajectory*.json") if path.parent.name != "user-agent"]
    found = sorted(found) or sorted(directory.glob("*.json"))
    if not found:
        raise InputNotFound(f"no trajectory*.json in {directory}")
    return found


def _trial(path: Path) -> Trial:
    """What the trial directory around a document tells; nothing where there is none."""
    if path.parent.name != "agent":
        return Trial()
    root = path.parent.parent
    results = next((root / name for name in ("result.json", "results.json") if (root / name).is_file()), None)
    task_name = member(read_document(results), "task_name", "a string", str(results)) if results is not None else None
    reward, components = _reward(root / "verifier")
    return Trial(task_name=task_name or "", reward=reward, components=components)


def _reward(directory: Path) -> tuple[float | None, tuple[Component, ...]]:
    """The reward that Harbor's verifier wrote, None where it is missing, empty or no number: that is not a 0."""
    numbers, text = directory / "reward.json", directory / "reward.txt"
    if numbers.is_file():
        try:
            found = read_document(numbers)
            values = {key: known_number(found, key, str(numbers)) for key in found}
        except DataError:
            return None, ()
        parts = tuple(Component(name=key, value=value, weight=0.0) for key, value in values.items())
        only = next(iter(values.values())) if len(values) == 1 else None
        return values.get(REWARD, only), parts
    if text.is_file():
        try:
            value = decode(text.read_bytes().strip(), str(text))
        except DataError:
            return None, ()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value), ()
    return None, ()
