"""What can be wrong with the files of a run, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from ptctl.errors import DigestMismatch, InputNotFound, PtctlError, SchemaMismatch


class ProblemKind(StrEnum):
    """What is wrong, in one word; `Problem.detail` says more."""

    UNREADABLE = "unreadable"
    """A torn, truncated or damaged file."""
    SCHEMA = "schema"
    """Another kind, schema version or fingerprint, other columns, or not written by ptctl."""
    MISSING = "missing"
    """A file that a manifest, an index or a policy names is not there."""
    UNLISTED = "unlisted"
    """A file that the manifest of its dataset does not name."""
    SIZE = "size"
    """Another size than the manifest or the header says."""
    ROWS = "rows"
    """Another number of rows than the manifest or the footer says."""
    DIGEST = "digest"
    """Another sha256 than was recorded."""
    LEFTOVER = "leftover"
    """What a writer that is gone left behind."""
    LINEAGE = "lineage"
    """An input that the shard was made from is gone or cannot be read."""
    DUPLICATE = "duplicate"
    """A key that must be unique stands twice."""
    UNKNOWN = "unknown"
    """A row refers to one that does not exist."""
    CONTRADICTION = "contradiction"
    """Two rows, or two fields of a row, that say different things."""
    STREAMS = "streams"
    """Token streams of one trajectory with lengths that do not fit."""
    SPANS = "spans"
    """Turns, segments or version spans that are out of bounds, out of order, or do not cover the sampled tokens."""
    REWARD = "reward"
    """A reward without a verdict, a verdict without a reward, or one that is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One thing that is wrong."""

    path: Path
    """The file (or directory) to look at."""
    problem: ProblemKind
    detail: str
    """One line."""


SCHEMA = pa.schema([("path", pa.string()), ("problem", pa.string()), ("detail", pa.string())])


def problem_table(problems: Iterable[Problem]) -> pa.Table:
    """A row for each problem."""
    rows = [{"path": str(one.path), "problem": one.problem.value, "detail": one.detail} for one in problems]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def of_error(path: Path, error: PtctlError) -> Problem:
    """The problem that an error of the data floor tells."""
    kind = ProblemKind.UNREADABLE
    if isinstance(error, SchemaMismatch):
        kind = ProblemKind.SCHEMA
    elif isinstance(error, DigestMismatch):
        kind = ProblemKind.DIGEST
    elif isinstance(error, InputNotFound):
        kind = ProblemKind.MISSING
    detail = str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")  # the path stands in a column of its own
    return Problem(path=path, problem=kind, detail=detail)


class Findings:
    """Counts rows of one file that have the same thing wrong, with the first as an example."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[ProblemKind, str], tuple[int, str]] = {}

    def add(self, kind: ProblemKind, what: str, example: str) -> None:
        """Row `example` has something wrong."""
        count, first = self._found.get((kind, what), (0, example))
        self._found[kind, what] = (count + 1, first)

    def problems(self) -> list[Problem]:
        """One problem for each thing that is wrong."""
        return [
            Problem(path=self._path, problem=kind, detail=counted(what, count, first))
            for (kind, what), (count, first) in self._found.items()
        ]


def counted(what: str, count: int, first: str) -> str:
    """One line for `count` rows, of which `first` is one."""
    return f"{what}: {first}" if count == 1 else f"{what}: {count} rows, such as {first}"
