"""How sure an estimate is: intervals of shares, means and areas, clusters, days, and the noise ball of a calibration error."""

import functools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import Floats

LEVEL = 0.95
MIN_CLUSTERS = 20
"""With fewer effective clusters an interval would be a guess."""

_NOISE = np.ascontiguousarray(np.abs(np.random.default_rng(0).standard_normal((4_096, 15))).T, np.float32)
"""|N(0, 1)|, shape (bins, draws). A constant, so that the same table gives the same interval everywhere; in single precision,
because half the memory to read is most of half the time."""

Number = TypeVar("Number", float, Floats)


Spread = tuple[float, float, float]
"""The variances of two sums and their covariance."""
Groups = tuple[Floats, Floats]
"""By cluster group the sums above and below the line of a ratio; NaN where they cannot be told."""


class Measured(NamedTuple):
    """A value, the ends of its interval (None: the metric has none) and the number of rows it is a share or a mean of.

    Where a metric that has an interval could not get one here, `interval_reason` is a code of `reasons.NO_INTERVAL`.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    interval_reason: str = ""


@functools.cache
def quantile(level: float) -> float:
    """Return z with P(|N(0, 1)| <= z) = level.

    >>> round(quantile(0.95), 6)
    1.959964
    """
    return NormalDist().inv_cdf(0.5 + level / 2)


def wilson(k: Number, n: Number, level: float = LEVEL) -> tuple[Number, Number]:
    """Return the score interval of a share k / n (Wilson 1927); it is (0, 1) when n is 0.

    The p for which |k/n - p| = z sqrt(p (1 - p) / n), where z is the normal quantile of the level.

    >>> [round(x, 6) for x in wilson(30, 50)]
    [0.461814, 0.723916]
    """
    z = quantile(level)
    m = n + (n == 0)
    root = z * (k * (n - k) / m + z * z / 4) ** 0.5 + z * z / 2
    # The textbook form subtracts two nearly equal numbers when k is small; expanded by the conjugate it cannot go below 0.
    return k * k / (m * (k + root)), 1 - (n - k) * (n - k) / (m * (n - k + root))


def clopper_pearson(k: Floats, n: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return the two one-sided exact bounds of shares k / n, each of the level, 0 to 1 where n is 0.

    The lower one is the p at which so many or more hits have the probability 1 - level: the 1 - level quantile of
    Beta(k, n - k + 1); the upper one likewise. Clopper and Pearson, Biometrika 26 (1934).

    >>> [x.round(4).tolist() for x in clopper_pearson(np.array([9.0]), np.array([10.0]))]
    [[0.6058], [0.9949]]
    """
    from scipy.special import betaincinv  # its import costs 27 MB, which the agent does without until somebody chooses

    some, all_ = k > 0, k >= n
    low = np.where(some, betaincinv(np.where(some, k, 1.0), n - k + 1.0, 1.0 - level), 0.0)
    high = np.where(all_, 1.0, betaincinv(k + 1.0, np.where(all_, 1.0, n - k), level))
    return low, high


def effective(n: Number, square: Number) -> Number:
    """Return (sum w)**2 / sum w**2, the number of rows of weight 1 that say as much (Kish 1965); never more than n.

    >>> float(effective(100.0, 1000.0))
    10.0
    """
    found: Number = n * n / (np.maximum(square, n) + (n == 0))
    return found


def whole(n: float) -> int:
    """Return an effective number rounded down, up to the rounding of its sums."""
    return int(n + 1e-9)


def share(k: float, n: float, spread: Spread | None = None, groups: Groups | None = None) -> Measured:
    """Return k / n with its Wilson interval; of weighted sums with the normal one of its logit.

    `spread` has the variances of k and of n - k; by the delta method that of their share is
    ((n - k)**2 var(k) + k**2 var(n - k) - 2 k (n - k) cov) / n**4, for counts r (1 - r) / n. Where it is 0 because nothing
    or everything is counted in k, Wilson's interval takes the effective number of rows. `groups` are the sums of k and n by
    cluster group.
    """
    r, size = min(max(k / n, 0.0), 1.0), n
    if spread is None or spread == (k, n - k, 0.0):
        low, high = wilson(k, n)
    else:
        hits, rest, both = spread
        size = float(effective(n, hits + rest))
        variance = ((n - k) ** 2 * hits + k * k * rest - 2 * k * (n - k) * both) / n**4
        low, high = _share_interval(r, variance, size)
    found = Measured(r, low, high, max(whole(size), 1))  # outcomes that are only likely may add up to less than a row
    return found if groups is None else clustered(found, groups, n, r * (1 - r) / n, _share_interval)


