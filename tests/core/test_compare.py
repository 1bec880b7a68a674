"""Two thresholds on the same scores, and two versions on the same days, on different rows and on the same ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, precision_score, recall_score, roc_auc_score

from monitor.core.compare import (
    PAIRED,
    Pairs,
    Side,
    counted,
    difference,
    differences,
    flagged_by,
    log_ratio,
    losses,
    paired,
    policy_volume,
    under,
    undo_step,
)
from monitor.core.days import Key
from monitor.core.events import FLAG, NONE, PASS, VERDICTS
from monitor.core.guards import UNDO_LIMIT
from monitor.core.intervals import Measured, wilson
from monitor.core.metrics import measure
from monitor.core.metrics.counts import mean_of
from monitor.core.policy import IDENTITY, apply, policy
from monitor.core.readings import LabelRule, mature, scored
from monitor.core.tables import EDGES, EMPTY, edges_of_width

RULES = (LabelRule("unknown"),) * 6
KEY = Key("m", "canary", "all", 0)

THRESHOLDS = st.sampled_from([0.0, 1 / 60, 0.25, 0.5, 0.75, float(EDGES[7]), float(EDGES[-1])])
SCORES = st.lists(st.one_of(st.floats(0, 1), THRESHOLDS), min_size=1, max_size=40)


def policy_at(threshold, **by_slice):
    """Return the policy with a threshold, and others by slice."""
    return policy("1-1", "m", "1", {"all": threshold, **{f"c={v}": t for v, t in by_slice.items()}})


@given(SCORES, THRESHOLDS, THRESHOLDS)
def test_exact(table, scores, current, previous):
    """The ratio of the flagged counts is exact, without an interval of its own."""
    reading = scored(table(np.array(scores)))
    now, before = (sum(s >= t for s in scores) for t in (current, previous))
    assert (flagged_by(policy_at(current), {"all": reading}), flagged_by(policy_at(previous), {"all": reading})) == (now, before)
    ratio = 1.0 if now == before else now / max(before, 1)
    assert policy_volume({"all": reading}, policy_at(current), policy_at(previous)) == Measured(ratio, ratio, ratio, len(scores))


@pytest.mark.parametrize(
    ("current", "previous", "ratio"), [(0.5, 0.5, 1.0), (0.5, 0.25, 0.5), (0.25, 0.5, 2.0), (0.75, 0.5, 0.0), (0.25, 0.75, 4.0)]
)
def test_cases(table, current, previous, ratio):
    """More flagged is above 1, fewer below; a previous threshold that flags nothing counts as one row."""
    reading = scored(table(np.array([0.25, 0.3, 0.5, 0.6])))
    assert policy_volume({"all": reading}, policy_at(current), policy_at(previous)) == Measured(ratio, ratio, ratio, 4)


def test_nothing(table):
    """Neither flags anything: the ratio is 1. No rows: there is no ratio."""
    assert policy_volume({"all": scored(table(np.array([0.1])))}, policy_at(0.5), policy_at(0.75)) == Measured(1.0, 1.0, 1.0, 1)
    assert policy_volume({"all": scored(table(np.array([])))}, policy_at(0.5), policy_at(0.75)) == "no_events"


def test_by_slice(table):
    """A slice with a threshold of its own is flagged by that one, the rest of the rows by the one of all."""
    scores, own = np.array([0.25, 0.3, 0.5, 0.6]), np.array([True, False, True, False])
    by_slice = {"all": scored(table(scores)), "c=a": scored(table(scores[own])), "c=b": scored(table(scores[~own]))}
    assert [flagged_by(policy_at(0.5, a=t), by_slice) for t in (0.25, 0.5, 0.75)] == [3, 2, 1]


def test_what_a_policy_would_have_done(table):
    """Its shares are those of the rows it flags, by slice; of weighted rows they have the intervals of the few that were seen,
    and which share is flagged hangs on no outcome.
    """
    rng = np.random.default_rng(2)
    score, own = EDGES[rng.integers(800, 1_500, 4_000)], rng.random(4_000) < 0.5
    y, made = rng.random(4_000) < score, policy_at(0.5, a=0.25)
    flag = np.where(own, score >= 0.25, score >= 0.5)

    def both(outcome, rules=RULES, **columns):
        of = {"all": np.full(4_000, True), "c=a": own}
        tables = {
            name: table(score[s], outcome[s].astype(np.int8), **{k: v[s] for k, v in columns.items()}) for name, s in of.items()
        }
        return {name: mature(t, rules) for name, t in tables.items()}, {name: scored(t) for name, t in tables.items()}

    assert counted(made, both(y)[0]) == ((flag & y).sum(), (flag & ~y).sum(), (~flag & y).sum(), (~flag & ~y).sum())
    found = under(made, *both(y))
    assert found["flagged_share"] == Measured(flag.mean(), *wilson(float(flag.sum()), 4_000.0), 4_000)
    for name, of in (("recall", recall_score), ("precision", precision_score)):
        assert found[name].value == pytest.approx(of(y, flag))
    few = np.where(rng.random(4_000) < 0.1, y, -1)
    weighted = under(made, *both(few, label_prob=np.full(4_000, 0.1)))
    assert weighted["flagged_share"] == found["flagged_share"]
    for name in ("recall", "precision"):
        assert 2.5 < (weighted[name].high - weighted[name].low) / (found[name].high - found[name].low) < 4
        assert weighted[name].low < found[name].value < weighted[name].high
    shared = under(made, *both(y, cluster=np.arange(4_000) % 50 + 1))
    assert [(m.value, m.low, m.interval_reason) for m in shared.values()] == [
        (m.value, None, "clustered") for m in found.values()
    ]
    never = tuple(LabelRule("unknown", never=v == "block") for v in VERDICTS)
    blocked = under(made, *both(y, never, verdicts=np.where(flag, VERDICTS.index("block"), PASS)))
    assert blocked == {"flagged_share": found["flagged_share"], "recall": "prevented", "precision": "prevented"}
    nobody = {"all": mature(EMPTY, RULES)}, {"all": scored(EMPTY)}
    assert set(under(made, *nobody).values()) == {"no_events", "no_mature_days"}


def expit(z):
    return 1 / (1 + np.exp(-z))


def rows(rng, n, noise=0.5):
    """Return what two versions say of the same rows, logits shape (2, n), and the outcomes."""
    z = rng.normal(-1.5, 1.2, n)
    return z + noise * rng.standard_normal((2, n)), rng.random(n) < expit(z)


def side(table, logit, y):
    """Return a version that flags from .3 on."""
    made = table(expit(logit), y.astype(np.int8), threshold=0.3)
    return Side(scored(made), mature(made, RULES))


def values(found):
    return {e.metric: e for e in found}


def test_difference():
    """The distances of the ends add up like standard deviations; without an interval of one there is none, and its reason."""
    a, b = Measured(0.5, 0.47, 0.54, 100), Measured(0.3, 0.28, 0.34, 50)
    assert difference(a, b) == pytest.approx((0.2, 0.2 - np.hypot(0.03, 0.04), 0.2 + np.hypot(0.04, 0.02), 150, ""))
    assert difference(a, Measured(0.3, None, None, 50, "clustered"))[1:] == (None, None, 150, "clustered")


def test_differences_of_what(table):
    """Each is what one version shows less what the other does, and distances are those of the first against the second."""
    rng = np.random.default_rng(1)
    a, b = (side(table, logits[0], y) for logits, y in (rows(rng, 3_000), rows(rng, 4_000)))
    found = values(differences(a, b, KEY, "28d", edges_of_width(10)))
    shown = [values((*measure(s.scored, KEY, ""), *measure(s.mature, KEY, ""))) for s in (a, b)]
    for name in ("flagged_share", "mean_score", "prevalence", "bias", "recall", "precision", "roc_auc"):
        assert found[name].value == pytest.approx(shown[0][name].value - shown[1][name].value, abs=1e-12)
        assert found[name].low < found[name].value < found[name].high
    assert found["psi"].value == values(measure(a.scored, KEY, "", edges_of_width(10), b.scored))["psi"].value
    assert {e.basis for e in found.values()} == {"difference"}
    assert {e.key for e in found.values()} == {KEY}


def test_differences_cover(table):
    """Of two versions that are alike the intervals hold 0 in .92 to .98 of runs."""
    rng, held, runs = np.random.default_rng(2), {}, 200
    for _ in range(runs):
        a, b = (side(table, logits[0], y) for logits, y in (rows(rng, 400), rows(rng, 2_000)))
        for e in differences(a, b, KEY, "", None):
            if e.low is not None:
                held[e.metric] = held.get(e.metric, 0) + (e.low <= 0 <= e.high)
    assert len(held) == 7
    assert all(0.92 * runs <= k <= 0.985 * runs for k in held.values()), held


def test_differences_say_why_not(table):
    """What one version cannot say has no difference but its reason."""
    rng = np.random.default_rng(3)
    logits, y = rows(rng, 500)
    a, none = side(table, logits[0], y), Side(scored(EMPTY), mature(EMPTY, RULES))
    found = values(differences(a, none, KEY, "", None))
    assert (found["flagged_share"].reason, found["recall"].reason, found["psi"].reason) == (
        "no_events",
        "no_mature_days",
        "no_baseline",
    )


def pairs(logits, y, threshold=0.3, **rest):
    return Pairs(expit(logits), np.where(expit(logits) >= threshold, FLAG, PASS).astype(np.uint8), y.astype(np.int8), **rest)


def test_paired_values(table):
    """Paired differences are those of scikit-learn's metrics of both versions on the same rows."""
    logits, y = rows(np.random.default_rng(4), 5_000)
    found = values(paired(pairs(logits, y), KEY, "28d"))
    score = expit(logits)
    oracle = {
        "flagged_share": lambda p: (p >= 0.3).mean(),
        "mean_score": np.mean,
        "bias": lambda p: (p - y).mean(),
        "recall": lambda p: recall_score(y, p >= 0.3),
        "precision": lambda p: precision_score(y, p >= 0.3),
        "roc_auc": lambda p: roc_auc_score(y, p),
    }
    assert list(found) == list(PAIRED) == list(oracle)
    for name, of in oracle.items():
        assert found[name].value == pytest.approx(of(score[0]) - of(score[1]), abs=1e-4 if name == "roc_auc" else 1e-12)


