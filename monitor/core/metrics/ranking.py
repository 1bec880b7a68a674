"""Whether positives score higher than negatives."""

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import Measured, delong, effective, logit_normal, whole, wilson
from monitor.core.metrics.calibration import design_effect
from monitor.core.metrics.counts import classes, once, size
from monitor.core.readings import Reading

MAX_FPR = 0.1
"""The partial area is that up to this false-positive rate."""


def starts(reading: Reading) -> Ints:
    """Return the first cell of each bin: rows of one bin with different verdicts are separate cells, but tied scores."""
    bins, begins = reading.bin, np.ones(len(reading.bin), bool)
    np.not_equal(bins[1:], bins[:-1], out=begins[1:])
    found: Ints = begins.nonzero()[0]
    return found


@once
def by_bin(reading: Reading) -> Floats:
    """Return the negatives and the positives of each bin that has rows, shape (2, bins)."""
    first, counts = starts(reading), classes(reading)
    return counts if len(first) == len(reading.bin) else np.add.reduceat(counts, first, axis=1)


@once
def above(reading: Reading) -> Floats:
    """Return how many negatives and positives score at or above the n highest bins, n = 0, 1, ..., shape (2, bins + 1)."""
    counts = by_bin(reading)
    out = np.zeros((2, counts.shape[1] + 1))
    np.cumsum(counts[:, ::-1], axis=1, out=out[:, 1:])
    return out


def roc_auc(reading: Reading, _: object = None) -> Measured | str:
    """Return P(positive scores higher than negative), ties count 1/2, with DeLong's interval on the logit scale.

    Where DeLong's variance is 0 or unknown (classes apart, one row in a class) it would claim certainty. min(P, N) pairs of
    one positive and one negative have no row in common, so the interval is then that of a share of so many pairs. Clusters
    widen it by the design effect of the bias.
    """
    neg, pos = by_bin(reading)
    sides = (float(neg.sum()), float(pos.sum()))
    if not min(sides):
        return "one_class"
    spread = None if reading.spread is None else np.add.reduceat(reading.spread[:2], starts(reading), axis=1)
    auc, variance = delong(neg, pos, spread)
    n, effect = whole(size(reading)), design_effect(reading)
    if isinstance(effect, str):
        return Measured(auc, None, None, n, effect)
    if variance > 0:
        return Measured(auc, *logit_normal(auc, variance * effect), n)
    squares = sides if spread is None else spread.sum(axis=1).tolist()
    pairs = min(float(effective(k, square)) for k, square in zip(sides, squares, strict=True)) / effect
    return Measured(auc, *wilson(auc * pairs, pairs), n)


def partial_roc_auc(reading: Reading, _: object = None, max_fpr: float = MAX_FPR) -> Measured | str:
    """Return the area under the ROC curve up to a false-positive rate of `max_fpr`, standardised: .5 is chance, 1 perfect.

    (1 + (area - least) / (most - least)) / 2, where least is the area of chance (McClish, Medical Decision Making 9 (1989),
    190-195).
    """
    fp, tp = above(reading)
    n, p = float(fp[-1]), float(tp[-1])
    if not min(n, p):
        return "one_class"
    most = max_fpr * n
    stop = int(fp.searchsorted(most, side="right"))
    x, y = fp[:stop], tp[:stop]
    (x0, x1), (y0, y1) = fp[stop - 1 : stop + 1].tolist(), tp[stop - 1 : stop + 1].tolist()
    last = (most - x0) * (2 * y0 + (y1 - y0) * (most - x0) / (x1 - x0))
    area, chance = (float((x[1:] - x[:-1]) @ (y[1:] + y[:-1])) + last) / (2 * n * p), max_fpr**2 / 2
    return Measured(0.5 * (1 + (area - chance) / (max_fpr - chance)), None, None, whole(size(reading)))


def average_precision(reading: Reading, _: object = None) -> Measured | str:
    """Return the sum over thresholds of precision times the gain in recall; a ranking by chance has the prevalence.

    The interval is the normal one of its logit with variance 1 / (P ap (1 - ap)) for P positives (Boyd, Eng and Page, ECML
    2013, 451-466), at its ends that of a share of P. Clusters widen it by the design effect of the bias.
    """
    fp, tp = above(reading)
    positives = float(tp[-1])
    if not positives:
        return "no_positives"
    value = min(float((tp[1:] - tp[:-1]) @ (tp[1:] / (tp + fp)[1:])) / positives, 1.0)
    n, effect = whole(size(reading)), design_effect(reading)
    if isinstance(effect, str):
        return Measured(value, None, None, n, effect)
    square = positives if reading.spread is None else float(reading.spread[1].sum())
    rows = float(effective(positives, square)) / effect
    if not 0 < value < 1:
        return Measured(value, *wilson(value * rows, rows), n)
    return Measured(value, *logit_normal(value, value * (1 - value) / rows), n)
