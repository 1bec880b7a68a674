"""What is to be expected on days like those of a window: a sample of days, each with a shock that all of its rows share."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from monitor.core.events import Floats
from monitor.core.intervals import LEVEL, Measured, bartlett, placements, quantile, student
from monitor.core.metrics.calibration import CALIBRATION_LEVEL, bias_variance, totals
from monitor.core.metrics.confusion import errors
from monitor.core.metrics.counts import outcomes, roles, rows
from monitor.core.readings import Reading
from monitor.core.tables import BINS

MIN_DAYS = 7
"""Fewer days do not show how much days differ; then that of the baseline's days is taken."""

_COARSE = 3
"""Areas are followed from day to day over 2**3 grid bins at a time: close enough for a variance."""
_RANKS = ((BINS - 1) >> _COARSE) + 1

Expected = tuple[float | None, float | None, float | None]
"""`expect_low`, `expect_high` and `design_effect` of an estimate."""

_ROWS, _SCORE, _SPREAD, _BRIER, _LOG_LOSS = np.eye(15)[:5]
_TN, _FP, _NEG, _FN, _TP, _POS, _PASSED, _FLAGGED, _SURE, _WRONG = np.eye(15)[5:]
_Y = _FN + _TP + _POS
NOTHING = np.zeros(15)
"""The sums of a day without rows."""


class Ratio(NamedTuple):
    """A metric as a ratio of two sums over columns of `day_sums`; the interval of `odds` is one of the logit."""

    above: Floats
    below: Floats
    odds: bool = True


