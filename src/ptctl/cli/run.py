"""`ptctl run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptctl.cli.options import PrintConfigOption, SetOption, StopFlag, print_path, read_recipe, set_option
from ptctl.cli.pool import import_pool
from ptctl.loop.plan import EvalItem, TrainItem, plan_run
from ptctl.loop.prepare import check_recipe, run_lock, settle_recipe
from ptctl.loop.processes import stage_processes
from ptctl.loop.progress import Progress, show_progress
from ptctl.loop.supervise import Supervisor
from ptctl.recipe import Recipe
from ptctl.shards.run_directory import RunDirectory

app = typer.Typer()


@app.command()
def run_command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe (TOML file, or a directory with recipe.toml).")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="RUN", help="Run directory; an unfinished one goes on.")],
    steps: Annotated[int | None, typer.Option("--steps", min=0, help="Batches of the last phase.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the run (run.seed).")] = None,
    overrides: SetOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Run RECIPE in RUN: rollout, score and train as warm processes that meet on disk only, batch after batch.

    Kill it at any moment and give the same command again: it goes on where it was. More --steps extend a finished run.
    """
    stopped = StopFlag().install()
    loaded = read_recipe(recipe, set_option(overrides, "run.seed", seed), print_config=print_config)
    check_recipe(loaded)
    items = plan_run(loaded, steps)
    if dry_run:
        for item in items:
            typer.echo(_describe(loaded, item))
        return
    directory = RunDirectory(out)
    sources = [loaded.resolve(source) for source in loaded.values.pool.sources]
    with run_lock(directory):
        import_pool(sources, directory.tasks, loaded.values.pool.seed)
        settled = settle_recipe(loaded, directory)
        progress = Progress(run=directory, num_items=len(items))
        with stage_processes(directory) as stages, show_progress(progress):
            Supervisor(settled, directory, stages, progress, _reporter(settled), print_path, stopped).run(items)
    _show_final(directory)


def _describe(recipe: Recipe, item: TrainItem | EvalItem) -> str:
    values = recipe.for_phase(item.phase)
    if isinstance(item, EvalItem):
        return f"eval\t{item.report}\ttasks {values.eval.num_tasks or 'all'} × {values.eval.group_size}"
    return f"train\t{item.batch}\t{item.phase}\t{values.train.algorithm}\ttasks {values.sample.num_groups} × {values.sample.group_size}"
