"""How logit(score) would have to change to be that of the outcomes: logistic regressions of the outcomes on logit(score)."""

import math
from typing import NamedTuple

import numpy as np

from monitor.core.events import Floats
from monitor.core.intervals import Measured, normal, whole
from monitor.core.metrics.calibration import design_effect, totals
from monitor.core.metrics.counts import classes, logs, once, size
from monitor.core.readings import Reading
from monitor.core.tables import TINY

STEPS = 100


class Fit(NamedTuple):
    """logit P(positive) = intercept + slope logit(score), and the variances of the two."""

    intercept: float
    slope: float
    intercept_variance: float
    slope_variance: float


class Maximum(NamedTuple):
    """The most likely intercept and slope, the probabilities there, and their information: sum n p (1 - p) of 1, x, x**2."""

    intercept: float
    slope: float
    p: Floats
    information: tuple[float, float, float]


def powers(x: Floats) -> Floats:
    """Return 1, x and x**2, shape (3, len(x))."""
    out = np.ones((3, len(x)))
    out[1] = x
    np.square(x, out=out[2])
    return out


@once
def _powers(reading: Reading) -> Floats:
    """Return the powers of logit(score) by cell; scores are clipped as the log loss does."""
    against, towards = logs(reading)
    return powers(towards - against)


def newton(powers: Floats, n: Floats, pos: Floats, intercept: float, slope: float, sloped: bool) -> Maximum | None:
    """Return the most likely fit of positives among n, found from a first one by Newton's steps; None when they do not end.

    Not `sloped` the slope stays what it is. Half a step is taken back where it went so far past the maximum that the
    likelihood falls behind it at more than half the rate at which it rose before.
    """
    x, columns = powers[1], powers[: 1 + sloped]
    a, b, da, db, rise = intercept, slope, 0.0, 0.0, math.inf
    for _ in range(STEPS):
        mu = 0.5 * np.tanh((0.5 * b) * x + 0.5 * a) + 0.5  # the logistic function in a form that cannot overflow
        expected = n * mu
        ga, gb = (*(columns @ (pos - expected)).tolist(), 0.0)[:2]
        if da * ga + db * gb < -0.5 * rise:
            da, db = da / 2, db / 2
            a, b, rise = a - da, b - db, rise / 2
            continue
        weight = expected - expected * mu
        h0, h1, h2 = (powers @ weight).tolist() if sloped else (float(weight.sum()), 0.0, 1.0)
        det = h0 * h2 - h1 * h1
        if det <= 1e-12 * h0 * h2:
            return None
        da, db = (h2 * ga - h1 * gb) / det, (h0 * gb - h1 * ga) / det
        a, b, rise = a + da, b + db, ga * da + gb * db
        # A step leaves at most half its square, so this is right to 5e-7 at logits up to 8.
        if abs(da) + 8 * abs(db) < 1e-3:
            return Maximum(a, b, mu, (h0, h1, h2))
    return None


def _fit(reading: Reading, intercept: float, slope: float, sloped: bool) -> Fit | str:
    """Return the fit with its variances, or why there is none."""
    found = newton(_powers(reading), reading.n, reading.pos, intercept, slope, sloped)
    return "no_fit" if found is None else Fit(found.intercept, found.slope, *_variances(reading, found, sloped))


def _variances(reading: Reading, found: Maximum, sloped: bool) -> tuple[float, float]:
    """Return the variances of intercept and slope: the inverse of the information, of weighted rows between two of it."""
    mu, (h0, h1, h2) = found.p, found.information
    det = h0 * h2 - h1 * h1
    if reading.spread is None:
        return h2 / det, h0 / det if sloped else 0.0
    j0, j1, j2 = (_powers(reading) @ ((reading.spread[0] + reading.spread[1]) * (mu - mu * mu))).tolist()
    if not sloped:
        return j0 / (h0 * h0), 0.0
    return (h2 * h2 * j0 - 2 * h1 * h2 * j1 + h1 * h1 * j2) / det**2, (h1 * h1 * j0 - 2 * h0 * h1 * j1 + h0 * h0 * j2) / det**2


@once
def fit_offset(reading: Reading) -> Fit | str:
    """Return the most likely intercept when the slope is 1, or why there is none."""
    n, k, expected = totals(reading)[:3].tolist()
    if not 0 < k < n:
        return "one_class"
    if reading.clipped >= n:
        return "degenerate"
    odds = max(expected, TINY) / max(n - expected, TINY)
    first = math.log(k / (n - k) / odds)  # were all scores alike, that would be it
    return _fit(reading, first, 1.0, sloped=False)


@once
def fit_line(reading: Reading) -> Fit | str:
    """Return the most likely intercept and slope, or why there are none.

    They are finite where scores of positives and of negatives overlap (Albert and Anderson, Biometrika 71 (1984), 1-10).
    """
    first = fit_offset(reading)
    if isinstance(first, str):
        return first
    there, bins = classes(reading) > 0, reading.bin
    (neg, pos), (last_neg, last_pos) = bins[there.argmax(axis=1)], bins[::-1][there[:, ::-1].argmax(axis=1)]
    if pos >= last_neg or neg >= last_pos:
        return "separable"
    return _fit(reading, first.intercept, 1.0, sloped=True)


def _measured(reading: Reading, value: float, variance: float) -> Measured:
    """Return a coefficient with its Wald interval, which clusters widen by the design effect of the bias."""
    n, effect = whole(size(reading)), design_effect(reading)
    if isinstance(effect, str):
        return Measured(value, None, None, n, effect)
    return Measured(value, *normal(value, variance * effect), n)


def offset(reading: Reading, _: object = None) -> Measured | str:
    """Return a of logit P(positive) = a + logit(score), above 0 when the scores are too low (calibration in the large)."""
    fit = fit_offset(reading)
    return fit if isinstance(fit, str) else _measured(reading, fit.intercept, fit.intercept_variance)


def slope(reading: Reading, _: object = None) -> Measured | str:
    """Return b of logit P(positive) = a + b logit(score), below 1 when the scores are too extreme (Cox 1958)."""
    fit = fit_line(reading)
    return fit if isinstance(fit, str) else _measured(reading, fit.slope, fit.slope_variance)


def intercept(reading: Reading, _: object = None) -> Measured | str:
    """Return a of logit P(positive) = a + b logit(score)."""
    fit = fit_line(reading)
    return fit if isinstance(fit, str) else _measured(reading, fit.intercept, fit.intercept_variance)
