"""Trajectory: one finished episode."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from ptctl.records.columns import Float64, Int32, Int64, StreamInt16, StreamInt64, TokenFloats, TokenIds, TokenMask
from ptctl.records.turn import RowError, Turn


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
    original_json: str | None = None
    """What of an imported trajectory no column holds, by format, so that a round trip loses nothing."""
