"""How common positives are: what the outcomes say and what the scores say."""

from monitor.core.intervals import Measured, normal, share
from monitor.core.readings import Reading


def prevalence(reading: Reading, _: object = None) -> Measured:
    """Return the share of positive outcomes."""
    return share(float(reading.pos.sum()), float(reading.n.sum()))


def majority_share(reading: Reading, _: object = None) -> Measured:
    """Return the share of the more common class: the accuracy of a model that always says the same."""
    pos, neg = float(reading.pos.sum()), float(reading.neg.sum())
    return share(max(pos, neg), pos + neg)


def mean_score(reading: Reading, _: object = None) -> Measured:
    """Return the mean score, and where the share of positives would lie if every score were the true probability."""
    n = float(reading.n.sum())
    expected = reading.n * reading.score
    value = float(expected.sum()) / n
    low, high = normal(value, float(expected @ (1.0 - reading.score)) / (n * n))
    return Measured(value, max(low, 0.0), min(high, 1.0), int(n))