def _share_interval(r: float, variance: float, size: float) -> tuple[float, float]:
    return logit_normal(r, variance) if 0 < r < 1 and variance > 0 else wilson(r * size, size)


def normal(value: float, variance: float, level: float = LEVEL) -> tuple[float, float]:
    """Return value +- z sqrt(variance).

    >>> [round(x, 3) for x in normal(1.0, 0.25)]
    [0.02, 1.98]
    """
    half = quantile(level) * math.sqrt(variance)
    return value - half, value + half


def logit_normal(value: float, variance: float, level: float = LEVEL) -> tuple[float, float]:
    """Return the normal interval of logit(value), carried back; `value` lies strictly between 0 and 1.

    >>> [round(x, 6) for x in logit_normal(0.9, 0.0004)]
    [0.85342, 0.932941]
    """
    half = quantile(level) * math.sqrt(variance) / (value * (1 - value))
    center = math.log(value / (1 - value))
    low, high = (1 / (1 + math.exp(-z)) if z > -700 else 0.0 for z in (center - half, center + half))
    return low, high


def student(df: float, level: float = LEVEL) -> float:
    """Return t with P(|T| <= t) = level for Student's t of `df` degrees of freedom, to 1e-4 from 8 on.

    Abramowitz and Stegun (1964), 26.7.5.

    >>> [round(student(df), 4) for df in (9, 19, 63)]
    [2.2621, 2.093, 1.9983]
    """
    z = quantile(level)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + (g1 + (g2 + (g3 + g4 / df) / df) / df) / df


