"""The report for a terminal, readable at 80 columns. Elsewhere it is the same in plain text, without escapes."""

from __future__ import annotations

import errno
import os
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ptctl.evaluation.report import Change, Outcome, Paired, Report, Success
from ptctl.reports import text
from ptctl.reports.summary import cost_lines, headline, paired_line, process_lines, success_line

PLAIN_WIDTH = 80
STYLES = {
    Outcome.PASS: "bold green",
    Outcome.REPORTED: "bold",
    Outcome.REGRESSED: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.NOTHING_EVALUATED: "bold yellow",
}
CHANGE_STYLES = {Change.WORSENED: "bold red", Change.IMPROVED: "green", Change.THIN: "dim"}
ARROWS = {Change.WORSENED: "↓", Change.IMPROVED: "↑"}
ASCII_ARROWS = {Change.WORSENED: "v", Change.IMPROVED: "^"}


class _ReportConsole(Console):
    """Lets a closed pipe be the command line's matter; rich would exit with status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def report_console(stream: TextIO) -> Console:
    """A console on `stream`: colours on a terminal (unless NO_COLOR is set and not empty), plain text elsewhere.

    rich takes FORCE_COLOR=0 for "on"; whether this is a terminal is asked of the stream alone.
    """
    is_terminal = stream.isatty()
    return _ReportConsole(
        file=stream,
        force_terminal=is_terminal,
        no_color=not is_terminal or bool(os.environ.get("NO_COLOR")),
        width=None if is_terminal else PLAIN_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


def print_table(report: Report, console: Console) -> None:
    """Print the whole report: verdict, warnings, comparison, strata, process and cost."""
    _say(console, headline(report), STYLES[report.outcome])
    _say(console, success_line(report.overall))
    if report.paired is not None:
        style = CHANGE_STYLES.get(report.paired.overall.verdict, "")
        _say(console, f"Against the baseline: {paired_line(report.paired)}", style)
    for reason in () if report.gate is None else report.gate.reasons:
        _say(console, f"gate: {reason}", STYLES[report.outcome])
    for warning in report.warnings:
        _say(console, f"warning: {warning}", "yellow")
    if report.paired is not None and report.paired.strata:
        console.print(_paired_table(report.paired, console))
    console.print(_strata_table(report, console))
    console.print(_side_table(report, console))


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(_shown(line, console), style=style))


def _shown(value: str, console: Console) -> str:
    """`plain`, in characters that the console's encoding has."""
    return text.plain(value).encode(console.encoding, "backslashreplace").decode(console.encoding)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column(columns[0], overflow="fold", ratio=1)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _paired_table(paired: Paired, console: Console) -> Table:
    table = _table("Against the baseline, worst first", "stratum", "tasks", "before", "after", "change", "p adj", "")
    arrows = ARROWS if console.encoding.startswith("utf") else ASCII_ARROWS
    for stratum in paired.strata:
        difference = stratum.difference
        table.add_row(
            _shown(stratum.name, console),
            str(difference.n_tasks),
            text.rate(difference.baseline_rate),
            text.rate(difference.candidate_rate),
            text.change(difference.difference),
            text.p_value(stratum.p_adjusted),
            f"{arrows.get(stratum.verdict, '')} {stratum.verdict.value}".strip(),
            style=CHANGE_STYLES.get(stratum.verdict, ""),
        )
    return table


def _strata_table(report: Report, console: Console) -> Table:
    level = f"{100 * report.confidence:g}% interval"
    table = _table("Success by stratum", "stratum", "tasks", "cover", "rate", level, "reward", "")

    def row(name: str, success: Success, style: str = "") -> None:
        table.add_row(
            _shown(name, console),
            str(success.n_tasks),
            text.percent(success.coverage),
            text.rate(success.rate),
            text.interval(success.ci_low, success.ci_high),
            text.rate(success.mean_reward),
            "thin" if success.thin else "",
            style=style,
        )

    row("overall", report.overall, "bold")
    key = None
    for stratum in report.strata:
        if stratum.key != key:
            table.add_section()
            key = stratum.key
        row(f"{stratum.key}={stratum.value}", stratum.success, "dim" if stratum.success.thin else "")
    return table


def _side_table(report: Report, console: Console) -> Table:
    sides = [report.candidate] if report.baseline is None else [report.candidate, report.baseline]
    table = _table("Process and cost", "", "candidate", *(["baseline"] if len(sides) == 2 else []))
    for section in (
        [process_lines(side.process) for side in sides],
        [cost_lines(side.cost) for side in sides],
    ):
        for name in dict.fromkeys(name for column in section for name in column):
            values = (_shown(column.get(name, "0"), console) for column in section)
            table.add_row(_shown(name, console), *values)
        table.add_section()
    return table
