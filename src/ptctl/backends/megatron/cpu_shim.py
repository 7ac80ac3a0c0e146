"""Makes Megatron-Core's hard-coded CUDA calls land on the CPU, for machines without a GPU.

Megatron-Core has no CPU mode: it asks for `torch.cuda.current_device()`, creates tensors with `device="cuda"`, compares
`tensor.type()` with "torch.cuda.FloatTensor", seeds the CUDA generator and waits for CUDA streams. `CpuShim` replaces
those functions while a backend is open and puts the originals back when it is closed. It does nothing where CUDA is
available, and only the train process ever uses it.

A `TorchFunctionMode` would be less intrusive, but recomputation runs parts of the forward pass inside the backward
pass, where no mode is active.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.utils._device import _device_constructors  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]

CPU = torch.device("cpu")

FACTORIES = (
    "tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "eye", "rand", "randn", "randint", "linspace",
    "zeros_like", "ones_like", "empty_like", "full_like", "randn_like",
)  # fmt: skip
"""Functions of `torch` whose `device` and `pin_memory` are redirected."""

_RANDOM = "megatron.core.tensor_parallel.random"
_MOE_DISPATCHER = "megatron.core.transformer.moe.token_dispatcher"


class _NoStream:
    """Stands for CUDA streams and events: everything has happened already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def record_event(self, *_: Any) -> _NoStream:
        return self

    def wait_stream(self, *_: Any) -> None:
        return

    def wait_event(self, *_: Any) -> None:
        return

    def record(self, *_: Any) -> None:
        return

    def wait(self, *_: Any) -> None:
        return

    def synchronize(self) -> None:
        return


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("pin_memory", False) or _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        return factory(*args, **kwargs)

    return redirected


def _nothing(*_: Any, **__: Any) -> None:
    return


def _cpu_device() -> torch.device:
    return CPU


def _one() -> int:
    return 1


def _get_rng_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _no_context(*_: Any) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def _same(tensor_or_module: Any, *_: Any, **__: Any) -> Any:
    return tensor_or_module


@contextlib.contextmanager
def compile_disabled() -> Generator[None]:
    """Make `torch.compile` return its argument, while Megatron-Core decorates its functions at import.

    Without a GPU its fused functions gain nothing from compilation, and the compiler alone costs two seconds to import.
    """
    original = torch.compile

    def keep(model: Any = None, **_: Any) -> Any:
        return model if model is not None else _same

    torch.compile = keep  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.compile = original


class CpuShim:
    """The replaced functions; `install` before Megatron builds anything, `restore` when it is shut down."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Replace the functions. Does nothing where CUDA is available, or when installed already."""
        if self._originals or torch.cuda.is_available():
            return
        # PyTorch caches the list of its device constructors on first use, for `with torch.device("meta")`. It must see
        # the originals: with wrapped ones transformers builds wrong rotary buffers, silently.
        _device_constructors()
        for name in FACTORIES:
            self._replace(torch, name, _on_cpu(getattr(torch, name)))
        self._replace_tensor_methods()
        self._replace_cuda_module()
        self._replace_in_megatron()

    def restore(self) -> None:
        """Put every original back, in reverse order; safe to call twice."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, replacement)

    def _replace_tensor_methods(self) -> None:
        original_to, original_type = torch.Tensor.to, torch.Tensor.type

        @functools.wraps(original_to)
        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if args and _is_cuda(args[0]):
                args = (CPU, *args[1:])
            if _is_cuda(kwargs.get("device")):
                kwargs["device"] = CPU
            return original_to(tensor, *args, **kwargs)

        @functools.wraps(original_type)
        def type_name(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Megatron's optimizers and gradient clipping compare this string.
            result = original_type(tensor, *args, **kwargs)
            return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

        self._replace(torch.Tensor, "to", to)
        self._replace(torch.Tensor, "type", type_name)
        self._replace(torch.Tensor, "cuda", _same)
        self._replace(torch.Tensor, "record_stream", _nothing)
        self._replace(torch.nn.Module, "cuda", _same)

    def _replace_cuda_module(self) -> None:
        replacements: dict[str, Any] = {
            "current_device": _cpu_device,
            "device_count": _one,
            "set_device": _nothing,
            "synchronize": _nothing,
            "empty_cache": _nothing,
            "manual_seed": torch.manual_seed,
            "get_rng_state": _get_rng_state,
            "set_rng_state": _set_rng_state,
            "current_stream": _NoStream,
            "default_stream": _NoStream,
            "stream": _no_context,
            "Stream": _NoStream,
            "Event": _NoStream,
        }
        for name, replacement in replacements.items():
            self._replace(torch.cuda, name, replacement)
        self._replace(torch.cuda.random, "get_rng_state", _get_rng_state)

    def _replace_in_megatron(self) -> None:
        random = sys.modules[_RANDOM]
        self._replace(random, "_set_cuda_rng_state", _set_rng_state)
        self._replace(random, "_get_cuda_rng_state", _get_rng_state)
        if dispatcher := sys.modules.get(_MOE_DISPATCHER):
            # Megatron converts split sizes only where they are on a GPU; collectives need them as host numbers.
            self._replace(dispatcher, "maybe_move_tensor_to_cpu", _splits_on_host)


def _splits_on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
