"""Prompt and completion ids of each generation ↔ one flat token stream with mask, as the rollout stage writes it.

generation 1   prompt p₁           completion c₁
generation 2   prompt p₁ c₁ o₁     completion c₂      →   p₁ c₁ o₁ c₂   mask F T F T
generation 3   prompt q            completion c₃      →   a new segment q c₃, for q does not begin with p₁ c₁ o₁ c₂
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ptctl.errors import DataError
from ptctl.records import Role, Segment, Trajectory, Turn

MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the engine read and sampled for one assistant message."""

    prompt_ids: Sequence[int]  # [P]
    completion_ids: Sequence[int]  # [C]
    logprobs: Sequence[float] | None  # [C]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Token streams, and the turns as spans into them."""

    turns: tuple[Turn, ...]
    token_ids: npt.NDArray[np.int32]  # [T]
    loss_mask: npt.NDArray[np.bool_]  # [T]
    rollout_logprobs: npt.NDArray[np.float32]  # [T], or empty
    segments: tuple[Segment, ...]


def check_generation(
    prompt_ids: Sequence[Any], completion_ids: Sequence[Any], logprobs: Sequence[Any] | None, where: str
) -> Generation:
    """A generation, checked. Raises DataError for ids that are none, or another number of log-probabilities."""
    for ids in (prompt_ids, completion_ids):
        if any(type(token) is not int or not 0 <= token <= MAX_TOKEN_ID for token in ids):
            raise DataError(f"{where}: token ids must be integers from 0 to 2³¹ − 1")
    if logprobs is not None:
        if len(logprobs) != len(completion_ids):
            raise DataError(f"{where}: {len(completion_ids)} token ids but {len(logprobs)} log-probabilities")
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in logprobs):
            raise DataError(f"{where}: log-probabilities must be numbers")
        if not np.isfinite(np.asarray(logprobs, dtype=np.float32)).all():
            logprobs = None  # not known; an empty stream says so
    return Generation(prompt_ids=prompt_ids, completion_ids=completion_ids, logprobs=logprobs)


def join(turns: Sequence[Turn], generations: Sequence[Generation | None]) -> Streams:
    """Lay the generations into one stream; `generations` has an entry for each assistant turn, None without ids.

    What stands between two completions belongs to the last message between them, since nothing tells where one of
    several messages ends. Log-probabilities are kept where all generations have them.
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    starts = [0]
    spans: list[Turn] = []
    waiting = iter(generations)
    for turn in turns:
        generation = next(waiting) if turn.role == Role.ASSISTANT else None
        if generation is None:
            spans.append(replace(turn, segment=len(starts) - 1, token_start=len(ids), token_end=len(ids)))
            continue
        begin = len(ids)
        context = list(generation.prompt_ids)
        if context[: begin - starts[-1]] != ids[starts[-1] :]:
            starts.append(begin)
        added = context[begin - starts[-1] :]
        sampled = list(generation.completion_ids)
        ids += added + sampled
        mask += [False] * len(added) + [True] * len(sampled)
        logprobs += [0.0] * len(added) + list(generation.logprobs or [0.0] * len(sampled))
        middle = begin + len(added)
        _give_context(spans, middle, len(starts) - 1)
        token_start = spans[-1].token_end if spans else 0
        spans.append(replace(turn, segment=len(starts) - 1, token_start=token_start, token_end=len(ids)))
    known = all(generation.logprobs is not None for generation in generations if generation is not None)
    ends = [*starts[1:], len(ids)]
    return Streams(
        turns=tuple(spans),
        token_ids=np.asarray(ids, dtype=np.int32),
        loss_mask=np.asarray(mask, dtype=np.bool_),
        rollout_logprobs=np.asarray(logprobs if known else [], dtype=np.float32),
        segments=tuple(
            Segment(token_start=start, token_end=end, opened_by="start" if start == 0 else "template_rewrite")
            for start, end in zip(starts, ends, strict=True)
        ),
    )


def _give_context(spans: list[Turn], middle: int, segment: int) -> None:
    """The tokens up to `middle` to the last turn, where it is no assistant's; its empty neighbours go along."""
    first = len(spans)
    while first > 0 and spans[first - 1].role != Role.ASSISTANT:
        first -= 1
    for index in range(first, len(spans)):
        spans[index] = replace(spans[index], segment=segment)
    if first < len(spans):
        spans[-1] = replace(spans[-1], token_end=middle)


def split(trajectory: Trajectory) -> list[Generation | None]:
    """The generations again: an entry for each assistant turn, None for one without sampled tokens."""
    ids, mask = np.asarray(trajectory.token_ids), np.asarray(trajectory.loss_mask, dtype=np.bool_)
    logprobs = np.asarray(trajectory.rollout_logprobs, dtype=np.float64)
    found: list[Generation | None] = []
    for turn in trajectory.turns:
        if turn.role != Role.ASSISTANT:
            continue
        sampled = np.flatnonzero(mask[turn.token_start : turn.token_end])
        if not len(sampled):
            found.append(None)
            continue
        begin = turn.token_start + int(sampled[0])
        end = turn.token_start + int(sampled[-1]) + 1
        found.append(
            Generation(
                prompt_ids=ids[trajectory.segments[turn.segment].token_start : begin].tolist(),
                completion_ids=ids[begin:end].tolist(),
                logprobs=logprobs[begin:end].tolist() if len(logprobs) else None,
            )
        )
    return found
