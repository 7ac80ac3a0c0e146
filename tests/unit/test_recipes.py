"""Every recipe that ships loads, names what is there, and says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptctl import registry
from ptctl.loop.plan import EvalItem, TrainItem, plan_run
from ptctl.recipe import load_recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "recipes").iterdir() if path.is_dir())


@pytest.mark.parametrize("directory", RECIPES, ids=lambda path: path.name)
def test_recipe(directory: Path) -> None:
    recipe = load_recipe(directory)
    assert recipe.values.run.name == directory.name
    assert (directory / "README.md").is_file()
    assert recipe.values.pool.sources
    for source in recipe.values.pool.sources:
        assert recipe.resolve(source).exists()
    assert (recipe.resolve(recipe.values.policy.path) / "config.json").is_file()
    for phase in recipe.values.phases:
        values = recipe.for_phase(phase.name)
        assert values.rollout.engine in registry.names("engines")
        assert values.train.backend in registry.names("backends")


def test_the_quickstart_is_one_batch_of_demonstrations_and_thirty_of_attempts() -> None:
    items = plan_run(load_recipe(ROOT / "recipes" / "quickstart"), None)
    train = [item for item in items if isinstance(item, TrainItem)]
    assert [item.phase for item in train] == ["sft", *["grpo"] * 30]
    assert [item.report for item in items if isinstance(item, EvalItem)] == ["before-grpo", "final"]
    assert isinstance(items[-1], EvalItem)
