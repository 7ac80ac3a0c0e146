"""Candidate against baseline, and the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptctl.errors import DigestMismatch, InputNotFound, UsageError
from ptctl.evaluation.comparison import compare, pair, success_of
from ptctl.evaluation.frames import TaskCounts, Tasks
from ptctl.evaluation.gate import Evidence, Gate, judge, load_gate
from ptctl.evaluation.report import Change, Outcome, Report
from ptctl.evaluation.strata import cut
from ptctl.records import Sampling
from ptctl.stages.evaluate import EvaluateOptions, run
from ptctl.testing.factories import Batch, make_simple_task, write_batch

DOMAINS = ("code", "math", "search", "web")


def sides(
    directory: Path, baseline: Mapping[str, Sequence[float | None]], candidate: Mapping[str, Sequence[float | None]],
    **candidate_columns: Any,
) -> tuple[Batch, Batch]:  # fmt: skip
    """Both batches over one pool. The domain of a task is what stands before the slash."""
    names = sorted({*baseline, *candidate})
    tasks = [make_simple_task(name, domain=name.split("/")[0]) for name in names]
    before = write_batch(directory / "baseline", tasks, baseline)
    after = write_batch(directory / "candidate", tasks, candidate, pool=before.tasks, **candidate_columns)
    return after, before


def evaluate(batches: tuple[Batch, Batch], gate: Gate | None = None, strata: Sequence[str] = ("domain",)) -> Report:
    candidate, baseline = batches
    return run(EvaluateOptions(scores=candidate.scores, baseline=baseline.scores, gate=gate, strata=strata))


def same(value: float, num_tasks: int, domains: Sequence[str] = ("math",), k: int = 1) -> dict[str, list[float | None]]:
    return {f"{domain}/{n:03d}": [value] * k for domain in domains for n in range(num_tasks)}


def test_a_gain_overall_does_not_hide_a_stratum_that_got_worse(tmp_path: Path) -> None:
    before = same(0.0, 10, ("code", "math", "search")) | same(1.0, 10, ("web",))
    after = same(1.0, 10, ("code", "math", "search")) | same(0.0, 10, ("web",))
    report = evaluate(sides(tmp_path, before, after), Gate())
    paired = report.paired
    assert paired is not None
    assert (paired.overall.difference.difference, paired.overall.verdict) == (0.5, Change.IMPROVED)
    assert (paired.overall.difference.improved, paired.overall.difference.worsened) == (30, 10)
    worst = paired.strata[0]
    assert (worst.name, worst.difference.difference, worst.verdict) == ("domain=web", -1.0, Change.WORSENED)
    assert worst.difference.p_value == 2 / 2**10  # every sign equal: two of 2^10 patterns
    assert worst.p_adjusted == 2 / 2**10  # all four strata have it
    assert [stratum.verdict for stratum in paired.strata[1:]] == [Change.IMPROVED] * 3
    assert report.warnings[0].startswith("domain=web got worse: -1.000")
    assert report.outcome == Outcome.REGRESSED
    assert report.gate is not None
    assert report.gate.reasons == ("domain=web fell by 1.000 (p 0.0049 after Holm, 10 tasks)",)  # 5 · 2^-10
    assert report.to_json()["paired"]["worsened"] == ["domain=web"]


def test_thin_strata_are_listed_and_not_tested(tmp_path: Path) -> None:
    before = same(1.0, 7, ("math",)) | same(1.0, 8, ("web",))
    report = evaluate(sides(tmp_path, before, {name: [0.0] for name in before}), Gate())
    assert report.paired is not None
    by_name = {stratum.name: stratum for stratum in report.paired.strata}
    assert (by_name["domain=math"].difference.p_value, by_name["domain=math"].verdict) == (None, Change.THIN)
    assert by_name["domain=web"].difference.p_value == 2 / 2**8
    assert report.gate is not None
    assert [test.p_adjusted for test in report.gate.tests] == [2 / 2**15, None, 1 / 2**8]  # a family of two


def test_a_candidate_without_the_hardest_tasks_is_inconclusive(tmp_path: Path) -> None:
    before = same(1.0, 80, ("math",)) | same(0.0, 20, ("web",))
    report = evaluate(sides(tmp_path, before, same(1.0, 80, ("math",))), Gate())
    assert (report.outcome, int(report.exit_code)) == (Outcome.INCONCLUSIVE, 11)
    assert report.paired is not None
    assert report.paired.only_baseline.num_tasks == 20
    assert report.paired.only_baseline.first == tuple(f"web/{n:03d}" for n in range(20))
    assert report.gate is not None
    assert report.gate.reasons[0].startswith("20 tasks of the baseline were not drawn: web/000, web/001,")
    assert report.overall.rate == 1.0  # which is why it must not pass


@pytest.mark.parametrize(("margin", "outcome"), [(0.10, Outcome.PASS), (0.05, Outcome.REGRESSED)])
def test_the_allowed_drop_is_compared_exactly(tmp_path: Path, margin: float, outcome: Outcome) -> None:
    before = same(1.0, 10)
    # At this level every drop is significant, so that the comparison with the margin decides alone.
    report = evaluate(sides(tmp_path, before, before | {"math/000": [0.0]}), Gate(margin=margin, alpha=0.9999), ())
    assert report.paired is not None
    assert report.paired.overall.difference.difference == pytest.approx(-0.1)
    assert report.outcome == outcome


@pytest.mark.parametrize(("num_scored", "outcome"), [(19, Outcome.PASS), (18, Outcome.INCONCLUSIVE)])
def test_coverage_is_compared_exactly(tmp_path: Path, num_scored: int, outcome: Outcome) -> None:
    rewards = {f"math/{n:03d}": [1.0 if n < num_scored else None] for n in range(20)}
    assert evaluate(sides(tmp_path, same(1.0, 20), rewards), Gate(min_coverage=0.95), ()).outcome == outcome


def test_too_few_pairs_are_inconclusive(tmp_path: Path) -> None:
    report = evaluate(sides(tmp_path, same(1.0, 4), same(0.0, 4)), Gate())
    assert report.outcome == Outcome.INCONCLUSIVE
    assert report.gate is not None
    assert "4 pairs of tasks cannot show a drop" in report.gate.reasons[0]


def test_other_settings_are_no_comparison(tmp_path: Path) -> None:
    batches = sides(tmp_path, same(1.0, 8), same(1.0, 8), sampling=Sampling(temperature=0.5), environment_digest="new")
    report = evaluate(batches)
    assert "the two sides differ: sampling settings (temperature)" in report.warnings
    assert "the two sides differ: the environment of 8 tasks, such as math/000" in report.warnings
    with pytest.raises(DigestMismatch, match="sampling settings"):
        evaluate(batches, Gate())
    assert evaluate(batches, Gate(allow_differences=True)).outcome == Outcome.PASS


@pytest.mark.parametrize(
    ("min_rate", "outcome"),
    [(0.4, Outcome.PASS), (0.6, Outcome.INCONCLUSIVE), (0.95, Outcome.REGRESSED)],
)
def test_min_rate_needs_no_baseline(tmp_path: Path, min_rate: float, outcome: Outcome) -> None:
    tasks = [make_simple_task(f"sum/{n}") for n in range(10)]
    batch = write_batch(tmp_path, tasks, {t.task_id: [float(n < 8)] for n, t in enumerate(tasks)})
    options = EvaluateOptions(scores=batch.scores, gate=Gate(min_rate=min_rate))  # 8/10: [.490, .943]
    assert run(options).outcome == outcome
    with pytest.raises(UsageError, match="nothing to compare with"):
        run(replace(options, gate=Gate()))


def test_what_the_candidate_did_is_not_gated(tmp_path: Path) -> None:
    batches = sides(tmp_path, same(1.0, 8), same(1.0, 8))
    with pytest.raises(UsageError, match="'num_tool_calls' is what the candidate did"):
        evaluate(batches, Gate(strata=("num_tool_calls",)))
    report = evaluate(batches, Gate(), ("num_tool_calls", "domain"))
    assert report.gate is not None
    assert {test.key for test in report.gate.tests} == {"overall", "domain"}


def test_the_strata_of_the_gate_are_shown_too(tmp_path: Path) -> None:
    report = evaluate(sides(tmp_path, same(1.0, 8), same(1.0, 8)), Gate(strata=("family",)))
    assert {stratum.key for stratum in report.strata} == {"domain", "family"}
    assert report.gate is not None
    assert {test.key for test in report.gate.tests} == {"overall", "family"}


def test_gate_file(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('# CI\nmargin = 0\nmin_rate = 0.5\nstrata = ["domain", "strata.x"]\n')
    assert load_gate(file) == Gate(margin=0.0, min_rate=0.5, strata=("domain", "strata.x"))
    file.write_text('margn = 0.1\nalpha = 0\nstrata = ["num_tool_calls"]\nallow_differences = 1\n')
    with pytest.raises(UsageError) as caught:
        load_gate(file)
    for problem in (
        "gate.toml:1: unknown key 'margn', did you mean 'margin'?",
        "gate.toml:2: alpha must be a number between 0 and 1, not 0",
        "gate.toml:3: 'num_tool_calls' is what the candidate did",
        "gate.toml:4: allow_differences must be true or false",
    ):
        assert problem in str(caught.value)
    file.write_text("margin = ")
    with pytest.raises(UsageError, match="cannot read the gate"):
        load_gate(file)
    with pytest.raises(InputNotFound):
        load_gate(tmp_path / "none.toml")


# ── Simulation: four strata, the verdict of the whole family ─────────────────────────────────────────────────────────


def verdict(generator: np.random.Generator, num_tasks: int, k: int, drop: float) -> Outcome:
    """Tasks of Beta(.5, .5) success in four strata; the candidate's mean is lower by `drop` in the first."""
    n = 4 * num_tasks
    rate = generator.beta(0.5, 0.5, n)
    shifted = np.where(np.arange(n) < num_tasks, rate * (1.0 - 2.0 * drop), rate)  # the mean is 1/2
    before, after = (_tasks(generator.binomial(k, p), k) for p in (rate, shifted))
    pairs = pair(after, before)
    partition = cut("domain", after.facts["domain"])
    members = {("domain", value): cell for value, cell in partition.members(after.facts["domain"]).items()}
    successes = [success_of(side.counts, 0.95) for side in (after, before)]
    evidence = Evidence(candidate=successes[0], baseline=successes[1], pairs=pairs, cells=members)
    return judge(Gate(), evidence)[0]


