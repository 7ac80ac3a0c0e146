"""Reading a verifier's settings (the task's `verifier_json`): strict, so that no key is accepted and ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from ptctl.errors import RowFailure, UsageError
from ptctl.records import Task
from ptctl.registry import did_you_mean


class Settings:
    """The settings of one verifier. Every reader raises UsageError that names verifier, key and what is wrong."""

    def __init__(self, verifier: str, config: Mapping[str, Any], known: Collection[str]) -> None:
        """Raises UsageError for a key that is not in `known`."""
        self._verifier = verifier
        self._config = config
        for key in config:
            if key not in known:
                hint = did_you_mean(key, sorted(known)) if known else "it has no settings"
                raise UsageError(f"verifier {verifier!r} has no setting {key!r}", hint=hint)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def number(self, key: str, default: float, *, minimum: float = 0.0) -> float:
        """A finite number, at least `minimum`."""
        value = self._config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
            raise self._wrong(key, value, f"a finite number ≥ {minimum:g}")
        return float(value)

    def choice(self, key: str, default: str, choices: Collection[str]) -> str:
        """One of a few words."""
        value = self._config.get(key, default)
        if value not in choices:
            raise self._wrong(key, value, " or ".join(choices))
        return str(value)

    def _wrong(self, key: str, value: object, wanted: str) -> UsageError:
        return UsageError(f"verifier {self._verifier!r}: {key} must be {wanted}, not {value!r}")


def decode_target(task: Task) -> Any:
    """The task's target. Raises RowFailure(kind="verifier") where `target_json` is no JSON."""
    try:
        return json.loads(task.target_json)
    except (ValueError, RecursionError) as error:
        raise RowFailure(f"task {task.task_id!r}: target_json is no JSON: {error}", kind="verifier") from error
