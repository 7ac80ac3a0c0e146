"""Shards beside bare pyarrow, JSON lines, msgpack and row dictionaries, all in one run, so that the ratios count.

    python benchmarks/shards.py [--tokens 13000000] [--repeats 5] [--directory DIR] [--large]

Times are the best of the repeats, which take turns; beside the wall clock stands the CPU time of all threads.

Data: rows of about 1,000 tokens (gamma, shape 2), 30 % prompt. Ids by Zipf's law with exponent 1 over 151,936 ids in
random order. Log-probabilities -exp(N(-2, 2)) as float32, 0 in the prompt: every mantissa is used, none repeats.
All other columns of a trajectory are there too.

"bare" is `pq.write_table` with the encodings and the compression of ptctl and pyarrow's defaults otherwise: one row
group, minima and maxima of all columns, no sha256. Every side of "write" ends with fsync. `--large` measures memory on
3 GB instead of 400 MB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.records import Trajectory
from ptctl.shards.columns import columns_to_table, rows_to_table, table_to_rows
from ptctl.shards.rank_rows import iter_ranges, rank_rows
from ptctl.shards.reader import iter_row_groups, read_table, verify_content
from ptctl.shards.streams import Stream, stream_views
from ptctl.shards.writer import Compression, Lineage, ShardWriter, encodings, write_rows, write_table
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory

VOCABULARY = 151_936
MEAN_LENGTH = 1_000
GROUP_SIZE = 8
NUM_RANKS = 8
STREAMS = ("token_ids", "loss_mask", "rollout_logprobs")
LEAVES = {f"{name}.list.element" for name in STREAMS}
NAIVE_TOKENS = 4_000_000
"""Tokens for the alternatives that go through Python objects."""
KINDS: tuple[Compression, ...] = ("zstd", "none")
LARGE_BYTES, USUAL_BYTES = 3 * 10**9, 4 * 10**8


def make_streams(num_tokens: int, seed: int = 0) -> dict[str, Stream]:
    rng = np.random.default_rng(seed)
    lengths = np.maximum(rng.gamma(2, MEAN_LENGTH / 2, num_tokens // MEAN_LENGTH).astype(np.int64), 8)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    count = int(offsets[-1])
    cumulative = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    ranks = np.searchsorted(cumulative / cumulative[-1], rng.random(count))
    ids = rng.permutation(VOCABULARY).astype(np.int32)[ranks]
    position = np.arange(count) - np.repeat(offsets[:-1], lengths)
    mask = position >= np.repeat((lengths * 0.3).astype(np.int64), lengths)
    logprobs = np.where(mask, -np.exp(rng.normal(-2, 2, count)), 0).astype(np.float32)
    return {name: Stream(offsets, values) for name, values in zip(STREAMS, (ids, mask, logprobs), strict=True)}


def make_columns(streams: Mapping[str, Stream]) -> tuple[dict[str, Any], list[Trajectory]]:
    """All columns of the trajectories, and the rows with empty streams that the narrow ones are from."""
    num_rows = len(streams["token_ids"].offsets) - 1
    lengths = np.diff(streams["token_ids"].offsets).tolist()
    task = make_simple_task("sum/0")
    draws = [make_draw(task, position=n, group_size=GROUP_SIZE) for n in range(num_rows // GROUP_SIZE + 1)]
    rows = [
        make_trajectory(
            draws[n // GROUP_SIZE], index=n % GROUP_SIZE, token_ids=(), loss_mask=(), rollout_logprobs=(),
            started_at=1.8e9 + n * 0.173, ended_at=1.8e9 + n * 0.191 + 7, final_answer=str(lengths[n]),
        )
        for n in range(num_rows)
    ]  # fmt: skip
    narrow = [name for name in Trajectory.__dataclass_fields__ if name not in streams]
    return {name: [getattr(row, name) for row in rows] for name in narrow} | dict(streams), rows


@dataclass(slots=True)
class Best:
    """Least seconds of some repeats."""

    wall_s: float = math.inf
    cpu_s: float = math.inf
    """Of all threads: what is left of a comparison when others use the machine."""

    def rate(self, num_tokens: int, one: Best) -> str:
        """Throughput, and how many times that of `one`."""
        wall, cpu = one.wall_s / self.wall_s, one.cpu_s / self.cpu_s
        return f"{num_tokens / self.wall_s / 1e6:6.1f} Mtok/s {wall:5.2f} x, by CPU time {cpu:5.2f} x"


def best_of(repeats: int, works: Mapping[str, Callable[[], Any]]) -> dict[str, Best]:
    """They take turns, so that a busy moment hits all alike."""
    found = {name: Best() for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            best = found[name]
            best.wall_s = min(best.wall_s, time.perf_counter() - wall)
            best.cpu_s = min(best.cpu_s, time.process_time() - cpu)
    return found


def fresh(directory: Path) -> Path:
    return directory / f"{time.monotonic_ns()}.parquet"


def bare_write(table: pa.Table, directory: Path, compression: str, **options: Any) -> Path:
    path = fresh(directory)
    level = 1 if compression == "zstd" else None
    pq.write_table(table, path, compression=compression, compression_level=level, **options)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def report(name: str, value: str, target: str = "") -> None:
    print(f"  {name:<44} {value:>44}  {target}", flush=True)


def write_and_read(table: pa.Table, columns: dict[str, Any], directory: Path, repeats: int) -> None:
    num_tokens = len(columns["token_ids"].values)
    streams = table.select(STREAMS)
    split = {name: value for name, value in encodings("trajectories")["column_encoding"].items() if name in LEAVES}
    encoded = {name: value for name, value in encodings("trajectories").items() if name != "write_statistics"}
    for kind in KINDS:
        kept: dict[str, Path] = {}

        def keep(name: str, path: Path, kept: dict[str, Path] = kept) -> None:
            kept.setdefault(name, path)
            if kept[name] != path:
                path.unlink()

        def from_columns(kind: Compression = kind) -> Path:
            path = fresh(directory)
            with ShardWriter(path, "trajectories", Lineage(), compression=kind) as writer:
                writer.append_columns(columns, table.num_rows)
            return path

        works: dict[str, Callable[[], Path]] = {
            "bare": lambda kind=kind: bare_write(table, directory, kind, **encoded),
            "bare, streams without minima and maxima": lambda kind=kind: bare_write(
                table, directory, kind, **encodings("trajectories")
            ),
            "bare, pyarrow's defaults": lambda kind=kind: bare_write(table, directory, kind),
            "bare, the three streams alone": lambda kind=kind: bare_write(
                streams, directory, kind, use_dictionary=False, column_encoding=split
            ),
            "ptctl, table": lambda kind=kind: write_table(
                table, "trajectories", fresh(directory), Lineage(), compression=kind
            ),
            "ptctl, columns": from_columns,
        }
        timed = {name: (lambda name=name, work=work: keep(name, work())) for name, work in works.items()}
        found = best_of(repeats, timed)
        print(f"write, {kind}: {num_tokens / 1e6:.1f} M tokens")
        for name, best in found.items():
            target = "target >= 0.87" if name.startswith("ptctl") else ""
            report(name, best.rate(num_tokens, found["bare"]), target)
        _sizes(kept, num_tokens, "target <= 4.7" if kind == "zstd" else "")
        _read(kept, num_tokens, repeats)
        for path in kept.values():
            path.unlink()


def _sizes(kept: Mapping[str, Path], num_tokens: int, target: str) -> None:
    for name in ("ptctl, table", "bare, pyarrow's defaults"):
        footer = pq.read_metadata(kept[name])
        groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
        parts = [group.column(n) for group in groups for n in range(group.num_columns)]
        size = sum(part.total_compressed_size for part in parts if part.path_in_schema in LEAVES)
        whole = kept[name].stat().st_size
        text = f"{size / num_tokens:.2f} B/token, file {whole / num_tokens:.2f}"
        report(f"{name}: {len(groups)} row groups", text, target if name.startswith("ptctl") else "")


def _read(kept: Mapping[str, Path], num_tokens: int, repeats: int) -> None:
    path = kept["ptctl, table"]

    def views() -> None:
        table = read_table(path, "trajectories", STREAMS)
        for name in STREAMS:
            stream_views(table.column(name))

    found = best_of(
        repeats,
        {
            "read bare, file of bare": lambda: pq.ParquetFile(kept["bare"]).read(),
            "read bare, file of ptctl": lambda: pq.ParquetFile(path).read(),
            "read ptctl": lambda: read_table(path, "trajectories"),
            "read ptctl, streams as numpy views a row": views,
            "read ptctl, a row group at a time": lambda: [0 for _ in iter_row_groups(path, "trajectories")],
            "verify sha256, nothing decoded": lambda: verify_content(path),
        },
    )
    for name, best in found.items():
        target = "target >= 0.87" if name == "read ptctl" else ""
        report(name, best.rate(num_tokens, found["read bare, file of bare"]), target)


def alternatives(directory: Path, repeats: int) -> None:
    """Write the three streams alone, as the alternatives do; each is given what it likes best."""
    streams = make_streams(NAIVE_TOKENS, seed=1)
    num_tokens = len(streams["token_ids"].values)
    columns, _ = make_columns(streams)
    table = columns_to_table("trajectories", columns, len(columns["index"]))
    bounds = streams["token_ids"].offsets
    pairs = list(itertools.pairwise(bounds.tolist()))
    rows = [{name: streams[name].values[a:b].tolist() for name in STREAMS} for a, b in pairs]

    def saved(data: bytes) -> None:
        path = fresh(directory)
        path.write_bytes(data)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes.append(path.stat().st_size)
        path.unlink()

    def as_lists() -> Iterator[dict[str, Any]]:
        return ({name: streams[name].values[a:b].tolist() for name in STREAMS} for a, b in pairs)

    def naive(lists: Iterable[dict[str, Any]]) -> None:
        bare_write(pa.Table.from_pylist(list(lists)), directory, "snappy").unlink()

    def ours(compression: Compression) -> None:
        write_table(table, "trajectories", fresh(directory), Lineage(), compression=compression).unlink()

    sizes: list[int] = []
    found = best_of(
        repeats,
        {
            "orjson lines, given lists": lambda: saved(b"\n".join(map(orjson.dumps, rows))),
            "msgpack, given lists": lambda: saved(b"".join(map(msgpack.packb, rows))),
            "Table.from_pylist, given lists": lambda: naive(rows),
            "orjson lines": lambda: saved(b"\n".join(map(orjson.dumps, as_lists()))),
            "msgpack of Python lists": lambda: saved(b"".join(map(msgpack.packb, as_lists()))),
            "Table.from_pylist": lambda: naive(as_lists()),
            "ptctl, zstd, all columns": lambda: ours("zstd"),
            "ptctl, uncompressed, all columns": lambda: ours("none"),
        },
    )
    print(f"write the three streams as others do, from the same arrays: {num_tokens / 1e6:.1f} M; x: ptctl faster")
    one = found["ptctl, uncompressed, all columns"]
    for name, best in found.items():
        wall, cpu = best.wall_s / one.wall_s, best.cpu_s / one.cpu_s
        text = f"{num_tokens / best.wall_s / 1e6:6.2f} Mtok/s {wall:5.2f} x, by CPU time {cpu:5.2f} x"
        report(name, text, "target >= 3" if name == "msgpack of Python lists" else "")
    report("orjson, msgpack: size", f"{sizes[0] / num_tokens:.1f}, {sizes[1] / num_tokens:.1f} B/token")


def rows_as_objects(rows: list[Trajectory], directory: Path, repeats: int) -> None:
    some = rows[:8192]
    table = rows_to_table("trajectories", some)
    found = best_of(
        repeats,
        {
            "rows to table": lambda: rows_to_table("trajectories", some),
            "table to rows": lambda: table_to_rows("trajectories", table),
            "rows to shard": lambda: write_rows(some, "trajectories", directory, Lineage()).unlink(),
        },
    )
    print(f"{len(some)} row objects with 2 turns each")
    for name, best in found.items():
        report(
            name,
            f"{best.wall_s * 1e3:.0f} ms, CPU {best.cpu_s * 1e3:.0f} ms, {best.cpu_s / len(some) * 1e6:.1f} us a row",
        )


def group_statistics(shard: Path, rows: list[Trajectory], directory: Path, repeats: int) -> None:
    rng = np.random.default_rng(2)
    scores = [make_score(row, reward=float(rng.random() < 0.4)) for row in rows]
    path = write_rows(scores, "scores", directory, Lineage())
    database = duckdb.connect()
    queries = {
        "mean reward by group, scores": "select group_id, avg(reward), count(*) "
        f"from read_parquet('{path}') group by 1",
        "mean tokens by group, trajectories": "select group_id, avg(costs.num_completion_tokens), count(*) "
        f"from read_parquet('{shard}') group by 1",
    }
    works = {name: (lambda query=query: database.execute(query).fetchnumpy()) for name, query in queries.items()}
    print(f"group statistics with DuckDB: {len(rows)} trajectories in groups of {GROUP_SIZE}")
    for name, best in best_of(max(repeats, 10), works).items():
        report(name, f"{best.wall_s * 1e3:.1f} ms", "target <= 10 ms" if "reward" in name else "")


def rank_bytes(shard: Path) -> None:
    share = (
        sum(
            part.total_compressed_size
            for group in map(pq.read_metadata(shard).row_group, range(pq.read_metadata(shard).num_row_groups))
            for part in (group.column(n) for n in range(group.num_columns))
            if part.path_in_schema in LEAVES
        )
        / NUM_RANKS
    )
    found = [json.loads(_child("rank", str(shard), str(rank))) for rank in range(NUM_RANKS)]
    print(f"bytes that a rank of {NUM_RANKS} reads, footer included; its share is {share / 1e6:.2f} MB")
    worst = max(each["bytes"] for each in found)
    report("largest", f"{worst / 1e6:.2f} MB {worst / share:.2f} x share", "target <= 1.2 x")
    report("rows of a rank", f"{min(e['rows'] for e in found)} to {max(e['rows'] for e in found)}")


def memory(directory: Path, size_bytes: int) -> None:
    path = directory / "large.parquet"
    print(f"memory, {size_bytes / 1e9:.1f} GB shard, in processes of their own")
    for role in ("writer", "reader"):
        each = json.loads(_child(role, str(path), str(size_bytes)))
        text = f"{each['peak_mb']:.0f} MB, of it imports {each['imports_mb']:.0f}"
        report(f"{role}: {each['size_mb']:.0f} MB file, {each['seconds']:.0f} s", text, "target <= 512 MB")
    path.unlink()


def _child(*arguments: str) -> str:
    command = [sys.executable, __file__, "--child", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _peak_mb() -> float:
    """VmHWM of this process; ru_maxrss would begin with what the parent held when it started us."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def _large_rows(size_bytes: int) -> Iterator[Trajectory]:
    pool = make_streams(1_000_000, seed=3)  # small, so that what is measured is the writer
    rng = np.random.default_rng(4)
    row = make_trajectory(make_draw(make_simple_task()))
    narrow = {name: getattr(row, name) for name in Trajectory.__dataclass_fields__ if name not in STREAMS}
    bytes_a_token = 4.18  # windows of a pool of 9 MB overlap, which zstd notices
    for _ in range(int(size_bytes / bytes_a_token / MEAN_LENGTH)):
        start = int(rng.integers(0, len(pool["token_ids"].values) - MEAN_LENGTH))
        yield Trajectory(**narrow, **{name: pool[name].values[start : start + MEAN_LENGTH] for name in STREAMS})


