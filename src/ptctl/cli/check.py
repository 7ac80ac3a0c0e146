"""`ptctl check`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ptctl.cli.options import FormatOption, NulOption, named_or_here
from ptctl.errors import ExitCode

if TYPE_CHECKING:
    from ptctl.checking.examine import Examination
    from ptctl.checking.places import Places

app = typer.Typer(add_completion=False)


@app.command()
def check_command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH…|RUN|-]",
            help="Run directories, datasets or shards; - reads paths (default: the current directory, if it is a run).",
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte and every value, and check that rows fit together.")
    ] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="First remove what writers of this host that are gone left behind.")
    ] = False,
    format_name: FormatOption = "table",
    null: NulOption = False,
) -> None:
    """Say what is wrong with the files of a run: a row for each problem, exit code 65 if there is any."""
    from ptctl.checking.examine import examine
    from ptctl.checking.places import find_places
    from ptctl.checking.problems import problem_table
    from ptctl.reports import tabular

    chosen = tabular.check_format(format_name, sys.stdout, tabular.FORMATS)
    places = find_places(_names(named_or_here(paths), nul=null))
    if sweep:
        _sweep(places)
    examination = examine(places, deep=deep)
    if examination.problems or chosen != tabular.TABLE:
        tabular.write_table(problem_table(examination.problems), chosen, sys.stdout)
        sys.stdout.flush()
    print(_summary(examination, deep), file=sys.stderr)
    if examination.problems:
        raise typer.Exit(ExitCode.BAD_DATA)


def _names(arguments: list[str], *, nul: bool) -> list[str]:
    from ptctl.shards.follow import read_paths

    names: list[str] = []
    for argument in arguments:
        names += map(str, read_paths([argument], nul=nul)) if argument == "-" else [argument]
    return names


def _sweep(places: Places) -> None:
    from ptctl.checking.leftovers import check_leftovers
    from ptctl.shards import files

    for directory in places.directories:
        if any(check_leftovers(directory)):
            for path in files.sweep(directory):
                print(f"removed {path}", file=sys.stderr)


def _summary(found: Examination, deep: bool) -> str:
    looked = (
        f"{found.num_datasets} datasets, {found.num_shards} shards, {found.num_rows} rows, "
        f"{found.num_policies} policies"
    )
    if found.num_unfinished:
        looked += f"; {found.num_unfinished} datasets are not finished"
    verdict = f"{len(found.problems)} problems" if found.problems else "no problem"
    return f"{'deep' if deep else 'quick'} check of {looked}: {verdict}"
