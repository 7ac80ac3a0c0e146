"""Rows → shards → rows; what is refused; what a kill leaves."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptctl.errors import CannotCreate, CorruptShard, DataError, DuplicateRow, InputNotFound, OutputError, SchemaMismatch
from ptctl.records import ROW_TYPES, Segment, Trajectory, Turn, VersionSpan
from ptctl.shards import files
from ptctl.shards.columns import stream_views
from ptctl.shards.dataset import expand, is_complete, read_manifest, shards_in, unique_rows, upstream, write_manifest
from ptctl.shards.files import TEMPORARY_MARK, committed_file, sweep
from ptctl.shards.follow import follow_shards
from ptctl.shards.policies import read_policy_file
from ptctl.shards.reader import read_rows, read_table, shard_metadata
from ptctl.shards.schema import fingerprint, narrow_columns, schema_of
from ptctl.shards.writer import Lineage, write_rows
from ptctl.testing import factories
from ptctl.testing.factories import make_draw, make_score, make_simple_task

GOLDEN = Path(__file__).parents[1] / "data" / "schemas"


def make_trajectory(**columns: Any) -> Trajectory:
    return factories.make_trajectory(make_draw(make_simple_task()), **columns)


def same(left: object, right: object) -> bool:
    """Equal rows, where token streams may be tuples on one side and numpy arrays on the other."""
    for name in left.__dataclass_fields__:  # type: ignore[attr-defined]
        a, b = getattr(left, name), getattr(right, name)
        equal = list(a) == list(b) if isinstance(b, np.ndarray) else a == b
        if not equal:
            return False
    return True


tokens = st.integers(0, 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    ids = draw(st.lists(tokens, max_size=12))
    floats = st.floats(-1e6, 0, width=32)
    return make_trajectory(
        token_ids=ids,
        loss_mask=draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))),
        rollout_logprobs=draw(st.lists(floats, min_size=len(ids), max_size=len(ids)) | st.just([])),
        turns=tuple(
            Turn(role="user", content=draw(texts), segment=0, token_start=0, token_end=len(ids))
            for _ in range(draw(st.integers(0, 3)))
        ),
        segments=(Segment(token_start=0, token_end=len(ids), opened_by="start"),),
        version_spans=(VersionSpan(policy_version=draw(tokens), token_start=0, token_end=1),),
        final_answer=draw(st.none() | texts),
        routed_experts=draw(st.lists(st.integers(0, 300), max_size=6)),
        routed_experts_shape=(2, 1),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(trajectories(), min_size=1, max_size=5))
def test_any_trajectory_survives_write_read_and_duckdb(tmp_path: Path, rows: list[Trajectory]) -> None:
    path = write_rows(rows, "trajectories", tmp_path / "t", Lineage())
    back = read_rows(path, "trajectories")
    assert all(same(a, b) for a, b in zip(rows, back, strict=True))
    found = duckdb.sql(f"select token_ids, final_answer from read_parquet('{path}')").fetchall()
    assert [(list(row.token_ids), row.final_answer) for row in rows] == found
    path.unlink()


@pytest.mark.parametrize("text", ["\u2028\u2029\u0085\x0b\x0c", "nul \0 inside", "‮ right to left", "👩‍🚀", ""])
def test_odd_text_is_byte_exact(tmp_path: Path, text: str) -> None:
    path = write_rows([make_trajectory(final_answer=text)], "trajectories", tmp_path, Lineage())
    assert read_rows(path, "trajectories")[0].final_answer == text


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"final_answer": "\udce9"}, "final_answer"),
        ({"rollout_logprobs": [float("nan")]}, "NaN"),
        ({"token_ids": [2**31]}, "token_ids"),
    ],
)
def test_what_no_column_can_hold_is_refused_and_leaves_nothing(
    tmp_path: Path, columns: dict[str, object], what: str
) -> None:
    with pytest.raises(DataError, match=what):
        write_rows([make_trajectory(**columns)], "trajectories", tmp_path / "t", Lineage())
    assert shards_in(tmp_path / "t") == []


def test_nan_reward_is_refused_and_null_keeps_its_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="reward"):
        write_rows([make_score(make_trajectory(), reward=float("nan"))], "scores", tmp_path, Lineage())
    path = write_rows([make_score(make_trajectory(), reward=None)], "scores", tmp_path, Lineage())
    assert read_table(path, "scores").schema.field("reward").type == pa.float64()


def test_token_streams_have_no_dictionary_no_nulls_and_are_split(tmp_path: Path) -> None:
    rows = [make_trajectory(token_ids=list(range(500)), loss_mask=[True] * 500, rollout_logprobs=[-0.5] * 500)]
    path = write_rows(rows, "trajectories", tmp_path, Lineage())
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name in ("token_ids.list.element", "rollout_logprobs.list.element"):
        assert "BYTE_STREAM_SPLIT" in columns[name].encodings
        assert columns[name].dictionary_page_offset is None
        assert columns[name].compression == "ZSTD"
    assert not schema_of("trajectories").field("token_ids").nullable
    assert not schema_of("trajectories").field("token_ids").type.value_field.nullable


def test_streams_are_views_of_the_buffer(tmp_path: Path) -> None:
    rows = [make_trajectory(token_ids=[1, 2]), make_trajectory(token_ids=[]), make_trajectory(token_ids=[3])]
    column = read_table(write_rows(rows, "trajectories", tmp_path, Lineage()), "trajectories").column("token_ids")
    views = stream_views(column)
    assert [view.tolist() for view in views] == [[1, 2], [], [3]]
    assert not views[0].flags.owndata
    assert [view.tolist() for view in stream_views(column.slice(1))] == [[], [3]]


def test_a_projection_without_streams_gives_empty_ones(tmp_path: Path) -> None:
    path = write_rows([make_trajectory(token_ids=[1, 2])], "trajectories", tmp_path, Lineage())
    row = read_rows(path, "trajectories", narrow_columns("trajectories"))[0]
    assert (len(row.token_ids), row.turns) == (0, read_rows(path, "trajectories")[0].turns)


@pytest.mark.parametrize("kind", sorted(ROW_TYPES))
def test_schema_is_the_reviewed_one(kind: str) -> None:
    """A changed column must show up in a diff of tests/data/schemas (and bump SCHEMA_VERSION)."""
    text = "".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}\n" for field in schema_of(kind))
    golden = GOLDEN / f"{kind}.txt"
    if os.environ.get("PTCTL_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_refused_files_are_named(tmp_path: Path) -> None:
    good = write_rows([make_simple_task()], "tasks", tmp_path / "tasks", Lineage())
    with pytest.raises(SchemaMismatch, match="holds tasks, not scores"):
        read_table(good, "scores")
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(good.read_bytes()[:-7])
    with pytest.raises(CorruptShard, match=r"torn\.parquet"):
        read_table(torn, "tasks")
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    with pytest.raises(SchemaMismatch, match="not written by ptctl"):
        read_table(foreign, "tasks")
    with pytest.raises(InputNotFound):
        read_table(tmp_path / "none.parquet", "tasks")
    table = pq.read_table(good)
    meta = json.loads(table.schema.metadata[b"ptctl"]) | {"fingerprint": "another"}
    pq.write_table(table.replace_schema_metadata({b"ptctl": json.dumps(meta)}), tmp_path / "old.parquet")
    with pytest.raises(SchemaMismatch, match=f"another.*{fingerprint('tasks')}"):
        read_table(tmp_path / "old.parquet", "tasks")


def test_a_committed_name_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("first")
    with pytest.raises(CannotCreate), committed_file(target) as temporary:
        temporary.write_text("second")
    assert target.read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_without_hard_links_a_name_is_still_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(files.os, "link", refuse)
    with committed_file(tmp_path / "a") as temporary:
        temporary.write_text("first")
    with pytest.raises(CannotCreate), committed_file(tmp_path / "a") as temporary:
        temporary.write_text("second")
    assert (tmp_path / "a").read_text() == "first"


def test_a_full_disk_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "fsync_path", full)
    with pytest.raises(OutputError, match="No space left"), committed_file(tmp_path / "a") as temporary:
        temporary.write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_invisible_and_swept_when_their_writer_is_gone(tmp_path: Path) -> None:
    path = write_rows([make_simple_task()], "tasks", tmp_path, Lineage())
    left = files.temporary_name(tmp_path / "part-9.parquet")
    dead = left.with_name(left.name.replace(f"-{os.getpid()}-", "-999999999-"))
    shutil.copy(path, left)
    shutil.copy(path, dead)
    assert shards_in(tmp_path) == [path]
    assert duckdb.sql(f"select count(*) from read_parquet('{tmp_path}/*.parquet')").fetchall() == [(1,)]
    assert pq.read_table(tmp_path).num_rows == 1
    # Another host's file, whose name begins like this host's, and a name that is none of ours.
    host = socket.gethostname()
    other = dead.with_name(dead.name.replace(f"{TEMPORARY_MARK}{host}-", f"{TEMPORARY_MARK}{host}-999999999-"))
    strange = tmp_path / f".x{TEMPORARY_MARK}{host}-not-a-number"
    for name in (other, strange):
        shutil.copy(path, name)
    assert sweep(tmp_path) == [dead]
    assert left.exists()
    assert other.exists()
    assert strange.exists()


@pytest.mark.parametrize("text", ["[1]", "{}", "{", '"x"'])
def test_a_policy_file_that_is_none_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(CorruptShard, match=r"policy\.json"):
        read_policy_file(tmp_path / "policy.json")


def test_the_manifest_is_last_and_says_what_is_there(tmp_path: Path) -> None:
    rows = [make_simple_task(f"a/{i}") for i in range(3)]
    write_rows(rows[:2], "tasks", tmp_path, Lineage(), ordinal=0)
    write_rows(rows[2:], "tasks", tmp_path, Lineage(), ordinal=1)
    assert not is_complete(tmp_path)
    write_manifest(tmp_path, "tasks", Lineage(facts={"phase": "x"}))
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert (manifest["num_rows"], [shard["num_rows"] for shard in manifest["shards"]]) == (3, [2, 1])
    assert manifest["facts"] == {"phase": "x"}
    assert list(follow_shards(tmp_path, stopped=lambda: False)) == shards_in(tmp_path)


def test_lineage_survives_moving_the_run(tmp_path: Path) -> None:
    tasks = write_rows([make_simple_task()], "tasks", tmp_path / "run" / "tasks", Lineage())
    write_rows([make_draw(make_simple_task())], "draws", tmp_path / "run" / "batches" / "1", Lineage(inputs=(tasks,)))
    shutil.move(tmp_path / "run", tmp_path / "moved")
    draws = shards_in(tmp_path / "moved" / "batches" / "1")
    assert upstream(draws) == shards_in(tmp_path / "moved" / "tasks")
    assert shard_metadata(draws[0])["num_rows"] == 1
    shutil.rmtree(tmp_path / "moved" / "tasks")
    with pytest.raises(InputNotFound, match="which is gone"):
        upstream(draws)


def test_arguments_name_shards_directories_and_globs(tmp_path: Path) -> None:
    a = write_rows([make_simple_task("a/1")], "tasks", tmp_path / "x" / "1", Lineage())
    b = write_rows([make_simple_task("b/1")], "tasks", tmp_path / "x" / "2", Lineage())
    assert expand(str(tmp_path / "x")) == [a, b]
    assert expand(str(a)) == [a]
    assert expand(f"{tmp_path}/x/*") == [a, b]
    with pytest.raises(InputNotFound, match="no such file"):
        expand(str(tmp_path / "y"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputNotFound, match="no shards"):
        expand(str(tmp_path / "empty"))


def test_duplicate_keys_are_named(tmp_path: Path) -> None:
    path = write_rows([make_simple_task("a/1"), make_simple_task("a/1")], "tasks", tmp_path, Lineage())
    with pytest.raises(DuplicateRow, match="a/1"):
        unique_rows([path], "tasks", "task_id")
