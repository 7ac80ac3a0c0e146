"""The streaming writer: row groups, what it refuses by name, what an error leaves, the sha256 in the footer."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ptctl.errors import CannotCreate, DataError, DigestMismatch, OutputError
from ptctl.records import Component, RowError, Segment, Task, Trajectory, Turn
from ptctl.shards import writer
from ptctl.shards.columns import columns_to_table, rows_to_table
from ptctl.shards.reader import read_rows, shard_metadata, verify_content
from ptctl.shards.row_groups import group_limit_bytes, row_bytes
from ptctl.shards.streams import Stream
from ptctl.shards.writer import Lineage, ShardWriter, write_rows, write_table
from ptctl.testing import factories
from ptctl.testing.factories import make_draw, make_score, make_simple_task

DRAW = make_draw(make_simple_task())


def make_trajectory(**columns: Any) -> Trajectory:
    return factories.make_trajectory(DRAW, **columns)


def make_turn(**columns: Any) -> Turn:
    return Turn(**({"role": "user", "content": "", "segment": 0, "token_start": 0, "token_end": 0} | columns))


def group_sizes(path: Path) -> list[int]:
    footer = pq.read_metadata(path)
    return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> int:
    """Row groups of 20,000 bytes at most."""
    monkeypatch.setattr(writer, "group_limit_bytes", lambda shard_bytes: 20_000)
    return 20_000


def test_rows_columns_and_tables_are_written_in_the_order_they_come(tmp_path: Path, small_groups: int) -> None:
    rows = [make_trajectory(index=index, token_ids=[index] * 500) for index in range(40)]
    rest = rows_to_table("trajectories", rows[30:])
    columns = {name: rows_to_table("trajectories", rows[20:30]).column(name).to_pylist() for name in ("seed", "index")}
    path = tmp_path / "a.parquet"
    with ShardWriter(path, "trajectories", Lineage(facts={"x": 1})) as shard:
        for row in rows[:10]:
            shard.append(row)
        shard.append_rows(iter(rows[10:20]))
        stream = Stream(np.arange(11) * 500, np.repeat(np.arange(20, 30), 500).astype(np.int32))
        shard.append_columns(
            {name: [getattr(row, name) for row in rows[20:30]] for name in Trajectory.__dataclass_fields__}
            | columns
            | {"token_ids": stream},
            10,
        )
        shard.append_table(rest)
        assert not path.exists()
        assert shard.num_rows == 40
    assert [row.index for row in read_rows(path, "trajectories")] == list(range(40))
    assert [row.token_ids.tolist() for row in read_rows(path, "trajectories")] == [[n] * 500 for n in range(40)]
    metadata = shard_metadata(path)
    assert (metadata["num_rows"], metadata["facts"]) == (40, {"x": 1})
    sizes = group_sizes(path)
    assert sum(sizes) == 40
    assert len(sizes) > 5
    largest = max(row_bytes(column).sum() for column in _group_columns(path))
    assert largest <= small_groups


def _group_columns(path: Path) -> list[pa.Array[Any]]:
    file = pq.ParquetFile(path)
    return [file.read_row_group(n, ["token_ids"]).column(0).combine_chunks() for n in range(file.num_row_groups)]


def test_a_long_row_is_a_group_of_its_own(tmp_path: Path, small_groups: int) -> None:
    lengths = [10, 10, 30_000, 10, 10]
    rows = [make_trajectory(index=index, token_ids=[index] * length) for index, length in enumerate(lengths)]
    path = write_rows(rows, "trajectories", tmp_path, Lineage())
    assert group_sizes(path) == [2, 1, 2]
    assert [len(row.token_ids) for row in read_rows(path, "trajectories")] == lengths


def test_a_group_is_at_most_a_fortieth_of_what_the_shard_holds() -> None:
    mib = 2**20
    assert [group_limit_bytes(size * mib) // mib for size in (0, 160, 400, 1280, 10**6)] == [4, 4, 10, 32, 32]
    held = 0
    while held < 3000 * mib:
        limit = group_limit_bytes(held)
        held += limit
        assert limit <= max(held / 40, 4 * mib)
        assert limit < 128 * mib


def test_bytes_of_rows_are_counted_each() -> None:
    strings = pa.array(["", None, "ab", "é" * 10])
    assert row_bytes(strings).tolist() == [8, 8, 10, 28]
    assert row_bytes(strings.slice(2)).tolist() == [10, 28]
    lists = pa.array([[1, 2], [], None, [3]], pa.large_list(pa.int32()))
    assert row_bytes(lists).tolist() == [16, 8, 8, 12]
    assert row_bytes(lists.slice(1, 3)).tolist() == [8, 8, 12]
    nested = pa.array([[{"a": "xy", "b": 1}], [], [{"a": "", "b": 2}, {"a": "z", "b": 3}]])
    assert row_bytes(nested).tolist() == [8 + (1 + 10 + 8), 8, 8 + (1 + 8 + 8) + (1 + 9 + 8)]
    assert row_bytes(pa.array([{"k": "v"}, {}], pa.map_(pa.string(), pa.string()))).tolist() == [8 + 18, 8]
    assert row_bytes(pa.array([True, None])).tolist() == [1, 1]


def test_one_huge_text_among_small_ones_does_not_drag_them_along(tmp_path: Path, small_groups: int) -> None:
    tasks = [make_simple_task(f"a/{n}", original_json="x" * (50_000 if n == 3 else 10)) for n in range(6)]
    path = write_rows(tasks, "tasks", tmp_path, Lineage())
    assert group_sizes(path) == [3, 1, 2]
    assert read_rows(path, "tasks") == tasks


@pytest.mark.parametrize(
    ("kind", "row", "what"),
    [
        ("trajectories", make_trajectory(turns=(make_turn(reward=float("nan")),)), "'turns.reward' holds nan"),
        ("trajectories", make_trajectory(turns=(make_turn(queue_s=float("inf")),)), "'turns.queue_s' holds inf"),
        ("trajectories", make_trajectory(turns=(make_turn(content="\ud800"),)), "'turns.content'.*surrogates"),
        ("trajectories", make_trajectory(turns=(make_turn(token_end=2**31),)), "'turns.token_end'.*2147483648"),
        ("trajectories", make_trajectory(turns=(make_turn(role=None),)), "'turns.role' holds None"),
        ("trajectories", make_trajectory(turns=(None,)), "'turns' holds None"),
        ("trajectories", make_trajectory(seed=2**63), "'seed'"),
        ("trajectories", make_trajectory(engine=None), "'engine' holds None"),
        ("trajectories", make_trajectory(costs=None), "'costs' holds None"),
        ("trajectories", make_trajectory(turns=(Segment(token_start=0, token_end=0, opened_by=""),)), "'turns'.*role"),
        ("trajectories", make_trajectory(routed_experts_shape=(2**31,)), "'routed_experts_shape'"),
        ("trajectories", make_trajectory(token_ids=[1.5]), "'token_ids'.*float64"),
        ("trajectories", make_trajectory(token_ids=np.asarray([2**31])), "'token_ids'.*2147483648 is out of the range"),
        ("trajectories", make_trajectory(token_ids=[[1, 2]]), "'token_ids'.*nested"),
        ("trajectories", make_trajectory(token_ids=["a"]), "'token_ids'"),
        ("trajectories", make_trajectory(token_ids=[1, None]), "'token_ids'"),
        ("trajectories", make_trajectory(token_ids=None), "'token_ids'"),
        ("trajectories", make_trajectory(loss_mask=[0, 2]), "'loss_mask'.*2 is out of the range of bool"),
        ("trajectories", make_trajectory(rollout_logprobs=[-1e300]), "'rollout_logprobs'.*infinity"),
        ("trajectories", make_trajectory(rollout_logprobs=[float("-inf")]), "'rollout_logprobs'.*infinity"),
        ("trajectories", make_trajectory(routed_experts=[2**15]), "'routed_experts'.*out of the range of int16"),
        (
            "scores",
            make_score(make_trajectory(), components=(Component(name="x", value=float("-inf")),)),
            "'components.value' holds -inf",
        ),
        (
            "scores",
            make_score(make_trajectory(), error=RowError(kind="x", message="\udfff")),
            "'error.message'",
        ),
        ("tasks", make_simple_task(strata={"a": "\ud800"}), "'strata.value'"),
    ],
)
def test_what_no_column_holds_is_refused_by_name(tmp_path: Path, kind: str, row: Any, what: str) -> None:
    with pytest.raises(DataError, match=what):
        write_rows([row], kind, tmp_path, Lineage())
    assert list(tmp_path.iterdir()) == []


def test_finite_numbers_whose_sum_is_not_are_kept(tmp_path: Path) -> None:
    rows = [make_score(make_trajectory(index=n), reward=1.7e308) for n in range(3)]
    assert [row.reward for row in read_rows(write_rows(rows, "scores", tmp_path, Lineage()), "scores")] == [1.7e308] * 3


def test_streams_are_taken_from_any_sequence_without_another_value(tmp_path: Path) -> None:
    taken: list[tuple[Sequence[Any], list[int]]] = [
        ((1, 2), [1, 2]),
        ([], []),
        (np.asarray([3], np.int64), [3]),
        (np.asarray([4, 5], np.uint8), [4, 5]),
        (np.asarray([], np.float64), []),
        (range(3), [0, 1, 2]),
    ]
    rows = [make_trajectory(token_ids=ids, loss_mask=[1] * len(ids), rollout_logprobs=[]) for ids, _ in taken]
    back = read_rows(write_rows(rows, "trajectories", tmp_path, Lineage()), "trajectories")
    assert [row.token_ids.tolist() for row in back] == [expected for _, expected in taken]
    assert all(row.loss_mask.all() and row.loss_mask.dtype == np.bool_ for row in back)


def test_columns_are_checked_by_name_and_length() -> None:
    row = make_trajectory()
    columns: dict[str, Any] = {name: [getattr(row, name)] for name in Trajectory.__dataclass_fields__}
    table = columns_to_table("trajectories", {k: v for k, v in columns.items() if k != "costs"}, 1)
    assert table.column("costs").to_pylist()[0]["num_turns"] == 0  # the default of the row
    ids = np.asarray([1, 2, 3], np.int32)
    stream = columns_to_table("trajectories", columns | {"token_ids": Stream(np.asarray([0, 3]), ids)}, 1)
    views = stream.column("token_ids").chunk(0).values.to_numpy()
    assert np.shares_memory(views, ids)
    for changed, what in [
        ({"nonsense": [1]}, "no column 'nonsense'"),
        ({"index": [1, 2]}, "'index' has 2 rows, not 1"),
        ({"index": Stream(np.asarray([0, 1]), ids)}, "'index' is no token stream"),
        ({"token_ids": Stream(np.asarray([0, 2]), ids)}, "'token_ids'.*offsets"),
        ({"token_ids": Stream(np.asarray([1, 3]), ids)}, "'token_ids'.*offsets"),
        ({"token_ids": Stream(np.asarray([0, 4, 3]), ids)}, "'token_ids'.*offsets"),
    ]:
        with pytest.raises(DataError, match=what):
            columns_to_table("trajectories", columns | changed, 1)
    with pytest.raises(DataError, match="'seed' is missing"):
        columns_to_table("trajectories", {k: v for k, v in columns.items() if k != "seed"}, 1)


def test_tables_are_checked_like_rows(tmp_path: Path) -> None:
    table = rows_to_table("scores", [make_score(make_trajectory(), components=(Component(name="x", value=1.0),))])

    def with_column(name: str, values: list[Any]) -> pa.Table:
        position = table.schema.get_field_index(name)
        field = table.schema.field(name).with_nullable(True)
        return table.set_column(position, field, pa.array(values, field.type))

    nan = {"name": "x", "value": float("nan"), "weight": 1.0, "turn": None, "passed": None}
    for broken, what in [
        (with_column("reward", [float("nan")]), "'reward' holds nan"),
        (with_column("components", [[nan]]), "'components.element.value' holds nan"),
        (with_column("group_id", [None]), "group_id"),
        (table.drop_columns(["reward"]), "schema of scores"),
    ]:
        with pytest.raises(DataError, match=what):
            write_table(broken, "scores", tmp_path / "a.parquet", Lineage())
        assert list(tmp_path.iterdir()) == []
    assert write_table(table, "scores", tmp_path / "a.parquet", Lineage()).exists()


def test_an_error_of_the_caller_stays_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    def fail_while_writing() -> None:
        with ShardWriter(tmp_path / "a.parquet", "tasks", Lineage()) as shard:
            shard.append(make_simple_task())
            raise FileNotFoundError(2, "not found", "elsewhere")

    with pytest.raises(FileNotFoundError, match="elsewhere") as caught:
        fail_while_writing()
    assert type(caught.value) is FileNotFoundError
    assert list(tmp_path.iterdir()) == []


def test_a_taken_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = write_rows([make_simple_task()], "tasks", tmp_path, Lineage())
    before = path.read_bytes()
    with pytest.raises(CannotCreate, match="exists already"), ShardWriter(path, "tasks", Lineage()):
        pytest.fail("the block must not begin")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_a_file_that_cannot_grow_is_an_output_error(tmp_path: Path) -> None:
    """The kernel refuses to write past the limit, as it does on a full disk."""
    rng = np.random.default_rng(0)
    rows = [make_trajectory(token_ids=rng.integers(0, 2**31, 200_000, np.int32)) for _ in range(3)]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limit[1]))
    try:
        with pytest.raises(OutputError, match=r"cannot write .*File too large"):
            write_rows(rows, "trajectories", tmp_path, Lineage())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []
    write_rows(rows, "trajectories", tmp_path, Lineage())


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_the_footer_tells_the_sha256_of_all_before_it(tmp_path: Path, compression: Any) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.parquet"
    rows = [make_trajectory(token_ids=rng.integers(0, 2**31, 400_000, np.int32)) for _ in range(8)]
    with ShardWriter(path, "trajectories", Lineage(), compression=compression) as shard:
        shard.append_rows(rows)
    metadata = shard_metadata(path)
    data = path.read_bytes()[: metadata["data_bytes"]]
    assert len(data) > 12_000_000  # more than is hashed at once, so that the thread took part
    assert verify_content(path) == metadata["data_sha256"] == hashlib.sha256(data).hexdigest()
    damaged = bytearray(path.read_bytes())
    damaged[len(data) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DigestMismatch, match=r"a\.parquet has sha256"):
        verify_content(path)


def test_a_shard_that_was_rewritten_has_no_sha256(tmp_path: Path) -> None:
    path = write_rows([make_simple_task()], "tasks", tmp_path / "a", Lineage())
    rewritten = tmp_path / "b.parquet"
    pq.write_table(pq.read_table(path), rewritten)
    assert read_rows(rewritten, "tasks") == read_rows(path, "tasks")
    with pytest.raises(DigestMismatch, match="no sha256"):
        verify_content(rewritten)


def test_statistics_are_kept_where_rows_are_chosen_by_them(tmp_path: Path) -> None:
    path = write_rows([make_trajectory()], "trajectories", tmp_path, Lineage())
    group = pq.read_metadata(path).row_group(0)
    kept = {group.column(n).path_in_schema for n in range(group.num_columns) if group.column(n).is_stats_set}
    assert {"group_id", "task_id", "trajectory_id", "started_at"} <= kept
    assert not [name for name in kept if "." in name]


def test_a_nullable_struct_may_hold_structs_that_may_not_be_null(tmp_path: Path) -> None:
    rows = [
        make_score(make_trajectory(index=0), error=None),
        make_score(make_trajectory(index=1), error=RowError(kind="k", message="m")),
    ]
    path = write_rows(rows, "scores", tmp_path, Lineage())
    assert [row.error for row in read_rows(path, "scores")] == [None, RowError(kind="k", message="m")]


def test_rows_of_an_unknown_kind_of_object_are_refused() -> None:
    with pytest.raises((AttributeError, DataError)):
        rows_to_table("tasks", [object()])
    assert isinstance(make_simple_task(), Task)
