"""One episode as a flat token sequence: what the engine sampled, byte for byte, between what the template adds.

Sampled ids are appended as they came and never re-tokenised. Around them stands only text that the chat template adds,
encoded once when it is added:

    <|user|>how old is AB?<|end|><|assistant|>  <|call|>lookup(AB)<|end|>  <|tool|>41<|end|><|assistant|>  41<|end|>
    └──────────── template, mask F ──────────┘  └── sampled, mask T ────┘  └──────── template, F ──────┘   └── T ──┘

A template may rewrite earlier turns when a new one is added (it drops old reasoning, say). Then the tokens so far are
no prefix of the next prompt, and a new segment is opened with the rewritten context, masked. A template that merely
trims white space around an assistant's text rewrites nothing: the sampled bytes stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptctl.errors import RowFailure
from ptctl.protocols import Completion, Tokenizer
from ptctl.records import Message, Role, Segment, Tool, ToolCall, Turn, VersionSpan


class Transcript:
    """Grows turn by turn; `prompt_ids` is what the engine reads next. Not a row: `episode.play` makes the row of it."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Tool], opening: Sequence[Message]) -> None:
        self._tokenizer = tokenizer
        self._tools = tools
        self._messages = list(opening)
        self._template_text = ""
        """What the template says the current context is, which may differ from the tokens by trimmed white space."""
        self.token_ids: list[int] = []  # [T]
        self.loss_mask: list[bool] = []  # [T]
        self.logprobs: list[float] = []  # [T]
        self.has_logprobs = True
        self.turns: list[Turn] = []
        self.version_spans: list[VersionSpan] = []
        self._segment_starts: list[tuple[int, str]] = []
        self._open_segment("start", first_new=0)

    @property
    def prompt_ids(self) -> list[int]:
        """Tokens of the current segment: the context of the next generation."""
        return self.token_ids[self._segment_starts[-1][0] :]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Contexts so far."""
        starts = [start for start, _ in self._segment_starts]
        ends = [*starts[1:], len(self.token_ids)]
        return tuple(
            Segment(token_start=start, token_end=end, opened_by=opened_by)
            for (start, opened_by), end in zip(self._segment_starts, ends, strict=True)
        )

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        return self._tokenizer.render(messages, self._tools, add_generation_prompt=add_generation_prompt)

    def _open_segment(self, opened_by: str, first_new: int) -> None:
        """Start a context with all messages; those from `first_new` on become turns, the others stand already.

        Where the template renders the earlier messages otherwise when they stand alone, the boundary before the new
        ones cannot be told, and the first new turn's span begins with the segment.
        """
        start = len(self.token_ids)
        self._segment_starts.append((start, opened_by))
        self._template_text = self._render(self._messages, add_generation_prompt=True)
        ids = self._tokenizer.encode(self._template_text)
        self._append_context(ids)
        ends = [self._prefix_length(ids, count, skip="") for count in range(first_new + 1, len(self._messages) + 1)]
        first = self._prefix_length(ids, first_new, skip="") if first_new else 0
        self._add_turns(self._messages[first_new:], start + first, [start + end for end in ends])

    def _prefix_length(self, ids: Sequence[int], num_messages: int, skip: str) -> int:
        """Number of leading `ids` that spell the first messages (after `skip`); 0 where that cannot be told."""
        try:
            text = self._render(self._messages[:num_messages], add_generation_prompt=False)
        except RowFailure:
            return 0  # some templates refuse a conversation that does not yet hold a user's message
        prefix = self._tokenizer.encode(text[len(skip) :]) if text.startswith(skip) else []
        return len(prefix) if list(ids[: len(prefix)]) == prefix else 0

    def _append_context(self, ids: Sequence[int]) -> None:
        self.token_ids.extend(ids)
        self.loss_mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))

    def _add_turns(self, messages: Sequence[Message], start: int, ends: Sequence[int]) -> None:
        for message, end in zip(messages, ends, strict=True):
            stop = max(start, end)
            self.turns.append(
                Turn(
                    role=message.role,
                    content=message.content,
                    segment=len(self._segment_starts) - 1,
                    token_start=start,
                    token_end=stop,
                    tool_call_id=message.tool_call_id,
                )
            )
            start = stop

    def content_of(self, completion: Completion) -> str:
        """Text of a completion without its stop token."""
        ids = list(completion.token_ids)
        if ids and ids[-1] in self._tokenizer.stop_token_ids:
            ids.pop()
        return self._tokenizer.decode(ids)

    def add_completion(self, completion: Completion, content: str, turn_facts: Turn) -> None:
        """Append sampled tokens and the assistant's turn; times and costs come from `turn_facts`.

        Raises RowFailure where ids and log-probabilities do not match in number.
        """
        ids = completion.token_ids
        start = len(self.token_ids)
        if completion.logprobs is None:
            self.has_logprobs = False
        elif len(completion.logprobs) != len(ids):
            raise RowFailure(f"{len(ids)} token ids but {len(completion.logprobs)} log-probabilities", kind="engine")
        self.token_ids.extend(ids)
        self.loss_mask.extend([True] * len(ids))
        self.logprobs.extend(completion.logprobs if completion.logprobs is not None else [0.0] * len(ids))
        for span in completion.version_spans:
            self._add_version_span(span.policy_version, start + span.token_start, start + span.token_end)
        self._messages.append(Message(role=Role.ASSISTANT, content=content))
        turn_start = self.turns[-1].token_end if self.turns else start
        self.turns.append(
            Turn(
                role=Role.ASSISTANT,
                content=content,
                segment=len(self._segment_starts) - 1,
                token_start=min(turn_start, start),
                token_end=len(self.token_ids),
                finish_reason=completion.finish_reason,
                num_prompt_tokens=turn_facts.num_prompt_tokens,
                num_cached_tokens=completion.num_cached_tokens,
                num_completion_tokens=len(ids),
                queue_s=completion.queue_s,
                engine_s=completion.engine_s,
                started_at=turn_facts.started_at,
            )
        )

    def _add_version_span(self, version: int, start: int, end: int) -> None:
        self.version_spans.append(VersionSpan(policy_version=version, token_start=start, token_end=end))

    def annotate_last(self, tool_calls: tuple[ToolCall, ...], reward: float | None, environment_s: float) -> None:
        """Add what the environment found out about the assistant's last turn."""
        turn = self.turns[-1]
        values = {name: getattr(turn, name) for name in Turn.__dataclass_fields__}
        values |= {"tool_calls": tool_calls, "reward": reward, "environment_s": environment_s}
        self.turns[-1] = Turn(**values)

    def add_observation(self, messages: Sequence[Message]) -> None:
        """Append what the template makes of the environment's messages, up to the next generation prompt."""
        content = self._messages[-1].content
        first_new = len(self._messages)
        self._messages.extend(messages)
        full = self._render(self._messages, add_generation_prompt=True)
        spoken = self._spoken_prefix(full, content)
        if spoken is None:
            self._open_segment("template_rewrite", first_new)
            return
        ids = self._tokenizer.encode(full[len(spoken) :])
        # The policy sampled the end of its turn itself; the template's copy of it is dropped.
        dropped = 1 if ids and ids[0] == self.token_ids[-1] and ids[0] in self._tokenizer.stop_token_ids else 0
        start = len(self.token_ids)
        self._append_context(ids[dropped:])
        self._template_text = full
        ends = [
            start - dropped + self._prefix_length(ids, count, skip=spoken)
            for count in range(first_new + 1, len(self._messages) + 1)
        ]
        self._add_turns(messages, start, ends)

    def _spoken_prefix(self, full: str, content: str) -> str | None:
        """The part of the template's text that the tokens cover already, or None where it was rewritten."""
        for spoken in (content, content.strip(), content.rstrip(), content.lstrip()):
            if full.startswith(self._template_text + spoken):
                return self._template_text + spoken
        return None
