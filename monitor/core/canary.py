"""Whether a canary differs from the live version on the same days: what a day brings to both is no evidence against either.

Given all rows of both versions on a day, which of them the canary got is chance. So of the rows of a stratum (rows that would be
alike, such as those of one score) the canary has a sample without replacement, whatever the day was like.
"""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

import numpy as np

from monitor.core.detectors import CAP, DETECTORS, NO_EVIDENCE, Evidence
from monitor.core.events import Floats
from monitor.core.intervals import Measured, normal
from monitor.core.metrics.confusion import errors
from monitor.core.metrics.counts import FN, FP, ROLE, TN, TP, outcomes
from monitor.core.metrics.drift import psi_of
from monitor.core.readings import LabelRule, Reading, mature, scored
from monitor.core.tables import BINS, Table

TOLERANCE = 0.1
"""Differences that do not matter: in logit for shares, in standard deviations for scores."""
_STEPS = np.array([0.15, 0.4, 0.9, 1.9])
_SIGNS = {"down": [-1.0], "up": [1.0], "both": [-1.0, 1.0]}
_TILTS = np.array([0.05, 0.15, 0.35, 0.75])
_SLOPES = np.array([-0.6, -0.25, 0.25, 0.6])
_COARSE, _REACH, _SCORE_BINS = 256, 4.0, 20

Sides = tuple[Reading, Reading]
"""The readings of the canary and of the live version."""
Contrast = tuple[Floats, Floats, Floats]
"""Rows of both versions by stratum and category, shape (2, strata, categories), and by alternative how much likelier (ln) a
category is in the canary: what is looked for, and the nearest to it that does not matter, shape (grid, strata, categories)."""


def _share(split: Callable[[Reading], tuple[float, float]], side: str) -> Callable[[Sides], Contrast]:
    """Return the contrast of a share, of which `split` counts misses and hits, on a grid of lower (down) or higher (up) odds."""
    steps = np.multiply.outer(np.array(_SIGNS[side]), TOLERANCE + _STEPS).reshape(-1, 1, 1) * np.array([0.0, 1.0])

    def contrast(sides: Sides) -> Contrast:
        return np.array([[split(reading)] for reading in sides]), steps, np.clip(steps, -TOLERANCE, TOLERANCE)

    return contrast


def _decisions(reading: Reading) -> tuple[float, float]:
    passed, flagged, _ = np.bincount(ROLE[reading.verdict], reading.n, 3).tolist()
    return passed, flagged


def _places(misses: Floats, hits: Floats) -> Callable[[Reading], tuple[float, float]]:
    """Return the function that counts misses and hits by their places in `outcomes`."""
    return lambda reading: (float(outcomes(reading) @ misses), float(outcomes(reading) @ hits))


def _sure(reading: Reading) -> tuple[float, float]:
    """Return how many rows with max(p, 1 - p) >= .8 were of the class that was likelier, and of the other."""
    wrong, high = errors(reading)
    of, missed = float(reading.n[high].sum()), float(wrong[high].sum())
    return of - missed, missed


