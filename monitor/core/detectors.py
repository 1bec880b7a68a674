"""Tests that stay valid when one looks at every day for years: evidence that a promise no longer holds.

Each look multiplies the evidence by a likelihood ratio whose mean is at most 1 while the promise holds (an e-value), summed in
the manner of Shiryaev and Roberts over the days at which the change may have come: SR <- (1 + SR) e. The mean of SR is then
never above the number of looks, so it reaches A on average not before A looks (Shin, Ramdas and Rinaldo, E-detectors,
arXiv:2203.03532). Rows of one day share its shocks, so the logarithm of an e-value is divided by phi = 1 + lr V, where V is the
information of the day and lr the long-run variance of the daily effect in the baseline.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from monitor.core.events import Floats
from monitor.core.intervals import Measured, delong, normal, placements
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.metrics.confusion import errors
from monitor.core.metrics.counts import FN, FP, NEGATIVES, POSITIVES, ROLE, TN, TP, outcomes
from monitor.core.metrics.drift import counts, psi_of
from monitor.core.metrics.fit import newton, powers
from monitor.core.policy import IDENTITY, Calibrator, Policy, recalibrated
from monitor.core.readings import LabelRule, Reading, baseline, decided, honest, mature, scored
from monitor.core.tables import BINS, GROUPS, Table, total

NO_EVIDENCE = math.log(np.finfo(np.float64).tiny)
"""The logarithm that stands for SR = 0: nothing was looked at yet. It has no effect on a sum and is a number in JSON."""
TOLERANCE = 0.1
"""The null is a band: logits may be wrong by so much."""
CLIP = 1e-4
"""Scores are taken as at least so far from 0 and 1: a score of exactly 1 would make its first error a certain proof."""
COARSE = 256
"""Evidence is read off so many bins, each as its mean score, which loses next to nothing and is still an e-value."""
MIN_DAYS, LEARN_DAYS, FEW_DAYS = 14, 28, 60
"""With fewer baseline days than the first the long-run variance is learnt from so many live days; with fewer than the last
it is raised by half, because its estimate is noisy."""
OF_PROBABILITIES = ("calibration", "high_confidence_errors")
"""Detectors that read a score as a probability, which margins are none of: they look at the scores that are served."""
CAP = 5.0
"""Evidence of a slice is kept at most so far above what fires, in nats."""

_LIMIT = math.log((1 - CLIP) / CLIP)
_COARSE_OF = np.arange(BINS) * COARSE // BINS
_INTERCEPTS = (0.0, 0.1, -0.1, 0.2, -0.2, 0.4, -0.4, 0.8, -0.8)
_SLOPES = (0.6, 0.8, 1.0, 1.25, 1.6)
GRID = np.array([(a, b) for a in _INTERCEPTS for b in _SLOPES if (a, b) != (0.0, 1.0)])
"""Alternatives of the calibration detector: intercept and slope in logit, shape (44, 2)."""
_STEPS = np.array([0.15, 0.4, 0.9, 1.9])
_BETS = np.array([0.08, 0.16, 0.32, 0.64])
_TILTS = np.array([0.05, 0.15, 0.35, 0.75])

Bins = tuple[Floats, Floats, Floats]
"""Rows, logit of the mean score and positives by coarse bin."""
Score = tuple[Floats, Floats]
"""Score and its variance by kind of daily effect."""
Trials = Callable[[Reading], tuple[float, float]]
"""How many hits and how many trials a reading has."""

EFFECTS: Mapping[str, tuple[float, float, str]] = {
    "calibration": (0.2, 0.15, "both"),
    "recall": (0.2, 0.15, "down"),
    "precision": (0.2, 0.15, "down"),
    "fpr": (0.2, 0.15, "up"),
    "high_confidence_errors": (0.2, 0.15, "up"),
    "roc_auc": (0.02, 0.015, "down"),
    "prevalence": (0.2, 0.15, "both"),
    "flagged_share": (0.2, 0.15, "both"),
    "score_drift": (0.02, 0.015, "up"),
}
"""How large an effect (see `effect`) must be to fire, below what it resolves, and the side that counts: logits, except for
roc_auc (a difference) and score_drift (psi above what it is without drift)."""


@dataclass(frozen=True, slots=True, eq=False)
class Null:
    """What a detector expects of one slice.

    `promise` is the promised rate or area, the centre of the slopes (calibration) or the baseline rows (score drift), `variance`
    what its own sampling leaves open (0: nothing was estimated), `about` what belongs to it. `gains` is what the log e-value is
    computed with, for a band of half-width `tolerance`, and `points` the number of alternatives. `size` is the mean number of
    rows of a cluster within a day, `lr` the long-run variance by kind of daily effect: phi = size + V (lr + variance size).
    """

    promise: float
    variance: float
    about: tuple[Any, ...] = ()
    gains: Floats = field(default_factory=lambda: np.zeros(1))
    points: int = 0
    tolerance: float = 0.0
    size: float = 1.0
    lr: Floats = field(default_factory=lambda: np.zeros(1))


@dataclass(frozen=True, slots=True, eq=False)
class Nulls:
    """What each detector expects per slice, made once per baseline and policy.

    `by` maps a detector to its slices, `reasons` one that cannot look to a code of `reasons`. `lr` is the long-run variance of
    the daily effect, `dispersion` the Pearson dispersion of the days it was learnt from (1 without day effects). `calibrator`
    makes the scores that are served.
    """

    by: Mapping[str, Mapping[str, Null]]
    reasons: Mapping[str, str]
    lr: Mapping[str, float]
    dispersion: Mapping[str, float] = field(default_factory=dict)
    calibrator: Calibrator = field(default_factory=lambda: IDENTITY)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A detector's memory, a fold over days: first and last day looked at, number of looks with rows, rows of `all` taken in.

    `log` has for each slice of the nulls the logarithm of SR per grid point, NO_EVIDENCE before the first look.
    """

    since: int
    day: int
    looks: int
    rows: int
    log: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Detector:
    """One kind of sequential test.

    `about` says whose outcomes it needs, as in `metrics.Metric`, `decided` whether verdicts. `freeze(whole, days, of)` returns
    the promise of the readings of a baseline (`of`: the null of the slice `all`) or a reason, `arm(null, tolerance)`
    makes a band of it. `score(reading, null)` returns the score S and its variance V by kind of daily effect (S / V is the effect
    of the day, 1 / V its sampling variance), None without trials; where there are some `gains(reading, null)` returns the log
    e-value by alternative.
    """

    basis: str
    help: str
    freeze: Callable[[Reading, Sequence[Reading], Null | None], Null | str]
    arm: Callable[[Null, float], Null]
    score: Callable[[Reading, Null], Score | None]
    gains: Callable[[Reading, Null], Floats]
    effect: Callable[[Reading, Null], Measured | str]
    tolerance: float = TOLERANCE
    decided: bool = False
    about: str = "all"


