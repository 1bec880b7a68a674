"""What the verdicts were worth: counts of decisions against outcomes. Rows that nobody decided about are left out."""

import math

import numpy as np

from monitor.core.events import Bools, Floats
from monitor.core.intervals import Measured, Spread, share, whole, wilson
from monitor.core.metrics.calibration import design_effect
from monitor.core.metrics.counts import FN, FP, TN, TP, groups_of, outcomes, roles, share_of, size, spread_of
from monitor.core.readings import Reading

MIN_MISSES = 10
"""With fewer positives found among rows that are only sometimes looked at, recall is too high by .005 to .02 on average."""

HIGH = 0.8
"""A confidence max(p, 1 - p) of this or more is high."""


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


def balanced_accuracy(reading: Reading, _: object = None) -> Measured | str:
    """Return the mean of recall and specificity, with the interval that theirs make (Donner and Zou 2012, the method MOVER).

    The errors of two independent shares add up by their squares; with clusters they may go together and add up as they are.
    """
    hits, passed = recall(reading), share_of(reading, TN, FP, "no_negatives")
    if isinstance(hits, str) or isinstance(passed, str):
        return hits if isinstance(hits, str) else str(passed)
    value, n = (hits.value + passed.value) / 2, whole(size(reading))
    if hits.low is None or hits.high is None or passed.low is None or passed.high is None:
        return Measured(value, None, None, n, hits.interval_reason or passed.interval_reason)
    both = math.hypot if reading.groups is None else float.__add__
    below, above = (
        both(hits.value - hits.low, passed.value - passed.low),
        both(hits.high - hits.value, passed.high - passed.value),
    )
    return Measured(value, value - below / 2, value + above / 2, n)


def errors(reading: Reading) -> tuple[Floats, Bools]:
    """Return by cell the rows of another class than the likelier one, and whether max(p, 1 - p) is at least `HIGH`."""
    p = reading.score
    # A mean of equal scores is off by some ulps, which must not carry it over the edge.
    return np.where(p >= 0.5, reading.neg, reading.pos), np.maximum(p, 1.0 - p) >= HIGH - 1e-9


def high_confidence_error_share(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of the rows with a confidence max(p, 1 - p) of at least `HIGH` that are of the other class.

    Clusters widen the interval by the design effect of the bias.
    """
    wrong, high = errors(reading)
    n, k = float(reading.n[high].sum()), float(wrong[high].sum())
    if n <= 0:
        return "no_high_confidence"
    if reading.spread is None:
        return _cell_share(reading, k, n, None)
    neg2, pos2, both = reading.spread[:, high]
    sides = np.where(reading.score[high] >= 0.5, (neg2, pos2), (pos2, neg2)).sum(axis=1).tolist()
    return _cell_share(reading, k, n, (*sides, float(both.sum())))


def errors_at_high_confidence(reading: Reading) -> Measured | str:
    """Return the share of the rows of another class than the likelier one whose confidence is at least `HIGH`."""
    wrong, high = errors(reading)
    n, k = float(wrong.sum()), float(wrong[high].sum())
    if n <= 0:
        return "no_errors"
    if reading.spread is None:
        return _cell_share(reading, k, n, None)
    squares = np.where(reading.score >= 0.5, reading.spread[0], reading.spread[1])
    return _cell_share(reading, k, n, (float(squares[high].sum()), float(squares[~high].sum()), 0.0))


def _cell_share(reading: Reading, k: float, n: float, spread: Spread | None) -> Measured:
    """Return a share of cells; groups of clusters do not know scores, so the design effect of the bias stands for theirs."""
    found, effect = share(k, n, spread), design_effect(reading)
    if isinstance(effect, str):
        return found._replace(low=None, high=None, interval_reason=effect)
    if effect == 1.0:
        return found
    low, high = wilson(k / effect, n / effect)
    return found._replace(low=low, high=high)
