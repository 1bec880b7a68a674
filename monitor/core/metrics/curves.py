"""What other thresholds would do: the ROC and the precision-recall curve, and counts by threshold. Verdicts are not looked at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.core.events import Floats
from monitor.core.metrics.ranking import above, starts
from monitor.core.readings import Reading
from monitor.core.tables import EDGES

STEPS = tuple(k / 20 for k in range(1, 20))
"""The thresholds at which counts are shown."""


@dataclass(frozen=True, slots=True)
class Roc:
    """Rates of flagging at each threshold, highest first; the first threshold is None and flags nothing.

    `youden` is the largest tpr - fpr, at the threshold `youden_threshold` (the highest of several).
    """

    threshold: list[float | None]
    fpr: list[float]
    tpr: list[float]
    youden: float
    youden_threshold: float | None


@dataclass(frozen=True, slots=True)
class PrecisionRecall:
    """Precision and recall at each threshold, highest first; flagging by chance has the precision `prevalence`."""

    threshold: list[float]
    precision: list[float]
    recall: list[float]
    prevalence: float


@dataclass(frozen=True, slots=True)
class Counts:
    """What flagging all scores at or above a threshold would have counted."""

    threshold: float
    tp: float
    fp: float
    fn: float
    tn: float


def _thresholds(reading: Reading) -> Floats:
    """Return the lower edges of the bins with rows, highest first."""
    found: Floats = EDGES[reading.bin[starts(reading)][::-1]]
    return found


def roc(reading: Reading) -> Roc | str:
    """Return the ROC curve with a point for every bin of the grid that has rows, or why there is none."""
    fp, tp = above(reading)
    if not min(fp[-1], tp[-1]):
        return "one_class"
    fpr, tpr = fp / fp[-1], tp / tp[-1]
    thresholds = [None, *_thresholds(reading).tolist()]
    best = int(np.argmax(tpr - fpr))
    return Roc(thresholds, fpr.tolist(), tpr.tolist(), float(tpr[best] - fpr[best]), thresholds[best])


def precision_recall(reading: Reading) -> PrecisionRecall | str:
    """Return the precision-recall curve with a point for every bin of the grid that has rows, or why there is none."""
    fp, tp = above(reading)[:, 1:]
    if not tp[-1]:
        return "no_positives"
    precision, recall = tp / (tp + fp), tp / tp[-1]
    return PrecisionRecall(_thresholds(reading).tolist(), precision.tolist(), recall.tolist(), float(precision[-1]))


def counts_at(reading: Reading, thresholds: Sequence[float]) -> list[Counts]:
    """Return the counts at thresholds, which move up to the next edge of the grid where they are none."""
    flags = above(reading)[:, ::-1]
    at = np.searchsorted(reading.bin[starts(reading)], np.searchsorted(EDGES, thresholds))
    (n, p), (fp, tp) = flags[:, 0].tolist(), flags[:, at].tolist()
    return [Counts(t, a, b, p - a, n - b) for t, a, b in zip(thresholds, tp, fp, strict=True)]
