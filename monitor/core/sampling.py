"""Which rows wait for a label and which are picked for review: keyed draws with known probabilities, held to a budget.

A row that waits with probability p stands for 1 / p rows (Horvitz and Thompson, 1952), so totals are unbiased whatever the
probabilities are, as long as each is fixed before its draw and never 0.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import DAY, FLAGGED, HOUR, MINUTE, Floats, Ints, U64x2, prob_code, prob_of

SCORE_BINS = 20
CLASSES = 2 * SCORE_BINS
"""Sampling classes of a row: by score alone, then those of protected rows, which are flagged or near the threshold."""
FILL = 0.9
"""The share of the waiting rows that a plan uses; the rest is for bursts, which the volume of a day shows late."""
FLOOR = 200
"""So many rows a day of each class wait before any class gets more than its share."""
LEAST = 1e-5
"""No probability is smaller: what is never drawn can never be estimated."""

_SPAN = 18.0
_NEAR = 0.5
_HOURS = DAY // HOUR


def _logit(score: Floats | float) -> Floats:
    with np.errstate(divide="ignore"):
        z: Floats = np.clip(np.log(score / (1.0 - np.asarray(score))), -_SPAN, _SPAN)
    return z


def classes(score: Floats, verdict: NDArray[np.uint8], threshold: Floats | float | None) -> Ints:
    """Return the class of each row in [0, CLASSES), shape (n,).

    The score bins are 1 wide in logit, open below -9 and above 9. Near is within 0.5 in logit of the threshold (one, one a
    row with NaN for none, or None).
    """
    z = _logit(score)
    bins: Ints = np.clip(z + SCORE_BINS // 2, 0, SCORE_BINS - 1).astype(np.int64)
    protected = FLAGGED[verdict]
    if threshold is not None:
        protected = protected | (np.abs(z - _logit(threshold)) <= _NEAR)  # never true for NaN
    bins += SCORE_BINS * protected
    return bins


def plan(volume: Floats, days: Floats, rows: int, waiting: int = 0) -> Floats:
    """Return the probability to wait of each class, shape (models, CLASSES), so that days * volume * p uses 0.9 of `rows`.

    `volume` (models, CLASSES) are the rows expected a day, `days` (models,) is how long a row stays, `waiting` how many wait
    now. All is 1 where all fits. Else protected classes may take half, and the others half, and either what the other half
    leaves; within a half each class has its FLOOR and the rest is drawn evenly. Probabilities are at least LEAST, even where
    that costs more than `rows`, and fall towards it as the last tenth of `rows` fills up, since a plan knows the volume of
    the past only.
    """
    cost = volume * days[:, None]
    least = np.minimum(1.0, FLOOR / np.maximum(volume, FLOOR))
    parts = (slice(0, SCORE_BINS), slice(SCORE_BINS, CLASSES))
    p = np.empty(cost.shape)
    for part, other in (parts, parts[::-1]):
        budget = FILL * rows - min(float(cost[:, other].sum()), FILL * rows / 2)
        p[:, part] = _fill(cost[:, part].ravel(), least[:, part].ravel(), budget).reshape(-1, SCORE_BINS)
    return _kept(np.maximum(p * _brake(rows, waiting), LEAST))


def _brake(rows: int, waiting: int) -> float:
    return min(1.0, max(0.0, (rows - waiting) / ((1 - FILL) * rows)))


def unplanned(rows: int, waiting: int) -> float:
    """Return the probability to wait while nobody knows how many rows will come: 1 in the first fifth of `rows`, then less.

    It falls by exp(-8) over the other four fifths, where so 0.1 * rows * ln(1 + 10 N / rows) of N rows wait: there is room
    for a sample of 300 times as many as may wait.
    """
    p = math.exp(-8.0 * max(0.0, waiting / rows - 0.2) / 0.8)
    return float(_kept(np.array(max(LEAST, p * _brake(rows, waiting)))))


def _fill(cost: Floats, least: Floats, budget: float) -> Floats:
    """Return max(least, t) with the t that makes the costs use up the budget: 1 if they fit, a part of `least` if it does not."""
    order = np.argsort(least)
    c, f = cost[order], least[order]
    floors = np.append(np.cumsum((c * f)[::-1])[::-1], 0.0)
    if floors[0] > budget:
        shrunk: Floats = least * (budget / floors[0])
        return shrunk
    # What t costs is linear between the values of `least`: those below it are raised to t, those above cost what they do.
    used = np.append(f * np.cumsum(c) + floors[1:], cost.sum())
    t = float(np.interp(budget, used, np.append(f, 1.0))) if used[-1] > budget else 1.0
    filled: Floats = np.maximum(least, t)
    return filled


def _kept(p: Floats) -> Floats:
    """Return probabilities as a row's code keeps them, so that rows are drawn with exactly what they are weighted by."""
    return prob_of(prob_code(p))


