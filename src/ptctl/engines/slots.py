"""Keys and values of the running rows: row i of the batch lives in slot i, and attention reads views, never copies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from ptctl.protocols import Int64Array

_FIRST_NUM_SLOTS = 8
_FIRST_LENGTH = 64


@dataclass(frozen=True, slots=True)
class _Window:
    """Which rows and positions the next forward pass writes, and how far it reads."""

    start: int
    stop: int
    rows: torch.Tensor  # [R, 1] slot of each row
    positions: torch.Tensor  # [R, Q]
    length: int


class SlotCache(Cache):
    """A transformers cache for rows that join and leave at any time.

    Each layer has one buffer [num_slots, num_heads, length, head_dim] for keys and one for values. A forward pass over
    the slots [start, stop) scatters at each row's own positions and attends to a view up to the longest of them; the
    caller's mask hides what does not belong to a row. Buffers double when more rows or longer rows come: memory grows
    with the most rows times the longest row.
    """

    def __init__(self, *, max_slots: int, max_length: int) -> None:
        super().__init__(layers=[])
        self._max_slots = max_slots
        self._max_length = max_length
        self._num_slots = min(_FIRST_NUM_SLOTS, max_slots)
        self._length = min(_FIRST_LENGTH, max_length)
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._window: _Window | None = None

    def open_window(self, start: int, positions: torch.Tensor, length: int) -> None:
        """Let the next forward pass write slots from `start` at `positions` # [R, Q] and read `length` positions."""
        stop = start + positions.shape[0]
        rows = torch.arange(start, stop, device=positions.device)[:, None]
        self._window = _Window(start, stop, rows, positions, length)
        self._reserve(stop, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store # [R, num_heads, Q, head_dim] of one layer; return views # [R, num_heads, length, head_dim]."""
        window = self._window
        if window is None:
            raise RuntimeError("the cache was used without a window")
        while len(self._buffers) <= layer_idx:
            self._buffers.append((self._allocated(key_states), self._allocated(value_states)))
        keys, values = self._buffers[layer_idx]
        keys[window.rows, :, window.positions] = key_states.transpose(1, 2)
        values[window.rows, :, window.positions] = value_states.transpose(1, 2)
        span = slice(window.start, window.stop)
        return keys[span, :, : window.length], values[span, :, : window.length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions and mask are always given, so no model has to derive them from the cache."""
        return 0

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of slots; no slot may be both a source and a target."""
        if not targets:
            return
        self._reserve(max(targets) + 1, length)
        for buffer in self._tensors():
            buffer[list(targets), :, :length] = buffer[list(sources), :, :length]

    def take(self, slot: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies of the first `length` positions of a slot, layer by layer."""
        return [(k[slot, :, :length].clone(), v[slot, :, :length].clone()) for k, v in self._buffers]

    def put(self, slot: int, layers: list[tuple[torch.Tensor, torch.Tensor]], length: int) -> None:
        """Write the first `length` positions of what `take` gave into a slot."""
        self._reserve(slot + 1, length)
        for (keys, values), (stored_keys, stored_values) in zip(self._buffers, layers, strict=True):
            keys[slot, :, :length] = stored_keys[:, :length]
            values[slot, :, :length] = stored_values[:, :length]

    def clear(self) -> None:
        """Drop all buffers."""
        self._buffers = []
        self._window = None

    def _tensors(self) -> list[torch.Tensor]:
        return [tensor for layer in self._buffers for tensor in layer]

    def _allocated(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, not garbage: a masked NaN would still poison the product with the attention weights.
        shape = (self._num_slots, states.shape[1], self._length, states.shape[-1])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def _reserve(self, num_slots: int, length: int) -> None:
        if num_slots <= self._num_slots and length <= self._length:
            return
        if num_slots > self._max_slots or length > self._max_length:
            raise RuntimeError(f"{num_slots} rows of {length} positions exceed {self._max_slots} × {self._max_length}")
        self._num_slots = _doubled(self._num_slots, num_slots, self._max_slots)
        self._length = _doubled(self._length, length, self._max_length)
        self._buffers = [(self._grown(keys), self._grown(values)) for keys, values in self._buffers]

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        new = self._allocated(old)
        new[: old.shape[0], :, : old.shape[2]] = old
        return new


def _doubled(size: int, wanted: int, limit: int) -> int:
    while size < wanted:
        size *= 2
    return min(size, limit)


@dataclass(frozen=True, slots=True)
class _Prefix:
    token_ids: Int64Array  # [T]
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    size_bytes: int


class PrefixStore:
    """Keys and values of finished messages, for the next turn of the same episode; the least recently used leave first.

    The key only says where to look: what is reused is the common prefix of the stored ids and the new context.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._prefixes: OrderedDict[int, _Prefix] = OrderedDict()

    def add(self, key: int, token_ids: Sequence[int], layers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Keep `layers` of `token_ids` for the episode `key`."""
        self._drop(key)
        size_bytes = sum(tensor.nbytes for layer in layers for tensor in layer)
        if size_bytes > self._max_bytes:
            return
        self._prefixes[key] = _Prefix(np.asarray(token_ids, dtype=np.int64), layers, size_bytes)
        self._num_bytes += size_bytes
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._prefixes)))

    def pop(self, key: int, token_ids: Sequence[int]) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Number of leading `token_ids` whose keys and values are known, with the layers that hold them."""
        prefix = self._prefixes.get(key)
        if prefix is None:
            return 0, []
        self._drop(key)
        length = min(len(prefix.token_ids), len(token_ids))
        different = np.flatnonzero(prefix.token_ids[:length] != np.asarray(token_ids[:length], dtype=np.int64))
        return (int(different[0]) if len(different) else length), prefix.layers

    def clear(self) -> None:
        """Forget everything: another policy has other keys and values."""
        self._prefixes.clear()
        self._num_bytes = 0

    def _drop(self, key: int) -> None:
        prefix = self._prefixes.pop(key, None)
        if prefix is not None:
            self._num_bytes -= prefix.size_bytes
