"""Intervals against closed forms, brute force and simulation."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monitor.core import intervals
from monitor.core.intervals import (
    MIN_CLUSTERS,
    Measured,
    bartlett,
    chi_square_tail,
    cluster_variance,
    clustered,
    delong,
    effective,
    logit_normal,
    long_run_variance,
    noise_ball,
    normal,
    quantile,
    share,
    student,
    whole,
    wilson,
)


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
    assert share(3.0, 4.0)[:4] == (0.75, *wilson(3, 4), 4)


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


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("df", [12, 19, 30, 63, 1_000, 1e9])
def test_student_is_scipys(df, level):
    """The quantile of Student's t is right to 1e-4."""
    assert student(df, level) == pytest.approx(stats.t.ppf(0.5 + level / 2, df), abs=1e-4)


def test_effective():
    """Equal weights make no difference, unequal ones cost, none makes a number larger than the rows it stands for."""
    assert effective(50.0, 250.0) == 10  # ten rows of weight 5
    assert effective(11.0, 101.0) == pytest.approx(121 / 101)
    assert effective(50.0, 10.0) == 50
    assert effective(0.0, 0.0) == 0
    assert [whole(x) for x in (9.999999999999, 9.99, 10.0)] == [10, 9, 10]


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_weights_of_one_are_counts(k, others):
    """With the variances of counts a share is the one without, to the bit."""
    n = float(k + others)
    assert share(float(k), n, (float(k), float(others), 0.0)) == share(float(k), n)


def test_share_of_equal_weights():
    """Rows of weight 5 have the variance of a fifth of the rows."""
    found = share(150.0, 500.0, (750.0, 1750.0, 0.0))
    assert found == (0.3, *logit_normal(0.3, 0.3 * 0.7 / 100), 100, "")


def test_share_by_the_delta_method():
    """The variance of k / n is that of the gradient ((n - k), -k) / n**2 over k and n - k, their covariance included."""
    k, n, spread = 40.0, 100.0, (90.0, 250.0, -30.0)
    gradient = np.array([n - k, -k]) / n**2
    variance = gradient @ np.array([[90.0, -30.0], [-30.0, 250.0]]) @ gradient
    assert share(k, n, spread)[:3] == pytest.approx((0.4, *logit_normal(0.4, variance)))


def test_share_of_a_known_whole():
    """Where the rest is the complement of the hits the whole is known: the variance is that of the hits over n**2."""
    assert share(40.0, 100.0, (90.0, 90.0, -90.0))[:3] == pytest.approx((0.4, *logit_normal(0.4, 90.0 / 100**2)))


def test_share_without_variance():
    """Nothing or everything is no certainty: Wilson's interval of the effective rows; a share never leaves [0, 1]."""
    assert share(0.0, 50.0, (0.0, 250.0, 0.0))[:4] == (0, *wilson(0.0, 10.0), 10)
    assert share(50.0, 50.0, (250.0, 0.0, 0.0))[:4] == (1, *wilson(10.0, 10.0), 10)
    over = share(52.0, 50.0, (250.0, 9.0, 0.0))
    assert (over.value, over.high) == (1, 1)
    assert 0 < over.low < 1


def test_delong_of_equal_weights():
    """Weights of 3 give the area and the variance of a third of the rows."""
    neg, pos = np.array([5.0, 3, 2, 0]), np.array([1.0, 2, 2, 6])
    assert delong(3 * neg, 3 * pos, 9 * np.stack((neg, pos))) == pytest.approx(delong(neg, pos))
    assert delong(3 * neg, 3 * pos, 9 * np.stack((neg, pos)))[1] > 2.9 * delong(3 * neg, 3 * pos)[1]
    assert math.isnan(delong(neg * 9, np.array([0.0, 9, 0, 0]), np.stack((neg * 81, [0.0, 81, 0, 0])))[1])


def _grouped(cluster, above):
    """Return the sums by 64 groups of a value and of the rows."""
    return np.bincount(cluster % 64, above, 64), np.bincount(cluster % 64, minlength=64).astype(float)


def test_cluster_variance_of_known_groups():
    """Hand-computed: three groups of 10 rows with 2, 5 and 8 hits."""
    above, below = np.zeros(64), np.zeros(64)
    above[:3], below[:3] = [2, 5, 8], 10
    variance, clusters = cluster_variance(0.5, (above, below), 30.0, 1.0)
    assert variance == pytest.approx(3 / 2 * (9 + 0 + 9) / 900 * (student(2) / quantile(0.95)) ** 2)
    assert clusters == pytest.approx(900 / ((300 - 900 / 64) / (1 - 1 / 64)))


