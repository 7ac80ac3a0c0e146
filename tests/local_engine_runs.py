"""Running the local engine in tests, and what plain transformers says about its completions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ptctl.engines.local import LocalEngine
from ptctl.protocols import Completion, EngineSettings, GenerateRequest
from ptctl.records import Sampling

_T = TypeVar("_T")


def with_engine(
    policy: Path,
    use: Callable[[LocalEngine], Awaitable[_T]],
    *,
    max_running: int = 256,
    context_length: int | None = None,
) -> _T:
    async def run() -> _T:
        settings = EngineSettings(policy=policy, max_running=max_running, context_length=context_length)
        engine = LocalEngine(settings)
        try:
            await engine.start()
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def make_requests(count: int, temperature: float = 1.0, max_new_tokens: int = 20) -> list[GenerateRequest]:
    """Contexts of 1 to 60 random ids."""
    generator = np.random.default_rng(0)
    return [
        GenerateRequest(
            request_id=f"r{index}",
            prompt_ids=generator.integers(8, 150, size=1 + index * 13 % 60).tolist(),
            sampling=Sampling(temperature=temperature, max_new_tokens=max_new_tokens),
            seed=100 + index,
            episode_seed=index,
        )
        for index in range(count)
    ]


async def generate_all(engine: LocalEngine, requests: Sequence[GenerateRequest]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


@lru_cache(maxsize=2)
def _plain_model(policy: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(str(policy), dtype=torch.float32).eval()


def plain_logprobs(policy: Path, request: GenerateRequest, completion: Completion) -> torch.Tensor:
    """# [C, V] log-probabilities at each place of a completion by a plain forward of transformers."""
    model = _plain_model(policy)
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double()
    first = len(request.prompt_ids) - 1
    return torch.log_softmax(logits / (request.sampling.temperature or 1.0), -1)[first:-1]


def teacher_forced(policy: Path, request: GenerateRequest, completion: Completion) -> list[float]:
    """# [C] log-probabilities of the tokens of a completion by a plain forward of transformers."""
    logprobs = plain_logprobs(policy, request, completion)
    return [float(logprobs[index, token]) for index, token in enumerate(completion.token_ids)]


def ids_of(completions: Sequence[Completion]) -> list[list[int]]:
    return [list(completion.token_ids) for completion in completions]