def _expit(z: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-z))


def _logit(p: Any) -> Any:
    return np.log(p / (1.0 - p))


def _outcome_counts(reading: Reading) -> tuple[Floats, Floats]:
    """Return negatives and positives per cell as numbers of rows.

    Weighted sums are no e-values. Rows of a cell share score and verdict, and so the weight w: (sum w)**2 / sum w**2 is how many
    there are, and calibration holds given the score, whatever the choice by score and verdict.
    """
    if reading.spread is None:
        return reading.neg, reading.pos
    neg2, pos2, _ = reading.spread
    return reading.neg**2 / np.where(neg2 > 0, neg2, 1.0), reading.pos**2 / np.where(pos2 > 0, pos2, 1.0)


@functools.lru_cache(maxsize=64)  # the days of a slice of the baseline are read twice
def _bins(reading: Reading) -> Bins:
    """Return rows, logit of the mean score and positives of the occupied coarse bins."""
    neg, pos = _outcome_counts(reading)
    n, at = neg + pos, _COARSE_OF[reading.bin]
    rows, score, hits = (np.bincount(at, x, COARSE).astype(np.float64) for x in (n, n * reading.score, pos))
    there = rows > 0
    rows = rows[there]
    return rows, _logit(np.clip(score[there] / rows, CLIP, 1 - CLIP)), hits[there]


def binned_evidence(
    n: Floats, z: Floats, pos: Floats, center: float, grid: Floats = GRID, tolerance: float = TOLERANCE
) -> Floats:
    """Return the log likelihood ratio of each alternative against the nearest probability within the band, shape (K,).

    sum_b [y_b ln(q_b / p_b) + (n_b - y_b) ln((1 - q_b) / (1 - p_b))], logit q = c + a + b (z - c) for rows (a, b) of the grid,
    logit p = the value within z +- tolerance that is nearest to logit q; `n` and `pos` by bin, z = the logit that the null
    promises for the mean score. Taking the mean of a bin leaves it an e-value. Henzi, Puke, Dimitriadis and Ziegel, A safe
    Hosmer-Lemeshow test, arXiv:2203.00426.

    >>> binned_evidence(np.array([100.0]), np.array([0.0]), np.array([60.0]), 0.0, np.array([[0.4, 1.0], [-0.4, 1.0]])).round(3)
    array([ 1.138, -4.862])
    """
    q = (center + grid[:, 0])[:, None] + np.outer(grid[:, 1], z - center)
    # ln(1 + e**z) rises with z, so where it is cut to the band z is, and one logarithm does for both.
    soft, (low, high) = np.log1p(np.exp(q)), np.log1p(np.exp(np.stack((z - tolerance, z + tolerance))))
    gain: Floats = (q - np.clip(q, z - tolerance, z + tolerance)) @ pos - (soft - np.clip(soft, low, high)) @ n
    return gain


def _platt(bins: Bins) -> Floats:
    """Return a, b of the logistic regression of the outcomes on z (Platt 1999); b = 1 where no slope fits best."""
    n, z, pos = bins
    a, _ = _offset(bins)
    found = newton(powers(z), n, pos, a, 1.0, sloped=True)
    return np.array((a, 1.0) if found is None else (found.intercept, found.slope))


