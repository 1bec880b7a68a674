"""Delay curves, completeness and the horizon that delays suggest."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.delays import ENOUGH, Curve, curve, delay_curves, suggested_horizon
from monitor.core.events import ABSTAIN, DAY, FLAG, HOUR, NONE, PASS, REVIEW
from monitor.core.tables import DELAYS, EMPTY, LATE_DELAYS, Table, delay_edges

CELLS = DELAYS + LATE_DELAYS + 1
HORIZON, CORRECTIONS = 10 * DAY, 20 * DAY


def counted(delays, verdict=PASS, label=1, horizon=HORIZON, corrections=CORRECTIONS):
    """Return a table that holds nothing but these delays (ms) of one class and verdict."""
    out = np.zeros((2, 6, CELLS), np.int64)
    cell = np.searchsorted(delay_edges(horizon, corrections), delays, side="right") - 1
    out[label, verdict] = np.bincount(cell, minlength=CELLS)
    return Table(EMPTY.cells, EMPTY.totals, None, out)


def both(a, b):
    """Return the table with the delays of two."""
    return Table(EMPTY.cells, EMPTY.totals, None, a.delays + b.delays)


def some_days(rng, mean, ages, per_day=400, **kind):
    """Return (table, age) of days with exponential delays, of which those are seen that are over by now."""
    found = []
    for age in ages:
        delays = rng.exponential(mean, per_day)
        row_ages = age + rng.uniform(0, DAY, per_day)
        found.append((counted(delays[delays <= row_ages], **kind), age))
    return found


def test_vector(vector):
    """The product limit is that of the shared vector: each row is a day of its own, a delay of d shows at age d."""
    inputs, expected = vector("right_trunc")
    counts = np.eye(inputs["horizon"] + 1, dtype=np.int64)[inputs["delays"]]
    found = curve(counts, np.array(inputs["ages"]) + 1, np.arange(inputs["horizon"] + 2))
    np.testing.assert_allclose(found.f[1:], expected["F"], atol=1e-9)


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(sum))
def test_of_old_days_it_is_the_share_that_came(counts):
    """When every day is old enough, F is the empirical distribution function, and its error the binomial one."""
    found = curve(np.array([counts]), np.array([4]), np.arange(5))
    f = np.append(0, np.cumsum(counts)) / sum(counts)
    np.testing.assert_allclose(found.f, f, atol=1e-12)
    np.testing.assert_allclose(found.se, np.sqrt(f * (1 - f) / sum(counts)), atol=1e-12)
    assert found.n.tolist() == np.cumsum(counts).tolist()


def test_open_days_are_not_short_delays():
    """Delays of open days, which can only have shown the short ones, do not pull F up; its error is as large as claimed."""
    rng, edges = np.random.default_rng(1), delay_edges(HORIZON, CORRECTIONS)[: DELAYS + 1]
    truth = np.expm1(-edges / (5 * DAY)) / np.expm1(-HORIZON / (5 * DAY))
    at = np.searchsorted(edges, [1 * DAY, 3 * DAY, 7 * DAY])
    z, naive = [], []
    for _ in range(200):
        days = some_days(rng, 5 * DAY, np.arange(20) * DAY, per_day=50)
        counts = np.stack([t.delays[1, PASS, :DELAYS] for t, _ in days])
        found = curve(counts, np.array([age for _, age in days]), edges)
        z.append((found.f - truth)[at] / found.se[at])
        naive.append(np.cumsum(counts.sum(axis=0))[at - 1] / counts.sum() - truth[at])
    assert (np.abs(np.mean(z, axis=0)) < 3 / math.sqrt(200)).all()
    assert (np.abs(np.std(z, axis=0) - 1) < 0.15).all()
    assert (np.mean(naive, axis=0) > 0.03).all()


def test_a_day_is_at_risk_when_its_youngest_row_is():
    """A day that ended less than a cell's upper edge ago is left out of it, though its oldest rows could have shown it."""
    edges = np.array([0, DAY, 2 * DAY])
    found = curve(np.array([[4, 4], [90, 9]]), np.array([2 * DAY, 2 * DAY - 1]), edges)
    assert found.f.tolist() == [0.0, 0.5, 1.0]
    assert found.n.tolist() == [94, 8]


