"""Whether scores are spread as they were in the baseline."""

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import Measured
from monitor.core.metrics.counts import once
from monitor.core.readings import Reading


@once
def promised_counts(reference: Reading, edges: Ints) -> Floats:
    """Return the same of the baseline, which is asked for again and again."""
    return counts(reference, edges)


def counts(reading: Reading, edges: Ints) -> Floats:
    """Return the rows per frozen bin, shape (bins,)."""
    at = np.searchsorted(edges, reading.bin, side="right") - 1
    return np.bincount(at, reading.n, len(edges)).astype(np.float64)


def psi_of(live: Floats, base: Floats) -> float:
    """Return the population stability index of two histograms: sum (a - b) ln(a / b), half a row added to every bin.

    >>> round(psi_of(np.array([30.0, 10.0]), np.array([20.0, 20.0])), 4)
    0.2601
    """
    a = (live + 0.5) / (live.sum() + 0.5 * len(live))
    b = (base + 0.5) / (base.sum() + 0.5 * len(base))
    return float((a - b) @ np.log(a / b))


def psi(reading: Reading, edges: Ints, reference: Reading) -> Measured:
    """Return the population stability index of the scores against those of the baseline."""
    return Measured(psi_of(counts(reading, edges), promised_counts(reference, edges)), None, None, int(reading.n.sum()))


def psi_null(reading: Reading, edges: Ints, reference: Reading) -> Measured:
    """Return (K - 1)(1/n + 1/m), which psi has on average when nothing drifted (Yurdakul 2018)."""
    n, m = float(reading.n.sum()), float(reference.n.sum())
    return Measured((len(edges) - 1) * (1 / n + 1 / m), None, None, int(n))
