"""What the loop needs to know of a committed report."""

from __future__ import annotations

import json
from pathlib import Path


def report_version(report: Path) -> int | None:
    """The newest policy version that `report/eval.json` judged, None where there is no report."""
    try:
        text = (report / "eval.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    versions = json.loads(text)["inputs"]["candidate"]["policy_versions"]
    return max(versions, default=None)