def _offset(bins: Bins) -> tuple[float, float]:
    """Return the offset that fits the outcomes best at fixed slope 1, and its information.

    Half a positive and half a negative at offset 0 are added, so that it is finite when there is one class.
    """
    n, z, pos = (np.append(x, more) for x, more in zip(bins, (1.0, 0.0, 0.5), strict=True))
    found = newton(powers(z), n, pos, 0.0, 1.0, sloped=False)
    assert found is not None
    return found.intercept, found.information[0]


def _on(line: Floats, z: Floats) -> Floats:
    """Return a + b z, as little certain as CLIP says."""
    found: Floats = np.clip(line[0] + line[1] * z, -_LIMIT, _LIMIT)
    return found


def _off(bins: Bins, line: Floats) -> tuple[float, float]:
    """Return sum (y - p) and sum p (1 - p) where logit p = a + b z."""
    n, z, pos = bins
    p = _expit(_on(line, z))
    return float((pos - n * p).sum()), float(n @ (p * (1 - p)))


def _rejects(days: Sequence[Bins], line: Floats) -> bool:
    """Return whether whole days reject the line, by the score test of intercept and slope at .001.

    U = sum (y - p)(1, z). Its covariance is that of independent rows plus lr sum_d J_d J_d', J_d what an offset of the day moves,
    and in no direction less than what the days themselves show (Bartlett, lag 2). With enough days to show it the limit is
    Hotelling's.
    """
    lr = float(_long_run(np.array([_off(bins, line) for bins in days]).T[:, :, None])[0][0])
    scores, cov = np.zeros((2, len(days))), np.zeros((2, 2))
    for d, (n, z, pos) in enumerate(days):
        x, p = np.stack((np.ones_like(z), z)), _expit(_on(line, z))
        v = n * p * (1 - p)
        moved = x @ v
        scores[:, d] = x @ (pos - n * p)
        cov += (x * v) @ x.T + lr * np.outer(moved, moved)
    # Where all scores are alike the two directions are one.
    white = np.linalg.solve(np.linalg.cholesky(cov + 1e-9 * np.trace(cov) * np.eye(2)), scores)
    e, m = white - white.mean(axis=1, keepdims=True), len(days) - 2
    seen = e @ e.T + sum(w * (e[:, k:] @ e[:, :-k].T + e[:, :-k] @ e[:, k:].T) for k, w in ((1, 2 / 3), (2, 1 / 3)) if m > 0)
    size, axes = np.linalg.eigh(seen)
    found = float(((axes.T @ white.sum(axis=1)) ** 2 / np.maximum(size, 1.0)).sum())
    # P(chi2 > q) = exp(-q / 2) with two degrees of freedom, and P(F > f) = (1 + 2 f / m) ** (-m / 2) with two and m.
    return found > ((m + 1) * (0.001 ** (-2 / m) - 1) if m + 2 >= MIN_DAYS else -2 * math.log(0.001))


def _freeze_calibration(whole: Reading, days: Sequence[Reading], of: Null | None) -> Null | str:
    """Return the promise that scores are honest, unless the baseline itself rejects that: then its Platt map.

    A slice is promised what `all` is, unless it rejects that.
    """
    n, z, _ = bins = _bins(whole)
    if not len(n):
        return "no_labels"
    line, variance = np.array([0.0, 1.0]) if of is None else of.about[0], 0.0 if of is None else of.variance
    # A day without outcomes rejects nothing.
    if _rejects([day for day in map(_bins, days) if len(day[0])], line):
        line = _platt(bins)
        variance = 1.0 / _off(bins, line)[1]
    return Null(float(_logit(_expit(_on(line, z)) @ n / n.sum())), variance, (line,))


def _score_calibration(reading: Reading, null: Null) -> Score | None:
    bins = _bins(reading)
    if not len(bins[0]):
        return None
    s, v = _off(bins, null.about[0])
    return np.array([s]), np.array([v])


def _gains_calibration(reading: Reading, null: Null) -> Floats:
    n, z, pos = _bins(reading)
    return binned_evidence(n, _on(null.about[0], z), pos, null.promise, GRID, null.tolerance)


def _effect_calibration(reading: Reading, null: Null) -> Measured | str:
    n, z, pos = _bins(reading)
    if not len(n):
        return "no_labels"
    value, v = _offset((n, _on(null.about[0], z), pos))
    return Measured(value, *normal(value, null.size / v), round(n.sum()))


def _places(hits: Floats, rest: Floats) -> Trials:
    """Return the function that finds hits and trials by their places in `outcomes`."""

    def trials(reading: Reading) -> tuple[float, float]:
        counts = outcomes(reading)
        k = float(counts @ hits)
        return k, k + float(counts @ rest)

    return trials


def _flagged(reading: Reading) -> tuple[float, float]:
    passed, flagged, _ = np.bincount(ROLE[reading.verdict], reading.n, 3).tolist()
    return flagged, passed + flagged


