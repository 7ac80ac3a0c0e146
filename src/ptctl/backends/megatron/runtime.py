"""The distributed runtime of one training process: process group, Megatron's parallel groups, device and CPU shim.

A process that torchrun started joins its group; any other process is a group of one, without a network. Ranks are data
parallel: each takes a share of every step's micro-batches, and Megatron sums the gradients. Tensor, pipeline, context
and expert parallelism are not offered yet.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed

from ptctl.backends.megatron.cpu_shim import CpuShim
from ptctl.backends.megatron.mcore import HAS_GPU, model_parallel_cuda_manual_seed, parallel_state
from ptctl.errors import UsageError
from ptctl.protocols import Int64Array

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets."""


class Runtime:
    """Opened by `start`, closed by `close`.

    Megatron keeps its groups in globals, so a process has one at a time. Processes of torchrun open theirs once: the
    store through which they find each other cannot be joined again. Further phases need no new one
    (`MegatronBackend.begin_phase`).
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.rank = int(os.environ.get("RANK") or 0)  # known before `start`, for MegatronBackend.is_main
        self.world_size = 1
        self._shim = CpuShim()
        self._open = False

    def start(self, seed: int) -> None:
        """Join or make the process group. Raises UsageError for incomplete torchrun variables or a second opening."""
        if distributed.is_initialized():
            raise UsageError("a backend or process group is open in this process already", hint="close it first")
        set_variables = [name for name in RANK_VARIABLES if os.environ.get(name)]
        if set_variables and len(set_variables) < len(RANK_VARIABLES):
            missing = sorted(set(RANK_VARIABLES) - set(set_variables))
            raise UsageError(
                f"{', '.join(set_variables)} is set but {', '.join(missing)} is not",
                hint="start several processes with torchrun, or unset these variables",
            )
        if HAS_GPU:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        self._shim.install()
        self._open = True
        backend = "nccl" if HAS_GPU else "gloo"
        if set_variables:
            distributed.init_process_group(backend)
        else:
            store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        model_parallel_cuda_manual_seed(seed % 2**31)

    def close(self) -> None:
        """Destroy the groups and put the CPU shim's originals back; safe to call twice."""
        if not self._open:
            return
        self._open = False
        parallel_state.destroy_model_parallel()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._shim.restore()

    def deal(self, micro_batches: Sequence[Int64Array]) -> list[Int64Array]:
        """This rank's share: every world_size-th micro-batch, or a share of the rows of each where there are too few.

        All ranks get the same number, because they meet in collectives; the last ones of some ranks may be empty. The
        plan decides what the result is, this only decides who computes it.
        """
        if self.world_size == 1:
            return list(micro_batches)
        if len(micro_batches) < self.world_size:
            return [rows[self.rank :: self.world_size] for rows in micro_batches]
        share = list(micro_batches[self.rank :: self.world_size])
        num_rounds = -(-len(micro_batches) // self.world_size)
        return share + [np.zeros(0, dtype=np.int64)] * (num_rounds - len(share))

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of `values` over the data parallel ranks, in place."""
        if self.world_size > 1:
            distributed.all_reduce(values, group=parallel_state.get_data_parallel_group())
        return values

    def max_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Maximum over the data parallel ranks, in place."""
        if self.world_size > 1:
            distributed.all_reduce(values, distributed.ReduceOp.MAX, group=parallel_state.get_data_parallel_group())
        return values

    def from_main(self, value: Any) -> Any:
        """The value that rank 0 has, on every rank; waits for all of them."""
        if self.world_size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]
