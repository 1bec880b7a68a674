"""How logit(score) would have to change to be that of the outcomes: logistic regressions of the outcomes on logit(score)."""

import math
from typing import NamedTuple

import numpy as np

from monitor.core.events import Floats
from monitor.core.intervals import Measured, normal, whole
from monitor.core.metrics.calibration import design_effect, totals
from monitor.core.metrics.counts import logs, once, size
from monitor.core.readings import Reading
from monitor.core.tables import TINY

STEPS = 100


class Fit(NamedTuple):
    """logit P(positive) = intercept + slope logit(score), and the variances of the two."""

    intercept: float
    slope: float
    intercept_variance: float
    slope_variance: float


@once
def _powers(reading: Reading) -> Floats:
    """Return 1, x and x**2 of x = logit(score) by cell, shape (3, cells); scores are clipped as the log loss does."""
    against, towards = logs(reading)
    out = np.ones((3, len(towards)))
    np.subtract(towards, against, out=out[1])
    np.square(out[1], out=out[2])
    return out


def _newton(reading: Reading, fit: Fit, sloped: bool) -> Fit | None:
    """Return the most likely fit, found from a first one by Newton's steps; None when they do not come to an end.

    Not `sloped` the slope stays what it is. Half a step is taken back where it went so far past the maximum that the
    likelihood falls behind it at more than half the rate at which it rose before.
    """
    powers, n, pos = _powers(reading), reading.n, reading.pos
    x, columns = powers[1], powers[: 1 + sloped]
    a, b, da, db, rise = fit.intercept, fit.slope, 0.0, 0.0, math.inf
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
            return Fit(a, b, *_variances(reading, mu, (h0, h1, h2), sloped))
    return None


def _variances(reading: Reading, mu: Floats, h: tuple[float, float, float], sloped: bool) -> tuple[float, float]:
    """Return the variances of intercept and slope: the inverse of the information `h`, of weighted rows between two of it."""
    h0, h1, h2 = h
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
    return _newton(reading, Fit(first, 1.0, 0.0, 0.0), sloped=False) or "no_fit"


@once
def fit_line(reading: Reading) -> Fit | str:
    """Return the most likely intercept and slope, or why there are none.

    They are finite where scores of positives and of negatives overlap (Albert and Anderson, Biometrika 71 (1984), 1-10).
    """
    first = fit_offset(reading)
    if isinstance(first, str):
        return first
    pos, neg = reading.bin[reading.pos > 0], reading.bin[reading.neg > 0]
    if pos[0] >= neg[-1] or neg[0] >= pos[-1]:
        return "separable"
    return _newton(reading, first, sloped=True) or "no_fit"


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