def _wrong_though_sure(reading: Reading) -> tuple[float, float]:
    """Return how many rows with max(p, 1 - p) >= .8 were of the other class, and how many there are."""
    wrong, high = errors(reading)
    return float(wrong[high].sum()), float(reading.n[high].sum())


def _rate(
    help: str, trials: Trials, side: str, undefined: str, basis: str = "mature", decided: bool = True, about: str = "all"
) -> Detector:
    """Return the Bernoulli test of a share of hits among trials, on a grid of higher (up), lower (down) or both alternatives."""
    signs = np.array({"down": [-1.0], "up": [1.0], "both": [-1.0, 1.0]}[side])[:, None]

    def freeze(whole: Reading, days: Sequence[Reading], of: Null | None) -> Null | str:
        k, m = trials(whole)
        if not m:
            return undefined
        r = (k + 0.5) / (m + 1.0)
        return Null(r, 1.0 / (m * r * (1 - r)))

    def arm(null: Null, tolerance: float) -> Null:
        z, steps = _logit(null.promise), tolerance + _STEPS
        q, p = _expit(z + signs * steps), _expit(z + signs * tolerance)
        gains = np.stack((np.log(q / p).ravel(), np.log((1 - q) / (1 - p)).ravel()))
        return replace(null, gains=gains, points=gains.shape[-1], tolerance=tolerance)

    def score(reading: Reading, null: Null) -> Score | None:
        k, m = trials(reading)
        r = null.promise
        return (np.array([k - m * r]), np.array([m * r * (1 - r)])) if m else None

    def gains(reading: Reading, null: Null) -> Floats:
        k, m = trials(reading)
        found: Floats = k * null.gains[0] + (m - k) * null.gains[1]
        return found

    def effect(reading: Reading, null: Null) -> Measured | str:
        k, m = trials(reading)
        if not m:
            return undefined
        # Half a hit or half a miss, whichever is rarer, is added as promised: where there is nothing to see there is no effect.
        more = 0.5 / min(null.promise, 1.0 - null.promise)
        r = (k + more * null.promise) / (m + more)
        value = float(_logit(r) - _logit(null.promise))
        return Measured(value, *normal(value, null.size / (m * r * (1 - r))), round(m))

    return Detector(basis, help, freeze, arm, score, gains, effect, decided=decided, about=about)


class Placed(NamedTuple):
    """Negatives and positives by coarse bin and their sums, and what `placements` says of them."""

    classes: Floats
    negatives: float
    positives: float
    area: float
    around: Floats


@functools.lru_cache(maxsize=64)
def _placed(reading: Reading) -> Placed | None:
    """Return where the classes are placed, None without one of them."""
    at = _COARSE_OF[reading.bin]
    classes = np.array([np.bincount(at, x, COARSE) for x in (reading.neg, reading.pos)])
    n, p = classes.sum(axis=1).tolist()
    return Placed(classes, n, p, *placements(classes)) if n and p else None


def _freeze_auc(whole: Reading, days: Sequence[Reading], of: Null | None) -> Null | str:
    """Return the area of all days and, as evidence is taken within days, that of positives among negatives of their day."""
    found = _placed(whole)
    pairs = [(day.positives, day.area) for day in map(_placed, days) if day is not None]
    if found is None or not pairs:
        return "one_class"
    rows, within = np.array(pairs).T
    n, p = found.negatives, found.positives
    around_neg, around_pos = np.maximum((found.classes * found.around**2).sum(axis=1) / (n, p), 1e-4).tolist()
    return Null(found.area, around_pos / p + around_neg / n, (float(rows @ within / rows.sum()), (around_pos, around_neg)))


def _arm_auc(null: Null, tolerance: float) -> Null:
    return replace(null, points=len(_BETS), tolerance=tolerance)


def _shares(placed: Placed, null: Null) -> tuple[float, float]:
    """Return what positives and negatives add to the variance of the area."""
    around_pos, around_neg = null.about[1]
    return around_pos / placed.positives, around_neg / placed.negatives


def _score_auc(reading: Reading, null: Null) -> Score | None:
    placed = _placed(reading)
    if placed is None:
        return None
    v = 1.0 / sum(_shares(placed, null))
    return np.array([(placed.area - null.about[0]) * v]), np.array([v])


def _gains_auc(reading: Reading, null: Null) -> Floats:
    """Return the gains of bets that positives are placed lower among the negatives of their day than the band says.

    1 + lambda (m - v) has a mean of at most 1 when that of v in [0, 1] is at least m, and is positive for lambda < 1 / (1 - m).
    Waudby-Smith and Ramdas, JRSS B 86 (2024), 1-27. All positives share the day's negatives, whose part of the variance of the
    mean placement (DeLong) divides the gains as a shock of the day does.
    """
    placed = _placed(reading)
    assert placed is not None
    pos, within = placed.classes[1], null.about[0]
    m = min(max(within - null.tolerance, 0.0), 1.0 - 1e-3)
    there = pos > 0
    gains = pos[there] @ np.log1p(np.outer(m - placed.area - placed.around[1][there], _BETS / (1 - m)))
    by_pos, by_neg = _shares(placed, null)
    found: Floats = gains * (by_pos / (by_pos + by_neg))
    return found


