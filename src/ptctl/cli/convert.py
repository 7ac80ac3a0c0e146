"""`ptctl convert`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ptctl import registry
from ptctl.cli.options import NulOption, print_path
from ptctl.errors import CannotCreate, DataError, DigestMismatch, InputNotFound, UsageError
from ptctl.protocols import Converted, Converter, ConverterSettings
from ptctl.records import Purpose, Score, Task, Trajectory
from ptctl.shards.dataset import expand_all, tasks_by_id, unique_rows, upstream, write_manifest
from ptctl.shards.follow import read_paths, require_some
from ptctl.shards.reader import iter_rows
from ptctl.shards.run_directory import RunDirectory
from ptctl.shards.writer import Lineage, write_rows

app = typer.Typer(add_completion=False)


SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE…",
        help="With --from: files or directories of the other tool, a batch each. With --to: trajectory shards or "
        "datasets; - reads paths.",
    ),
]
OutOption = Annotated[
    Path, typer.Option("-o", "--out", metavar="PATH", help="Directory (--from), or file or directory (--to).")
]
FromOption = Annotated[str | None, typer.Option("--from", metavar="FORMAT", help="Read atif, verifiers, verl or trl.")]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help="Write atif, verifiers, verl, trl (prompt-completion), trl-messages, trl-preference or trl-unpaired.",
    ),
]
ScoresOption = Annotated[
    list[str] | None,
    typer.Option("--scores", metavar="SCORES", help="With --to: score datasets of the trajectories. Repeatable."),
]
SplitOption = Annotated[
    Purpose | None, typer.Option("--split", help="With --from: split of the imported tasks (default: train).")
]
VerifierOption = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="NAME",
        help="With --from: the verifier that `ptctl score` is to use on the imported tasks (default: exact).",
    ),
]


@app.command()
def convert_command(
    sources: SourcesArgument,
    out: OutOption,
    from_format: FromOption = None,
    to_format: ToOption = None,
    scores: ScoresOption = None,
    split: SplitOption = None,
    verifier: VerifierOption = None,
    null: NulOption = False,
) -> None:
    """Read trajectories of another tool into datasets, or write them for it. Prints the path of what was committed."""
    if from_format is not None and to_format is None:
        if scores or null:
            raise UsageError("--scores and -0 belong to --to", hint="drop them, or name the format with --to")
        settings = ConverterSettings(
            split=(split or Purpose.TRAIN).value, verifier=_known("verifiers", verifier or "exact")
        )
        _import(_converter(from_format, settings), [Path(source) for source in sources], RunDirectory(out))
    elif to_format is not None and from_format is None:
        if split is not None or verifier is not None:
            raise UsageError("--split and --verifier belong to --from", hint="drop them")
        converter = _converter(to_format, ConverterSettings())
        shards = list(require_some(read_paths(sources, nul=null), "convert"))
        _export(converter, shards, expand_all(scores or ()), out)
    else:
        raise UsageError("give one of --from and --to", hint="ptctl convert --help")


def _known(group: str, name: str) -> str:
    if name not in registry.names(group):
        raise UsageError(f"unknown {group[:-1]} {name!r}", hint=registry.did_you_mean(name, registry.names(group)))
    return name


def _converter(name: str, settings: ConverterSettings) -> Converter:
    known = registry.names("converters")
    if name not in known:
        raise UsageError(f"unknown format {name!r}", hint=registry.did_you_mean(name, known))
    converter: Converter = registry.load("converters", name)(settings)
    return converter


# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _import(converter: Converter, sources: Sequence[Path], run: RunDirectory) -> None:
    """Everything is read before anything is written."""
    for directory in (run.tasks, run.batches, run.trajectories, run.scores):
        if directory.exists():
            raise CannotCreate(f"{directory} exists already", hint="give a new directory")
    found: dict[str, tuple[Path, Converted]] = {}
    tasks: dict[str, Task] = {}
    for source in sources:
        if not source.exists():
            raise InputNotFound(f"no such file or directory: {source}")
        converted = converter.read(source)
        if converted.name in found:
            raise UsageError(
                f"{found[converted.name][0]} and {source} are both named {converted.name!r}",
                hint="convert them into two directories",
            )
        found[converted.name] = (source, converted)
        _add_tasks(tasks, converted.tasks, source)
    lineage = Lineage(inputs=tuple(sources), facts={"format": converter.name})
    pool = _write(sorted(tasks.values(), key=lambda task: task.task_id), "tasks", run.tasks, lineage)
    for name, (_, converted) in found.items():
        facts = {"purpose": converted.draws[0].purpose, "format": converter.name}
        draws = _write(converted.draws, "draws", run.batches / name, Lineage(inputs=(pool,), facts=facts))
        trajectories = _write(
            converted.trajectories, "trajectories", run.trajectories / name, Lineage(inputs=(draws,), facts=facts)
        )
        _write(converted.scores, "scores", run.scores / name, Lineage(inputs=(trajectories,), facts=facts))


def _add_tasks(tasks: dict[str, Task], added: Sequence[Task], source: Path) -> None:
    for task in added:
        known = tasks.setdefault(task.task_id, task)
        if known != task:
            raise DigestMismatch(
                f"task {task.task_id!r} of {source} is another one in an earlier source",
                hint="convert them into two directories",
            )


def _write(rows: Sequence[Any], kind: str, directory: Path, lineage: Lineage) -> Path:
    path = write_rows(rows, kind, directory, lineage)
    write_manifest(directory, kind, lineage)
    print_path(path)
    return path


# ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _export(converter: Converter, shards: Sequence[Path], score_shards: Sequence[Path], out: Path) -> None:
    trajectories: list[Trajectory] = list(iter_rows(shards, "trajectories"))
    if not trajectories:
        raise DataError(f"no trajectories in {len(shards)} shards")
    scores = _scores(score_shards, trajectories)
    digests = {row.task_id: row.task_digest for row in trajectories}
    tasks = tasks_by_id(upstream(upstream(shards)), digests)
    for left_out in converter.write(trajectories, tasks, scores, out):
        sys.stderr.write(f"ptctl: {converter.name} does not hold: {left_out}\n")
    print_path(out)


def _scores(shards: Sequence[Path], trajectories: Sequence[Trajectory]) -> Mapping[str, Score]:
    """Scores by trajectory. Raises DataError where none is of these trajectories."""
    scores: dict[str, Score] = unique_rows(shards, "scores", "trajectory_id")
    if shards and not any(row.trajectory_id in scores for row in trajectories):
        raise DataError(
            f"no score in {shards[0].parent} is of these trajectories", hint="give the scores of this batch"
        )
    return scores
