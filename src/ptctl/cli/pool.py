"""Sources → pool, for `ptctl tasks import` and `ptctl run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ptctl import registry
from ptctl.errors import ConfigConflict, DataError, DuplicateRow, InputNotFound, UsageError
from ptctl.records import Purpose, Task
from ptctl.shards.dataset import expand, file_sha256, is_complete, manifest_facts, shards_in, write_manifest
from ptctl.shards.files import sweep
from ptctl.shards.reader import iter_rows, read_table
from ptctl.shards.writer import Lineage, write_rows

SPLITS = tuple(purpose.value for purpose in Purpose)


def _importer_for(source: Path) -> Any:
    """The importer class that takes files of this suffix. Raises UsageError that lists all suffixes."""
    suffixes: dict[str, Any] = {}
    for name in registry.names("importers"):
        importer = registry.load("importers", name)
        suffixes.update(dict.fromkeys(importer.suffixes, importer))
    if source.suffix not in suffixes:
        known = ", ".join(f"*{suffix}" for suffix in sorted(suffixes))
        raise UsageError(f"cannot import {source}", hint=f"known: task datasets, {known}")
    return suffixes[source.suffix]


def _tasks_of(source: Path, seed: int) -> Iterator[Task]:
    if not source.exists():
        raise InputNotFound(f"no pool source at {source}")
    if source.is_dir() or source.suffix == ".parquet":
        yield from iter_rows(expand(str(source)), "tasks")
        return
    yield from _importer_for(source)(seed).tasks(source)


def _source_facts(sources: Sequence[Path], seed: int) -> dict[str, Any]:
    """What the pool was made of: names, and the contents of files, so that an edited source is noticed."""
    missing = next((source for source in sources if not source.exists()), None)
    if missing is not None:
        raise InputNotFound(f"no pool source at {missing}")
    contents = [file_sha256(source) if source.is_file() else str(source.resolve()) for source in sources]
    return {"seed": seed, "sources": [source.name for source in sources], "contents": contents}


def _collect(sources: Sequence[Path], seed: int) -> list[Task]:
    tasks: dict[str, Task] = {}
    for source in sources:
        for task in _tasks_of(source, seed):
            if task.task_id in tasks:
                raise DuplicateRow(f"task {task.task_id!r} stands twice, again in {source}")
            if task.split not in SPLITS:
                raise DataError(
                    f"{source}: task {task.task_id!r} has the split {task.split!r}", hint=f"known: {', '.join(SPLITS)}"
                )
            tasks[task.task_id] = task
    if not tasks:
        raise DataError(f"no tasks in {', '.join(map(str, sources))}")
    return sorted(tasks.values(), key=lambda task: task.task_id)


def import_pool(
    sources: Sequence[Path], out: Path, seed: int, check: Callable[[Sequence[Task]], None] | None = None
) -> list[Path]:
    """Import sources into the task dataset `out`; one that was made of the same sources is left as it is.

    `check` may refuse the tasks before anything is written. Raises InputNotFound, UsageError, DataError for a source
    without tasks, DuplicateRow for a task that stands twice, ConfigConflict where `out` was made of other sources.
    """
    facts = _source_facts(sources, seed)
    if is_complete(out):
        stored = manifest_facts(out)
        changed = [name for name in facts if stored.get(name) != facts[name]]
        if changed:
            raise ConfigConflict(
                f"{out} was imported from other {' and '.join(changed)}", hint="import into another -o, or remove it"
            )
        return shards_in(out)
    tasks = _collect(sources, seed)
    if check is not None:
        check(tasks)
    sweep(out)
    lineage = Lineage(inputs=tuple(sources), facts=facts)
    if not shards_in(out):  # a kill between shard and manifest leaves the one without the other
        write_rows(tasks, "tasks", out, lineage)
    stored_digests = {
        pair for path in shards_in(out) for pair in _digests(read_table(path, "tasks", ["task_id", "task_digest"]))
    }
    if stored_digests != {(task.task_id, task.task_digest) for task in tasks}:
        raise ConfigConflict(f"{out} holds an unfinished import of other tasks", hint="remove it, or choose another -o")
    write_manifest(out, "tasks", lineage)
    return shards_in(out)


def _digests(table: Any) -> Iterator[tuple[str, str]]:
    yield from zip(table.column("task_id").to_pylist(), table.column("task_digest").to_pylist(), strict=True)
