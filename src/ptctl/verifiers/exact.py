"""`exact`: the final answer is the target, character by character."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ptctl.errors import RowFailure
from ptctl.protocols import Sandbox, Verdict
from ptctl.records import Task, Trajectory
from ptctl.verifiers.settings import Settings, decode_target

MAX_EVIDENCE_CHARS = 1000


class ExactVerifier:
    """Reward 1 where the final answer equals the target, a JSON string; else 0.

    Settings
    - `strip` (true): white space at both ends does not count.
    - `ignore_case` (false): compare case-folded.
    """

    name: ClassVar[str] = "exact"
    version: ClassVar[str] = "1"
    needs_sandbox: ClassVar[bool] = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that are not known or of the wrong type."""
        settings = Settings(self.name, config, ("strip", "ignore_case"))
        self._strip = settings.flag("strip", True)
        self._ignore_case = settings.flag("ignore_case", False)

    def verify(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Verdict:
        """Compare. Raises RowFailure(kind="verifier") where the target is no string."""
        target = decode_target(task)
        if not isinstance(target, str):
            raise RowFailure(f"task {task.task_id!r}: the target of `exact` must be a string", kind="verifier")
        answer = trajectory.final_answer
        rules = {"strip": self._strip, "ignore_case": self._ignore_case}
        if answer is None or not answer.strip():
            evidence = {"target": target[:MAX_EVIDENCE_CHARS], **rules}
            return Verdict(reward=0.0, passed=False, answer=None, answer_status="no_answer", evidence=evidence)
        compared = self._normal(answer)
        passed = compared == self._normal(target)
        return Verdict(
            reward=float(passed),
            passed=passed,
            answer=compared,
            answer_status="ok",
            evidence={"target": target[:MAX_EVIDENCE_CHARS], **rules},
        )

    def _normal(self, text: str) -> str:
        text = text.strip() if self._strip else text
        return text.casefold() if self._ignore_case else text