def test_paired_covers_and_is_narrower(table):
    """Of versions that are alike the paired intervals hold 0 in .92 to .98 of runs, in less than .8 of the width of others."""
    rng, held, narrower, runs = np.random.default_rng(5), {}, {}, 200
    for _ in range(runs):
        logits, y = rows(rng, 1_000)
        apart = values(differences(side(table, logits[0], y), side(table, logits[1], y), KEY, "", None))
        for e in paired(pairs(logits, y), KEY, ""):
            held[e.metric] = held.get(e.metric, 0) + (e.low <= 0 <= e.high)
            narrower.setdefault(e.metric, []).append((e.high - e.low) / (apart[e.metric].high - apart[e.metric].low))
    assert all(0.92 * runs <= k <= 0.985 * runs for k in held.values()), held
    assert all(np.mean(ratio) < 0.8 for ratio in narrower.values()), {k: np.mean(v) for k, v in narrower.items()}


def test_paired_finds_what_is_worse():
    """A version with noise of its own ranks worse, and its interval says so."""
    logits, y = rows(np.random.default_rng(6), 20_000, noise=0.0)
    logits[0] += np.random.default_rng(7).normal(0, 1.0, y.size)
    found = values(paired(pairs(logits, y), KEY, ""))
    assert found["roc_auc"].high < 0
    assert found["precision"].high < 0


