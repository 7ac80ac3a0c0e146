from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ptctl.errors import RowFailure, UsageError
from ptctl.protocols import Verdict
from ptctl.records import Trajectory
from ptctl.testing.factories import make_draw, make_simple_task, make_trajectory
from ptctl.verifiers.exact import ExactVerifier
from ptctl.verifiers.number_text import answer_region, last_boxed, read_answer
from ptctl.verifiers.numeric import NumericVerifier

TASK = make_simple_task()


def trajectory(answer: str | None) -> Trajectory:
    return make_trajectory(make_draw(TASK), final_answer=answer)


def exact(target: Any, answer: str | None, **config: Any) -> Verdict:
    task = make_simple_task(target_json=json.dumps(target))
    return ExactVerifier(config).verify(task, trajectory(answer), None)


def numeric(target: Any, answer: str | None, **config: Any) -> Verdict:
    target_json = target if isinstance(target, bytes) else json.dumps(target)
    if isinstance(target_json, bytes):
        target_json = target_json.decode()
    task = make_simple_task(target_json=target_json)
    return NumericVerifier(config).verify(task, trajectory(answer), None)


# ── exact ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "answer", "config", "reward"),
    [
        ("42", "42", {}, 1.0),
        ("42", " 42\n", {}, 1.0),
        ("42", " 42", {"strip": False}, 0.0),
        ("42", "42.0", {}, 0.0),
        ("Paris", "paris", {}, 0.0),
        ("Straße", "STRASSE", {"ignore_case": True}, 1.0),
        ("4", "14", {}, 0.0),
    ],
)
def test_exact(target: str, answer: str, config: dict[str, Any], reward: float) -> None:
    verdict = exact(target, answer, **config)
    assert (verdict.reward, verdict.passed, verdict.answer_status) == (reward, reward == 1.0, "ok")
    assert verdict.evidence["target"] == target


@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_exact_without_an_answer(answer: str | None) -> None:
    verdict = exact("42", answer)
    assert (verdict.reward, verdict.passed, verdict.answer_status) == (0.0, False, "no_answer")
    assert exact("", answer).reward == 0.0  # silence is no answer, not even to an empty target


def test_exact_refuses_a_target_that_is_no_string() -> None:
    with pytest.raises(RowFailure) as caught:
        exact(42, "42")
    assert caught.value.kind == "verifier"


@pytest.mark.parametrize(
    ("verifier", "config", "message", "hint"),
    [
        (ExactVerifier, {"ignorecase": True}, "no setting 'ignorecase'", "did you mean 'ignore_case'?"),
        (ExactVerifier, {"strip": 1}, "strip must be true or false, not 1", None),
        (NumericVerifier, {"tolerance": 0.1}, "no setting 'tolerance'", "did you mean 'tolerance_"),
        (NumericVerifier, {"percent": "loose"}, "percent must be strict or lenient, not 'loose'", None),
        (NumericVerifier, {"tolerance_abs": -1}, "tolerance_abs must be a finite number", None),
        (NumericVerifier, {"tolerance_rel": float("nan")}, "tolerance_rel must be a finite number", None),
        (NumericVerifier, {"tolerance_rel": True}, "tolerance_rel must be a finite number", None),
        (NumericVerifier, {"tolerance_abs": "0.1"}, "tolerance_abs must be a finite number", None),
    ],
)
def test_settings_are_strict(verifier: Any, config: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        verifier(config)
    assert hint is None or hint in (caught.value.hint or "")


# ── numeric ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "answer", "reward", "status"),
    [
        (-5, "The answer is -5", 1, "ok"),
        (5, "The answer is -5", 0, "ok"),
        (-5, "The answer is \u22125", 1, "ok"),
        (1234, "1,234", 1, "ok"),
        (0.5, "+0.50", 1, "ok"),
        (0.5, ".5", 1, "ok"),
        ("1/2", ".5", 1, "ok"),
        (".5", "1/2", 1, "ok"),
        (100, "1e2", 1, "ok"),
        (1, "1e2", 0, "ok"),
        (13, "12 or 13", 0, "ambiguous"),
        (12, "12 or 13", 0, "ambiguous"),
        (29, "So the total is $29.00.", 1, "ok"),
        (29, "\u2026is $29.00.", 1, "ok"),
        (70000, "70,000.", 1, "ok"),
        (5, "", 0, "no_answer"),
        (5, None, 0, "no_answer"),
        (20, "twenty", 0, "no_answer"),
        # boxes
        (1, r"\boxed{1} and again \boxed{1}", 1, "ok"),
        (4, r"\boxed{3} wait \boxed{4}", 1, "ok"),
        (3, r"\boxed{3} wait \boxed{4}", 0, "ok"),
        (7, r"7, so \boxed{}", 0, "no_answer"),
        (42, r"\[ \boxed{42} \]", 1, "ok"),
        ("1/2", r"\boxed{\frac{1}{2}}", 1, "ok"),
        (-0.75, r"\boxed{-\dfrac{3}{4}}", 1, "ok"),
        (5, r"\boxed{5\text{ cm}}", 1, "ok"),
        (1234, r"\boxed{1{,}234}", 1, "ok"),
        (4, r"\boxed{3, 4}", 0, "ambiguous"),
        (6, r"\boxed{6", 1, "ok"),
        # several numbers, and where the answer stands
        (7, "7 (seven), that is 7.0", 1, "ok"),
        (7, "3 and 4 make 7.\nThe answer is 7. I checked 2 cases.", 1, "ok"),
        (8, "First I had 7.\n\n8\n", 1, "ok"),
        (1024, "2 to the 10\n#### 1,024", 1, "ok"),
        (7, "#### Step 2: add\nIt is 7.", 1, "ok"),
        (42, "**Answer:** **42**", 1, "ok"),
        (13, "The answer is 12.\nThe answer is 13.", 1, "ok"),
        (12, "The answer is 12.\nThe answer is 13.", 0, "ok"),
        # what is no single number
        (9, "9**9**9", 0, "ambiguous"),
        (2, "2\\pi", 0, "ambiguous"),
        (2, r"\boxed{2\sqrt{3}}", 0, "ambiguous"),
        (10, "10-5", 0, "ambiguous"),
        (10, "10x", 0, "ambiguous"),
        (10, "10k", 0, "ambiguous"),
        (5, "x < 5", 0, "ambiguous"),
        (5, "5 ± 1", 0, "ambiguous"),
        (1, "1/0", 0, "ambiguous"),
        (3, "3/4/2020", 0, "ambiguous"),
        (12, "12:30", 0, "ambiguous"),
        (1, "1,23", 0, "ambiguous"),
        (1, "1_000", 0, "ambiguous"),
        (0, "0x1F", 0, "ambiguous"),
        (1, "(1,2)", 0, "ambiguous"),
        (1, "1e99999999999", 0, "ambiguous"),
        (5, "H2O needs 5", 1, "ok"),
        (5, "5!", 1, "ok"),
        (3_000_000, "about 3 million people", 1, "ok"),
        (1200, r"1.2 \times 10^{3}", 1, "ok"),
        (-1234.5, "\u2212$1,234.50", 1, "ok"),
        (0, "-0", 1, "ok"),
    ],
)
def test_numeric(target: Any, answer: str | None, reward: int, status: str) -> None:
    verdict = numeric(target, answer)
    assert (verdict.reward, verdict.passed, verdict.answer_status) == (reward, reward == 1, status)


