"""JSON values → committed files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ptctl.errors import CannotCreate, DataError
from ptctl.shards.files import committed_directory, committed_file


def refuse_existing(out: Path) -> None:
    """Raise CannotCreate where `out` exists, before any work is done."""
    if out.exists():
        raise CannotCreate(f"{out} exists already", hint="a committed file is never overwritten")


def as_text(value: Any) -> str:
    """JSON text on one line; what UTF-8 cannot hold is escaped, and NaN is written as Python's writers do."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value)
    return text


def lines_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """JSONL, a row a line."""
    return "".join(f"{as_text(row)}\n" for row in rows).encode("utf-8")


def write_file(out: Path, content: bytes) -> None:
    """Commit one file. Raises CannotCreate where it exists."""
    refuse_existing(out)
    with committed_file(out) as temporary:
        temporary.write_bytes(content)


def write_directory(out: Path, files: Mapping[str, Any]) -> None:
    """Commit a directory: relative name → rows (JSONL) or a document. Raises CannotCreate where it exists."""
    refuse_existing(out)
    with committed_directory(out) as temporary:
        for name, value in files.items():
            path = temporary / safe_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(value, list):
                path.write_bytes(lines_of(cast("Sequence[Mapping[str, Any]]", value)))
            else:
                path.write_text(as_text(value) + "\n", encoding="utf-8")


def safe_name(name: str) -> str:
    """The name, where it stays inside the directory. Raises DataError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise DataError(f"{name!r} is no name inside a directory")
    return name