def test_paired_says_why_not():
    """Without rows, labels, verdicts, positives, flagged rows or a fair choice there is a reason each."""
    logits, y = rows(np.random.default_rng(8), 100)

    def reasons(p):
        return {e.metric: e.reason for e in paired(p, KEY, "") if e.reason}

    after = PAIRED[2:]
    assert reasons(pairs(logits[:, :0], y[:0])) == dict.fromkeys(PAIRED, "no_events")
    assert reasons(pairs(logits, y, reason="sampled")) == dict.fromkeys(PAIRED, "sampled")
    assert reasons(pairs(logits, np.full(100, -1))) == dict.fromkeys(after, "no_labels")
    assert reasons(pairs(logits, np.where(np.arange(100) < 79, y, -1))) == dict.fromkeys(after, "unidentified")
    assert reasons(pairs(logits, y * 0)) == {"recall": "no_positives", "roc_auc": "one_class"}
    assert reasons(pairs(logits, y, threshold=1.0)) == {"precision": "no_flagged"}
    undecided = Pairs(expit(logits), np.full((2, 100), NONE, np.uint8), y.astype(np.int8))
    assert reasons(undecided) == {"flagged_share": "no_threshold", "recall": "no_positives", "precision": "no_flagged"}
    clustered = paired(pairs(logits, y, clustered=True), KEY, "")
    assert {(e.low, e.interval_reason) for e in clustered} == {(None, "clustered")}


