"""What a policy or model directory says about itself, read from its JSON files alone: no weights, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ptctl.errors import DataError, InputNotFound, UsageError

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
POLICY_FILE = "policy.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDirectory:
    """The facts that an engine needs before it loads anything."""

    path: Path
    """The directory."""
    config: Mapping[str, Any]
    """`config.json`."""
    vocab_size: int | None
    """Rows of the embedding: ids in [0, vocab_size) can be fed. None where the config does not say."""
    context_length: int | None
    """Longest sequence that the positions allow; None where the config does not say."""
    eos_token_ids: frozenset[int]
    """End ids of `generation_config.json`, or of `config.json` where that has none."""
    layer_types: frozenset[str]
    """Kinds of layers, such as `full_attention`; empty where the config does not list them."""
    sliding_window: int | None
    """Tokens that a sliding layer sees; None where every layer sees all."""
    policy_version: int | None
    """From `policy.json`; None for a plain model directory."""

    def resolve_context_length(self, wanted: int | None, *, at_most: int | None = None) -> int:
        """The context length to serve: `wanted`, or what the model allows, which `at_most` may narrow further.

        Raises UsageError where `wanted` is not in that range, DataError where there is neither.
        """
        limits = [limit for limit in (self.context_length, at_most) if limit is not None]
        allowed = min(limits, default=None)
        if wanted is None:
            if allowed is None:
                raise DataError(
                    f"{self.path / CONFIG_FILE} does not say how long a sequence may be", hint="set context_length"
                )
            return allowed
        if wanted < 1 or (allowed is not None and wanted > allowed):
            raise UsageError(
                f"context_length {wanted} is outside 1..{allowed}, which {self.path} can serve",
                hint="leave it out to use what the model's config says",
            )
        return wanted


def read_model_directory(path: Path) -> ModelDirectory:
    """Read the JSON files of `path`.

    Raises InputNotFound where it is no model directory and DataError where one of its files cannot be right.
    """
    if not path.is_dir():
        raise InputNotFound(f"no directory {path}", hint="give a policy or a Hugging Face model directory")
    config = _read_json(path / CONFIG_FILE)
    if config is None:
        raise InputNotFound(
            f"{path} is no model directory: {CONFIG_FILE} is missing",
            hint="give a policy or a Hugging Face model directory (config.json, tokenizer.json, model.safetensors)",
        )
    text = _text_config(config)
    generation = _read_json(path / GENERATION_CONFIG_FILE) or {}
    policy = _read_json(path / POLICY_FILE) or {}
    eos = _token_ids(generation, path) or _token_ids(config, path) or _token_ids(text, path)
    return ModelDirectory(
        path=path,
        config=config,
        vocab_size=_integer(text, "vocab_size", path / CONFIG_FILE),
        context_length=_context_length(text, path / CONFIG_FILE),
        eos_token_ids=eos,
        layer_types=_layer_types(text),
        sliding_window=_sliding_window(text, path / CONFIG_FILE),
        policy_version=_integer(policy, "policy_version", path / POLICY_FILE),
    )


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files of a model directory, one or the shards of the index.

    Raises InputNotFound naming the file that is missing. Other formats (pickled weights) are not loaded.
    """
    index = _read_json(path / WEIGHTS_INDEX_FILE)
    names = [WEIGHTS_FILE] if index is None else sorted(set(dict[str, str](index.get("weight_map", {})).values()))
    for name in names:
        if not (path / name).is_file():
            raise InputNotFound(
                f"{path} has no weights: {name} is missing",
                hint="train or download the model first; only safetensors files are loaded",
            )
    return tuple(path / name for name in names)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}", hint="restore the file or the whole directory") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object", hint="restore the file or the whole directory")
    return cast("dict[str, Any]", value)


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model; multi-modal models nest it."""
    nested = config.get("text_config")
    return cast("Mapping[str, Any]", nested) if isinstance(nested, dict) else config


def _integer(values: Mapping[str, Any], key: str, path: Path) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DataError(f"{path}: {key} is {value!r}, not a count")
    return value


def _token_ids(values: Mapping[str, Any], path: Path) -> frozenset[int]:
    value = values.get("eos_token_id")
    if value is None:
        return frozenset()
    ids = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise DataError(f"{path}: eos_token_id is {value!r}, not an id or a list of ids")
    return frozenset(ids)


def _context_length(text: Mapping[str, Any], path: Path) -> int | None:
    lengths = [_integer(text, key, path) for key in ("max_position_embeddings", "n_positions")]
    return min((length for length in lengths if length is not None), default=None)


def _layer_types(text: Mapping[str, Any]) -> frozenset[str]:
    kinds = text.get("layer_types")
    return frozenset(str(kind) for kind in cast("list[Any]", kinds)) if isinstance(kinds, list) else frozenset()


def _sliding_window(text: Mapping[str, Any], path: Path) -> int | None:
    if not text.get("use_sliding_window", True) or _layer_types(text) == frozenset({"full_attention"}):
        return None
    return _integer(text, "sliding_window", path)
