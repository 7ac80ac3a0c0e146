"""`ptctl query`."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from ptctl.cli.options import FormatOption, NulOption, StopFlag, named_or_here
from ptctl.errors import ExitCode, Interrupted, UsageError

app = typer.Typer(add_completion=False)
UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
"""Unit, in upper case → bytes."""
MIN_MEMORY_BYTES = 16 * 1024**2
"""DuckDB cannot read a shard with less."""


@app.command()
def query_command(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="One reading statement over the views tasks, draws, trajectories, scores and policies.",
        ),
    ],
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATASET…|RUN|-]",
            help="Run directories, datasets or shards; - reads paths (default: the current directory, if it is a run).",
        ),
    ] = None,
    format_name: FormatOption = "table",
    null: NulOption = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="No shards: every view is empty, which is no error then.")
    ] = False,
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", metavar="SIZE", help="Such as 1GB (default: half of the memory, at most 4GiB)."),
    ] = None,
    temp_directory: Annotated[
        Path | None,
        typer.Option("--temp-directory", metavar="DIR", help="Where to spill (default: TMPDIR); left as it was."),
    ] = None,
) -> None:
    """Run SQL (DuckDB) over the rows of a run and print the result. Reads the shards, writes nothing."""
    # A flag and no exception, which DuckDB and imports would swallow; so the spill directory goes with the process.
    stopped = StopFlag().install()
    from ptctl.reports import tabular
    from ptctl.shards.views import find_sources, open_views

    chosen = tabular.check_format(format_name, sys.stdout, tabular.FORMATS)
    memory_bytes = None if memory_limit is None else parse_size(memory_limit)
    sources = find_sources(named_or_here(datasets), nul=null, allow_empty=allow_empty)
    try:
        with open_views(sources, memory_bytes=memory_bytes, spill_parent=temp_directory, stopped=stopped) as views:
            schema, batches = views.query(sql)
            tabular.write(batches, schema, chosen, sys.stdout)
            sys.stdout.flush()
    except Interrupted as error:
        interrupted = stopped.signal_number == signal.SIGINT
        raise typer.Exit(ExitCode.SIGINT if interrupted else ExitCode.SIGTERM) from error


def parse_size(text: str) -> int:
    """Bytes of `1GB`, `512 MiB`, `1.5GiB` or `1000000`. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS:
        raise UsageError(f"--memory-limit {text!r} is no size", hint="such as 512MB, 1GiB or 2000000000")
    size_bytes = int(float(match[1]) * UNITS[match[2].upper()])
    if size_bytes < MIN_MEMORY_BYTES:
        raise UsageError(f"--memory-limit {text} is too little", hint="at least 16MiB")
    return size_bytes
