"""Rows in every output format: what is written parses back, and what a terminal shows cannot act on it."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import os
import pty
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len

from ptctl.errors import UsageError
from ptctl.reports import tabular
from ptctl.reports.cells import json_values, to_json
from ptctl.reports.tabular import FORMATS, check_format, fit, write, write_table
from ptctl.shards.columns import rows_to_table
from ptctl.shards.schema import schema_of
from ptctl.testing.factories import make_draw, make_simple_task, make_trajectory

ODD = [
    'say "a,b"',
    "two\nlines\r\n",
    "U+2028 \u2028 U+2029 \u2029 \x0b\x0c\x85",
    "",
    " edge ",
    "x|y `z` <b>",
    "é👩‍🚀",
    "a\tb",
]


def written(table: pa.Table, format_name: str, encoding: str = "utf-8") -> bytes:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, errors="backslashreplace")
    write_table(table, format_name, stream)
    stream.flush()
    return buffer.getvalue()


def odd_table() -> pa.Table:
    return pa.table(
        {
            "text": pa.array([*ODD, None]),
            "n": pa.array([*range(len(ODD)), None], pa.int64()),
            "nested": pa.array([{"a": [1, 2], "b": text} for text in [*ODD, None]]),
        }
    )


def test_csv_parses_back_with_quotes_commas_and_line_ends() -> None:
    data = written(odd_table(), "csv").decode()
    rows = list(csv.reader(io.StringIO(data, newline="")))
    assert rows[0] == ["text", "n", "nested"]
    assert [row[0] for row in rows[1:]] == [*ODD, ""]
    assert [row[1] for row in rows[1:]] == [*map(str, range(len(ODD))), ""]
    assert [json.loads(row[2])["b"] for row in rows[1:]] == [*ODD, None]
    # An empty text and NULL differ, as RFC 4180 leaves it to the quotes.
    lines = data.split("\n")
    assert any(line.startswith('"",3,') for line in lines)
    assert lines[-2].startswith(",,")
    assert "\r" not in written(pa.table({"a": [1]}), "csv").decode()


def test_csv_of_one_column_keeps_its_empty_rows() -> None:
    data = written(pa.table({"a": pa.array(["x", None, "", "y"])}), "csv").decode()
    assert data == 'a\nx\n""\n""\ny\n'


@pytest.mark.parametrize("format_name", ["json", "jsonl"])
def test_json_keeps_structure_and_no_text_can_break_a_line(format_name: str) -> None:
    data = written(odd_table(), format_name)
    assert data.isascii()
    text = data.decode()
    rows = json.loads(text) if format_name == "json" else [json.loads(line) for line in text.splitlines()]
    assert [row["text"] for row in rows] == [*ODD, None]
    assert rows[1]["nested"] == {"a": [1, 2], "b": ODD[1]}
    assert rows[-1]["n"] is None


@pytest.mark.parametrize(("format_name", "nothing"), [("json", b"[]\n"), ("jsonl", b""), ("csv", b"text,n,nested\n")])
def test_no_rows(format_name: str, nothing: bytes) -> None:
    assert written(odd_table().slice(0, 0), format_name) == nothing


def test_parquet_parses_back_with_its_types() -> None:
    table = odd_table()
    assert pq.read_table(io.BytesIO(written(table, "parquet"))).equals(table)
    empty = schema_of("trajectories").empty_table()
    assert pq.read_table(io.BytesIO(written(empty, "parquet"))).schema.equals(empty.schema)


def test_all_null_columns_keep_their_declared_type() -> None:
    table = rows_to_table("draws", [make_draw(make_simple_task())])
    assert table.column("difficulty").null_count == 1
    back = pq.read_table(io.BytesIO(written(table, "parquet")))
    assert back.schema.field("difficulty").type == pa.float64()
    assert json.loads(written(table, "jsonl"))["difficulty"] is None


def test_token_streams_are_short_for_people_and_whole_for_programs() -> None:
    rows = [make_trajectory(make_draw(make_simple_task()), token_ids=range(20), loss_mask=[True] * 20)]
    table = rows_to_table("trajectories", rows).select(["token_ids", "loss_mask", "version_spans"])
    for format_name in ("table", "md"):
        text = written(table, format_name).decode()
        assert "[0,1,2,3,4,5,6,7,… 12 more]" in text
        assert '[{"policy_version":0,"token_start":3,"token_end":5}]' in text
    assert json.loads(written(table, "jsonl"))["token_ids"] == list(range(20))
    cells = next(csv.DictReader(io.StringIO(written(table, "csv").decode())))
    assert json.loads(cells["token_ids"]) == list(range(20))
    assert json.loads(cells["loss_mask"]) == [True] * 20


def test_values_of_every_kind() -> None:
    query = """
        SELECT 1.50::DECIMAL(4, 2) AS price, sum(range) AS total, DATE '2024-01-02' AS day,
        TIMESTAMP '2024-01-02 03:04:05' AS moment, MAP {'k': 1} AS map, 'ab'::BLOB AS bytes, 'nan'::DOUBLE AS nan,
        ['inf'::FLOAT, 1] AS floats, true AS yes, NULL AS nothing, 9007199254740993 AS big, INTERVAL 1 MONTH AS month
        FROM range(3)"""
    table = duckdb.connect().sql(query).to_arrow_table()
    row = json.loads(written(table, "jsonl"))
    assert (row["price"], row["total"], row["big"]) == (1.5, 3, 9007199254740993)
    assert row["day"] == "2024-01-02"
    assert row["moment"].startswith("2024-01-02 03:04:05")
    assert row["map"] == {"k": 1}
    assert base64.b64decode(row["bytes"]) == b"ab"
    assert (row["nan"], row["floats"], row["yes"], row["nothing"]) == (None, [None, 1.0], True, None)
    assert isinstance(row["month"], str)
    cells = next(csv.DictReader(io.StringIO(written(table, "csv").decode())))
    assert Decimal(cells["price"]) == Decimal("1.50")
    assert (cells["yes"], cells["nothing"], cells["total"]) == ("true", "", "3")
    assert math.isnan(float(cells["nan"]))


@pytest.mark.parametrize("element", [pa.int32(), pa.float32(), pa.bool_()])
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_lists_of_numbers_are_what_arrow_says_they_are(make: Any, element: pa.DataType) -> None:
    for values in ([[1, 0], None, [], [0]], [[1, None], None, [0]], [], [None]):
        column = pa.array(values, make(pa.int32())).cast(make(element))
        assert json_values(column) == column.to_pylist()
        assert json_values(column.slice(1)) == column.slice(1).to_pylist()


def test_json_never_holds_what_json_has_not() -> None:
    assert to_json({"a": [float("nan"), {"b": -math.inf}]}) == '{"a":[null,{"b":null}]}'


def test_columns_that_share_a_name_are_refused_where_one_would_be_lost() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    for format_name in ("json", "jsonl", "parquet"):
        with pytest.raises(UsageError, match="two columns are called 'a'"):
            written(table, format_name)
    assert written(table, "csv") == b"a,a\n1,2\n"


HOSTILE = "\x1b[31mred\x1b]0;title\x07 \r\n\x9b2J \u202e @team `x` | <script>"


def test_what_a_policy_wrote_does_nothing_to_a_reader() -> None:
    table = pa.table({"answer": [HOSTILE], HOSTILE: [1]})
    for format_name in ("table", "md"):
        text = written(table, format_name).decode()
        assert not any(ord(character) < 32 and character != "\n" for character in text)
        assert not {"\x9b", "\u202e", "\r", "\x1b"} & set(text)
    lines = written(table, "md").decode().splitlines()
    assert len(lines) == 3
    assert lines[2].count("|") == 4  # three of the table and one, escaped, of the text
    assert "\\x1b[31mred" in written(table, "table").decode()


def test_a_table_that_is_not_for_a_terminal_is_plain_and_whole() -> None:
    table = pa.table({"name": ["x" * 300, "y"], "count": [1, 22222]})
    lines = written(table, "table").decode().splitlines()
    assert lines[0] == "name" + " " * 298 + "count"
    assert lines[2] == "x" * 300 + "      1"
    assert lines[3] == "y" + " " * 301 + "22222"
    assert set(lines[1]) == {"─", " "}


def test_a_plain_locale_shows_escapes_and_programs_still_get_utf_8() -> None:
    table = pa.table({"name": ["é"]})
    assert written(table, "table", "ascii") == b"name\n----\n\\xe9\n"
    assert written(table, "csv", "ascii") == "name\né\n".encode()
    assert json.loads(written(table, "json", "ascii")) == [{"name": "é"}]


def test_a_long_table_is_printed_in_blocks_without_losing_a_row() -> None:
    batches = [pa.record_batch({"n": range(start, start + 700)}) for start in range(0, 3500, 700)]
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    write(iter(batches), batches[0].schema, "table", stream)
    stream.seek(0)
    assert [int(line) for line in stream.read().splitlines()[2:]] == list(range(3500))


def test_the_first_rows_are_written_before_the_last_are_computed() -> None:
    for format_name in ("jsonl", "csv", "md", "table"):
        buffer = io.BytesIO()
        stream = io.TextIOWrapper(buffer, encoding="utf-8", write_through=True)
        sizes: list[int] = []

        def batches(buffer: io.BytesIO = buffer, sizes: list[int] = sizes):  # type: ignore[no-untyped-def]
            for start in range(3):
                sizes.append(len(buffer.getvalue()))
                yield pa.record_batch({"n": range(start * 1000, start * 1000 + 1000)})

        write(batches(), pa.schema([("n", pa.int64())]), format_name, stream)
        assert sizes[2] > sizes[1], format_name


def on_a_terminal(table: pa.Table, monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = pty.openpty()
    with open(follower, "w", encoding="utf-8") as stream:
        write_table(table, "table", stream)
    text = os.read(leader, 100_000).decode()
    os.close(leader)
    return [line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in text.splitlines()]


def test_a_terminal_cuts_wide_columns_visibly(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"answer": ["漢字" * 100, "b"], "count": [1, 2]})
    lines = on_a_terminal(table, monkeypatch, 40)
    assert all(cell_len(line) <= 40 for line in lines)
    assert "…" in lines[2]
    assert lines[2].endswith("1")
    assert lines[3].split() == ["b", "2"]


def test_a_terminal_says_how_many_columns_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({f"column{n:02}": ["some text here"] for n in range(20)})
    lines = on_a_terminal(table, monkeypatch, 60)
    assert all(cell_len(line) <= 60 for line in lines)
    assert lines[0].endswith("+16 columns")


def test_widths_that_fit() -> None:
    assert fit([10, 5], 80) == [10, 5]
    assert fit([100, 5], 20) == [13, 5]
    assert fit([10**9, 10**9], 30) == [14, 14]
    assert fit([8] * 10, 40) == [8, 8]  # 13 of the 40 say how many columns are left out


def test_formats_are_checked_before_anything_is_read() -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    assert [check_format(name, stream, FORMATS) for name in FORMATS] == list(FORMATS)
    with pytest.raises(UsageError, match="unknown format 'yaml'") as caught:
        check_format("yaml", stream, FORMATS)
    assert caught.value.hint == "known: table, json, jsonl, csv, md, parquet"
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal, pytest.raises(UsageError, match="standard output is a terminal"):
        check_format("parquet", terminal, FORMATS)
    os.close(leader)
    assert tabular.FORMATS == ("table", "json", "jsonl", "csv", "md", "parquet")
