"""Worlds of late labels, seeded: what is true, what is seen at a given time, and what each world's labels mean.

Scores x are N(0, 1) for negatives and N(2, 1) for positives, 3 % of the rows are positive, P(positive | x) is known exactly and
rows are flagged at .2 or above. Delays are exponential, conditioned on being at most 60 days.
"""

from dataclasses import dataclass

import numpy as np

from monitor.core.events import BLOCK, DAY, FLAG, PASS, SECOND, VERDICTS, prob_code, prob_of
from monitor.core.readings import LabelRule
from monitor.core.tables import LABEL, NO_AUDIT, PASSED_OVER, PICKED, ROW, tables

PER_DAY = 3_000
PREVALENCE = 0.03
THRESHOLD = 0.2
HORIZON, CORRECTIONS = 60 * DAY, 28 * DAY
NEVER = None


@dataclass(frozen=True)
class World:
    """Mean delays in days of labels (negative, positive) of passed and of flagged rows, and what no label means.

    NEVER: such labels do not come. `blocked` of the flagged rows are blocked, and no label of theirs comes.
    """

    passed: tuple[float | None, float | None]
    flagged: tuple[float | None, float | None]
    missing: str
    missing_flagged: str
    blocked: float = 0.0

    @property
    def rules(self):
        """Return the rule of labels of each verdict."""
        by_verdict = {
            "pass": LabelRule(self.missing),
            "flag": LabelRule(self.missing_flagged),
            "block": LabelRule("unknown", True),
        }
        return tuple(by_verdict.get(v, LabelRule(self.missing)) for v in VERDICTS)


WORLDS = {
    "A": World((NEVER, 12.0), (NEVER, 12.0), "negative", "negative"),
    "B": World((30.0, 5.0), (30.0, 5.0), "unknown", "unknown"),
    "C": World((NEVER, 25.0), (NEVER, 1.0), "negative", "negative"),
    "D": World((NEVER, 90.0), (1.0, 1.0), "negative", "unknown", blocked=0.5),
    "audited": World((5.0, 5.0), (1.0, 1.0), "unknown", "unknown"),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows (ROW) by time, their labels (LABEL) once all are in, and their true outcomes."""

    rows: np.ndarray
    labels: np.ndarray
    outcome: np.ndarray

    def seen(self, now):
        """Return the labels that are in at `now`."""
        late = self.rows["ts"] + self.labels["delta"].astype(np.int64) * SECOND > now
        labels = self.labels.copy()
        labels["outcome"][late] = -1
        return labels

    def table(self, now=None):
        """Return the table of the rows with the labels that are in at `now`, or with all of them."""
        labels = self.labels if now is None else self.seen(now)
        return tables(self.rows, labels, np.zeros((1, 1), np.int32), 1, (HORIZON, CORRECTIONS))[0]

    def audited(self, per_day, rng):
        """Return the rows with `per_day` audits of passed ones on average, drawn in proportion to the root of the score.

        Of the passed rows only the picked ones are labelled, and half of the positives among the others, by themselves.
        """
        rows, labels = self.rows.copy(), self.labels.copy()
        passed = rows["verdict"] == PASS
        root = np.sqrt(rows["score"]) * passed
        rows["label_prob"][passed] = prob_code(root[passed] * (per_day * len(rows) / PER_DAY / root.sum()))
        picked = rng.random(len(rows)) < prob_of(rows["label_prob"])
        rows["audit"] = np.where(passed, np.where(picked, PICKED, PASSED_OVER), NO_AUDIT)
        labels["outcome"][passed & ~picked & ~(self.outcome & (rng.random(len(rows)) < 0.5))] = -1
        return Rows(rows, labels, self.outcome)

    def days(self, first, last):
        """Return the rows of the days from `first` to `last`."""
        a, b = np.searchsorted(self.rows["ts"], (first * DAY, (last + 1) * DAY))
        return Rows(self.rows[a:b], self.labels[a:b], self.outcome[a:b])


def generate(world: World, seed: int, days: int, first: int = 20_000) -> Rows:
    """Return PER_DAY rows on each of `days` days from day number `first` on, in the order of their times."""
    rng = np.random.default_rng(seed)
    n = days * PER_DAY
    positive = rng.random(n) < PREVALENCE
    x = rng.standard_normal(n) + 2.0 * positive
    rows = np.zeros(n, ROW)
    rows["h1"], rows["h2"] = rng.integers(1, 2**63, (2, n), np.uint64)
    start = np.repeat(np.arange(first, first + days) * DAY, PER_DAY)
    rows["ts"] = start + np.sort(rng.integers(0, DAY, (days, PER_DAY)), axis=1).ravel()
    rows["score"] = 1.0 / (1.0 + np.exp(-(np.log(PREVALENCE / (1 - PREVALENCE)) + 2.0 * x - 2.0)))
    flagged = rows["score"] >= THRESHOLD
    blocked = flagged & (rng.random(n) < world.blocked)
    rows["verdict"] = np.where(blocked, BLOCK, np.where(flagged, FLAG, PASS))
    means = np.array([world.passed, world.flagged], float) * DAY
    comes = np.flatnonzero(np.isfinite(means[flagged.astype(int), positive.astype(int)]) & ~blocked)
    mean = means[flagged[comes].astype(int), positive[comes].astype(int)]
    labels = np.zeros(n, LABEL)
    labels["outcome"] = -1
    labels["outcome"][comes] = positive[comes]
    # An exponential delay conditioned on at most HORIZON, by the inverse of its distribution function.
    labels["delta"][comes] = -mean * np.log1p(rng.random(len(comes)) * np.expm1(-HORIZON / mean)) / SECOND
    return Rows(rows, labels, positive)
