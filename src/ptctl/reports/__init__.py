"""Views of an evaluation report. Each renders what `eval.json` holds and computes nothing of its own.

rows       flat rows: csv, jsonl, parquet
markdown   for a pull request
table      for a terminal
tabular    rows of any kind in the formats of every reading command, cell by cell in `cells`
text       text of tasks and policies made harmless, numbers made short
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ptctl.errors import UsageError
from ptctl.evaluation.report import Report
from ptctl.reports.markdown import to_markdown
from ptctl.reports.rows import to_csv, to_jsonl, to_parquet
from ptctl.reports.table import print_table, report_console

TABLE = "table"
PARQUET = "parquet"


def to_json(report: Report) -> str:
    """`eval.json`. ASCII only, so that it parses whatever the locale does to it on the way."""
    return json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n"


TEXT_FORMATS: dict[str, Callable[[Report], str]] = {
    "json": to_json,
    "jsonl": to_jsonl,
    "csv": to_csv,
    "md": to_markdown,
}
FORMATS = (TABLE, *TEXT_FORMATS, PARQUET)
"""What `--format` takes: the table goes through a console, Parquet is bytes, the rest is text."""


def render(report: Report, format_name: str) -> str:
    """The report as text in one of `TEXT_FORMATS`. Raises UsageError for another format."""
    if format_name not in TEXT_FORMATS:
        raise UsageError(f"unknown format {format_name!r}", hint=f"known: {', '.join(FORMATS)}")
    return TEXT_FORMATS[format_name](report)


__all__ = [
    "FORMATS",
    "PARQUET",
    "TABLE",
    "TEXT_FORMATS",
    "print_table",
    "render",
    "report_console",
    "to_csv",
    "to_json",
    "to_jsonl",
    "to_markdown",
    "to_parquet",
]
