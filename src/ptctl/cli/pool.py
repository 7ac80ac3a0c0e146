"""Sources → pool, for `ptctl tasks import` and `ptctl run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ptctl import registry
from ptctl.errors import CannotCreate, DataError, DuplicateRow, InputNotFound, UsageError
from ptctl.records import Task
from ptctl.shards.dataset import expand, is_complete, shards_in, write_manifest
from ptctl.shards.files import sweep
from ptctl.shards.reader import iter_rows
from ptctl.shards.writer import Lineage, write_rows

IMPORTERS = {".py": "generator", ".jsonl": "jsonl"}
"""Suffix of a source → importer; directories and Parquet files are task datasets already."""


def _tasks_of(source: Path, seed: int) -> Iterator[Task]:
    if not source.exists():
        raise InputNotFound(f"no pool source at {source}")
    if source.is_dir() or source.suffix == ".parquet":
        yield from iter_rows(expand(str(source)), "tasks")
        return
    name = IMPORTERS.get(source.suffix)
    if name is None:
        raise UsageError(
            f"cannot import {source}", hint=f"known: task datasets, {', '.join('*' + s for s in IMPORTERS)}"
        )
    yield from registry.load("importers", name)(seed).tasks(source)


def import_pool(sources: Sequence[Path], out: Path, seed: int) -> list[Path]:
    """Import sources into the task dataset `out`; a complete one is left as it is.

    Raises InputNotFound, UsageError, DataError for a source without tasks, DuplicateRow for a task that stands twice.
    """
    if is_complete(out):
        return shards_in(out)
    if shards_in(out):
        raise CannotCreate(f"{out} holds an unfinished import", hint="remove it and import again")
    tasks: dict[str, Task] = {}
    for source in sources:
        for task in _tasks_of(source, seed):
            if task.task_id in tasks:
                raise DuplicateRow(f"task {task.task_id!r} stands twice, again in {source}")
            tasks[task.task_id] = task
    if not tasks:
        raise DataError(
            f"no tasks in {', '.join(str(source) for source in sources) or 'the recipe: pool.sources is empty'}"
        )
    sweep(out)
    lineage = Lineage(inputs=tuple(sources), facts={"seed": seed})
    write_rows(sorted(tasks.values(), key=lambda task: task.task_id), "tasks", out, lineage)
    write_manifest(out, "tasks", lineage)
    return shards_in(out)
