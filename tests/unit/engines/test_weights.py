"""Exchange of weights in a running engine, and what a broken policy says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from local_engine_runs import generate_all, ids_of, make_requests, teacher_forced, with_engine
from ptctl.engines.local import LocalEngine
from ptctl.errors import DataError, InputNotFound, PtctlError
from ptctl.protocols import Completion


def test_update_in_place(models: dict[str, Path]) -> None:
    requests = make_requests(6)

    async def use(engine: LocalEngine) -> list[Completion]:
        before = await generate_all(engine, requests)
        assert all(completion.version_spans == () for completion in before)
        await engine.update_policy(models["other"], 5)
        return await generate_all(engine, requests)

    for request, completion in zip(requests, with_engine(models["llama"], use), strict=True):
        assert completion.num_cached_tokens == 0  # keys and values of the old weights are gone
        expected = teacher_forced(models["other"], request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
        span = completion.version_spans[0]
        assert (span.policy_version, span.token_start, span.token_end) == (5, 0, len(completion.token_ids))


def test_version_of_policy_json(models: dict[str, Path], tmp_path: Path) -> None:
    policy = shutil.copytree(models["llama"], tmp_path / "policy")
    (policy / "policy.json").write_text('{"policy_version": 3}')
    completion = with_engine(policy, lambda engine: engine.generate(make_requests(1)[0]))
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
    request = make_requests(1)[0]

    async def use(engine: LocalEngine) -> Completion:
        await engine.update_policy(policy, 1)
        return await engine.generate(request)

    completion = with_engine(models["llama"], use)
    assert completion.logprobs == pytest.approx(teacher_forced(models["other"], request, completion), abs=1e-4)


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
    request = make_requests(1)[0]

    async def use(engine: LocalEngine) -> list[Completion]:
        before = await engine.generate(request)
        with pytest.raises(error, match=named):
            await engine.update_policy(policy, 1)
        return [before, await engine.generate(request)]

    before, after = with_engine(models["llama"], use)
    assert ids_of([before]) == ids_of([after])
    assert after.logprobs == pytest.approx(before.logprobs, abs=1e-6)


@pytest.mark.parametrize(("kind", "error", "named"), [case for case in BROKEN if case[0] != "rope"])
def test_a_broken_policy_does_not_start(
    models: dict[str, Path], tmp_path: Path, kind: str, error: type[PtctlError], named: str
) -> None:
    with pytest.raises(error, match=named):
        with_engine(_broken(models, tmp_path, kind), lambda engine: generate_all(engine, []))
