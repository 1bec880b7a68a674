"""What to expect on days like those of a window: against brute force, simulation and what must hold of any days."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.core.days import Key
from monitor.core.intervals import LEVEL, bartlett, quantile, student
from monitor.core.metrics import METRICS, measure, spread
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.metrics.daily import (
    EXPECTED,
    MIN_DAYS,
    NOTHING,
    RATIOS,
    Days,
    day_ranks,
    day_sums,
    days_of,
    variances,
)
from monitor.core.metrics.ranking import roc_auc
from monitor.core.readings import LabelRule, mature, scored
from monitor.core.tables import total

KEY = Key("m", "1", "all", 20_000)
UNKNOWN = (LabelRule("unknown"),) * 6


def _day(table, rng, n=300, shock=0.0, **columns):
    score = rng.beta(1, 2, n)
    odds = score / (1 - score) * math.exp(shock)
    return table(score, rng.random(n) < odds / (1 + odds), 0.4, **columns)


@pytest.fixture(scope="module")
def window(table):
    """Return 28 days with shocks, and their reading."""
    rng = np.random.default_rng(3)
    tables = [_day(table, rng, int(rng.integers(100, 500)), rng.normal(0, 0.5)) for _ in range(28)]
    return [mature(t, UNKNOWN) for t in tables], mature(total(tables), UNKNOWN)


def _by_name(reading, days, names=EXPECTED):
    edges = calibration_edges(reading)
    return {e.metric: e for e in measure(reading, KEY, "28d", edges, reading, names, days)}


def test_sums_of_days_are_those_of_the_window(window):
    """The sums of the days add up to those of all rows, and their ratios are the metrics."""
    parts, whole = window
    days = days_of(parts)
    rounded = np.arange(15) == 2  # p (1 - p) is read off the mean scores of cells
    assert days.sums.sum(axis=0)[~rounded] == pytest.approx(day_sums(whole)[~rounded], rel=1e-12)
    assert days.sums.sum(axis=0)[rounded] == pytest.approx(day_sums(whole)[rounded], rel=1e-5)
    assert days.ranks.sum(axis=0) == pytest.approx(day_ranks(whole))
    found = _by_name(whole, None)
    for name, ratio in RATIOS.items():
        if name not in ("roc_auc", "majority_share", "offset", "balanced_accuracy"):
            sums = day_sums(whole)
            assert (sums @ ratio.above) / (sums @ ratio.below) == pytest.approx(found[name].value, rel=1e-12), name


def test_days_without_rows_change_nothing(window):
    """A day on which a slice had no rows is no day of it."""
    parts, _ = window
    days = days_of(parts[:10])
    padded = Days(np.vstack((days.sums, NOTHING, NOTHING)), np.concatenate((days.ranks, np.zeros((2, *days.ranks.shape[1:])))))
    assert variances(padded)["recall"] == pytest.approx(variances(days)["recall"])
    assert variances(padded)["roc_auc"] == pytest.approx(variances(days)["roc_auc"])


@pytest.mark.parametrize("name", ["bias", "recall", "f1", "brier", "roc_auc", "balanced_accuracy", "high_confidence_error_share"])
def test_variance_is_that_of_leaving_days_out(window, name):
    """The linearised residuals of a day are what leaving it out changes, to a few per cent of the variance."""
    parts, whole = window
    metric = roc_auc if name == "roc_auc" else METRICS[name].function
    without = [replace(whole, **_less(whole, part)) for part in parts]
    change = np.array([metric(whole).value - metric(r).value for r in without]) * 27 / 28
    assert variances(days_of(parts))[name][0] == pytest.approx(float(bartlett(change)) * 28 / 27, rel=0.08)


def test_design_effect_of_the_offset(table):
    """It is what days add to the fits themselves, however far off they are: the fits of many windows vary as it says."""
    rng, fits, effects = np.random.default_rng(6), [], []
    for _ in range(40):
        tables = [_day(table, rng, 300, 0.8 + rng.normal(0, 0.4)) for _ in range(28)]
        reading = mature(total(tables), UNKNOWN)
        found = _by_name(reading, days_of([mature(t, UNKNOWN) for t in tables]), ("offset",))["offset"]
        fits.append(
            (found.value, ((found.high - found.low) / 2 / quantile(LEVEL)) ** 2, found.expect_low < 0.8 < found.expect_high)
        )
        effects.append(found.design_effect)
    values, own, inside = np.array(fits).T
    assert np.mean(effects) == pytest.approx(values.var(ddof=1) / own.mean(), rel=0.4)
    assert inside.mean() >= 0.85


def _less(whole, part):
    """Return the cells of a reading without those of a part of it."""
    place = {key: i for i, key in enumerate(zip(whole.bin.tolist(), whole.verdict.tolist(), strict=True))}
    at = [place[key] for key in zip(part.bin.tolist(), part.verdict.tolist(), strict=True)]
    out = {name: getattr(whole, name).copy() for name in ("n", "neg", "pos")}
    for name, values in out.items():
        values[at] -= getattr(part, name)
    score = whole.n * whole.score
    score[at] -= part.n * part.score
    out["score"] = np.where(out["n"] > 0, score / np.maximum(out["n"], 1), 0.5)
    out["losses"] = tuple(a - b for a, b in zip(whole.losses, part.losses, strict=True))
    return out


@pytest.mark.parametrize(
    ("sd", "rho", "iid", "expect"), [(0, 0, (0.92, 1), 0.93), (0.2, 0, (0, 0.7), 0.93), (0.2, 0.3, (0, 0.6), 0.86)]
)
def test_intervals_cover_their_questions(table, sd, rho, iid, expect):
    """Of the bias over 28 days of 900 rows: [low, high] is about the days that were, the other interval about any such days."""
    rng = np.random.default_rng(5)
    day = mature(table(rng.beta(1, 2, 900), np.zeros(900)), UNKNOWN)
    runs = 300
    shock = rng.normal(0, 1, (runs, 28))
    for d in range(1, 28):
        shock[:, d] = rho * shock[:, d - 1] + math.sqrt(1 - rho * rho) * shock[:, d]
    odds = day.score / (1 - day.score) * np.exp(sd * shock)[:, :, None]
    truth = odds / (1 + odds)
    pos = rng.binomial(day.n.astype(int), truth).astype(float)
    # What days like these have on average, from many of them.
    often = day.score / (1 - day.score) * np.exp(sd * rng.normal(0, 1, (20_000, 1)))
    lasting = float((day.n @ (day.score - (often / (1 + often)).mean(axis=0))) / day.n.sum())
    happened = ((day.score - truth.mean(axis=1)) @ day.n) / day.n.sum()
    inside = np.zeros((runs, 3), bool)
    for i in range(runs):
        days = Days(np.array([day_sums(replace(day, pos=y, neg=day.n - y)) for y in pos[i]]))
        y = pos[i].sum(axis=0)
        whole = replace(day, n=28 * day.n, pos=y, neg=28 * day.n - y)
        (e,) = measure(whole, KEY, "28d", names=("bias",), days=days)
        inside[i] = e.low <= happened[i] <= e.high, e.low <= lasting <= e.high, e.expect_low <= lasting <= e.expect_high
    realised, naive, persistent = inside.mean(axis=0)
    assert realised >= 0.92
    assert iid[0] <= naive <= iid[1]
    assert persistent >= expect


def test_the_formula(window):
    """A mean has t sd around it and a ball that grows like it; the design effect is the ratio of the variances."""
    parts, whole = window
    days = days_of(parts)
    found = _by_name(whole, days)
    variance, k = variances(days)["bias"]
    bias, ece = found["bias"], found["ece"]
    own = ((bias.high - bias.low) / 2 / quantile(LEVEL)) ** 2
    assert k == 28
    assert bias.design_effect == pytest.approx(variance / own)
    assert bias.design_effect > 2
    assert bias.expect_high - bias.value == pytest.approx(student(27) * math.sqrt(variance))
    assert ece.design_effect == pytest.approx(bias.design_effect)
    ball = student(27, 0.99) / quantile(0.99) * math.sqrt(bias.design_effect) * (ece.high - ece.value)
    assert (ece.expect_low, ece.expect_high) == pytest.approx((max(0.0, ece.value - ball), ece.value + ball))
    assert {name for name, e in found.items() if e.design_effect is None} == set()


EVENTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.sampled_from([-1, 0, 1]), st.integers(0, 5)), max_size=12
)


@given(st.lists(EVENTS, min_size=1, max_size=10), st.booleans(), st.sampled_from([{}, dict.fromkeys(RATIOS, 1e-3)]))
@example([[(0.0, 0, 0), (1.0, 0, 0)]], False, dict.fromkeys(RATIOS, 1e-3))  # an interval of the Brier score that goes beyond 1
def test_expected_is_never_narrower(table, events, clusters, between):
    """Whatever the days, what to expect encloses what happened; it is there or not with its design effect, and finite."""
    tables = []
    for day in events:
        scores, outcomes, verdicts = np.array(day, float).reshape(-1, 3).T
        columns = {"cluster": np.arange(len(scores)) + 1} if clusters else {}
        tables.append(table(scores, outcomes.astype(np.int8), verdicts=verdicts.astype(np.uint8), **columns))
    for read in (scored, lambda t: mature(t, UNKNOWN)):
        days = replace(days_of([read(t) for t in tables]), spread=between)
        for e in _by_name(read(total(tables)), days).values():
            ends = (e.expect_low, e.expect_high, e.design_effect)
            assert len({x is None for x in ends}) == 1
            if None not in ends:
                assert all(math.isfinite(x) and type(x) is float for x in ends)
                assert e.design_effect >= 1
                assert e.expect_low <= e.low + 1e-9 <= e.high + 1e-9 <= e.expect_high + 2e-9


def test_without_days_nothing_is_expected(window):
    """No days, too few of them, or days without ranks leave what cannot be told absent."""
    parts, whole = window
    assert all(e.design_effect is e.expect_low is e.expect_high is None for e in _by_name(whole, None).values())
    few = days_of(parts[: MIN_DAYS - 1])
    assert all(e.design_effect is None for e in _by_name(whole, few).values())
    unranked = _by_name(whole, replace(days_of(parts), ranks=None))
    assert {name for name, e in unranked.items() if e.design_effect is None} == {"roc_auc"}
    none = _by_name(scored(total([])), days_of([]))
    assert all(e.design_effect is None for e in none.values())


def test_few_days_take_the_spread_of_others(table, window):
    """A window of few days differs as the days of the baseline do: as much for a day, whatever its rows."""
    parts, whole = window
    promised = measure(whole, KEY, "", calibration_edges(whole), whole, EXPECTED, days_of(parts))
    between = spread(promised, len(parts))
    assert all(x >= 0 for x in between.values())
    day = _day(table, np.random.default_rng(8), 20_000)
    reading = mature(day, UNKNOWN)
    found = _by_name(reading, Days(NOTHING[None], None, between))
    bias = found["bias"]
    own = ((bias.high - bias.low) / 2 / quantile(LEVEL)) ** 2
    assert bias.design_effect == pytest.approx(1 + between["bias"] / own)
    assert bias.expect_high - bias.expect_low == pytest.approx(2 * quantile(LEVEL) * math.sqrt(own + between["bias"]))
    same = next(e for e in promised if e.metric == "bias")
    own = ((same.high - same.low) / 2 / quantile(LEVEL)) ** 2
    assert between["bias"] == pytest.approx((same.design_effect - 1) * own * 28)
    assert found["ece"].design_effect == pytest.approx(bias.design_effect)
    assert found["roc_auc"].design_effect > 1