@pytest.mark.parametrize(
    ("target", "answer", "strict", "lenient"),
    [
        (50, "50 %", 0, 1),
        (50, r"\boxed{50\%}", 0, 1),
        (0.5, "50%", 1, 1),
        ("50%", "50 percent", 1, 1),
        ("50%", "50", 0, 1),
        ("50%", "0.5", 1, 1),
        (50, "50", 1, 1),
        (5, "50%", 0, 0),
    ],
)
def test_percent_policies(target: Any, answer: str, strict: int, lenient: int) -> None:
    assert numeric(target, answer).reward == strict
    assert numeric(target, answer, percent="lenient").reward == lenient
    assert numeric(target, answer).evidence["percent"] == "strict"
    assert numeric(target, answer, percent="lenient").evidence["percent"] == "lenient"


@pytest.mark.parametrize(
    ("target", "answer", "config", "reward"),
    [
        (0.3, "0.30000000000000004", {}, 0),  # exact: no float rounding
        (b"0.1", "1/10", {}, 1),
        (b"12345678901234567890.1", "12345678901234567890.1", {}, 1),
        (b"12345678901234567890.1", "12345678901234567890.2", {}, 0),
        (3.14159, "3.14", {"tolerance_abs": 0.01}, 1),
        (3.14159, "3.13", {"tolerance_abs": 0.01}, 0),
        (10, "10.1", {"tolerance_abs": 0.1}, 1),  # the bound itself, exactly
        (200, "202", {"tolerance_rel": 0.01}, 1),
        (200, "202.0001", {"tolerance_rel": 0.01}, 0),
        (-200, "-198", {"tolerance_rel": 0.01}, 1),
    ],
)
def test_tolerances(target: Any, answer: str, config: dict[str, float], reward: int) -> None:
    assert numeric(target, answer, **config).reward == reward


@pytest.mark.parametrize("target", ["none", "12 or 13", None, [1], True, b"NaN", b"{"])
def test_numeric_refuses_a_target_that_is_no_number(target: Any) -> None:
    with pytest.raises(RowFailure) as caught:
        numeric(target, "1")
    assert caught.value.kind == "verifier"


def test_code_in_the_answer_is_not_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert numeric(0, "__import__('os').system('touch x')").reward == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "answer",
    [
        "9" * 200_000,
        "9," * 100_000,
        "-" * 100_000 + "5",
        "\\frac{" * 50_000 + "1}{2}",
        "answer is" * 20_000,
        "\\boxed{" * 50_000,
        " " * 200_000 + "5",
        "1e" * 100_000,
        "1/" * 100_000 + "1",
        "####1" * 50_000,
    ],
)
def test_long_texts_are_read_in_bounded_time(answer: str) -> None:
    begin = time.process_time()
    numeric(1, answer)
    assert time.process_time() - begin < 2.0  # milliseconds; a quadratic pattern takes minutes


def test_where_the_answer_stands() -> None:
    assert last_boxed(r"a \boxed{x^{2}} b") == "x^{2}"
    assert last_boxed("none") is None
    assert answer_region("x\nThe answer: 5. Yes.") == "5"
    assert answer_region("") == ""
    assert read_answer("#### 1,024\nand 3 more").number is not None