def test_rows_without_cluster_are_independent():
    """Rows in no group keep their part of the variance of independent rows, and each counts as a cluster."""
    cluster = np.repeat(np.arange(40), 5)
    groups = _grouped(cluster, np.repeat(np.arange(40) % 2, 5).astype(float))
    alone, k = cluster_variance(0.5, groups, 200.0, 0.1)
    both, more = cluster_variance(0.5, groups, 1_000.0, 0.1)
    t = (student(39) / quantile(0.95)) ** 2
    assert alone == pytest.approx(40 / 39 * 40 * 2.5**2 / 200**2 * t)
    assert both == pytest.approx(alone / t / 25 + 0.08, rel=1e-3)
    assert more == pytest.approx(1_000**2 / (200**2 / k + 800))


@pytest.mark.parametrize(("clusters", "rows"), [(20, 7), (100, 4), (500, 3), (5_000, 2)])
def test_effective_clusters(clusters, rows):
    """The number of equal clusters comes out of the group sums without bias, at most a fifth off in one draw of three."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(300):
        cluster = np.repeat(rng.integers(0, 2**32, clusters), rows)
        found.append(cluster_variance(0.0, _grouped(cluster, np.zeros(len(cluster))), float(len(cluster)), 0.1)[1])
    assert clusters / np.mean(clusters / np.array(found)) == pytest.approx(clusters, rel=0.05)
    assert np.mean(np.abs(np.array(found) / clusters - 1) > 0.2) < 1 / 3


def test_clustered_never_narrows():
    """Clusters that say nothing leave the interval of independent rows; few ones or unknown sums leave none."""
    cluster = np.arange(6_400)
    same = _grouped(cluster, np.full(6_400, 0.5))
    plain = share(3_200.0, 6_400.0)
    assert share(3_200.0, 6_400.0, None, same) == plain
    few = _grouped(cluster % (MIN_CLUSTERS // 2), np.full(6_400, 0.5))
    assert share(3_200.0, 6_400.0, None, few) == (0.5, None, None, 6_400, "few_clusters")
    unknown = (np.full(64, np.nan), same[1])
    assert clustered(plain, unknown, 6_400.0, 0.1, normal) == Measured(0.5, None, None, 6_400, "clustered")


def test_nothing_in_clusters():
    """No hit among many rows of few clusters is only as sure as that many independent rows."""
    groups = _grouped(np.repeat(np.random.default_rng(4).integers(0, 2**32, 64), 100), np.zeros(6_400))
    _, clusters = cluster_variance(0.0, groups, 6_400.0, 0.0)
    assert 45 < clusters < 90
    assert share(0.0, 6_400.0, None, groups) == (0, *wilson(0.0, clusters), 6_400, "")


def test_examples():
    """The examples in the docstrings are right."""
    assert doctest.testmod(intervals).failed == 0


def test_long_run_variance_of_known_rows():
    """By hand: lags of 1 and 2 count 4/3 and 2/3, negative ones not at all, and columns are rows of their own."""
    u = np.array([2.0, 1.0, -1.0, -2.0])
    assert long_run_variance(u + 7) == pytest.approx((10 + 4 / 3 * (2 - 1 + 2)) / 3)
    assert long_run_variance(np.array([1.0, -1.0, -1.0, 1.0])) == pytest.approx(4 / 3)
    assert [long_run_variance(np.full(n, 3.0)) for n in (0, 1, 2, 9)] == [0, 0, 0, 0]
    both = np.stack((u, u[::-1] * 3, [0, 5.0, -5, 0]), axis=1)
    assert bartlett(both) == pytest.approx([float(bartlett(c)) for c in both.T])


@pytest.mark.parametrize(("rho", "inflation"), [(0.0, 1.0), (0.3, 1 + 4 / 3 * 0.3 + 2 / 3 * 0.09)])
def test_long_run_variance_of_many_days(rho, inflation):
    """Of many days it is their variance times 1 + 4/3 rho + 2/3 rho**2; of 28 a fifth off it on average at most."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=20_000)
    for i in range(1, len(x)):
        x[i] = rho * x[i - 1] + math.sqrt(1 - rho * rho) * x[i]
    assert long_run_variance(x) == pytest.approx(inflation, rel=0.05)
    assert np.mean([long_run_variance(part) for part in x[: 28 * 700].reshape(-1, 28)]) == pytest.approx(inflation, rel=0.2)


@pytest.mark.parametrize("df", [1, 2, 3, 8, 13, 49, 254])
def test_chi_square_tail(df):
    """The tail of chi-square is that of scipy."""
    for x in (0.0, 1e-9, 0.5, float(df), 3.0 * df, 300.0, 5_000.0, 1e6):
        assert chi_square_tail(x, df) == pytest.approx(stats.chi2.sf(x, df), rel=1e-9, abs=1e-300)
