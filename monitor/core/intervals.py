"""How sure an estimate is: Wilson, normal and DeLong intervals, and the noise ball around a calibration error."""

import functools
import math
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np

from monitor.core.events import Floats

LEVEL = 0.95

_NOISE = np.ascontiguousarray(np.abs(np.random.default_rng(0).standard_normal((4_096, 15))).T)
"""|N(0, 1)|, shape (bins, draws). A constant, so that the same table gives the same interval everywhere."""

Number = TypeVar("Number", float, Floats)


class Measured(NamedTuple):
    """A value, the ends of its interval (None: the metric has none) and the number of rows it is a share or a mean of."""

    value: float
    low: float | None
    high: float | None
    n: int


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


def share(k: float, n: float) -> Measured:
    """Return k / n with its Wilson interval."""
    return Measured(k / n, *wilson(k, n), int(n))


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


def delong(neg: Floats, pos: Floats) -> tuple[float, float]:
    """Return the area under the ROC curve and its variance from counts per bin in ascending order; a tie counts 1/2.

    The variance is NaN when a class has a single row: its spread cannot be seen.
    DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845.

    >>> delong(np.array([3.0, 1.0]), np.array([1.0, 3.0]))
    (0.75, 0.03125)
    """
    n, p = float(neg.sum()), float(pos.sum())
    v10 = (neg.cumsum() - 0.5 * neg) / n  # placement of a positive: the share of negatives below it
    v01 = 1.0 - (pos.cumsum() - 0.5 * pos) / p  # placement of a negative: the share of positives above it
    auc = float(pos @ v10) / p
    if min(n, p) < 2:
        return auc, math.nan
    s10 = float(pos @ (v10 - auc) ** 2) / (p - 1)
    s01 = float(neg @ (v01 - auc) ** 2) / (n - 1)
    return auc, s10 / p + s01 / n


def noise_ball(spread: Floats, n: float, level: float) -> float:
    """Return the `level` quantile of sum_b |N(0, spread_b)| / n: how far noise alone moves a calibration error.

    By the triangle inequality [ECE - q, ECE + q] covers the binned error of the model (statistics.md, section a).

    >>> round(noise_ball(np.array([100.0]), 100, 0.95), 2)
    0.2
    """
    draws = np.sqrt(spread) @ _NOISE[: len(spread)]
    rank = math.ceil(level * len(draws)) - 1
    return float(np.partition(draws, rank)[rank]) / n
