"""Rows as columns → padded micro-batches on the device, and the checks that a step must pass before any work.

A row is padded at its end to the longest row of its micro-batch. Position t predicts token t + 1, so the last token of
a row is no input, and its first token has no log-probability. Of the [b, s] predictions only the *picked* ones go on to
the loss: whatever stands behind the mask never enters it, so its gradient is exactly zero even where it is NaN.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptctl.backends.megatron.geometry import Geometry
from ptctl.errors import DataError, UsageError
from ptctl.protocols import Float64Array, Int64Array, TrainRows


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What goes through the model together: b rows padded to s inputs, n picked predictions."""

    input_ids: Tensor  # [b, s]
    position_ids: Tensor  # [b, s]
    picked: Tensor  # [n] positions in the flattened [b × s] predictions
    targets: Tensor  # [n] ids that they predict
    temperatures: Tensor  # [n]
    token_weights: Tensor  # [n]
    advantages: Tensor  # [n]
    rollout_logprobs: Tensor  # [n]
    token_index: Int64Array  # [n] where the targets stand in `TrainRows.token_ids`


def pick_loss_tokens(rows: TrainRows, token_weights: Float64Array, indices: Int64Array) -> int:
    """How many tokens of the rows `indices` are in the loss: `loss_mask` is set and the row's weight is not 0."""
    counted = np.concatenate([[0], np.cumsum(rows.loss_mask, dtype=np.int64)])  # [T + 1]
    per_row = counted[rows.offsets[1:]] - counted[rows.offsets[:-1]]  # [N]
    return int(per_row[indices][token_weights[indices] != 0].sum())


def check_rows(rows: TrainRows, micro_batches: Sequence[Int64Array], geometry: Geometry) -> Int64Array:
    """# [R] the rows of all micro-batches, after checking what would give a wrong result or kill one rank alone.

    Raises UsageError for a temperature that is not above 0, and DataError for ids outside the vocabulary, for a first
    token in the loss mask, for a row that stands twice and for rows longer than the model's attention window.
    """
    indices = np.concatenate([*micro_batches, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    if len(np.unique(indices)) != len(indices) or np.any((indices < 0) | (indices >= rows.num_rows)):
        raise DataError(f"micro-batches must name each of the {rows.num_rows} rows at most once")
    temperatures = rows.temperatures[indices]
    if not np.all(temperatures > 0):
        raise UsageError(
            f"log-probabilities need a temperature above 0, a row has {temperatures[~(temperatures > 0)][0]}",
            hint="greedy rows have log-probabilities at temperature 1: pass 1",
        )
    if len(rows.token_ids) and not 0 <= rows.token_ids.min() <= rows.token_ids.max() < geometry.vocab_size:
        raise DataError(f"token ids must be in [0, {geometry.vocab_size}), the model's vocabulary")
    filled = indices[rows.lengths[indices] > 0]
    if rows.loss_mask[rows.offsets[filled]].any():
        raise DataError("the first token of a row is in the loss mask, but nothing predicts it")
    if geometry.window is not None and len(indices) and rows.lengths[indices].max() > geometry.window:
        raise DataError(f"rows longer than the sliding window of {geometry.window} tokens are not supported")
    return indices


def build_micro_batch(
    rows: TrainRows, indices: Int64Array, token_weights: Float64Array | None, device: torch.device
) -> MicroBatch:
    """Pad the rows `indices`. With `token_weights` [N] loss tokens are picked, with None all but each row's first."""
    predictions = np.maximum(rows.lengths[indices] - 1, 0)  # [b]
    num_inputs = max(int(predictions.max(initial=0)), 1)
    steps = np.arange(num_inputs)
    real = steps < predictions[:, None]  # [b, s]
    source = np.where(real, rows.offsets[indices][:, None] + steps, 0)  # [b, s] index of the input token
    if len(indices) == 0:  # a rank without work runs one row of padding, whose loss is an empty sum
        real, source = np.zeros((1, 1), dtype=np.bool_), np.zeros((1, 1), dtype=np.int64)
    ids = np.where(real, rows.token_ids[source], 0) if len(rows.token_ids) else np.zeros(real.shape, dtype=np.int64)
    picked = real.copy()
    if token_weights is not None:
        picked[real] = rows.loss_mask[source[real] + 1]
        if len(indices):
            picked &= (token_weights[indices] != 0)[:, None]
    row_of_pick, step_of_pick = np.nonzero(picked)
    row = indices[row_of_pick]
    target_index = source[row_of_pick, step_of_pick] + 1

    def on_device(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype, non_blocking=True)

    weights = np.ones(rows.num_rows) if token_weights is None else token_weights
    return MicroBatch(
        input_ids=on_device(ids, torch.int64),
        position_ids=torch.arange(real.shape[1], device=device).expand(real.shape[0], -1),
        picked=on_device(row_of_pick * real.shape[1] + step_of_pick, torch.int64),
        targets=on_device(rows.token_ids[target_index], torch.int64),
        temperatures=on_device(rows.temperatures[row], torch.float32),
        token_weights=on_device(weights[row], torch.float32),
        advantages=on_device(rows.advantages[row], torch.float32),
        rollout_logprobs=on_device(rows.rollout_logprobs[target_index], torch.float32),
        token_index=target_index,
    )
