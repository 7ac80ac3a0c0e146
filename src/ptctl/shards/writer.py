"""Rows → committed shard."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ptctl import __version__
from ptctl.records import ROW_TYPES, SCHEMA_VERSION
from ptctl.shards.columns import rows_to_table
from ptctl.shards.files import committed_file
from ptctl.shards.schema import column_types, fingerprint, schema_of

METADATA_KEY = b"ptctl"
"""Key of the JSON object in the Parquet key-value metadata."""
MAX_ROW_GROUP_BYTES = 128 * 1024 * 1024


def command_line() -> str:
    """The command that is running, for lineage."""
    return shlex.join(["ptctl", *sys.argv[1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a shard comes from; stored with it."""

    inputs: tuple[Path, ...] = ()
    """Shards that were read, or dataset directories where there are many."""
    recipe_digest: str = ""
    """sha256 of the resolved recipe."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further facts, such as the batch's phase."""

    def metadata(self, kind: str, directory: Path, num_rows: int) -> dict[str, Any]:
        """The JSON object that is stored.

        Inputs are named absolutely and relative to the shard, so that a run moves.
        """
        return {
            "kind": kind,
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint(kind),
            "code_version": __version__,
            "command": command_line(),
            "recipe_digest": self.recipe_digest,
            "inputs": [
                {"path": str(path.resolve()), "relative": os.path.relpath(path.resolve(), directory.resolve())}
                for path in self.inputs
            ],
            "num_rows": num_rows,
            "facts": dict(self.facts),
        }


def _leaf_paths(name: str, arrow: pa.DataType) -> list[str]:
    if pa.types.is_struct(arrow):
        return [leaf for part in arrow for leaf in _leaf_paths(f"{name}.{part.name}", part.type)]
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return _leaf_paths(f"{name}.list.element", arrow.value_type)
    if pa.types.is_map(arrow):
        return [f"{name}.key_value.key", f"{name}.key_value.value"]
    return [name]


def _encodings(kind: str) -> tuple[list[str], dict[str, str]]:
    """Columns to dictionary-encode, and those to byte-stream-split (token streams, but for bit-packed booleans)."""
    dictionary: list[str] = []
    split: dict[str, str] = {}
    for name, column in column_types(ROW_TYPES[kind]).items():
        leaves = _leaf_paths(name, column.arrow)
        if column.stream is None:
            dictionary.extend(leaves)
        elif column.stream != "bool":
            split.update(dict.fromkeys(leaves, "BYTE_STREAM_SPLIT"))
    return dictionary, split


def write_table(table: pa.Table, kind: str, path: Path, lineage: Lineage) -> Path:
    """Commit a table of the declared schema as the shard `path`. Raises CannotCreate or OutputError."""
    metadata = lineage.metadata(kind, path.parent, table.num_rows)
    schema = schema_of(kind).with_metadata({METADATA_KEY: json.dumps(metadata, sort_keys=True).encode()})
    dictionary, split = _encodings(kind)
    rows_per_group = max(1, int(table.num_rows * MAX_ROW_GROUP_BYTES / max(table.nbytes, 1)))
    with committed_file(path) as temporary:
        pq.write_table(
            table.cast(schema),
            temporary,
            row_group_size=rows_per_group,
            use_dictionary=dictionary,  # pyright: ignore[reportArgumentType] - a list of columns is documented
            column_encoding=split,
            compression="zstd",
            compression_level=1,
        )
    return path


def shard_name(ordinal: int) -> str:
    """A name that sorts in order of commitment and that no other process gives."""
    return f"part-{ordinal:05d}-{secrets.token_hex(4)}.parquet"


def write_rows(rows: Sequence[Any], kind: str, directory: Path, lineage: Lineage, *, ordinal: int = 0) -> Path:
    """Commit rows as one shard of the dataset `directory` and return its path."""
    return write_table(rows_to_table(kind, rows), kind, directory / shard_name(ordinal), lineage)
