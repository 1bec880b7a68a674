"""Choosing a threshold from validation outcomes."""

import numpy as np

from monitor.core.readings import Reading
from monitor.core.tables import EDGES


def cheapest(reading: Reading, missed: float, false_alarm: float) -> float:
    """Return the grid edge t with the least cost of the rule `score >= t`; ties go to the higher threshold.

    The cost is missed * (positives below t) + false_alarm * (negatives at or above t).
    """
    pos = np.bincount(reading.bin, reading.pos, len(EDGES))
    neg = np.bincount(reading.bin, reading.neg, len(EDGES))
    below = np.concatenate(([0.0], pos.cumsum()[:-1]))
    above = neg.sum() - np.concatenate(([0.0], neg.cumsum()[:-1]))
    cost = missed * below + false_alarm * above
    return float(EDGES[len(cost) - 1 - int(np.argmin(cost[::-1]))])
