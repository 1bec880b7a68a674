"""Whether positives score higher than negatives."""

import numpy as np

from monitor.core.intervals import Measured, delong, logit_normal, wilson
from monitor.core.readings import Reading


def roc_auc(reading: Reading, _: object = None) -> Measured | str:
    """Return P(positive scores higher than negative), ties count 1/2, with DeLong's interval on the logit scale.

    Where DeLong's variance is 0 or unknown (classes apart, one row in a class) it would claim certainty. min(P, N) pairs of
    one positive and one negative have no row in common, so the interval is then that of a share of so many pairs.
    """
    # Rows of one bin with different verdicts are separate cells, but their scores are tied.
    first = np.flatnonzero(np.diff(reading.bin, prepend=-1))
    neg, pos = np.add.reduceat((reading.neg, reading.pos), first, axis=1)
    pairs = float(min(neg.sum(), pos.sum()))
    if not pairs:
        return "one_class"
    auc, variance = delong(neg, pos)
    low, high = logit_normal(auc, variance) if variance > 0 else wilson(auc * pairs, pairs)
    return Measured(auc, low, high, int(reading.n.sum()))
