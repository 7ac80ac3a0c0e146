"""Log-probabilities, entropy and the losses `sft` and `grpo` on vocabulary-parallel logits.

Every rank of a tensor parallel group holds the same n predictions and a slice of the vocabulary, so each sum over the
vocabulary is finished by a collective. A loss is the plain sum of token weight × token loss: the weights are normalised
over the whole step when it is planned (`ptctl.token_weights`), so nothing here is divided by tokens, micro-batches or
ranks.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from ptctl.backends.megatron.batches import MicroBatch
from ptctl.backends.megatron.mcore import parallel_state, vocab_parallel_cross_entropy
from ptctl.errors import UsageError
from ptctl.protocols import LossSettings

ALGORITHMS = ("sft", "grpo")

_MASKED_LOGIT = -1e9
"""Logit of the vocabulary's padding: its probability is exactly 0, and 0 × logit is 0, where −inf would give NaN."""


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Sums over the loss tokens of one micro-batch, kept on the device so that nothing waits for it.

    `sums` is [4]: loss, entropy, k3 and clipped tokens. `max_difference` is [1]: the largest |train − rollout|.
    """

    sums: Tensor
    max_difference: Tensor


def check_loss(settings: LossSettings) -> None:
    """Raises UsageError for an unknown algorithm or an impossible clip range."""
    if settings.algorithm not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {settings.algorithm!r}", hint=f"known: {', '.join(ALGORITHMS)}")
    if not (0 <= settings.clip_low <= 1 and settings.clip_high >= 0):
        raise UsageError(
            f"clip_low = {settings.clip_low} must be in [0, 1] and clip_high = {settings.clip_high} not below 0",
            hint="the ratio is clipped to [1 − clip_low, 1 + clip_high]",
        )


def picked_logits(logits: Tensor, batch: MicroBatch, vocab_size: int) -> Tensor:
    """# [n, V / ranks] float32 logits of the picked predictions, at their row's temperature, padding columns masked.

    `logits` is [b, s, V / ranks].
    """
    chosen = logits.flatten(0, 1).index_select(0, batch.picked).float() / batch.temperatures.unsqueeze(1)
    first_column = parallel_state.get_tensor_model_parallel_rank() * chosen.shape[1]
    num_real = min(max(vocab_size - first_column, 0), chosen.shape[1])
    if num_real < chosen.shape[1]:
        chosen[:, num_real:] = _MASKED_LOGIT
    return chosen


def token_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """# [n] log p(target) for `logits` [n, V / ranks] over the tensor parallel group. Overwrites `logits`."""
    return -vocab_parallel_cross_entropy(logits, targets)


@torch.no_grad()
def token_entropies(logits: Tensor) -> Tensor:
    """# [n] entropy in nats for `logits` [n, V / ranks] over the tensor parallel group.

    With m the largest logit and S = Σ exp(z − m): H = log S − Σ exp(z − m)(z − m) / S; m, S and the last sum are
    finished by collectives. A softmax over each rank's own slice would give ln 2 for four equal logits on two ranks,
    instead of ln 4.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    largest = logits.amax(dim=1)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(1)
    exponentials = shifted.exp()
    sums = torch.stack([exponentials.sum(1), shifted.mul_(exponentials).sum(1)])  # [2, n]
    distributed.all_reduce(sums, group=group)
    return sums[0].log() - sums[1] / sums[0]


def step_loss(logits: Tensor, batch: MicroBatch, settings: LossSettings, vocab_size: int) -> tuple[Tensor, TokenSums]:
    """Loss of one micro-batch and the sums for its metrics. `logits` is [b, s, V / ranks]."""
    chosen = picked_logits(logits, batch, vocab_size)
    entropies = token_entropies(chosen.detach())
    logprobs = token_logprobs(chosen, batch.targets)
    if settings.algorithm == "grpo":
        losses, clipped = clipped_policy_loss(
            logprobs, batch.rollout_logprobs, batch.advantages, settings.clip_low, settings.clip_high
        )
        log_ratio = logprobs.detach() - batch.rollout_logprobs
        divergence, num_clipped = k3_divergence(log_ratio).sum(), clipped.sum()
        difference = log_ratio.abs()
    else:
        losses = -logprobs
        divergence = num_clipped = losses.new_zeros(())
        difference = losses.new_zeros(len(losses))
    loss = (batch.token_weights * losses).sum()
    sums = torch.stack([loss.detach(), entropies.sum(), divergence, num_clipped]).double()
    return loss, TokenSums(sums, torch.cat([difference, difference.new_zeros(1)]).amax(0, keepdim=True))


def clipped_policy_loss(
    logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective per token (Schulman et al. 2017, equation 7; clip-higher of DAPO), as a loss.

    With r = exp(logprob − rollout logprob): loss = −min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A). Its gradient is
    −A·r·∇log p where the clip is not active and 0 where it is. All arguments are [n]; returns the losses [n] and where
    the clip is active [n].
    """
    ratios = torch.exp(logprobs - rollout_logprobs)
    plain = ratios * advantages
    limited = ratios.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -torch.minimum(plain, limited), limited.detach() < plain.detach()


def k3_divergence(log_ratio: Tensor) -> Tensor:
    """The k3 estimate of KL(rollout ‖ train) per token (Schulman 2020): exp(x) − 1 − x, x = train − rollout logprob.

    Never negative, 0 where the policies agree, unbiased because the tokens were sampled from the rollout policy.
    """
    return torch.expm1(log_ratio) - log_ratio
