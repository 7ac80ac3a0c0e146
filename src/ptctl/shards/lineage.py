"""Where a shard comes from: the JSON object in its metadata and in the manifest."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptctl import __version__
from ptctl.records import SCHEMA_VERSION
from ptctl.shards.schema import fingerprint

METADATA_KEY = b"ptctl"
"""Key of the lineage (a JSON object) in the Parquet key-value metadata, known when the shard is opened."""
CONTENT_KEY = b"ptctl_content"
"""Key of what is known only at the end (a JSON object): `num_rows`, `data_bytes` and `data_sha256`."""


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

    def origin(self, kind: str, directory: Path) -> dict[str, Any]:
        """The JSON object that is stored with a shard in `directory`.

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
            "facts": dict(self.facts),
        }

    def metadata(self, kind: str, directory: Path, num_rows: int) -> dict[str, Any]:
        """The JSON object of a whole dataset of so many rows."""
        return self.origin(kind, directory) | {"num_rows": num_rows}
