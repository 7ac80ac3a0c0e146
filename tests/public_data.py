"""Slices of public data sets that lie beside a checkout on the project's machines; they are not part of the project.

Tests that need them skip with a reason elsewhere; what can be tested on rows of our own is tested on those.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PUBLIC_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
REASON = "the slices of public data sets do not lie beside this checkout"
HAS_PUBLIC_DATA = PUBLIC_DATA.is_dir()
needs_public_data = pytest.mark.skipif(not HAS_PUBLIC_DATA, reason=REASON)


def human_eval_rows() -> list[dict[str, Any]]:
    """The 164 rows of openai/human-eval (MIT); none where the data are not there."""
    path = PUBLIC_DATA / "code" / "HumanEval.jsonl.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


@cache
def verifiers_rollouts() -> Path:
    """Results as verifiers writes them (MIT): Wordle (10 rows), tool test (all 15), GSM8K (rows 1, 2, 51 and 52).

    Skips the whole test module where the data are not there.
    """
    source = PUBLIC_DATA / "rollouts" / "verifiers"
    if not source.is_dir():
        pytest.skip(REASON, allow_module_level=True)
    target = Path(tempfile.mkdtemp(prefix="ptctl-public-"))
    for name, rows in (("wordle", range(10)), ("tool_test", range(15)), ("gsm8k", (0, 1, 50, 51))):
        lines = (source / name / "results.jsonl").read_text(encoding="utf-8").split("\n")
        directory = target / f"verifiers_{name}"
        directory.mkdir()
        (directory / "results.jsonl").write_text("".join(lines[row] + "\n" for row in rows), encoding="utf-8")
        (directory / "metadata.json").write_bytes((source / name / "metadata.json").read_bytes())
    return target