def audit(score: Floats, per_day: int, expected: float) -> Floats:
    """Return the probability of each unflagged row to be picked for review, shape (n,): per_day * sqrt(score) / expected.

    `expected` is the sum of sqrt(score) a day of the rows that are drawn from (Volume.per_day). A miss has a chance of about
    its score, and the variance of recall is least where the draw follows its square root (Neyman, 1934).
    """
    if expected <= 0:  # all scores are 0
        return _kept(np.full(len(score), LEAST))
    return _kept(np.clip(np.sqrt(score) * (per_day / expected), LEAST, 1.0))


def draw(ids: U64x2) -> Floats:
    """Return the keyed uniform number of each id in [0, 1), shape (n,).

    It is always the same one, so a row picked with q waits for sure where it waits with at least q.
    """
    u: Floats = (ids[:, 1] >> np.uint64(11)).astype(np.float64)
    u *= 2.0**-53
    return u


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """How many rows of each class came in each of the last hours of a model; volumes add by +.

    `hours` has by hour number CLASSES counts and the sum of sqrt(score) of the rows that the audit draws from; hours older
    than 24 before the newest are forgotten. `since` and `newest` are the times in ms of the first row since the volume had
    nothing but forgotten ones and of the newest row, None before them.
    """

    since: int | None = None
    newest: int | None = None
    hours: Mapping[int, Floats] = field(default_factory=dict)

    def add(self, ts: Ints, of: Ints, roots: Floats) -> "Volume":
        """Return the volume with rows of times `ts` and classes `of` added; `roots` is sqrt(score), 0 where no audit draws."""
        if not len(ts):
            return self
        hour = ts // HOUR
        first = max([int(hour.max()), *self.hours]) - _HOURS
        hour = hour - first
        if not (kept := hour >= 0).all():
            ts, hour, of, roots = ts[kept], hour[kept], of[kept], roots[kept]
        counts = np.bincount(hour * CLASSES + of, minlength=(_HOURS + 1) * CLASSES).reshape(-1, CLASSES)
        sums = np.bincount(hour, roots, _HOURS + 1)
        added = {first + i: np.append(counts[i], sums[i]) for i in np.flatnonzero(counts.any(axis=1)).tolist()}
        return self + (Volume(int(ts.min()), int(ts.max()), added) if added else Volume())

    def __add__(self, other: "Volume") -> "Volume":
        """Return the volume of both."""
        hours = dict(self.hours)
        for hour, sums in other.hours.items():
            hours[hour] = hours[hour] + sums if hour in hours else sums
        oldest = max(hours, default=0) - _HOURS
        there = [v for v in (self, other) if max(v.hours, default=oldest - 1) >= oldest]
        since = min((v.since for v in there if v.since is not None), default=None)
        newest = max((v.newest for v in there if v.newest is not None), default=None)
        return Volume(since, newest, {hour: sums for hour, sums in hours.items() if hour >= oldest})

    def per_day(self, least: int = HOUR) -> tuple[Floats, float] | None:
        """Return the rows a day of each class, shape (CLASSES,), and the sum of sqrt(score) a day; None before `least` ms.

        They are those of the 24 whole hours before that of the newest row and of what has passed of this one, or of the time
        since the first row, at least a minute. Rows tell the time, so history that is read in has the rate that it had.
        """
        if self.since is None or self.newest is None:
            return None
        seen = self.newest - max(self.since, (self.newest // HOUR - _HOURS) * HOUR)
        if seen < least:
            return None
        sums = np.sum(list(self.hours.values()), axis=0) * (DAY / max(seen, MINUTE))
        return sums[:CLASSES], float(sums[CLASSES])

    def to_json(self) -> str:
        """Return the volume as JSON, exactly."""
        span = {"since": self.since, "newest": self.newest}
        return json.dumps(span | {"hours": {str(hour): sums.tolist() for hour, sums in self.hours.items()}})

    @classmethod
    def from_json(cls, text: str) -> "Volume":
        """Return the volume that `to_json` wrote."""
        body = json.loads(text)
        return cls(body["since"], body["newest"], {int(hour): np.array(sums) for hour, sums in body["hours"].items()})
