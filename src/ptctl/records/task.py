"""Task: one problem with its target."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from ptctl.records.columns import Float64, Int32, Int64, StringMap, content_digest


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a prompt or of an observation."""

    role: str
    """A `Role` value."""
    content: str
    """The text, byte-exact."""
    name: str | None = None
    """Name of the tool that answers, for role `tool`."""
    tool_call_id: str | None = None
    """The call that this message answers, for role `tool`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call."""

    name: str
    """What the policy writes to call it."""
    description: str
    """What it does, for the prompt."""
    parameters_json: str
    """JSON Schema of the arguments (an object schema)."""
    kind: str
    """Implementation by name, resolved through the registry group `ptctl.tools` (`calculator`, `table` …)."""
    config_json: str = "{}"
    """What the implementation needs, such as the rows of a `table`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceCall:
    """A tool call of a reference solution."""

    name: str
    """Tool name."""
    arguments_json: str
    """Arguments as a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAction:
    """One assistant message of a reference solution: a text, tool calls, or both."""

    content: str = ""
    """Text of the message."""
    tool_calls: tuple[ReferenceCall, ...] = ()
    """Calls that it makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """One way in which the task can be played; the `oracle` engine acts it out. It need not be a good one."""

    name: str
    """For example `tools`, `direct`, `guess`."""
    weight: Float64
    """Relative frequency with which the oracle chooses it; ≥ 0."""
    actions: tuple[ReferenceAction, ...]
    """The assistant messages, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """A file of the task. Hidden files are never in the sandbox while the policy acts."""

    path: str
    """Relative POSIX path."""
    content: bytes
    """The bytes."""
    hidden: bool = False
    """True for tests and solutions, which only `score` may see."""
    executable: bool = False
    """Whether the file gets the executable bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one episode and of its verification."""

    max_turns: Int32 = 8
    """Assistant messages."""
    max_tool_calls: Int32 = 16
    """Executed tool calls."""
    max_tokens: Int32 | None = None
    """Tokens of the whole trajectory, prompt included; None: the engine's context length."""
    episode_timeout_s: Float64 = 600.0
    """Whole-episode deadline, set-up included."""
    verify_timeout_s: Float64 = 60.0
    """Deadline of the verifier."""
    memory_bytes: Int64 | None = None
    """Memory of the sandbox; None: the recipe's default."""
    network: bool = False
    """Whether the sandbox may reach the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem with its target. Identity is (`task_id`, `task_digest`); see `make_task`."""

    task_id: str
    """Stable name, `family/key`."""
    task_digest: str
    """sha256 of the canonical content: prompt, tools, environment, verifier, target, limits and files."""
    domain: str
    """What kind of work it is, such as `math`; quotas and limits are per domain."""
    family: str
    """Template or source that the task comes from; tasks of a family resemble each other."""
    split: str
    """`train` or `eval`. `sample` never draws an `eval` task for training."""
    prompt: tuple[Message, ...]
    """Messages that open the episode."""
    tools: tuple[Tool, ...] = ()
    """Tools that the policy may call."""
    environment: str = "single_turn"
    """Environment plug-in by name."""
    environment_json: str = "{}"
    """Settings of the environment."""
    verifier: str = "exact"
    """Verifier plug-in by name."""
    verifier_json: str = "{}"
    """Settings of the verifier."""
    target_json: str = "null"
    """What the verifier compares with; never shown to the policy."""
    limits: Limits = field(default_factory=Limits)
    """Bounds of episode and verification."""
    files: tuple[TaskFile, ...] = ()
    """Files for the sandbox."""
    solutions: tuple[Solution, ...] = ()
    """Reference solutions, for the oracle engine and for linting."""
    strata: StringMap = field(default_factory=dict[str, str])
    """Further facts by which evaluation may be partitioned, fixed before any run."""
    difficulty: Float64 | None = None
    """Declared or measured difficulty; larger is harder. 0 is a difficulty, None is unknown."""
    expected_tool_calls: Int32 | None = None
    """Tool calls that the good solution needs."""
    verification_difficulty: str | None = None
    """How hard it is to verify: `rule`, `execution`, `judge`, `human`."""
    risk: str | None = None
    """`high` sends a share of the verdicts to people."""
    source: str | None = None
    """Where the task comes from."""
    licence: str | None = None
    """SPDX identifier or name."""
    original_json: str | None = None
    """The row from which an importer made it, so that a round trip loses nothing."""


DIGESTED_TASK_FIELDS = (
    "prompt", "tools", "environment", "environment_json", "verifier", "verifier_json", "target_json", "limits", "files",
)  # fmt: skip
"""What makes a task another task. Strata, solutions and provenance may be corrected without breaking comparisons."""


def task_digest(task: Task) -> str:
    """sha256 (hex) over the fields of `DIGESTED_TASK_FIELDS`; file contents enter by their own sha256."""
    content: dict[str, Any] = {}
    for name in DIGESTED_TASK_FIELDS:
        value = getattr(task, name)
        if name == "files":
            value = [[f.path, hashlib.sha256(f.content).hexdigest(), f.hidden, f.executable] for f in task.files]
        elif name == "limits":
            value = asdict(task.limits)
        elif isinstance(value, tuple):
            value = [asdict(part) for part in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        content[name] = value
    return content_digest(content)


def make_task(**columns: Any) -> Task:
    """Build a Task and fill in its digest."""
    draft = Task(task_digest="", **columns)
    return replace(draft, task_digest=task_digest(draft))
