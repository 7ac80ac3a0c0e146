"""`--print-config`: every resolved value with its origin, as TOML that parses back to the same recipe."""

from __future__ import annotations

import json
from typing import Any

from ptctl.recipe.load import Recipe


def toml_value(value: Any) -> str:
    """One value as TOML. JSON strings are TOML basic strings once DEL is escaped too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(part) for part in value) + "]"  # pyright: ignore[reportUnknownVariableType]
    raise TypeError(f"no TOML for {type(value).__name__}")


def print_config(recipe: Recipe) -> str:
    """The resolved recipe. A key without a value is a comment, since TOML has no null."""
    out: list[str] = []
    for section, values in recipe.values.model_dump().items():
        if section == "phases":
            for index, phase in enumerate(values):
                out += ["[[phases]]", *_table(recipe, f"phases.{index}", phase, "phases"), ""]
        else:
            out += [f"[{section}]", *_table(recipe, section, values, section), ""]
    return "\n".join(out)


def _table(recipe: Recipe, dotted: str, values: dict[str, Any], header: str) -> list[str]:
    lines: list[str] = []
    tables: list[str] = []
    for key, value in values.items():
        origin = recipe.origins.get(f"{dotted}.{key}", "default")
        if isinstance(value, dict):
            if value:
                tables += [f"[{header}.{key}]", *_table(recipe, f"{dotted}.{key}", value, f"{header}.{key}")]  # pyright: ignore[reportUnknownArgumentType]
        elif value is None:
            lines.append(f"# {key} is not set")
        else:
            lines.append(f"{key} = {toml_value(value)}  # {origin}")
    return lines + tables
