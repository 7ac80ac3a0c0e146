"""`ptctl run`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptctl.cli.evaluate import write_report
from ptctl.cli.options import PrintConfigOption, SetOption, StopFlag, print_path, read_recipe, set_option
from ptctl.cli.pool import import_pool
from ptctl.loop.plan import FINAL_REPORT, EvalItem, TrainItem, plan_run
from ptctl.loop.prepare import check_recipe, check_tasks, run_lock, settle_recipe
from ptctl.loop.processes import stage_processes
from ptctl.loop.progress import Progress, show_progress
from ptctl.loop.reports import report_version
from ptctl.loop.supervise import MakeReport, Supervisor
from ptctl.recipe import Recipe
from ptctl.shards.dataset import shards_in
from ptctl.shards.run_directory import RunDirectory

if TYPE_CHECKING:
    from ptctl.evaluation.report import Report

app = typer.Typer(add_completion=False)


@app.command()
def run_command(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="Recipe (TOML file, or a directory with recipe.toml).")
    ],
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
        import_pool(sources, directory.tasks, loaded.values.pool.seed, partial(check_tasks, loaded))
        settled = settle_recipe(loaded, directory)
        progress = Progress(run=directory, num_items=len(items))
        with stage_processes(directory) as stages, show_progress(progress):
            Supervisor(settled, directory, stages, progress, _reporter(settled), print_path, stopped).run(items)
    _show_final(settled, directory)


def _evaluate(recipe: Recipe, scores: Path, baseline: Path | None) -> Report:
    from ptctl.stages import evaluate

    options = evaluate.EvaluateOptions(
        scores=shards_in(scores),
        baseline=shards_in(baseline) if baseline is not None else (),
        strata=tuple(recipe.values.eval.strata),
        confidence=recipe.values.eval.confidence,
    )
    return evaluate.run(options)


def _reporter(recipe: Recipe) -> MakeReport:
    """Evaluate one score dataset against another and commit the report."""

    def make(scores: Path, baseline: Path | None, out: Path) -> None:
        write_report(_evaluate(recipe, scores, baseline), out)

    return make


def _show_final(recipe: Recipe, run: RunDirectory) -> None:
    """The final report as a table, on standard error: standard output carries paths."""
    from ptctl.reports import print_table, report_console

    report = run.reports / FINAL_REPORT
    version = report_version(report)
    if version is None:
        return
    earlier = [item for item in plan_run(recipe, None) if isinstance(item, EvalItem) and item.report != FINAL_REPORT]
    baseline = report_version(run.reports / earlier[-1].report) if earlier else None
    final = _evaluate(
        recipe, run.scores / f"eval-{version}", run.scores / f"eval-{baseline}" if baseline is not None else None
    )
    print_table(final, report_console(sys.stderr))


def _describe(recipe: Recipe, item: TrainItem | EvalItem) -> str:
    values = recipe.for_phase(item.phase)
    if isinstance(item, EvalItem):
        return f"eval\t{item.report}\ttasks {values.eval.num_tasks or 'all'} × {values.eval.group_size}"
    size = f"tasks {values.sample.num_groups} × {values.sample.group_size}"
    return f"train\t{item.batch}\t{item.phase}\t{values.train.algorithm}\t{size}"
