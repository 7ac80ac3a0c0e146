"""Reading the JSON columns of a task: strict, with errors that name the column and what is wrong in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, cast

from ptctl.errors import DataError
from ptctl.records import Task
from ptctl.registry import did_you_mean


def decode_object(text: str, what: str) -> dict[str, Any]:
    """Decode a JSON object. Raises DataError beginning with `what` where `text` is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{what} is no JSON object: {text[:80]}")
    return cast("dict[str, Any]", value)


def refuse_unknown_keys(settings: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raise DataError for a key that is not in `known`: a setting that nobody reads is a mistake."""
    for key in settings:
        if key not in known:
            raise DataError(f"{what} has an unknown key {key!r}", hint=did_you_mean(key, sorted(known)))


def environment_settings(task: Task, known: Collection[str]) -> dict[str, Any]:
    """Decode the task's `environment_json`. Raises DataError naming the task for anything but the `known` keys."""
    what = f"task {task.task_id!r}: environment_json"
    settings = decode_object(task.environment_json, what)
    refuse_unknown_keys(settings, known, what)
    return settings
