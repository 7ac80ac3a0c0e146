"""The report as Markdown, for a pull request. Names from tasks stand in code spans, where nothing acts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptctl.evaluation.report import Change, Cost, GateResult, Paired, Process, Report, Success
from ptctl.reports import text
from ptctl.reports.summary import cost_lines, headline, paired_line, process_lines, success_line

MARKS = {Change.WORSENED: "**worsened ↓**", Change.IMPROVED: "improved ↑"}


def to_markdown(report: Report) -> str:
    """The whole report."""
    blocks = [f"## {headline(report)}", success_line(report.overall)]
    if report.paired is not None:
        blocks += [f"Against the baseline: {paired_line(report.paired)}"]
    if report.warnings:
        blocks += ["````text\n" + "\n".join(f"* {text.plain(line)}" for line in report.warnings) + "\n````"]
    if report.gate is not None:
        blocks += _gate(report.gate)
    if report.paired is not None:
        blocks += _paired(report.paired)
    blocks += _strata(report)
    baseline = report.baseline
    blocks += _columns("Process", report.candidate.process, None if baseline is None else baseline.process)
    blocks += _columns("Cost", report.candidate.cost, None if baseline is None else baseline.cost)
    return "\n\n".join(blocks) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _strata(report: Report) -> list[str]:
    def row(name: str, success: Success) -> tuple[str, ...]:
        return (
            name,
            f"{success.n_scored_tasks}/{success.n_tasks}" + (" thin" if success.thin else ""),
            text.percent(success.coverage),
            text.rate(success.rate),
            text.interval(success.ci_low, success.ci_high),
            text.rate(success.mean_reward),
        )

    level = f"{100 * report.confidence:g}% interval"
    header = ("stratum", "scored tasks", "coverage", "rate", level, "mean reward")
    rows = [row("overall", report.overall)]
    rows += [row(text.code_span(f"{part.key}={part.value}"), part.success) for part in report.strata]
    return ["### Success by stratum", _table(header, rows)]


def _paired(paired: Paired) -> list[str]:
    header = ("stratum", "tasks", "baseline", "candidate", "difference", "interval", "p (adjusted)", "verdict")
    rows = [
        (
            text.code_span(part.name),
            str(part.difference.n_tasks),
            text.rate(part.difference.baseline_rate),
            text.rate(part.difference.candidate_rate),
            text.change(part.difference.difference),
            text.signed_interval(part.difference.ci_low, part.difference.ci_high),
            text.p_value(part.p_adjusted),
            MARKS.get(part.verdict, part.verdict.value),
        )
        for part in paired.strata
    ]
    return ["### Against the baseline, worst first", _table(header, rows)] if rows else []


def _gate(gate: GateResult) -> list[str]:
    lines = [f"* {text.plain(reason)}" for reason in gate.reasons] or ["* every condition of the gate holds"]
    return ["### Gate", "````text\n" + "\n".join(lines) + "\n````"]


def _columns(title: str, candidate: Process | Cost, baseline: Process | Cost | None) -> list[str]:
    sides = [candidate] if baseline is None else [candidate, baseline]
    columns = [process_lines(side) if isinstance(side, Process) else cost_lines(side) for side in sides]
    names = list(dict.fromkeys(name for column in columns for name in column))
    header = (title.lower(), "candidate") if baseline is None else (title.lower(), "candidate", "baseline")
    rows = [(text.code_span(name), *(column.get(name, "0") for column in columns)) for name in names]
    return [f"### {title}", _table(header, rows)]
