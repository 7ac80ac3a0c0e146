"""The backend `megatron`. See the package's docstring for its parts."""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ptctl.backends.megatron.batches import MicroBatch, build_micro_batch, check_rows, pick_loss_tokens
from ptctl.backends.megatron.checkpoint import load_checkpoint, read_progress, save_checkpoint
from ptctl.backends.megatron.geometry import Geometry, read_geometry
from ptctl.backends.megatron.losses import TokenSums, check_loss, picked_logits, step_loss, token_logprobs
from ptctl.backends.megatron.mcore import get_forward_backward_func
from ptctl.backends.megatron.model import Model, build_model, training_dtype
from ptctl.backends.megatron.policy_files import (
    CHECKPOINT_DIRECTORY,
    WeightFiles,
    side_files,
    sync_directory,
    write_side_files,
    write_weights,
    writing_to,
)
from ptctl.backends.megatron.runtime import Runtime
from ptctl.backends.megatron.updates import Updates, check_optimizer
from ptctl.backends.megatron.weights import export_weights, load_weights, random_weights
from ptctl.errors import DataError, InputNotFound, UsageError
from ptctl.protocols import BackendSettings, Float32Array, Int64Array, PlannedStep, StepMetrics, TrainRows

INITIALIZATIONS = ("load", "random")


class MegatronBackend:
    """Trains a policy with Megatron-Core; a `ptctl.protocols.Backend`.

    One process, or several data parallel ones under torchrun. Without a GPU it computes in float32 on the CPU; the
    number of threads is the caller's (`OMP_NUM_THREADS` or `torch.set_num_threads`), and one is the fastest for a tiny
    model. Megatron keeps its parallel groups in globals, so a process has one open backend at a time.
    """

    name: ClassVar[str] = "megatron"

    def __init__(self, settings: BackendSettings) -> None:
        """Raises UsageError for settings that contradict each other or are not known."""
        _check_settings(settings)
        self._settings = settings
        self._runtime = Runtime()
        self._geometry: Geometry | None = None
        self._model: Model | None = None
        self._updates: Updates | None = None
        self._side_files: dict[str, bytes] = {}

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Build the model and load the policy: its checkpoint where that is of the same phase, its weights otherwise.

        A checkpoint of the same phase restores weights, Adam's moments and the schedule, so that training goes on as if
        it had never stopped. Raises InputNotFound, UsageError or DataError for a directory that cannot be trained from.
        """
        policy = self._settings.policy
        self._geometry = read_geometry(policy)
        self._side_files = side_files(policy)
        progress = read_progress(policy / CHECKPOINT_DIRECTORY)
        resumed = progress if progress is not None and progress.phase == self._settings.phase else None
        weights = WeightFiles(policy) if resumed is None else None
        if weights is not None and not weights and self._settings.initialize == "load":
            raise InputNotFound(
                f"{policy}: no safetensors weights", hint='initialize = "random" starts from random weights'
            )
        self._runtime.start(self._settings.seed)
        try:
            with warnings.catch_warnings():  # Megatron deprecates defaults of its own
                warnings.simplefilter("ignore")
                self._model = build_model(self._geometry, training_dtype(self._geometry))
            if weights is not None:
                self._fill(self._model, self._geometry, weights)
            self._updates = Updates(self._model, self._settings.optimizer)
            if resumed is not None:
                load_checkpoint(policy / CHECKPOINT_DIRECTORY, self._model, self._updates, resumed)
        except BaseException:
            self.close()
            raise

    def _fill(self, model: Model, geometry: Geometry, weights: WeightFiles) -> None:
        read: Callable[[str], Tensor] = random_weights(geometry, self._settings.seed)
        if weights:
            weights.check(geometry)
            read = weights.read
        load_weights(model.named_parameters(), geometry, read)

    def begin_phase(self, settings: BackendSettings) -> None:
        """Keep the weights and start a fresh optimizer and schedule; checkpoints name the new phase from now on."""
        _check_settings(settings)
        model = self._started()[1]
        self._settings = settings
        self._updates = Updates(model, settings.optimizer)

    def from_main(self, text: str) -> str:
        """What rank 0 said, on every rank."""
        return self._runtime.from_main(text)

    def is_main(self) -> bool:
        """True in rank 0."""
        return self._runtime.rank == 0

    def close(self) -> None:
        """Free the model and destroy the process groups; safe to call twice."""
        self._model = self._updates = None
        self._runtime.close()

    def _started(self) -> tuple[Geometry, Model, Updates]:
        if self._geometry is None or self._model is None or self._updates is None:
            raise UsageError("the backend is not started", hint="call start first")
        return self._geometry, self._model, self._updates

    # ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, rows: TrainRows, planned: PlannedStep) -> StepMetrics:
        """One optimizer step.

        Raises DataError or UsageError for rows that cannot be trained on, and DataError for a non-finite loss or
        gradient; nothing is updated then.
        """
        began = time.perf_counter()
        geometry, model, updates = self._started()
        indices = check_rows(rows, planned.micro_batches, geometry)
        num_tokens = pick_loss_tokens(rows, planned.token_weights, indices)
        if num_tokens == 0:
            raise DataError("the step has no loss tokens", hint="leave steps without a signal out of the plan")
        model.zero_gradients()
        updates.clear_gradients()
        batches = [
            build_micro_batch(rows, share, planned.token_weights, self._runtime.device)
            for share in self._runtime.deal(planned.micro_batches)
        ]
        loss = functools.partial(_loss_of_batch, settings=self._settings.loss, vocab_size=geometry.vocab_size)
        parts: list[TokenSums] = _run_schedule(model, batches, loss, forward_only=False)
        sums = self._runtime.sum_over_ranks(torch.stack([part.sums for part in parts]).sum(0)).tolist()
        difference = self._runtime.max_over_ranks(torch.stack([part.max_difference for part in parts]).amax(0)).item()
        norm, learning_rate = updates.apply(sums[0])
        return StepMetrics(
            loss=sums[0],
            grad_norm=norm,
            learning_rate=learning_rate,
            entropy=sums[1] / num_tokens,
            kl=sums[2] / num_tokens,
            clip_fraction=sums[3] / num_tokens,
            max_logprob_difference=difference,
            num_loss_tokens=num_tokens,
            engine_s=time.perf_counter() - began,
        )

    @torch.no_grad()
    def logprobs(self, rows: TrainRows, micro_batches: Sequence[Int64Array]) -> Float32Array:
        """# [T] log-probability of each token at its row's temperature; 0 at first tokens and in rows not asked for."""
        geometry, model, _ = self._started()
        check_rows(rows, micro_batches, geometry)
        shares = self._runtime.deal(micro_batches)
        batches = [build_micro_batch(rows, share, None, self._runtime.device) for share in shares]
        compute = functools.partial(_logprobs_of_batch, vocab_size=geometry.vocab_size)
        parts: list[Tensor] = _run_schedule(model, batches, compute, forward_only=True) if batches else []
        result = np.zeros(len(rows.token_ids), dtype=np.float32)
        for batch, part in zip(batches, parts, strict=True):
            result[batch.token_index] = part.cpu().numpy()
        if self._runtime.world_size == 1:
            return result
        return self._runtime.sum_over_ranks(torch.from_numpy(result).to(self._runtime.device)).cpu().numpy()

    def publish(self, directory: Path, *, with_checkpoint: bool) -> str:
        """Write weights, the source policy's other files and, where asked, `checkpoint/` into `directory`; fsync all.

        The caller makes it atomic by giving a temporary directory. Every rank calls it and gets the sha256 of the
        weights (see `policy_files.write_weights`). Raises OutputError where writing fails.
        """
        geometry, model, updates = self._started()
        checkpoint = directory / CHECKPOINT_DIRECTORY
        digest = ""
        with writing_to(directory):
            if self.is_main():
                (checkpoint if with_checkpoint else directory).mkdir(parents=True, exist_ok=True)
                exported = export_weights(model.named_parameters(), geometry)
                digest = write_weights(directory, {name: tensor.contiguous().cpu() for name, tensor in exported})
                write_side_files(directory, self._side_files)
            digest = self._runtime.from_main(digest)
            if with_checkpoint:
                save_checkpoint(checkpoint, model, updates, self._settings.phase)
            if self.is_main():
                sync_directory(directory)
        return self._runtime.from_main(digest)


