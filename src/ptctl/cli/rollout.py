"""`ptctl rollout`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
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
    set_option,
)
from ptctl.composition import engine_settings, environment_maker, sampling
from ptctl.episode import Player
from ptctl.errors import Interrupted, UsageError
from ptctl.loop.parent import die_with_parent
from ptctl.protocols import Engine
from ptctl.recipe import Recipe, RecipeModel, load_recipe
from ptctl.records import Purpose, content_digest
from ptctl.shards.dataset import is_complete, manifest_facts, shards_in
from ptctl.shards.follow import follow_datasets, read_paths, require_some
from ptctl.shards.policies import POLICY_FILE, latest, read_policy_file, versions
from ptctl.shards.reader import read_table
from ptctl.shards.run_directory import RunDirectory
from ptctl.stages import rollout

app = typer.Typer(add_completion=False)


@app.command()
def rollout_command(
    draws: Annotated[
        list[str] | None, typer.Argument(metavar="[DRAWS…|-]", help="Draw shards or datasets; - reads paths.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="DIR", help="Policy, policies or model directory.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="Trajectory dataset to write.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="Engine plug-in (rollout.engine).")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Served engine (rollout.endpoint).")
    ] = None,
    follow: FollowOption = None,
    max_errors: MaxErrorsOption = None,
    grace_s: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that episodes may go on after a stop.")
    ] = 60.0,
    null: NulOption = False,
    recipe: RecipeOption = None,
    overrides: SetOption = None,
    phase: PhaseOption = None,
    print_config: PrintConfigOption = False,
) -> None:
    """Play every draw with the policy and print the path of each trajectory shard as it is committed."""
    stopped = StopFlag().install()
    if follow is not None:
        if draws or policy or out or recipe:
            raise UsageError("--follow takes everything from the run directory", hint="drop the other arguments")
        die_with_parent()
        asyncio.run(_Follower(RunDirectory(follow).existing(), stopped, grace_s).run())
        return
    overrides = set_option(set_option(overrides, "rollout.engine", engine), "rollout.endpoint", endpoint)
    loaded = read_recipe(recipe, overrides, print_config=print_config)
    if policy is None or out is None:
        raise UsageError("rollout needs --policy DIR and -o DIR", hint="ptctl rollout --help")
    values = loaded.for_phase(phase)
    directory = latest(policy)
    shards = require_some(read_paths(draws or ["-"], nul=null), "rollout")
    asyncio.run(_play_once(loaded, values, directory, shards, out, stopped, grace_s, max_errors))


async def _play_once(
    loaded: Recipe, values: RecipeModel, policy: Path, shards: Any, out: Path,
    stopped: Callable[[], bool], grace_s: float, max_errors: int | None,
) -> None:  # fmt: skip
    engine: Engine = registry.load("engines", values.rollout.engine)(engine_settings(values, policy))
    first = next(shards)
    purpose = _purpose(first)
    await engine.start()
    try:
        options = _options(loaded, values, engine, policy, purpose, {}, stopped, grace_s, max_errors)
        await rollout.run(options(itertools.chain([first], shards), out))
    finally:
        await engine.close()


def _purpose(shard: Path) -> str:
    found = read_table(shard, "draws", ["purpose"]).column(0)
    return str(found[0].as_py()) if len(found) else Purpose.TRAIN


def policy_identity(policy: Path) -> str:
    """What tells one policy from another when a rollout is resumed, wherever it lies.

    A published policy names the sha256 of its weights; of another model directory the sizes of its files have to do.
    """
    file = policy / POLICY_FILE
    if file.exists():
        return read_policy_file(file).weights_sha256
    return content_digest({path.name: path.stat().st_size for path in policy.iterdir() if path.is_file()})


def _options(
    loaded: Recipe, values: RecipeModel, engine: Engine, policy: Path, purpose: str, facts: dict[str, Any],
    stopped: Callable[[], bool], grace_s: float, max_errors: int | None,
) -> Callable[[Any, Path], rollout.RolloutOptions]:  # fmt: skip
    section = values.rollout
    player = Player(
        engine=engine,
        make_environment=environment_maker(section.tool_call_format),
        sampling=sampling(values, purpose),
        context_length=engine.context_length,
        model=str(policy),
    )

    def make(shards: Any, out: Path) -> rollout.RolloutOptions:
        return rollout.RolloutOptions(
            draws=shards,
            out=out,
            player=player,
            policy=policy_identity(policy),
            tool_call_format=section.tool_call_format,
            max_in_flight=section.max_in_flight,
            max_attempts=section.max_attempts,
            shard_rows=section.shard_rows,
            shard_interval_s=section.shard_interval_s,
            grace_s=grace_s,
            max_errors=max_errors,
            recipe_digest=loaded.digest,
            facts=facts,
            on_commit=print_path,
            stopped=stopped,
        )

    return make


class _Follower:
    """Plays each batch of a run as it is drawn, with the policy version that the batch asks for. Engines stay warm."""

    def __init__(self, run: RunDirectory, stopped: Callable[[], bool], grace_s: float) -> None:
        self.directory = run
        self.recipe = load_recipe(run.recipe)
        self.stopped = stopped
        self.grace_s = grace_s
        self.engines: dict[str, tuple[Engine, int]] = {}

    async def run(self) -> None:
        batches = follow_datasets(
            self.directory.batches,
            done=lambda batch: is_complete(self.directory.trajectories / batch.name),
            stopped=self.stopped,
        )
        try:
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await self._play(batch)
                await self._warm_up()
        finally:
            for engine, _ in self.engines.values():
                await engine.close()
        raise Interrupted("stopped while following", hint="the same command again goes on")

    async def _play(self, batch: Path) -> None:
        facts = dict(manifest_facts(batch))
        values = self.recipe.for_phase(facts["phase"])
        version = int(facts["policy_version"])
        policy = self.directory.policies / str(version)
        engine = await self._engine(values, version)
        options = _options(
            self.recipe, values, engine, policy, facts["purpose"], facts, self.stopped, self.grace_s, None
        )
        await rollout.run(options(shards_in(batch), self.directory.trajectories / batch.name))

    async def _engine(self, values: RecipeModel, version: int) -> Engine:
        name = values.rollout.engine
        policy = self.directory.policies / str(version)
        if name not in self.engines:
            engine: Engine = registry.load("engines", name)(engine_settings(values, policy))
            await engine.start()
            self.engines[name] = (engine, version)
        engine, loaded = self.engines[name]
        if loaded != version:
            await engine.update_policy(policy, version)
            self.engines[name] = (engine, version)
        return engine

    async def _warm_up(self) -> None:
        """Load the engines of later phases while the trainer has the word."""
        found = versions(self.directory.policies)
        for phase in self.recipe.values.phases:
            values = self.recipe.for_phase(phase.name)
            if values.rollout.engine not in self.engines and found:
                await self._engine(values, found[-1])
