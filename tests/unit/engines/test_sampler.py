"""Drawing tokens: known values, the inverse distribution, truncation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ptctl.engines.admission import uniform_numbers
from ptctl.engines.sampler import DrawSettings, draw_tokens
from ptctl.records import Sampling

CPU = torch.device("cpu")


def _draw(logits: list[list[float]], samplings: list[Sampling], uniforms: list[float]) -> tuple[list[int], list[float]]:
    settings = DrawSettings.of(samplings, CPU)
    ids, logprobs = draw_tokens(torch.tensor(logits), settings, torch.tensor(uniforms, dtype=torch.float64))
    return ids.tolist(), logprobs.tolist()


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.01815), (1.0, -0.12693), (2.0, -0.31326)])
def test_log_probability_is_at_the_sampling_temperature(temperature: float, expected: float) -> None:
    ids, logprobs = _draw([[2.0, 0.0]], [Sampling(temperature=temperature)], [0.0])
    assert ids == [0]
    assert logprobs == pytest.approx([expected], abs=1e-5)


def test_greedy_takes_the_largest_and_reports_temperature_one() -> None:
    ids, logprobs = _draw([[2.0, 0.0], [0.0, 2.0]], [Sampling(temperature=0.0)] * 2, [0.999, 0.0])
    assert ids == [0, 1]
    assert logprobs == pytest.approx([-0.12693, -0.12693], abs=1e-5)


@pytest.mark.parametrize(
    ("uniform", "expected"), [(0.0, 0), (0.4999, 0), (0.5001, 1), (0.7499, 1), (0.7501, 2), (1 - 2**-53, 2)]
)
def test_inverse_of_the_cumulative_distribution(uniform: float, expected: int) -> None:
    logits = [[math.log(0.5), math.log(0.25), math.log(0.25)]]
    assert _draw(logits, [Sampling()], [uniform])[0] == [expected]


def test_what_is_impossible_is_never_drawn() -> None:
    logits = [[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]
    for uniform in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53):
        assert _draw(logits, [Sampling()], [uniform])[0][0] in (1, 3)


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).expand(20_000, 4)
    settings = DrawSettings.of([Sampling(temperature=2.0)] * 20_000, CPU)
    uniforms = torch.from_numpy(uniform_numbers(11, 20_000))
    ids = draw_tokens(logits, settings, uniforms)[0]
    expected = torch.softmax(logits[0].double() / 2.0, -1).numpy() * 20_000
    counts = np.bincount(ids.numpy(), minlength=4)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi square with 3 degrees of freedom, p = 0.001


FIVE_THREE_TWO = [math.log(0.5), math.log(0.3), math.log(0.2)]


@pytest.mark.parametrize(
    ("sampling", "uniform", "expected"),
    [
        (Sampling(top_k=1), 0.999, 0),
        (Sampling(top_k=2), 0.62, 0),  # 0.62 × 0.8 = 0.496 < 0.5
        (Sampling(top_k=2), 0.63, 1),  # 0.63 × 0.8 = 0.504
        (Sampling(top_k=2), 0.999, 1),
        (Sampling(top_k=100), 0.999, 2),
        (Sampling(top_p=0.45), 0.999, 0),
        (Sampling(top_p=0.6), 0.999, 1),
        (Sampling(top_p=0.85), 0.999, 2),
        (Sampling(top_p=0.6, top_k=2), 0.999, 0),  # top-p of what top-k left: 0.5 ≥ 0.6 × 0.8
    ],
)
def test_truncation_keeps_the_log_probability_of_the_full_vocabulary(
    sampling: Sampling, uniform: float, expected: int
) -> None:
    ids, logprobs = _draw([FIVE_THREE_TWO], [sampling], [uniform])
    assert ids == [expected]
    assert logprobs == pytest.approx([FIVE_THREE_TWO[expected]], abs=1e-6)


def test_truncation_of_one_row_does_not_touch_another() -> None:
    logits = [FIVE_THREE_TWO, FIVE_THREE_TWO[::-1], FIVE_THREE_TWO]
    assert _draw(logits, [Sampling(top_k=1), Sampling(), Sampling(top_p=0.6)], [0.999] * 3)[0] == [0, 2, 1]
    assert (
        _draw(logits[1:2], [Sampling()], [0.1])[0]
        == _draw(logits, [Sampling(top_k=1)] + [Sampling()] * 2, [0.1] * 3)[0][1:2]
    )


def test_a_row_is_the_same_alone_and_among_512() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(512, 97, generator=generator) * 3
    samplings = [Sampling(temperature=(0.0, 0.5, 1.0, 2.0)[row % 4]) for row in range(512)]
    uniforms = torch.from_numpy(uniform_numbers(3, 512))
    ids, logprobs = draw_tokens(logits, DrawSettings.of(samplings, CPU), uniforms)
    for row in range(0, 512, 37):
        one = slice(row, row + 1)
        alone = draw_tokens(logits[one], DrawSettings.of(samplings[one], CPU), uniforms[one])
        assert alone[0].tolist() == ids[one].tolist()
        assert alone[1].tolist() == pytest.approx(logprobs[one].tolist(), abs=1e-12)


def test_logits_that_are_not_numbers_show_in_their_row_only() -> None:
    logprobs = _draw([[math.nan, 0.0], [2.0, 0.0], [math.inf, 0.0]], [Sampling()] * 3, [0.0] * 3)[1]
    assert [math.isnan(value) for value in logprobs] == [True, False, True]
