"""Stratum keys and how a key cuts tasks into cells.

Partitions are cut on facts that were fixed before the run, over the tasks of both sides, so that they do not move with
what the candidate did. `num_tool_calls` is the exception: it is what the candidate did, shown but never gated.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptctl.errors import UsageError
from ptctl.evaluation.frames import MAP_KEY, TASK_FACTS, Int64Array

UNKNOWN = "unknown"
"""Value of a stratum where the task does not say."""
MAX_NUMERIC_VALUES = 10
"""A numeric fact with more values than that is cut at its terciles."""
CUT_INTO_TERCILES = frozenset({"prompt_length"})
BEHAVIOUR_KEY = "num_tool_calls"
CALL_BOUNDS = (0, 1, 2, 3, 5, 9, 17)
"""Lower bounds of the bins of `num_tool_calls`; fixed, never cut on the data."""
CALL_VALUES = ("0", "1", "2", "3-4", "5-8", "9-16", "17+")
KNOWN_KEYS = (*TASK_FACTS, BEHAVIOUR_KEY)


def check_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys, each once. Raises UsageError that lists every unknown one."""
    unknown = [key for key in keys if key not in KNOWN_KEYS and not (key.startswith(MAP_KEY) and key != MAP_KEY)]
    if unknown:
        guesses = [difflib.get_close_matches(key, KNOWN_KEYS, n=1) for key in unknown]
        named = ", ".join(
            f"{key!r} (did you mean {guess[0]!r}?)" if guess else repr(key)
            for key, guess in zip(unknown, guesses, strict=True)
        )
        raise UsageError(f"unknown stratum key {named}", hint=f"known: {', '.join(KNOWN_KEYS)}, {MAP_KEY}NAME")
    return tuple(dict.fromkeys(keys))


def is_fixed(key: str) -> bool:
    """Whether the key is a fact of the task, fixed before the run."""
    return key != BEHAVIOUR_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One key, cut: the values in display order, `unknown` last where some task does not say."""

    key: str
    values: tuple[str, ...]
    cuts: tuple[float, ...] | None
    """Upper bounds of all cells but the last, for a numeric fact with many values."""

    def value_of(self, raw: Any) -> str:
        """The cell of a raw value."""
        if raw is None:
            return UNKNOWN
        if self.cuts is None:
            return plain_text(raw)
        return self.values[sum(raw > cut for cut in self.cuts)]

    def members(self, facts: Sequence[Any]) -> dict[str, Int64Array]:
        """Value → positions of the tasks in its cell; every value of the partition, also where the cell is empty."""
        found: dict[str, list[int]] = {value: [] for value in self.values}
        for position, raw in enumerate(facts):
            found[self.value_of(raw)].append(position)
        return {value: np.asarray(positions, dtype=np.int64) for value, positions in found.items()}


def plain_text(raw: Any) -> str:
    """A raw fact as the name of a stratum: 0.0 is `0`."""
    return f"{raw:g}" if isinstance(raw, float) else str(raw)


def cut(key: str, facts: Sequence[Any]) -> Partition:
    """Cut the tasks whose raw values are `facts` (each task once)."""
    known = [value for value in facts if value is not None]
    distinct = sorted(set(known))
    tail = (UNKNOWN,) if len(known) < len(facts) else ()
    is_numeric = bool(distinct) and not isinstance(distinct[0], str)
    if is_numeric and (key in CUT_INTO_TERCILES or len(distinct) > MAX_NUMERIC_VALUES):
        cuts = _terciles(known)
        return Partition(key=key, values=(*_ranges(cuts, distinct), *tail), cuts=cuts)
    values = [plain_text(value) for value in distinct]
    return Partition(key=key, values=tuple(dict.fromkeys((*values, *tail))), cuts=None)


def _terciles(known: Sequence[Any]) -> tuple[float, ...]:
    """Upper bounds of the lower two thirds, as values of the data; fewer where values are tied."""
    ordered = sorted(known)
    n = len(ordered)
    cuts = dict.fromkeys(ordered[math.ceil(n * third / 3) - 1] for third in (1, 2))
    return tuple(cut for cut in cuts if cut < ordered[-1])


def _ranges(cuts: Sequence[float], distinct: Sequence[Any]) -> list[str]:
    """Names by the smallest and the largest value that lies in each cell."""
    ranges: list[str] = []
    for position in range(len(cuts) + 1):
        inside = [value for value in distinct if sum(value > cut for cut in cuts) == position]
        low, high = plain_text(inside[0]), plain_text(inside[-1])
        ranges.append(low if low == high else f"{low} to {high}")
    return ranges
