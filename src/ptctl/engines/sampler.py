"""Drawing the next token of many rows at once, each independent of what else is in the batch.

One uniform number per token (`ptctl.engines.admission.uniform_numbers`) goes through the inverse of the row's
cumulative distribution in float64. Batch composition changes float32 logits in the last bits; only a uniform number
that falls within those bits of a boundary could tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ptctl.records import Sampling


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """`Sampling` of B rows as tensors on the device of the logits."""

    temperatures: torch.Tensor
    """# [B] float64; 0 is greedy."""
    top_ks: torch.Tensor
    """# [B] int64; the size of the vocabulary or more keeps all."""
    top_ps: torch.Tensor
    """# [B] float64; infinity keeps all."""
    truncates: bool
    """Whether any row has a top-k or a top-p."""

    @staticmethod
    def of(samplings: list[Sampling], device: torch.device) -> DrawSettings:
        """Collect the settings of B rows."""
        keep_all = 2**31
        return DrawSettings(
            torch.tensor([s.temperature for s in samplings], dtype=torch.float64, device=device),
            torch.tensor([keep_all if s.top_k == -1 else s.top_k for s in samplings], device=device),
            torch.tensor(
                [math.inf if s.top_p == 1 else s.top_p for s in samplings], dtype=torch.float64, device=device
            ),
            any(s.top_k != -1 or s.top_p < 1 for s in samplings),
        )


def draw_tokens(
    logits: torch.Tensor, settings: DrawSettings, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one id for each row: `logits` # [B, V], `uniforms` # [B] float64 → ids # [B], log-probabilities # [B].

    The log-probability (float64) is log_softmax(logits / T) of the full vocabulary at the row's temperature (at 1 for
    greedy), also where top-k or top-p cut the candidates: that is the quantity that a trainer recomputes. It is NaN for
    a row whose logits are not numbers.
    """
    greedy = settings.temperatures == 0
    scale = torch.where(greedy, 1.0, settings.temperatures)
    logprobs = torch.log_softmax(logits.double() / scale[:, None], dim=-1)  # [B, V]
    probabilities = logprobs.exp()
    if settings.truncates:
        probabilities = _truncated(probabilities, settings)
    cumulative = probabilities.cumsum(-1)
    # A token of probability 0 adds nothing to the sum before it, so "first index whose sum exceeds" never takes it.
    threshold = (uniforms * cumulative[:, -1])[:, None]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
    chosen = torch.where(greedy, logprobs.argmax(-1), drawn)
    return chosen, logprobs.gather(-1, chosen[:, None]).squeeze(-1)


def _truncated(probabilities: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    """# [B, V] with 0 for what top-k, then top-p of the rest, removes. Of equal probabilities lower ids stay."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probabilities.shape[-1], device=probabilities.device)
    ordered = torch.where(ranks < settings.top_ks[:, None], ordered, 0.0)
    total = ordered.cumsum(-1)
    before = total.roll(1, dims=-1)
    before[:, 0] = 0.0
    ordered = torch.where(before < settings.top_ps[:, None] * total[:, -1:], ordered, 0.0)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered)
