"""A backend without a model: its weights are a hash over everything it was trained on, in order.

Two runs trained on the same rows in the same order publish the same weights; one row lost, repeated or moved changes
them. So a test of restarts needs only to compare two hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ptctl.errors import InputNotFound
from ptctl.protocols import BackendSettings, Float32Array, Int64Array, PlannedStep, StepMetrics, TrainRows
from ptctl.shards.policies import CHECKPOINT

WEIGHTS_FILE = "fake_weights.json"


class FakeBackend:
    """Backend `fake`. Implements `ptctl.protocols.Backend`."""

    name: ClassVar[str] = "fake"

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self._state = ""

    def start(self) -> None:
        """Load the hash; a model directory without one is a random start. Raises InputNotFound for `load`."""
        file = self._settings.policy / WEIGHTS_FILE
        if file.exists():
            self._state = json.loads(file.read_text())["state"]
        elif self._settings.initialize == "random":
            self._state = hashlib.sha256(str(self._settings.seed).encode()).hexdigest()
        else:
            raise InputNotFound(f"no {WEIGHTS_FILE} in {self._settings.policy}")

    def begin_phase(self, settings: BackendSettings) -> None:
        """Keep the hash."""
        self._settings = settings

    def step(self, rows: TrainRows, planned: PlannedStep) -> StepMetrics:
        """Hash the tokens, weights and advantages of the step's rows into the state."""
        digest = hashlib.sha256(self._state.encode())
        for batch in planned.micro_batches:
            for index in batch:
                digest.update(rows.token_ids[rows.offsets[index] : rows.offsets[index + 1]].tobytes())
                digest.update(np.float64(planned.token_weights[index]).tobytes())
                digest.update(np.float64(rows.advantages[index]).tobytes())
        self._state = digest.hexdigest()
        return StepMetrics(
            loss=0.0, grad_norm=0.0, learning_rate=self._settings.optimizer.learning_rate, entropy=0.0, kl=0.0,
            clip_fraction=0.0, max_logprob_difference=0.0, num_loss_tokens=0, engine_s=0.0,
        )  # fmt: skip

    def logprobs(self, rows: TrainRows, micro_batches: Sequence[Int64Array]) -> Float32Array:
        """What the engine recorded: this backend agrees with every engine."""
        return rows.rollout_logprobs

    def publish(self, directory: Path, *, with_checkpoint: bool) -> str:
        """Write the hash and the model's small files."""
        text = json.dumps({"state": self._state})
        (directory / WEIGHTS_FILE).write_text(text)
        (directory / "config.json").write_text((self._settings.policy / "config.json").read_text())
        if with_checkpoint:
            (directory / CHECKPOINT).mkdir()
            (directory / CHECKPOINT / WEIGHTS_FILE).write_text(text)
        return hashlib.sha256(text.encode()).hexdigest()

    def from_main(self, text: str) -> str:
        """There is one process."""
        return text

    def is_main(self) -> bool:
        """There is one process."""
        return True

    def close(self) -> None:
        """Nothing is held."""
