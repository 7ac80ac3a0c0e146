"""JSONL rows with `prompt` and `answer` (or `question` and `answer`): single-turn tasks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

from ptctl.errors import DataError
from ptctl.records import Message, Task, canonical_json, make_task

PROMPT_KEYS = ("prompt", "question")


class JsonlImporter:
    """One task a line; the keys id, domain, family, split, verifier and difficulty are taken where given."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl",)

    def __init__(self, seed: int) -> None:
        self.seed = seed  # rows are fixed; importers share one constructor

    def tasks(self, source: Path) -> Iterator[Task]:
        """Tasks of `source`. Raises DataError naming file, line and field."""
        # Not str.splitlines: U+2028 and its kind are no ends of a record.
        try:
            text = source.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{source} is not UTF-8: {error.reason} at byte {error.start}") from error
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield self._task(source, number, line)

    def _task(self, source: Path, number: int, line: str) -> Task:
        where = f"{source}:{number}"
        try:
            row: Any = json.loads(line, strict=False)  # raw control characters in strings are common and harmless
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: not a JSON object")
        values = cast("dict[str, Any]", row)
        prompt = next((values[key] for key in PROMPT_KEYS if key in values), None)
        if not isinstance(prompt, str) or "answer" not in values:
            raise DataError(f"{where}: needs `prompt` (or `question`) and `answer`")
        key = str(values.get("id") or hashlib.sha256(prompt.encode()).hexdigest()[:16])
        family = str(values.get("family", source.stem))
        return make_task(
            task_id=f"{family}/{key}",
            domain=str(values.get("domain", family)),
            family=family,
            split=str(values.get("split", "train")),
            prompt=(Message(role="user", content=prompt),),
            verifier=str(values.get("verifier", "exact")),
            target_json=canonical_json(str(values["answer"])),
            difficulty=_number(values.get("difficulty"), f"{where}: difficulty"),
            source=str(source.name),
            original_json=canonical_json(values),
        )


def _number(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{what} is {value!r}, not a number")
    return float(value)