def _effect_auc(reading: Reading, null: Null) -> Measured | str:
    placed = _placed(reading)
    if placed is None:
        return "one_class"
    auc, variance = delong(*placed.classes)
    rows = round(placed.negatives + placed.positives)
    value = auc - null.promise
    return Measured(value, *normal(value, null.size * variance), rows) if variance > 0 else Measured(value, None, None, rows)


def _freeze_drift(whole: Reading, days: Sequence[Reading], of: Null | None) -> Null | str:
    """Return the baseline's shares of its calibration bins, and the two directions in which they are tilted.

    The directions are normal scores of the mid-ranks (location: a tilt by t moves normal scores by t standard deviations) and
    what their squares add to that (spread), each of mean 0 and variance 1 in the baseline.
    """
    edges = calibration_edges(whole) if of is None else of.about[0]
    rows = counts(whole, edges)
    share = (rows + 0.5) / (rows + 0.5).sum()
    if (rows > 0).sum() < 2:
        return "degenerate"
    inverse = NormalDist().inv_cdf
    place = np.array([inverse(x) for x in share.cumsum() - 0.5 * share])
    location = (place - share @ place) / math.sqrt(share @ (place - share @ place) ** 2)
    square = location**2 - 1.0 - (share @ location**3) * location
    size = math.sqrt(share @ square**2)
    # With two bins there is no second direction.
    directions = np.stack((location, square / size if size > 1e-6 else 0.0 * square))
    return Null(float(rows.sum()), 1.0 / float(rows.sum()), (edges, rows, share, directions))


def _arm_drift(null: Null, tolerance: float) -> Null:
    """Return the null with the gain of a row of each bin by tilt: ln of its share under that over its share on the band's edge.

    Shares tilted by t are proportional to share exp(t direction). Among tilts of one direction the likelihood ratio is monotone,
    so its mean is at most 1 for all those inside the band.
    """
    _, _, share, directions = null.about
    signs = np.array([-1.0, 1.0])[:, None]

    def tilted(t: Floats) -> Floats:
        raised = np.log(share) + np.multiply.outer(directions, t.ravel()).swapaxes(1, 2)
        shares: Floats = raised - np.log(np.exp(raised).sum(axis=2, keepdims=True))
        return shares

    beyond, edge = signs * (tolerance + _TILTS), signs * np.full(len(_TILTS), tolerance)
    gains = (tilted(beyond) - tilted(edge)).reshape(-1, len(share))
    return replace(null, gains=gains, points=len(gains), tolerance=tolerance)


def _score_drift(reading: Reading, null: Null) -> Score | None:
    edges, _, _, directions = null.about
    rows = counts(reading, edges)
    n = rows.sum()
    return (directions @ rows, np.full(len(directions), n)) if n else None


def _gains_drift(reading: Reading, null: Null) -> Floats:
    found: Floats = null.gains @ counts(reading, null.about[0])
    return found


def _effect_drift(reading: Reading, null: Null) -> Measured | str:
    edges, base, _, _ = null.about
    rows = counts(reading, edges)
    n = float(rows.sum())
    if not n:
        return "no_events"
    return Measured(psi_of(rows, base) - (len(edges) - 1) * (1 / n + 1 / null.promise), None, None, round(n))


DETECTORS: Mapping[str, Detector] = {
    "calibration": Detector(
        "mature",
        "Outcomes against scores, intercept and slope.",
        _freeze_calibration,
        lambda null, tolerance: replace(null, points=len(GRID), tolerance=tolerance),
        _score_calibration,
        _gains_calibration,
        _effect_calibration,
        about="seen",
    ),
    "recall": _rate("Share of the positives that were flagged, lower than promised.", _places(TP, FN), "down", "no_positives"),
    "precision": _rate(
        "Share of the flagged rows that were positive, lower than promised.",
        _places(TP, FP),
        "down",
        "no_flagged",
        about="flagged",
    ),
    "fpr": _rate("Share of the negatives that were flagged, higher than promised.", _places(FP, TN), "up", "no_negatives"),
    "high_confidence_errors": _rate(
        "Share of the rows with max(p, 1 - p) >= .8 that were of the other class, higher than promised.",
        _wrong_though_sure,
        "up",
        "no_high_confidence",
        decided=False,
    ),
    "roc_auc": Detector(
        "mature",
        "Positives placed lower among the negatives of their day than promised.",
        _freeze_auc,
        _arm_auc,
        _score_auc,
        _gains_auc,
        _effect_auc,
        tolerance=0.01,
    ),
    "prevalence": _rate(
        "Share of positive outcomes, other than promised.", _places(POSITIVES, NEGATIVES), "both", "no_labels", decided=False
    ),
    "flagged_share": _rate(
        "Share of the decided rows that were flagged, other than promised.", _flagged, "both", "no_events", "scored"
    ),
    "score_drift": Detector(
        "scored",
        "Scores against those of the baseline, tilted in location or spread.",
        _freeze_drift,
        _arm_drift,
        _score_drift,
        _gains_drift,
        _effect_drift,
        tolerance=0.05,
    ),
}


