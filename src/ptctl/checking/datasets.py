"""One dataset: its manifest against its files, each file against its footer, schema and lineage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.checking.places import Dataset
from ptctl.checking.problems import Findings, Problem, ProblemKind, of_error
from ptctl.checking.tokens import check_tokens
from ptctl.errors import CorruptShard, DigestMismatch, InputNotFound, PtctlError
from ptctl.records import task_digest
from ptctl.shards.columns import table_to_rows
from ptctl.shards.dataset import MANIFEST, file_sha256, is_complete, read_manifest, shards_in
from ptctl.shards.reader import input_paths, iter_row_groups, shard_metadata, verify_content
from ptctl.shards.verified import verified_kind

ENTRY_FIELDS = frozenset({"name", "num_rows", "size_bytes", "sha256"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A shard that can be read."""

    path: Path
    kind: str
    num_rows: int
    dataset: Dataset


@dataclass(slots=True)
class Checked:
    """What was found in a dataset."""

    problems: list[Problem] = field(default_factory=list[Problem])
    shards: list[Shard] = field(default_factory=list[Shard])
    is_complete: bool = False


def check_dataset(dataset: Dataset, *, deep: bool) -> Checked:
    """Check one dataset. `deep` reads every byte and every value."""
    checked = Checked(is_complete=is_complete(dataset.directory))  # before the listing: no shard comes after it
    entries = _manifest_entries(dataset.directory, checked)
    paths = shards_in(dataset.directory) if dataset.shards is None else dataset.shards
    if entries is not None and dataset.shards is None:
        checked.problems += _check_names(dataset.directory, entries)
    for path in paths:
        found, shard = _check_shard(path, (entries or {}).get(path.name, {}), dataset, deep)
        checked.problems += found
        if shard is not None:
            checked.shards.append(shard)
    return checked


def _manifest_entries(directory: Path, checked: Checked) -> dict[str, dict[str, Any]] | None:
    """Name → what the manifest says of the shard; None where there is no manifest, or none that can be read."""
    path = directory / MANIFEST
    try:
        manifest = read_manifest(directory)
        if manifest is None:
            return None
        entries = cast("list[Any]", manifest["shards"])
        if not all(isinstance(entry, dict) and entry.keys() >= ENTRY_FIELDS for entry in entries):
            raise ValueError("a shard lacks a field")
    except PtctlError as error:
        checked.problems.append(of_error(path, error))
        return None
    except (KeyError, TypeError, ValueError) as error:
        detail = f"not a manifest that ptctl writes: {type(error).__name__}: {error}"
        checked.problems.append(Problem(path=path, problem=ProblemKind.UNREADABLE, detail=detail))
        return None
    return {str(entry["name"]): entry for entry in entries}


def _check_names(directory: Path, entries: Mapping[str, Any]) -> Iterator[Problem]:
    there = {path.name for path in directory.iterdir() if not path.name.startswith(".") and not path.is_dir()}
    for name in sorted(entries.keys() - there):
        yield Problem(
            path=directory / name, problem=ProblemKind.MISSING, detail=f"{MANIFEST} lists it; restore it from a copy"
        )
    for name in sorted(there - entries.keys() - {MANIFEST}):
        yield Problem(path=directory / name, problem=ProblemKind.UNLISTED, detail=f"{MANIFEST} does not list it")


def _check_shard(
    path: Path, entry: Mapping[str, Any], dataset: Dataset, deep: bool
) -> tuple[list[Problem], Shard | None]:
    problems: list[Problem] = []

    def complain(kind: ProblemKind, detail: str) -> None:
        problems.append(Problem(path=path, problem=kind, detail=detail))

    if entry and path.exists() and path.stat().st_size != entry["size_bytes"]:
        complain(ProblemKind.SIZE, f"{path.stat().st_size} bytes, {MANIFEST} says {entry['size_bytes']}")
    elif entry and deep and path.exists() and file_sha256(path) != entry["sha256"]:
        complain(ProblemKind.DIGEST, f"sha256 differs from the one in {MANIFEST}")
    try:
        kind = verified_kind(path)
        num_rows = pq.read_metadata(path).num_rows
        metadata = shard_metadata(path)
    except PtctlError as error:
        return [*problems, of_error(path, error)], None
    except (OSError, pa.ArrowException) as error:
        complain(ProblemKind.UNREADABLE, str(error).partition("\n")[0])
        return problems, None
    for place, said in ((MANIFEST, entry.get("num_rows")), ("its footer", metadata.get("num_rows"))):
        if said is not None and said != num_rows:
            complain(ProblemKind.ROWS, f"{num_rows} rows, {place} says {said}")
    if kind != "tasks":  # the sources of a pool are needed no more once it is imported
        try:
            input_paths(path)
        except InputNotFound as error:
            complain(ProblemKind.LINEAGE, str(error))
    if deep:
        found = _check_values(path, kind)
        problems += found
        if any(problem.problem == ProblemKind.UNREADABLE for problem in found):
            return problems, None
    return problems, Shard(path=path, kind=kind, num_rows=num_rows, dataset=dataset)


def _check_values(path: Path, kind: str) -> list[Problem]:
    """Compare every byte with the sha256 in the footer, then read every column, a row group in memory at a time."""
    findings = Findings(path)
    differs: list[Problem] = []
    try:
        verify_content(path)
    except DigestMismatch as error:
        differs.append(of_error(path, error))
    except CorruptShard as error:
        return [of_error(path, error)]
    try:
        for table in iter_row_groups(path, kind):
            if kind == "trajectories":
                check_tokens(table, findings)
            elif kind == "tasks":
                _check_digests(table, findings)
    except CorruptShard as error:
        return [*differs, of_error(path, error)]
    return [*differs, *findings.problems()]


def _check_digests(table: pa.Table, findings: Findings) -> None:
    for task in table_to_rows("tasks", table):
        if task_digest(task) != task.task_digest:
            findings.add(ProblemKind.DIGEST, "the task is not the one of its digest", repr(task.task_id))
