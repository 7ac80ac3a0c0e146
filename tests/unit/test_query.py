"""`ptctl query`: any question in SQL, no way to write, no foreign file, bounded memory, nothing left behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ptctl.cli.query import parse_size
from ptctl.errors import CannotCreate, CorruptShard, InputNotFound, OutputError, SchemaMismatch, UsageError
from ptctl.records import ROW_TYPES
from ptctl.shards import database
from ptctl.shards.database import memory_limit_bytes, open_database
from ptctl.shards.dataset import shards_in
from ptctl.shards.files import write_json
from ptctl.shards.lineage import METADATA_KEY
from ptctl.shards.policies import policy_to_json
from ptctl.shards.views import find_sources, open_views, policy_directories
from ptctl.testing.factories import Batch
from run_files import make_policy, write_scored_run


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return write_scored_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def run(batch: Batch) -> Path:
    return batch.tasks[0].parents[1]


def ask(sql: str, *arguments: Path, **options: Any) -> list[tuple[Any, ...]]:
    with open_views(find_sources([str(path) for path in arguments]), **options) as views:
        schema, batches = views.query(sql)
        table = pa.Table.from_batches(list(batches), schema)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def listing(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# ── what a query sees ────────────────────────────────────────────────────────────────────────────────────────────────


def test_views_of_a_run(run: Path) -> None:
    assert ask("SELECT count(*) FROM scores", run) == [(8,)]
    assert ask("SELECT count(*), count(reward), round(avg(reward), 7) FROM scores", run) == [(8, 6, 0.5333333)]
    joined = "SELECT count(*) FROM scores s JOIN trajectories t USING (trajectory_id) JOIN draws d"
    assert ask(f"{joined} ON d.group_id = t.group_id JOIN tasks k ON k.task_id = d.task_id", run) == [(8,)]
    assert ask("SELECT sum(len(token_ids)) FROM trajectories", run) == [(40,)]
    assert ask("SELECT policy_version, phase FROM policies", run) == [(0, "p")]
    names = [row[0] for row in ask("SHOW TABLES", run)]
    assert names == sorted(ROW_TYPES)


def test_every_kind_of_reading_statement(run: Path) -> None:
    for sql, num_rows in (
        ("WITH a AS (SELECT 1) SELECT * FROM a;", 1),
        ("FROM scores LIMIT 3 -- the first;", 3),
        ("VALUES (1), (2)", 2),
        ("DESCRIBE draws", 15),
        ("SUMMARIZE draws", 15),
        ("PIVOT scores ON status IN ('scored', 'unscored') USING count(*) GROUP BY task_id", 4),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) FROM r", 5),
        ("SELECT 'COPY x TO y; DROP TABLE z' AS text UNION SELECT 'a'", 2),
    ):
        assert len(ask(sql, run)) == num_rows, sql


def test_a_kind_that_is_not_there_is_empty_with_its_declared_columns(run: Path, batch: Batch) -> None:
    for kind in ("scores", "trajectories", "draws"):
        columns = f"SELECT column_name, column_type FROM (DESCRIBE {kind})"
        assert ask(f"SELECT count(*) FROM {kind}", batch.tasks[0]) == [(0,)]
        assert ask(columns, batch.tasks[0]) == ask(columns, run)
    assert ask("SELECT avg(reward), count(*) FROM scores JOIN policies ON true", batch.tasks[0]) == [(None, 0)]


def test_the_order_of_arguments_changes_nothing(batch: Batch) -> None:
    sql = "SELECT trajectory_id, reward FROM scores"
    assert ask(sql, *batch.scores) == ask(sql, *reversed(batch.scores))
    assert ask("SELECT count(*) FROM scores", *batch.scores, *batch.scores, batch.scores[0].parent) == [(8,)]


def test_a_symbolic_link_does_not_count_twice(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert ask("SELECT count(*) FROM scores", run, tmp_path / "latest") == [(8,)]
    assert ask("SELECT count(*) FROM policies", run, tmp_path / "latest") == [(1,)]


def test_policies_are_found_wherever_they_are_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = run / "policies"
    assert [policy_directories(place) for place in (run, policies, policies / "0")] == [[policies]] * 3
    assert ask("SELECT count(*) FROM policies", policies) == [(1,)]
    assert ask("SELECT count(*) FROM policies", Path(f"{run}/pol*")) == [(1,)]
    monkeypatch.chdir(policies / "0")
    assert ask("SELECT count(*) FROM policies", Path()) == [(1,)]
    write_json(tmp_path / "p" / "skipped-7.json", policy_to_json(make_policy(3, batch="7", skipped_steps=1)))
    assert ask("SELECT batch, skipped_steps FROM policies", tmp_path) == [("7", 1)]


def test_odd_file_names(batch: Batch, tmp_path: Path) -> None:
    shard = tmp_path / "it's [1]*?, é.parquet"
    shutil.copy(batch.scores[0], shard)
    assert ask("SELECT count(*) FROM scores", shard) == [(3,)]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def write_foreign(path: Path, rewards: Any, metadata: dict[bytes, bytes]) -> Path:
    table = pa.table({"trajectory_id": ["a"] * len(rewards), "reward": rewards})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize("claims", [False, True])
def test_a_foreign_shard_is_named_and_changes_no_number(batch: Batch, tmp_path: Path, claims: bool) -> None:
    """DuckDB casts to the types of the first file: int64 [1, 0] before double [.5, .7, 1.5, -.5] gives .6667."""
    metadata = {METADATA_KEY: pq.read_metadata(batch.scores[0]).metadata[METADATA_KEY]} if claims else {}
    foreign = write_foreign(tmp_path / "aaa.parquet", pa.array([1, 0], pa.int64()), metadata)
    for arguments in ([foreign, *batch.scores], [*batch.scores, foreign]):
        with pytest.raises(SchemaMismatch, match=r"aaa\.parquet"):
            ask("SELECT avg(reward) FROM scores", *arguments)


def test_a_shard_whose_reward_has_another_type_is_refused_by_its_column(batch: Batch, tmp_path: Path) -> None:
    table = pq.read_table(batch.scores[0])
    position = table.schema.get_field_index("reward")
    changed = table.set_column(position, "reward", table.column("reward").cast(pa.float32()))
    stored = pq.read_metadata(batch.scores[0]).metadata
    pq.write_table(changed.replace_schema_metadata({METADATA_KEY: stored[METADATA_KEY]}), tmp_path / "float.parquet")
    with pytest.raises(SchemaMismatch, match=r"float\.parquet: column 'reward' is float, scores have double"):
        find_sources([str(tmp_path / "float.parquet")])
    missing = table.drop_columns(["reward"]).replace_schema_metadata({METADATA_KEY: stored[METADATA_KEY]})
    pq.write_table(missing, tmp_path / "less.parquet")
    with pytest.raises(SchemaMismatch, match=r"less\.parquet has no column 'reward'"):
        find_sources([str(tmp_path / "less.parquet")])
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b"{not json"}), tmp_path / "odd.parquet")
    with pytest.raises(SchemaMismatch, match=r"odd\.parquet has metadata that is no JSON"):
        find_sources([str(tmp_path / "odd.parquet")])


def test_torn_and_damaged_shards_are_named(batch: Batch, tmp_path: Path) -> None:
    content = batch.scores[0].read_bytes()
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(content[:-9])
    with pytest.raises(CorruptShard, match=r"torn\.parquet"):
        ask("SELECT * FROM scores", torn)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(content[:4] + bytes(byte ^ 0x5A for byte in content[4:3000]) + content[3000:])
    with pytest.raises(CorruptShard, match=r"damaged\.parquet"):
        ask("SELECT * FROM scores", damaged)


def test_nothing_named_and_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no such file or directory: nowhere"):
        find_sources(["nowhere"])
    with pytest.raises(InputNotFound, match="no shards in"):
        find_sources([str(tmp_path)])
    assert find_sources([str(tmp_path)], allow_empty=True).shards["scores"] == ()
    with pytest.raises(InputNotFound):
        find_sources(["nowhere"], allow_empty=True)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY scores TO '{out}'",
        "COPY (SELECT 1) TO '{shard}' (FORMAT csv, USE_TMP_FILE false)",
        "WITH x AS (COPY (SELECT 1) TO '{shard}' (FORMAT csv, USE_TMP_FILE false)) SELECT * FROM x",
        "FROM (WITH x AS (COPY (SELECT 1) TO '{out}') SELECT * FROM x)",
        "FROM query('WITH x AS (COPY (SELECT 1) TO ''{out}'') SELECT * FROM x')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{shard}' (FORMAT csv, USE_TMP_FILE false)",
        "ATTACH '{out}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO policies SELECT * FROM policies",
        "WITH x AS (DELETE FROM policies RETURNING *) SELECT * FROM x",
        "DROP VIEW scores",
        "SET memory_limit = '1TB'",
        "PRAGMA temp_directory = '{out}'",
        "EXPORT DATABASE '{out}'",
        "CALL enable_logging(storage = 'file', storage_path = '{out}')",
        "SELECT * FROM enable_logging(storage = 'file', storage_path = '{out}')",
        "SELECT 1; COPY scores TO '{out}'",
        "COPY (PIVOT scores ON status) TO '{out}'",
        "PIVOT scores ON status",
        "FROM read_text('/etc/passwd')",
        "FROM read_csv('/etc/passwd')",
        "FROM '/etc/passwd'",
        "FROM glob('/etc/*')",
        "SELECT getenv('HOME')",
        "",
        "-- nothing",
    ],
)
def test_what_does_not_only_read_the_views_is_refused_and_writes_nothing(run: Path, tmp_path: Path, sql: str) -> None:
    before = listing(run)
    text = sql.replace("{out}", str(tmp_path / "out")).replace("{shard}", str(shards_in(run / "scores" / "eval-0")[0]))
    with pytest.raises(UsageError) as caught:
        ask(text, run)
    assert "\n" not in str(caught.value)
    assert listing(run) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT * FRO scores", "Parser Error: syntax error at or near \"scores\" (line 1, at 'scores')"),
        ("SELECT *\nFROM scoers", 'does not exist! Did you mean "scores"? (line 2, at \'scoers\')'),
        ("SELECT rewad FROM scores", 'Referenced column "rewad" not found'),
        ("SELECT task_id::INTEGER FROM scores", "Conversion Error: Could not convert string 'sum/0' to INT32"),
        ("SELECT error('boom') FROM scores", "boom"),
        ("SELECT CASE WHEN range > 500000 THEN error('late') END FROM range(1000000)", "late"),
        ("SELECT $1", "Values were not provided for the following parameters: 1"),
    ],
)  # fmt: skip
def test_mistakes_in_sql_are_told_in_one_line_with_their_place(run: Path, sql: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(sql, run)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


# ── memory and disk ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1GB", 10**9), ("512 MiB", 512 * 2**20), ("1.5gib", 3 * 2**29), ("20000000", 20_000_000), ("64mb", 64 * 10**6)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "1 PB", "much", "-1GB", "1GB2", "0", "1KB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--memory-limit"):
        parse_size(text)


def test_the_memory_limit_is_set_and_enforced(run: Path) -> None:
    setting = "SELECT current_setting('memory_limit'), current_setting('preserve_insertion_order')"
    assert ask(setting, run, memory_bytes=64 * 2**20) == [("64.0 MiB", True)]
    with pytest.raises(OutputError, match="out of memory") as caught:
        ask("SELECT len(list(range)) FROM range(50000000)", run, memory_bytes=64 * 2**20)
    assert caught.value.hint == "raise --memory-limit, or give --temp-directory more room"


def test_it_spills_into_a_directory_of_its_own_that_is_gone_afterwards(run: Path, tmp_path: Path) -> None:
    query = "SELECT count(*) FROM (SELECT range, random() AS r FROM range(6000000) ORDER BY r)"
    setting = "SELECT current_setting('temp_directory'), current_setting('max_temp_directory_size')"
    ((place, most),) = ask(setting, run, spill_parent=tmp_path)
    assert Path(place).parent == tmp_path
    assert most.endswith("iB")
    assert ask(query, run, spill_parent=tmp_path, memory_bytes=64 * 2**20) == [(6_000_000,)]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError):
        ask("SELECT nothing", run, spill_parent=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CannotCreate, match="cannot spill to"):
        ask("SELECT 1", run, spill_parent=tmp_path / "none")


def test_the_default_limit_is_the_least_of_machine_and_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/slurm/job_1\n0::/user/job_2\n")
    for name, text in (
        ("memory/slurm/job_1/memory.limit_in_bytes", "3000000000"),
        ("memory/slurm/memory.limit_in_bytes", "9223372036854771712"),
        ("user/memory.max", "2000000000"),
        ("user/job_2/memory.max", "max"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    found = list(database.cgroup_limits(tmp_path, own))
    assert sorted(found) == [2_000_000_000, 3_000_000_000, 9_223_372_036_854_771_712]
    monkeypatch.setattr(database, "cgroup_limits", lambda: iter([600_000_000]))
    assert memory_limit_bytes() == 300_000_000
    monkeypatch.setattr(database, "cgroup_limits", lambda: iter([1000]))
    assert memory_limit_bytes() == database.MIN_MEMORY_BYTES
    with open_database() as opened:
        assert opened.one("SELECT current_setting('memory_limit')") == ("256.0 MiB",)


def test_a_result_larger_than_the_limit_streams(run: Path) -> None:
    def rows(sql: str) -> Iterator[int]:
        with open_views(find_sources([str(run)]), memory_bytes=32 * 2**20) as views:
            _, batches = views.query(sql)
            for batch in batches:
                yield batch.num_rows

    sql = "SELECT range, repeat('x', 1000) || range AS text FROM range(100000000)"
    stream = rows(sql)
    assert sum(next(stream) for _ in range(20)) > 10_000
    stream.close()
