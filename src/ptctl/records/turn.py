"""Turn and ToolCall: messages as spans into the tokens of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

from ptctl.records.columns import Float64, Int32


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
