"""Numbered policies: `policies/8/` holds what engines load, `checkpoint/` and, written last, `policy.json`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

from ptctl.errors import CorruptShard, InputNotFound
from ptctl.records import Policy

POLICY_FILE = "policy.json"
CHECKPOINT = "checkpoint"
SKIPPED_PREFIX = "skipped-"


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """What `policy.json` holds."""
    return asdict(policy) | {"consumed_group_ids": list(policy.consumed_group_ids)}


def read_policy_file(path: Path) -> Policy:
    """Read a `policy.json` or a `skipped-*.json`. Raises InputNotFound or CorruptShard."""
    try:
        loaded: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputNotFound(f"no {path.name} in {path.parent}") from error
    except ValueError as error:  # neither JSON nor UTF-8
        raise CorruptShard(f"cannot read {path}: {error}", hint="restore or remove it") from error
    known = {field.name for field in fields(Policy)}
    values: Any = cast("Any", loaded) if isinstance(loaded, dict) else {}
    if set(values) != known:
        raise CorruptShard(f"{path} has other fields than this version of ptctl writes")
    return Policy(**values | {"consumed_group_ids": tuple(values["consumed_group_ids"])})


def versions(directory: Path) -> list[int]:
    """Committed policy versions below `directory`, ascending."""
    if not directory.is_dir():
        return []
    return sorted(
        int(path.name) for path in directory.iterdir() if path.name.isdigit() and (path / POLICY_FILE).exists()
    )


def published(directory: Path) -> Iterator[Policy]:
    """Every record below `directory`: the policies in order of version, then the batches that taught nothing."""
    for version in versions(directory):
        yield read_policy_file(directory / str(version) / POLICY_FILE)
    if directory.is_dir():
        for path in sorted(directory.glob(f"{SKIPPED_PREFIX}*.json")):
            yield read_policy_file(path)


def latest(directory: Path) -> Path:
    """Directory of the newest policy below a policies directory, or `directory` itself where it is a policy or model.

    Raises InputNotFound where it is neither.
    """
    if (directory / POLICY_FILE).exists() or (directory / "config.json").exists():
        return directory
    found = versions(directory)
    if not found:
        raise InputNotFound(
            f"{directory} is neither a policy nor a model directory",
            hint="it needs config.json and a tokenizer, or numbered policies with policy.json",
        )
    return directory / str(found[-1])


def drop_old_checkpoints(directory: Path, keep: int) -> list[int]:
    """Remove the training checkpoint of all but the newest `keep` policies; their weights stay. 0 keeps all."""
    if keep == 0:
        return []
    dropped: list[int] = []
    for version in versions(directory)[:-keep]:
        checkpoint = directory / str(version) / CHECKPOINT
        if checkpoint.exists():
            shutil.rmtree(checkpoint)
            dropped.append(version)
    return dropped
