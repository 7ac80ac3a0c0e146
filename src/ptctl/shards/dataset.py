"""A dataset is a directory of shards with a manifest, written last: where it exists, the dataset is complete."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ptctl.errors import ConfigConflict, CorruptShard, DigestMismatch, DuplicateRow, InputNotFound
from ptctl.records import Task
from ptctl.shards.columns import compute, table_to_rows
from ptctl.shards.files import write_json
from ptctl.shards.reader import input_paths, iter_rows, read_table
from ptctl.shards.writer import Lineage

MANIFEST = "manifest.json"


def shards_in(directory: Path) -> list[Path]:
    """Committed shards of one dataset directory, in name order; empty where the directory is not there yet."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.suffix == ".parquet" and not path.name.startswith("."))


def _shards_below(directory: Path) -> list[Path]:
    found = shards_in(directory)
    for child in sorted(directory.iterdir()):
        if child.is_dir() and not child.name.startswith("."):
            found.extend(_shards_below(child))
    return found


def expand(argument: str) -> list[Path]:
    """Shards that one command-line argument names: a shard, a directory (at any depth) or a glob.

    Raises InputNotFound where it names nothing.
    """
    path = Path(argument)
    if path.is_dir():
        found = _shards_below(path)
    elif path.exists():
        found = [path]
    else:
        found = sorted(Path(name) for name in glob.glob(argument, recursive=True))
        found = [shard for match in found for shard in (_shards_below(match) if match.is_dir() else [match])]
        if not found:
            raise InputNotFound(f"no such file or directory: {argument}")
    if not found:
        raise InputNotFound(f"no shards in {argument}", hint="has the stage that writes it committed anything yet?")
    return found


def expand_all(arguments: Iterable[str]) -> list[Path]:
    """Shards of several arguments, each once, in order."""
    return list(dict.fromkeys(path for argument in arguments for path in expand(argument)))


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, kind: str, lineage: Lineage) -> Path:
    """Declare the dataset complete: list its shards with rows, size and sha256."""
    shards = [
        {
            "name": path.name,
            "num_rows": read_table(path, kind, columns=[]).num_rows,
            "size_bytes": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in shards_in(directory)
    ]
    num_rows = sum(int(cast("int", shard["num_rows"])) for shard in shards)
    write_json(directory / MANIFEST, lineage.metadata(kind, directory, num_rows) | {"shards": shards})
    return directory / MANIFEST


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest, or None while the dataset is not complete."""
    try:
        text = (directory / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return cast("dict[str, Any]", json.loads(text))
    except json.JSONDecodeError as error:
        raise CorruptShard(f"cannot read {directory / MANIFEST}: {error}", hint="restore or remove it") from error


def is_complete(directory: Path) -> bool:
    """Whether the manifest is there."""
    return (directory / MANIFEST).exists()


def manifest_facts(directory: Path) -> Mapping[str, Any]:
    """The facts of a complete dataset. Raises InputNotFound while it is not complete."""
    manifest = read_manifest(directory)
    if manifest is None:
        raise InputNotFound(f"{directory} has no {MANIFEST}", hint="the stage that writes it has not finished")
    return cast("dict[str, Any]", manifest["facts"])


def upstream(paths: Sequence[Path]) -> list[Path]:
    """The shards from which the given ones were made, each once."""
    found = (shard for path in paths for source in input_paths(path) for shard in expand(str(source)))
    return list(dict.fromkeys(found))


def unique_rows(paths: Sequence[Path], kind: str, key: str, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Rows by a column that must be unique. Raises DuplicateRow naming the key and the shard."""
    rows: dict[str, Any] = {}
    for path in paths:
        for row in iter_rows([path], kind, columns):
            if getattr(row, key) in rows:
                raise DuplicateRow(f"{key} {getattr(row, key)!r} stands twice, again in {path}")
            rows[getattr(row, key)] = row
    return rows


def done_values(directory: Path, kind: str, column: str) -> set[Any]:
    """Values of one column over the committed shards of a dataset: what an anti-join leaves out."""
    return {value for path in shards_in(directory) for value in read_table(path, kind, [column]).column(0).to_pylist()}


def datasets_in(directory: Path) -> Iterator[Path]:
    """Complete datasets directly below `directory`: batches by number first, then by name."""
    if not directory.is_dir():
        return
    children = [path for path in directory.iterdir() if not path.name.startswith(".") and is_complete(path)]
    yield from sorted(
        children, key=lambda path: (not path.name.isdigit(), int(path.name) if path.name.isdigit() else 0, path.name)
    )


def check_inputs(directory: Path, given: Sequence[Path]) -> None:
    """Raise ConfigConflict where what stands in a dataset was made from other inputs than the `given` shards.

    A complete dataset must have been made from just these, an unfinished one from some of them. An input that is gone
    from its place cannot be one of those given.
    """
    known = {path.resolve() for path in given}
    made_from: set[Path] = set()
    for shard in shards_in(directory):
        made_from |= {path.resolve() for path in input_paths(shard)}
    others = made_from - known if not is_complete(directory) else made_from ^ known
    if made_from and others:
        raise ConfigConflict(
            f"{directory} was made from other inputs, such as {sorted(made_from)[0]}",
            hint=f"choose another -o; {sorted(others)[0]} is on one side only",
        )


def tasks_by_id(paths: Sequence[Path], digests: Mapping[str, str]) -> dict[str, Task]:
    """The tasks that `digests` (task_id → task_digest) names, out of task shards.

    Raises InputNotFound for a task that is in none of them, DigestMismatch for one that was changed since it was drawn.
    """
    wanted = pa.array(list(digests), type=pa.string())
    found: dict[str, Task] = {}
    for path in paths:
        table = read_table(path, "tasks")
        table = table.filter(compute.is_in(table.column("task_id"), value_set=wanted))
        found.update({task.task_id: task for task in table_to_rows("tasks", table)})
    for task_id, digest in digests.items():
        if task_id not in found:
            raise InputNotFound(
                f"task {task_id!r} is in none of {len(paths)} task shards", hint="was the pool replaced?"
            )
        if found[task_id].task_digest != digest:
            raise DigestMismatch(
                f"task {task_id!r} has digest {found[task_id].task_digest[:12]}, it was drawn with {digest[:12]}",
                hint="a changed task needs a new draw",
            )
    return found
