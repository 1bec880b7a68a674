"""What the verdicts were worth: counts of decisions against outcomes. Rows that nobody decided about are left out."""

import numpy as np

from monitor.core.intervals import Measured, share
from monitor.core.metrics.counts import FN, FP, TN, TP, groups_of, outcomes, roles, share_of, spread_of
from monitor.core.readings import Reading

MIN_MISSES = 10
"""With fewer positives found among rows that are only sometimes looked at, recall is too high by .005 to .02 on average."""


def confusion(reading: Reading) -> tuple[float, float, float, float]:
    """Return tp, fp, fn, tn of the rows with a verdict."""
    tn, fp, _, fn, tp, _ = outcomes(reading).tolist()
    return tp, fp, fn, tn


def flagged_share(reading: Reading, _: object = None) -> Measured:
    """Return the share of decided rows that were flagged."""
    passed, flagged, _none = np.bincount(roles(reading), reading.n, 3).tolist()
    sides = reading, FP + TP, TN + FN
    return share(flagged, passed + flagged, spread_of(*sides), groups_of(*sides))


def _too_few_misses(reading: Reading) -> bool:
    """Return whether the positives that were not flagged stand for others and are fewer than `MIN_MISSES`."""
    if reading.spread is None or reading.seen is None:
        return False
    passed = roles(reading) == 0
    pos, neg = reading.pos[passed].sum(), reading.neg[passed].sum()
    neg2, pos2, _ = reading.spread[:, passed].sum(axis=1)
    # Weights are 1 or more, so sum w**2 = sum w only where all of them are 1; without positives the negatives tell.
    weighted = pos2 != pos if pos else neg2 != neg
    return bool(weighted) and round(float(reading.seen[passed].sum())) < MIN_MISSES


def recall(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of positives that were flagged."""
    return "few_audited_misses" if _too_few_misses(reading) else share_of(reading, TP, FN, "no_positives")


def precision(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of flagged rows that were positive."""
    return share_of(reading, TP, FP, "no_flagged")


def f1(reading: Reading, _: object = None) -> Measured | str:
    """Return 2 tp / (2 tp + fp + fn), with the interval of the share j = tp / (tp + fp + fn) carried over.

    F1 = 2 j / (1 + j) is increasing in j, so the ends of an interval for j are the ends of one for F1.
    """
    tp, _fp, fn, _tn = confusion(reading)
    if not tp + fn:
        return "no_positives"
    found = "few_audited_misses" if _too_few_misses(reading) else share_of(reading, TP, FP + FN)
    if isinstance(found, str):
        return found
    value, low, high = (None if j is None else 2 * j / (1 + j) for j in found[:3])
    assert value is not None
    return found._replace(value=value, low=low, high=high)


def fpr(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of negatives that were flagged."""
    return share_of(reading, FP, TN, "no_negatives")


def accuracy(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of decided rows that were flagged and positive or not flagged and negative."""
    return share_of(reading, TP + TN, FP + FN)