def test_paired_is_sure_of_little_when_nothing_differs():
    """Versions that decide alike differ by 0, with an interval that is not 0 wide: few rows say little."""
    y = np.ones(10, bool)
    for e in paired(pairs(np.full((2, 10), 3.0), y), KEY, ""):
        if e.metric in ("flagged_share", "recall", "precision"):
            assert e.value == 0
            assert e.low < -0.05
            assert e.high > 0.05


def test_few_pairs():
    """One pair has no spread, one positive no area, and every interval stays between -1 and 1."""
    one = values(paired(pairs(np.array([[-2.0], [0.0]]), np.array([1])), KEY, ""))
    assert {name: e.reason for name, e in one.items()} == {
        "flagged_share": "",
        "mean_score": "low_n",
        "bias": "low_n",
        "recall": "",
        "precision": "no_flagged",
        "roc_auc": "one_class",
    }
    assert (one["recall"].low, one["recall"].value) == (-1, -1)
    other = values(paired(pairs(np.array([[0.0, 1.0, -2.0], [-2.0, -1.0, -2.0]]), np.array([1, 0, 0])), KEY, ""))
    assert other["roc_auc"].reason == "low_n"
    assert all(-1 <= e.low <= e.value <= e.high <= 1 for e in other.values() if not e.reason)


COOLER, LOWER = {"kind": "temperature", "t": 1.6}, {"kind": "offset", "a": -0.7}


def row_losses(calibrator, score, y):
    p = apply(calibrator, score)
    return -np.log(np.where(y, p, 1 - p)), (p - y) ** 2


def lost(reading, a, b):
    """Return log loss and Brier score of one calibrator less those of another, each with its variance."""
    gap = losses(apply(a, reading.score)) - losses(apply(b, reading.score))
    return [x for of in gap for x in mean_of(reading, of)]


