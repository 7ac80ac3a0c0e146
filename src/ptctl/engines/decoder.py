"""Continuous batching over a transformers causal language model: rows join and leave at every iteration.

Synchronous and without locks: the engine calls it from one thread. An iteration reads the contexts of the rows that
join (prefill), then draws one token for every row. The last context token is never part of the prefill; it goes through
the first draw like any other token, so that logits are computed in one place only, by the model's own forward.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from ptctl.engines.sampler import DrawSettings, draw_tokens
from ptctl.engines.slots import PrefixStore, SlotCache
from ptctl.errors import DataError, UsageError
from ptctl.protocols import Float64Array
from ptctl.records import Sampling

PREFILL_TOKENS = 4096
"""Context tokens, padding included, of one forward pass."""
PREFIX_BYTES = 256 * 1024 * 1024
"""Keys and values that are kept for the next turns of episodes."""


@dataclass(slots=True, eq=False)
class Row:
    """One request while it is being decoded."""

    prompt: list[int]  # [P], P ≥ 1
    sampling: Sampling
    uniforms: Float64Array  # [limit]
    limit: int
    """Tokens at most: what was asked for, or what the context leaves."""
    prefix_key: int
    """Episode under which keys and values are kept."""
    tokens: list[int] = field(default_factory=list[int])
    """# [C] drawn so far."""
    logprobs: list[float] = field(default_factory=list[float])
    """# [C]"""
    num_cached_tokens: int = 0
    """Context tokens whose keys and values were copied, not computed."""
    finish_reason: str | None = None
    """`stop`, `length`, or `error` for logits that are not numbers; None while running."""

    @property
    def last_token(self) -> int:
        """The token whose successor is drawn next."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]


class BatchDecoder:
    """Decodes at most `max_running` rows of `context_length` tokens together. `model` is in eval mode on `device`."""

    def __init__(
        self, model: Any, *, device: torch.device, context_length: int, max_running: int, stop_token_ids: Iterable[int]
    ) -> None:
        self._model = model
        self._device = device
        self._stop_token_ids = frozenset(stop_token_ids)
        self._max_running = max_running
        self._context_length = context_length
        self._cache_keyword = _cache_keyword(model)
        self._rows: list[Row] = []  # row i is in slot i
        self._settings: DrawSettings | None = None
        self._prefixes = PrefixStore(max_bytes=PREFIX_BYTES)
        self._cache = SlotCache(max_slots=max_running, max_length=context_length)

    @property
    def num_running(self) -> int:
        """Rows that are being decoded."""
        return len(self._rows)

    @property
    def num_free(self) -> int:
        """Rows that may join."""
        return self._max_running - len(self._rows)

    @torch.inference_mode()
    def advance(self, arriving: Sequence[Row], leaving: Sequence[Row]) -> list[Row]:
        """One iteration; returns the rows that finished. `leaving` are dropped first and are not returned."""
        if leaving:
            gone = set(leaving)
            self._remove([index for index, row in enumerate(self._rows) if row in gone])
        if arriving:
            self._join(arriving)
        if not self._rows:
            return []
        self._draw()
        finished = [index for index, row in enumerate(self._rows) if row.finish_reason is not None]
        rows = [self._rows[index] for index in finished]
        for index, row in zip(finished, rows, strict=True):
            self._keep_prefix(index, row)
        self._remove(finished)
        return rows

    def replace_model(self, model: Any) -> None:
        """Decode with other weights from now on; no row may be running."""
        self._model = model
        self._cache_keyword = _cache_keyword(model)
        self.reset()

    def reset(self) -> None:
        """Drop all rows, keys and values."""
        self._rows = []
        self._settings = None
        self._prefixes.clear()
        self._cache.clear()

    @torch.inference_mode()
    def check_model(self, tolerance: float) -> None:
        """Compare with the model's plain forward on two short rows of unequal length.

        Raises UsageError for an architecture whose attention does not go through the cache and mask that it is given,
        DataError where the weights give no numbers at all.
        """
        vocab_size = int(self._model.get_input_embeddings().weight.shape[0])
        lengths = [min(length, self._context_length) for length in (3, 7)][: self._max_running]
        rows = [
            Row([(7 * i + 3) % vocab_size for i in range(length)], Sampling(), np.zeros(1), 1, key)
            for key, length in enumerate(lengths)
        ]
        name = type(self._model).__name__
        hint = "serve this architecture with another engine, such as sglang"
        try:
            self._join(rows)
            ours = self._next_logits()
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(
                f"the local engine cannot run {name}: {type(error).__name__}: {error}", hint=hint
            ) from error
        for index, row in enumerate(self._rows):
            plain = self._model(input_ids=torch.tensor([row.prompt], device=self._device)).logits[0, -1].float()
            if not bool(plain.isfinite().all()):
                raise DataError(f"the weights of this {name} give logits that are not numbers")
            difference = float((plain - ours[index]).abs().max())
            if not difference <= tolerance:
                raise UsageError(
                    f"the local engine cannot run {name}: its logits differ by {difference:.2g} from a plain forward",
                    hint=hint,
                )
        self.reset()

    # ── an iteration ──

    def _draw(self) -> None:
        if self._settings is None:
            self._settings = DrawSettings.of([row.sampling for row in self._rows], self._device)
        uniforms = torch.tensor(
            [row.uniforms[len(row.tokens)] for row in self._rows], dtype=torch.float64, device=self._device
        )
        ids, logprobs = draw_tokens(self._next_logits(), self._settings, uniforms)
        drawn: Any = zip(self._rows, cast("Any", ids).tolist(), cast("Any", logprobs).tolist(), strict=True)
        for row, token, logprob in drawn:
            if math.isnan(logprob):
                row.finish_reason = "error"
                continue
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if token in self._stop_token_ids:
                row.finish_reason = "stop"
            elif len(row.tokens) == row.limit:
                row.finish_reason = "length"

    def _next_logits(self) -> torch.Tensor:
        """# [B, V] float32 after the last token of every row."""
        ids = torch.tensor([[row.last_token] for row in self._rows], device=self._device)
        positions = [[len(row.prompt) + len(row.tokens) - 1] for row in self._rows]
        return self._forward(self._model, ids, positions, start=0).logits[:, -1].float()

    def _forward(self, module: Any, ids: torch.Tensor, positions: list[list[int]], *, start: int) -> Any:
        """Feed `ids` # [R, Q] at `positions` # [R, Q] to the rows in slots from `start`."""
        length = 1 + max(max(row) for row in positions)
        where = torch.tensor(positions, device=self._device)
        self._cache.open_window(start, where, length)
        # Boolean and with four dimensions: transformers hands such a mask on to attention as it is. # [R, 1, Q, length]
        mask = torch.arange(length, device=self._device) <= where[:, None, :, None]
        cache = {self._cache_keyword: self._cache}
        return module(input_ids=ids, attention_mask=mask, position_ids=where, use_cache=True, **cache)

    # ── joining ──

    def _join(self, arriving: Sequence[Row]) -> None:
        """Give every arriving row a slot that holds the keys and values of all its context but the last token."""
        readers: list[tuple[Row, list[Any]]] = []
        sharers: dict[Row, list[Row]] = {}  # rows with the same context as the row that reads it
        by_context: dict[tuple[int, ...], Row] = {}
        for row in arriving:
            known, layers = self._prefixes.pop(row.prefix_key, row.prompt[:-1])
            row.num_cached_tokens = known
            context = tuple(row.prompt)
            if not known and context in by_context:
                sharers[by_context[context]].append(row)
                continue
            readers.append((row, layers))
            if not known:
                by_context[context] = row
                sharers[row] = []
        readers.sort(key=lambda reader: len(reader[0].prompt) - reader[0].num_cached_tokens)
        start = len(self._rows)
        self._rows.extend(row for row, _ in readers)
        for slot, (row, layers) in enumerate(readers, start):
            if layers:
                self._cache.put(slot, layers, row.num_cached_tokens)
        self._read_contexts(start)
        for slot, (row, _) in enumerate(readers, start):
            self._share(slot, row, sharers.get(row, []))
        self._settings = None

    def _share(self, slot: int, row: Row, others: list[Row]) -> None:
        length = len(row.prompt) - 1
        first = len(self._rows)
        self._rows.extend(others)
        targets = range(first, len(self._rows))
        if length:
            self._cache.copy_rows([slot] * len(others), targets, length)
        for other in others:
            other.num_cached_tokens = length

    def _read_contexts(self, start: int) -> None:
        """Prefill the rows from slot `start`, sorted by what they have to read, in batches of similar length."""
        while start < len(self._rows):
            stop = start
            while stop < len(self._rows) and (stop - start + 1) * _num_unread(self._rows[stop]) <= PREFILL_TOKENS:
                stop += 1
            stop = max(stop, start + 1)  # one context longer than the budget is read alone, piece by piece
            width = _num_unread(self._rows[stop - 1])
            for piece in range(0, width, PREFILL_TOKENS):
                self._read_piece(start, stop, piece, min(width, piece + PREFILL_TOKENS))
            start = stop

    def _read_piece(self, start: int, stop: int, begin: int, end: int) -> None:
        ids: list[list[int]] = []
        positions: list[list[int]] = []
        for row in self._rows[start:stop]:
            first, last = row.num_cached_tokens, len(row.prompt) - 1
            places = [min(first + offset, last) for offset in range(begin, end)]
            # Past its end a row writes its last context token early, to the place where the first draw writes it again.
            ids.append([row.prompt[place] for place in places])
            positions.append(places)
        self._forward(self._model.base_model, torch.tensor(ids, device=self._device), positions, start=start)

    # ── leaving ──

    def _keep_prefix(self, index: int, row: Row) -> None:
        if row.finish_reason == "error":
            return
        ids = row.prompt + row.tokens[:-1]  # the last token was drawn but never fed
        self._prefixes.add(row.prefix_key, ids, self._cache.take(index, len(ids)))

    def _remove(self, indices: Sequence[int]) -> None:
        """Free slots; rows from the end move into the holes, so that slots stay without gaps."""
        if not indices:
            return
        gone = set(indices)
        num_left = len(self._rows) - len(gone)
        movers = [index for index in range(num_left, len(self._rows)) if index not in gone]
        holes = [index for index in sorted(gone) if index < num_left]
        if movers:
            length = max(len(self._rows[index].prompt) + len(self._rows[index].tokens) for index in movers)
            self._cache.copy_rows(movers, holes, min(length, self._context_length))
        for mover, hole in zip(movers, holes, strict=True):
            self._rows[hole] = self._rows[mover]
        del self._rows[num_left:]
        self._settings = None


def _num_unread(row: Row) -> int:
    """Context tokens that the prefill reads: all but those that are known and the last."""
    return len(row.prompt) - 1 - row.num_cached_tokens


def _cache_keyword(model: Any) -> str:
    """transformers 5.2x renamed the argument."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
