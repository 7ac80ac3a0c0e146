"""Tokens per CPU second of the local engine, beside transformers' own `generate` at batch 32, in one run.

    python benchmarks/local_engine.py MODEL [--requests 256] [--max-new-tokens 24] [--threads 1]

Both get the same contexts, sample at temperature 1 and stop at the end token. Round 1 includes growing the buffers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from ptctl.engines.local import LocalEngine
from ptctl.protocols import EngineSettings, GenerateRequest
from ptctl.records import Message, Sampling


def _report(name: str, num_tokens: int, cpu_s: float, wall_s: float) -> None:
    print(
        f"{name:<34} {num_tokens:>7} tokens {cpu_s:8.3f} CPU s {wall_s:8.3f} s {num_tokens / cpu_s:>10.0f} tokens/CPU s"
    )


def _request(engine: LocalEngine, index: int, round_: int, max_new_tokens: int) -> GenerateRequest:
    messages = [Message(role="user", content=f"what is the sum of {index} and {index * 7}?")]
    text = engine.tokenizer.render(messages, (), add_generation_prompt=True)
    return GenerateRequest(
        request_id=str(index),
        prompt_ids=engine.tokenizer.encode(text),
        sampling=Sampling(max_new_tokens=max_new_tokens),
        seed=index,
        episode_seed=round_ << 32 | index,  # another episode each round, so that no prefix is known
    )


async def _local(arguments: argparse.Namespace) -> list[list[int]]:
    engine = LocalEngine(EngineSettings(policy=arguments.model, num_threads=arguments.threads))
    await engine.start()
    requests: list[GenerateRequest] = []
    for round_ in range(3):
        requests = [_request(engine, index, round_, arguments.max_new_tokens) for index in range(arguments.requests)]
        cpu, wall = time.process_time(), time.perf_counter()
        completions = await asyncio.gather(*(engine.generate(request) for request in requests))
        num_tokens = sum(len(completion.token_ids) for completion in completions)
        _report(f"local, round {round_ + 1}", num_tokens, time.process_time() - cpu, time.perf_counter() - wall)
    await engine.close()
    return [list(request.prompt_ids) for request in requests]


def _generate(arguments: argparse.Namespace, prompts: list[list[int]]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(str(arguments.model), dtype=torch.float32).eval()
    num_tokens, cpu, wall = 0, time.process_time(), time.perf_counter()
    for start in range(0, len(prompts), 32):
        part = prompts[start : start + 32]
        width = max(len(prompt) for prompt in part)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in part])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part])
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, top_p=1.0, temperature=1.0, pad_token_id=0,
            max_new_tokens=arguments.max_new_tokens,
        )  # fmt: skip
        num_tokens += int((out[:, width:] != 0).sum())
    _report("transformers.generate, batch 32", num_tokens, time.process_time() - cpu, time.perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    _generate(arguments, asyncio.run(_local(arguments)))


if __name__ == "__main__":
    main()
