"""What holds for any rows: token-exact on every way out, and no number that depends on the order of shards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptctl.packing import pack
from ptctl.records import (
    ROW_TYPES,
    Component,
    Message,
    RowError,
    Score,
    Segment,
    Task,
    TaskFile,
    ToolCall,
    Trajectory,
    Turn,
    VersionSpan,
    make_task,
)
from ptctl.shards.reader import iter_row_groups, read_rows, read_table, verify_content
from ptctl.shards.writer import Lineage, ShardWriter, write_rows
from ptctl.stages.train import read_batch
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory, write_dataset

QUICK = settings(max_examples=30, deadline=None)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["\u2028\u2029\u0085\x0b\x0c\r\n", "nul \0 inside", "\ufeff", "👩‍🚀\u202e", ""]
)
ids = st.integers(0, 2**31 - 1)
seconds = st.floats(0, 1e9)
logprobs = st.floats(-1e4, 0, width=32)
optional_text = st.none() | texts


def tool_calls() -> st.SearchStrategy[ToolCall]:
    return st.builds(
        ToolCall, call_id=texts, raw=texts, name=optional_text, arguments_json=optional_text, parsed=st.booleans(),
        known_tool=st.booleans(), valid_arguments=st.booleans(), executed=st.booleans(),
        succeeded=st.none() | st.booleans(), error=optional_text, duration_s=st.none() | seconds,
    )  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> Trajectory:
    """Some turns, each a span of the flat sequence, perhaps with a rewritten context in between."""
    token_ids: list[int] = []
    mask: list[bool] = []
    turns: list[Turn] = []
    for _ in range(draw(st.integers(0, 4))):
        start = len(token_ids)
        role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
        span = draw(st.lists(ids, max_size=6))
        token_ids += span
        mask += [role == "assistant"] * len(span)
        turns.append(
            Turn(
                role=role, content=draw(texts), segment=0, token_start=start, token_end=len(token_ids),
                tool_calls=tuple(draw(st.lists(tool_calls(), max_size=2))), tool_call_id=draw(optional_text),
                reward=draw(st.none() | st.floats(-1, 1)), started_at=draw(seconds),
            )
        )  # fmt: skip
    count = len(token_ids)
    known = draw(st.booleans())
    return make_trajectory(
        make_draw(make_simple_task()),
        trajectory_id=draw(st.uuids().map(str)),
        token_ids=token_ids,
        loss_mask=mask,
        rollout_logprobs=draw(st.lists(logprobs, min_size=count, max_size=count)) if known else [],
        turns=tuple(turns),
        segments=(Segment(token_start=0, token_end=count, opened_by="start"),),
        version_spans=draw(st.sampled_from([(), (VersionSpan(policy_version=3, token_start=0, token_end=count),)])),
        error=draw(st.none() | st.builds(RowError, kind=texts, message=texts, detail=optional_text)),
        final_answer=draw(optional_text),
        policy_version_min=draw(st.none() | ids),
        routed_experts=draw(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=6)),
        routed_experts_shape=draw(st.sampled_from([(), (2, 1)])),
        sampling_mask_offsets=draw(st.lists(st.integers(0, 2**40), max_size=3)),
    )


@st.composite
def any_tasks(draw: st.DrawFn) -> Task:
    files = st.builds(TaskFile, path=texts, content=st.binary(max_size=9), hidden=st.booleans())
    return make_task(
        task_id=draw(texts), domain="d", family="f", split="train",
        prompt=tuple(draw(st.lists(st.builds(Message, role=texts, content=texts, name=optional_text), max_size=2))),
        files=tuple(draw(st.lists(files, max_size=2))), strata=draw(st.dictionaries(texts, texts, max_size=3)),
        difficulty=draw(st.none() | st.floats(0, 1)), expected_tool_calls=draw(st.none() | st.integers(0, 9)),
    )  # fmt: skip


@st.composite
def any_scores(draw: st.DrawFn) -> Score:
    row = make_trajectory(make_draw(make_simple_task()), index=draw(st.integers(0, 9)))
    parts = st.builds(Component, name=texts, value=st.none() | st.floats(-2, 2), passed=st.none() | st.booleans())
    return make_score(
        row, reward=draw(st.none() | st.floats(-2, 2)), components=tuple(draw(st.lists(parts, max_size=3))),
        answer=draw(optional_text), error=draw(st.none() | st.builds(RowError, kind=texts, message=texts)),
    )  # fmt: skip


def plain(row: Any) -> dict[str, Any]:
    """Fields of a row, token streams as lists, whatever sequence they are."""
    streams = {"token_ids", "loss_mask", "rollout_logprobs", "sampling_mask_offsets", "sampling_mask_ids",
               "routed_experts", "teacher_logprobs", "ref_logprobs"}  # fmt: skip
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: np.asarray(value).tolist() if name in streams else value for name, value in values.items()}


@contextmanager
def written(rows: list[Any], kind: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield write_rows(rows, kind, Path(directory), Lineage())


@QUICK
@given(rows=st.lists(conversations(), min_size=1, max_size=5, unique_by=lambda row: row.trajectory_id))
def test_any_conversation_is_token_exact_through_disk_duckdb_and_packing(rows: list[Trajectory]) -> None:
    with written(rows, "trajectories") as path:
        back = read_rows(path, "trajectories")
        found = duckdb.sql(
            "select token_ids, loss_mask, rollout_logprobs, [t.content for t in turns], final_answer "
            f"from read_parquet('{path}')"
        ).fetchall()
    assert list(map(plain, back)) == list(map(plain, rows))
    for row, (tokens, mask, recorded, contents, answer) in zip(rows, found, strict=True):
        assert (tokens, mask, recorded) == (list(row.token_ids), list(row.loss_mask), list(row.rollout_logprobs))
        assert (contents, answer) == ([turn.content for turn in row.turns], row.final_answer)
    filled = [row for row in back if len(row.token_ids)]
    packing = pack([len(row.token_ids) for row in filled], capacity=32, num_ranks=2)
    packed = {int(n): filled[n].token_ids for rank in packing.bins for batch in rank for n in batch}
    originals = [row for row in rows if row.token_ids]
    assert [packed[n].tolist() for n in range(len(filled))] == [list(row.token_ids) for row in originals]
    assert packing.num_tokens == sum(len(row.token_ids) for row in rows)


@QUICK
@given(rows=st.lists(any_tasks(), max_size=4))
def test_any_task_survives(rows: list[Task]) -> None:
    with written(rows, "tasks") as path:
        assert read_rows(path, "tasks") == rows
        verify_content(path)


@QUICK
@given(rows=st.lists(any_scores(), max_size=6))
def test_any_score_survives_and_nulls_stay_null(rows: list[Score]) -> None:
    with written(rows, "scores") as path:
        assert read_rows(path, "scores") == rows
        table = read_table(path, "scores", ["reward", "error"])
    assert table.column("reward").null_count == sum(row.reward is None for row in rows)
    assert table.column("error").null_count == sum(row.error is None for row in rows)


@settings(max_examples=15, deadline=None)
@given(
    rewards=st.lists(st.none() | st.floats(-1, 1), min_size=4, max_size=12),
    order=st.randoms(use_true_random=False),
    num_shards=st.integers(1, 4),
)
def test_any_order_of_shards_gives_the_same_numbers(rewards: list[float | None], order: Any, num_shards: int) -> None:
    draws = [make_draw(make_simple_task(f"sum/{n}"), position=n, group_size=2) for n in range(len(rewards))]
    rows = [
        make_trajectory(
            draw, token_ids=[draw.position] * 3, loss_mask=[False, True, True], rollout_logprobs=[0, -1, -2]
        )
        for draw in draws
    ]
    pairs = list(zip(rows, rewards, strict=True))
    found: list[Any] = []
    for shuffled in (False, True):
        if shuffled:
            order.shuffle(pairs)
        with tempfile.TemporaryDirectory() as directory:
            parts = [pairs[n::num_shards] for n in range(num_shards)]
            trajectories = write_dataset(Path(directory, "t"), "trajectories", [[row for row, _ in p] for p in parts])
            lines = [[make_score(row, reward=reward) for row, reward in part] for part in parts]
            scores = list(write_dataset(Path(directory, "s"), "scores", lines, trajectories))
            if shuffled:
                order.shuffle(scores)
            batch = read_batch(scores, set(), "grpo")
            assert batch is not None
            found.append(batch)
    first, second = found
    assert first.mean_reward == second.mean_reward  # to the last bit: both sums are in canonical order
    assert first.rows.token_ids.tolist() == second.rows.token_ids.tolist()
    assert first.rows.rollout_logprobs.tobytes() == second.rows.rollout_logprobs.tobytes()
    assert first.columns.rewards.tobytes() == second.columns.rewards.tobytes()


@pytest.mark.parametrize("kind", sorted(ROW_TYPES))
def test_a_shard_without_rows_is_read_by_everyone(tmp_path: Path, kind: str) -> None:
    path = write_rows([], kind, tmp_path, Lineage())
    assert read_rows(path, kind) == []
    assert read_table(path, kind).schema.names == [field.name for field in fields(ROW_TYPES[kind])]
    assert duckdb.sql(f"select count(*) from read_parquet('{path}')").fetchall() == [(0,)]
    verify_content(path)


@pytest.mark.slow
def test_a_row_of_200_megabytes(tmp_path: Path) -> None:
    num_tokens = 50_000_000
    token_ids = np.arange(num_tokens, dtype=np.int32) % 151_936
    draw = make_draw(make_simple_task())
    small = [make_trajectory(draw, index=n) for n in range(2)]
    large = make_trajectory(
        draw, index=2, token_ids=token_ids, loss_mask=np.ones(num_tokens, np.bool_), rollout_logprobs=()
    )
    path = tmp_path / "a.parquet"
    with ShardWriter(path, "trajectories", Lineage()) as writer:
        writer.append_rows([small[0], large, small[1]])
    assert [table.num_rows for table in iter_row_groups(path, "trajectories", ["index"])] == [1, 1, 1]
    back = read_rows(path, "trajectories", where={"index": [2]})[0]
    assert np.array_equal(back.token_ids, token_ids)
    assert back.loss_mask.all()
    query = f"select len(token_ids), token_ids[50000000] from read_parquet('{path}') order by 1 desc limit 1"
    assert duckdb.sql(query).fetchall() == [(num_tokens, (num_tokens - 1) % 151_936)]
