"""Converter: trajectories of another tool, in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ptctl.records import Draw, Score, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ConverterSettings:
    """What the imported rows are to be used for; an export needs none of it."""

    split: str = "train"
    """Split of the imported tasks, and purpose of their draws: `train` or `eval`."""
    verifier: str = "exact"
    """Verifier plug-in that the imported tasks name, for `ptctl score`; the imported scores are the other tool's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """One source as rows that refer to each other as those of the stages do."""

    name: str
    """Name of the batch."""
    tasks: tuple[Task, ...]
    """Each task once, in the order of the source."""
    draws: tuple[Draw, ...]
    """A draw for each group."""
    trajectories: tuple[Trajectory, ...]
    """In the order of the source."""
    scores: tuple[Score, ...]
    """One for each trajectory, unscored where the source knows no reward."""


class Converter(Protocol):
    """Reads and writes one format. Built as `Converter(settings)`."""

    name: ClassVar[str]

    def read(self, source: Path) -> Converted:
        """Rows of one source. Raises DataError naming file, line and field, or InputNotFound."""
        ...

    def write(
        self, trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Mapping[str, Score], out: Path
    ) -> tuple[str, ...]:
        """Commit `out`; tasks by task_id, scores by trajectory_id, where there are any.

        Returns, in words, what the format could not hold. Raises CannotCreate where `out` exists, UsageError where
        its name does not suit the format, DataError where nothing can be written.
        """
        ...