def child(role: str, path: Path, number: int) -> None:
    imports_mb, start = _peak_mb(), time.perf_counter()
    if role == "rank":
        before = _read_bytes()
        ranges = rank_rows([path], "trajectories", number, NUM_RANKS, STREAMS)
        num_rows = sum(table.num_rows for table in iter_ranges(ranges, "trajectories", STREAMS))
        print(json.dumps({"bytes": _read_bytes() - before, "rows": num_rows}))
        return
    if role == "writer":
        with ShardWriter(path, "trajectories", Lineage()) as writer:
            writer.append_rows(_large_rows(number))
    else:
        for table in iter_row_groups(path, "trajectories"):
            for name in STREAMS:
                stream_views(table.column(name))
    numbers = {"peak_mb": _peak_mb(), "imports_mb": imports_mb, "size_mb": path.stat().st_size / 1e6}
    print(json.dumps(numbers | {"seconds": time.perf_counter() - start}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=13_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where shards are written (default: a temporary directory)")
    parser.add_argument("--large", action="store_true", help="measure memory on 3 GB")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], Path(arguments.child[1]), int(arguments.child[2]))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        streams = make_streams(arguments.tokens)
        columns, rows = make_columns(streams)
        table = columns_to_table("trajectories", columns, len(rows))
        write_and_read(table, columns, directory, arguments.repeats)
        alternatives(directory, arguments.repeats)
        rows_as_objects(rows, directory, arguments.repeats)
        shard = write_table(table, "trajectories", directory / "whole.parquet", Lineage())
        group_statistics(shard, rows, directory, arguments.repeats)
        rank_bytes(shard)
        memory(directory, LARGE_BYTES if arguments.large else USUAL_BYTES)


if __name__ == "__main__":
    main()
