"""Evidence over days: e-values that are e-values, false alarms and delays, and what a look leaves alone."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from monitor.core.detectors import (
    DETECTORS,
    EFFECTS,
    GRID,
    NO_EVIDENCE,
    OF_PROBABILITIES,
    Null,
    Nulls,
    binned_evidence,
    effect,
    from_dict,
    log_evidence,
    log_threshold,
    look,
    nulls,
    shares,
    to_dict,
)
from monitor.core.events import FLAG, NONE, PASS
from monitor.core.policy import recalibrated
from monitor.core.readings import LabelRule, scored
from monitor.core.reasons import REASONS
from monitor.core.tables import BINS, CELL, EDGES, EMPTY, Table, grid_bin, total
from rows import at

RULES = (LabelRule("unknown"),) * 6
A = math.log(2_000)
MATURE = {name for name, d in DETECTORS.items() if d.basis == "mature"}
DECIDED = {"recall", "precision", "fpr", "flagged_share"}


def _expit(z):
    return 1 / (1 + np.exp(-z))


class World:
    """Draws day tables of scores of one distribution, of which logit P(positive) is slope * logit(score) + offset."""

    def __init__(self, scores, threshold):
        count = np.bincount(grid_bin(scores), minlength=BINS)
        self.bin = np.flatnonzero(count)
        self.p = np.bincount(grid_bin(scores), scores, BINS)[self.bin] / count[self.bin]
        self.share, self.logit = count[self.bin] / len(scores), np.log(self.p / (1 - self.p))
        self.threshold = threshold

    def day(self, rng, n, offset=0.0, slope=1.0, tilt=0.0):
        share = self.share * np.exp(tilt * self.logit)
        n_bin = rng.multinomial(n, share / share.sum())
        pos = rng.binomial(n_bin, _expit(slope * self.logit + offset))
        cells = np.zeros(len(self.bin), CELL)
        cells["bin"], cells["p_lab"] = self.bin, n_bin * self.p
        cells["verdict"] = np.where(EDGES[self.bin] >= self.threshold, FLAG, PASS)
        cells["n_neg"], cells["n_pos"] = n_bin - pos, pos
        totals = np.zeros((3, 5))
        totals[1:, 0] = (n_bin - pos).sum(), pos.sum()
        return Table(cells[n_bin > 0], totals)

    def days(self, rng, days, n, offsets=None):
        return {d: self.day(rng, n, o) for d, o in enumerate(np.zeros(days) if offsets is None else offsets)}


def _flights():
    return World(_expit(np.random.default_rng(1).normal(-1.5, 0.9, 50_000)), 0.25)


def _fraud():
    return World(np.random.default_rng(1).beta(0.3, 9, 50_000), 0.25)


def _shocks(rng, days, sd, rho):
    return sd * np.array(list(itertools.accumulate(rng.normal(size=days), lambda x, e: rho * x + math.sqrt(1 - rho * rho) * e)))


def _fold(name, days, expected, log_a=A):
    """Return the evidence after all days, and the first look at which it reached `log_a`."""
    evidence, first = None, None
    for day, table in enumerate(days):
        evidence = look(name, evidence, day, table if isinstance(table, dict) else {"all": table}, expected, RULES, log_a)
        if first is None and log_evidence(evidence) >= log_a:
            first = day + 1
    return evidence, first


def _fires(name, value):
    limit, _, side = EFFECTS[name]
    return {"both": abs(value), "up": value, "down": -value}[side] > limit


def _only(name, expected, **parts):
    """Return nulls of one detector with these slices."""
    return Nulls({name: parts or expected.by[name]}, {}, {})


@pytest.mark.parametrize(("tolerance", "expected"), [(0.0, "log_lr"), (0.1, "log_lr_band_binmean")])
def test_vector_binned(vector, tolerance, expected):
    """The log likelihood ratios of the shared vector, without and with the band."""
    given, wanted = vector("evalue_binned")
    n, p, y = (np.array(given[name]) for name in ("n", "sum_p", "sum_y"))
    found = binned_evidence(n, np.log(p / (n - p)), y, 0.0, np.array(given["grid"]), tolerance)
    assert found == pytest.approx(wanted[expected], abs=1e-6)


def test_vector_recall(vector, table):
    """The log likelihood ratios and the first e-value of the shared vector; a later look is (1 + SR) e."""
    given, wanted = vector("evalue_recall")
    q, r, hits, m = np.array(given["grid"]), given["r0"], given["hits"], given["positives"]
    gains = np.stack((np.log(q / r), np.log((1 - q) / (1 - r))))
    expected = _only("recall", None, all=Null(r, 0.0, gains=gains, points=3))
    day = {"all": table(np.where(np.arange(m) < hits, 0.9, 0.1), np.ones(m), 0.5)}
    first = look("recall", None, 0, day, expected, RULES, 20.0)
    assert first.log["all"] == pytest.approx(wanted["log_lr"], abs=1e-6)
    assert log_evidence(first) == pytest.approx(math.log(wanted["e_mixture"]), abs=1e-6)
    later = look("recall", replace(first, log={"all": np.log([3.0, 3.0, 3.0])}), 1, day, expected, RULES, 20.0)
    assert later.log["all"] == pytest.approx(np.log(4) + np.array(wanted["log_lr"]), abs=1e-6)


@pytest.mark.parametrize("name", ["recall", "precision", "fpr", "high_confidence_errors", "prevalence", "flagged_share"])
@pytest.mark.parametrize("rate", [0.004, 0.3, 0.97])
def test_rates_are_e_values(name, rate):
    """The mean e-value of a day is 1 at an edge of the band, at most 1 within it, and above 1 somewhere beyond it."""
    null = DETECTORS[name].arm(Null(rate, 0.0), 0.1)
    k, z = np.arange(41), np.log(rate / (1 - rate))
    e = np.exp(np.outer(null.gains[0], k) + np.outer(null.gains[1], 40 - k))

    def means(offset):
        return e @ stats.binom.pmf(k, 40, _expit(z + offset))

    assert max(means(-0.1).max(), means(0.1).max()) == pytest.approx(1.0)
    assert max(means(o).max() for o in np.linspace(-0.1, 0.1, 9)) <= 1 + 1e-9
    assert max(means(-0.4).max(), means(0.4).max()) > 1.02


def test_calibration_is_an_e_value():
    """A single outcome has a mean e-value of at most 1 while the score is right up to the band, and rows multiply."""
    z = np.linspace(-4, 4, 9)
    for tolerance, shift in itertools.product((0.0, 0.1), (-1.0, 0.0, 1.0)):
        for x in z:
            p = _expit(x + shift * tolerance)
            yes, no = (binned_evidence(np.ones(1), np.array([x]), np.array([y]), 0.3, GRID, tolerance) for y in (1.0, 0.0))
            assert (p * np.exp(yes) + (1 - p) * np.exp(no)).max() <= 1 + 1e-9
    together = binned_evidence(np.array([5.0]), np.array([0.4]), np.array([3.0]), 0.0)
    apart = [binned_evidence(np.ones(1), np.array([0.4]), np.array([y]), 0.0) for y in (1.0, 1.0, 1.0, 0.0, 0.0)]
    assert together == pytest.approx(np.sum(apart, axis=0))


def test_drift_is_an_e_value():
    """A row drawn from the baseline, or from one tilted within the band, has a mean e-value of at most 1 in each direction."""
    world, rng = _flights(), np.random.default_rng(0)
    null = nulls({"all": world.days(rng, 20, 500)}, None, RULES, outcomes=False).by["score_drift"]["all"]
    _, _, share, directions = null.about
    assert directions @ share == pytest.approx([0, 0], abs=1e-9)
    assert directions**2 @ share == pytest.approx([1, 1])
    assert (np.exp(null.gains) @ share).max() < 1
    for i, sign in itertools.product((0, 1), (-1, 1)):
        tilted = share * np.exp(sign * null.tolerance * directions[i])
        means = (np.exp(null.gains) @ (tilted / tilted.sum())).reshape(2, 2, 4)
        assert means[i, max(sign, 0)] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("make", [_flights, _fraud])
def test_silent_and_then_not(make):
    """100 rows a day: 12 honest stretches of 100 days stay silent at A = 2,000 in every detector; +.5 from the start is found."""
    world, false, found = make(), [], 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        expected = nulls({"all": world.days(rng, 60, 100)}, at(world.threshold), RULES)
        live = list(world.days(rng, 100, 100).values())
        for name in expected.by:
            _, first = _fold(name, live, expected)
            false += (
                [name]
                if first and _fires(name, effect(name, total(live[max(0, first - 28) : first]), expected, RULES).value)
                else []
            )
        found += _fold("calibration", world.days(rng, 100, 100, np.full(100, 0.5)).values(), expected)[1] is not None
    assert len(false) <= 1
    assert found >= 11


def test_day_effects():
    """Days of a shared shock (sd .2, rho .3) alarm for sure without phi and hardly with it; +.5 is still found in weeks."""
    world, with_phi, without, delay = _flights(), 0, 0, []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        expected = nulls({"all": world.days(rng, 31, 2_000, _shocks(rng, 31, 0.2, 0.3))}, None, RULES)
        bare = _only("calibration", None, all=replace(expected.by["calibration"]["all"], lr=np.zeros(1)))
        live = list(world.days(rng, 150, 2_000, _shocks(rng, 150, 0.2, 0.3)).values())
        with_phi += _fold("calibration", live, expected)[1] is not None
        without += _fold("calibration", live, bare)[1] is not None
        delay.append(
            _fold("calibration", world.days(rng, 60, 2_000, 0.5 + _shocks(rng, 60, 0.2, 0.3)).values(), expected)[1] or 99
        )
    assert with_phi <= 1
    assert without >= 7
    assert np.median(delay) <= 15


def test_long_run_variance():
    """It is that of an autoregressive daily offset in many days, half as much again in few, and 0 where days do not differ."""
    world, rng = _flights(), np.random.default_rng(2)
    offsets = _shocks(rng, 400, 0.3, 0.5)
    days = world.days(rng, 400, 3_000, offsets)
    found = nulls({"all": days}, None, RULES)
    g = [float(offsets[k:] @ offsets[: 400 - k]) / (400 - k) for k in range(3)]
    assert found.lr["calibration"] == pytest.approx(g[0] + 4 / 3 * g[1] + 2 / 3 * g[2], rel=0.2)
    assert found.dispersion["calibration"] > 20
    assert found.lr["score_drift"] == 0
    assert found.lr["prevalence"] == pytest.approx(found.lr["calibration"], rel=0.25)
    at_59 = nulls({"all": dict(list(days.items())[:59])}, None, RULES).lr["calibration"]
    at_60 = nulls({"all": dict(list(days.items())[:60])}, None, RULES).lr["calibration"]
    assert at_59 / at_60 == pytest.approx(1.5, rel=0.15)
    assert nulls({"all": world.days(rng, 40, 3_000)}, None, RULES).lr["calibration"] == 0


def test_null_is_honesty_unless_the_baseline_rejects_it():
    """A class-weighted model is promised its own map and stays silent; an honest one with shared shocks is promised honesty."""
    world, rng = _flights(), np.random.default_rng(3)
    bent = {d: world.day(rng, 900, -1.2, 0.8) for d in range(40)}
    expected = nulls({"all": bent}, None, RULES)
    line = expected.by["calibration"]["all"].about[0]
    assert line == pytest.approx([-1.2, 0.8], abs=0.1)
    assert _fold("calibration", [world.day(rng, 900, -1.2, 0.8) for _ in range(60)], expected)[1] is None
    assert _fold("calibration", [world.day(rng, 900, -0.7, 0.8) for _ in range(20)], expected)[1] <= 5
    shocked = nulls({"all": world.days(rng, 40, 900, _shocks(rng, 40, 0.5, 0.5))}, None, RULES)
    assert shocked.by["calibration"]["all"].about[0].tolist() == [0.0, 1.0]


def test_slices():
    """M_D is half `all`, half the mean over the slices; the one slice that changed is named; one without rows stays as it is."""
    world, rng = _flights(), np.random.default_rng(4)
    names = [f"c={i}" for i in range(6)]

    def day(offset=0.0):
        parts = {name: world.day(rng, 400, offset if name == "c=3" else 0.0) for name in names}
        return parts | {"all": total(list(parts.values()))}

    history = [day() for _ in range(30)]
    expected = nulls({name: {d: t[name] for d, t in enumerate(history)} for name in ("all", *names)}, at(world.threshold), RULES)
    evidence, first = _fold("calibration", [day(1.2) for _ in range(12)], expected)
    assert first is not None
    assert shares(evidence)[0][0] == "c=3"
    assert sum(share for _, share in shares(evidence)) >= 0.95
    sr = {name: float(np.exp(log).mean()) for name, log in evidence.log.items()}
    m = 0.5 * sr["all"] + 0.5 * np.mean([sr[name] for name in names])
    assert log_evidence(evidence) == pytest.approx(math.log(m))
    assert max(log.max() for log in evidence.log.values()) <= A + 5 + math.log(12) + 1e-9
    after = look("calibration", evidence, 12, {"c=1": day()["c=1"], "c=2": EMPTY}, expected, RULES, A)
    assert [n for n in evidence.log if (after.log[n] != evidence.log[n]).any()] == ["c=1"]
    assert (after.day, after.looks, after.rows) == (12, 13, 12 * 2_400)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_look(name):
    """Evidence starts at nothing, survives JSON exactly, is never NaN, and a day without rows or labels leaves it as it is."""
    world, rng = _flights(), np.random.default_rng(5)
    expected = nulls({"all": world.days(rng, 20, 800)}, at(world.threshold), RULES)
    assert (log_evidence(None), shares(None)) == (NO_EVIDENCE, ())
    empty = look(name, None, 3, {}, expected, RULES, A)
    assert (empty.since, empty.day, empty.looks, empty.rows, log_evidence(empty)) == (3, 3, 0, 0, NO_EVIDENCE)
    evidence = look(name, empty, 4, {"all": world.day(rng, 800)}, expected, RULES, A)
    assert np.isfinite(evidence.log["all"]).all()
    assert to_dict(from_dict(json.loads(json.dumps(to_dict(evidence))))) == to_dict(evidence)
    bare = world.day(rng, 800)
    bare.cells["n_none"], bare.cells["p_none"] = bare.cells["n_neg"] + bare.cells["n_pos"], bare.cells["p_lab"]
    for column in ("n_neg", "n_pos", "p_lab"):
        bare.cells[column] = 0
    unlabelled = look(name, evidence, 5, {"all": bare}, expected, RULES, A)
    assert (unlabelled.looks == evidence.looks) is (name in MATURE)
    for _ in range(60):
        evidence = look(name, evidence, 6, {"all": world.day(rng, 800, 3.0, 0.2, -2.0)}, expected, RULES, A)
    assert np.isfinite(evidence.log["all"]).all()
    assert evidence.log["all"].max() <= A + 5


def test_reasons():
    """A detector that cannot look says why: no baseline, no threshold, too few days, or one class."""
    world, rng = _flights(), np.random.default_rng(6)
    days = world.days(rng, 20, 300)
    assert set(nulls({}, at(0.5), RULES).reasons.values()) == {"no_baseline"}
    assert set(nulls({}, at(0.5), RULES).reasons) == set(DETECTORS)
    assert nulls({"all": days}, at(0.25), RULES).reasons == {}
    assert nulls({"all": days}, None, RULES).reasons == dict.fromkeys(DECIDED, "no_threshold")
    assert nulls({"all": days}, at(0.25), RULES, outcomes=False).reasons == dict.fromkeys(MATURE, "no_baseline")
    few = {"all": dict(list(days.items())[:13])}
    assert nulls(few, at(0.25), RULES).reasons == dict.fromkeys(DETECTORS, "learning")
    live = {d + 50: world.day(rng, 300, o) for d, o in enumerate(_shocks(rng, 27, 0.6, 0.0))}
    assert nulls(few, at(0.25), RULES, live=live).reasons["calibration"] == "learning"
    learnt = nulls(few, at(0.25), RULES, live=live | {77: world.day(rng, 300)})
    assert learnt.reasons == {}
    assert learnt.lr["calibration"] > 0.1
    none = {d: replace(t, cells=_without_positives(t.cells)) for d, t in days.items()}
    reasons = nulls({"all": none}, at(0.25), RULES).reasons
    assert (reasons["recall"], reasons["roc_auc"], "prevalence" in reasons) == ("no_positives", "one_class", False)
    assert set(reasons.values()) <= set(REASONS)


def test_a_baseline_day_without_outcomes():
    """A baseline day that no label came for says nothing of outcomes and spoils nothing."""
    world, rng = _fraud(), np.random.default_rng(26)
    days = {i: world.day(rng, 2_000) for i in range(20)}
    cells = world.day(rng, 2_000).cells
    cells["n_none"], cells["p_none"] = cells["n_neg"] + cells["n_pos"], cells["p_lab"]
    cells["n_neg"] = cells["n_pos"] = cells["p_lab"] = 0
    totals = np.zeros((3, 5))
    totals[0, 0] = 2_000
    with_it, without = (nulls({"all": d}, at(0.2), RULES) for d in (days | {20: Table(cells, totals)}, days))
    assert with_it.reasons == without.reasons == {}
    assert with_it.lr["calibration"] == without.lr["calibration"]
    assert with_it.by["calibration"]["all"].promise == without.by["calibration"]["all"].promise


def _without_positives(cells):
    found = cells.copy()
    found["n_neg"] += found["n_pos"]
    found["n_pos"] = 0
    return found


def test_vanished_positives():
    """A day without any positive is evidence: that they vanished shows within two weeks of 300 rows at 3 %."""
    world, rng = _fraud(), np.random.default_rng(7)
    expected = nulls({"all": world.days(rng, 60, 300)}, at(0.25), RULES)
    gone = [replace(t, cells=_without_positives(t.cells)) for t in world.days(rng, 14, 300).values()]
    assert _fold("calibration", gone, expected)[1] is not None
    found = effect("calibration", total(gone), expected, RULES)
    assert -20 < found.value < -2


def test_clusters(table):
    """Clusters that end with their day divide the evidence by their size; rows that share one over days cannot be evidence."""
    rng = np.random.default_rng(8)

    def day(clusters, size):
        score = np.repeat(rng.beta(1, 3, clusters), size)
        return table(score, rng.random(len(score)) < score, 0.3, cluster=np.repeat(rng.integers(1, 2**31, clusters), size))

    expected = nulls({"all": {d: day(300, 4) for d in range(20)}}, at(0.3), RULES)
    assert expected.reasons == {}
    assert expected.by["calibration"]["all"].size == pytest.approx(4, rel=0.1)
    teams = np.arange(1, 31)
    score = {t: rng.random() for t in teams}
    of_season = {d: table(np.array([score[t] for t in teams]), teams % 2, 0.3, cluster=teams) for d in range(40)}
    assert nulls({"all": of_season}, at(0.3), RULES).reasons == dict.fromkeys(DETECTORS, "clustered")


def test_weights(table):
    """Of labels looked for by chance only whole rows are evidence: calibration takes those, the rates say `weighted`."""
    world, rng = _flights(), np.random.default_rng(9)
    expected = nulls({"all": world.days(rng, 20, 800)}, at(0.25), RULES)
    score = rng.beta(1, 3, 3_000)
    y, seen = rng.random(3_000) < score, rng.random(3_000) < 0.2
    sampled = table(score, np.where(seen, y, -1), 0.25, label_prob=np.full(3_000, 0.2))
    whole = table(score[seen], y[seen], 0.25)
    a, b = (look("calibration", None, 0, {"all": t}, expected, RULES, A).log["all"] for t in (sampled, whole))
    assert a == pytest.approx(b, abs=0.02)
    assert {effect(name, sampled, expected, RULES) for name in MATURE - {"calibration"}} == {"weighted"}
    assert look("recall", None, 0, {"all": sampled}, expected, RULES, A).looks == 0


def test_effects(table):
    """Effects are in the units of their limits and of the side that fires when things get worse; undecided rows have none."""
    world, rng = _flights(), np.random.default_rng(10)
    expected = nulls({"all": world.days(rng, 60, 2_000)}, at(world.threshold), RULES)
    same, worse = world.day(rng, 100_000), world.day(rng, 100_000, 0.6, 0.3)
    for name in DETECTORS:
        found = effect(name, same, expected, RULES)
        assert abs(found.value) < EFFECTS[name][0] / 4, name
        assert found.low is None or found.low - 0.05 < 0 < found.high + 0.05
    assert effect("calibration", world.day(rng, 100_000, 0.5), expected, RULES).value == pytest.approx(0.5, abs=0.03)
    fired = {name for name in DETECTORS if _fires(name, effect(name, worse, expected, RULES).value)}
    assert {"calibration", "recall", "roc_auc", "prevalence", "high_confidence_errors"} <= fired
    assert not {"flagged_share", "score_drift"} & fired
    undecided = replace(same, cells=same.cells.copy())
    undecided.cells["verdict"] = NONE
    assert {effect(name, undecided, expected, RULES) for name in DECIDED} == {"no_threshold"}
    assert effect("recall", EMPTY, expected, RULES) == "no_mature_days"
    assert effect("recall", same, nulls({}, at(0.5), RULES), RULES) == "no_baseline"


@pytest.mark.parametrize("kind", ["one", "hard", "constant", "separable"])
def test_degenerate_scores(table, kind):
    """Scores of 0 and 1 only, of one value, or that tell the classes apart: nothing overflows and no promise seems broken."""
    rng = np.random.default_rng(13)

    def day():
        p = {"one": np.ones(300), "hard": np.rint(rng.random(300)), "constant": np.full(300, 0.3), "separable": rng.random(300)}[
            kind
        ]
        return table(p, p > 0.5 if kind == "separable" else rng.random(300) < np.clip(p, 0.1, 0.7), 0.5)

    expected = nulls({"all": {d: day() for d in range(20)}}, at(0.5), RULES)
    live = [day() for _ in range(28)]
    for name in expected.by:
        evidence, _ = _fold(name, live, expected)
        found = effect(name, total(live), expected, RULES)
        assert math.isfinite(log_evidence(evidence))
        assert not (log_evidence(evidence) >= A and _fires(name, found.value)), name


def test_a_trifle_of_drift():
    """A million rows a day moved by .01 standard deviations are no drift; 2,000 moved by .2 are found within a week."""
    rng = np.random.default_rng(11)

    def world(mean):
        return World(_expit(rng.normal(mean, 1, 1_000_000)), 0.5)

    base, near, far = world(0.0), world(0.01), world(0.2)
    expected = nulls({"all": base.days(rng, 20, 50_000)}, at(0.5), RULES)
    days = list(near.days(rng, 28, 1_000_000).values())
    evidence, _ = _fold("score_drift", days, expected)
    assert not _fires("score_drift", effect("score_drift", total(days), expected, RULES).value)
    assert log_evidence(evidence) < A
    days = list(far.days(rng, 7, 2_000).values())
    assert _fold("score_drift", days, expected)[1] is not None
    assert _fires("score_drift", effect("score_drift", total(days), expected, RULES).value)


def test_slices_have_shocks_of_their_own():
    """A slice whose days differ more than those of all keeps its own variance, unless it has too few days to show it."""
    world, rng = _flights(), np.random.default_rng(13)
    own = world.days(rng, 60, 2_000, _shocks(rng, 60, 0.5, 0.0))
    calm = world.days(rng, 60, 2_000)
    few = {d: t for d, t in own.items() if d < 13}
    days = {"all": world.days(rng, 60, 20_000), "own": own, "calm": calm, "few": few}
    lr = {part: float(null.lr[0]) for part, null in nulls(days, at(0.25), RULES).by["calibration"].items()}
    assert lr["all"] == lr["calm"] == lr["few"] == 0.0
    assert 0.12 < lr["own"] < 0.4
    shaken = nulls(days | {"all": world.days(rng, 60, 20_000, _shocks(rng, 60, 0.8, 0.0))}, at(0.25), RULES).by["calibration"]
    assert {float(null.lr[0]) for null in shaken.values()} == {float(shaken["all"].lr[0])}


def test_a_slice_that_nobody_promised():
    """A slice that is not in the baseline, or there without outcomes or confident scores, is left out with a reason."""
    world, rng = _flights(), np.random.default_rng(14)
    timid = World(np.full(10, 0.5), 0.25)
    days = {"all": world.days(rng, 20, 500), "some": world.days(rng, 20, 500), "timid": timid.days(rng, 20, 500)}
    unknown = np.zeros(1, CELL)
    unknown["bin"], unknown["n_none"], unknown["p_none"] = 1_000, 5, 2.0
    days["some"][3] = Table(unknown, np.zeros((3, 5)))
    days["none"] = dict.fromkeys(range(20), days["some"][3])
    expected = nulls(days, at(0.25), RULES)
    assert set(expected.by["calibration"]) == {"all", "some", "timid"}
    tables = {part: world.day(rng, 500) for part in ("all", "new", "none")}
    for name in DETECTORS:
        assert set(look(name, None, 20, tables, expected, RULES, A).log) == set(expected.by[name])
        assert effect(name, tables["new"], expected, RULES, "new") == "no_baseline"
    sure = "high_confidence_errors"
    assert "timid" not in expected.by[sure]
    assert effect(sure, days["timid"][0], expected, RULES) == "no_high_confidence"


def test_threshold():
    """The budget is split over the detectors of a model: 365 looks a year each."""
    assert log_threshold(1, 1.0) == math.log(365)
    assert log_threshold(7, 0.25) == pytest.approx(math.log(365 * 28))
    assert scored(EMPTY).reason == "no_events"


def _as_served(days, calibrator):
    """Return day tables of which the calibrator's scores were the model's."""
    return {d: recalibrated(t, calibrator) for d, t in days.items()}


def test_served_scores_are_promised_to_be_honest():
    """Under a calibrator evidence is that of a model with the served scores and an honest validation; other nulls stay."""
    world, rng = _flights(), np.random.default_rng(21)
    calibrator = {"kind": "platt", "a": -0.8, "b": 0.9}
    days = world.days(rng, 60, 2_000, _shocks(rng, 60, 0.2, 0.3))
    served = replace(at(0.25), calibrator=calibrator)
    raw, expected = (nulls({"all": days}, policy, RULES) for policy in (at(0.25), served))
    for name in DETECTORS:
        a, b = raw.by[name]["all"], expected.by[name]["all"]
        assert (a.promise == b.promise, a.lr.tolist()) == (name not in OF_PROBABILITIES, b.lr.tolist())
    live = {d: world.day(rng, 2_000, -0.8, 0.9) for d in range(40)}
    assert _fold("calibration", live.values(), raw)[1] is not None
    for name in OF_PROBABILITIES:
        assert _fold(name, live.values(), expected)[1] is None
        assert abs(effect(name, total(list(live.values())), expected, RULES).value) < 0.1
    off = world.days(rng, 20, 2_000, np.full(20, -0.2))
    (null,), lr = expected.by["calibration"].values(), raw.by["calibration"]["all"].lr
    other = _only("calibration", None, all=replace(null, lr=lr))
    found = [_fold("calibration", d.values(), e)[0] for d, e in ((off, expected), (_as_served(off, calibrator), other))]
    assert log_evidence(found[0]) == log_evidence(found[1]) > A


def test_a_slice_is_as_far_off_the_served_scores_as_it_was_off_the_models():
    """What validation knew of a slice beside `all` is no news under a calibrator, and what is new there is."""
    world, rng = _flights(), np.random.default_rng(22)

    def days(n, new=0.0):
        own, rest = (world.days(rng, n, 1_500, np.full(n, x)) for x in (0.5 + new, 0.0))
        return {"all": {d: own[d] + rest[d] for d in own}, "c=own": own, "c=rest": rest}

    before = days(40)
    raw = nulls(before, at(0.25), RULES).by["calibration"]
    offset = float(raw["all"].about[0][0])
    expected = nulls(before, replace(at(0.25), calibrator={"kind": "offset", "a": offset}), RULES)
    assert 0.1 < offset < 0.4
    for part in ("c=own", "c=rest"):
        assert expected.by["calibration"][part].about[0] == pytest.approx(raw[part].about[0] - [offset, 0.0], abs=0.05)
    effects = [
        effect("calibration", total(list(days(28, new)["c=own"].values())), expected, RULES, "c=own") for new in (0.0, 0.4)
    ]
    assert [e.value for e in effects] == pytest.approx([0.0, 0.4], abs=0.1)
