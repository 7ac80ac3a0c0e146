"""Recipe → the batches and evaluations of a run, in order."""

from __future__ import annotations

from dataclasses import dataclass

from ptctl.recipe import Recipe

FINAL_REPORT = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainItem:
    """One training batch."""

    batch: str
    """Its number in the run, from 0."""
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalItem:
    """One evaluation of the newest policy on the held-out tasks."""

    report: str
    """Name of the report: `before-PHASE` or `final`."""
    phase: str
    """Phase whose settings hold."""


def plan_run(recipe: Recipe, steps: int | None) -> list[TrainItem | EvalItem]:
    """Lay out the run. `steps` replaces the number of batches of the last phase."""
    items: list[TrainItem | EvalItem] = []
    phases = recipe.values.phases
    number = 0
    for phase in phases:
        if phase.evaluate_before:
            items.append(EvalItem(report=f"before-{phase.name}", phase=phase.name))
        count = steps if steps is not None and phase is phases[-1] else phase.steps
        for _ in range(count):
            items.append(TrainItem(batch=str(number), phase=phase.name))
            number += 1
    if recipe.values.eval.at_end and phases:
        items.append(EvalItem(report=FINAL_REPORT, phase=phases[-1].name))
    return items
