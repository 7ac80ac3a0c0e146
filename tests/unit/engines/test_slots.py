"""The slot cache and the store of prefixes."""

from __future__ import annotations

import pytest
import torch

from ptctl.engines.slots import PrefixStore, SlotCache


def _states(rows: int, width: int, value: float) -> torch.Tensor:
    return torch.full((rows, 2, width, 3), value)  # two heads of three dimensions


def _write(cache: SlotCache, start: int, positions: list[list[int]], value: float) -> tuple[torch.Tensor, torch.Tensor]:
    where = torch.tensor(positions)
    cache.open_window(start, where, int(where.max()) + 1)
    return cache.update(_states(*where.shape, value), _states(*where.shape, -value), 0)


def test_rows_write_at_their_own_positions_and_read_to_the_longest() -> None:
    cache = SlotCache(max_slots=16, max_length=128)
    _write(cache, 0, [[0, 1, 2], [0, 1, 1]], 1.0)
    keys, values = _write(cache, 0, [[3], [2]], 2.0)
    assert keys.shape == (2, 2, 4, 3)
    assert keys[:, 0, :, 0].tolist() == [[1, 1, 1, 2], [1, 1, 2, 0]]
    assert torch.equal(values, -keys)


def test_growth_keeps_what_was_written() -> None:
    cache = SlotCache(max_slots=100, max_length=1000)
    _write(cache, 0, [[0]], 5.0)
    keys, _ = _write(cache, 0, [[900]] * 60, 6.0)  # more rows and longer rows than the first buffers
    assert keys.shape == (60, 2, 901, 3)
    assert (keys[0, 1, 0, 0], keys[59, 1, 900, 0], keys[1, 1, 0, 0]) == (5.0, 6.0, 0.0)


def test_more_than_the_limits_is_refused() -> None:
    cache = SlotCache(max_slots=2, max_length=8)
    with pytest.raises(RuntimeError, match="exceed 2 × 8"):
        _write(cache, 0, [[0], [0], [0]], 1.0)
    with pytest.raises(RuntimeError, match="exceed 2 × 8"):
        _write(cache, 0, [[8]], 1.0)


def test_copy_take_and_put() -> None:
    cache = SlotCache(max_slots=16, max_length=16)
    _write(cache, 0, [[0, 1]], 1.0)
    _write(cache, 1, [[0, 1]], 2.0)
    cache.copy_rows([1, 1], [2, 9], 1)
    stored = cache.take(1, 2)
    cache.put(0, stored, 1)
    _write(cache, 1, [[0, 1]], 3.0)
    keys, _ = _write(cache, 0, [[2]] * 10, 4.0)
    assert keys[[0, 1, 2, 9], 0, :2, 0].tolist() == [[2, 1], [3, 3], [2, 0], [2, 0]]
    assert stored[0][0][0, :, 0].tolist() == [2, 2]


def _layers(num_positions: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(1, num_positions, 1), torch.zeros(1, num_positions, 1))]  # 8 bytes a position


def test_prefixes_are_found_by_their_ids() -> None:
    store = PrefixStore(max_bytes=1000)
    store.add(1, [5, 6, 7], _layers(3))
    assert store.pop(2, [5, 6, 7]) == (0, [])
    known, layers = store.pop(1, [5, 6, 7, 8])
    assert (known, len(layers)) == (3, 1)
    assert store.pop(1, [5, 6, 7, 8]) == (0, [])  # taken
    store.add(1, [5, 6, 7], _layers(3))
    assert store.pop(1, [5, 9, 7])[0] == 1  # a rewritten context
    store.add(1, [5, 6, 7], _layers(3))
    assert store.pop(1, [5, 6])[0] == 2  # a shorter one


def test_the_least_recently_added_prefix_leaves_first() -> None:
    store = PrefixStore(max_bytes=80)  # ten positions
    store.add(1, [1, 1, 1, 1], _layers(4))
    store.add(2, [2, 2, 2, 2], _layers(4))
    store.add(1, [1, 1, 1, 1], _layers(4))  # again: now 2 is the oldest
    store.add(3, [3, 3, 3, 3], _layers(4))
    assert [store.pop(key, [key] * 4)[0] for key in (1, 2, 3)] == [4, 0, 4]
    store.add(4, [4] * 11, _layers(11))  # larger than the whole store
    assert store.pop(4, [4] * 11)[0] == 0
    store.add(5, [5] * 4, _layers(4))
    store.clear()
    assert store.pop(5, [5] * 4)[0] == 0
