"""`numeric`: the final answer holds one number, and it equals the target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from ptctl.errors import RowFailure
from ptctl.protocols import Sandbox, Verdict
from ptctl.records import Task, Trajectory
from ptctl.verifiers.number_text import Number, Reading, read_answer, read_region
from ptctl.verifiers.settings import Settings

MAX_EVIDENCE_CHARS = 200


class NumericVerifier:
    """Reward 1 where the answer's number equals the target (a JSON number, or a string with one number); else 0.

    How the number is found and what makes an answer ambiguous stands in `number_text`. Values are compared exactly, as
    fractions: 0.1 + 0.2 written as 0.3 equals 3/10.

    Settings
    - `percent`: `strict` (default) takes 50 % as 0.5, so it equals neither 50 nor "50"; `lenient` accepts either
      reading. The policy stands in the evidence.
    - `tolerance_abs`, `tolerance_rel` (0): |answer − target| ≤ max(tolerance_abs, tolerance_rel · |target|) passes.
    """

    name: ClassVar[str] = "numeric"
    version: ClassVar[str] = "1"
    needs_sandbox: ClassVar[bool] = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that are not known or out of range."""
        settings = Settings(self.name, config, ("percent", "tolerance_abs", "tolerance_rel"))
        self._percent = settings.choice("percent", "strict", ("strict", "lenient"))
        # Through the decimal text of the float: 0.1 means a tenth.
        self._tolerance_abs = Fraction(str(settings.number("tolerance_abs", 0.0)))
        self._tolerance_rel = Fraction(str(settings.number("tolerance_rel", 0.0)))

    def verify(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Verdict:
        """Compare. Raises RowFailure(kind="verifier") where the target is no number."""
        target = read_target(task)
        answer = trajectory.final_answer or ""
        reading = read_answer(answer)
        passed = reading.number is not None and self._equal(reading.number, target)
        return Verdict(
            reward=float(passed),
            passed=passed,
            answer=reading.number.text if reading.number is not None else None,
            answer_status=reading.status,
            evidence=self._evidence(target, reading),
        )

    def _equal(self, answer: Number, target: Number) -> bool:
        return any(self._close(a, t) for a in self._values(answer) for t in self._values(target))

    def _values(self, number: Number) -> tuple[Fraction, ...]:
        """What the number may mean under the percent policy."""
        if not number.percent:
            return (number.value,)
        return (number.value / 100,) if self._percent == "strict" else (number.value / 100, number.value)

    def _close(self, answer: Fraction, target: Fraction) -> bool:
        return abs(answer - target) <= max(self._tolerance_abs, self._tolerance_rel * abs(target))

    def _evidence(self, target: Number, reading: Reading) -> dict[str, Any]:
        return {
            "target": target.text[:MAX_EVIDENCE_CHARS],
            "read": reading.region[:MAX_EVIDENCE_CHARS],
            "percent": self._percent,
            "tolerance_abs": float(self._tolerance_abs),
            "tolerance_rel": float(self._tolerance_rel),
        }


def read_target(task: Task) -> Number:
    """The target of a numeric task. Raises RowFailure(kind="verifier") where it is no number."""
    try:
        # Decimal keeps the digits: 0.1 in the task is a tenth and not the nearest float.
        target = json.loads(task.target_json, parse_float=Decimal, parse_int=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise RowFailure(f"task {task.task_id!r}: target_json is no JSON: {error}", kind="verifier") from error
    number = None
    if isinstance(target, str | Decimal):
        number = read_region(str(target)).number
    if number is None:
        raise RowFailure(f"task {task.task_id!r}: the target {task.target_json[:80]} is no number", kind="verifier")
    return number
