"""`ptctl sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptctl.cli.options import (
    PhaseOption,
    PrintConfigOption,
    RecipeOption,
    SetOption,
    print_path,
    read_recipe,
    set_option,
)
from ptctl.composition import curriculum_settings
from ptctl.records import Purpose
from ptctl.shards.dataset import expand_all
from ptctl.stages import sample

app = typer.Typer(add_completion=False)


@app.command()
def sample_command(
    pool: Annotated[
        list[str], typer.Argument(metavar="POOL…", help="Task datasets (`ptctl tasks import` makes them).")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Batch to write; its name names the groups.")],
    history: Annotated[
        list[str] | None,
        typer.Option("--history", metavar="SCORES", help="Score datasets of earlier batches. Repeatable."),
    ] = None,
    num_groups: Annotated[
        int | None, typer.Option("-n", "--num-groups", min=0, help="Tasks to draw; 0: all of the split.")
    ] = None,
    group_size: Annotated[int | None, typer.Option("--group-size", min=1, help="Trajectories of each task.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the run.")] = None,
    split: Annotated[Purpose, typer.Option("--split", help="`train`, or `eval` for held-out tasks.")] = Purpose.TRAIN,
    recipe: RecipeOption = None,
    overrides: SetOption = None,
    phase: PhaseOption = None,
    print_config: PrintConfigOption = False,
) -> None:
    """Draw tasks from POOL into a batch of draws and print the shard's path. The same inputs give the same draws."""
    section = "eval" if split == Purpose.EVAL else "sample"
    overrides = set_option(overrides, f"{section}.group_size", group_size)
    overrides = set_option(overrides, "run.seed", seed)
    loaded = read_recipe(recipe, overrides, print_config=print_config)
    values = loaded.for_phase(phase)
    is_eval = split == Purpose.EVAL
    asked = values.eval.num_tasks if is_eval else values.sample.num_groups
    options = sample.SampleOptions(
        pool=expand_all(pool),
        history=expand_all(history or ()),
        out=out,
        num_groups=asked if num_groups is None else num_groups,
        group_size=values.eval.group_size if is_eval else values.sample.group_size,
        seed=values.run.seed,
        purpose=split,
        settings=curriculum_settings(values, split),
        recipe_digest=loaded.digest,
    )
    for path in sample.run(options):
        print_path(path)
