"""The backend `megatron` on two ranks, started as torchrun starts them: the result is that of one process."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron_cases import make_model, make_plan, make_rows, opened, settings
from megatron_rank import PLANS
from megatron_rank import train as train_alone
from safetensors.torch import load_file

from ptctl.backends.megatron import MegatronBackend
from ptctl.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning")  # Megatron's own

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """(directory with `model` and the published `out`, reports of both ranks)"""
    directory = tmp_path_factory.mktemp("ranks")
    make_model(directory / "model", "llama-untied-gqa")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)]), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        arguments = [directory / "model", directory / "out", directory / f"{rank}.json"]
        processes.append(subprocess.Popen([sys.executable, HERE / "megatron_rank.py", *arguments], env=environment))
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return directory, [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_equal_one(ranks: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Losses, norms and metrics of three steps, the published weights, and log-probabilities afterwards."""
    directory, reports = ranks
    alone = train_alone(directory / "model", tmp_path / "alone")
    assert [report["is_main"] for report in reports] == [True, False]
    for report in reports:
        np.testing.assert_allclose(report["metrics"], alone["metrics"], atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(report["logprobs"], alone["logprobs"], atol=1e-5)
        assert report["num_loss_tokens"] == alone["num_loss_tokens"]
        assert report["digest"] == reports[0]["digest"]
    expected, found = (load_file(path / "model.safetensors") for path in (tmp_path / "alone", directory / "out"))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=0, msg=name)


def test_transformers_is_right_beside_the_shim(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    """A transformers model that is first built while the shim is installed, in a fresh process: its rotary buffers are
    right.
    """
    offsets = make_rows().offsets
    for report in ranks[1]:
        np.testing.assert_allclose(report["reference"], report["logprobs"][offsets[2] + 1 : offsets[3]], atol=2e-5)


def test_a_checkpoint_of_two_ranks_resumes_on_one(ranks: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    directory, _ = ranks
    train_alone(directory / "model", tmp_path / "alone")
    rows = make_rows()
    losses = []
    for policy in (tmp_path / "alone", directory / "out"):
        with opened(settings(policy, "grpo", epsilon=1e-4)) as backend:
            losses.append([backend.step(rows, make_plan(rows, *PLANS[0])).loss for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)


def test_vocabulary_on_two_ranks(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    """Four equal logits split 2 + 2 have entropy ln 4, not ln 2."""
    logprobs = torch.log_softmax(torch.tensor([2.0, 0.0, -1.0, 0.5]), 0)
    for report in ranks[1]:
        assert report["split_entropies"] == pytest.approx(
            [math.log(4), float(-(logprobs.exp() * logprobs).sum())], abs=1e-6
        )
        assert report["split_logprobs"] == pytest.approx([-math.log(4), float(logprobs[1])], abs=1e-6)


def test_incomplete_variables_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    backend = MegatronBackend(settings(make_model(tmp_path / "model", "llama")))
    with pytest.raises(UsageError, match="RANK, WORLD_SIZE is set but MASTER_ADDR, MASTER_PORT is not"):
        backend.start()
