"""Numbered policies: `policy.json`, weight files of the size that their headers say, groups consumed once."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ptctl.checking.problems import Problem, ProblemKind, counted, of_error
from ptctl.errors import PtctlError
from ptctl.records import Policy
from ptctl.shards.columns import compute
from ptctl.shards.dataset import expand
from ptctl.shards.policies import POLICY_FILE, SKIPPED_PREFIX, read_policy_file
from ptctl.shards.reader import read_table
from ptctl.shards.run_directory import RunDirectory

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS = "*.safetensors"
OTHER_WEIGHTS = "*_weights.*"
"""Of backends that write no safetensors."""
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
READ_BYTES = 1 << 22


def check_policies(directory: Path, *, deep: bool) -> list[Problem]:
    """Check a directory of numbered policies. `deep` reads the weights, and compares the groups with the batches."""
    problems: list[Problem] = []
    records: list[tuple[Path, Policy]] = []
    numbered = sorted((path for path in directory.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    for path in [*(place / POLICY_FILE for place in numbered), *sorted(directory.glob(f"{SKIPPED_PREFIX}*.json"))]:
        policy = _read(path, problems)
        if policy is None:
            continue
        records.append((path, policy))
        if path.name == POLICY_FILE:
            problems += _check_directory(path, policy, deep)
    if deep:
        problems += _check_consumed(records, _drawn(directory))
    return problems


def _read(path: Path, problems: list[Problem]) -> Policy | None:
    try:
        return read_policy_file(path)
    except PtctlError as error:
        problems.append(of_error(path, error))
    except (TypeError, ValueError) as error:
        detail = f"not what ptctl writes: {error}"
        problems.append(Problem(path=path, problem=ProblemKind.UNREADABLE, detail=detail))
    return None


def _check_directory(path: Path, policy: Policy, deep: bool) -> Iterator[Problem]:
    directory = path.parent
    if str(policy.policy_version) != directory.name:
        detail = f"it says version {policy.policy_version}, its directory is {directory.name}"
        yield Problem(path=path, problem=ProblemKind.CONTRADICTION, detail=detail)
    files = sorted(directory.glob(WEIGHTS))
    sound = True
    for problem in (*_check_index(directory), *(wrong for file in files for wrong in _check_size(file))):
        sound = False
        yield problem
    files = files or sorted(directory.glob(OTHER_WEIGHTS))
    if not files:
        yield Problem(path=directory, problem=ProblemKind.MISSING, detail="no weight files")
    elif deep and sound and (found := _sha256(files)) != policy.weights_sha256:
        detail = f"sha256 {found[:12]} of the weights, {POLICY_FILE} says {policy.weights_sha256[:12]}"
        yield Problem(path=directory, problem=ProblemKind.DIGEST, detail=detail)


def _check_index(directory: Path) -> Iterator[Problem]:
    path = directory / INDEX_FILE
    if not path.exists():
        return
    try:
        names = sorted(set(cast("dict[str, str]", json.loads(path.read_bytes())["weight_map"]).values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        yield Problem(path=path, problem=ProblemKind.UNREADABLE, detail="not an index of safetensors files")
        return
    for name in names:
        if not (directory / name).is_file():
            yield Problem(path=directory / name, problem=ProblemKind.MISSING, detail=f"{INDEX_FILE} names it")


def _check_size(path: Path) -> Iterator[Problem]:
    """A safetensors file is 8 bytes of length, a JSON header, and the data to which the header's offsets point."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEADER_LENGTH_BYTES)
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == HEADER_LENGTH_BYTES else MAX_HEADER_BYTES + 1
        try:
            if header_bytes > min(MAX_HEADER_BYTES, size_bytes):
                raise ValueError("the header is cut off")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
            ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            detail = f"not a safetensors file: {error}"
            yield Problem(path=path, problem=ProblemKind.UNREADABLE, detail=detail)
            return
    expected = HEADER_LENGTH_BYTES + header_bytes + max(ends, default=0)
    if size_bytes != expected:
        yield Problem(path=path, problem=ProblemKind.SIZE, detail=f"{size_bytes} bytes, its header says {expected}")


def _sha256(files: Sequence[Path]) -> str:
    """Over the contents of the files, in the order of their names, as backends compute it."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _drawn(policies: Path) -> pa.Array[Any] | None:
    """group_id of every draw of the run, read after the policies; None without batches, or where one cannot be read."""
    batches = RunDirectory(Path(os.path.abspath(policies)).parent).batches
    if not batches.is_dir():
        return None
    try:
        columns = [read_table(path, "draws", ["group_id"]).column(0) for path in expand(str(batches))]
    except PtctlError:
        return None  # the check of that dataset tells it
    return pa.concat_arrays([column.combine_chunks() for column in columns])


def _check_consumed(records: Sequence[tuple[Path, Policy]], drawn: pa.Array[Any] | None) -> Iterator[Problem]:
    """Each group is consumed by one policy, and was drawn."""
    consumer: dict[str, Path] = {}
    for path, policy in records:
        again: list[str] = []
        for group_id in policy.consumed_group_ids:
            if group_id in consumer:
                again.append(group_id)
            consumer.setdefault(group_id, path)
        if again:
            detail = counted("a group is consumed more than once", len(again), again[0])
            detail += f", first by {consumer[again[0]]}"
            yield Problem(path=path, problem=ProblemKind.DUPLICATE, detail=detail)
        if drawn is None:
            continue
        consumed = pa.array(policy.consumed_group_ids, type=pa.string())
        lost = consumed.filter(compute.invert(compute.is_in(consumed, value_set=drawn))).to_pylist()
        if lost:
            detail = counted("it consumed a group that no batch has", len(lost), str(lost[0]))
            yield Problem(path=path, problem=ProblemKind.UNKNOWN, detail=detail)
