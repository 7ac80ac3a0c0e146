"""One rank of two, run by test_megatron_ranks: trains data parallel, then checks vocabulary-parallel losses on two
ranks.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path

import torch
from megatron_cases import load_reference, make_plan, make_rows, opened, reference_logprobs, settings
from torch import distributed

from ptctl.backends.megatron.losses import token_entropies, token_logprobs
from ptctl.backends.megatron.mcore import parallel_state

PLANS = ([[0, 1], [2, 3], [4, 5]], [[5, 4, 3, 2, 1, 0]], [[0, 1, 2], [3], [4], [5]])
"""Three micro-batches leave a rank without a third one, a single one is split by rows, four are two for each."""


def train(policy: Path, out: Path, *, then_split_vocabulary: bool = False) -> dict[str, object]:
    with opened(settings(policy, "grpo", epsilon=1e-4)) as backend:
        rows = make_rows()
        found = [backend.step(rows, make_plan(rows, *plan)) for plan in PLANS]
        digest = backend.publish(out, with_checkpoint=True)
        logprobs = backend.logprobs(rows, make_plan(rows, *PLANS[0]).micro_batches)
        return {
            "is_main": backend.is_main(),
            "metrics": [
                [m.loss, m.grad_norm, m.entropy, m.kl, m.clip_fraction, m.max_logprob_difference] for m in found
            ],
            "num_loss_tokens": [m.num_loss_tokens for m in found],
            "digest": digest,
            "logprobs": logprobs.tolist(),
            "reference": reference_logprobs(load_reference(out), rows, 2).tolist(),
        } | (split_vocabulary() if then_split_vocabulary else {})


def split_vocabulary() -> dict[str, object]:
    """Logits of four tokens, two on each rank of a tensor parallel group."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, create_gloo_process_groups=False)
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, -1.0, 0.5]])
    mine = logits.chunk(2, dim=1)[distributed.get_rank()].contiguous()
    entropies = token_entropies(mine)
    return {
        "split_entropies": entropies.tolist(),
        "split_logprobs": token_logprobs(mine, torch.tensor([3, 1])).tolist(),
    }


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    policy, out, report = (Path(argument) for argument in sys.argv[1:])
    report.write_text(json.dumps(train(policy, out, then_split_vocabulary=True)))
