"""Verifier: scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from ptctl.protocols.sandbox import Sandbox
from ptctl.records import Component, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier found. A verifier that cannot tell raises RowFailure instead."""

    reward: float
    """Finite number for the optimiser."""
    passed: bool
    """Success; partial credit is not a pass."""
    components: tuple[Component, ...] = ()
    """Parts of the reward."""
    answer: str | None = None
    """What was extracted."""
    answer_status: str | None = None
    """`ok`, `no_answer` or `ambiguous`."""
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What was compared or run; JSON-serialisable."""


class Verifier(Protocol):
    """Compares a trajectory with its task. Built as `Verifier(config)` with the task's `verifier_json`, decoded."""

    name: ClassVar[str]
    version: ClassVar[str]
    needs_sandbox: ClassVar[bool]

    def verify(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Verdict:
        """Judge. Deterministic. Raises RowFailure(kind="verifier" | "timeout" | "sandbox") where it cannot tell."""
        ...
