"""`ptctl tasks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptctl.cli.options import print_path
from ptctl.cli.pool import import_pool

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def tasks_root() -> None:
    """Import task pools."""


@app.command("import")
def import_command(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE…", help="`*.jsonl`, or a `*.py` that defines generate(seed).")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="POOL", help="Task dataset to write.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed for a generating source.")] = 0,
) -> None:
    """Turn task sources into a pool: a dataset of tasks with stable ids and digests."""
    for path in import_pool([Path(source) for source in sources], out, seed):
        print_path(path)