def _check_settings(settings: BackendSettings) -> None:
    if settings.initialize not in INITIALIZATIONS:
        raise UsageError(f"unknown initialize {settings.initialize!r}", hint=f"known: {', '.join(INITIALIZATIONS)}")
    check_optimizer(settings.optimizer)
    check_loss(settings.loss)


def _run_schedule(
    model: Model, batches: Sequence[MicroBatch], finish: Callable[..., Any], *, forward_only: bool
) -> list[Any]:
    """Megatron's forward-backward schedule over `batches`; returns what `finish(logits, batch=…)` reported for each.

    `finish` returns (loss, report); on the forward pass alone the loss is not used.
    """

    def forward_step(iterator: Iterator[MicroBatch], chunk: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        batch = next(iterator)
        return chunk(batch.input_ids, batch.position_ids, None), functools.partial(report, batch)

    def report(batch: MicroBatch, logits: Tensor) -> tuple[Tensor, int, Any]:
        loss, part = finish(logits, batch=batch)
        return loss, 0, part  # no token count: see model._sum_gradients

    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(batches),
        model=list(model.wrapped),
        num_microbatches=len(batches),
        seq_length=max(batch.input_ids.shape[1] for batch in batches),
        micro_batch_size=max(batch.input_ids.shape[0] for batch in batches),
        forward_only=forward_only,
    )


def _loss_of_batch(logits: Tensor, *, batch: MicroBatch, settings: Any, vocab_size: int) -> tuple[Tensor, TokenSums]:
    return step_loss(logits, batch, settings, vocab_size)


def _logprobs_of_batch(logits: Tensor, *, batch: MicroBatch, vocab_size: int) -> tuple[Tensor, Tensor]:
    logprobs = token_logprobs(picked_logits(logits, batch, vocab_size), batch.targets)
    return logits.new_zeros(()), logprobs
