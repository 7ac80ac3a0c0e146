"""The engine contract on the in-process engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptctl.engines.local import LocalEngine
from ptctl.protocols import Engine, EngineSettings
from ptctl.testing.engine_contract import EngineContract
from tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        f"{name}-{seed}": make_tiny_model(root / f"{name}-{seed}", seed=seed, architecture=name)
        for name in ("llama", "qwen3")
        for seed in (0, 1)
    }


class TestLocalEngine(EngineContract):
    architecture = "llama"
    max_new_tokens = 32

    @pytest.fixture(autouse=True)
    def _models(self, models: dict[str, Path]) -> None:
        self.models = models

    def make_engine(self, context_length: int | None = None) -> Engine:
        policy = self.models[f"{self.architecture}-0"]
        return LocalEngine(EngineSettings(policy=policy, context_length=context_length))

    def other_policy(self) -> Path:
        return self.models[f"{self.architecture}-1"]


class TestLocalEngineWithFewPlaces(TestLocalEngine):
    """Five requests at a time, grouped-query attention: rows wait, join and leave in the middle."""

    architecture = "qwen3"

    def make_engine(self, context_length: int | None = None) -> Engine:
        policy = self.models[f"{self.architecture}-0"]
        return LocalEngine(EngineSettings(policy=policy, context_length=context_length, max_running=5))
