"""What is read from the JSON files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptctl.engines.model_directory import read_model_directory, weight_files
from ptctl.errors import DataError, InputNotFound, UsageError


def _write(directory: Path, config: dict[str, Any], **files: Any) -> Path:
    for name, content in {"config": config, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_facts_of_a_plain_model(tmp_path: Path) -> None:
    model = read_model_directory(_write(tmp_path, {"vocab_size": 10, "max_position_embeddings": 64, "eos_token_id": 2}))
    assert (model.vocab_size, model.context_length, model.sliding_window) == (10, 64, None)
    assert model.eos_token_ids == {2}
    assert model.policy_version is None


def test_generation_config_and_policy_json_come_first(tmp_path: Path) -> None:
    config = {"eos_token_id": 2, "text_config": {"vocab_size": 7, "max_position_embeddings": 9}}
    path = _write(tmp_path, config, generation_config={"eos_token_id": [3, 4]}, policy={"policy_version": 5})
    model = read_model_directory(path)
    assert model.eos_token_ids == {3, 4}
    assert model.policy_version == 5
    assert (model.vocab_size, model.context_length) == (7, 9)


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({}, 8),
        ({"use_sliding_window": False}, None),
        ({"layer_types": ["full_attention", "full_attention"]}, None),
        ({"layer_types": ["full_attention", "sliding_attention"]}, 8),
    ],
)
def test_sliding_window(tmp_path: Path, fields: dict[str, Any], window: int | None) -> None:
    assert read_model_directory(_write(tmp_path, {"sliding_window": 8, **fields})).sliding_window == window


def test_context_length_to_serve(tmp_path: Path) -> None:
    model = read_model_directory(_write(tmp_path, {"max_position_embeddings": 64}))
    assert model.resolve_context_length(None) == 64
    assert model.resolve_context_length(None, at_most=16) == 16
    assert model.resolve_context_length(32) == 32
    with pytest.raises(UsageError, match=r"65 is outside 1\.\.64"):
        model.resolve_context_length(65)
    with pytest.raises(UsageError, match=r"outside 1\.\.16"):
        model.resolve_context_length(32, at_most=16)
    unknown = read_model_directory(_write(tmp_path, {}))
    assert unknown.resolve_context_length(10_000) == 10_000
    with pytest.raises(DataError, match="how long"):
        unknown.resolve_context_length(None)


def test_what_is_no_model_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no directory"):
        read_model_directory(tmp_path / "nowhere")
    with pytest.raises(InputNotFound, match=r"config\.json is missing") as caught:
        read_model_directory(tmp_path)
    assert caught.value.hint is not None


@pytest.mark.parametrize("text", ["{", "[]", '{"vocab_size": "many"}', '{"eos_token_id": "</s>"}'])
def test_a_config_that_cannot_be_right(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json|eos_token_id"):
        read_model_directory(tmp_path)


def test_weight_files(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match=r"model\.safetensors is missing"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == (tmp_path / "model.safetensors",)
    index = {"weight_map": {"a": "part-2.safetensors", "b": "part-1.safetensors", "c": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "part-1.safetensors").touch()
    with pytest.raises(InputNotFound, match=r"part-2\.safetensors is missing"):
        weight_files(tmp_path)
    (tmp_path / "part-2.safetensors").touch()
    assert [path.name for path in weight_files(tmp_path)] == ["part-1.safetensors", "part-2.safetensors"]
