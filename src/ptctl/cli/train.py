"""`ptctl train`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ptctl import registry
from ptctl.cli.options import (
    FollowOption,
    NulOption,
    PhaseOption,
    PrintConfigOption,
    RecipeOption,
    SetOption,
    StopFlag,
    print_path,
    read_recipe,
)
from ptctl.composition import backend_settings, plan_settings
from ptctl.errors import Interrupted, UsageError
from ptctl.loop.parent import die_with_parent
from ptctl.protocols import Backend
from ptctl.recipe import Recipe, load_recipe
from ptctl.records import Purpose
from ptctl.shards.dataset import is_complete, manifest_facts, shards_in
from ptctl.shards.follow import follow_datasets, read_paths, require_some
from ptctl.shards.policies import POLICY_FILE, latest, published, read_policy_file, versions
from ptctl.shards.run_directory import RunDirectory
from ptctl.stages import train

app = typer.Typer(add_completion=False)


@app.command()
def train_command(
    scores: Annotated[
        list[str] | None, typer.Argument(metavar="[SCORES…|-]", help="Score shards or datasets; - reads paths.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="DIR", help="Policy, policies or model directory to start from.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Directory in which the next numbered policy is published."),
    ] = None,
    follow: FollowOption = None,
    null: NulOption = False,
    recipe: RecipeOption = None,
    overrides: SetOption = None,
    phase: PhaseOption = None,
    print_config: PrintConfigOption = False,
) -> None:
    """Train on scored groups that no policy has consumed yet, publish the next policy and print its path."""
    stopped = StopFlag().install()
    if os.environ.get("WORLD_SIZE", "1") != "1" and (follow is not None or not scores or "-" in scores):
        raise UsageError(
            "several training processes cannot share standard input or follow a run",
            hint="name the score shards or datasets",
        )
    if follow is not None:
        if scores or out or recipe:
            raise UsageError("--follow takes everything from the run directory", hint="drop the other arguments")
        die_with_parent()
        _Follower(RunDirectory(follow).existing(), stopped).run()
        return
    loaded = read_recipe(recipe, overrides, print_config=print_config)
    if policy is None or out is None:
        raise UsageError("train needs --policy DIR and -o DIR", hint="ptctl train --help")
    start = latest(policy)
    shards = list(require_some(read_paths(scores or ["-"], nul=null), "train"))
    _train_once(loaded, phase, start, shards, out)


def _make_backend(loaded: Recipe, phase: str | None, start: Path, initialize: str) -> Backend:
    values = loaded.for_phase(phase)
    resolved = loaded.phase(phase)
    settings = backend_settings(values, start, resolved.name if resolved else "", initialize)
    backend: Backend = registry.load("backends", values.train.backend)(settings)
    return backend


def _train_once(loaded: Recipe, phase: str | None, start: Path, shards: Sequence[Path], out: Path) -> None:
    is_policy = (start / POLICY_FILE).exists()
    backend = _make_backend(loaded, phase, start, "load" if is_policy else loaded.values.policy.initialize)
    version = read_policy_file(start / POLICY_FILE).policy_version if is_policy else 0
    backend.start()
    try:
        published_at = train.run(_options(loaded, phase, shards, out, version, "hand"), backend)
        if published_at is not None and backend.is_main():
            print_path(published_at)
        elif backend.is_main():
            typer.echo("nothing to train on: every group was consumed already, or teaches nothing", err=True)
    finally:
        backend.close()


def _options(
    loaded: Recipe, phase: str | None, shards: Sequence[Path], out: Path, version: int, batch: str
) -> train.TrainOptions:
    values = loaded.for_phase(phase)
    resolved = loaded.phase(phase)
    return train.TrainOptions(
        scores=shards,
        out=out,
        parent_version=version,
        plan=plan_settings(values, batch),
        phase=resolved.name if resolved else "",
        keep_checkpoints=values.train.keep_checkpoints,
        recipe_digest=loaded.digest,
    )


class _Follower:
    """Trains on each scored batch of a run in order. The model stays in memory from one policy to the next."""

    def __init__(self, run: RunDirectory, stopped: Callable[[], bool]) -> None:
        self.directory = run
        self.recipe = load_recipe(run.recipe)
        self.stopped = stopped
        self.phase = ""

    def run(self) -> None:
        backend = self._start()
        try:
            for scores in follow_datasets(self.directory.scores, done=self._is_done, stopped=self.stopped):
                self._train(backend, scores)
        finally:
            backend.close()
        raise Interrupted("stopped while following", hint="the same command again goes on")

    def _is_done(self, scores: Path) -> bool:
        """Evaluation batches are none of the trainer's; a training batch is done when some policy has consumed it."""
        if manifest_facts(scores)["purpose"] == Purpose.EVAL:
            return True
        return any(policy.batch == scores.name for policy in published(self.directory.policies))

    def _start(self) -> Backend:
        found = versions(self.directory.policies)
        if found:
            start = self.directory.policies / str(found[-1])
            self.phase = read_policy_file(start / POLICY_FILE).phase or ""
            backend = _make_backend(self.recipe, self.phase, start, "load")
            backend.start()
            return backend
        self.phase = self.recipe.values.phases[0].name
        source = self.recipe.values.policy
        backend = _make_backend(self.recipe, self.phase, self.recipe.resolve(source.path), source.initialize)
        backend.start()
        print_path(
            train.publish_initial(
                self.directory.policies, backend, phase=self.phase, recipe_digest=self.recipe.digest,
                seed=self.recipe.values.run.seed,
            )
        )  # fmt: skip
        return backend

    def _train(self, backend: Backend, scores: Path) -> None:
        phase = str(manifest_facts(scores)["phase"])
        version = versions(self.directory.policies)[-1]
        if phase != self.phase:
            values = self.recipe.for_phase(phase)
            backend.begin_phase(backend_settings(values, self.directory.policies / str(version), phase, "load"))
            self.phase = phase
        if not is_complete(scores):
            return
        published_at = train.run(
            _options(self.recipe, phase, shards_in(scores), self.directory.policies, version, scores.name), backend
        )
        if published_at is not None:
            print_path(published_at)
