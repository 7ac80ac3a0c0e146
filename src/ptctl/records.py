"""The rows that stages exchange: Task, Draw, Trajectory (with its Turns), Score and Policy.

Every row is a frozen dataclass; `ptctl.shards.schema` derives its Arrow schema from the annotations below, so this file is
the only place where a column is declared. A change here is a change of the schema: bump `SCHEMA_VERSION` and say so in the
changelog.

    Task ──task_id, task_digest──► Draw ──group_id──► Trajectory ──trajectory_id──► Score ──group_id──► Policy

Conventions
- `None` means "not known"; it is stored as NULL, never as NaN and never as 0.
- Token streams (`TokenIds`, `TokenMask`, `TokenFloats`) are never null; a stream that was not recorded is empty.
- `*_json` columns hold canonical JSON (sorted keys, no spaces) where the shape belongs to a plug-in.
- Units are in the names: `_s` seconds, `_bytes`, `num_` counts, `_at` Unix time in seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any

SCHEMA_VERSION = 1
"""Version of all the schemas below; stored with every shard."""

Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Float32 = Annotated[float, "float32"]
Float64 = Annotated[float, "float64"]
TokenIds = Annotated[Sequence[int], "stream:int32"]
TokenMask = Annotated[Sequence[bool], "stream:bool"]
TokenFloats = Annotated[Sequence[float], "stream:float32"]
StreamInt16 = Annotated[Sequence[int], "stream:int16"]
StreamInt64 = Annotated[Sequence[int], "stream:int64"]
Strings = Annotated[tuple[str, ...], "list:string"]
StringMap = Annotated[Mapping[str, str], "map:string"]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal bytes. NaN and infinity raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


# ── Task ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    return Task(**{f.name: getattr(draft, f.name) for f in fields(draft)} | {"task_digest": task_digest(draft)})


# ── Draw ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Purpose(StrEnum):
    """Why a task was drawn."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A task chosen for a batch: one group of `group_size` trajectories, with the reasons for the choice."""

    group_id: str
    """Unique in the run: `BATCH/POSITION`."""
    batch: str
    """Name of the batch."""
    position: Int32
    """Position in the batch, from 0."""
    task_id: str
    """The task."""
    task_digest: str
    """Its digest when it was drawn; another digest later is refused."""
    purpose: str
    """A `Purpose` value."""
    group_size: Int32
    """Trajectories of this group (G)."""
    seed: Int64
    """Seed of the group; trajectory seeds are hashed from it."""
    strategy: str
    """The curriculum strategy that chose."""
    weight: Float64
    """Probability-proportional weight of the task when it was drawn."""
    difficulty: Float64 | None = None
    """1 − posterior mean success of the task; None where the strategy does not look."""
    failure_rate: Float64 | None = None
    """Observed failure rate so far; None where never scored."""
    learnability: Float64 | None = None
    """p(1 − p) of the posterior mean success p."""
    novelty: Float64 | None = None
    """1 for a task never drawn, falling with the number of draws."""
    quota: Float64 | None = None
    """Share of the batch that the task's domain (or family) was given."""


# ── Trajectory ───────────────────────────────────────────────────────────────────────────────────────────────────────


