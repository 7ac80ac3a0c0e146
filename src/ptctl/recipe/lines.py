"""Where a key stands in a TOML text: tomllib keeps no positions, and an error without a line is half an error."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TABLE = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.\-\s]+?)\s*\]\]?")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\-]+)\s*=")

KeyPath = tuple[str | int, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line (from 1) of each table and key, by path; elements of an array of tables are numbered.

    Covers what recipes use: tables, arrays of tables, bare and dotted keys. Inline tables report the line of their key.
    """
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if table := _TABLE.match(line):
            path: KeyPath = ()
            parts = [part.strip() for part in table[2].split(".")]
            for position, part in enumerate(parts):
                path = (*path, part)
                is_new = table[1] == "[[" and position == len(parts) - 1
                if is_new:
                    counts[path] = counts.get(path, -1) + 1
                if path in counts:
                    lines.setdefault(path, number)
                    path = (*path, counts[path])
            prefix = path
            lines.setdefault(prefix, number)
        elif key := _KEY.match(line):
            lines.setdefault((*prefix, *key[1].split(".")), number)
    return lines


def line_of(lines: dict[KeyPath, int], path: Sequence[str | int]) -> int | None:
    """Line of the key, or of the nearest enclosing one that is written."""
    for end in range(len(path), 0, -1):
        if (number := lines.get(tuple(path[:end]))) is not None:
            return number
    return None
