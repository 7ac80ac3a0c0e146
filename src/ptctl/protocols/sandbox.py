"""Sandbox: isolates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one command may use."""

    wall_s: float = 60.0
    """Wall-clock time; the whole process tree is killed after it."""
    memory_bytes: int = 512 * 1024 * 1024
    """Memory of the whole tree."""
    num_processes: int = 128
    """Processes and threads."""
    file_bytes: int = 64 * 1024 * 1024
    """Size of one file."""
    workspace_bytes: int = 256 * 1024 * 1024
    """Size of the workspace."""
    output_bytes: int = 256 * 1024
    """Kept bytes of each of stdout and stderr; the rest is counted and dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommand:
    """One command in a fresh sandbox."""

    argv: tuple[str, ...]
    """Program and arguments."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Workspace files by relative POSIX path."""
    stdin: bytes = b""
    """Standard input."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables added to the scrubbed environment."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    """What it may use."""
    read_back: tuple[str, ...] = ()
    """Workspace files to return."""
    network: bool = False
    """Whether the network may be reached; refused by sandboxes that cannot grant it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """What came of a command. The exit status is from wait(), never from what the command printed."""

    exit_status: int | None
    """Exit status; None where it was killed by a signal."""
    signal: int | None
    """Signal that ended it."""
    timed_out: bool
    """The wall-clock limit ended it."""
    out_of_memory: bool
    """The memory limit ended it."""
    stdout: bytes
    """Head of standard output, at most `output_bytes`."""
    stderr: bytes
    """Head of standard error."""
    num_dropped_bytes: int
    """Output beyond the cap."""
    duration_s: float
    """Wall-clock time."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """What was read back; a path that is missing, no regular file or too large is not in it."""


class Sandbox(Protocol):
    """Runs model-written code. Built without arguments."""

    name: ClassVar[str]

    def run(self, command: SandboxCommand) -> SandboxResult:
        """Run one command in a fresh box and remove the box. Raises RowFailure(kind="sandbox") or Unavailable."""
        ...

    def enforces(self) -> Mapping[str, str]:
        """What this node can enforce and by what means, for `ptctl doctor`, such as {"memory": "cgroup v1"}."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice."""
        ...