def _long_run(moments: Floats) -> tuple[Floats, Floats]:
    """Return the long-run variance of daily effects and their Pearson dispersion, by kind of effect.

    `moments` (2, days, kinds) are S and V by day. With e = S / V less its mean, lr = g0 + 4/3 g1 + 2/3 g2 (Bartlett, lag 2; Newey
    and West 1987), g0 less the sampling variance, none below 0, days with little V counting less; x 1.5 under 60 days; 0 unless
    sum e**2 V, which is chi-square of days - 1 degrees of freedom without day effects, passes its .95 quantile.
    """
    s, v = moments
    days = len(s)
    if days < 3:
        return np.zeros(s.shape[1]), np.ones(s.shape[1])
    e = s / v - s.sum(axis=0) / v.sum(axis=0)
    dispersion = (e * e * v).sum(axis=0) / (days - 1)
    # The cube root of a chi-square over its degrees of freedom is nearly normal (Wilson and Hilferty 1931).
    c = 2 / (9 * (days - 1))
    limit = (1 - c + NormalDist().inv_cdf(0.95) * math.sqrt(c)) ** 3
    w = np.minimum(v / np.median(v, axis=0), 1.0)
    e = e - (w * e).sum(axis=0) / w.sum(axis=0)
    u = w * e
    g = [(u[k:] * u[: days - k]).sum(axis=0) / (w[k:] * w[: days - k]).sum(axis=0) for k in range(3)]
    g[0] = g[0] - (w * w / v).sum(axis=0) / (w * w).sum(axis=0)
    found = sum(weight * np.maximum(x, 0.0) for weight, x in zip((1.0, 4 / 3, 2 / 3), g, strict=True))
    return np.where(dispersion > limit, found * (1.5 if days < FEW_DAYS else 1.0), 0.0), dispersion


_BASES = ("mature", "scored")


@functools.lru_cache(maxsize=128)
def _mature(table: Table, rules: tuple[LabelRule, ...]) -> Reading:
    """Return the mature reading of a day; all detectors of a day read the same ones."""
    return mature(table, rules)


def _read(detector: Detector, table: Table, rules: tuple[LabelRule, ...]) -> Reading:
    """Return a live day as the detector sees it."""
    return _mature(table, rules) if detector.basis == "mature" else scored(table)


def _seen(name: str, table: Table, rules: tuple[LabelRule, ...], nulls: Nulls) -> Reading:
    """Return a live day as the detector of this name sees it, with the scores that are served where it is about these."""
    if name in OF_PROBABILITIES and nulls.calibrator != IDENTITY:
        return mature(recalibrated(table, nulls.calibrator), rules)
    return _read(DETECTORS[name], table, rules)


def _promised(basis: str, tables: Mapping[str, Table], policy: Policy | None, part: str) -> Reading:
    """Return a day of a slice of the baseline as detectors of a basis see it under the policy."""
    return baseline(tables, policy, part) if basis == "mature" else decided(tables, policy, part, scored)


def _unusable(detector: Detector, reading: Reading) -> str:
    """Return why a reading tells the detector nothing, else an empty text."""
    if not len(reading.n):
        return reading.reason or "no_events"
    if detector.basis == "mature":
        reason = reading.flagged_reason if detector.about == "flagged" else reading.reason
        if reason and not (detector.about == "seen" and reason == "prevented"):
            return reason
        # Of weights only the calibration detector can tell how many rows they are of.
        if detector.about != "seen" and reading.spread is not None:
            cells = reading.flagged if detector.about == "flagged" else slice(None)
            if (reading.spread[0] != reading.neg)[cells].any() or (reading.spread[1] != reading.pos)[cells].any():
                return "weighted"
    return "no_threshold" if detector.decided and not reading.decided else ""


def _cluster_sizes(days: Sequence[Table]) -> tuple[float, float]:
    """Return the mean number of rows in the cluster of a row, within its day and over all days; 1 without clusters.

    Of clusters put at random into K groups E sum n_g**2 = Q + (n**2 - Q) / K, Q the sum of the squares of their sizes.
    """
    groups = [t.groups[:, :, :3].sum(axis=(1, 2)) for t in days if t.groups is not None]
    if not groups:
        return 1.0, 1.0

    def squares(x: Floats) -> float:
        return max((float(x @ x) - float(x.sum()) ** 2 / GROUPS) / (1 - 1 / GROUPS), float(x.sum()))

    n = sum(float(x.sum()) for x in groups)
    return sum(squares(x) for x in groups) / n, squares(np.sum(groups, axis=0)) / n


