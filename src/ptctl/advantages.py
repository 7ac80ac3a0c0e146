"""Rewards of a group -> advantages, and the overlong penalty that shapes rewards before.

A reward that is not known is not a reward of 0: its row is left out of the baseline, gets advantage 0 and is not
trained. Sums run in row order; a caller that wants the same bits for another completion order sorts the rows
canonically first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ptctl.errors import DataError, UsageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Estimator = Literal["grpo", "grpo_ddof0", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]
"""How a reward becomes an advantage; r the reward, m and s mean and standard deviation of its group:

    grpo                   (r - m) / (s + eps), s with n - 1        Shao et al. 2024, arXiv:2402.03300; also DAPO, GSPO
    grpo_ddof0             (r - m) / (s + eps), s with n            the same as some trainers implement it
    dr_grpo                r - m                                    Liu et al. 2025, arXiv:2503.20783
    rloo                   r - mean of the others = (r - m) n/(n-1) Ahmadian et al. 2024, arXiv:2402.14740
    reinforce_pp           (r - M) / (S + eps)                      Hu et al. 2025, arXiv:2501.03262
    reinforce_pp_baseline  (r - m) / (S' + eps)                     the same, with a group baseline

M and S are mean and standard deviation (n) over all known rewards of the batch, S' the deviation of all r - m.
"""

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)

DEFAULT_EPS = 1e-6
"""Added to the standard deviation."""

_DDOF: dict[Estimator, int] = {"grpo": 1, "grpo_ddof0": 0, "reinforce_pp": 0, "reinforce_pp_baseline": 0}
_SPREAD_ULPS = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantages:
    """Advantages of N rows in num_groups groups, with what a trainer and its metadata need to know about them.

    advantages           [N] float64; exactly 0 in rows that are not trained.
    trainable            [N]; the reward is known and its group has enough known rewards.
    zero_variance_groups [num_groups]; at least one known reward and all of them equal. With a group baseline such a
                         group has advantages of exactly 0 and teaches nothing.
    trained_groups       [num_groups]; at least min_group_size known rewards.
    num_known            [num_groups]; known rewards.
    estimator, ddof, eps what was computed; ddof and eps are None where no deviation is divided by.
    """

    advantages: FloatArray
    trainable: BoolArray
    zero_variance_groups: BoolArray
    trained_groups: BoolArray
    num_known: IntArray
    estimator: Estimator
    min_group_size: int
    ddof: int | None
    eps: float | None

    @property
    def has_signal(self) -> bool:
        """Whether any advantage differs from 0. Without, the step is skipped and the policy version stays."""
        return bool(np.any(self.advantages))


def uses_group_baseline(estimator: Estimator) -> bool:
    """Say whether the estimator subtracts the mean of the row's own group."""
    return estimator != "reinforce_pp"


def check_group_size(estimator: Estimator, group_size: int) -> None:
    """Refuse an estimator that is not known, or a group baseline over one row (it is the row itself: advantage 0).

    Cheap: call it when the recipe is read. Raises UsageError.
    """
    if estimator not in ESTIMATORS:
        raise UsageError(f"unknown advantage estimator {estimator!r}", hint=f"one of: {', '.join(ESTIMATORS)}")
    if group_size < 1:
        raise UsageError(f"group_size must be at least 1, got {group_size}")
    if group_size == 1 and uses_group_baseline(estimator):
        raise UsageError(
            f"estimator {estimator!r} needs a group_size of at least 2, got 1",
            hint="raise group_size, or use reinforce_pp, whose baseline is the batch",
        )


def group_advantages(
    rewards: npt.ArrayLike,
    group_index: npt.ArrayLike,
    *,
    known: npt.ArrayLike | None = None,
    estimator: Estimator = "grpo",
    num_groups: int | None = None,
    min_group_size: int = 2,
    eps: float = DEFAULT_EPS,
) -> Advantages:
    """Compute the advantage of every row of a batch.

    Args:
        rewards: [N]; what stands in a row that is not known is not read.
        group_index: [N], group of each row in 0..num_groups - 1, in any order.
        known: [N] bool, False where the reward is NULL; all known by default.
        estimator: one of `Estimator`.
        num_groups: defaults to the largest index + 1.
        min_group_size: a group with fewer known rewards is not trained; at least 2 for a group baseline.
        eps: added to the standard deviation where there is one.

    Raises:
        UsageError: unknown estimator, bad min_group_size or eps, or no group of two rows for a group baseline.
        DataError: shapes differ, an index is out of range, or a known reward is not finite.
    """
    values, groups, mask, num_groups = _checked_rows(rewards, group_index, known, num_groups)
    rows_per_group = np.bincount(groups, minlength=num_groups)  # [num_groups]
    check_group_size(estimator, int(rows_per_group.max()) if groups.size else 2)
    _check_settings(estimator, min_group_size, eps)
    num_known = rows_per_group if mask.all() else np.bincount(groups[mask], minlength=num_groups)  # [num_groups]
    trained_groups = num_known >= min_group_size
    trainable = mask & trained_groups[groups]
    shifted = _relative_to_group(values, groups, mask, num_groups)  # [N]
    num_different = np.bincount(groups, weights=shifted != 0.0, minlength=num_groups)  # [num_groups]
    if estimator == "reinforce_pp":
        raw = _from_batch(values, trainable, eps)
    else:
        raw = _from_group(estimator, shifted, groups, trainable, num_known, eps)
    ddof = _DDOF.get(estimator)
    return Advantages(
        advantages=np.where(trainable, raw, 0.0),
        trainable=trainable,
        zero_variance_groups=(num_known > 0) & (num_different == 0),
        trained_groups=trained_groups,
        num_known=num_known,
        estimator=estimator,
        min_group_size=min_group_size,
        ddof=ddof,
        eps=None if ddof is None else eps,
    )


def _relative_to_group(values: FloatArray, groups: IntArray, mask: BoolArray, num_groups: int) -> FloatArray:
    """Rewards minus the first known reward of their group, [N]; 0 where not known or equal to it up to rounding.

    Equal rewards so give exact zeros whatever their rounding, and a large offset common to the group costs no digits.
    """
    anchor = np.zeros(num_groups)  # [num_groups]
    rows = np.flatnonzero(mask)[::-1]
    anchor[groups[rows]] = values[rows]  # the last assignment, that is the first row, stays
    shifted = values - anchor[groups]
    rounding = np.abs(anchor) * (_SPREAD_ULPS * np.finfo(np.float64).eps)  # [num_groups]
    return np.where(mask & (np.abs(shifted) > rounding[groups]), shifted, 0.0)


def _from_group(
    estimator: Estimator, shifted: FloatArray, groups: IntArray, trainable: BoolArray, num_known: IntArray, eps: float
) -> FloatArray:
    num_groups = num_known.size
    count = np.maximum(num_known, 1).astype(np.float64)  # [num_groups]
    mean = np.bincount(groups, weights=shifted, minlength=num_groups) / count  # rows that are not known add 0
    centred = np.where(trainable, shifted - mean[groups], 0.0)  # [N]
    if estimator == "dr_grpo":
        return centred
    if estimator == "rloo":
        return centred * (count / np.maximum(count - 1.0, 1.0))[groups]
    if estimator == "reinforce_pp_baseline":
        spread = np.sqrt(np.square(centred).sum() / max(1, int(trainable.sum())))
        return centred / _positive(np.asarray(spread + eps))
    squares = np.bincount(groups, weights=np.square(centred), minlength=num_groups)
    deviation = np.sqrt(squares / np.maximum(count - _DDOF[estimator], 1.0))  # [num_groups]
    return centred / _positive(deviation + eps)[groups]


def _from_batch(values: FloatArray, trainable: BoolArray, eps: float) -> FloatArray:
    used = values[trainable]
    if used.size < 2 or np.ptp(used) <= _SPREAD_ULPS * np.finfo(np.float64).eps * np.abs(used).max():
        return np.zeros_like(values)
    return np.where(trainable, values - used.mean(), 0.0) / (used.std() + eps)


def _positive(divisor: FloatArray) -> FloatArray:
    # With eps = 0 equal rewards give 0 / 0; the numerators are exact zeros, so any divisor keeps them.
    return np.where(divisor > 0.0, divisor, 1.0)


def _checked_rows(
    rewards: npt.ArrayLike, group_index: npt.ArrayLike, known: npt.ArrayLike | None, num_groups: int | None
) -> tuple[FloatArray, IntArray, BoolArray, int]:
    values = np.asarray(rewards, dtype=np.float64)
    raw_groups = np.asarray(group_index)
    mask = np.ones(values.shape, dtype=np.bool_) if known is None else np.asarray(known, dtype=np.bool_)
    if values.ndim != 1 or raw_groups.shape != values.shape or mask.shape != values.shape:
        raise DataError(f"shapes differ: rewards {values.shape}, group_index {raw_groups.shape}, known {mask.shape}")
    if raw_groups.size and not np.issubdtype(raw_groups.dtype, np.integer):
        raise DataError(f"group_index must hold integers, got {raw_groups.dtype}")
    groups = raw_groups.astype(np.int64, copy=False)
    highest = int(groups.max()) if groups.size else -1
    total = highest + 1 if num_groups is None else num_groups
    if groups.size and (int(groups.min()) < 0 or highest >= total):
        raise DataError(f"group_index must lie in 0..{total - 1}, found {int(groups.min())}..{highest}")
    bad = np.flatnonzero(mask & ~np.isfinite(values))
    if bad.size:
        raise DataError(
            f"row {bad[0]} has the reward {values[bad[0]]}", hint="a reward that is not known is NULL: known=False"
        )
    return np.where(mask, values, 0.0), groups, mask, total


def _check_settings(estimator: Estimator, min_group_size: int, eps: float) -> None:
    least = 2 if uses_group_baseline(estimator) else 1
    if min_group_size < least:
        raise UsageError(f"min_group_size must be at least {least} for {estimator!r}, got {min_group_size}")
    if not (eps >= 0.0 and np.isfinite(eps)):
        raise UsageError(f"eps must be finite and not negative, got {eps!r}")


def broadcast_advantages(advantages: npt.ArrayLike, row_offsets: npt.ArrayLike) -> FloatArray:
    """Give every token its row's advantage: [N] and offsets [N + 1] -> a new array [T].

    The result owns its memory. A broadcast view would look the same until an edit of one span changed the whole row.
    Raises DataError when the offsets do not rise from 0 or do not match N.
    """
    rows = np.asarray(advantages, dtype=np.float64)
    offsets = np.asarray(row_offsets, dtype=np.int64)
    if rows.ndim != 1 or offsets.shape != (rows.size + 1,):
        raise DataError(f"{rows.shape} advantages need {rows.size + 1} row offsets, got {offsets.shape}")
    lengths = np.diff(offsets)
    if offsets[0] != 0 or bool(np.any(lengths < 0)):
        raise DataError("row offsets must start at 0 and never fall")
    return np.repeat(rows, lengths)


def overlong_penalty(num_tokens: npt.ArrayLike, *, max_tokens: int, buffer_tokens: int) -> FloatArray:
    """Return the soft penalty in [-1, 0] to be added to the reward of a long row, [N].

    0 up to max_tokens - buffer_tokens, then linear to -1 at max_tokens, and -1 beyond.
    Source: Yu et al. (2025), DAPO, arXiv:2503.14476, equation 13.
    Raises UsageError unless 0 < buffer_tokens <= max_tokens.
    """
    if not 0 < buffer_tokens <= max_tokens:
        raise UsageError(
            f"buffer_tokens must lie in 1..{max_tokens} (max_tokens), got {buffer_tokens}",
            hint="leave the overlong penalty out of the recipe to have none",
        )
    lengths = np.asarray(num_tokens, dtype=np.float64)  # [N]
    return np.clip((max_tokens - buffer_tokens - lengths) / buffer_tokens, -1.0, 0.0) + 0.0
