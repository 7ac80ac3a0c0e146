"""History → task weights → which tasks are drawn. Pure: the same inputs give the same draws, bit for bit.

The success of a task is a Beta posterior shrunk towards its family, so that one lucky episode does not retire a task
and a task never seen borrows from its relatives. The weight of a task is

    floor + learnability · 4p(1 − p) + failure · failure rate + novelty / (1 + draws so far)

with p the posterior mean. Domains (or families) then share the batch between their summed weights and equal parts.
Left out so far: decay of old outcomes over policy versions, retirement of solved tasks, quarantine of tasks whose
environment fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptctl.errors import UsageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FAMILY_STRENGTH = 4.0
"""Pseudo-episodes by which a task is shrunk towards its family."""
STRATEGIES = ("adaptive", "uniform")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known of each task of the pool, in pool order."""

    successes: IntArray  # [P] scored trajectories that passed
    trials: IntArray  # [P] scored trajectories
    num_draws: IntArray  # [P] groups drawn so far


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumSettings:
    """Factors of the weight; see the module's formula."""

    strategy: str
    learnability_weight: float
    failure_weight: float
    novelty_weight: float
    floor_weight: float
    quota_by: str
    """`domain` or `family`: what shares the batch."""
    quota_balance: float
    """0: by summed weight; 1: equally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWeights:
    """The weight of each task and the parts of it."""

    weight: FloatArray  # [P]
    success: FloatArray  # [P] posterior mean
    failure_rate: FloatArray  # [P] observed; NaN where never scored (internal to this module's callers, stored as NULL)
    novelty: FloatArray  # [P]


def posterior_success(history: History, family: IntArray) -> FloatArray:
    """# [P] posterior mean success of each task, shrunk to its family, which is itself shrunk to 1/2."""
    num_families = int(family.max()) + 1 if family.size else 0
    family_successes = np.bincount(family, weights=history.successes, minlength=num_families)
    family_trials = np.bincount(family, weights=history.trials, minlength=num_families)
    family_mean = (family_successes + 1.0) / (family_trials + 2.0)  # uniform Beta(1, 1) prior
    return (history.successes + FAMILY_STRENGTH * family_mean[family]) / (history.trials + FAMILY_STRENGTH)


def task_weights(history: History, family: IntArray, settings: CurriculumSettings) -> TaskWeights:
    """Weigh every task of the pool. `family` is [P], indices from 0. Raises UsageError for an unknown strategy."""
    if settings.strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {settings.strategy!r}", hint=f"known: {', '.join(STRATEGIES)}")
    success = posterior_success(history, family)
    trials = np.maximum(history.trials, 1)
    failure_rate = np.where(history.trials > 0, 1.0 - history.successes / trials, np.nan)
    novelty = 1.0 / (1.0 + history.num_draws.astype(np.float64))
    if settings.strategy == "uniform":
        weight = np.ones(len(family))
    else:
        weight = (
            settings.floor_weight
            + settings.learnability_weight * 4.0 * success * (1.0 - success)
            + settings.failure_weight * np.nan_to_num(failure_rate, nan=0.0)
            + settings.novelty_weight * novelty
        )
    return TaskWeights(weight=weight, success=success, failure_rate=failure_rate, novelty=novelty)


def quotas(weight: FloatArray, part: IntArray, num_groups: int, balance: float) -> tuple[IntArray, FloatArray]:
    """Share `num_groups` among domains or families. Returns counts [D], which add up to it, and the exact shares [D].

    Largest remainders get what rounding leaves, ties to the lower index.
    """
    num_parts = int(part.max()) + 1
    mass = np.bincount(part, weights=weight, minlength=num_parts)
    present = np.bincount(part, minlength=num_parts) > 0
    equal = present / present.sum()
    share = (1.0 - balance) * mass / mass.sum() + balance * equal
    exact = share * num_groups
    counts = np.floor(exact + 1e-9).astype(np.int64)
    by_remainder = np.argsort(-(exact - counts), kind="stable")
    counts[by_remainder[: num_groups - int(counts.sum())]] += 1
    return counts, share


def choose(weight: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Choose `count` of the tasks, # [count] indices.

    Every task is taken once before any is taken twice. Within a pass tasks are drawn without replacement with
    probability proportional to weight (Gumbel top-k; Efraimidis and Spirakis 2006).
    """
    passes, rest = divmod(count, len(weight))
    chosen = [rng.permutation(len(weight)) for _ in range(passes)]
    keys = np.log(weight) + rng.gumbel(size=len(weight))
    chosen.append(np.argsort(-keys, kind="stable")[:rest])
    return np.concatenate(chosen).astype(np.int64)


def draw_tasks(
    weights: TaskWeights, part: IntArray, num_groups: int, settings: CurriculumSettings, seed: int
) -> tuple[IntArray, FloatArray]:
    """Draw a batch: task indices # [num_groups] in random order, and the share of each one's part # [num_groups].

    `part` is [P], the index of each task's domain or family.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    counts, share = quotas(weights.weight, part, num_groups, settings.quota_balance)
    chosen: list[IntArray] = []
    for index in np.flatnonzero(counts):
        members = np.flatnonzero(part == index)
        chosen.append(members[choose(weights.weight[members], int(counts[index]), rng)])
    drawn = rng.permutation(np.concatenate(chosen))
    return drawn, share[part[drawn]]
