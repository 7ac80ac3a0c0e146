"""Megatron's distributed checkpoint of one phase: model, optimizer, schedule, phase name and step.

The format is Megatron-Core's `torch_dist`, which can be loaded under another parallel layout. Megatron's own writer
forks a process for each file and keeps a manager process for their results; here the same planner and format are
written in this process, which takes milliseconds.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

from ptctl.backends.megatron.mcore import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    dist_checkpointing,
    mcore_to_pyt_state_dict,
    replace_keys_with_sharded_keys,
)
from ptctl.backends.megatron.model import Model
from ptctl.backends.megatron.updates import Updates
from ptctl.errors import CorruptShard

FORMAT = 1
"""Version of the layout below; a checkpoint of another version is not resumed."""

_UNREADABLE = (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError, CheckpointException)
"""What torch and Megatron raise for torn files."""

_METADATA_FILE = "metadata.json"
"""Written last by Megatron; without it there is no checkpoint."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a checkpoint got."""

    phase: str
    num_steps: int


class _InProcessStrategy(TorchDistSaveShardedStrategy):
    """Megatron's `torch_dist` format, written by this process."""

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """Write the sharded tensors and objects; called by `dist_checkpointing.save` on every rank."""
        translated, _, _ = replace_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        save_state_dict(
            mcore_to_pyt_state_dict(translated, False),
            storage_writer=FileSystemWriter(checkpoint_dir, sync_files=False, thread_count=1),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )


def save_checkpoint(directory: Path, model: Model, updates: Updates, phase: str) -> None:
    """Write a checkpoint into `directory`, which must be empty. Collective: every rank calls it."""
    state = _sharded_state(model, updates, is_loading=False, with_optimizer=updates.num_steps > 0)
    state["ptctl"] = {"format": FORMAT, "phase": phase, "num_steps": updates.num_steps}
    state["scheduler"] = updates.scheduler.state_dict()
    dist_checkpointing.save(state, str(directory), _InProcessStrategy("torch_dist", 1))


def read_progress(directory: Path) -> Progress | None:
    """Phase and step of the checkpoint in `directory`; None where there is none of this format.

    Raises CorruptShard for a checkpoint that cannot be read.
    """
    if not (directory / _METADATA_FILE).exists():
        return None
    with _reading(directory):
        facts = dist_checkpointing.load_common_state_dict(str(directory)).get("ptctl")
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        return None
    return Progress(str(facts["phase"]), int(facts["num_steps"]))


def load_checkpoint(directory: Path, model: Model, updates: Updates, progress: Progress) -> None:
    """Restore weights, Adam's moments and the schedule. Collective. Raises CorruptShard for one that cannot be read."""
    wanted = _sharded_state(model, updates, is_loading=True, with_optimizer=progress.num_steps > 0)
    with _reading(directory):
        loaded: Any = dist_checkpointing.load(wanted, str(directory))
        for number, chunk in enumerate(model.bare):
            chunk.load_state_dict(loaded[f"model{number}"])
    updates.restore(loaded.get("optimizer"), progress.num_steps)


def _sharded_state(model: Model, updates: Updates, *, is_loading: bool, with_optimizer: bool) -> dict[str, Any]:
    """Megatron's description of what this rank holds. Before the first update Adam has no moments to keep."""
    state: dict[str, Any] = {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(model.bare)}
    if with_optimizer:
        parts = state["model0"] if len(model.bare) == 1 else dict(state)
        state["optimizer"] = updates.optimizer.sharded_state_dict(parts, is_loading=is_loading)
    return state


@contextlib.contextmanager
def _reading(directory: Path) -> Generator[None]:
    try:
        with warnings.catch_warnings():  # Megatron calls deprecated functions of torch
            warnings.simplefilter("ignore")
            yield
    except _UNREADABLE as error:
        raise CorruptShard(
            f"{directory}: the checkpoint cannot be read: {error}",
            hint="remove this directory to start the phase's optimizer afresh from the weights",
        ) from error
