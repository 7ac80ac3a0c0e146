"""The backend `megatron`: trains Hugging Face policies through Megatron-Core, on GPUs or, for tiny models, on CPUs.

    backend.py       MegatronBackend: the `ptctl.protocols.Backend`
    ├── runtime.py       process group, Megatron's parallel groups, device; deals micro-batches to data parallel ranks
    │   └── cpu_shim.py      makes Megatron's hard-coded CUDA calls land on the CPU where there is no GPU
    ├── geometry.py      config.json → what the model looks like (no torch)
    ├── model.py         GPTModel wrapped in Megatron's DistributedDataParallel
    │   └── layers.py        core attention and norm for machines without Transformer Engine
    ├── weights.py       Hugging Face tensors ↔ Megatron parameters
    ├── batches.py       rows → padded micro-batches
    ├── losses.py        sft and grpo on vocabulary-parallel logits
    ├── updates.py       optimizer and learning-rate schedule of one phase
    ├── checkpoint.py    Megatron's distributed checkpoint
    ├── policy_files.py  reads and writes a policy directory
    └── mcore.py         everything that is used of Megatron-Core, imported in one place

Importing this package is light; `MegatronBackend` is imported on first use and raises `MissingExtra` where torch or
Megatron-Core is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptctl.errors import MissingExtra

if TYPE_CHECKING:
    from ptctl.backends.megatron.backend import MegatronBackend

__all__ = ["REQUIRES", "MegatronBackend"]

REQUIRES = ("torch", "megatron", "safetensors", "psutil")
"""Modules that must be installed; see `ptctl.registry.check`."""

_NEEDED = ("torch", "megatron", "safetensors", "psutil", "packaging", "triton")
"""Top-level packages of the extra `train`; a missing one is a missing extra, any other import error is a bug."""


def __getattr__(name: str) -> Any:
    """Import `MegatronBackend` on first use. Raises MissingExtra where the extra `train` is not installed."""
    if name != "MegatronBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ptctl.backends.megatron.backend import MegatronBackend
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        raise MissingExtra(
            f"the backend megatron needs the package {error.name}, which is not installed",
            hint="pip install 'ptctl[train]'",
        ) from error
    except AttributeError as error:  # Python would report it as a name that this package lacks
        raise ImportError(f"the backend megatron cannot be imported: {error}") from error
    return MegatronBackend
