"""Reading parts of shards: projections, predicates, row groups, and the rows of a rank."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptctl.errors import InputNotFound, SchemaMismatch, UsageError
from ptctl.records import Trajectory
from ptctl.shards import reader, writer
from ptctl.shards.rank_rows import RowRange, iter_ranges, rank_rows
from ptctl.shards.reader import Shard, iter_row_groups, iter_rows, read_rows, read_table
from ptctl.shards.schema import schema_of
from ptctl.shards.writer import Lineage, write_rows
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40 trajectories of 10 groups, in 10 row groups."""
    monkeypatch.setattr(writer, "group_limit_bytes", lambda shard_bytes: 1)
    rows: list[Trajectory] = []
    for position in range(10):
        draw = make_draw(make_simple_task(f"sum/{position}"), position=position)
        rows += [make_trajectory(draw, index=n, final_answer=None if n else "42") for n in range(4)]
    monkeypatch.setattr(writer.ShardWriter, "_take", _four_rows_a_group)
    return write_rows(rows, "trajectories", tmp_path, Lineage())


def _four_rows_a_group(self: Any, table: Any) -> None:
    self._pending.append(table)
    merged = writer.pa.concat_tables(self._pending)
    while merged.num_rows >= 4:
        self._pending = [merged.slice(0, 4)]
        self._write_group()
        merged = merged.slice(4)
    self._pending = [merged] if merged.num_rows else []


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...] | None]]:
    """(row group, columns) of every read."""
    seen: list[tuple[int, tuple[str, ...] | None]] = []
    original = Shard.read_group

    def counted(self: Shard, index: int, columns: Any) -> Any:
        seen.append((index, None if columns is None else tuple(columns)))
        return original(self, index, columns)

    monkeypatch.setattr(Shard, "read_group", counted)
    return seen


def test_row_groups_come_one_by_one(shard: Path, groups_read: list[Any]) -> None:
    tables = iter_row_groups(shard, "trajectories", ["index"])
    assert next(tables).column("index").to_pylist() == [0, 1, 2, 3]
    assert groups_read == [(0, ("index",))]
    assert sum(table.num_rows for table in tables) == 36
    rows = iter_rows([shard, shard], "trajectories")
    assert next(rows).group_id == "eval-0/000000"
    assert groups_read[-1] == (0, None)
    assert len(groups_read) == 11
    assert 1 + len(list(rows)) == 80


def test_a_predicate_reads_only_groups_that_can_match(shard: Path, groups_read: list[Any]) -> None:
    table = read_table(shard, "trajectories", ["index", "task_id"], where={"group_id": ["eval-0/000007"]})
    assert table.to_pylist() == [{"index": n, "task_id": "sum/7"} for n in range(4)]
    assert groups_read == [(7, ("group_id",)), (7, ("index", "task_id"))]


def test_a_predicate_reads_wide_columns_only_where_a_row_matches(shard: Path, groups_read: list[Any]) -> None:
    wanted = read_rows(shard, "trajectories")[21].trajectory_id
    groups_read.clear()
    rows = read_rows(shard, "trajectories", where={"trajectory_id": [wanted]})
    assert [row.trajectory_id for row in rows] == [wanted]
    assert [index for index, columns in groups_read if columns is None] == [5]


def test_predicates_are_combined_and_know_null(shard: Path) -> None:
    where = {"group_id": ["eval-0/000002", "eval-0/000003", "not there"], "index": [1, 9]}
    found = read_table(shard, "trajectories", ["group_id", "index"], where=where).to_pylist()
    assert found == [{"group_id": f"eval-0/00000{n}", "index": 1} for n in (2, 3)]
    assert read_table(shard, "trajectories", ["index"], where={"final_answer": [None]}).num_rows == 30
    assert read_table(shard, "trajectories", ["index"], where={"final_answer": ["42"]}).num_rows == 10
    assert read_table(shard, "trajectories", ["index"], where={"final_answer": ["42", None]}).num_rows == 40
    nothing = read_table(shard, "trajectories", where={"index": []})
    assert (nothing.num_rows, nothing.schema.equals(schema_of("trajectories"))) == (0, True)
    assert read_table(shard, "trajectories", ["seed"], where={"index": [7]}).column_names == ["seed"]


