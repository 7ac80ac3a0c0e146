"""The in-process engine against plain transformers: exact log-probabilities, sharing, exchange of weights, failures."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ptctl.engines import decoder as decoder_module
from ptctl.engines.admission import uniform_numbers
from ptctl.engines.decoder import BatchDecoder
from ptctl.engines.local import LocalEngine
from ptctl.errors import DataError, InputNotFound, MissingExtra, PtctlError, RowFailure, Unavailable, UsageError
from ptctl.protocols import Completion, EngineSettings, GenerateRequest
from ptctl.records import Sampling
from tiny_model import make_tiny_model

_T = TypeVar("_T")
MODELS = {
    "llama": {"architecture": "llama"},
    "other": {"architecture": "llama", "seed": 1},
    "untied": {"architecture": "llama", "untied": True},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make_tiny_model(root / name, **options) for name, options in MODELS.items()}  # type: ignore[arg-type]


def _with_engine(
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


def _requests(count: int, temperature: float = 1.0, max_new_tokens: int = 20) -> list[GenerateRequest]:
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


async def _all(engine: LocalEngine, requests: Sequence[GenerateRequest]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


def _plain(policy: Path, request: GenerateRequest, completion: Completion) -> torch.Tensor:
    """# [C, V] log-probabilities at each place of a completion by a plain forward of transformers."""
    model = AutoModelForCausalLM.from_pretrained(str(policy), dtype=torch.float32).eval()
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double()
    first = len(request.prompt_ids) - 1
    return torch.log_softmax(logits / (request.sampling.temperature or 1.0), -1)[first:-1]


def _teacher_forced(policy: Path, request: GenerateRequest, completion: Completion) -> list[float]:
    """# [C] log-probabilities of the tokens of a completion by a plain forward of transformers."""
    logprobs = _plain(policy, request, completion)
    return [float(logprobs[index, token]) for index, token in enumerate(completion.token_ids)]


def _ids(completions: Sequence[Completion]) -> list[list[int]]:
    return [list(completion.token_ids) for completion in completions]


