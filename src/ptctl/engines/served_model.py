"""A loaded model with its decoder: what the local engine's thread owns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ptctl.engines.decoder import BatchDecoder
from ptctl.engines.weights import load_model, load_weights

_TOLERANCE_FLOAT32 = 2e-3
_TOLERANCE_HALF = 0.25


class ServedModel:
    """Weights that can be exchanged, and the decoder over them. Used from one thread.

    Built on the GPU where there is one. Raises what `load_model` raises, and UsageError for an architecture that the
    decoder cannot run.
    """

    decoder: BatchDecoder
    """Decodes with the current weights."""

    def __init__(
        self, policy: Path, *, context_length: int, max_running: int, num_threads: int, stop_token_ids: Iterable[int]
    ) -> None:
        torch.set_num_threads(num_threads)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model: Any = load_model(policy, self._device)
        self.decoder = BatchDecoder(
            self._model,
            device=self._device,
            context_length=context_length,
            max_running=max_running,
            stop_token_ids=stop_token_ids,
        )
        exact = self._model.dtype == torch.float32
        self.decoder.check_model(_TOLERANCE_FLOAT32 if exact else _TOLERANCE_HALF)

    def load_policy(self, policy: Path) -> None:
        """Serve other weights of the same architecture; no row may be running. Raises what `load_weights` raises."""
        self._model = load_weights(self._model, policy, self._device)
        self.decoder.replace_model(self._model)
