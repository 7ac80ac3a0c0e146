"""`ptctl init`."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

import ptctl
from ptctl.cli.options import print_path
from ptctl.errors import CannotCreate
from ptctl.shards.files import committed_directory

app = typer.Typer(add_completion=False)


def template_directory() -> Path:
    """The quickstart recipe: in the wheel beside the code, in a checkout under `recipes/`."""
    packaged = Path(str(resources.files(ptctl))) / "recipes" / "quickstart"
    return packaged if packaged.is_dir() else Path(ptctl.__file__).parents[2] / "recipes" / "quickstart"


@app.command()
def init_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to make.")],
) -> None:
    """Write the quickstart recipe into DIR, to be changed into your own: tasks, model, settings."""
    if directory.exists():
        raise CannotCreate(f"{directory} exists already", hint="choose another directory")
    with committed_directory(directory) as temporary:
        shutil.copytree(
            template_directory(), temporary, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    print_path(directory)
