"""How common positives are: what the outcomes say and what the scores say."""

from monitor.core.intervals import Measured, normal, whole
from monitor.core.metrics.calibration import totals
from monitor.core.metrics.counts import NEGATIVES, POSITIVES, outcomes, share_of, size
from monitor.core.readings import Reading


def prevalence(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of positive outcomes."""
    return share_of(reading, POSITIVES, NEGATIVES)


def majority_share(reading: Reading, _: object = None) -> Measured | str:
    """Return the share of the more common class: the accuracy of a model that always says the same."""
    counts = outcomes(reading)
    sides = (NEGATIVES, POSITIVES) if counts @ NEGATIVES > counts @ POSITIVES else (POSITIVES, NEGATIVES)
    return share_of(reading, *sides)


def mean_score(reading: Reading, _: object = None) -> Measured:
    """Return the mean score, and where the share of positives would lie if every score were the true probability.

    How far outcomes of one cluster agree is not in the scores, so with clusters there is no interval.
    """
    n, _, expected, variance = totals(reading)[:4].tolist()
    value = expected / n
    if reading.groups is not None:
        return Measured(value, None, None, whole(size(reading)), "clustered")
    low, high = normal(value, variance / (n * n))
    return Measured(value, max(low, 0.0), min(high, 1.0), whole(size(reading)))
