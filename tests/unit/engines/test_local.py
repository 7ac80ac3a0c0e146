"""The in-process engine against plain transformers: exact log-probabilities, sharing, exchange of weights, failures."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from local_engine_runs import generate_all, ids_of, make_requests, plain_logprobs, teacher_forced, with_engine
from ptctl.engines import decoder as decoder_module
from ptctl.engines.admission import uniform_numbers
from ptctl.engines.decoder import BatchDecoder
from ptctl.engines.local import LocalEngine
from ptctl.errors import MissingExtra, RowFailure, Unavailable, UsageError
from ptctl.protocols import Completion, EngineSettings, GenerateRequest
from ptctl.records import Sampling

# ── log-probabilities and batches ──


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["llama", "untied", "qwen2", "qwen3"])
def test_logprobs_equal_a_plain_forward(models: dict[str, Path], name: str, temperature: float) -> None:
    """Seven places for eighteen requests: rows wait, join in the middle and move between slots."""
    requests = make_requests(18, temperature, max_new_tokens=8)
    completions = with_engine(models[name], lambda engine: generate_all(engine, requests), max_running=7)
    for request, completion in list(zip(requests, completions, strict=True))[::3]:
        expected = teacher_forced(models[name], request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_token_i_is_drawn_with_uniform_number_i(models: dict[str, Path]) -> None:
    requests = make_requests(4, temperature=2.0)
    completions = with_engine(models["llama"], lambda engine: generate_all(engine, requests))
    for request, completion in zip(requests, completions, strict=True):
        cumulative = plain_logprobs(models["llama"], request, completion).exp().cumsum(-1)
        uniforms = torch.from_numpy(uniform_numbers(request.seed, len(completion.token_ids)))[:, None]
        assert torch.searchsorted(cumulative, uniforms, right=True)[:, 0].tolist() == list(completion.token_ids)


def test_tokens_do_not_depend_on_the_batch(models: dict[str, Path]) -> None:
    requests = make_requests(64)

    async def use(engine: LocalEngine) -> None:
        expected = ids_of(await generate_all(engine, requests))
        order = np.random.default_rng(1).permutation(64).tolist()
        for size in (1, 3, 8, 17, 64):
            shuffled = order if size > 1 else order[:16]
            for start in range(0, len(shuffled), size):
                part = shuffled[start : start + size]
                completions = await generate_all(engine, [requests[index] for index in part])
                assert ids_of(completions) == [expected[index] for index in part]

    with_engine(models["llama"], use)


def test_a_long_context_is_read_in_pieces(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    requests = make_requests(12, max_new_tokens=4)
    expected = with_engine(models["llama"], lambda engine: generate_all(engine, requests))
    monkeypatch.setattr(decoder_module, "PREFILL_TOKENS", 16)
    pieces = with_engine(models["llama"], lambda engine: generate_all(engine, requests))
    assert ids_of(pieces) == ids_of(expected)
    for one, other in zip(pieces, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_truncated_sampling(models: dict[str, Path]) -> None:
    """top_k = 1 is greedy in its tokens; the log-probability stays that of the full vocabulary."""
    greedy = make_requests(4, temperature=0.0, max_new_tokens=6)
    cut = [replace(request, sampling=Sampling(top_k=1, max_new_tokens=6)) for request in greedy]

    async def use(engine: LocalEngine) -> tuple[list[Completion], list[Completion]]:
        return await generate_all(engine, greedy), await generate_all(engine, cut)

    one, other = with_engine(models["llama"], use)
    assert ids_of(one) == ids_of(other)
    assert [c.logprobs for c in one] == [pytest.approx(c.logprobs, abs=1e-5) for c in other]


# ── sharing ──


def test_a_group_reads_its_context_once(models: dict[str, Path]) -> None:
    one = make_requests(4)[3]  # a context of 40 ids
    group = [replace(one, seed=seed, episode_seed=seed) for seed in range(8)]

    async def use(engine: LocalEngine) -> tuple[list[Completion], list[Completion]]:
        together = await generate_all(engine, group)
        return together, [await engine.generate(replace(request, episode_seed=99)) for request in group]

    together, alone = with_engine(models["llama"], use)
    assert sorted(completion.num_cached_tokens for completion in together) == [0] + [39] * 7
    assert ids_of(together) == ids_of(alone)
    assert len({tuple(ids) for ids in ids_of(together)}) > 1


def test_the_next_turn_reads_only_what_is_new(models: dict[str, Path]) -> None:
    first = make_requests(4)[3]

    async def use(engine: LocalEngine) -> tuple[GenerateRequest, Completion, Completion, Completion]:
        answer = await engine.generate(first)
        follow_up = replace(first, prompt_ids=[*first.prompt_ids, *answer.token_ids, 9, 10, 11, 4], seed=7)
        second = await engine.generate(follow_up)
        rewritten = replace(first, prompt_ids=[*first.prompt_ids[:30], 8, 8, 8])
        third = await engine.generate(rewritten)
        assert second.num_cached_tokens == 40 + len(answer.token_ids) - 1  # the last token was never fed
        return follow_up, second, await engine.generate(replace(follow_up, episode_seed=99)), third

    follow_up, second, fresh, third = with_engine(models["llama"], use)
    assert (fresh.num_cached_tokens, third.num_cached_tokens) == (0, 30)
    assert ids_of([second]) == ids_of([fresh])
    assert second.logprobs == pytest.approx(teacher_forced(models["llama"], follow_up, second), abs=1e-4)


# ── failures and limits ──


def test_a_failing_model_fails_its_rows_and_no_more(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    draw = BatchDecoder._draw
    fails = [True]

    def draw_or_fail(self: BatchDecoder) -> None:
        if fails.pop() if fails else False:
            raise RuntimeError("out of memory")
        draw(self)

    monkeypatch.setattr(BatchDecoder, "_draw", draw_or_fail)
    requests = make_requests(4)

    async def use(engine: LocalEngine) -> tuple[list[Completion | BaseException], list[Completion]]:
        failed = await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)
        return failed, await generate_all(engine, requests)

    failed, completions = with_engine(models["llama"], use)
    for error in failed:
        assert isinstance(error, RowFailure)
        assert error.kind == "engine"
        assert "out of memory" in str(error)
        assert error.detail is not None
        assert "draw_or_fail" in error.detail
    assert all(completion.token_ids for completion in completions)


def test_logits_that_are_not_numbers(models: dict[str, Path], tmp_path: Path) -> None:
    policy = shutil.copytree(models["untied"], tmp_path / "policy")
    tensors = load_file(policy / "model.safetensors")
    tensors["model.embed_tokens.weight"][100] = float("nan")
    save_file(tensors, policy / "model.safetensors", metadata={"format": "pt"})
    good = replace(make_requests(1)[0], prompt_ids=[9, 10], sampling=Sampling(max_new_tokens=1))

    async def use(engine: LocalEngine) -> list[Completion | BaseException]:
        requests = [good, replace(good, prompt_ids=[9, 100])]
        return await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)

    fine, broken = with_engine(policy, use)
    assert isinstance(fine, Completion)
    assert isinstance(broken, RowFailure)
    assert "not numbers" in str(broken)


def test_close_fails_what_is_in_flight(models: dict[str, Path]) -> None:
    async def run() -> list[object]:
        engine = LocalEngine(EngineSettings(policy=models["llama"], max_running=1))
        await engine.start()
        tasks: list[asyncio.Future[object]] = [
            asyncio.ensure_future(engine.generate(r)) for r in make_requests(3, max_new_tokens=200)
        ]
        await asyncio.sleep(0.005)  # the first request runs, the others wait, and so does the update
        tasks.append(asyncio.ensure_future(engine.update_policy(models["other"], 1)))
        await asyncio.sleep(0)
        await engine.close()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    assert [type(result) for result in asyncio.run(run())][1:] == [RowFailure, RowFailure, Unavailable]


def test_sliding_window_limits_the_context(models: dict[str, Path], tmp_path: Path) -> None:
    policy = shutil.copytree(models["qwen2"], tmp_path / "policy")
    config = json.loads((policy / "config.json").read_text())
    kinds = ["full_attention", "sliding_attention"]
    changes = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1, "layer_types": kinds}
    (policy / "config.json").write_text(json.dumps(config | changes))

    async def use(engine: LocalEngine) -> tuple[int, Completion]:
        return engine.context_length, await engine.generate(make_requests(3, max_new_tokens=100)[2])

    context_length, completion = with_engine(policy, use)
    assert context_length == 32
    assert len(completion.token_ids) <= 5  # after 27 ids
    (policy / "config.json").write_text(json.dumps(config | {"layer_types": ["linear_attention", "full_attention"]}))
    with pytest.raises(UsageError, match="linear_attention"):
        with_engine(policy, use)


def test_a_model_that_ignores_the_mask_is_refused(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaModel

    forward = LlamaModel.forward

    def forward_without_mask(self: LlamaModel, **arguments: object) -> object:
        mask = arguments.get("attention_mask")
        if isinstance(mask, torch.Tensor):
            arguments["attention_mask"] = torch.ones_like(mask)
        return forward(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LlamaModel, "forward", forward_without_mask)
    with pytest.raises(UsageError, match="cannot run LlamaForCausalLM"):
        with_engine(models["llama"], lambda engine: generate_all(engine, []))


def test_settings_that_cannot_be_served(models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="257"):
        with_engine(models["llama"], lambda engine: generate_all(engine, []), context_length=257)
    with pytest.raises(UsageError, match="endpoint"):
        LocalEngine(EngineSettings(policy=models["llama"], endpoint="http://localhost:1"))
    with pytest.raises(UsageError, match="max_running"):
        LocalEngine(EngineSettings(policy=models["llama"], max_running=0))


def test_without_torch_the_extra_is_named(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ptctl.engines.served_model")
    monkeypatch.delitem(sys.modules, "ptctl.engines.weights")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match="torch") as caught:
        with_engine(models["llama"], lambda engine: generate_all(engine, []))
    assert caught.value.hint == "pip install 'ptctl[local]'"
