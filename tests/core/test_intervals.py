"""Intervals against closed forms, brute force and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.intervals import delong, logit_normal, noise_ball, normal, quantile, share, wilson


def test_wilson_vector(vector):
    """Wilson's interval is the one of statsmodels."""
    inputs, expected = vector("evalue_recall")
    assert wilson(inputs["hits"], inputs["positives"]) == pytest.approx(expected["wilson95"], abs=1e-9)


@given(st.integers(1, 10**7), st.floats(0, 1), st.sampled_from([0.5, 0.95, 0.99]))
def test_wilson_solves_its_equation(n, part, level):
    """Each end p satisfies |k/n - p| = z sqrt(p (1 - p) / n), and the ends enclose k/n inside [0, 1]."""
    k = round(part * n)
    low, high = wilson(k, n, level)
    assert 0 <= low <= k / n <= high <= 1
    for p in (low, high):
        assert abs(k / n - p) == pytest.approx(quantile(level) * math.sqrt(p * (1 - p) / n), rel=1e-6, abs=1e-9)


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_is_symmetric(k, others):
    """Swapping the classes mirrors the interval."""
    low, high = wilson(k, k + others)
    assert wilson(others, k + others) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_wilson_ends_are_exact():
    """No hit gives a lower end of exactly 0, all hits an upper end of exactly 1, no rows everything."""
    assert wilson(0, 7)[0] == 0
    assert wilson(7, 7)[1] == 1
    assert wilson(0, 0) == (0, 1)


def test_wilson_of_arrays():
    """Arrays give what their elements give, empty bins included."""
    k, n = np.array([0.0, 3.0, 9.0, 0.0]), np.array([5.0, 7.0, 9.0, 0.0])
    low, high = wilson(k, n)
    assert list(zip(low, high, strict=True)) == [wilson(a, b) for a, b in zip(k.tolist(), n.tolist(), strict=True)]


@pytest.mark.parametrize(("p", "n"), [(0.02, 500), (0.3, 50), (0.9, 200)])
def test_wilson_covers(p, n):
    """The 95 % interval covers the truth in 93 to 98 % of 4,000 seeded samples."""
    low, high = wilson(np.random.default_rng(1).binomial(n, p, 4_000).astype(float), np.full(4_000, float(n)))
    assert 0.93 <= ((low <= p) & (p <= high)).mean() <= 0.98


def test_share_counts_its_denominator():
    """A share knows how many rows it is a share of."""
    assert share(3.0, 4.0) == (0.75, *wilson(3, 4), 4)


def test_normal():
    """The normal interval is symmetric and has the textbook width."""
    assert normal(2.0, 4.0) == pytest.approx((2 - 3.919928, 2 + 3.919928), abs=1e-6)


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0, 10))
def test_logit_normal_stays_inside(value, variance):
    """The interval on the logit scale encloses the value and never leaves [0, 1]."""
    low, high = logit_normal(value, variance)
    assert 0 <= low <= value * (1 + 1e-9)
    assert value * (1 - 1e-9) <= high <= 1


def _delong_of_pairs(neg, pos):
    """Return AUC and variance by DeLong's definition: the kernel of every pair."""
    x = np.repeat(np.arange(len(pos)), pos.astype(int))
    y = np.repeat(np.arange(len(neg)), neg.astype(int))
    kernel = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    return kernel.mean(), kernel.mean(axis=1).var(ddof=1) / len(x) + kernel.mean(axis=0).var(ddof=1) / len(y)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_delong_is_the_pairwise_definition(bins):
    """Counts per bin give the value and variance of the definition, ties included."""
    neg, pos = np.array(bins, float).T
    if min(neg.sum(), pos.sum()) >= 2:
        assert delong(neg, pos) == pytest.approx(_delong_of_pairs(neg, pos), abs=1e-12)


def test_delong_turned_around():
    """Reversing the order of the bins turns the area into its complement and keeps the variance."""
    neg, pos = np.array([5.0, 3, 2, 0]), np.array([1.0, 2, 2, 6])
    auc, variance = delong(neg, pos)
    assert delong(neg[::-1], pos[::-1]) == pytest.approx((1 - auc, variance))


def test_delong_of_one_positive():
    """The spread within a class of one row is unknown, so the variance is NaN, not 0."""
    auc, variance = delong(np.array([2.0, 1.0]), np.array([0.0, 1.0]))
    assert auc == pytest.approx(5 / 6)
    assert math.isnan(variance)


def test_noise_ball_of_one_bin():
    """One bin has a closed form: the quantile of |N(0, 1)| times sd / n."""
    assert noise_ball(np.array([25.0]), 50, 0.95) == pytest.approx(quantile(0.95) * 5 / 50, rel=0.03)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("spread", [np.ones(15), np.array([100.0, 1, 1, 0.01]), np.linspace(0, 3, 10)])
def test_noise_ball_covers(spread, level):
    """The ball holds sum |N(0, S_b)| / n in `level` of 20,000 other draws, up to the noise of its 4,096."""
    draws = np.abs(np.random.default_rng(7).normal(0, np.sqrt(spread), (20_000, len(spread)))).sum(axis=1) / 10
    inside = (draws <= noise_ball(spread, 10, level)).mean()
    assert inside == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 4_096))


def test_noise_ball_is_a_function():
    """It scales with sd / n, ignores empty bins and gives the same number every time."""
    spread = np.array([4.0, 9.0, 1.0])
    q = noise_ball(spread, 10, 0.99)
    assert q == noise_ball(spread, 10, 0.99)
    assert noise_ball(100 * spread, 100, 0.99) == pytest.approx(q)
    assert noise_ball(np.append(spread, 0.0), 10, 0.99) == pytest.approx(q)
    assert noise_ball(spread, 10, 0.9) < q
