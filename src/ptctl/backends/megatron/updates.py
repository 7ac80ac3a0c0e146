"""Megatron's Adam and learning-rate schedule for one phase, and the one update of a step."""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from typing import Any

from ptctl.backends.megatron.mcore import (
    ChainedOptimizer,
    OptimizerConfig,
    OptimizerParamScheduler,
    clip_grad_by_total_norm_fp32,
    get_megatron_optimizer,
)
from ptctl.backends.megatron.model import Model
from ptctl.errors import DataError, UsageError
from ptctl.protocols import OptimizerSettings

DECAYS = ("constant", "cosine", "linear")


def check_optimizer(settings: OptimizerSettings) -> None:
    """Raises UsageError for settings that contradict each other."""
    s = settings
    if s.decay not in DECAYS:
        raise UsageError(f"unknown decay {s.decay!r}", hint=f"known: {', '.join(DECAYS)}")
    if not 0 <= s.min_learning_rate <= s.learning_rate:
        raise UsageError(f"min_learning_rate = {s.min_learning_rate} must be in [0, learning_rate = {s.learning_rate}]")
    if s.num_warmup_steps < 0 or s.num_decay_steps < 0:
        raise UsageError("num_warmup_steps and num_decay_steps must not be negative")
    if 0 < s.num_decay_steps <= s.num_warmup_steps:
        raise UsageError(
            f"num_warmup_steps = {s.num_warmup_steps} must be below num_decay_steps = {s.num_decay_steps}",
            hint="steps of warm-up and decay both count from the start of the phase",
        )
    if not (0 <= s.beta1 < 1 and 0 <= s.beta2 < 1 and s.epsilon > 0 and s.weight_decay >= 0 and s.max_grad_norm >= 0):
        raise UsageError("betas must be in [0, 1), epsilon above 0, weight_decay and max_grad_norm not below 0")


class Updates:
    """Optimizer and schedule of one phase.

    Weight decay leaves out biases and norms, as Megatron does. The k-th step of a phase, from 1, uses the schedule's
    value at k: warm-up reaches the full rate with its last step and decay the minimum with its last step, and the first
    step of a warm-up is not lost to a rate of 0.
    """

    def __init__(self, model: Model, settings: OptimizerSettings) -> None:
        self.settings = settings
        config = OptimizerConfig(
            optimizer="adam",
            lr=settings.learning_rate,
            min_lr=settings.min_learning_rate,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.beta1,
            adam_beta2=settings.beta2,
            adam_eps=settings.epsilon,
            clip_grad=settings.max_grad_norm,
            bf16=model.config.bf16,
            params_dtype=model.config.params_dtype,
            use_distributed_optimizer=False,
        )
        optimizer = get_megatron_optimizer(config, list(model.wrapped), use_gloo_process_groups=False)
        assert isinstance(optimizer, ChainedOptimizer)
        self.optimizer = optimizer
        self.scheduler = self._make_scheduler()

    def _make_scheduler(self) -> OptimizerParamScheduler:
        s = self.settings
        return OptimizerParamScheduler(
            self.optimizer,
            init_lr=0.0,
            max_lr=s.learning_rate,
            min_lr=s.min_learning_rate,
            lr_warmup_steps=s.num_warmup_steps,
            lr_decay_steps=s.num_decay_steps or s.num_warmup_steps + 1,
            lr_decay_style=s.decay if s.num_decay_steps else "constant",
            start_wd=s.weight_decay,
            end_wd=s.weight_decay,
            wd_incr_steps=0,
            wd_incr_style="constant",
            use_checkpoint_opt_param_scheduler=False,
            override_opt_param_scheduler=True,
        )

    @property
    def num_steps(self) -> int:
        """Updates made in this phase."""
        return int(self.scheduler.num_steps)

    def clear_gradients(self) -> None:
        """Forget the gradients of the step before."""
        self.optimizer.zero_grad()

    def apply(self, loss: float) -> tuple[float, float]:
        """Clip and update; returns the gradient's norm before clipping and the learning rate.

        Raises DataError for a non-finite loss or norm; weights, optimizer and schedule are then as before.
        """
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DataError(
                f"step {self.num_steps + 1}: the loss is {loss}, the gradient norm {norm}; nothing was updated",
                hint="look for non-finite advantages or log-probabilities, or lower the learning rate",
            )
        if self.settings.max_grad_norm > 0:
            for part in self.optimizer.chained_optimizers:  # dense and expert parameters; the norm is over both
                clip_grad_by_total_norm_fp32(list(part.get_parameters()), self.settings.max_grad_norm, norm)
        self.scheduler.step(1)
        self.optimizer.step_with_ready_grads()
        return norm, float(self.optimizer.param_groups[0]["lr"])

    def restore(self, optimizer_state: Any, num_steps: int) -> None:
        """Take Adam's moments from a checkpoint and continue the schedule after `num_steps`.

        Rates, betas and epsilon stay those of the settings, so that an edited recipe is obeyed and not the checkpoint.
        """
        if num_steps == 0:
            return
        parts = self.optimizer.chained_optimizers
        states = [optimizer_state] if len(parts) == 1 else [optimizer_state[number] for number in range(len(parts))]
        for part, state in zip(parts, states, strict=True):
            groups = {_group_key(group): group for group in part.param_groups}
            for loaded in state.get("optimizer", state)["param_groups"]:  # nested where there are float32 masters
                current = groups[_group_key(loaded)]
                loaded.update({name: value for name, value in current.items() if name not in ("params", "step")})
        self.optimizer.load_state_dict(optimizer_state)
        self.scheduler.step(num_steps)


def _group_key(group: dict[str, Any]) -> tuple[float, bool]:
    """What tells Megatron's parameter groups apart under any settings: weight decay or none, expert or dense."""
    return float(group["wd_mult"]), bool(group["is_expert_parallel"])
