"""Environment: plays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from ptctl.records import Message, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """How an environment is built, one for each episode."""

    task: Task
    """The task to be played."""
    seed: int
    """Seed of the trajectory."""
    tool_call_format: str
    """A name of `ptctl.tool_calls.FORMATS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The environment's reaction to one assistant message."""

    messages: tuple[Message, ...] = ()
    """What the policy sees next."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls of the assistant message, with how far each got."""
    done: bool = False
    """The episode is over."""
    stop_reason: str = "completed"
    """A `StopReason` value, where it is over."""
    reward: float | None = None
    """Step reward, where the environment gives one."""


class Environment(Protocol):
    """Plays one episode of one task. Built as `Environment(settings)`."""

    name: ClassVar[str]
    version: ClassVar[str]

    async def reset(self) -> tuple[Message, ...]:
        """Prepare, and return the opening messages. Raises RowFailure where the environment itself fails."""
        ...

    async def step(self, content: str) -> Observation:
        """React to the text of one assistant message. The policy's mistakes are observations, not errors."""
        ...

    def final_state_json(self) -> str | None:
        """State for the verifier, as canonical JSON; None where there is none."""
        ...

    async def close(self) -> None:
        """Release everything; safe to call twice."""
        ...
