"""Rows in the formats of every reading command, as they come and without holding them all.

table    for people: aligned; on a terminal cut to its width, elsewhere whole and without escapes
json     an array of objects
jsonl    one object a line
csv      quoted as RFC 4180 says, UTF-8, lines end in LF; NULL is empty, an empty text is ""
md       a Markdown table
parquet  Parquet; nothing is converted

Nested values keep their structure in json, jsonl and parquet, and are JSON text elsewhere. Bytes are base64 in text.
Text of tasks and policies is shown with its control characters as escapes in table, without them in md.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ptctl.errors import UsageError
from ptctl.reports.cells import cell_texts, is_numeric, json_values, to_json, types
from ptctl.reports.table import report_console
from ptctl.reports.text import NOTHING, code_span, visible

TABLE = "table"
PARQUET = "parquet"
BLOCK_ROWS = 1000
"""Rows whose widths are settled together; a table of more is printed while the rest is still computed."""
ROW_GROUP_BYTES = 64 * 1024**2
MIN_WIDTH = 8
"""Columns are not made narrower than this to fit a terminal; the last ones are left out instead, and counted."""
CSV_SPECIAL = re.compile('[",\r\n]|^$|^\\s|\\s$')

Batches = Iterable[pa.RecordBatch]


def check_format(name: str, stream: TextIO, known: Iterable[str]) -> str:
    """The format, where it is one of `known` and `stream` can take it. Raises UsageError otherwise."""
    known = tuple(known)
    if name not in known:
        raise UsageError(f"unknown format {name!r}", hint=f"known: {', '.join(known)}")
    if name == PARQUET and stream.isatty():
        raise UsageError(
            "--format parquet writes bytes, and standard output is a terminal", hint="redirect it to a file"
        )
    return name


def write(batches: Batches, schema: pa.Schema, format_name: str, stream: TextIO) -> None:
    """Write batches of one schema. Raises UsageError for an unknown format or columns that share a name.

    All but the table is UTF-8 (json and jsonl are ASCII), whatever the locale: it is read by programs.
    """
    if format_name not in FORMATS:
        raise UsageError(f"unknown format {format_name!r}", hint=f"known: {', '.join(FORMATS)}")
    if format_name == TABLE:
        _write_table(batches, schema, stream)
        return
    if format_name in ("json", "jsonl", PARQUET):
        _refuse_shared_names(schema, format_name)
    stream.flush()
    _WRITERS[format_name](batches, schema, stream.buffer)


def write_table(table: pa.Table, format_name: str, stream: TextIO) -> None:
    """`write`, for a table that is there already."""
    write(table.to_batches(max_chunksize=BLOCK_ROWS), table.schema, format_name, stream)


def _refuse_shared_names(schema: pa.Schema, format_name: str) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise UsageError(f"two columns are called {name!r}, {format_name} needs one", hint="rename one with AS")


# ── json, jsonl, csv, md, parquet ────────────────────────────────────────────────────────────────────────────────────


def _objects(batches: Batches, schema: pa.Schema) -> Iterator[str]:
    for batch in batches:
        columns = [json_values(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield to_json(dict(zip(schema.names, values, strict=True)))


def _write_json(batches: Batches, schema: pa.Schema, stream: BinaryIO) -> None:
    before = "[\n"
    for text in _objects(batches, schema):
        stream.write((before + text).encode("ascii"))
        before = ",\n"
    stream.write(b"[]\n" if before == "[\n" else b"\n]\n")


def _write_jsonl(batches: Batches, schema: pa.Schema, stream: BinaryIO) -> None:
    for text in _objects(batches, schema):
        stream.write(text.encode("ascii") + b"\n")


def _csv_cell(text: str) -> str:
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if CSV_SPECIAL.search(text) else text


def _csv_column(column: pa.Array, alone: bool) -> list[str]:
    """Cells. In a column of its own NULL is written like an empty text: a reader would pass over an empty line."""
    texts = cell_texts(column, missing="", short=False)
    known = column.is_valid().to_pylist()
    return [_csv_cell(text) if is_known or alone else "" for text, is_known in zip(texts, known, strict=True)]


def _write_csv(batches: Batches, schema: pa.Schema, stream: BinaryIO) -> None:
    stream.write((",".join(map(_csv_cell, schema.names)) + "\n").encode())
    for batch in batches:
        columns = [_csv_column(column, len(schema) == 1) for column in batch.columns]
        for cells in zip(*columns, strict=True):
            stream.write((",".join(cells) + "\n").encode())


def _write_markdown(batches: Batches, schema: pa.Schema, stream: BinaryIO) -> None:
    rule = ["---:" if is_numeric(field.type) else "---" for field in schema]
    for cells in ([code_span(name) for name in schema.names], rule):
        stream.write(f"| {' | '.join(cells)} |\n".encode())
    for batch in batches:
        columns = [_markdown_column(column) for column in batch.columns]
        for cells in zip(*columns, strict=True):
            stream.write(f"| {' | '.join(cells)} |\n".encode())


def _markdown_column(column: pa.Array) -> list[str]:
    texts = cell_texts(column, missing=NOTHING, short=True)
    if is_numeric(column.type) or types.is_boolean(column.type):
        return texts
    known = column.is_valid().to_pylist()
    return [code_span(text) if is_known else text for text, is_known in zip(texts, known, strict=True)]


class _Counted(io.RawIOBase):
    """A pipe as pyarrow wants it: it asks where it is, which a pipe cannot say. Closing leaves the pipe open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(cast("bytes", data))
        self._stream.write(view)
        self._size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        self._stream.flush()


