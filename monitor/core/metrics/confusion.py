"""What the verdicts were worth: counts of decisions against outcomes. Rows that nobody decided about are left out."""

import numpy as np

from monitor.core.events import FLAGGED, NONE
from monitor.core.intervals import Measured, share
from monitor.core.readings import Reading

_ROLE = FLAGGED.astype(np.int64)
_ROLE[NONE] = 2
"""Per verdict: 0 not flagged, 1 flagged, 2 nobody decided."""


def confusion(reading: Reading) -> tuple[float, float, float, float]:
    """Return tp, fp, fn, tn of the rows with a verdict."""
    role = _ROLE[reading.verdict]
    fn, tp, _ = np.bincount(role, reading.pos, 3).tolist()
    tn, fp, _ = np.bincount(role, reading.neg, 3).tolist()
    return tp, fp, fn, tn


def flagged_share(reading: Reading, _: object = None) -> Measured:
    """Return the share of decided rows that were flagged."""
    passed, flagged, _none = np.bincount(_ROLE[reading.verdict], reading.n, 3).tolist()
    return share(flagged, passed + flagged)


def recall(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of positives that were flagged."""
    tp, _fp, fn, _tn = confusion(reading)
    return share(tp, tp + fn) if tp + fn else "no_positives"


def precision(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of flagged rows that were positive."""
    tp, fp, _fn, _tn = confusion(reading)
    return share(tp, tp + fp) if tp + fp else "no_flagged"


def f1(reading: Reading, _: object = None) -> Measured | str:
    """Return 2 tp / (2 tp + fp + fn), with the Wilson interval of the share j = tp / (tp + fp + fn) carried over.

    F1 = 2 j / (1 + j) is increasing in j, so the ends of an interval for j are the ends of one for F1.
    """
    tp, fp, fn, _tn = confusion(reading)
    if not tp + fn:
        return "no_positives"
    value, low, high = (2 * j / (1 + j) for j in share(tp, tp + fp + fn)[:3] if j is not None)
    return Measured(value, low, high, int(tp + fp + fn))


def fpr(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of negatives that were flagged."""
    _tp, fp, _fn, tn = confusion(reading)
    return share(fp, fp + tn) if fp + tn else "no_negatives"


def accuracy(reading: Reading, _: object = None) -> Measured:
    """Return the share of decided rows that were flagged and positive or not flagged and negative."""
    tp, fp, fn, tn = confusion(reading)
    return share(tp + tn, tp + fp + fn + tn)