def _tasks(successes: np.ndarray[Any, np.dtype[np.int64]], k: int) -> Tasks:
    n = len(successes)
    slots = np.full(n, k, dtype=np.int64)
    counts = TaskCounts(
        n_slots=slots, n_scored=slots, n_success=successes, n_rewards=slots, reward_sum=successes.astype(np.float64)
    )
    names = tuple(f"t{i:04d}" for i in range(n))
    facts = {"domain": [DOMAINS[4 * i // n] for i in range(n)]}
    return Tasks(task_ids=names, task_digests=names, environments=names, counts=counts, facts=facts)


def test_no_change_seldom_fails() -> None:
    generator = np.random.default_rng(1)
    failures = sum(verdict(generator, 20, 4, 0.0) == Outcome.REGRESSED for _ in range(500))
    assert failures <= 0.06 * 500


def test_a_real_drop_in_one_stratum_is_found() -> None:
    generator = np.random.default_rng(2)
    found = sum(verdict(generator, 50, 4, 0.20) == Outcome.REGRESSED for _ in range(100))
    assert found >= 90


def test_comparison_without_pairs_says_nothing() -> None:
    empty = _tasks(np.empty(0, dtype=np.int64), 1)
    paired = compare(pair(empty, empty), {}, 0.95)
    assert (paired.overall.difference.difference, paired.overall.difference.p_value) == (None, None)
    assert paired.overall.verdict == Change.THIN