def test_paired_losses_are_those_of_rows(table):
    """Differences of losses of two calibrators and their variances are those of rows, and scikit-learn's losses subtracted."""
    rng = np.random.default_rng(0)
    score = EDGES[rng.integers(800, 1_500, 2_000)]  # rows of one cell have one score, so that cells are exact
    y = rng.random(2_000) < score
    found = lost(mature(table(score, y.astype(np.int8)), RULES), COOLER, LOWER)
    log_gap, brier_gap = (a - b for a, b in zip(*(row_losses(c, score, y) for c in (COOLER, LOWER)), strict=True))
    wanted = [log_gap.mean(), log_gap.var() / 2_000, brier_gap.mean(), brier_gap.var() / 2_000]
    assert found == pytest.approx(wanted, rel=1e-9)
    for value, loss in ((found[0], log_loss), (found[2], brier_score_loss)):
        assert value == pytest.approx(loss(y, apply(COOLER, score)) - loss(y, apply(LOWER, score)), rel=1e-9)


def test_paired_losses_of_weighted_rows(table):
    """A row looked at with a probability counts as its inverse, with the variance of a ratio of such sums."""
    rng = np.random.default_rng(0)
    score, prob = EDGES[rng.integers(800, 1_500, 4_000)], np.where(rng.random(4_000) < 0.5, 1.0, 0.25)
    y, w = rng.random(4_000) < score, 1 / prob
    seen = rng.random(4_000) < prob
    reading = mature(table(score, np.where(seen, y, -1).astype(np.int8), label_prob=prob), RULES)
    gap, w = (row_losses(COOLER, score, y)[0] - row_losses(IDENTITY, score, y)[0])[seen], w[seen]
    mean = (w @ gap) / w.sum()
    found = lost(reading, COOLER, IDENTITY)
    assert found[0] == pytest.approx(mean, rel=1e-4)
    assert found[1] == pytest.approx((w**2 @ (gap - mean) ** 2) / w.sum() ** 2, rel=1e-4)
    assert log_ratio(reading, COOLER, IDENTITY) == pytest.approx(-mean * w.sum() ** 2 / (w @ w), rel=1e-4)


def test_log_ratio(table):
    """The logarithm of the likelihood ratio is the sum over rows, turns its sign with the sides, and adds up over days."""
    rng = np.random.default_rng(1)
    score = EDGES[rng.integers(800, 1_500, 1_000)]
    y = (rng.random(1_000) < score).astype(np.int8)
    both, first, rest = (mature(table(score[s], y[s]), RULES) for s in (slice(None), slice(300), slice(300, None)))
    wanted = (row_losses(LOWER, score, y)[0] - row_losses(COOLER, score, y)[0]).sum()
    assert log_ratio(both, COOLER, LOWER) == pytest.approx(wanted, rel=1e-9)
    assert log_ratio(both, LOWER, COOLER) == pytest.approx(-wanted, rel=1e-9)
    assert log_ratio(first, COOLER, LOWER) + log_ratio(rest, COOLER, LOWER) == pytest.approx(wanted, rel=1e-9)
    assert log_ratio(both, COOLER, COOLER) == 0.0


def undone(table, rng, days, offset):
    """Return on which of the days, if any, calibrated scores that are lowered by .7 are undone; the world is off by `offset`."""
    log_e = 0.0
    for day in range(days):
        score = np.clip(rng.beta(0.5, 3, 300), 1e-9, 1 - 1e-9)
        y = rng.random(300) < apply({"kind": "offset", "a": offset[day]}, score)
        log_e = undo_step(log_e, log_ratio(mature(table(score, y.astype(np.int8)), RULES), IDENTITY, LOWER))
        if UNDO_LIMIT.passed(log_e):
            return day
    return None


def test_undo(table):
    """A calibrator that is right is rarely undone, one that is wrong within days, however long it was right before."""
    right, wrong, late = np.full(28, -0.7), np.zeros(28), np.where(np.arange(28) < 20, -0.7, 0.0)
    kept, found, turned = (
        [undone(table, np.random.default_rng(i), 28, world) for i in range(40)] for world in (right, wrong, late)
    )
    assert sum(day is not None for day in kept) <= 4
    assert max(found) <= 4
    assert all(now == before or 20 <= now <= 24 for now, before in zip(turned, kept, strict=True))
