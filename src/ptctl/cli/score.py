"""`ptctl score`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ptctl import registry
from ptctl.cli.options import (
    FollowOption,
    MaxErrorsOption,
    NulOption,
    PhaseOption,
    PrintConfigOption,
    RecipeOption,
    SetOption,
    StopFlag,
    print_path,
    read_recipe,
)
from ptctl.errors import Interrupted, UsageError
from ptctl.loop.parent import die_with_parent
from ptctl.protocols import Sandbox, Verifier
from ptctl.recipe import RecipeModel, load_recipe
from ptctl.shards.dataset import is_complete, manifest_facts
from ptctl.shards.follow import follow_datasets, follow_shards, read_paths, require_some
from ptctl.shards.run_directory import RunDirectory
from ptctl.stages import score

app = typer.Typer(add_completion=False)


@app.command()
def score_command(
    trajectories: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TRAJECTORIES…|-]", help="Trajectory shards or datasets; - reads paths."),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="Score dataset to write.")] = None,
    follow: FollowOption = None,
    max_errors: MaxErrorsOption = None,
    null: NulOption = False,
    recipe: RecipeOption = None,
    overrides: SetOption = None,
    phase: PhaseOption = None,
    print_config: PrintConfigOption = False,
) -> None:
    """Verify trajectories and print the path of each score shard as it is committed. Needs no model and no GPU."""
    stopped = StopFlag().install()
    if follow is not None:
        if trajectories or out or recipe:
            raise UsageError("--follow takes everything from the run directory", hint="drop the other arguments")
        die_with_parent()
        _follow(RunDirectory(follow).existing(), stopped)
        return
    loaded = read_recipe(recipe, overrides, print_config=print_config)
    if out is None:
        raise UsageError("score needs -o DIR", hint="ptctl score --help")
    values = loaded.for_phase(phase)
    shards = require_some(read_paths(trajectories or ["-"], nul=null), "score")
    score.run(_options(values, shards, out, loaded.digest, {}, stopped, max_errors))


def make_verifier(name: str, settings: Mapping[str, Any]) -> Verifier:
    """Build the verifier that a task names."""
    verifier: Verifier = registry.load("verifiers", name)(settings)
    return verifier


def _options(
    values: RecipeModel, shards: Iterator[Path], out: Path, digest: str, facts: Mapping[str, Any],
    stopped: Callable[[], bool], max_errors: int | None,
) -> score.ScoreOptions:  # fmt: skip
    def make_sandbox() -> Sandbox:
        sandbox: Sandbox = registry.load("sandboxes", values.score.sandbox)()
        return sandbox

    return score.ScoreOptions(
        trajectories=shards,
        out=out,
        make_verifier=make_verifier,
        make_sandbox=make_sandbox,
        max_errors=max_errors,
        recipe_digest=digest,
        facts=facts,
        on_commit=print_path,
        stopped=stopped,
    )


def _follow(run: RunDirectory, stopped: Callable[[], bool]) -> None:
    """Score each batch while it is still being played: shard by shard, as they are committed."""
    recipe = load_recipe(run.recipe)
    batches = follow_datasets(
        run.batches,
        done=lambda batch: is_complete(run.scores / batch.name),
        stopped=stopped,
    )
    for batch in batches:
        facts = manifest_facts(batch)
        shards = follow_shards(run.trajectories / batch.name, stopped=stopped)
        values = recipe.for_phase(facts["phase"])
        score.run(_options(values, shards, run.scores / batch.name, recipe.digest, facts, stopped, None))
    raise Interrupted("stopped while following", hint="the same command again goes on")
