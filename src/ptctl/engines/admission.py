"""What every engine checks before it takes a request, and the uniform numbers that it draws with."""

from __future__ import annotations

import math

import numpy as np

from ptctl.errors import RowFailure, UsageError
from ptctl.protocols import Float64Array, GenerateRequest
from ptctl.records import Sampling

_WORD = (1 << 64) - 1


def uniform_numbers(seed: int, count: int) -> Float64Array:
    """# [count] uniform in [0, 1): number i depends on `seed` and i alone (the counter-based generator Philox 4x64)."""
    return np.random.Generator(np.random.Philox(key=seed & _WORD)).random(count)


def check_sampling(sampling: Sampling) -> None:
    """Raise UsageError for settings that cannot be drawn from."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise UsageError(f"temperature {sampling.temperature} is not ≥ 0", hint="0 is greedy, 1 the policy itself")
    if not 0 < sampling.top_p <= 1:
        raise UsageError(f"top_p {sampling.top_p} is not in (0, 1]", hint="1 keeps every token")
    if sampling.top_k != -1 and sampling.top_k < 1:
        raise UsageError(f"top_k {sampling.top_k} is neither ≥ 1 nor -1", hint="-1 keeps every token")
    if sampling.max_new_tokens < 1:
        raise UsageError(f"max_new_tokens {sampling.max_new_tokens} is below 1")


def check_context(request: GenerateRequest, *, vocab_size: int, context_length: int) -> tuple[list[int], int]:
    """The context # [P] as a list, and how many tokens may follow it.

    Raises RowFailure(kind="engine") for a context that is empty, that leaves no room (it is never cut), or that has an
    id outside the vocabulary (which would crash a GPU, or read another row of the embedding).
    """
    context = [int(token_id) for token_id in request.prompt_ids]
    room = context_length - len(context)
    if not context:
        raise RowFailure(f"request {request.request_id} has an empty context", kind="engine")
    if room < 1:
        raise RowFailure(
            f"request {request.request_id} has a context of {len(context)} tokens, which leaves no room within"
            f" {context_length}",
            kind="engine",
        )
    if min(context) < 0 or max(context) >= vocab_size:
        outside = next(token_id for token_id in context if not 0 <= token_id < vocab_size)
        raise RowFailure(
            f"request {request.request_id} has the id {outside}, outside the vocabulary of {vocab_size}", kind="engine"
        )
    return context, min(request.sampling.max_new_tokens, room)
