"""Days drawn from a population, changes of it, and when they are found."""

import numpy as np
import pytest
from scipy.stats import norm

from monitor.core import power
from monitor.core.detectors import DETECTORS, log_threshold, nulls
from monitor.core.events import FLAG, PASS, VERDICTS
from monitor.core.power import Watch, watched
from monitor.core.readings import LabelRule
from monitor.core.tables import LABEL, ROW, tables, total
from rows import at, table_of

RULES = (LabelRule("unknown"),) * len(VERDICTS)
GAUSS = power.normal(0.04, 2.0, 0.2)
LIMITS = dict.fromkeys(DETECTORS, log_threshold(len(DETECTORS), 1.0))


def logit(p):
    """Return the log odds."""
    return np.log(p / (1 - p))


def days_of(population, rows, days, rng, sd=0.0, slices=1):
    """Return day tables."""
    return [power.day([population] * slices, rows, x, 0.0, rng) for x in power.wander(days, sd, 0.3, rng)]


def expected(days):
    """Return what detectors expect after a baseline of days."""
    return nulls({name: {i: d[name] for i, d in enumerate(days)} for name in days[0]}, at(0.2), RULES)


def test_normal_scores():
    """Prevalence, recall and flagged share of normal scores are those of the normal distribution."""
    cut = 1 + (logit(0.2) - logit(0.04)) / 2
    recall = norm.sf(cut - 2)
    assert GAUSS.prevalence == pytest.approx(0.04, abs=1e-4)
    assert GAUSS.recall == pytest.approx(recall, abs=2e-3)
    assert GAUSS.flagged_share == pytest.approx(0.04 * recall + 0.96 * norm.sf(cut), abs=5e-4)


@pytest.mark.parametrize("p", [GAUSS, power.calibrated(np.random.default_rng(0).beta(2, 3, 20_000), 0.5)], ids=["gauss", "beta"])
def test_changes(p):
    """Each change moves what it is named after by what it says, and no row is lost."""
    assert power.missed(p, 0.1).recall == pytest.approx(p.recall - 0.1)
    assert power.missed(p, 0.1).prevalence == pytest.approx(p.prevalence)
    more = power.more_positives(p, 2.0)
    assert (more.prevalence, more.recall) == pytest.approx((2 * p.prevalence, p.recall))
    assert power.more_flagged(p, 1.5).flagged_share == pytest.approx(1.5 * p.flagged_share)
    assert logit(power.tilted(p, 0.1).flagged_share) - logit(p.flagged_share) == pytest.approx(0.1, abs=0.02)
    q, shifted = p.pos / (p.pos + p.neg), power.shifted(p, 0.3, 0.7)
    c = logit(p.prevalence)
    np.testing.assert_allclose(logit(shifted.pos / (shifted.pos + shifted.neg)), c + 0.3 + 0.7 * (logit(q) - c))
    changed = [power.missed(p, 0.1), more, power.more_flagged(p, 1.5), power.tilted(p, 0.1), shifted]
    np.testing.assert_allclose([x.neg.sum() + x.pos.sum() for x in changed], 1.0)
    assert all((x.neg >= 0).all() and (x.pos >= 0).all() for x in changed)


def test_tables_are_those_of_rows():
    """A drawn table is what counting its rows gives."""
    rng = np.random.default_rng(1)
    counts = power.draw(GAUSS, 3_000, 1, rng)[0]
    cell = np.repeat(np.tile(np.arange(len(GAUSS.bin)), 2), counts.ravel())
    rows, labels = np.zeros(3_000, ROW), np.zeros(3_000, LABEL)
    rows["score"], rows["verdict"] = GAUSS.score[cell], np.where(GAUSS.flagged[cell], FLAG, PASS)
    labels["outcome"] = np.repeat((0, 1), counts.sum(axis=1))
    want, found = tables(rows, labels, np.zeros((1, 1), np.int32), 1)[0], power.table_of(GAUSS, counts)
    for name in want.cells.dtype.names:
        np.testing.assert_allclose(found.cells[name], want.cells[name], err_msg=name)
    np.testing.assert_allclose(found.totals, want.totals)


def test_a_baseline_gives_back_its_population():
    """Of many rows the observed population is the one they were drawn from; rows without labels count by their score."""
    rng = np.random.default_rng(2)
    table = power.table_of(GAUSS, power.draw(power.shifted(GAUSS, 0.4), 2_000_000, 1, rng)[0])
    found, want = power.observed(table, 0.2), power.shifted(GAUSS, 0.4)
    got = (found.prevalence, found.recall, found.flagged_share)
    assert got == pytest.approx((want.prevalence, want.recall, want.flagged_share), rel=0.01)
    cells = table.cells.copy()
    cells["n_none"], cells["p_none"] = cells["n_neg"] + cells["n_pos"], cells["p_lab"]
    cells["n_neg"] = cells["n_pos"] = cells["p_lab"] = 0
    assert power.observed(type(table)(cells, table.totals), 0.2).prevalence == pytest.approx(0.04, rel=0.01)


def test_days():
    """Slices add up to `all`; day effects have the spread and the memory that were asked for, and move the outcomes."""
    rng = np.random.default_rng(3)
    day = power.day([GAUSS] * 3, 900, 0.0, 0.0, rng)
    whole = total([table for name, table in day.items() if name != "all"])
    assert len(day) == 4
    for name in ("bin", "verdict", "n_neg", "n_pos"):
        np.testing.assert_array_equal(whole.cells[name], day["all"].cells[name])
    effects = power.wander(20_000, 0.64, 0.5, rng)
    assert effects.std() == pytest.approx(0.64, rel=0.03)
    assert np.corrcoef(effects[1:], effects[:-1])[0, 1] == pytest.approx(0.5, abs=0.03)
    bad = power.day([GAUSS], 1_000_000, 1.0, 0.0, rng)["all"]
    assert bad.totals[2, 0] / bad.n == pytest.approx(power.shifted(GAUSS, 1.0).prevalence, rel=0.02)


