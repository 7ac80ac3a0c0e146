"""`ptctl eval`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptctl.cli.options import NulOption, PrintConfigOption, RecipeOption, SetOption, read_recipe
from ptctl.errors import CannotCreate, InputNotFound, UsageError

if TYPE_CHECKING:
    from ptctl.evaluation.report import Report

app = typer.Typer(add_completion=False)
EVAL_FILE = "eval.json"
MARKDOWN_FILE = "report.md"
FORMAT_NAMES = "table, json, jsonl, csv, md, parquet"
GLOB_CHARACTERS = frozenset("*?[")


@app.command()
def evaluate_command(
    scores: Annotated[
        list[str] | None, typer.Argument(metavar="[SCORES…|-]", help="Score shards or datasets; - reads paths.")
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option("--baseline", metavar="SCORES", help="Scores to compare with. Repeatable.")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option("--gate", metavar="FILE", help="TOML file that decides the exit code.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Also write DIR/eval.json and DIR/report.md.")
    ] = None,
    format_name: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {FORMAT_NAMES}.")] = "table",
    json_format: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    strata: Annotated[
        list[str] | None,
        typer.Option("--strata", metavar="KEY", help="Break success down by KEY (eval.strata). Repeatable."),
    ] = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="No shards: report it, exit 12.")] = False,
    null: NulOption = False,
    recipe: RecipeOption = None,
    overrides: SetOption = None,
    print_config: PrintConfigOption = False,
) -> None:
    """Report success by stratum with intervals, process and cost; compare with a baseline; gate by exit code."""
    from ptctl.evaluation.gate import load_gate
    from ptctl.stages import evaluate

    loaded = read_recipe(recipe, overrides, print_config=print_config)
    chosen = _format(format_name, json_format)
    if out is not None:
        check_vacant(out)
    options = evaluate.EvaluateOptions(
        scores=_shards(scores or ["-"], nul=null, allow_empty=allow_empty),
        baseline=_baseline(baseline or ()),
        strata=tuple(strata or loaded.values.eval.strata),
        gate=None if gate is None else load_gate(gate),
        confidence=loaded.values.eval.confidence,
    )
    report = evaluate.run(options)
    if out is not None:
        write_report(report, out)
    _print(report, chosen)
    raise typer.Exit(int(report.exit_code))


def _format(name: str, json_format: bool) -> str:
    from ptctl.reports import FORMATS, PARQUET

    if json_format and name not in ("table", "json"):
        raise UsageError(f"--json and --format {name} contradict each other")
    chosen = "json" if json_format else name
    if chosen not in FORMATS:
        raise UsageError(f"unknown format {chosen!r}", hint=f"known: {', '.join(FORMATS)}")
    if chosen == PARQUET and sys.stdout.isatty():
        raise UsageError(
            "--format parquet writes bytes, and standard output is a terminal", hint="redirect it to a file"
        )
    return chosen


def _shards(arguments: Sequence[str], *, nul: bool, allow_empty: bool) -> list[Path]:
    """Score shards of the candidate, each once. `allow_empty` accepts a directory or a pattern without shards."""
    from ptctl.shards.follow import read_paths

    def expanded() -> Iterator[Path]:
        for argument in arguments:
            try:
                yield from read_paths([argument], nul=nul)
            except InputNotFound:
                may_be_empty = Path(argument).is_dir() or bool(GLOB_CHARACTERS & set(argument))
                if not (allow_empty and may_be_empty):
                    raise

    shards = list(dict.fromkeys(expanded()))
    if not shards and not allow_empty:
        raise InputNotFound(
            "no score shards on standard input", hint="did the stage before fail? --allow-empty reports it as exit 12"
        )
    return shards


def _baseline(arguments: Sequence[str]) -> list[Path]:
    from ptctl.shards.dataset import expand_all

    if "-" in arguments:
        raise UsageError("--baseline takes paths, not standard input")
    return expand_all(arguments)


def check_vacant(out: Path) -> None:
    """Raise CannotCreate where a report was written already."""
    if (out / EVAL_FILE).exists():
        raise CannotCreate(f"{out / EVAL_FILE} exists already", hint="choose another -o; a report is never overwritten")


def write_report(report: Report, out: Path) -> None:
    """Commit `report.md`, then `eval.json`: its existence says that the report is complete."""
    from ptctl.reports import to_markdown
    from ptctl.shards.files import committed_file, write_json

    check_vacant(out)
    (out / MARKDOWN_FILE).unlink(missing_ok=True)  # left by a kill between the two files
    with committed_file(out / MARKDOWN_FILE) as temporary:
        temporary.write_text(to_markdown(report), encoding="utf-8")
    write_json(out / EVAL_FILE, report.to_json())


def _print(report: Report, format_name: str) -> None:
    from ptctl import reports

    if format_name == reports.TABLE:
        reports.print_table(report, reports.report_console(sys.stdout))
    elif format_name == reports.PARQUET:
        sys.stdout.buffer.write(reports.to_parquet(report))
    else:
        text = reports.render(report, format_name)
        # A locale that cannot show a character must not turn a report into a crash.
        sys.stdout.write(text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding))
    sys.stdout.flush()
