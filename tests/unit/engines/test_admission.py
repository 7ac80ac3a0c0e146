"""Uniform numbers and what is checked before a request is taken."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptctl.engines.admission import check_context, check_sampling, uniform_numbers
from ptctl.errors import RowFailure, UsageError
from ptctl.protocols import GenerateRequest
from ptctl.records import Sampling


def _request(prompt: list[int], max_new_tokens: int = 10) -> GenerateRequest:
    return GenerateRequest(request_id="r7", prompt_ids=prompt, sampling=Sampling(max_new_tokens=max_new_tokens), seed=0)


def test_uniform_numbers_depend_on_seed_and_index_alone() -> None:
    long = uniform_numbers(5, 100)
    assert uniform_numbers(5, 7).tolist() == long[:7].tolist()
    assert uniform_numbers(6, 7).tolist() != long[:7].tolist()
    assert uniform_numbers(-1, 3).tolist() == uniform_numbers(2**64 - 1, 3).tolist()


def test_uniform_numbers_are_pinned() -> None:
    """Philox 4x64-10 with key 1: another generator would make recorded runs irreproducible."""
    raw = np.random.Philox(key=1).random_raw(3)
    assert uniform_numbers(1, 3).tolist() == [int(word >> 11) * 2.0**-53 for word in raw.tolist()]
    assert uniform_numbers(1, 2).tolist() == pytest.approx(PINNED, abs=1e-15)


PINNED = [0.3035680343067586, 0.8487087496857769]


def test_uniform_numbers_of_neighbouring_seeds_are_uniform() -> None:
    first = np.array([uniform_numbers(seed, 1)[0] for seed in range(4000)])
    counts = np.histogram(first, bins=10, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi square with 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.0), Sampling(top_k=1, top_p=0.1)])
def test_usable_sampling_passes(sampling: Sampling) -> None:
    check_sampling(sampling)


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (Sampling(temperature=-0.1), "temperature"),
        (Sampling(temperature=math.inf), "temperature"),
        (Sampling(top_p=1.1), "top_p"),
        (Sampling(top_p=math.nan), "top_p"),
        (Sampling(top_k=-2), "top_k"),
        (Sampling(max_new_tokens=0), "max_new_tokens"),
    ],
)
def test_unusable_sampling_is_named(sampling: Sampling, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        check_sampling(sampling)


def test_context_and_room() -> None:
    assert check_context(_request([1, 2, 3]), vocab_size=4, context_length=64) == ([1, 2, 3], 10)
    assert check_context(_request([1, 2, 3]), vocab_size=4, context_length=5) == ([1, 2, 3], 2)


@pytest.mark.parametrize(
    ("prompt", "named"), [([], "empty"), ([1] * 5, "5 tokens"), ([1, 4], "id 4"), ([-1, 1], "id -1")]
)
def test_a_bad_context_is_a_row_failure(prompt: list[int], named: str) -> None:
    with pytest.raises(RowFailure, match=f"r7 .*{named}") as caught:
        check_context(_request(prompt), vocab_size=4, context_length=5)
    assert caught.value.kind == "engine"
