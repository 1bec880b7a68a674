"""Whether scores are spread as they were in the baseline, as effect sizes: each with what it is on average without drift."""

import math

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import Measured
from monitor.core.metrics.counts import once, rows
from monitor.core.readings import Reading
from monitor.core.tables import BINS, EDGES


def counts(reading: Reading, edges: Ints) -> Floats:
    """Return the rows per frozen bin, shape (bins,)."""
    at = np.searchsorted(edges, reading.bin, side="right") - 1
    return np.bincount(at, reading.n, len(edges)).astype(np.float64)


@once
def _promised_rows(reference: Reading) -> float:
    """Return the rows of the baseline."""
    return float(reference.n.sum())


@once
def _promised(reference: Reading, edges: Ints) -> Floats:
    """Return the rows of the baseline per frozen bin."""
    return counts(reference, edges)


@once
def _pair(reading: Reading, edges: Ints, reference: Reading) -> tuple[Floats, Floats]:
    """Return the rows per frozen bin, and those of the baseline."""
    return counts(reading, edges), _promised(reference, edges)


def psi_of(live: Floats, base: Floats) -> float:
    """Return the population stability index of two histograms: sum (a - b) ln(a / b), half a row added to every bin.

    >>> round(psi_of(np.array([30.0, 10.0]), np.array([20.0, 20.0])), 4)
    0.2601
    """
    a = (live + 0.5) / (live.sum() + 0.5 * len(live))
    b = (base + 0.5) / (base.sum() + 0.5 * len(base))
    return float((a - b) @ np.log(a / b))


def js_of(live: Floats, base: Floats) -> float:
    """Return the Jensen-Shannon distance of two histograms, between 0 and 1 (Lin 1991; Endres and Schindelin 2003).

    The root of H((a + b) / 2) - (H(a) + H(b)) / 2, H the entropy in bits; empty bins need no smoothing.

    >>> round(js_of(np.array([30.0, 10.0]), np.array([20.0, 20.0])), 4)
    0.2209
    """
    a, b = live / live.sum(), base / base.sum()
    shares = np.array((a, b, (a + b) / 2))
    entropy = (shares * np.log2(np.maximum(shares, 1e-300))).sum(axis=1).tolist()
    return math.sqrt(max(0.0, (entropy[0] + entropy[1]) / 2 - entropy[2]))


@once
def _cumulative(reference: Reading) -> tuple[Floats, Floats, float]:
    """Return the distribution function at the end of each bin of the grid, the way to the next bin, and its spread.

    A bin stands at the mean score of its rows, one without rows in its middle. The spread is the integral of sqrt(F (1 - F)).
    """
    n = np.bincount(reference.bin, reference.n, BINS)
    score = np.bincount(reference.bin, reference.n * reference.score, BINS)
    at = np.where(n > 0, score / np.maximum(n, 1.0), (EDGES + np.append(EDGES[1:], 1.0)) / 2)
    f, way = np.cumsum(n)[:-1] / n.sum(), np.diff(at)
    return f, way, float(np.sqrt(f * np.maximum(1.0 - f, 0.0)) @ way)


@once
def _distance(reading: Reading, reference: Reading) -> tuple[float, float]:
    """Return the largest and the integrated difference of the two distribution functions."""
    f, way, _ = _cumulative(reference)
    gap = np.bincount(reading.bin, reading.n / rows(reading), BINS)[:-1].cumsum()
    gap -= f
    np.abs(gap, out=gap)
    return float(gap.max()), float(gap @ way)


def _point(reading: Reading, value: float) -> Measured:
    return Measured(value, None, None, int(rows(reading)))


def _noise(reading: Reading, reference: Reading) -> float:
    """Return 1/n + 1/m: the variance of a difference of two means of n and of m rows, in units of that of a row."""
    return 1 / rows(reading) + 1 / _promised_rows(reference)


def psi(reading: Reading, edges: Ints, reference: Reading) -> Measured:
    """Return the population stability index of the scores against those of the baseline."""
    return _point(reading, psi_of(*_pair(reading, edges, reference)))


def psi_null(reading: Reading, edges: Ints, reference: Reading) -> Measured:
    """Return (K - 1)(1/n + 1/m), which psi has on average when nothing drifted (Yurdakul 2018)."""
    return _point(reading, (len(edges) - 1) * _noise(reading, reference))


def js(reading: Reading, edges: Ints, reference: Reading) -> Measured:
    """Return the Jensen-Shannon distance of the scores and those of the baseline over the frozen bins."""
    return _point(reading, js_of(*_pair(reading, edges, reference)))


def js_null(reading: Reading, edges: Ints, reference: Reading) -> Measured:
    """Return sqrt((1/n + 1/m) / (8 ln 2)) E chi_(K-1), which js has on average when nothing drifted.

    Near 0 the divergence is sum (a - b)**2 / m / 8 nats, and the sum is (1/n + 1/m) times a chi-square of K - 1 degrees of
    freedom as for psi. E chi_k = sqrt(2) gamma((k + 1) / 2) / gamma(k / 2).
    """
    k = len(edges) - 1
    chi = math.sqrt(2) * math.gamma((k + 1) / 2) / math.gamma(k / 2) if k else 0.0
    return _point(reading, math.sqrt(_noise(reading, reference) / (8 * math.log(2))) * chi)


def ks(reading: Reading, _: Ints | None, reference: Reading) -> Measured:
    """Return the largest difference of the distribution functions of the scores and those of the baseline on the grid."""
    return _point(reading, _distance(reading, reference)[0])


def ks_null(reading: Reading, _: Ints | None, reference: Reading) -> Measured:
    """Return sqrt(pi/2) ln 2 sqrt(1/n + 1/m), the mean of Kolmogorov's distribution; scores with many ties stay below it."""
    return _point(reading, math.sqrt(math.pi / 2) * math.log(2) * math.sqrt(_noise(reading, reference)))


def wasserstein(reading: Reading, _: Ints | None, reference: Reading) -> Measured:
    """Return the area between the two distribution functions: how far a score moved on average, in units of the score."""
    return _point(reading, _distance(reading, reference)[1])


def wasserstein_null(reading: Reading, _: Ints | None, reference: Reading) -> Measured:
    """Return sqrt(2/pi) sqrt(1/n + 1/m) times the integral of sqrt(F (1 - F)), F the baseline's distribution function.

    Without drift the two functions differ at each score by a normal number of variance F (1 - F)(1/n + 1/m), whose absolute
    value is sqrt(2/pi) times its standard deviation on average.
    """
    return _point(reading, math.sqrt(2 / math.pi * _noise(reading, reference)) * _cumulative(reference)[2])
