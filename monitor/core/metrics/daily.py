"""What is to be expected on days like those of a window: a sample of days, each with a shock that all of its rows share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from monitor.core.events import Floats
from monitor.core.intervals import LEVEL, Measured, bartlett, placements, quantile, student
from monitor.core.metrics.calibration import CALIBRATION_LEVEL, bias
from monitor.core.metrics.counts import ROLE, outcomes
from monitor.core.readings import Reading
from monitor.core.tables import BINS

MIN_DAYS = 7
"""Fewer days do not show how much days differ; then that of the baseline's days is taken."""

_COARSE = 3
"""Areas are followed from day to day over 2**3 grid bins at a time: close enough for a variance."""
_RANKS = ((BINS - 1) >> _COARSE) + 1

Expected = tuple[float | None, float | None, float | None]
"""`expect_low`, `expect_high` and `design_effect` of an estimate."""

_ROWS, _SCORE, _BRIER, _LOG_LOSS, _TN, _FP, _NEG, _FN, _TP, _POS, _PASSED, _FLAGGED = np.eye(12)
_Y = _FN + _TP + _POS


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
    "brier": Ratio(_BRIER, _ROWS, odds=False),
    "log_loss": Ratio(_LOG_LOSS, _ROWS, odds=False),
    "roc_auc": Ratio(_Y, _ROWS),  # no ratio: `variances` puts another number in the place of this one
    "recall": Ratio(_TP, _TP + _FN),
    "precision": Ratio(_TP, _TP + _FP),
    "f1": Ratio(2 * _TP, 2 * _TP + _FP + _FN),
    "fpr": Ratio(_FP, _FP + _TN),
    "accuracy": Ratio(_TP + _TN, _TP + _TN + _FP + _FN),
}
_ABOVE, _BELOW = (np.stack(side, axis=1) for side in zip(*(r[:2] for r in RATIOS.values()), strict=True))
_LIKE_BIAS = ("ece", "ece_width10")
"""Whose noise balls days widen by the design effect of the bias."""
_BOUNDS = {"bias": (-math.inf, math.inf), "log_loss": (0.0, math.inf), **dict.fromkeys(_LIKE_BIAS, (0.0, math.inf))}
"""Of intervals that are none of a logit, where they are not [0, 1]."""


class Interval(Protocol):
    """A value with its interval."""

    @property
    def value(self) -> float | None:
        """Return the value."""

    @property
    def low(self) -> float | None:
        """Return the low end."""

    @property
    def high(self) -> float | None:
        """Return the high end."""


@dataclass(frozen=True, slots=True, eq=False)
class Days:
    """The days of a window one by one: `sums` (days, 12) by `day_sums`, `ranks` (days, 2, bins) by `day_ranks` or None.

    `spread` is for windows of few days: by metric the variance that each day adds to what independent rows have.
    """

    sums: Floats
    ranks: Floats | None = None
    spread: Mapping[str, float] = field(default_factory=dict)


def day_sums(reading: Reading) -> Floats:
    """Return what the ratios are made of, additive over days, shape (12,): rows, sums of score, Brier and log loss, `outcomes`
    by what was decided, and the rows that were passed and flagged.
    """
    by_role = np.bincount(ROLE[reading.verdict], reading.n, 3)
    sums = (float(reading.n.sum()), float(reading.n @ reading.score), *reading.losses)
    return np.concatenate((sums, outcomes(reading), by_role[:2]))


def day_ranks(reading: Reading) -> Floats:
    """Return the negatives and the positives by the score, shape (2, 264), for the area under the ROC curve."""
    at = reading.bin >> _COARSE
    return np.stack([np.bincount(at, x, _RANKS) for x in (reading.neg, reading.pos)])


