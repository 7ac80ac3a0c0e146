"""The environment of question and answer: the first assistant message ends the episode."""

from __future__ import annotations

from typing import ClassVar

from ptctl.environments.task_settings import environment_settings
from ptctl.protocols import EnvironmentSettings, Observation
from ptctl.records import Message, StopReason


class SingleTurnEnvironment:
    """Shows the task's prompt and ends with the first assistant message, whatever stands in it.

    Tools that the task declares are shown by the chat template and never run; tool calls in the message are text for
    the verifier.
    """

    name: ClassVar[str] = "single_turn"
    version: ClassVar[str] = "1"

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._task = settings.task

    async def reset(self) -> tuple[Message, ...]:
        """Return the prompt. Raises DataError where `environment_json` holds anything: there is nothing to set."""
        environment_settings(self._task, known=())
        return self._task.prompt

    async def step(self, content: str) -> Observation:
        """End the episode."""
        return Observation(done=True, stop_reason=StopReason.COMPLETED)

    def final_state_json(self) -> str | None:
        """None: the verifier looks at the answer."""
        return None

    async def close(self) -> None:
        """Nothing to release."""
