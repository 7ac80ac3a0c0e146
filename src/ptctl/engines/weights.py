"""Loading weights: a model once, then other weights into the same model, in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from ptctl.engines.model_directory import weight_files
from ptctl.errors import DataError

_NOT_ARCHITECTURE = frozenset(
    {
        "_name_or_path",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "initializer_range",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys of config.json that do not change what the model computes."""
_LINE_CHARACTERS = 160


def load_model(directory: Path, device: torch.device) -> Any:
    """The causal language model of `directory` in eval mode on `device`.

    float32 on a CPU, where bfloat16 matrix products are two orders of magnitude slower; on a GPU as the weights are
    stored. Raises InputNotFound where there are no safetensors, DataError where they do not make up the model.
    """
    weight_files(directory)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    loader = cast("Any", AutoModelForCausalLM)
    try:
        model, info = loader.from_pretrained(
            str(directory),
            dtype=torch.float32 if device.type == "cpu" else "auto",
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are reported below, by name
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"cannot load the model of {directory}: {_first_line(error)}",
            hint="check config.json and the weights; an architecture without sdpa attention needs another engine",
        ) from error
    mismatched = {name for name, *_ in info["mismatched_keys"]}
    wrong = sorted({*info["missing_keys"], *mismatched})
    if wrong:  # transformers would fill these with random numbers
        raise DataError(
            f"{directory} lacks {len(wrong)} tensors of the model or has them in another shape, such as {wrong[0]}",
            hint="check config.json and the weights",
        )
    return model.to(device).eval().requires_grad_(False)


@torch.no_grad()
def load_weights(model: Any, directory: Path, device: torch.device) -> Any:
    """Give `model` the weights of `directory`, which must be of the same architecture; returns the model to use.

    Tensors are copied in place where their names are the model's own; where they are not (checkpoints that transformers
    converts while loading) another model is loaded and returned. Nothing is changed unless everything fits.
    Raises InputNotFound or DataError.
    """
    files = weight_files(directory)
    _check_architecture(model, directory)
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file, device=str(device))
        except (SafetensorError, OSError) as error:
            raise DataError(f"cannot read {file}: {_first_line(error)}", hint="write the policy again") from error
    own: dict[str, torch.Tensor] = model.state_dict()
    if not _covers(own, tensors):
        return load_model(directory, device)
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise DataError(f"{directory}: {name} is {list(tensor.shape)}, the engine runs {list(own[name].shape)}")
    for name, tensor in tensors.items():
        own[name].copy_(tensor)
    return model


def _covers(own: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether `tensors` name every storage of the model exactly once; tied weights share one."""
    if not tensors.keys() <= own.keys():
        return False
    named = [own[name].data_ptr() for name in tensors]
    return len(set(named)) == len(named) and set(named) == {tensor.data_ptr() for tensor in own.values()}


def _check_architecture(model: Any, directory: Path) -> None:
    runs: dict[str, Any] = model.config.to_dict()
    try:
        config = cast("Any", AutoConfig).from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot read the config of {directory}: {_first_line(error)}") from error
    offered: dict[str, Any] = config.to_dict()
    for key in sorted((runs.keys() | offered.keys()) - _NOT_ARCHITECTURE):
        here, there = runs.get(key), offered.get(key)
        if here != there:
            raise DataError(
                f"{directory} is another architecture: {key} is {there!r}, the engine runs {here!r}",
                hint="start an engine for this model",
            )


def _first_line(error: BaseException) -> str:
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if len(line) <= _LINE_CHARACTERS else line[:_LINE_CHARACTERS] + " …"