# ── log-probabilities and batches ──


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["llama", "untied", "qwen2", "qwen3"])
def test_logprobs_equal_a_plain_forward(models: dict[str, Path], name: str, temperature: float) -> None:
    """Seven places for eighteen requests: rows wait, join in the middle and move between slots."""
    requests = _requests(18, temperature, max_new_tokens=8)
    completions = _with_engine(models[name], lambda engine: _all(engine, requests), max_running=7)
    for request, completion in list(zip(requests, completions, strict=True))[::3]:
        expected = _teacher_forced(models[name], request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_token_i_is_drawn_with_uniform_number_i(models: dict[str, Path]) -> None:
    requests = _requests(4, temperature=2.0)
    completions = _with_engine(models["llama"], lambda engine: _all(engine, requests))
    for request, completion in zip(requests, completions, strict=True):
        cumulative = _plain(models["llama"], request, completion).exp().cumsum(-1)
        uniforms = torch.from_numpy(uniform_numbers(request.seed, len(completion.token_ids)))[:, None]
        assert torch.searchsorted(cumulative, uniforms, right=True)[:, 0].tolist() == list(completion.token_ids)


def test_tokens_do_not_depend_on_the_batch(models: dict[str, Path]) -> None:
    requests = _requests(64)

    async def use(engine: LocalEngine) -> None:
        expected = _ids(await _all(engine, requests))
        order = np.random.default_rng(1).permutation(64).tolist()
        for size in (1, 3, 8, 17, 64):
            shuffled = order if size > 1 else order[:16]
            for start in range(0, len(shuffled), size):
                part = shuffled[start : start + size]
                completions = await _all(engine, [requests[index] for index in part])
                assert _ids(completions) == [expected[index] for index in part]

    _with_engine(models["llama"], use)


def test_a_long_context_is_read_in_pieces(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    requests = _requests(12, max_new_tokens=4)
    expected = _with_engine(models["llama"], lambda engine: _all(engine, requests))
    monkeypatch.setattr(decoder_module, "PREFILL_TOKENS", 16)
    pieces = _with_engine(models["llama"], lambda engine: _all(engine, requests))
    assert _ids(pieces) == _ids(expected)
    for one, other in zip(pieces, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_truncated_sampling(models: dict[str, Path]) -> None:
    """top_k = 1 is greedy in its tokens; the log-probability stays that of the full vocabulary."""
    greedy = _requests(4, temperature=0.0, max_new_tokens=6)
    cut = [replace(request, sampling=Sampling(top_k=1, max_new_tokens=6)) for request in greedy]

    async def use(engine: LocalEngine) -> tuple[list[Completion], list[Completion]]:
        return await _all(engine, greedy), await _all(engine, cut)

    one, other = _with_engine(models["llama"], use)
    assert _ids(one) == _ids(other)
    assert [c.logprobs for c in one] == [pytest.approx(c.logprobs, abs=1e-5) for c in other]


# ── sharing ──


def test_a_group_reads_its_context_once(models: dict[str, Path]) -> None:
    one = _requests(4)[3]  # a context of 40 ids
    group = [replace(one, seed=seed, episode_seed=seed) for seed in range(8)]

    async def use(engine: LocalEngine) -> tuple[list[Completion], list[Completion]]:
        together = await _all(engine, group)
        return together, [await engine.generate(replace(request, episode_seed=99)) for request in group]

    together, alone = _with_engine(models["llama"], use)
    assert sorted(completion.num_cached_tokens for completion in together) == [0] + [39] * 7
    assert _ids(together) == _ids(alone)
    assert len({tuple(ids) for ids in _ids(together)}) > 1


def test_the_next_turn_reads_only_what_is_new(models: dict[str, Path]) -> None:
    first = _requests(4)[3]

    async def use(engine: LocalEngine) -> tuple[GenerateRequest, Completion, Completion, Completion]:
        answer = await engine.generate(first)
        follow_up = replace(first, prompt_ids=[*first.prompt_ids, *answer.token_ids, 9, 10, 11, 4], seed=7)
        second = await engine.generate(follow_up)
        rewritten = replace(first, prompt_ids=[*first.prompt_ids[:30], 8, 8, 8])
        third = await engine.generate(rewritten)
        assert second.num_cached_tokens == 40 + len(answer.token_ids) - 1  # the last token was never fed
        return follow_up, second, await engine.generate(replace(follow_up, episode_seed=99)), third

    follow_up, second, fresh, third = _with_engine(models["llama"], use)
    assert (fresh.num_cached_tokens, third.num_cached_tokens) == (0, 30)
    assert _ids([second]) == _ids([fresh])
    assert second.logprobs == pytest.approx(_teacher_forced(models["llama"], follow_up, second), abs=1e-4)


# ── exchange of weights ──


def test_update_in_place(models: dict[str, Path]) -> None:
    requests = _requests(6)

    async def use(engine: LocalEngine) -> list[Completion]:
        before = await _all(engine, requests)
        assert all(completion.version_spans == () for completion in before)
        await engine.update_policy(models["other"], 5)
        return await _all(engine, requests)

    for request, completion in zip(requests, _with_engine(models["llama"], use), strict=True):
        assert completion.num_cached_tokens == 0  # keys and values of the old weights are gone
        expected = _teacher_forced(models["other"], request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
        span = completion.version_spans[0]
        assert (span.policy_version, span.token_start, span.token_end) == (5, 0, len(completion.token_ids))


def test_version_of_policy_json(models: dict[str, Path], tmp_path: Path) -> None:
    policy = shutil.copytree(models["llama"], tmp_path / "policy")
    (policy / "policy.json").write_text('{"policy_version": 3}')
    completion = _with_engine(policy, lambda engine: engine.generate(_requests(1)[0]))
    assert [span.policy_version for span in completion.version_spans] == [3]


@pytest.mark.parametrize("layout", ["sharded", "tied_twice", "extra"])
def test_other_layouts_of_the_weights(models: dict[str, Path], tmp_path: Path, layout: str) -> None:
    """Shards of an index are read; what does not map one to one goes through transformers' own loader."""
    policy = shutil.copytree(models["other"], tmp_path / "policy")
    tensors = load_file(policy / "model.safetensors")
    if layout == "sharded":
        (policy / "model.safetensors").unlink()
        names = sorted(tensors)
        save_file({name: tensors[name] for name in names[:5]}, policy / "a.safetensors", metadata={"format": "pt"})
        save_file({name: tensors[name] for name in names[5:]}, policy / "b.safetensors", metadata={"format": "pt"})
        weight_map = {name: "a.safetensors" if name in names[:5] else "b.safetensors" for name in names}
        (policy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    else:
        name = "lm_head.weight" if layout == "tied_twice" else "model.rotary_emb.old_buffer"
        tensors[name] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, policy / "model.safetensors", metadata={"format": "pt"})
    request = _requests(1)[0]

    async def use(engine: LocalEngine) -> Completion:
        await engine.update_policy(policy, 1)
        return await engine.generate(request)

    completion = _with_engine(models["llama"], use)
    assert completion.logprobs == pytest.approx(_teacher_forced(models["other"], request, completion), abs=1e-4)


def _broken(models: dict[str, Path], directory: Path, kind: str) -> Path:
    policy = shutil.copytree(models["other"], directory / kind)
    config = json.loads((policy / "config.json").read_text())
    weights = policy / "model.safetensors"
    if kind == "missing":
        weights.unlink()
    elif kind == "corrupt":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif kind == "rope":
        config["rope_parameters"]["rope_theta"] = 10_000.0
        (policy / "config.json").write_text(json.dumps(config))
    else:
        tensors = load_file(weights)
        name = "model.layers.1.mlp.down_proj.weight"
        if kind == "incomplete":
            del tensors[name]
        else:
            tensors[name] = tensors[name][:, :5].contiguous()
        save_file(tensors, weights, metadata={"format": "pt"})
    return policy


BROKEN = [
    ("missing", InputNotFound, r"model\.safetensors is missing"),
    ("corrupt", DataError, r"model\.safetensors|cannot load the model"),
    ("rope", DataError, "rope_parameters"),
    ("incomplete", DataError, "down_proj"),
    ("shape", DataError, "down_proj"),
]


@pytest.mark.parametrize(("kind", "error", "named"), BROKEN)
def test_a_broken_policy_changes_nothing(
    models: dict[str, Path], tmp_path: Path, kind: str, error: type[PtctlError], named: str
) -> None:
    policy = _broken(models, tmp_path, kind)
    request = _requests(1)[0]

    async def use(engine: LocalEngine) -> list[Completion]:
        before = await engine.generate(request)
        with pytest.raises(error, match=named):
            await engine.update_policy(policy, 1)
        return [before, await engine.generate(request)]

    before, after = _with_engine(models["llama"], use)
    assert _ids([before]) == _ids([after])
    assert after.logprobs == pytest.approx(before.logprobs, abs=1e-6)


@pytest.mark.parametrize(("kind", "error", "named"), [case for case in BROKEN if case[0] != "rope"])
def test_a_broken_policy_does_not_start(
    models: dict[str, Path], tmp_path: Path, kind: str, error: type[PtctlError], named: str
) -> None:
    with pytest.raises(error, match=named):
        _with_engine(_broken(models, tmp_path, kind), lambda engine: _all(engine, []))


# ── failures and limits ──


def test_a_failing_model_fails_its_rows_and_no_more(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    draw = BatchDecoder._draw
    fails = [True]

    def draw_or_fail(self: BatchDecoder) -> None:
        if fails.pop() if fails else False:
            raise RuntimeError("out of memory")
        draw(self)

    monkeypatch.setattr(BatchDecoder, "_draw", draw_or_fail)
    requests = _requests(4)

    async def use(engine: LocalEngine) -> tuple[list[Completion | BaseException], list[Completion]]:
        failed = await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)
        return failed, await _all(engine, requests)

    failed, completions = _with_engine(models["llama"], use)
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
    good = replace(_requests(1)[0], prompt_ids=[9, 10], sampling=Sampling(max_new_tokens=1))

    async def use(engine: LocalEngine) -> list[Completion | BaseException]:
        requests = [good, replace(good, prompt_ids=[9, 100])]
        return await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)

    fine, broken = _with_engine(policy, use)
    assert isinstance(fine, Completion)
    assert isinstance(broken, RowFailure)
    assert "not numbers" in str(broken)


def test_close_fails_what_is_in_flight(models: dict[str, Path]) -> None:
    async def run() -> list[object]:
        engine = LocalEngine(EngineSettings(policy=models["llama"], max_running=1))
        await engine.start()
        tasks: list[asyncio.Future[object]] = [
            asyncio.ensure_future(engine.generate(r)) for r in _requests(3, max_new_tokens=200)
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
        return engine.context_length, await engine.generate(_requests(3, max_new_tokens=100)[2])

    context_length, completion = _with_engine(policy, use)
    assert context_length == 32
    assert len(completion.token_ids) <= 5  # after 27 ids
    (policy / "config.json").write_text(json.dumps(config | {"layer_types": ["linear_attention", "full_attention"]}))
    with pytest.raises(UsageError, match="linear_attention"):
        _with_engine(policy, use)


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
        _with_engine(models["llama"], lambda engine: _all(engine, []))


def test_settings_that_cannot_be_served(models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="257"):
        _with_engine(models["llama"], lambda engine: _all(engine, []), context_length=257)
    with pytest.raises(UsageError, match="endpoint"):
        LocalEngine(EngineSettings(policy=models["llama"], endpoint="http://localhost:1"))
    with pytest.raises(UsageError, match="max_running"):
        LocalEngine(EngineSettings(policy=models["llama"], max_running=0))


def test_without_torch_the_extra_is_named(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ptctl.engines.served_model")
    monkeypatch.delitem(sys.modules, "ptctl.engines.weights")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match="torch") as caught:
        _with_engine(models["llama"], lambda engine: _all(engine, []))
    assert caught.value.hint == "pip install 'ptctl[local]'"
