"""Offset, slope and intercept against scikit-learn, the shared vector and simulation."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from monitor.core.metrics.fit import fit_line, intercept, offset, slope
from monitor.core.readings import LabelRule, known, mature

UNKNOWN = (LabelRule("unknown"),) * 6


def _logit(p):
    return np.log(p / (1 - p))


def _expit(z):
    return 1 / (1 + np.exp(-z))


def _world(rng, n, a=0.0, b=1.0, center=-2.0):
    z = rng.normal(center, 1.5, n)
    return _expit(z), (rng.random(n) < _expit(a + b * z)).astype(np.int8)


@pytest.mark.parametrize(("n", "a", "b", "center"), [(300, 0, 1, 0), (3_000, 0.5, 0.6, -1), (30_000, -1, 1.5, -4)])
def test_line_is_the_most_likely_one(table, n, a, b, center):
    """Slope and intercept are scikit-learn's without a penalty, of the cells to 1e-5, of the rows to 1/20 of their errors."""
    score, y = _world(np.random.default_rng(1), n, a, b, center)
    r = known(table(score, y))
    x, cells = _logit(score)[:, None], np.tile(_logit(r.score), 2)[:, None]
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1_000)
    fit.fit(cells, np.repeat([1, 0], len(r.n)), sample_weight=np.append(r.pos, r.neg))
    assert (intercept(r).value, slope(r).value) == pytest.approx((fit.intercept_[0], fit.coef_[0, 0]), abs=1e-5)
    fit.fit(x, y)
    errors = np.sqrt(fit_line(r)[2:])
    assert np.abs(fit_line(r)[:2] - np.array([fit.intercept_[0], fit.coef_[0, 0]])).max() < errors.min() / 20
    p = fit.predict_proba(x)[:, 1]
    design = np.column_stack((np.ones(n), x))
    inverse = np.linalg.inv(design.T @ (design * (p * (1 - p))[:, None]))
    assert errors == pytest.approx(np.sqrt(np.diag(inverse)), rel=0.01)


def test_offset_balances_the_scores(table):
    """Moved by the offset the scores of all cells add up to the positives; its error is that of their variance."""
    r = known(table(*_world(np.random.default_rng(2), 5_000, 0.7)))
    found = offset(r)
    moved = _expit(_logit(r.score) + found.value)
    assert r.n @ moved == pytest.approx(r.pos.sum(), rel=1e-6)
    se = 1 / math.sqrt(r.n @ (moved * (1 - moved)))
    assert (found.low, found.high) == pytest.approx((found.value - 1.959964 * se, found.value + 1.959964 * se), abs=1e-4)
    assert found.low < 0.7 < found.high


def test_miscal60(table, vector):
    """The vector's Platt scaling comes out."""
    inputs, expected = vector("miscal60")
    r = known(table(inputs["scores"], inputs["labels"]))
    platt = expected["platt_on_logit"]
    assert (slope(r).value, intercept(r).value) == pytest.approx((platt["slope"], platt["intercept"]), abs=1e-4)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.5, 1.0), (-0.3, 0.7)])
def test_intervals_cover(table, a, b):
    """The 95 % intervals hold the truth in 92 to 98 % of 300 runs, that of the offset where the slope is 1."""
    rng = np.random.default_rng(3)
    readings = [known(table(*_world(rng, 2_000, a, b))) for _ in range(300)]
    truths = {intercept: a, slope: b} | ({offset: a} if b == 1 else {})
    for metric, truth in truths.items():
        assert 0.92 <= np.mean([e.low <= truth <= e.high for e in map(metric, readings)]) <= 0.98


@pytest.mark.parametrize(
    ("score", "y", "reasons"),
    [
        ([0.2, 0.4, 0.6], [0, 0, 0], ("one_class", "one_class")),
        ([0.2, 0.4, 0.6], [1, 1, 1], ("one_class", "one_class")),
        ([0.2, 0.3, 0.6, 0.7], [0, 0, 1, 1], (None, "separable")),
        ([0.2, 0.3, 0.6, 0.7], [1, 1, 0, 0], (None, "separable")),
        ([0.2, 0.3, 0.3, 0.7], [0, 0, 1, 1], (None, "separable")),
        ([0.3, 0.3, 0.3, 0.3], [0, 0, 1, 1], (None, "separable")),
        ([0.0, 1.0, 1.0], [0, 1, 0], ("degenerate", "degenerate")),
        ([0.0, 1.0, 0.5, 0.4], [1, 0, 0, 1], (None, "separable")),
        ([0.0, 1.0, 0.5, 0.5], [1, 1, 0, 1], (None, None)),
    ],
)
def test_reasons(table, score, y, reasons):
    """Without two classes, a score between 0 and 1 or an overlap there is no fit but a reason, and never a number."""
    r = known(table(score, y))
    for found, reason in zip((offset(r), slope(r), intercept(r)), (*reasons, reasons[1]), strict=True):
        assert found == reason if reason else math.isfinite(found.value)


def test_constant_scores_have_an_exact_offset(table):
    """Where all scores are alike the offset leads from the score to the share of positives, however far that is."""
    for p in (1e-12, 0.01, 0.5, 1 - 1e-6):
        r = known(table(np.full(200, p), np.arange(200) < 60))
        assert offset(r).value == pytest.approx(math.log(0.3 / 0.7) - math.log(r.score[0] / (1 - r.score[0])), abs=1e-9)


@given(st.lists(st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-300, 0.5, 1.0])), st.booleans()), min_size=2))
def test_gradient_is_zero(table, rows):
    """Whatever the rows, a fit that is there cannot be made more likely by moving it."""
    score, y = zip(*rows, strict=True)
    r = known(table(score, y))
    p = np.clip(r.score, 2.0**-52, 1 - 2.0**-52)
    fit = fit_line(r)
    if not isinstance(fit, str):
        rest = r.pos - r.n * (0.5 * np.tanh(0.5 * (fit.intercept + fit.slope * _logit(p))) + 0.5)
        assert np.abs(rest.sum()) < 1e-4 * len(score)
        assert np.abs(rest @ _logit(p)) < 1e-3 * len(score)


def test_weighted_rows(table):
    """Weighted rows have the fit of the rows they stand for; equal weights are worth their rows, not what they stand for."""
    rng = np.random.default_rng(4)
    score, y = _world(rng, 20_000, 0.5)
    q = np.where(score > 0.2, 1.0, 0.25)
    asked = rng.random(20_000) < q
    found = offset(mature(table(score, np.where(asked, y, -1), label_prob=q), UNKNOWN))
    assert found.low < 0.5 < found.high
    plain, equal = known(table(score, y)), mature(table(score, y, label_prob=np.full(20_000, 0.05)), UNKNOWN)
    for metric in (offset, slope, intercept):
        assert metric(equal)[:4] == pytest.approx(metric(plain)[:4], rel=1e-6)


def test_clusters_widen(table):
    """Rows that come in clusters widen the intervals; clusters whose weight cannot be told leave none, with the reason."""
    rng = np.random.default_rng(5)
    score, y = _world(rng, 400)
    r = known(table(score.repeat(10), y.repeat(10), cluster=rng.integers(1, 2**32, 400).repeat(10)))
    for metric in (offset, slope, intercept):
        wide, narrow = metric(r), metric(dataclasses.replace(r, groups=None))
        assert wide.value == narrow.value
        assert 2 < (wide.high - wide.low) / (narrow.high - narrow.low) < 5
        unknown = metric(dataclasses.replace(r, groups=np.full_like(r.groups, np.nan)))
        assert unknown[:3] + unknown[4:] == (wide.value, None, None, "clustered")
