"""Engine: generates. Tokenizer: text ↔ ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ptctl.records import Message, Sampling, Task, Tool, VersionSpan


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
