"""Whether positives score higher than negatives."""

import numpy as np

from monitor.core.intervals import Measured, delong, effective, logit_normal, whole, wilson
from monitor.core.metrics.calibration import design_effect
from monitor.core.metrics.counts import size
from monitor.core.readings import Reading


def roc_auc(reading: Reading, _: object = None) -> Measured | str:
    """Return P(positive scores higher than negative), ties count 1/2, with DeLong's interval on the logit scale.

    Where DeLong's variance is 0 or unknown (classes apart, one row in a class) it would claim certainty. min(P, N) pairs of
    one positive and one negative have no row in common, so the interval is then that of a share of so many pairs. Clusters
    widen it by the design effect of the bias.
    """
    # Rows of one bin with different verdicts are separate cells, but their scores are tied.
    begins = np.ones(len(reading.bin), bool)
    np.not_equal(reading.bin[1:], reading.bin[:-1], out=begins[1:])
    first = begins.nonzero()[0]
    neg, pos = np.add.reduceat(reading.neg, first), np.add.reduceat(reading.pos, first)
    classes = (float(neg.sum()), float(pos.sum()))
    if not min(classes):
        return "one_class"
    spread = None if reading.spread is None else np.add.reduceat(reading.spread[:2], first, axis=1)
    auc, variance = delong(neg, pos, spread)
    n, effect = whole(size(reading)), design_effect(reading)
    if isinstance(effect, str):
        return Measured(auc, None, None, n, effect)
    if variance > 0:
        return Measured(auc, *logit_normal(auc, variance * effect), n)
    squares = classes if spread is None else spread.sum(axis=1).tolist()
    pairs = min(float(effective(k, square)) for k, square in zip(classes, squares, strict=True)) / effect
    return Measured(auc, *wilson(auc * pairs, pairs), n)
