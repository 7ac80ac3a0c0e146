"""Views of a report: what they show, and what they never let through."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ptctl import reports
from ptctl.errors import UsageError
from ptctl.evaluation.gate import Gate
from ptctl.evaluation.report import Outcome, Report
from ptctl.reports import text
from ptctl.stages.evaluate import EvaluateOptions, run
from ptctl.testing.factories import make_simple_task, make_tool_call, write_batch

HOSTILE = "<script>|`x`\x1b[31m\r\n@you \u202eabc\udce9\x07**"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A gain in three domains, a loss in `web`, an unscored slot, and a gate that finds the loss."""
    directory = tmp_path_factory.mktemp("batches")
    domains = ("code", "math", "search", "web")
    tasks = [make_simple_task(f"{domain}/{n}", domain=domain) for domain in domains for n in range(10)]
    before = {task.task_id: [float(task.domain == "web")] * 2 for task in tasks}
    after = {task.task_id: [float(task.domain != "web")] * 2 for task in tasks}
    after["code/0"] = [1.0, None]
    baseline = write_batch(directory / "a", tasks, before)
    calls = [make_tool_call(level="valid")]
    candidate = write_batch(directory / "b", tasks, after, pool=baseline.tasks, tool_calls=calls)
    options = EvaluateOptions(scores=candidate.scores, baseline=baseline.scores, strata=("domain",), gate=Gate())
    return run(options)


def table(report: Report, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    reports.print_table(report, reports.report_console(stream))
    return stream.getvalue()


def test_table_without_a_terminal_is_plain_and_fits_80_columns(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", "1"):
        monkeypatch.setenv("FORCE_COLOR", value)
        monkeypatch.setenv("COLUMNS", "200")
        shown = table(report)
        assert "\x1b" not in shown
        assert "\r" not in shown
        assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith("REGRESSED (exit 10): 1 stratum got worse\n")
    assert "warning: domain=web got worse: -1.000" in shown
    worst = next(line for line in shown.splitlines() if "worsened" in line)
    assert worst.split() == ["domain=web", "10", "1.000", "0.000", "-1.000", "0.002", "↓", "worsened"]
    assert re.search(r"overall +40 +98\.8% +0\.750 +0\.\d{3}-0\.\d{3} +0\.750", shown)
    assert re.search(r"tool calls executed +0\.0% \(0\)", shown)
    assert re.search(r"tool calls valid +100\.0% \(80\)", shown)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_on_a_terminal_is_red_where_it_got_worse(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = next(line for line in table(report, _Terminal()).splitlines() if "worsened" in line)
    assert "\x1b[1;31m" in line
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in table(report, _Terminal())


def test_table_in_ascii(report: Report) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    reports.print_table(report, reports.report_console(stream))
    stream.seek(0)
    assert "v worsened" in stream.read()


def test_a_closed_pipe_is_raised(report: Report) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        table(report, Closed())


def test_json_has_what_others_read(report: Report) -> None:
    shown = reports.render(report, "json")
    shown.encode("ascii")
    values = json.loads(shown)
    assert values == report.to_json()
    assert (values["schema_version"], values["verdict"], values["exit_code"]) == (1, "REGRESSED", 10)
    assert {"rate", "ci_low", "ci_high", "n_tasks", "n_slots", "n_scored", "coverage"} <= values["overall"].keys()
    assert {"key", "value", "n_tasks", "rate", "ci_low", "ci_high"} <= values["strata"][0].keys()
    assert {"difference", "p_value"} <= values["paired"]["overall"].keys()
    assert values["paired"]["strata"][0]["verdict"] == "worsened"
    assert values["process"]["tool_calls"]["valid"] == {"count": 80, "share": 1.0}
    assert values["cost"]["completion_tokens"] == 160
    assert values["inputs"]["candidate"]["num_scores"] == 80
    assert values["baseline"]["overall"]["rate"] == 0.25


def test_rows(report: Report, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in reports.render(report, "jsonl").splitlines()]
    assert [row["value"] for row in rows] == ["overall", "code", "math", "search", "web"]
    assert (rows[4]["rate"], rows[4]["paired_difference"], rows[4]["paired_verdict"]) == (0.0, -1.0, "worsened")
    as_csv = list(csv.DictReader(io.StringIO(reports.render(report, "csv"))))
    assert [float(row["rate"]) for row in as_csv] == [row["rate"] for row in rows]
    file = tmp_path / "report.parquet"
    file.write_bytes(reports.to_parquet(report))
    assert pq.read_table(file).to_pylist() == rows


def test_rows_without_a_baseline(tmp_path: Path) -> None:
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [None]})
    report = run(EvaluateOptions(scores=batch.scores))
    row = next(csv.DictReader(io.StringIO(reports.render(report, "csv"))))
    assert (row["rate"], row["paired_difference"], row["report_verdict"]) == ("", "", "NOTHING_EVALUATED")
    assert "No success rate: 0 of 0 scored slots passed, 0 of 1 slots scored" in table(report)


def test_verdict_and_exit_code_are_the_same_everywhere(report: Report) -> None:
    codes = {"PASS": 0, "REPORTED": 0, "REGRESSED": 10, "INCONCLUSIVE": 11, "NOTHING_EVALUATED": 12}
    assert {outcome.value for outcome in Outcome} == codes.keys()
    for outcome in Outcome:
        changed = Report(outcome=outcome, confidence=0.95, candidate=report.candidate, strata=report.strata)
        code = codes[outcome.value]
        assert int(changed.exit_code) == code
        values = json.loads(reports.render(changed, "json"))
        assert (values["verdict"], values["exit_code"]) == (outcome.value, code)
        assert table(changed).startswith(f"{outcome.value} (exit {code})\n")
        assert reports.render(changed, "md").startswith(f"## {outcome.value} (exit {code})\n")


def test_names_of_tasks_are_shown_and_never_acted_upon(tmp_path: Path) -> None:
    domain = HOSTILE.replace("\udce9", "")  # a shard cannot hold it
    batch = write_batch(tmp_path, [make_simple_task(domain=domain, risk="````")], {"sum/0": [1.0]})
    report = run(EvaluateOptions(scores=batch.scores, strata=("domain", "risk")))
    for shown in (table(report), reports.render(report, "md"), reports.render(report, "csv")):
        assert not {"\x1b", "\r", "\x07", "\u202e"} & set(shown)
    line = next(line for line in reports.render(report, "md").splitlines() if "script" in line)
    assert line.startswith("| `domain=<script>\\|'x'[31m  @you abc**` | 1/1 thin |")  # a code span: nothing acts in it
    assert "`risk=''''`" in reports.render(report, "md")
    assert json.loads(reports.render(report, "json"))["strata"][0]["value"] == domain


def test_plain_text() -> None:
    assert text.plain(HOSTILE) == "<script>|`x`[31m  @you abc**"
    assert text.plain("a\u2028b\x85c\x9bd") == "a b cd"
    assert text.code_span("") == "` `"


def test_numbers() -> None:
    assert [text.number(value) for value in (None, 0, 3, 1234567, 0.12345, 12.345, 1234.5)] == [
        "-", "0", "3", "1,234,567", "0.123", "12.3", "1,234",
    ]  # fmt: skip
    assert [text.p_value(value) for value in (None, 0.0004, 0.04)] == ["-", "<.001", "0.040"]


def test_unknown_format(report: Report) -> None:
    with pytest.raises(UsageError, match="unknown format 'html'"):
        reports.render(report, "html")
