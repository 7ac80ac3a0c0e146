"""Plug-ins by name, through entry points. ptctl's own plug-ins use the same door as anyone else's.

A package offers an engine with

    [project.entry-points."ptctl.engines"]
    mine = "my_package.engine:MyEngine"
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from ptctl.errors import MissingExtra, UsageError

GROUPS = ("engines", "backends", "environments", "verifiers", "sandboxes", "importers", "converters", "tools")
"""Kinds of plug-ins; the entry-point group of `engines` is `ptctl.engines`."""

EXTRA_OF_MODULE = {
    "torch": "train",
    "transformers": "local",
    "safetensors": "local",
    "megatron": "train",
    "psutil": "train",
    "math_verify": "math",
    "reasoning_gym": "tasks",
}
"""Top-level module → the extra that installs it, for the hint."""


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    # Cached, because a scan of the installed packages takes milliseconds and environments look up their tools each
    # episode.
    if group not in GROUPS:
        raise ValueError(f"unknown plug-in group {group!r}")
    return {point.name: point for point in entry_points(group=f"ptctl.{group}")}


def names(group: str) -> list[str]:
    """Names of the plug-ins of `group`, sorted."""
    return sorted(_points(group))


def did_you_mean(word: str, known: list[str]) -> str:
    """The end of an error hint: the nearest known word, and all of them."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"{guess}known: {', '.join(known) or 'none'}"


def load(group: str, name: str) -> Any:
    """Import and return the class registered as `name` in `group`.

    Raises UsageError for an unknown name and MissingExtra where an optional dependency of the plug-in is absent.
    """
    points = _points(group)
    if name not in points:
        raise UsageError(f"unknown {group[:-1]} {name!r}", hint=did_you_mean(name, sorted(points)))
    try:
        return points[name].load()
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        extra = EXTRA_OF_MODULE.get(missing)
        if extra is None:
            raise
        raise MissingExtra(
            f"{group[:-1]} {name!r} needs {missing}, which is not installed", hint=f"pip install 'ptctl[{extra}]'"
        ) from error


def check(group: str, name: str) -> None:
    """Refuse a plug-in that is unknown or lacks an optional dependency, without importing the dependency.

    A plug-in's module names what it needs in `REQUIRES`, a tuple of top-level modules. Raises UsageError or
    MissingExtra.
    """
    points = _points(group)
    if name not in points:
        raise UsageError(f"unknown {group[:-1]} {name!r}", hint=did_you_mean(name, sorted(points)))
    module = import_module(points[name].module)
    for needed in getattr(module, "REQUIRES", ()):
        if find_spec(needed) is None:
            extra = EXTRA_OF_MODULE.get(needed, "all")
            raise MissingExtra(
                f"{group[:-1]} {name!r} needs {needed}, which is not installed", hint=f"pip install 'ptctl[{extra}]'"
            )
