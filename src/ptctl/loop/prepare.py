"""Before a run starts: one supervisor a run, everything checked before anything is written, recipe in place."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptctl import registry
from ptctl.errors import CannotCreate, ConfigConflict, DataError, InputNotFound, UsageError
from ptctl.evaluation.strata import check_keys
from ptctl.recipe import Recipe, load_recipe
from ptctl.recipe.show import print_config
from ptctl.records import Purpose, Task
from ptctl.shards.files import committed_file, make_directory
from ptctl.shards.run_directory import RunDirectory
from ptctl.tool_calls import FORMATS

LOCK = ".lock"


def check_recipe(recipe: Recipe) -> None:
    """Refuse what cannot run: no phases, no pool, no model, plug-ins that are unknown or not installed.

    Raises UsageError, InputNotFound or MissingExtra.
    """
    where = recipe.file or "the recipe"
    if not recipe.values.phases:
        raise UsageError(f"{where} has no [[phases]]", hint="a run needs at least one phase with its number of steps")
    if not recipe.values.pool.sources:
        raise UsageError(f"{where}: pool.sources is empty", hint="name the tasks to draw from")
    for source in recipe.values.pool.sources:
        if not recipe.resolve(source).exists():
            raise InputNotFound(f"{where}: pool.sources names {recipe.resolve(source)}, which is not there")
    model = recipe.resolve(recipe.values.policy.path)
    if not recipe.values.policy.path or not (model / "config.json").is_file():
        raise InputNotFound(
            f"{where}: policy.path names {model}, which is no model directory",
            hint="it needs config.json and a tokenizer",
        )
    check_keys(recipe.values.eval.strata)
    for phase in recipe.values.phases:
        values = recipe.for_phase(phase.name)
        registry.check("engines", values.rollout.engine)
        registry.check("backends", values.train.backend)
        if values.rollout.tool_call_format not in FORMATS:
            raise UsageError(
                f"unknown tool-call format {values.rollout.tool_call_format!r}",
                hint=registry.did_you_mean(values.rollout.tool_call_format, sorted(FORMATS)),
            )


def check_tasks(recipe: Recipe, tasks: Sequence[Task]) -> None:
    """Refuse a pool that the run could not play, verify or evaluate, before it is written.

    Raises UsageError for a plug-in that is unknown, DataError where a split is empty.
    """
    for group, name_of in (("environments", "environment"), ("verifiers", "verifier")):
        for name in sorted({getattr(task, name_of) for task in tasks}):
            registry.check(group, name)
    needed = {Purpose.TRAIN}
    if recipe.values.eval.at_end or any(phase.evaluate_before for phase in recipe.values.phases):
        needed.add(Purpose.EVAL)
    for split in sorted(needed - {task.split for task in tasks}):
        raise DataError(f"the pool has no task of split {split.value!r}", hint="a task's split is `train` or `eval`")
    num_eval = sum(task.split == Purpose.EVAL for task in tasks)
    if Purpose.EVAL in needed and recipe.values.eval.num_tasks > num_eval:
        raise UsageError(f"eval.num_tasks is {recipe.values.eval.num_tasks}, the pool has {num_eval} held-out tasks")


@contextmanager
def run_lock(run: RunDirectory) -> Generator[None]:
    """Hold the run. The kernel releases it when this process dies. Raises CannotCreate where another one holds it."""
    make_directory(run.root)
    descriptor = os.open(run.root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise CannotCreate(f"another `ptctl run` works on {run.root}", hint="wait for it, or stop it") from error
    try:
        yield
    finally:
        if os.listdir(run.root) == [LOCK]:  # refused before anything was written: leave nothing
            (run.root / LOCK).unlink()
            run.root.rmdir()
        os.close(descriptor)


def _comparable(recipe: Recipe) -> dict[str, Any]:
    """What must not change between two calls. Steps may grow; paths were made absolute when the run began."""
    flat: dict[str, Any] = {}
    for section, values in recipe.values.model_dump().items():
        if section == "phases":
            for phase in values:
                for key, value in phase.items():
                    inner = value if isinstance(value, dict) else {"": value}
                    flat |= {f"phases.{phase['name']}.{key}.{name}".rstrip("."): part for name, part in inner.items()}
        else:
            flat |= {f"{section}.{key}": value for key, value in values.items()}
    return {
        key: value
        for key, value in flat.items()
        if key not in ("pool.sources", "policy.path") and not (key.startswith("phases.") and key.endswith(".steps"))
    }


def settle_recipe(recipe: Recipe, run: RunDirectory) -> Recipe:
    """Write the run's recipe, or hold the given one against it.

    Returns the run's. Raises ConfigConflict with a diff.
    """
    if not run.recipe.exists():
        absolute = Path(os.path.abspath(recipe.resolve(recipe.values.policy.path)))
        values = recipe.values.model_copy(
            update={"policy": recipe.values.policy.model_copy(update={"path": str(absolute)})}
        )
        settled = Recipe(
            values=values, directory=recipe.directory, file=recipe.file, origins=recipe.origins, written=recipe.written
        )
        with committed_file(run.recipe) as temporary:
            temporary.write_text(print_config(settled), encoding="utf-8")
    stored = load_recipe(run.recipe)
    before, now = _comparable(stored), _comparable(recipe)
    changed = [
        f"{key}: {before.get(key)!r} there, {now.get(key)!r} now"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ConfigConflict(
            f"{run.root} was begun with another recipe: {'; '.join(changed)}",
            hint="resume with the same one, or choose another -o",
        )
    return stored