class StopReason(StrEnum):
    """Why an episode ended."""

    COMPLETED = "completed"
    TRUNCATED_TOKENS = "truncated_tokens"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOOL_CALLS = "truncated_tool_calls"
    TRUNCATED_CONTEXT = "truncated_context"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ENGINE_ERROR = "engine_error"
    ENV_ERROR = "env_error"

    @property
    def is_truncated(self) -> bool:
        """The policy was cut off by a limit of tokens, turns or calls."""
        return self.value.startswith("truncated")

    @property
    def is_error(self) -> bool:
        """The infrastructure failed; such a trajectory is never scored 0 for it."""
        return self in (StopReason.ENGINE_ERROR, StopReason.ENV_ERROR, StopReason.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """A failure of one row, kept as data."""

    kind: str
    """Boundary that was crossed: `engine`, `environment`, `tool`, `sandbox`, `verifier`, `timeout` …"""
    message: str
    """One line."""
    detail: str | None = None
    """Traceback or output, cut to a few kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call as the policy wrote it, with how far it got: parsed → known → valid → executed → succeeded."""

    call_id: str
    """Unique in the trajectory."""
    raw: str
    """The text of the call, unchanged."""
    name: str | None
    """Tool name, None where it could not be parsed."""
    arguments_json: str | None
    """Arguments as canonical JSON, None where they could not be parsed."""
    parsed: bool
    """The text is a call."""
    known_tool: bool
    """The task declares a tool of that name."""
    valid_arguments: bool
    """The arguments satisfy the tool's schema."""
    executed: bool
    """The tool ran."""
    succeeded: bool | None
    """It ran without an error; None where it did not run."""
    error: str | None = None
    """Why it got no further."""
    duration_s: Float64 | None = None
    """Time of execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message and its token span `[token_start, token_end)` in the trajectory's flat token sequence."""

    role: str
    """A `Role` value."""
    content: str
    """The text of the message as the environment sees it."""
    segment: Int32
    """Index of the segment in which it stands."""
    token_start: Int32
    """First token of the span, template tokens included."""
    token_end: Int32
    """One past the last token."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that the message makes (assistant)."""
    tool_call_id: str | None = None
    """Call that it answers (tool)."""
    reward: Float64 | None = None
    """Reward that the environment gave for this step, where it gives any."""
    finish_reason: str | None = None
    """`stop`, `length` or `abort` (assistant)."""
    num_prompt_tokens: Int32 = 0
    """Context that the engine read for this turn."""
    num_cached_tokens: Int32 = 0
    """Part of it that came from the engine's cache."""
    num_completion_tokens: Int32 = 0
    """Tokens that the policy produced."""
    queue_s: Float64 = 0.0
    """Time before the engine began."""
    engine_s: Float64 = 0.0
    """Time in the engine."""
    environment_s: Float64 = 0.0
    """Time in environment and tools."""
    started_at: Float64 = 0.0
    """Unix time at which the turn began."""
    num_replaced_surrogates: Int32 = 0
    """Lone surrogates that became U+FFFD when the text was captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens `[token_start, token_end)` that one policy version produced."""

    policy_version: Int32
    """The version."""
    token_start: Int32
    """First token."""
    token_end: Int32
    """One past the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens `[token_start, token_end)` of one contiguous context. A rewritten context opens a new segment.

    A segment repeats its whole context (mask False); the loss counts the trajectory once and no token twice.
    """

    token_start: Int32
    """First token."""
    token_end: Int32
    """One past the last token."""
    opened_by: str
    """`start`, `template_rewrite` or `compaction`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens were drawn."""

    temperature: Float64 = 1.0
    """Sampling temperature; 0 is greedy, whose log-probabilities are at temperature 1."""
    top_p: Float64 = 1.0
    """Nucleus; below 1 the trainer's full-vocabulary log-probabilities are another quantity."""
    top_k: Int32 = -1
    """Candidates; −1 is all."""
    max_new_tokens: Int32 = 1024
    """Tokens of one assistant message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Totals over the turns of a trajectory."""

    num_turns: Int32 = 0
    """Assistant messages."""
    num_tool_calls: Int32 = 0
    """Calls written, valid or not."""
    num_prompt_tokens: Int64 = 0
    """Context tokens read, summed over turns."""
    num_cached_tokens: Int64 = 0
    """Part of them from the cache."""
    num_completion_tokens: Int64 = 0
    """Tokens produced."""
    queue_s: Float64 = 0.0
    """Waiting for the engine."""
    engine_s: Float64 = 0.0
    """In the engine."""
    environment_s: Float64 = 0.0
    """In environment and tools."""
    sandbox_s: Float64 = 0.0
    """Life time of the sandbox."""
    wall_s: Float64 = 0.0
    """From start to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished episode: a flat token sequence with mask, its turns as spans into it, and what it cost.

    Example: a prompt of 5 tokens, an answer of 3 gives `token_ids` [8], `loss_mask` [F,F,F,F,F,T,T,T],
    `rollout_logprobs` [0,0,0,0,0,-.2,-1.1,-.1], turns (user 0–5, assistant 5–8) and one version span 5–8.
    """

    trajectory_id: str
    """Hash of (group_id, index, attempt); the same draw gives the same id."""
    group_id: str
    """Group that shares a baseline."""
    index: Int32
    """Position in the group, from 0."""
    attempt: Int32
    """0 for the first try of this slot; a retry after an infrastructure failure counts up."""
    batch: str
    """Name of the batch."""
    purpose: str
    """A `Purpose` value."""
    task_id: str
    """The task."""
    task_digest: str
    """Its digest."""
    group_size: Int32
    """G of the draw."""
    seed: Int64
    """Seed of this trajectory; every source of randomness is derived from it."""
    token_ids: TokenIds
    """# [T] the engine's own ids, prompt included; never re-tokenised."""
    loss_mask: TokenMask
    """# [T] True where the policy sampled the token."""
    rollout_logprobs: TokenFloats
    """# [T] by the engine at the sampling temperature, 0 where not sampled; empty where the engine gives none."""
    turns: tuple[Turn, ...]
    """Messages in order."""
    segments: tuple[Segment, ...]
    """Contexts in order; one unless the context was rewritten."""
    version_spans: tuple[VersionSpan, ...]
    """Which policy version produced which tokens."""
    policy_version_min: Int32 | None
    """Oldest version in the trajectory, for staleness; None where the engine has no versions."""
    policy_version_max: Int32 | None
    """Newest version."""
    stop_reason: str
    """A `StopReason` value."""
    error: RowError | None = None
    """What failed, where something did."""
    final_answer: str | None = None
    """Text of the last assistant message that makes no call; None where there is none."""
    engine: str = ""
    """Engine plug-in by name."""
    model: str = ""
    """Model or policy directory that the engine served."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens were drawn."""
    environment: str = ""
    """Environment plug-in by name."""
    environment_digest: str = ""
    """sha256 over what decides the environment's behaviour: plug-in version, settings, tools, limits."""
    final_state_json: str | None = None
    """State that a verifier may need after the episode."""
    workspace_digest: str | None = None
    """Content address of the final workspace snapshot."""
    costs: Costs = field(default_factory=Costs)
    """Totals."""
    started_at: Float64 = 0.0
    """Unix time of the start."""
    ended_at: Float64 = 0.0
    """Unix time of the end."""
    solution: str | None = None
    """Name of the reference solution that the oracle acted out."""
    sampling_mask_offsets: StreamInt64 = ()
    """# [T + 1] offsets into `sampling_mask_ids`; empty where the full vocabulary was sampled."""
    sampling_mask_ids: TokenIds = ()
    """# [sum] vocabulary ids kept by top-p / top-k at each token."""
    routed_experts: StreamInt16 = ()
    """# [T, num_moe_layers, top_k] flat: experts chosen by the engine; empty for dense models or where not recorded."""
    routed_experts_shape: Annotated[tuple[int, ...], "list:int32"] = ()
    """(num_moe_layers, top_k) of `routed_experts`."""
    teacher_logprobs: TokenFloats = ()
    """# [T] by a teacher, for on-policy distillation; empty where there was none."""
    ref_logprobs: TokenFloats = ()
    """# [T] by a frozen reference model, where it was asked at rollout; empty otherwise."""


# ── Score ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ScoreStatus(StrEnum):
    """A score has a value, has none because something failed, or waits for a person."""

    SCORED = "scored"
    UNSCORED = "unscored"
    WITHHELD = "withheld"


class UnscoredReason(StrEnum):
    """Why there is no value. None of these is the policy's failure."""

    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    VERIFIER_ERROR = "verifier_error"
    JUDGE_ERROR = "judge_error"
    SANDBOX_ERROR = "sandbox_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One part of a reward."""

    name: str
    """For example `tests`, `compile`, `format`."""
    value: Float64 | None
    """Its value, None where it could not be told."""
    weight: Float64 = 1.0
    """Factor in the reward; 0 for what is only informative."""
    turn: Int32 | None = None
    """Index of the turn that it judges, None for the whole trajectory."""
    passed: bool | None = None
    """Whether it passed, where that has a meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The verdict on one trajectory: a narrow sidecar that never copies tokens."""

    trajectory_id: str
    """The trajectory."""
    group_id: str
    """Its group."""
    index: Int32
    """Its position in the group."""
    attempt: Int32
    """Its attempt."""
    task_id: str
    """The task."""
    task_digest: str
    """Its digest."""
    verifier: str
    """Verifier plug-in by name."""
    verifier_version: str
    """Version of its rules; another version writes another score dataset."""
    status: str
    """A `ScoreStatus` value."""
    reason: str | None = None
    """An `UnscoredReason` value where there is no value."""
    reward: Float64 | None = None
    """What the optimiser sees; NULL when not known."""
    passed: bool | None = None
    """Success, apart from the reward: filters and evaluation look here. Partial credit is not a pass."""
    components: tuple[Component, ...] = ()
    """Parts of the reward."""
    judged_by: str = "verifier"
    """`verifier`, `judge`, `rule_fallback` or `human`."""
    answer: str | None = None
    """What the verifier extracted."""
    answer_status: str | None = None
    """`ok`, `no_answer` or `ambiguous`, where an answer is extracted."""
    evidence_json: str = "{}"
    """What was run or compared, output, exit status, parsed reports."""
    error: RowError | None = None
    """What failed, where there is no value."""
    verify_s: Float64 = 0.0
    """Time of verification."""
    scored_at: Float64 = 0.0
    """Unix time."""


# ── Policy ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published policy; `policy.json` in its directory, written last.

    The directory itself is what engines load (Hugging Face safetensors, config, tokenizer); `checkpoint/` in it is the
    backend's distributed checkpoint from which training resumes.
    """

    policy_version: Int32
    """Number of publishes so far; the initial policy is 0."""
    parent_version: Int32 | None
    """Version that training started from; None for the initial policy."""
    batch: str | None
    """Batch that was consumed to make it."""
    phase: str | None
    """Phase of the recipe."""
    algorithm: str | None
    """Training algorithm."""
    consumed_group_ids: Strings
    """Groups whose trajectories were consumed, trained or deliberately skipped, in canonical order."""
    num_steps: Int32
    """Optimizer steps taken for this version."""
    skipped_steps: Int32
    """Optimizer steps that had nothing to learn from."""
    num_trajectories: Int32
    """Trajectories with a non-zero token weight."""
    num_loss_tokens: Int64
    """Tokens with a non-zero token weight."""
    recipe_digest: str
    """sha256 of the resolved recipe."""
    backend: str
    """Backend plug-in by name."""
    weights_sha256: str
    """sha256 over the published weight files."""
    has_checkpoint: bool
    """Whether `checkpoint/` was written with it."""
    metrics_json: str
    """Training metrics: loss, gradient norm, KL, clip fraction, entropy …"""
    code_version: str
    """Version of ptctl."""
    created_at: Float64
    """Unix time."""


ROW_TYPES: dict[str, type] = {
    "tasks": Task,
    "draws": Draw,
    "trajectories": Trajectory,
    "scores": Score,
    "policies": Policy,
}
"""Dataset kind → row type."""