def test_a_watch_fires_for_the_slice_and_starts_anew():
    """What is off in one of four slices fires for it, once, and resolves after its days are right again."""
    rng = np.random.default_rng(4)
    watch = Watch("calibration", expected(days_of(GAUSS, 8_000, 60, rng, slices=4)), RULES, LIMITS["calibration"])
    seen = []
    for i in range(90):
        populations = [power.shifted(GAUSS, 1.0) if 10 <= i < 20 else GAUSS, GAUSS, GAUSS, GAUSS]
        watch = watched(watch, i, power.day(populations, 8_000, 0.0, 0.0, rng))
        seen.append(watch.firing)
    fired = [i for i, part in enumerate(seen) if part]
    assert set(seen) == {"", "slice=0"}
    assert 12 <= fired[0] <= 20
    assert fired == list(range(fired[0], fired[-1] + 1))
    assert 19 <= fired[-1] <= 48


def test_the_plan():
    """Larger changes and more rows are found sooner, the wait for labels counts, and the same seed says the same."""
    rng = np.random.default_rng(5)
    days = days_of(GAUSS, 5_000, 60, rng, 0.2)
    population, promised = power.observed(total([d["all"] for d in days]), 0.2), expected(days)

    def found(per_day, horizon=60.0, runs=3):
        return power.plan(population, per_day, horizon, promised, RULES, LIMITS, np.random.default_rng(0), runs)

    many, few = found(5_000), found(200)
    assert many == found(5_000)
    days = {s.change: s.days for s in many.sights}
    assert list(days) == [change.text for change in power.CHANGES]
    assert many.first == 61
    assert 61 <= days["recall -20 points"] < days["recall -10 points"] <= 91
    assert 61 <= days["bias +0.5 logit"] < days["bias +0.3 logit"]
    assert days["flagged volume x 2"] <= 3
    assert all(s.looks is None or s.days > days[s.change] for s in few.sights)
    assert power.lines(many)[0] == "first day with an outcome number: day 61, 60 days after the first one has ended"


def test_what_would_help():
    """A change that is found late only for its horizon needs a shorter one; of too few rows nothing makes enough."""
    rng = np.random.default_rng(6)
    days = days_of(GAUSS, 1_000, 60, rng)
    population, promised = power.observed(total([d["all"] for d in days]), 0.2), expected(days)
    late = power.plan(population, 20_000, 90.0, promised, RULES, LIMITS, np.random.default_rng(0), 3)
    by = {s.change: s for s in late.sights}
    assert by["bias +0.5 logit"].helps == (power.HORIZON, power.AUDIT)
    assert by["flagged volume x 2"].helps == ()
    none = power.plan(population, 20, 1.0, promised, RULES, LIMITS, np.random.default_rng(0), 3)
    assert power.lines(none)[1] == (
        "recall -10 points: not within a quarter of mature days; none of a shorter horizon for positives, an audit sample, "
        "pooled slices would help"
    )


def test_what_is_not_looked_for():
    """Without threshold nothing of verdicts is looked for, without promise nothing of outcomes, and no rule that is off."""
    days = days_of(GAUSS, 500, 20, np.random.default_rng(7))
    of = {"all": {i: d["all"] for i, d in enumerate(days)}}
    population = power.observed(total(list(of["all"].values())), 1.0)

    def reasons(threshold, outcomes, limits):
        promised = nulls(of, at(threshold), RULES, outcomes)
        plan = power.plan(population, 500, 1.0, promised, RULES, limits, np.random.default_rng(0), 1)
        return {s.detector: s.reason for s in plan.sights}

    assert reasons(None, False, LIMITS) == {
        "recall": "no_baseline",
        "calibration": "no_baseline",
        "flagged_share": "no_threshold",
    }
    assert reasons(0.2, False, {}) == {"recall": "no_baseline", "calibration": "no_baseline", "flagged_share": "rule_off"}


@pytest.mark.parametrize(
    ("threshold", "rate", "kept"),
    [(0.0, 0.04, {"calibration"}), (2.0, 0.04, {"calibration"}), (0.2, 0.0, set())],
    ids=["all flagged", "none flagged", "no positives"],
)
def test_what_cannot_happen_is_left_out(threshold, rate, kept):
    """Where all or none is flagged, or no row can be positive, changes of that are not looked for; all others are."""
    score = np.full(4_000, rate)
    outcome = np.arange(4_000) % 25 < 25 * rate
    days = [{"all": table_of(score, outcome, threshold)}] * 20
    population = power.observed(total([d["all"] for d in days]), threshold)
    promised = nulls({"all": dict(enumerate(d["all"] for d in days))}, at(min(threshold, 1.0)), RULES)
    plan = power.plan(population, 400, 1.0, promised, RULES, LIMITS, np.random.default_rng(0), 1)
    assert {s.detector for s in plan.sights if not s.reason} == kept


def test_more_rows_than_cells_can_count():
    """With two scores and 10**9 rows a day a change is found after as many days as 28 take to show it, not at once."""
    score = np.repeat((0.1, 0.9), 2_000)
    table = table_of(score, np.random.default_rng(8).random(4_000) < score, 0.5)
    promised = nulls({"all": dict.fromkeys(range(20), table)}, at(0.5), RULES)
    plan = power.plan(power.observed(table, 0.5), 10**9, 1.0, promised, RULES, LIMITS, np.random.default_rng(0), 1)
    assert plan.per_day == 10**9
    assert all(2 < s.looks <= 28 for s in plan.sights)
