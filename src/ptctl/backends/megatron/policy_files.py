"""Reads and writes policy directories: safetensors weights, config and tokenizer files, digests, fsync."""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Generator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ptctl.backends.megatron.geometry import Geometry
from ptctl.backends.megatron.weights import weight_shapes
from ptctl.errors import CorruptShard, DataError, InputNotFound, OutputError, UsageError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CHECKPOINT_DIRECTORY = "checkpoint"
MAX_SHARD_BYTES = 5 * 1024**3
"""Weights beyond this are split over several files, as transformers does."""

_WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5"})
_NOT_COPIED = frozenset({"policy.json", CHECKPOINT_DIRECTORY})
_IGNORED_TENSORS = ("rotary_emb.inv_freq",)
"""Endings of buffers that old files carry and that follow from the config."""


class WeightFiles:
    """The weights of one model directory, read tensor by tensor."""

    def __init__(self, directory: Path) -> None:
        """Raises InputNotFound where the index names a file that is not there, CorruptShard for a broken file."""
        self.directory = directory
        self._file_of: dict[str, Path] = {}
        for path in self._paths():
            with self._open(path) as handle:
                self._file_of |= dict.fromkeys(handle.keys(), path)

    def _paths(self) -> list[Path]:
        index = self.directory / INDEX_FILE
        if not index.exists():
            single = self.directory / SINGLE_FILE
            return [single] if single.exists() else []
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CorruptShard(f"{index}: not an index of safetensors files") from error
        return [self.directory / name for name in names]

    @contextlib.contextmanager
    def _open(self, path: Path) -> Generator[safe_open]:
        try:
            with safe_open(path, framework="pt") as handle:
                yield handle
        except FileNotFoundError as error:
            raise InputNotFound(f"{path}: not found, but {INDEX_FILE} names it") from error
        except SafetensorError as error:
            raise CorruptShard(f"{path}: {error}") from error

    def __bool__(self) -> bool:
        return bool(self._file_of)

    def check(self, geometry: Geometry) -> None:
        """Compare names with what the model needs.

        Raises DataError for missing tensors, and UsageError for tensors that would be dropped: these belong to another
        kind of model.
        """
        needed = weight_shapes(geometry).keys()
        missing = sorted(needed - self._file_of.keys())
        if missing:
            raise DataError(f"{self.directory}: {len(missing)} tensors are missing, such as {', '.join(missing[:3])}")
        extra = sorted(
            name
            for name in self._file_of.keys() - needed
            if not name.endswith(_IGNORED_TENSORS) and not (geometry.tied and name == "lm_head.weight")
        )
        if extra:
            raise UsageError(
                f"{self.directory}: {len(extra)} tensors have no place in the model, such as {', '.join(extra[:3])}"
            )

    def read(self, name: str) -> Tensor:
        """The tensor `name`, in the type that it has in the file."""
        with self._open(self._file_of[name]) as handle:
            return handle.get_tensor(name)


def side_files(directory: Path) -> dict[str, bytes]:
    """Config, tokenizer and every other file of a model directory that holds no weights, by relative path.

    `policy.json`, `checkpoint/`, weight files, their index, hidden and temporary files are left out. They are read when
    training starts, so that a long run can still publish after its first policy was pruned.
    """
    found: dict[str, bytes] = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in relative.parts)
        weights = path.suffix in _WEIGHT_SUFFIXES or path.name.endswith(".index.json")
        if path.is_file() and not hidden and not weights and relative.parts[0] not in _NOT_COPIED:
            found[relative.as_posix()] = path.read_bytes()
    return found


def write_side_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write what `side_files` read."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_weights(directory: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES) -> str:
    """Write `model.safetensors`, or beyond `max_shard_bytes` several files with an index; returns a digest.

    The digest, a sha256 in hex, is over the contents of the weight files in the order of their names; for a single file
    it is the sha256 of that file.
    """
    shards: list[dict[str, Tensor]] = [{}]
    size_bytes = total_bytes = 0
    for name, tensor in tensors.items():
        if shards[-1] and size_bytes + tensor.nbytes > max_shard_bytes:
            shards.append({})
            size_bytes = 0
        shards[-1][name] = tensor
        size_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    if len(shards) == 1:
        files = {SINGLE_FILE: shards[0]}
    else:
        files = {f"model-{i:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards, start=1)}
        weight_map = {name: file for file, shard in files.items() for name in shard}
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (directory / INDEX_FILE).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    digest = hashlib.sha256()
    for file, shard in files.items():
        save_file(shard, directory / file, metadata={"format": "pt"})
        with open(directory / file, "rb") as written:
            while block := written.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def sync_directory(directory: Path) -> None:
    """fsync every file below `directory`, and the directories themselves."""
    for folder, _, names in os.walk(directory):
        for path in [*(os.path.join(folder, name) for name in names), folder]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def writing_to(directory: Path) -> Generator[None]:
    """Turn what fails while writing into OutputError, naming the directory."""
    try:
        yield
    except OutputError:
        raise
    except (OSError, SafetensorError) as error:
        raise OutputError(f"{directory}: {error}", hint="is the disk full, or the directory not writable?") from error