RATIOS: dict[str, Ratio] = {
    "flagged_share": Ratio(_FLAGGED, _PASSED + _FLAGGED),
    "mean_score": Ratio(_SCORE, _ROWS, odds=False),
    "prevalence": Ratio(_Y, _ROWS),
    "majority_share": Ratio(_Y, _ROWS),  # the share of one class varies as that of the other does
    "bias": Ratio(_SCORE - _Y, _ROWS, odds=False),
    "offset": Ratio(_Y - _SCORE, _SPREAD, odds=False),  # the first step of the fit, of the same design effect
    "high_confidence_error_share": Ratio(_WRONG, _SURE),
    "brier": Ratio(_BRIER, _ROWS, odds=False),
    "log_loss": Ratio(_LOG_LOSS, _ROWS, odds=False),
    "roc_auc": Ratio(_Y, _ROWS),  # no ratio: `variances` puts another number in the place of this one
    "recall": Ratio(_TP, _TP + _FN),
    "precision": Ratio(_TP, _TP + _FP),
    "f1": Ratio(2 * _TP, 2 * _TP + _FP + _FN),
    "fpr": Ratio(_FP, _FP + _TN),
    "accuracy": Ratio(_TP + _TN, _TP + _TN + _FP + _FN),
    "balanced_accuracy": Ratio(_TP, _TP + _FN, odds=False),  # likewise, made of recall and fpr
}
_SIDES = np.stack([r.above for r in RATIOS.values()] + [r.below for r in RATIOS.values()], axis=1)
_AREA, _BALANCED, _RECALL, _FPR = map(list(RATIOS).index, ("roc_auc", "balanced_accuracy", "recall", "fpr"))
_BALLS = ("ece", "ece_width10")
"""What has a noise ball, which days widen by the design effect of the bias."""
EXPECTED = (*RATIOS, *_BALLS)
"""Metrics of which days say what to expect."""
_ANY = (-math.inf, math.inf)
_BOUNDS = {"bias": _ANY, "offset": _ANY, "log_loss": (0.0, math.inf), **dict.fromkeys(_BALLS, (0.0, math.inf))}
"""Of intervals that are none of a logit, where they are not [0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Days:
    """The days of a window one by one: `sums` (days, 15) by `day_sums`, `ranks` (days, 2, bins) by `day_ranks` or None.

    `spread` is for windows of few days: by metric the variance that each day adds to what independent rows have.
    """

    sums: Floats
    ranks: Floats | None = None
    spread: Mapping[str, float] = field(default_factory=dict)


def day_sums(reading: Reading) -> Floats:
    """Return what the ratios are made of, additive over days, shape (15,): rows, sums of p, p (1 - p), Brier and log loss,
    `outcomes` by what was decided, the rows that were passed and flagged, those of high confidence and how many of these are
    wrong.
    """
    by_role, expected = np.bincount(roles(reading), reading.n, 3), reading.n * reading.score
    wrong, high = errors(reading)
    sums = (rows(reading), float(expected.sum()), float(expected @ (1.0 - reading.score)), *reading.losses)
    return np.concatenate((sums, outcomes(reading), by_role[:2], (high @ reading.n, high @ wrong)))


def day_ranks(reading: Reading) -> Floats:
    """Return the negatives and the positives by the score, shape (2, 264), for the area under the ROC curve."""
    at = reading.bin >> _COARSE
    return np.stack([np.bincount(at, x, _RANKS) for x in (reading.neg, reading.pos)])


def days_of(readings: Sequence[Reading]) -> Days:
    """Return days from their readings, in their order."""
    sums = np.array([day_sums(r) for r in readings]).reshape(-1, len(NOTHING))
    return Days(sums, np.array([day_ranks(r) for r in readings]) if readings else None)


def variances(days: Days) -> dict[str, tuple[float, int]]:
    """Return by metric the variance of its value over days like these, and how many of them had rows for it.

    With the linearised residuals u_d = (above_d - ratio below_d) / sum below of D days, it is D / (D - 1) times their
    `bartlett` sum, because days are a sample of clusters (Cochran, Sampling Techniques, 1977, 9A.5). The area under the ROC
    curve has u_d = sum over positives of (v10 - area) / P + sum over negatives of (v01 - area) / N, v their `placements`.
    """
    sides = days.sums @ _SIDES
    above, below = sides[:, : len(RATIOS)], sides[:, len(RATIOS) :]
    hits, total = sides.sum(axis=0).reshape(2, -1)
    total[total < 1e-100] = 1.0  # nothing, or scores so near 0 that squares would be infinite
    residuals = (above - hits / total * below) / total
    residuals[:, _AREA] = np.nan if days.ranks is None else _area_residuals(days.ranks)
    residuals[:, _BALANCED] = (residuals[:, _RECALL] - residuals[:, _FPR]) / 2
    occupied = np.ones(len(below)) @ (below > 0)
    found = bartlett(residuals) * (occupied / np.maximum(occupied - 1, 1))
    return dict(zip(RATIOS, zip(found.tolist(), map(int, occupied.tolist()), strict=True), strict=True))


def _area_residuals(ranks: Floats) -> Floats | float:
    """Return what each day adds to the area under the ROC curve around its value, shape (days,); NaN with one class."""
    flat = ranks.reshape(len(ranks), -1)
    classes = (np.ones(len(ranks)) @ flat).reshape(2, -1)
    both = classes.sum(axis=1, keepdims=True)
    if not both.all():
        return math.nan
    residuals: Floats = flat @ (placements(classes)[1] / both).ravel()
    return residuals


def expected(name: str, found: Measured, reading: Reading, days: Days, between: Mapping[str, tuple[float, int]]) -> Expected:
    """Return the interval of what days like those of the window are expected to show, and the design effect.

    The variance is that of the interval of `found` or that between days (`variances`), the larger, with t of one less than the
    days there were. Fewer than `MIN_DAYS` add `days.spread` over their number. Nothing is said where neither is known.
    """
    ball = name in _BALLS
    like = "bias" if ball else name
    if like not in between or found.low is None or found.high is None:
        return None, None, None
    center, half, slope = _ends(found.value, found.low, found.high, RATIOS[like].odds)
    own = bias_variance(reading) if ball else (half * slope / quantile(LEVEL)) ** 2
    variance, k = between[like]
    if name == "offset":
        # Of its first step, sum (y - p) / sum p (1 - p), where it is over that of as many independent rows.
        n, _, _, v = totals(reading)[:4].tolist()
        variance *= own * (v / n) ** 2 / bias_variance(reading)
    if k >= MIN_DAYS and not math.isnan(variance):
        t = _t(k - 1, CALIBRATION_LEVEL if ball else LEVEL)
    elif like in days.spread:
        variance, t = own + days.spread[like] / max(k, 1), 1.0
    else:
        return None, None, None
    effect = max(1.0, variance / own) if own > 0 else 1.0
    if effect == 1.0:
        return found.low, found.high, 1.0
    by = t * math.sqrt(effect)
    low, high = center - by * half, center + by * half
    if slope != 1.0:
        return _expit(low), _expit(high), effect
    least, most = _BOUNDS.get(name, (0.0, 1.0))
    return max(low, least), min(high, most), effect


def own_variance(name: str, value: float, low: float, high: float) -> float:
    """Return the variance that the interval of a ratio stands for; one of the logit is carried over at the value."""
    _, half, slope = _ends(value, low, high, RATIOS[name].odds)
    return (half * slope / quantile(LEVEL)) ** 2


def _ends(value: float, low: float, high: float, odds: bool) -> tuple[float, float, float]:
    """Return the middle of an interval, half its width, and how steep the value is in what they are counted in: its logit,
    where it and its ends have one, or else 1, for the value itself.
    """
    if odds and low > 0.0 and high < 1.0:
        a, b = math.log(low / (1.0 - low)), math.log(high / (1.0 - high))
        return (a + b) / 2, (b - a) / 2, value * (1.0 - value)
    return value, max(value - low, high - value), 1.0  # one end may have been cut


@functools.cache
def _t(df: int, level: float) -> float:
    """Return by how much Student's t is larger than the normal quantile."""
    return student(df, level) / quantile(level)


def _expit(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z)) if z > -700 else 0.0