def nulls(
    days: Mapping[str, Mapping[int, Table]],
    policy: Policy | None,
    rules: tuple[LabelRule, ...],
    outcomes: bool = True,
    live: Mapping[int, Table] | None = None,
) -> Nulls:
    """Return what each detector expects, from the day tables of a baseline by slice, under the policy that decides.

    `outcomes`: whether the baseline promises any; `live`: mature live days of `all`, from which the long-run variances are
    learnt when the baseline has fewer than 14 days. Slices have shocks of their own: one that shows them over as many days has
    its own variance where that is larger than that of `all`. Of scores that a calibrator serves is promised that they are
    honest, with the variances of those of the model: validation is not what the calibrator was fitted to.
    """
    tables = {part: [t for _, t in sorted(of.items()) if t.n] for part, of in days.items()}
    whole = {part: total(of) for part, of in tables.items() if of}
    by_day = [{part: of[d] for part, of in days.items() if d in of and of[d].n} for d in sorted(set().union(*days.values()))]
    every = tables.get("all", [])
    learnt = every if len(every) >= MIN_DAYS else [t for _, t in sorted((live or {}).items())[:LEARN_DAYS]]
    enough = learnt is every or len(learnt) == LEARN_DAYS
    clusters = _cluster_sizes(every)
    reasons = {
        name: reason
        for name, detector in DETECTORS.items()
        if (reason := _not_looking(detector, outcomes, bool(every), policy is not None, clusters, enough))
    }
    by: dict[str, dict[str, Null]] = {name: {} for name in DETECTORS}
    dispersion: dict[str, float] = {}
    for part in ("all", *(p for p in whole if p != "all")) if every else ():
        each = (whole, *(of for of in by_day if part in of))
        promised = {basis: [_promised(basis, of, policy, part) for of in each] for basis in _BASES}
        for name, detector in DETECTORS.items():
            if name in reasons:
                continue
            (reading, *single), of = promised[detector.basis], by[name].get("all")
            null = _unusable(detector, reading) or detector.freeze(reading, single, of)
            if isinstance(null, str):
                if of is None:
                    reasons[name] = null
                continue
            null = replace(null, size=clusters[0])
            if of is None:
                live_days = single if learnt is every else [_read(detector, t, rules) for t in learnt]
                lr, pearson = _long_run(_moments(detector, null, live_days))
                dispersion[name] = float(pearson.max())
            elif len(single) >= MIN_DAYS:
                lr = np.maximum(of.lr, _long_run(_moments(detector, null, single))[0])
            else:
                lr = of.lr
            null = replace(null, lr=lr)
            by[name][part] = detector.arm(null, _tolerance(detector, null, len(single)))
    found = {name: of for name, of in by.items() if of}
    made = Nulls(found, reasons, {name: float(of["all"].lr.max()) for name, of in found.items()}, dispersion)
    return made if policy is None or not policy.calibrates else _served(made, tables, policy.calibrator)


def _served(nulls: Nulls, tables: Mapping[str, Sequence[Table]], calibrator: Calibrator) -> Nulls:
    """Return the nulls with those of OF_PROBABILITIES about the scores that the calibrator serves: that these are honest.

    A slice that was off `all` in the validation is expected to be so much off it still. The variance from day to day stays.
    """
    by, reasons = dict(nulls.by), dict(nulls.reasons)
    lines = {part: null.about[0] for part, null in by.get("calibration", {}).items()}
    for name in OF_PROBABILITIES:
        made: dict[str, Null] = {}
        for part, raw in by.pop(name, {}).items():
            off = lines[part] - lines["all"] if part in lines else np.zeros(2)
            single = [honest(scored(recalibrated(t, calibrator)), *off.tolist()) for t in tables[part]]
            whole = honest(scored(recalibrated(total(list(tables[part])), calibrator)), *off.tolist())
            null = DETECTORS[name].freeze(whole, single, made.get("all"))
            if isinstance(null, str):
                if part == "all":
                    reasons[name] = null
                    break
                continue
            null = replace(null, size=raw.size, lr=raw.lr)
            made[part] = DETECTORS[name].arm(null, _tolerance(DETECTORS[name], null, len(single)))
        if made:
            by[name] = made
    return replace(nulls, by=by, reasons=reasons, calibrator=calibrator)


def _not_looking(
    detector: Detector, outcomes: bool, there: bool, decided: bool, clusters: tuple[float, float], enough: bool
) -> str:
    """Return why a detector cannot look at any day, else an empty text."""
    if not there or (detector.basis == "mature" and not outcomes):
        return "no_baseline"
    if detector.decided and not decided:
        return "no_threshold"
    # Rows of one cluster share what they are: no e-value can be made of them over several looks.
    return "clustered" if clusters[1] > 2 * clusters[0] else "" if enough else "learning"


def _moments(detector: Detector, null: Null, readings: Sequence[Reading]) -> Floats:
    """Return S and V of each day that has trials, per row of a cluster, shape (2, days, kinds)."""
    scores = (detector.score(reading, null) for reading in readings if not _unusable(detector, reading))
    there = [score for score in scores if score is not None]
    return np.array(there).swapaxes(0, 1) / null.size if there else np.zeros((2, 0, 1))


def _tolerance(detector: Detector, null: Null, days: int) -> float:
    """Return the half-width of the band: what does not matter, and two standard errors of a promise that was estimated.

    For one look the error of the promise is part of phi; what remains is that it is the same at every look.
    """
    if not null.variance:
        return detector.tolerance
    return math.hypot(detector.tolerance, 2 * math.sqrt(null.variance * null.size + float(null.lr.max()) / days))


