"""Streams and spans of trajectories: lengths that fit, bounds, order, and every sampled token of a known version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptctl.checking.problems import Findings, ProblemKind
from ptctl.shards.columns import compute

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
PER_TOKEN = ("rollout_logprobs", "teacher_logprobs", "ref_logprobs")
"""Streams of the length of `token_ids`, or empty where not recorded."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of a list column, of all rows one after the other. # [num_spans] each."""

    row: Int64Array
    start: Int64Array
    end: Int64Array
    values: dict[str, Int64Array]
    """Further fields."""

    @property
    def follows(self) -> BoolArray:
        """# [num_spans - 1] whether a span and the next one are of one row."""
        return self.row[1:] == self.row[:-1]


def check_tokens(table: pa.Table, findings: Findings) -> None:
    """Check rows of `trajectories`. Adds what is wrong under the trajectory's id."""
    rows = table.combine_chunks()
    num_tokens = _lengths(rows, "token_ids")
    ids = rows.column("trajectory_id")

    def complain(kind: ProblemKind, what: str, wrong: BoolArray | Int64Array) -> None:
        """`wrong`: # [num_rows] or the indices of rows."""
        for row in np.unique(np.flatnonzero(wrong) if wrong.dtype == np.bool_ else wrong):
            findings.add(kind, what, repr(ids[int(row)].as_py()))

    for what, wrong in _wrong_streams(rows, num_tokens):
        complain(ProblemKind.STREAMS, what, wrong)
    segments = _spans(rows, "segments")
    turns = _spans(rows, "turns", "segment")
    versions = _spans(rows, "version_spans", "policy_version")
    for name, spans in (("segments", segments), ("turns", turns), ("version spans", versions)):
        outside = (spans.start < 0) | (spans.end < spans.start) | (spans.end > num_tokens[spans.row])
        complain(ProblemKind.SPANS, f"{name} outside of the tokens", spans.row[outside])
        disorder = spans.follows & (spans.start[1:] < spans.end[:-1])
        complain(ProblemKind.SPANS, f"{name} out of order", spans.row[1:][disorder])
        if spans is versions and not outside.any():
            for what, wrong in _wrong_versions(rows, versions, num_tokens):
                complain(ProblemKind.SPANS, what, wrong)
    num_segments = np.bincount(segments.row, minlength=rows.num_rows)
    segment = turns.values["segment"]
    complain(ProblemKind.SPANS, "turns of no segment", turns.row[(segment < 0) | (segment >= num_segments[turns.row])])
    backwards = turns.follows & (segment[1:] < segment[:-1])
    complain(ProblemKind.SPANS, "turns out of order", turns.row[1:][backwards])


def _lengths(rows: pa.Table, name: str) -> Int64Array:
    return compute.list_value_length(rows.column(name)).to_numpy().astype(np.int64)


def _array(rows: pa.Table, name: str) -> Any:
    return rows.column(name).combine_chunks()


def _wrong_streams(rows: pa.Table, num_tokens: Int64Array) -> list[tuple[str, BoolArray]]:
    """What is wrong with the lengths of streams. # [num_rows] which rows."""
    found = [("loss_mask and token_ids differ in length", _lengths(rows, "loss_mask") != num_tokens)]
    for name in PER_TOKEN:
        length = _lengths(rows, name)
        found.append((f"{name} and token_ids differ in length", (length != num_tokens) & (length != 0)))
    found.append(("sampling_mask_offsets do not fit token_ids and sampling_mask_ids", _wrong_sampling_masks(rows)))
    shapes = rows.column("routed_experts_shape").to_pylist()
    per_token = np.asarray([int(np.prod(shape)) if shape else 0 for shape in shapes], dtype=np.int64)
    length = _lengths(rows, "routed_experts")
    found.append(("routed_experts do not fit their shape", (length != 0) & (length != num_tokens * per_token)))
    return found


def _wrong_sampling_masks(rows: pa.Table) -> BoolArray:
    offsets, num_ids = _array(rows, "sampling_mask_offsets"), _lengths(rows, "sampling_mask_ids")
    num_tokens, length = _lengths(rows, "token_ids"), _lengths(rows, "sampling_mask_offsets")
    wrong = (length != 0) & (length != num_tokens + 1) | (length == 0) & (num_ids != 0)
    for row in np.flatnonzero(length):
        values = offsets[int(row)].values.to_numpy()
        wrong[row] |= values[0] != 0 or values[-1] != num_ids[row] or bool((np.diff(values) < 0).any())
    return wrong


def _spans(rows: pa.Table, name: str, *fields: str) -> _Spans:
    column = _array(rows, name)
    parts = column.flatten()
    row = np.repeat(np.arange(rows.num_rows), _lengths(rows, name))

    def values(part: str) -> Int64Array:
        return parts.field(part).to_numpy().astype(np.int64)

    return _Spans(row, values("token_start"), values("token_end"), {part: values(part) for part in fields})


def _wrong_versions(rows: pa.Table, spans: _Spans, num_tokens: Int64Array) -> list[tuple[str, BoolArray]]:
    """Version spans cover the sampled tokens and no others, where the engine has versions. # [num_rows] which rows."""
    known = np.bincount(spans.row, minlength=rows.num_rows) > 0
    known |= _array(rows, "policy_version_min").is_valid().to_numpy(zero_copy_only=False)
    known &= _lengths(rows, "loss_mask") == num_tokens
    offsets = np.concatenate([[0], np.cumsum(num_tokens)])  # [num_rows + 1]
    change = np.zeros(offsets[-1] + 1, dtype=np.int64)
    np.add.at(change, offsets[spans.row] + spans.start, 1)
    np.add.at(change, offsets[spans.row] + spans.end, -1)
    row_of_token = np.repeat(np.arange(rows.num_rows), num_tokens)
    covered = np.cumsum(change)[:-1][known[row_of_token]]  # by how many spans each token of a known row is covered
    sampled = _array(rows, "loss_mask").filter(pa.array(known)).flatten().to_numpy(zero_copy_only=False)
    differs = np.zeros(rows.num_rows, dtype=np.bool_)
    differs[row_of_token[known[row_of_token]][covered != sampled]] = True
    return [
        ("version spans do not cover exactly the sampled tokens", differs),
        ("policy_version_min or _max is not that of the version spans", _wrong_extremes(rows, spans)),
    ]


def _wrong_extremes(rows: pa.Table, spans: _Spans) -> BoolArray:
    least = np.full(rows.num_rows, np.iinfo(np.int64).max)
    most = np.full(rows.num_rows, np.iinfo(np.int64).min)
    np.minimum.at(least, spans.row, spans.values["policy_version"])
    np.maximum.at(most, spans.row, spans.values["policy_version"])
    wrong = np.zeros(rows.num_rows, dtype=np.bool_)
    has_spans = np.bincount(spans.row, minlength=rows.num_rows) > 0
    for name, expected in (("policy_version_min", least), ("policy_version_max", most)):
        stored = _array(rows, name)
        valid = stored.is_valid().to_numpy(zero_copy_only=False)
        values = stored.fill_null(0).to_numpy().astype(np.int64)
        wrong |= has_spans & (~valid | (values != expected))
    return wrong
