"""Publishing and resuming: files that engines load, exact continuation, phases, random weights, and unusable
directories.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron_cases import (
    hugging_face_weights,
    load_reference,
    make_model,
    make_plan,
    make_rows,
    opened,
    reference_logprobs,
    settings,
)
from safetensors.torch import load_file, save_file

from ptctl.backends.megatron import MegatronBackend
from ptctl.backends.megatron.policy_files import WeightFiles, write_weights
from ptctl.errors import CorruptShard, DataError, InputNotFound, OutputError, UsageError
from ptctl.protocols import StepMetrics

pytestmark = pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning")  # Megatron's own


def train(backend: MegatronBackend, num_steps: int, first: int = 0) -> list[StepMetrics]:
    found = []
    for number in range(first, first + num_steps):
        rows = make_rows(seed=number)
        found.append(replace(backend.step(rows, make_plan(rows, [0, 1, 2], [3, 4, 5])), engine_s=0))
    return found


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe"])
def test_resuming_equals_never_stopping(kind: str, tmp_path: Path) -> None:
    """Two steps, publish, load, two more: losses, rates and every weight are bitwise those of four steps at once."""
    schedule = {"num_warmup_steps": 1, "num_decay_steps": 6, "decay": "cosine", "max_grad_norm": 0.5}
    policy = make_model(tmp_path / "model", kind)
    with opened(settings(policy, **schedule)) as backend:
        expected = train(backend, 4)
        expected_weights = hugging_face_weights(backend)
    with opened(settings(policy, **schedule)) as backend:
        first = train(backend, 2)
        backend.publish(tmp_path / "two", with_checkpoint=True)
    with opened(settings(tmp_path / "two", **schedule)) as backend:
        second = train(backend, 2, first=2)
        weights = hugging_face_weights(backend)
    assert first + second == expected
    assert all(torch.equal(weights[name], expected_weights[name]) for name in expected_weights)


def test_publishing_does_not_disturb_training(tmp_path: Path) -> None:
    policy = make_model(tmp_path / "model", "llama")
    with opened(settings(policy)) as backend:
        expected = train(backend, 3)
    with opened(settings(policy)) as backend:
        backend.publish(tmp_path / "zero", with_checkpoint=True)  # before the first step: Adam has no moments yet
        found = train(backend, 1)
        backend.publish(tmp_path / "one", with_checkpoint=True)
        found += train(backend, 2, first=1)
    with opened(settings(tmp_path / "zero")) as backend:
        from_zero = train(backend, 3)
    assert found == from_zero == expected


def test_settings_win_over_the_checkpoint(tmp_path: Path) -> None:
    """An edited learning rate is obeyed on resume; the schedule goes on from the recorded step."""
    schedule = {"num_decay_steps": 10, "decay": "linear", "learning_rate": 1.0}
    policy = make_model(tmp_path / "model", "llama")
    with opened(settings(policy, **schedule)) as backend:
        train(backend, 2)
        backend.publish(tmp_path / "two", with_checkpoint=True)
    with opened(settings(tmp_path / "two", **(schedule | {"learning_rate": 0.5}))) as backend:
        assert train(backend, 1)[0].learning_rate == pytest.approx(0.5 * 0.7)


def test_another_phase_starts_a_fresh_optimizer(tmp_path: Path) -> None:
    """By `begin_phase` in the same process as by loading a checkpoint of another phase, or one without."""
    schedule = {"num_decay_steps": 10, "decay": "linear"}
    policy = make_model(tmp_path / "model", "llama")
    with opened(settings(policy, **schedule)) as backend:
        train(backend, 2)
        backend.publish(tmp_path / "with", with_checkpoint=True)
        backend.publish(tmp_path / "without", with_checkpoint=False)
        backend.begin_phase(settings(policy, "grpo", phase="two", **schedule))
        expected = train(backend, 2)
        backend.publish(tmp_path / "second", with_checkpoint=True)
        third = train(backend, 1, first=2)
    assert expected[0].learning_rate == pytest.approx(0.9e-2)
    with opened(settings(tmp_path / "with", "grpo", phase="two", **schedule)) as backend:
        assert train(backend, 2) == expected
    with opened(settings(tmp_path / "without", "grpo", phase="two", **schedule)) as backend:
        assert train(backend, 2) == expected
    with opened(settings(tmp_path / "second", "grpo", phase="two", **schedule)) as backend:
        assert train(backend, 1, first=2) == third
    assert not (tmp_path / "without" / "checkpoint").exists()


def test_transformers_loads_what_is_published(tmp_path: Path) -> None:
    """AutoModelForCausalLM computes the log-probabilities that the backend computes; other files are copied byte for
    byte.
    """
    policy, rows = make_model(tmp_path / "model", "llama-untied-gqa"), make_rows()
    (policy / "policy.json").write_text("{}")
    (policy / "templates").mkdir()
    (policy / "templates" / "tools.jinja").write_bytes("é\r\n".encode())
    with opened(settings(policy)) as backend:
        train(backend, 1)
        shutil.rmtree(policy)  # a long run may prune the policy that it started from
        digest = backend.publish(tmp_path / "out", with_checkpoint=True)
        logprobs = backend.logprobs(rows, make_plan(rows).micro_batches)
    published = tmp_path / "out"
    model = load_reference(published)
    for row in range(rows.num_rows):
        expected = reference_logprobs(model, rows, row).detach().numpy()
        np.testing.assert_allclose(logprobs[rows.offsets[row] + 1 : rows.offsets[row + 1]], expected, atol=2e-5)
    make_model(policy, "llama-untied-gqa")
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (published / name).read_bytes() == (policy / name).read_bytes()
    assert (published / "templates" / "tools.jinja").read_bytes() == "é\r\n".encode()
    assert not (published / "policy.json").exists()
    assert digest == hashlib.sha256((published / "model.safetensors").read_bytes()).hexdigest()


def test_large_weights_are_split(tmp_path: Path) -> None:
    """Shards with an index that transformers loads; the digest is over all of them in order."""
    policy = make_model(tmp_path / "model", "qwen2")
    tensors = load_file(policy / "model.safetensors")
    out = tmp_path / "out"
    shutil.copytree(policy, out, ignore=shutil.ignore_patterns("*.safetensors"))
    digest = write_weights(out, tensors, max_shard_bytes=20_000)
    shards = sorted(out.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert digest == hashlib.sha256(b"".join(path.read_bytes() for path in shards)).hexdigest()
    for name, tensor in load_reference(out, torch.float32).state_dict().items():
        if name != "lm_head.weight":  # tied
            assert torch.equal(tensor, tensors[name])
    files = WeightFiles(out)
    assert all(torch.equal(files.read(name), tensor) for name, tensor in tensors.items())
    shards[1].unlink()
    with pytest.raises(InputNotFound, match=r"model-00002.*not found"):
        WeightFiles(out)


def test_random_weights_follow_the_convention(tmp_path: Path) -> None:
    """normal(0, initializer_range), norms 1; the seed decides them; a directory that has weights keeps them."""
    policy = make_model(tmp_path / "model", "qwen2", weights=False)
    with opened(settings(policy, initialize="random")) as backend:
        weights = hugging_face_weights(backend)
        backend.publish(tmp_path / "out", with_checkpoint=False)
    for name, tensor in weights.items():
        if name.endswith("norm.weight"):
            assert torch.all(tensor == 1), name
        elif name.endswith("bias"):
            assert torch.all(tensor == 0), name
        else:
            assert tensor.std().item() == pytest.approx(0.2, rel=0.1), name
            assert abs(tensor.mean().item()) < 0.02, name
    with opened(settings(policy, initialize="random")) as backend:
        assert all(torch.equal(tensor, weights[name]) for name, tensor in hugging_face_weights(backend).items())
    with opened(replace(settings(policy, initialize="random"), seed=12)) as backend:
        assert not torch.equal(
            hugging_face_weights(backend)["model.embed_tokens.weight"], weights["model.embed_tokens.weight"]
        )
    with opened(replace(settings(tmp_path / "out", initialize="random"), seed=12)) as backend:
        assert torch.equal(
            hugging_face_weights(backend)["model.embed_tokens.weight"], weights["model.embed_tokens.weight"]
        )


def drop_weights(policy: Path) -> None:
    (policy / "model.safetensors").unlink()


def tear_weights(policy: Path) -> None:
    path = policy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def drop_a_tensor(policy: Path) -> None:
    tensors = load_file(policy / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, policy / "model.safetensors")


def add_a_tensor(policy: Path) -> None:
    save_file(load_file(policy / "model.safetensors") | {"adapter.weight": torch.ones(1)}, policy / "model.safetensors")


def shrink_the_model(policy: Path) -> None:
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (shutil.rmtree, InputNotFound, r"config\.json: not found"),
        (drop_weights, InputNotFound, "no safetensors weights"),
        (tear_weights, CorruptShard, r"model\.safetensors"),
        (drop_a_tensor, DataError, "1 tensors are missing, such as model.norm.weight"),
        (add_a_tensor, UsageError, "1 tensors have no place in the model, such as adapter.weight"),
        (shrink_the_model, DataError, r"linear_fc1.weight has the shape \[80, 32\], the weights have \[96, 32\]"),
    ],
)
def test_directories_that_cannot_be_loaded(spoil: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    policy = make_model(tmp_path / "model", "llama")
    spoil(policy)
    backend = MegatronBackend(settings(policy))
    with pytest.raises(error, match=message):
        backend.start()
    with opened(settings(make_model(tmp_path / "good", "llama"))):  # nothing was left open
        pass


def test_a_torn_checkpoint_is_refused(tmp_path: Path) -> None:
    policy = make_model(tmp_path / "model", "llama")
    with opened(settings(policy)) as backend:
        train(backend, 1)
        backend.publish(tmp_path / "out", with_checkpoint=True)
    shard = next((tmp_path / "out" / "checkpoint").glob("*.distcp"))
    os.truncate(shard, 1000)
    with pytest.raises(CorruptShard, match="checkpoint cannot be read"):
        MegatronBackend(settings(tmp_path / "out")).start()


def test_life_cycle(tmp_path: Path) -> None:
    """Not started, started twice, closed twice; a failed write is an output error."""
    policy, rows = make_model(tmp_path / "model", "llama"), make_rows()
    backend = MegatronBackend(settings(policy))
    with pytest.raises(UsageError, match="not started"):
        backend.step(rows, make_plan(rows))
    backend.start()
    assert backend.is_main()
    with pytest.raises(UsageError, match="open in this process"):
        MegatronBackend(settings(policy)).start()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        backend.publish(tmp_path / "file" / "out", with_checkpoint=False)
    backend.close()
    backend.close()
    with pytest.raises(UsageError, match="not started"):
        backend.publish(tmp_path / "out", with_checkpoint=False)
    assert torch.zeros(1).type() == "torch.FloatTensor"  # the shim is gone
