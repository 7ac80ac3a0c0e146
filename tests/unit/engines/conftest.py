"""Tiny models, made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_model import make_tiny_model

MODELS = {
    "llama": {"architecture": "llama"},
    "other": {"architecture": "llama", "seed": 1},
    "untied": {"architecture": "llama", "untied": True},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make_tiny_model(root / name, **options) for name, options in MODELS.items()}  # type: ignore[arg-type]