@pytest.mark.parametrize("name", ["turns", "token_ids", "costs", "nonsense"])
def test_rows_are_chosen_by_plain_columns_only(shard: Path, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        read_table(shard, "trajectories", where={name: [1]})


def test_all_null_columns_can_be_asked_for_null(tmp_path: Path) -> None:
    draw = make_draw(make_simple_task())
    scores = [make_score(make_trajectory(draw, index=n), reward=None) for n in range(3)]
    path = write_rows(scores, "scores", tmp_path, Lineage())
    assert read_table(path, "scores", ["index"], where={"reward": [None]}).num_rows == 3
    assert read_table(path, "scores", ["index"], where={"reward": [0.0]}).num_rows == 0


def test_large_shards_are_read_group_by_group_with_the_same_result(
    shard: Path, groups_read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_table(shard, "trajectories")
    assert groups_read == []
    monkeypatch.setattr(reader, "WHOLE_FILE_BYTES", 0)
    assert read_table(shard, "trajectories").equals(whole)
    assert len(groups_read) == 10


def test_ranks_share_all_rows_and_read_whole_groups(shard: Path, groups_read: list[Any]) -> None:
    ranges = [rank_rows([shard, shard], "trajectories", rank, 5) for rank in range(5)]
    assert ranges[0] == [RowRange(path=shard, start=0, stop=16)]
    assert ranges[2] == [RowRange(path=shard, start=32, stop=40), RowRange(path=shard, start=0, stop=8)]
    tables = [table for part in ranges for table in iter_ranges(part, "trajectories", ["seed"])]
    assert sum(table.num_rows for table in tables) == 80
    assert len(groups_read) == 20  # no group twice
    found = [value for table in tables for value in table.column("seed").to_pylist()]
    assert found == [row.seed for row in iter_rows([shard, shard], "trajectories")]


def test_more_ranks_than_row_groups_cut_through_them(shard: Path) -> None:
    ranges = [part for rank in range(40) for part in rank_rows([shard], "trajectories", rank, 40)]
    assert [(part.start, part.stop) for part in ranges] == [(n, n + 1) for n in range(40)]
    rows = [table.column("index").to_pylist() for part in ranges for table in iter_ranges([part], "trajectories")]
    assert rows == [[n % 4] for n in range(40)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 16])
def test_every_row_has_one_rank_whatever_their_number(shard: Path, num_ranks: int) -> None:
    parts = [part for rank in range(num_ranks) for part in rank_rows([shard] * 3, "trajectories", rank, num_ranks)]
    assert sum(part.stop - part.start for part in parts) == 120
    assert all(a.stop == b.start or (a.stop, b.start) == (40, 0) for a, b in pairwise(parts))


def test_a_rank_reads_at_most_a_fifth_more_than_its_share(tmp_path: Path) -> None:
    """8 ranks, rows of very different length, real row groups of 4 MiB."""
    rng = np.random.default_rng(0)
    draw = make_draw(make_simple_task())
    rows = [
        make_trajectory(
            draw, index=index, token_ids=rng.integers(0, 2**31, length, np.int32), loss_mask=np.ones(length, np.bool_),
            rollout_logprobs=-rng.random(length, np.float32),
        )
        for index, length in enumerate(rng.gamma(0.7, 40_000, 700).astype(int).tolist())
    ]  # fmt: skip
    path = write_rows(rows, "trajectories", tmp_path, Lineage())
    streams = ["token_ids", "rollout_logprobs"]
    with reader.open_shard(path, "trajectories") as shard:
        ends = np.cumsum([0, *(shard.group_num_rows(n) for n in range(shard.num_row_groups))])
        sizes = [shard.group_bytes(n, streams) for n in range(shard.num_row_groups)]
    assert len(sizes) >= 40
    for rank in range(8):
        (part,) = rank_rows([path], "trajectories", rank, 8, streams)
        read = sum(
            size
            for size, (a, b) in zip(sizes, pairwise(ends.tolist()), strict=True)
            if part.start < b and a < part.stop
        )
        assert read <= 1.2 * sum(sizes) / 8


def test_ranks_and_kinds_that_do_not_exist_are_refused(shard: Path) -> None:
    for rank in (-1, 2):
        with pytest.raises(UsageError, match=f"rank {rank} of 2"):
            rank_rows([shard], "trajectories", rank, 2)
    with pytest.raises(SchemaMismatch, match="not scores"):
        rank_rows([shard], "scores", 0, 1)
    with pytest.raises(InputNotFound):
        rank_rows([shard.with_name("none.parquet")], "scores", 0, 1)
    assert rank_rows([], "scores", 1, 2) == []
