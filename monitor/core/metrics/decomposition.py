"""What of a loss is lack of refinement and what is lack of calibration, as isotonic regression tells them apart (CORP).

Dimitriadis, Gneiting and Jordan, PNAS 118 (2021). Scores of one bin of the grid are tied in the regression and exact in the loss.
"""

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import Measured, whole
from monitor.core.metrics.counts import once, rows, size
from monitor.core.metrics.ranking import by_bin
from monitor.core.readings import Reading


def pool(k: Floats, n: Floats) -> tuple[Floats, Floats, Ints]:
    """Return the sums of k and n over the blocks of the isotonic regression of k / n, and where each block begins.

    Pool adjacent violators: neighbours whose shares do not rise belong to one block (Ayer et al. 1955). All runs of such
    neighbours are pooled at once until there are none; in which order they are does not matter.

    >>> [x.tolist() for x in pool(np.array([0.0, 2.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0, 1.0]))]
    [[0.0, 3.0, 1.0], [2.0, 4.0, 1.0], [0, 1, 3]]
    """
    begins, at = np.ones(len(k), bool), np.arange(len(k))
    while True:
        share = k / n
        np.greater(share[1:], share[:-1], out=begins[1 : len(k)])
        first = begins[: len(k)].nonzero()[0]
        if len(first) == len(k):
            return k, n, at
        at = at[first]
        k, n = np.add.reduceat(k, first), np.add.reduceat(n, first)


@once
def refined(reading: Reading) -> tuple[float, float]:
    """Return the Brier score and the log loss that the scores have after isotonic regression on the bins of the grid."""
    neg, pos = by_bin(reading)
    k, n, _ = pool(pos, neg + pos)
    classes = np.array((k, n - k))
    shares = classes / n
    log_loss = 0.0 - np.vdot(classes, np.log(np.maximum(shares, np.finfo(np.float64).tiny)))  # 0 ln 0 is 0, and 0 is not -0
    return float(k @ shares[1]) / rows(reading), float(log_loss) / rows(reading)


def _point(reading: Reading, value: float) -> Measured:
    return Measured(value, None, None, whole(size(reading)))


def brier_refinement(reading: Reading, _: object = None) -> Measured:
    """Return the Brier score after isotonic regression: what the scores' ranking cannot tell."""
    return _point(reading, refined(reading)[0])


def brier_calibration(reading: Reading, _: object = None) -> Measured:
    """Return by how much isotonic regression lowers the Brier score."""
    return _point(reading, reading.losses[0] / rows(reading) - refined(reading)[0])


def log_loss_refinement(reading: Reading, _: object = None) -> Measured:
    """Return the log loss after isotonic regression."""
    return _point(reading, refined(reading)[1])


def log_loss_calibration(reading: Reading, _: object = None) -> Measured | str:
    """Return by how much isotonic regression lowers the log loss."""
    n = rows(reading)
    return "degenerate" if reading.clipped >= n else _point(reading, reading.losses[1] / n - refined(reading)[1])