def _calibration(sides: Sides) -> Contrast:
    """Return outcomes by coarse score bin: the odds of a positive at equal scores, by an offset or a slope of the logit."""
    rows = np.array([[np.bincount(s.bin * _COARSE // BINS, x, _COARSE) for x in (s.neg, s.pos)] for s in sides]).swapaxes(1, 2)
    n = rows.sum(axis=(0, 2))
    there = n > 0
    # A bin's place on the grid is its logit, about; slopes turn around the mean of all rows, which says nothing of outcomes.
    z = (np.flatnonzero(there) - float(np.arange(_COARSE) @ n) / n.sum()) * (36.0 / _COARSE)
    offsets = np.multiply.outer(np.array(_SIGNS["both"]), TOLERANCE + _STEPS).reshape(-1, 1) + np.zeros(len(z))
    moved = np.concatenate((offsets, np.multiply.outer(_SLOPES, np.clip(z, -_REACH, _REACH))))[:, :, None] * np.array([0.0, 1.0])
    return rows[:, there], moved, np.clip(moved, -TOLERANCE, TOLERANCE)


def _scores(sides: Sides) -> Contrast:
    """Return rows by score bin, of equal mass in both versions together: tilts by the bins' normal scores and their squares."""
    rows = np.array([np.bincount(s.bin, s.n, BINS) for s in sides])
    below = rows.sum(axis=0).cumsum() / rows.sum()
    edges = np.unique(np.append(0, np.searchsorted(below, np.arange(1, _SCORE_BINS) / _SCORE_BINS) + 1))
    rows = np.add.reduceat(rows, edges[edges < BINS], axis=1)
    rows = rows[:, rows.any(axis=0)]
    share = rows.sum(axis=0) / rows.sum()
    place = _standard(np.array([NormalDist().inv_cdf(x) for x in share.cumsum() - 0.5 * share]), share)
    spread = _standard(place**2 - (share @ place**3) * place, share)

    def tilts(t: Floats) -> Floats:
        steps = np.multiply.outer(np.array(_SIGNS["both"]), t).ravel()
        found: Floats = np.multiply.outer(steps, np.stack((place, spread))).reshape(-1, 1, len(share))
        return found

    return rows[:, None], tilts(TOLERANCE + _TILTS), tilts(np.full(len(_TILTS), TOLERANCE))


def _standard(x: Floats, share: Floats) -> Floats:
    """Return x with mean 0 and variance 1; where it does not vary, 0."""
    x = x - share @ x
    size = math.sqrt(share @ (x * x))
    return x / size if size > 1e-6 else np.zeros(len(x))


CONTRASTS: Mapping[str, Callable[[Sides], Contrast]] = {
    "calibration": _calibration,
    "recall": _share(_places(FN, TP), "down"),
    "precision": _share(_places(FP, TP), "down"),
    "fpr": _share(_places(TN, FP), "up"),
    "high_confidence_errors": _share(_sure, "up"),
    "flagged_share": _share(_decisions, "both"),
    "score_drift": _scores,
}
"""What a canary is compared by, a part of DETECTORS. Not by prevalence, which is that of the cases it was given, and not by the
ranking, which scores of two versions cannot be pooled for."""


def _sides(name: str, table: Table, live: Table, rules: tuple[LabelRule, ...]) -> Sides | str:
    """Return both readings, or why they cannot be compared: only whole and independent rows are evidence."""
    detector = DETECTORS[name]
    sides = [mature(t, rules) if detector.basis == "mature" else scored(t) for t in (table, live)]
    for reading in sides:
        reason = reading.flagged_reason if detector.about == "flagged" else reading.reason
        if reason and not (detector.about == "seen" and reason == "prevented"):
            return reason
        if detector.decided and not reading.decided:
            return "no_threshold"
        if reading.groups is not None or reading.spread is not None:
            return "clustered" if reading.groups is not None else "weighted"
    return sides[0], sides[1]


def gains(contrast: Contrast) -> Floats:
    """Return the log e-value of each alternative, shape (grid,); its mean is at most 1 when versions are alike that day.

    The smaller sample of a stratum, n rows, is one without replacement from the rows of both, of shares f. Its counts x have
    E exp(t x) <= (sum f exp(t))**n, as if drawn with replacement (Hoeffding, JASA 58 (1963), 13-30, theorem 4). So
    exp(t x - u x - n ln(sum f exp(t) / sum f exp(u))) is an e-value for a tilt t against one up to u that does not matter.

    >>> half = np.array([[[50.0, 50.0]], [[500.0, 500.0]]]), np.array([[[0.0, 1.0]]]), np.array([[[0.0, 0.1]]])
    >>> gains(half).round(2)
    array([-11.92])
    """
    there = contrast[0].sum(axis=2).all(axis=0)
    rows, tilts, edges = (x[:, there] for x in contrast)
    n = rows.sum(axis=2)
    sign = np.where(n[0] <= n[1], 1.0, -1.0)[:, None]
    sample = np.where(sign > 0, rows[0], rows[1])
    share = rows.sum(axis=0) / n.sum(axis=0)[:, None]
    far, near = sign * tilts, sign * edges
    lift = np.log((share * np.exp(far)).sum(axis=2) / (share * np.exp(near)).sum(axis=2))
    found: Floats = np.einsum("gsk,sk->g", far - near, sample) - lift @ n.min(axis=0)
    return found


def look(
    name: str,
    evidence: Evidence | None,
    day: int,
    tables: Mapping[str, Table],
    live: Mapping[str, Table],
    rules: tuple[LabelRule, ...],
    log_a: float,
) -> Evidence | None:
    """Return the evidence after a whole day of the canary (`tables` by slice) beside the same day of the live version.

    SR <- (1 + SR) exp(dL) in every slice that both have, as in `detectors.look`; `log_evidence` and `shares` read it. A slice
    that cannot be compared keeps its state; without any that ever could there is no evidence.
    """
    steps = {part: _step(name, tables[part], live[part], rules) for part in tables.keys() & live.keys()}
    fresh = {part: step for part, step in steps.items() if step is not None}
    if not fresh:
        return evidence
    before = evidence or Evidence(day, day, 0, 0, {})
    log = {part: before.log.get(part, np.full(len(g), NO_EVIDENCE)) for part, (g, _) in fresh.items()}
    parts = len(before.log.keys() | fresh.keys())
    # No weight of a slice in M_D is below this, so evidence of one slice can still fire; nor does it stay long after.
    top = log_a + CAP + math.log(2 * parts)
    moved = {part: np.minimum(np.logaddexp(0.0, log[part]) + g, top) for part, (g, _) in fresh.items()}
    rows = before.rows + (fresh["all"][1] if "all" in fresh else 0)
    return Evidence(before.since, day, before.looks + 1, rows, {**before.log, **moved})


def _step(name: str, table: Table, live: Table, rules: tuple[LabelRule, ...]) -> tuple[Floats, int] | None:
    sides = _sides(name, table, live, rules)
    if isinstance(sides, str):
        return None
    contrast = CONTRASTS[name](sides)
    return (gains(contrast), round(float(sides[0].n.sum()))) if contrast[0].sum(axis=2).all(axis=0).any() else None


def effect(name: str, table: Table, live: Table, rules: tuple[LabelRule, ...]) -> Measured | str:
    """Return how far the canary is from the live version over the same days, in the units of `detectors.EFFECTS`, or a reason.

    Of scores it is psi above what it is without a difference. Of shares and of calibration it is the logarithm of the odds ratio,
    canary over live, at equal scores for calibration (Mantel and Haenszel 1959; variance of Robins, Breslow and Greenland,
    Biometrics 42 (1986), 311-323); half a row is added to either side where one is empty.
    """
    sides = _sides(name, table, live, rules)
    if isinstance(sides, str):
        return sides
    rows = CONTRASTS[name](sides)[0]
    n = rows.sum(axis=2)
    if not n.sum(axis=1).all():
        return "low_n"
    size = round(float(n[0].sum()))
    if name == "score_drift":
        a, b = rows[:, 0]
        return Measured(psi_of(a, b) - (len(a) - 1) * float(1 / n[0, 0] + 1 / n[1, 0]), None, None, size)
    (b, a), (d, c) = rows[0].T, rows[1].T  # hits a and c, misses b and d of the canary and of the live version
    m = n.sum(axis=0)
    r, s, p, q = a * d / m, b * c / m, (a + d) / m, (b + c) / m
    up, down = float(r.sum()), float(s.sum())
    if not up or not down:
        return Measured(math.log((up + 0.5) / (down + 0.5)), None, None, size) if up + down else "low_n"
    variance = p @ r / (2 * up * up) + (p @ s + q @ r) / (2 * up * down) + q @ s / (2 * down * down)
    return Measured(math.log(up / down), *normal(math.log(up / down), float(variance)), size)