def chi_square_tail(x: float, df: int) -> float:
    """Return P(X > x) for a chi-square variable of `df` degrees of freedom, by the finite sums of Abramowitz and Stegun 26.4.4-5.

    >>> round(chi_square_tail(3.841459, 1), 6), round(chi_square_tail(18.307038, 10), 6)
    (0.05, 0.05)
    """
    if x <= 0:
        return 1.0
    h, half = x / 2, 0.5 * (df % 2)
    first = math.erfc(math.sqrt(h)) if df % 2 else 0.0
    powers = (i + half for i in range(df // 2))
    return min(1.0, first + sum(math.exp(a * math.log(h) - h - math.lgamma(a + 1)) for a in powers))


def bartlett(values: Floats, lag: int = 2) -> Floats:
    """Return g_0 + 2 sum_k (1 - k / (lag + 1)) max(g_k, 0) of the columns of values with mean 0, g_k their sums of products.

    Newey and West, Econometrica 55 (1987), 703-708. Days that take turns count as independent ones: a negative g_k of a few
    dozen days is mostly noise, and would make the sum a little too small on average.
    """
    days = values.T
    found: Floats = np.vecdot(days, days)
    for k in range(1, min(lag, len(values) - 1) + 1):
        products = np.vecdot(days[..., k:], days[..., :-k])
        found = found + 2 * (1 - k / (lag + 1)) * np.maximum(products, 0.0)
    return found


def long_run_variance(values: Floats, lag: int = 2) -> float:
    """Return the variance of one of a row of daily values times what their autocorrelation adds to that of their mean.

    With the autocovariances g_k it is g_0 + 4/3 g_1 + 2/3 g_2 at a lag of 2 (see `bartlett`), 0 of fewer than two values; the
    mean of n days has the variance of this over n. Days are whole UTC days in their order.

    >>> [round(long_run_variance(np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0]), lag), 2) for lag in (0, 2)]
    [1.2, 2.0]
    """
    if len(values) < 2:
        return 0.0
    return float(bartlett(values - values.mean(), lag)) / (len(values) - 1)


def cluster_variance(ratio: float, groups: Groups, n: float, iid: float) -> tuple[float, float]:
    """Return the variance of a ratio of sums over n rows and how many clusters of one size would say as much.

    Clusters were put into groups by their hash, so groups are independent: with the linearised residuals
    u_g = (above_g - ratio below_g) / n of the G occupied ones the variance is G / (G - 1) sum u_g**2 (Cochran, Sampling
    Techniques, 1977, 6.4 and 9A.5), times (t / z)**2 for an interval with the normal quantile. Rows that are in no group are
    independent and keep their part of the variance `iid`. Among K groups E sum n_g**2 = S + (n**2 - S) / K, where S is the
    sum of squares of the cluster sizes; so many clusters as n**2 / S are effective.
    """
    above, below = groups
    inside, k = float(below.sum()), len(below)
    u = (above - ratio * below) / n
    occupied = max(int((below > 0).sum()), 2)
    grouped = occupied / (occupied - 1) * float(u @ u)
    variance = grouped + iid * (n - inside) / n
    squares = max((float(below @ below) - inside * inside / k) / (1 - 1 / k), inside) + n - inside
    if grouped > 0:
        # Satterthwaite: only the part that was estimated from the groups has few degrees of freedom.
        times = variance / grouped
        variance *= (student((occupied - 1) * times * times) / quantile(LEVEL)) ** 2
    return variance, n * n / squares


def clustered(
    found: Measured, groups: Groups, n: float, iid: float, interval: Callable[[float, float, float], tuple[float, float]]
) -> Measured:
    """Return an estimate that was measured as if its n rows were independent with the interval that clusters leave it.

    It is `interval(value, variance, effective clusters)`, never narrower than without clusters.
    """
    variance, clusters = cluster_variance(found.value, groups, n, iid)
    reason = no_interval(variance, clusters)
    if reason:
        return found._replace(low=None, high=None, interval_reason=reason)
    assert found.low is not None
    assert found.high is not None
    low, high = interval(found.value, variance, clusters)
    return found._replace(low=min(low, found.low), high=max(high, found.high))


def no_interval(variance: float, clusters: float) -> str:
    """Return why there is no interval with clusters, else nothing."""
    return "clustered" if math.isnan(variance) else "few_clusters" if clusters < MIN_CLUSTERS else ""


def placements(classes: Floats) -> tuple[float, Floats]:
    """Return the area under the ROC curve and, less that, the share of positives above a negative and of negatives below a
    positive of each bin; ties count 1/2. `classes` and the shares are for the negatives and the positives, shape (2, bins).
    """
    below = classes.cumsum(axis=1)
    negatives, positives = (below - 0.5 * classes) / below[:, -1:]
    area = float(classes[1] @ negatives) / float(below[1, -1])
    return area, np.array(((1.0 - area) - positives, negatives - area))


def delong(neg: Floats, pos: Floats, spread: Floats | None = None) -> tuple[float, float]:
    """Return the area under the ROC curve and its variance from counts per bin in ascending order; a tie counts 1/2.

    Of weighted counts `spread` (2, bins) has the variances. The variance is NaN when a class has a single row: its spread
    cannot be seen. DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845.

    >>> delong(np.array([3.0, 1.0]), np.array([1.0, 3.0]))
    (0.75, 0.03125)
    """
    n, p = float(neg.sum()), float(pos.sum())
    auc, placed = placements(np.array((neg, pos)))
    square = placed * placed
    rows_n, rows_p = (n, p) if spread is None else (effective(n, float(spread[0].sum())), effective(p, float(spread[1].sum())))
    if min(rows_n, rows_p) < 2:
        return auc, math.nan
    neg2, pos2 = (neg, pos) if spread is None else (x * (k / x.sum()) for x, k in zip(spread, (rows_n, rows_p), strict=True))
    s10 = float(pos2 @ square[1]) / (rows_p - 1)
    s01 = float(neg2 @ square[0]) / (rows_n - 1)
    return auc, s10 / rows_p + s01 / rows_n


def _noise(bins: int) -> NDArray[np.float32]:
    """Return |N(0, 1)| of at most twice 15 bins by draw: of more than 15 the others are those of the draw before."""
    return _NOISE[:bins] if bins <= len(_NOISE) else np.concatenate((_NOISE, np.roll(_NOISE, 1, axis=1)))[:bins]


def noise_ball(spread: Floats, n: float, level: float) -> float:
    """Return the `level` quantile of sum_b |N(0, spread_b)| / n: how far noise alone moves a calibration error.

    By the triangle inequality [ECE - q, ECE + q] covers the binned error of the model.

    >>> round(noise_ball(np.array([100.0]), 100, 0.95), 2)
    0.2
    """
    draws = np.sqrt(spread / n).astype(np.float32) @ _noise(len(spread))  # the sums of many rows might not fit
    rank = math.ceil(level * len(draws)) - 1
    draws.partition(rank)
    return float(draws[rank]) / math.sqrt(n)
