"""Rank intervals cover what they say, and say what they cannot cover."""

import math

import numpy as np
import pytest

from gradwatch.harness.timing.samples import (
    FEWEST,
    LEVEL,
    of_median,
    resampled,
)


def coverage(estimates, truth):
    """The share of intervals that hold the true value."""
    return np.mean([one.low <= truth <= one.high for one in estimates])


def processes(rng, pairs):
    """Log-ratios of process pairs, each side in one of two modes 10 % apart, A/A."""
    sides = rng.normal(0, 0.02, (2, pairs)) + 0.1 * rng.integers(0, 2, (2, pairs))
    return sides[1] - sides[0]


@pytest.mark.parametrize(
    ("n", "rank", "level"),
    # Ranks of the binomial table (Conover, table A3): 1 - 2 P(fewer than `rank`).
    [
        (6, 1, 1 - 2 / 64),
        (10, 2, 1 - 2 * 11 / 1024),
        (20, 6, 1 - 2 * 21700 / 2**20),
    ],
)
def test_the_interval_of_a_median_takes_the_tabled_ranks(n, rank, level):
    shuffled = np.random.default_rng(1).permutation(np.arange(1.0, n + 1))
    found = of_median(shuffled)
    assert (found.low, found.high) == (rank, n + 1 - rank)
    assert found.level == pytest.approx(level, abs=1e-12)


@pytest.mark.parametrize(
    ("pairs", "critical"),
    # Two-sided 5 % critical values of the signed-rank statistic (Wilcoxon, 1945).
    [(6, 0), (8, 3), (10, 8), (15, 25), (20, 52)],
)
def test_resampling_takes_the_tabled_ranks_of_the_pairwise_means(pairs, critical):
    values = np.random.default_rng(pairs).normal(size=pairs)
    first, second = np.triu_indices(pairs)
    means = np.sort((values[first] + values[second]) / 2)
    found = resampled(values.tolist())
    expected = np.exp([means[critical], means[-1 - critical]])
    np.testing.assert_allclose((found.low, found.high), expected, rtol=1e-14)


@pytest.mark.parametrize("n", [7, 50, 999])
@pytest.mark.parametrize("spread", [0.002, 0.5])
def test_the_interval_of_a_median_covers_a_known_ratio(n, spread):
    rng = np.random.default_rng(n)
    truth = math.log(1.02)
    log_ratios = truth + rng.normal(0, spread, (600, n)) + rng.standard_cauchy((600, n))
    assert 0.93 <= coverage(map(of_median, log_ratios), truth) <= 1


@pytest.mark.parametrize("pairs", [6, 12, 25])
def test_resampling_processes_covers_the_truth(pairs):
    rng = np.random.default_rng(pairs)
    trials = [resampled(processes(rng, pairs).tolist()) for _ in range(600)]
    assert 0.93 <= coverage(trials, 1.0) <= 1


def test_calls_of_one_process_pair_do_not_cover_the_truth():
    """The mistake that `resampled` is there to prevent, planted."""
    rng = np.random.default_rng(3)
    trials = [
        of_median(processes(rng, 1) + rng.normal(0, 0.02, 500)) for _ in range(300)
    ]
    assert coverage(trials, 0.0) < 0.35


def test_one_odd_process_moves_the_resampled_ratio_little():
    honest = [0.001, -0.002, 0.003, -0.001, 0.002, 0.0, -0.003, 0.001]
    assert resampled([*honest, 1.5]).value == pytest.approx(1.0, abs=0.003)


@pytest.mark.parametrize("n", range(1, FEWEST))
@pytest.mark.parametrize("interval", [of_median, resampled])
def test_too_few_values_span_their_range_and_admit_it(interval, n):
    found = interval([math.log(1.5), *[0.0] * (n - 1)])
    assert found.level == 1 - 2.0 ** (1 - n) < LEVEL
    assert not found.resolved