def look(
    name: str,
    evidence: Evidence | None,
    day: int,
    tables: Mapping[str, Table],
    nulls: Nulls,
    rules: tuple[LabelRule, ...],
    log_a: float,
) -> Evidence:
    """Return the evidence after one look at a whole day: SR <- (1 + SR) exp(dL / phi) in every slice that has rows that day.

    `tables` are the day by slice and `log_a` is the logarithm of what M_D (see `log_evidence`) has to reach; no slice is kept
    further above it than 5, so that evidence can fall again. Raise KeyError when the detector has a reason not to look.
    """
    detector, of = DETECTORS[name], nulls.by[name]
    evidence = evidence or Evidence(day, day, 0, 0, {})
    log = {part: np.full(null.points, NO_EVIDENCE) for part, null in of.items()} | dict(evidence.log)
    weights, rows, seen = _weights(log), evidence.rows, 0
    for part, null in of.items():
        table = tables.get(part)
        if table is None or not len(table.cells):
            continue
        reading = _seen(name, table, rules, nulls)
        found = None if _unusable(detector, reading) else detector.score(reading, null)
        if found is None:
            continue
        v, gains = found[1], detector.gains(reading, null)
        phi = null.size + np.repeat(v * (null.lr + null.variance * null.size), len(gains) // len(v))
        log[part] = np.minimum(np.logaddexp(0.0, log[part]) + gains / phi, log_a + CAP - math.log(weights[part]))
        seen = 1
        if part == "all":
            rows += round(float(reading.n.sum()))
    return Evidence(evidence.since, day, evidence.looks + seen, rows, log)


def _weights(log: Mapping[str, Floats]) -> dict[str, float]:
    """Return the weight of each slice in M_D: half for `all`, the other half shared by the rest."""
    if "all" not in log or len(log) == 1:
        return dict.fromkeys(log, 1.0 / max(len(log), 1))
    rest = 0.5 / (len(log) - 1)
    return {part: 0.5 if part == "all" else rest for part in log}


def _parts(evidence: Evidence) -> dict[str, float]:
    """Return the logarithm of what each slice adds to M_D: its weight times the mean of SR over its grid."""
    weights = _weights(evidence.log)
    parts = {}
    for part, log in evidence.log.items():
        top = float(log.max())
        parts[part] = top + math.log(float(np.exp(log - top).mean()) * weights[part])
    return parts


def log_evidence(evidence: Evidence | None) -> float:
    """Return ln M_D, M_D = SR_all / 2 + (mean of SR over the other slices) / 2, only SR_all when there are no others.

    Its mean is at most the number of looks while the promises hold. Before the first look it is NO_EVIDENCE.
    """
    if evidence is None or not evidence.looks:
        return NO_EVIDENCE
    parts = _parts(evidence).values()
    top = max(parts)
    return max(top + math.log(sum(math.exp(x - top) for x in parts)), NO_EVIDENCE)


def shares(evidence: Evidence | None) -> tuple[tuple[str, float], ...]:
    """Return the slices that make up 95 % of M_D and their shares of it, largest first."""
    if evidence is None or not evidence.looks:
        return ()
    whole = log_evidence(evidence)
    found: list[tuple[str, float]] = []
    for part, x in sorted(_parts(evidence).items(), key=lambda item: -item[1]):
        if sum(share for _, share in found) >= 0.95:
            break
        found.append((part, math.exp(x - whole)))
    return tuple(found)


def effect(name: str, table: Table, nulls: Nulls, rules: tuple[LabelRule, ...], part: str = "all") -> Measured | str:
    """Return how far a window of days is from what is promised, in the units of EFFECTS, or a reason why nobody knows.

    Calibration: the offset in logit; rates: logit(rate) - logit(promise); roc_auc: the difference; score_drift: psi above what it
    is on average without drift. The interval is the 95 % normal one of independent rows: how far off these days were.
    """
    if name in nulls.reasons:
        return nulls.reasons[name]
    if part not in nulls.by[name]:
        return "no_baseline"
    detector, null = DETECTORS[name], nulls.by[name][part]
    reading = _seen(name, table, rules, nulls)
    return _unusable(detector, reading) or detector.effect(reading, null)


def log_threshold(detectors: int, per_year: float) -> float:
    """Return ln A for so many detectors of one look a day that may give so many false alarms a year together.

    >>> round(log_threshold(7, 1.0), 3)
    7.846
    """
    return math.log(365 * detectors / per_year)


def to_dict(evidence: Evidence) -> dict[str, Any]:
    """Return the evidence as numbers and lists."""
    return {
        **{f.name: getattr(evidence, f.name) for f in fields(Evidence)},
        "log": {k: x.tolist() for k, x in evidence.log.items()},
    }


def from_dict(body: Mapping[str, Any]) -> Evidence:
    """Return the evidence that `to_dict` wrote."""
    log = {part: np.array(x, np.float64) for part, x in body["log"].items()}
    return Evidence(body["since"], body["day"], body["looks"], body["rows"], log)
