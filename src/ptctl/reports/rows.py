"""The report as flat rows: overall, strata, and the comparison with the baseline. For csv, jsonl and Parquet."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ptctl.evaluation.report import OVERALL, Difference, Report, Success
from ptctl.reports.text import plain

COLUMNS: dict[str, str] = {
    "key": "string",
    "value": "string",
    "n_tasks": "int64",
    "n_scored_tasks": "int64",
    "n_slots": "int64",
    "n_scored": "int64",
    "n_success": "int64",
    "coverage": "double",
    "rate": "double",
    "ci_low": "double",
    "ci_high": "double",
    "thin": "bool",
    "mean_reward": "double",
    "paired_n_tasks": "int64",
    "paired_candidate_rate": "double",
    "paired_baseline_rate": "double",
    "paired_difference": "double",
    "paired_se": "double",
    "paired_ci_low": "double",
    "paired_ci_high": "double",
    "paired_p_value": "double",
    "paired_p_adjusted": "double",
    "paired_verdict": "string",
    "report_verdict": "string",
}
"""Column → Arrow type. What is not known, and what there is none of without a baseline, is empty or null."""


def flat_rows(report: Report) -> list[dict[str, Any]]:
    """A row for overall, then one for each stratum, each with every column."""
    rows = [_success(OVERALL, OVERALL, report.overall)]
    rows += [_success(stratum.key, stratum.value, stratum.success) for stratum in report.strata]
    paired: dict[tuple[str, str], dict[str, Any]] = {}
    if report.paired is not None:
        overall = report.paired.overall
        p_value = overall.difference.p_value
        paired[OVERALL, OVERALL] = _difference(overall.difference, p_value, overall.verdict.value)
        for stratum in report.paired.strata:
            row = _difference(stratum.difference, stratum.p_adjusted, stratum.verdict.value)
            paired[stratum.key, stratum.value] = row
    nothing = dict.fromkeys(COLUMNS)
    return [
        nothing | row | paired.get((row["key"], row["value"]), {}) | {"report_verdict": report.outcome.value}
        for row in rows
    ]


def _success(key: str, value: str, success: Success) -> dict[str, Any]:
    return {
        "key": key,
        "value": value,
        "n_tasks": success.n_tasks,
        "n_scored_tasks": success.n_scored_tasks,
        "n_slots": success.n_slots,
        "n_scored": success.n_scored,
        "n_success": success.n_success,
        "coverage": success.coverage,
        "rate": success.rate,
        "ci_low": success.ci_low,
        "ci_high": success.ci_high,
        "thin": success.thin,
        "mean_reward": success.mean_reward,
    }


def _difference(difference: Difference, p_adjusted: float | None, verdict: str) -> dict[str, Any]:
    return {
        "paired_n_tasks": difference.n_tasks,
        "paired_candidate_rate": difference.candidate_rate,
        "paired_baseline_rate": difference.baseline_rate,
        "paired_difference": difference.difference,
        "paired_se": difference.se,
        "paired_ci_low": difference.ci_low,
        "paired_ci_high": difference.ci_high,
        "paired_p_value": difference.p_value,
        "paired_p_adjusted": p_adjusted,
        "paired_verdict": verdict,
    }


def to_csv(report: Report) -> str:
    """Comma-separated, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for row in flat_rows(report):
        writer.writerow({name: plain(value) if isinstance(value, str) else value for name, value in row.items()})
    return text.getvalue()


def to_jsonl(report: Report) -> str:
    """One object a line."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in flat_rows(report))


def to_parquet(report: Report) -> bytes:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(alias)) for name, alias in COLUMNS.items()])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(flat_rows(report), schema=schema), buffer)
    return buffer.getvalue()
