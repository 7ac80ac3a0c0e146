"""Token truth: what was sampled stays, byte for byte; what a template rewrites opens a segment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptctl.errors import RowFailure
from ptctl.protocols import Completion
from ptctl.records import Message, Tool, Turn, VersionSpan
from ptctl.testing.fake_engine import FakeTokenizer
from ptctl.transcript import Transcript

FACTS = Turn(role="assistant", content="", segment=0, token_start=0, token_end=0)
USER = (Message(role="user", content="hi"),)
TOOL = (Message(role="tool", content="41", tool_call_id="0"),)


class MergingTokenizer:
    """A toy byte-pair tokenizer: `he` and `llo` merge to `hello`, so that encoding a sampled text gives other ids."""

    vocab = ("<u>", "<a>", "<end>", "he", "llo", "hello", "x", " ", "\n", "answer", "<think>", "</think>", "41")
    vocab_size = len(vocab)
    stop_token_ids = frozenset({2})
    keeps_thoughts = True
    trims = False

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool) -> str:
        parts: list[str] = []
        for number, message in enumerate(messages):
            content = message.content
            if message.role == "assistant" and not self.keeps_thoughts and number < len(messages) - 1:
                content = content.split("</think>")[-1]
            if self.trims:
                content = content.strip()
            parts.append(("<a>" if message.role == "assistant" else "<u>") + content + "<end>")
        return "".join(parts) + ("<a>" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            token = max((t for t in self.vocab if text.startswith(t)), key=len)
            ids.append(self.vocab.index(token))
            text = text[len(token) :]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.vocab[i] for i in token_ids)


def completion(ids: Sequence[int], version: int | None = None) -> Completion:
    span = () if version is None else (VersionSpan(policy_version=version, token_start=0, token_end=len(ids)),)
    return Completion(token_ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop", version_spans=span)


def say(transcript: Transcript, ids: Sequence[int], version: int | None = None) -> None:
    done = completion(ids, version)
    transcript.add_completion(done, transcript.content_of(done), FACTS)


def test_sampled_ids_are_never_merged_over_three_turns() -> None:
    tokenizer = MergingTokenizer()
    transcript = Transcript(tokenizer, (), (Message(role="user", content="x"),))
    for _ in range(3):
        say(transcript, [3, 4, 2])
        transcript.add_observation((Message(role="tool", content="x"),))
    sampled = [i for i, mask in zip(transcript.token_ids, transcript.loss_mask, strict=True) if mask]
    assert sampled == [3, 4, 2] * 3
    assert 5 not in transcript.token_ids
    assert tokenizer.encode(tokenizer.decode([3, 4])) == [5]
    assert tokenizer.decode(transcript.token_ids) == "<u>x<end><a>" + "hello<end><u>x<end><a>" * 3
    assert len(transcript.segments) == 1


def test_spans_partition_the_tokens_and_masks_follow_the_policy() -> None:
    transcript = Transcript(FakeTokenizer(), (), USER)
    say(transcript, [97, 98, 257], version=3)
    transcript.add_observation(TOOL)
    say(transcript, [99, 257], version=4)
    turns = transcript.turns
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert [turn.token_start for turn in turns[1:]] == [turn.token_end for turn in turns[:-1]]
    assert (turns[0].token_start, turns[-1].token_end) == (0, len(transcript.token_ids))
    text = [FakeTokenizer().decode(transcript.token_ids[turn.token_start : turn.token_end]) for turn in turns]
    assert text == ["<|user|>hi<|end|>", "<|assistant|>ab<|end|>", "<|tool|>41<|end|>", "<|assistant|>c<|end|>"]
    assert [(s.policy_version, s.token_end - s.token_start) for s in transcript.version_spans] == [(3, 3), (4, 2)]
    assert turns[2].tool_call_id == "0"
    for span in transcript.version_spans:
        assert all(transcript.loss_mask[span.token_start : span.token_end])
    assert sum(transcript.loss_mask) == 5


def test_white_space_of_an_answer_stays_although_the_template_trims_it() -> None:
    tokenizer = MergingTokenizer()
    tokenizer.trims = True
    transcript = Transcript(tokenizer, (), (Message(role="user", content="x"),))
    for _ in range(2):
        say(transcript, [9, 7, 8, 2])  # "answer \n"
        transcript.add_observation((Message(role="tool", content="x"),))
    assert tokenizer.decode(transcript.prompt_ids).count("answer \n<end>") == 2
    assert len(transcript.segments) == 1


def test_dropped_reasoning_opens_a_segment_and_no_token_counts_twice() -> None:
    tokenizer = MergingTokenizer()
    tokenizer.keeps_thoughts = False
    transcript = Transcript(tokenizer, (), (Message(role="user", content="x"),))
    say(transcript, [10, 6, 11, 9, 2], version=1)  # <think>x</think>answer
    transcript.add_observation((Message(role="tool", content="41"),))
    say(transcript, [9, 2], version=1)
    first, second = transcript.segments
    assert (first.opened_by, second.opened_by) == ("start", "template_rewrite")
    assert first.token_end == second.token_start
    assert (
        tokenizer.decode(transcript.token_ids[second.token_start :])
        == "<u>x<end><a>answer<end><u>41<end><a>answer<end>"
    )
    assert transcript.prompt_ids == transcript.token_ids[second.token_start :]
    assert sum(transcript.loss_mask) == 5 + 2
    assert [turn.role for turn in transcript.turns] == ["user", "assistant", "tool", "assistant"]
    assert [turn.segment for turn in transcript.turns] == [0, 0, 1, 1]
    # This template renders the first two messages otherwise when they stand alone, so that the boundary before the
    # tool's message cannot be told: its span takes the rewritten context in.
    tool = transcript.turns[2]
    assert (tool.token_start, tool.token_end) == (second.token_start, transcript.turns[3].token_start)
    assert tokenizer.decode(transcript.token_ids[tool.token_start : tool.token_end]).endswith("<u>41<end>")


def test_log_probabilities_without_their_ids_are_refused() -> None:
    transcript = Transcript(FakeTokenizer(), (), USER)
    wrong = Completion(token_ids=[97], logprobs=[-1.0] * 5, finish_reason="stop")
    with pytest.raises(RowFailure, match="1 token ids but 5 log-probabilities"):
        transcript.add_completion(wrong, "a", FACTS)


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=4))
def test_ids_are_what_the_engine_returned_and_the_template_added(turns: list[tuple[str, str]]) -> None:
    tokenizer = FakeTokenizer()
    transcript = Transcript(tokenizer, (), USER)
    expected = tokenizer.encode("<|user|>hi<|end|><|assistant|>")
    for spoken, observed in turns:
        clean = spoken.encode("utf-8", "ignore").decode(), observed.encode("utf-8", "ignore").decode()
        ids = [*clean[0].encode(), 257]
        say(transcript, ids)
        transcript.add_observation((Message(role="tool", content=clean[1]),))
        expected += ids + tokenizer.encode(f"<|tool|>{clean[1]}<|end|><|assistant|>")
    assert transcript.token_ids == expected
