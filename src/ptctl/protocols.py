"""What a plug-in must offer: Tokenizer, Engine, Environment, Verifier, Sandbox, Backend.

A stage knows these Protocols and nothing behind them; `ptctl.registry` finds the implementation by name. Each plug-in is
built with the settings class that stands above its Protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ptctl.records import Component, Message, Sampling, Task, Tool, ToolCall, Trajectory, VersionSpan

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# ── Engine: generates ────────────────────────────────────────────────────────────────────────────────────────────────


class Tokenizer(Protocol):
    """Text ↔ ids, and the chat template. Sampled ids are never sent through `encode`."""

    vocab_size: int
    stop_token_ids: frozenset[int]
    """Ids that end an assistant message."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool) -> str:
        """Apply the chat template; no ids are made."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised, none added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens kept."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine is built."""

    policy: Path
    """Policy or model directory that it starts with."""
    tool_call_format: str = "hermes"
    """A name of `ptctl.tool_calls.FORMATS`."""
    endpoint: str | None = None
    """URL of a served engine; None for in-process engines."""
    max_running: int = 256
    """Requests that decode together."""
    context_length: int | None = None
    """Longest sequence; None: what the model's config says."""
    num_threads: int = 1
    """CPU threads of an in-process engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One assistant message to be generated."""

    request_id: str
    """Unique; appears in logs."""
    prompt_ids: Sequence[int]
    """# [P] the context, exactly as earlier tokens were returned."""
    sampling: Sampling
    """How to draw; the result must not depend on what else is in the batch."""
    seed: int
    """Seed of this request: the same request and policy give the same tokens."""
    task: Task | None = None
    """For engines that act out a reference solution; a generating engine ignores it."""
    num_actions: int = 0
    """Assistant messages already in the episode."""
    episode_seed: int = 0
    """Seed of the whole trajectory, the same for all its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine returned for one request."""

    token_ids: Sequence[int]
    """# [C] sampled ids, the stop token included where there was one."""
    logprobs: Sequence[float] | None
    """# [C] at the sampling temperature (at 1 for greedy); None where the engine gives none."""
    finish_reason: str
    """`stop`, `length` or `abort`."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Policy versions over `token_ids`; empty where the engine has no versions."""
    num_cached_tokens: int = 0
    """Context tokens that came from the cache."""
    queue_s: float = 0.0
    """Waiting time before the first token was computed."""
    engine_s: float = 0.0
    """Time from then to the last token."""
    solution: str | None = None
    """Name of the reference solution that was acted out."""


class Engine(Protocol):
    """Generates assistant messages. Built as `Engine(settings)`; loading happens in `start`."""

    name: ClassVar[str]
    tokenizer: Tokenizer
    context_length: int
    policy_version: int | None

    async def start(self) -> None:
        """Load the model or probe the endpoint. Raises MissingExtra, InputNotFound or Unavailable."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate one message. Raises RowFailure(kind="engine") where this request alone failed."""
        ...

    async def update_policy(self, policy: Path, policy_version: int) -> None:
        """Serve another policy from now on; requests in flight end with the old one or carry spans of both."""
        ...

    async def close(self) -> None:
        """Release everything; safe to call twice."""
        ...


# ── Environment: plays ───────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Sandbox: isolates ────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Verifier: scores ─────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Backend: trains ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with warm-up and decay. Steps count from the start of the phase."""

    learning_rate: float
    min_learning_rate: float
    num_warmup_steps: int
    num_decay_steps: int
    """Optimizer steps of the phase; 0: constant."""
    decay: str
    """`constant`, `cosine` or `linear`."""
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float
    """Clip to this global norm; 0: do not clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """What is minimised: the sum over loss tokens of token weight × token loss."""

    algorithm: str
    """`sft` (−log p) or `grpo` (clipped policy gradient against `rollout_logprobs`)."""
    clip_low: float
    """Ratio is clipped at 1 − clip_low."""
    clip_high: float
    """… and at 1 + clip_high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """How a backend is built."""

    policy: Path
    """Policy or Hugging Face model directory to start from."""
    initialize: str
    """`load` the weights, or `random` where the directory holds none."""
    seed: int
    """Seed of random initialisation."""
    phase: str
    """Name of the phase; optimizer state is resumed only within one phase."""
    optimizer: OptimizerSettings
    loss: LossSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRows:
    """Trajectories as columns, in canonical order (task_id, group, index, attempt)."""

    token_ids: Int32Array  # [T]
    offsets: Int64Array  # [N + 1] row i is token_ids[offsets[i]:offsets[i + 1]]
    loss_mask: BoolArray  # [T]
    rollout_logprobs: Float32Array  # [T], 0 where not sampled; all 0 where the algorithm does not need them
    advantages: Float64Array  # [N]
    temperatures: Float64Array  # [N] at which log-probabilities are recomputed

    @property
    def num_rows(self) -> int:
        """Number of trajectories N."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64Array:
        """# [N] tokens of each row."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One optimizer step. Token weights are normalised over the whole step, so that backends only sum."""

    micro_batches: tuple[Int64Array, ...]  # each [R]: row indices that go through the model together
    token_weights: Float64Array  # [N]: weight of each loss token of row i in this step; 0 where the row takes no part


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """What one optimizer step did. Means are over loss tokens unless said otherwise."""

    loss: float
    """The optimised loss."""
    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    entropy: float
    """Mean entropy of the policy, nats."""
    kl: float
    """k3 estimate of KL(rollout policy ‖ current policy) on the sampled tokens; 0 for SFT."""
    clip_fraction: float
    """Share of loss tokens whose clipped objective was active."""
    max_logprob_difference: float
    """Largest |train − rollout| log-probability of the step; meaningful before the first update of a batch."""
    num_loss_tokens: int
    engine_s: float
    """Wall-clock time of the step."""


class Backend(Protocol):
    """Trains a policy. Built as `Backend(settings)`; loading happens in `start`."""

    name: ClassVar[str]

    def start(self) -> None:
        """Build model and optimizer and load weights, and the checkpoint where policy and phase match."""
        ...

    def begin_phase(self, settings: BackendSettings) -> None:
        """Keep the weights, and start a fresh optimizer with other settings."""
        ...

    def step(self, rows: TrainRows, planned: PlannedStep) -> StepMetrics:
        """One optimizer step. Raises DataError for a non-finite loss or gradient; the weights are then unchanged."""
        ...

    def logprobs(self, rows: TrainRows, micro_batches: Sequence[Int64Array]) -> Float32Array:
        """# [T] log-probability of each token given the ones before it, 0 at each row's first token."""
        ...

    def publish(self, directory: Path, *, with_checkpoint: bool) -> str:
        """Write Hugging Face weights, config and tokenizer, and `checkpoint/`; returns sha256 of the weights."""
        ...

    def is_main(self) -> bool:
        """True in the one process that writes rows and prints paths."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice."""
        ...
