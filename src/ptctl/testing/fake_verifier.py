"""A verifier whose verdict is a coin thrown by the trajectory's id: groups have both outcomes, always the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ptctl.errors import UsageError
from ptctl.protocols import Sandbox, Verdict
from ptctl.records import Task, Trajectory
from ptctl.seeds import derive_seed


class FakeVerifier:
    """Verifier `fake`. Implements `ptctl.protocols.Verifier`."""

    name: ClassVar[str] = "fake"
    version: ClassVar[str] = "1"
    needs_sandbox: ClassVar[bool] = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        if config:
            raise UsageError(f"the fake verifier has no setting {next(iter(config))!r}")

    def verify(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Verdict:
        """Pass every second trajectory, by hash."""
        passed = derive_seed(trajectory.trajectory_id) % 2 == 0
        return Verdict(reward=float(passed), passed=passed)