def variances(days: Days) -> dict[str, tuple[float, int]]:
    """Return by metric the variance of its value over days like these, and how many of them had rows for it.

    With the linearised residuals u_d = (above_d - ratio below_d) / sum below of D days, it is D / (D - 1) times their
    `bartlett` sum, because days are a sample of clusters (Cochran, Sampling Techniques, 1977, 9A.5). The area under the ROC
    curve has u_d = sum over positives of (v10 - area) / P + sum over negatives of (v01 - area) / N, v their `placements`.
    """
    above, below = days.sums @ _ABOVE, days.sums @ _BELOW
    total = below.sum(axis=0)
    total += total == 0
    residuals = (above - above.sum(axis=0) / total * below) / total
    occupied = (below > 0).sum(axis=0)
    found = bartlett(residuals) * (occupied / np.maximum(occupied - 1, 1))
    between = dict(zip(RATIOS, zip(found.tolist(), occupied.tolist(), strict=True), strict=True))
    area = None if days.ranks is None else _area_residuals(days.ranks)
    _, k = between.pop("roc_auc")
    if area is not None:
        between["roc_auc"] = float(bartlett(area)) * k / max(k - 1, 1), k
    return between


def _area_residuals(ranks: Floats) -> Floats | None:
    """Return what each day adds to the area under the ROC curve around its value, shape (days,); None with one class."""
    neg, pos = ranks.sum(axis=0)
    n, p = float(neg.sum()), float(pos.sum())
    if not min(n, p) > 0:
        return None
    v10, v01 = placements(neg, pos)
    area = float(pos @ v10) / p
    residuals: Floats = ranks[:, 1] @ ((v10 - area) / p) + ranks[:, 0] @ ((v01 - area) / n)
    return residuals


def expected(name: str, found: Measured, reading: Reading, days: Days, between: Mapping[str, tuple[float, int]]) -> Expected:
    """Return the interval of what days like those of the window are expected to show, and the design effect.

    The variance is that of the interval of `found` or that between days (`variances`), the larger, with t of one less than the
    days there were. Fewer than `MIN_DAYS` add `days.spread` over their number. Nothing is said where neither is known.
    """
    like = "bias" if name in _LIKE_BIAS else name
    ratio = RATIOS.get(like)
    if ratio is None or found.low is None or like not in between:
        return None, None, None
    level = LEVEL if like == name else CALIBRATION_LEVEL
    own = own_variance(like, found if like == name else bias(reading))
    variance, k = between[like]
    if k >= MIN_DAYS:
        t = student(k - 1, level) / quantile(level)
    elif like in days.spread:
        variance, t = own + days.spread[like] / max(k, 1), 1.0
    else:
        return None, None, None
    effect = variance / own if own > 0 else 1.0
    by = max(1.0, t * math.sqrt(effect))
    return *_widened(found, by, ratio.odds, *_BOUNDS.get(name, (0.0, 1.0))), max(1.0, effect)


def own_variance(name: str, found: Interval) -> float:
    """Return the variance that the interval of a ratio stands for; one in the logit is carried over at the value."""
    value, low, high = found.value, found.low, found.high
    assert value is not None
    assert low is not None
    assert high is not None
    if RATIOS[name].odds and low > 0 and high < 1:
        half = (_logit(high) - _logit(low)) / 2 * value * (1 - value)
    else:
        half = max(value - low, high - value)  # one end may have been cut
    return (half / quantile(LEVEL)) ** 2


def _widened(found: Measured, by: float, odds: bool, least: float, most: float) -> tuple[float, float]:
    """Return the ends of an interval that is `by` times as wide, in the logit or within bounds."""
    value, low, high = found.value, found.low, found.high
    assert low is not None
    assert high is not None
    if by == 1.0:
        return low, high
    if odds:
        return _end(value, low, by), _end(value, high, by)
    half = by * max(value - low, high - value)
    return max(value - half, least), min(value + half, most)


def _end(value: float, end: float, by: float) -> float:
    """Return an end `by` times as far away in the logit; from 0 and 1, where Wilson's odds go as 1 / n, `by`**2 the odds."""
    if not 0 < end < 1:
        return end
    if 0 < value < 1:
        z = _logit(value) + by * (_logit(end) - _logit(value))
    else:
        z = _logit(end) + 2 * math.log(by) * (1 if value == 0 else -1)
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))