STEPS = Curve(np.array([0.0, HOUR, 2 * DAY]), np.array([0.0, 0.4, 1.0]), np.array([0.0, 0.1, 0.0]), np.array([9, 9]))


@pytest.mark.parametrize("age", [0, 1, HOUR // 2, HOUR, 20 * HOUR, DAY, 47 * HOUR, 2 * DAY, 9 * DAY, -HOUR, -23 * HOUR, 1 - DAY])
def test_the_rows_of_a_day_have_ages_of_a_day(age):
    """Completeness is averaged over the rows of the day at their exact ages; of today only the rows that are there count."""
    row_ages = np.linspace(max(age, 0), age + DAY, 200_001)
    f, se = (np.interp(row_ages, STEPS.edges, values).mean() for values in (STEPS.f, STEPS.se))
    assert STEPS.at(age) == pytest.approx((f, se / f), rel=1e-3)


def test_nothing_can_be_complete_before_a_row_is():
    """A day that begins now is not complete at all."""
    assert STEPS.at(-DAY) == (0.0, 0.0)


def test_curves_by_class_and_verdict():
    """Each class and verdict has its own curve where it has enough labels; others were never seen or are too few to say."""
    rng, ages = np.random.default_rng(2), np.arange(20) * DAY
    fast = some_days(rng, DAY, ages, verdict=FLAG)
    slow = some_days(rng, 6 * DAY, ages, verdict=PASS)
    few = [(counted([], label=0), a) for a in ages[:-1]] + [(counted([HOUR] * (ENOUGH - 1), label=0), ages[-1])]
    days = [(both(both(a, b), c), age) for (a, age), (b, _), (c, _) in zip(fast, slow, few, strict=True)]
    curves = delay_curves(days, HORIZON, CORRECTIONS)
    found = curves.at(DAY)
    row_ages = DAY + np.linspace(0, DAY, 1_001)
    for verdict, mean in ((FLAG, DAY), (PASS, 6 * DAY)):
        truth = (np.expm1(-row_ages / mean) / np.expm1(-HORIZON / mean)).mean()
        assert found.f[1, verdict] == pytest.approx(truth, abs=4 * found.f[1, verdict] * found.sd[1, verdict])
        assert 0.003 < found.sd[1, verdict] < 0.05
    assert found.f[0, PASS] == 0.0
    assert np.isnan(found.f[1, [REVIEW, ABSTAIN, NONE]]).all()
    assert np.isnan(found.f[0, FLAG])


def test_a_thin_verdict_takes_the_curve_of_its_role():
    """Reviewed rows with too few labels share the curve of all flagged rows, and its error, with those that borrow it, too."""
    rng, ages = np.random.default_rng(3), np.arange(20) * DAY
    flagged, passed = some_days(rng, DAY, ages, verdict=FLAG), some_days(rng, 6 * DAY, ages, verdict=PASS)
    days = [(both(a, b), age) for (a, age), (b, _) in zip(flagged, passed, strict=True)]
    days[-1] = (both(days[-1][0], counted([DAY] * 5, verdict=REVIEW)), ages[-1])
    found = delay_curves(days, HORIZON, CORRECTIONS).at(0)
    assert found.f[1, REVIEW] == pytest.approx(found.f[1, FLAG], abs=0.02)
    assert found.sd[1, REVIEW] < 0.05
    assert found.curve[1, REVIEW] not in (found.curve[1, FLAG], found.curve[1, PASS])


def test_what_is_borrowed_from_the_class_is_as_uncertain_as_large():
    """Passed rows with too few labels take the curve of the class, and all of its correction as the standard error."""
    days = some_days(np.random.default_rng(4), DAY, np.arange(20) * DAY, verdict=FLAG)
    days[-1] = (both(days[-1][0], counted([DAY] * 5, verdict=PASS)), days[-1][1])
    found = delay_curves(days, HORIZON, CORRECTIONS).at(0)
    assert found.f[1, PASS] == pytest.approx(found.f[1, FLAG], abs=0.02)
    assert found.sd[1, PASS] > -math.log(found.f[1, PASS]) > 10 * found.sd[1, FLAG]


def test_no_mature_day_no_curve():
    """While no day is old enough for the horizon nothing is known about completeness, however many labels there are."""
    days = some_days(np.random.default_rng(5), DAY, np.arange(10) * DAY)
    assert delay_curves(days, HORIZON, CORRECTIONS).at(5 * DAY).f[1, PASS] == 0.0
    assert np.isnan(delay_curves([], HORIZON, CORRECTIONS).at(0).f).all()
    assert np.isnan(delay_curves([(EMPTY, 0)], HORIZON, CORRECTIONS).at(0).f).all()


@pytest.mark.parametrize(("mean", "unit"), [(8 * HOUR, HOUR), (2 * DAY, DAY)])
def test_suggested_horizon(mean, unit):
    """The horizon that has .98 of the labels in, in hours below two days and in days above; few come after the configured."""
    days = some_days(np.random.default_rng(6), mean, np.arange(60) * DAY)
    found = suggested_horizon(days, HORIZON, CORRECTIONS)
    truth = -mean * math.log(1 - 0.98)
    assert (found.horizon % unit, found.reason) == (0, "")
    assert found.horizon == pytest.approx(math.ceil(truth / unit) * unit, rel=0.15)
    assert found.late == pytest.approx(math.exp(-HORIZON / mean), abs=0.003)
    assert found.n > 15_000


def test_labels_after_the_horizon():
    """Labels later than the horizon are found though no day has shown them all yet, and a longer horizon is suggested."""
    mean = 6 * DAY
    days = some_days(np.random.default_rng(7), mean, np.arange(32) * DAY)
    found = suggested_horizon(days, HORIZON, CORRECTIONS)
    all_in = -math.expm1(-(HORIZON + CORRECTIONS) / mean)
    assert found.late == pytest.approx(1 + math.expm1(-HORIZON / mean) / all_in, abs=0.02)
    assert found.horizon == pytest.approx(-mean * math.log(1 - 0.98 * all_in), abs=3 * DAY)


def test_suggested_by_class_and_verdict():
    """A class and verdict has its own horizon; the slow ones hide behind the fast ones over all."""
    rng, ages = np.random.default_rng(8), np.arange(40) * DAY
    fast, slow = some_days(rng, HOUR, ages, verdict=FLAG), some_days(rng, 2 * DAY, ages, per_day=60, label=0)
    days = [(both(a, b), age) for (a, age), (b, _) in zip(fast, slow, strict=True)]
    assert suggested_horizon(days, HORIZON, CORRECTIONS, 1, FLAG).horizon <= 5 * HOUR
    assert suggested_horizon(days, HORIZON, CORRECTIONS, 0, PASS).horizon == pytest.approx(8 * DAY, abs=DAY)
    assert HORIZON > suggested_horizon(days, HORIZON, CORRECTIONS).horizon > DAY
    assert suggested_horizon(days, HORIZON, CORRECTIONS, 0, FLAG).reason == "no_labels"


def test_labels_at_once():
    """Labels that come with their prediction need the shortest horizon there is, also without a corrections period."""
    days = [(counted([0] * 60, corrections=0), HORIZON)]
    assert suggested_horizon(days, HORIZON, 0).horizon == HOUR


@pytest.mark.parametrize(
    ("labels", "age", "reason"),
    [(50, HORIZON, ""), (49, HORIZON, "low_n"), (900, HORIZON - 1, "no_mature_days"), (0, HORIZON, "no_labels")],
)
def test_too_little_to_suggest(labels, age, reason):
    """Under 50 labels of mature days suggest nothing."""
    found = suggested_horizon([(counted([HOUR] * labels), age)], HORIZON, CORRECTIONS)
    assert found.reason == reason
    assert (found.horizon is None, found.late is None) == (bool(reason), bool(reason))