def _write_parquet(batches: Batches, schema: pa.Schema, stream: BinaryIO) -> None:
    with pq.ParquetWriter(pa.PythonFile(_Counted(stream), mode="w"), schema, compression="zstd") as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(part.nbytes for part in waiting) >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))


# ── table ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _blocks(batches: Batches, schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows in blocks of `BLOCK_ROWS`, at least one block."""
    waiting: list[pa.RecordBatch] = []
    empty = True
    for batch in batches:
        waiting.append(batch)
        while (num_rows := sum(part.num_rows for part in waiting)) >= BLOCK_ROWS:
            table = pa.Table.from_batches(waiting, schema)
            yield table.slice(0, BLOCK_ROWS)
            empty = False
            waiting = table.slice(BLOCK_ROWS).to_batches() if num_rows > BLOCK_ROWS else []
    if waiting or empty:
        yield pa.Table.from_batches(waiting, schema)


def _write_table(batches: Batches, schema: pa.Schema, stream: TextIO) -> None:
    console = report_console(stream)
    shown = _encodable(console.encoding)
    names = [shown(visible(name, lines=False)) for name in schema.names]
    right = [is_numeric(field.type) for field in schema]
    widths = [0] * len(names)
    head = True
    for block in _blocks(batches, schema):
        columns = [
            [shown(visible(text, lines=False)) for text in cell_texts(column, missing=NOTHING, short=True)]
            for column in block.columns
        ]
        if head or not console.is_terminal:  # on a terminal the widths of the first block stay: nothing else fits
            measured = [max(map(cell_len, [name, *column])) for name, column in zip(names, columns, strict=True)]
            widths = [max(pair) for pair in zip(widths, measured, strict=True)]
        if head and console.is_terminal:
            widths = fit(widths, console.width)
        layout = _Layout(widths, right, shown, console if console.is_terminal else None, stream)
        if head:
            layout.print_head(names)
            head = False
        for cells in zip(*columns, strict=True):
            layout.print_row(cells)


def _encodable(encoding: str) -> Callable[[str], str]:
    """What an encoding cannot show becomes an escape."""
    return lambda text: text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def fit(widths: list[int], width: int) -> list[int]:
    """Widths of the columns that a terminal of `width` shows: the widest give way, then the last are left out."""
    floor = [min(one, MIN_WIDTH) for one in widths]
    shown = len(widths)
    room = width
    while shown > 1 and sum(floor[:shown]) + 2 * (shown - 1) > room:
        shown -= 1
        room = width - len(f"  +{len(widths)} columns")
    fitted = [min(one, room) for one in widths[:shown]]
    while sum(fitted) + 2 * (shown - 1) > room and max(fitted) > MIN_WIDTH:
        widest = max(fitted)
        fitted[fitted.index(widest)] = widest - 1
    return fitted


class _Layout:
    """Prints lines of cells in columns. A terminal sees cut cells, everything else sees them whole."""

    def __init__(
        self, widths: list[int], right: list[bool], shown: Callable[[str], str], console: Console | None, stream: TextIO
    ) -> None:
        self._widths = widths
        self._right = right
        self._console = console
        self._stream = stream
        self._ellipsis = "…" if shown("…") == "…" else "~"
        self._line = "─" if shown("─") == "─" else "-"

    def _cell(self, text: str, position: int) -> str:
        width = self._widths[position]
        length = cell_len(text)
        if length > width and self._console is not None:
            return set_cell_size(text, width - 1) + self._ellipsis
        padding = " " * (width - length)
        return padding + text if self._right[position] else text + padding

    def _print(self, line: str, style: str = "") -> None:
        if self._console is None:
            self._stream.write(line.rstrip() + "\n")
        else:
            self._console.print(Text(line.rstrip(), style=style), no_wrap=True, crop=False, overflow="ignore")

    def print_head(self, names: list[str]) -> None:
        more = len(names) - len(self._widths)
        self._print(self._join(names) + (f"  +{more} columns" if more else ""), "bold")
        self._print("  ".join(self._line * width for width in self._widths), "dim")

    def print_row(self, cells: Iterable[str]) -> None:
        self._print(self._join(cells))

    def _join(self, cells: Iterable[str]) -> str:
        return "  ".join(self._cell(text, n) for text, n in zip(cells, range(len(self._widths)), strict=False))


_WRITERS: dict[str, Callable[[Batches, pa.Schema, BinaryIO], None]] = {
    "json": _write_json,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "md": _write_markdown,
    PARQUET: _write_parquet,
}
FORMATS = (TABLE, *_WRITERS)
"""What `--format` takes."""
