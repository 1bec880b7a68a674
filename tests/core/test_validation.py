"""Roles of rows that do not leak, and a policy that is chosen on some and tested once on others."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss

from monitor.core.baseline import slice_names
from monitor.core.events import DAY
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.policy import IDENTITY, apply, expit, logit, policy
from monitor.core.readings import scored
from monitor.core.tables import LABEL, ROW, total
from monitor.core.thresholds import Objective, cost
from monitor.core.validation import ROLES, Validation, chosen, cross_fitted, leaks, measured, split

SHARES = (0.4, 0.3, 0.3)
COMBOS = ((("country", "DE"),), (("country", "FR"),))
START = 20_000


def world(n=6_000, days=30, temperature=1.0, seed=0, timed=True):
    """Return a validation with outcomes that the scores tell, scores sharpened by a temperature, a tenth without outcome."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 3, n)
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["ts"] = START * DAY + np.arange(n) * (days * DAY // n) if timed else START * DAY
    rows["score"] = expit(logit(p) * temperature)
    rows["combo"] = np.arange(n) % 2
    labels["outcome"] = np.where(rng.random(n) < 0.1, -1, rng.random(n) < p)
    key = rng.integers(0, 2**64, n, dtype=np.uint64)
    role = split(SHARES, key, rows["ts"] if timed else None)
    return Validation("m", "v", ("country",), rows, labels, COMBOS, role, key, timed)


def frozen(v):
    """Return the slices and the edges of a baseline of all rows."""
    names = slice_names(np.bincount(v.rows["combo"]), v.combos, v.segments)
    return names, calibration_edges(scored(total([t["all"] for t in v.by_day().values()])))


def test_split_by_time():
    """Days have one role each, in the order of time, and the roles about their shares; few days are split at an instant."""
    v = world()
    days = v.rows["ts"] // DAY
    assert all(len(np.unique(v.role[days == d])) == 1 for d in np.unique(days))
    assert (np.diff(v.role) >= 0).all()
    assert np.bincount(v.role).tolist() == [2_400, 1_800, 1_800]
    few = split(SHARES, v.key, np.arange(1_000) * (2 * DAY // 1_000))
    assert (np.diff(few) >= 0).all()
    assert np.bincount(few).tolist() == [400, 300, 300]
    assert split(SHARES, v.key, np.full(9, DAY)).tolist() == [1] * 9


def test_split_by_key():
    """Without times rows with equal keys have one role, whatever else there is, and the roles about their shares."""
    key = np.random.default_rng(1).integers(0, 2**64, 2_000, dtype=np.uint64)
    twice = split(SHARES, np.concatenate((key, key)), None)
    assert (twice[:2_000] == twice[2_000:]).all()
    assert (twice[:2_000] == split(SHARES, key, None)).all()
    assert np.bincount(twice) / 4_000 == pytest.approx(SHARES, abs=0.04)


def test_leaks_are_those_that_looking_at_every_pair_finds():
    """Whatever ids, entities, roles and times are, the rows named are those that pairs of rows show to leak."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        ids, entity, role, ts = (rng.integers(low, high, n) for low, high in ((0, 15), (-1, 6), (0, 3), (5, 9)))
        found = {leak.reason: sorted(leak.at.tolist()) for leak in leaks(ids, entity, role, ts)}
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
        expected = {
            "duplicate_id": {i for i, j in pairs if ids[i] == ids[j]},
            "entity_in_two_roles": {i for i, j in pairs if entity[i] == entity[j] >= 0 and role[i] != role[j]},
            "time_order": {i for i, j in pairs if role[j] < role[i] and ts[i] < ts[j]},
        }
        assert found == {reason: sorted(at) for reason, at in expected.items() if at}
        assert "time_order" not in {leak.reason for leak in leaks(ids, entity, role, None)}


@pytest.mark.parametrize("timed", [True, False])
def test_policy_is_calibrated_and_tested_on_rows_of_its_own(timed):
    """Sharpened scores get a calibrator and the threshold of honest costs; what it does is what sklearn counts."""
    v = world(20_000, temperature=1.6, timed=timed)
    slices, edges = frozen(v)
    found = chosen(v, slices, cost(4, 1))
    assert found.calibration["reason"] == "accepted"
    assert found.policy.threshold == pytest.approx(0.2, abs=0.005)
    test = v.of("test")
    result = measured(test, found.policy, edges)
    known = test.labels["outcome"] >= 0
    y, served = test.labels["outcome"][known], apply(found.policy.calibrator, test.rows["score"][known])
    tn, fp, fn, tp = confusion_matrix(y, test.rows["score"][known] >= found.policy.cut).ravel().tolist()
    counts = {
        "tp": tp,
        "fp": fp,
        "fn": fn,
        "tn": tn,
        "review": 0,
        "abstain": 0,
        "undecided": 0,
        "unlabelled": int((~known).sum()),
    }
    assert result.counts == counts
    assert sum(result.counts.values()) == result.rows == len(test.rows)
    raw, after = ({e.metric: e for e in shown.estimates} for shown in (result.raw, result.served))
    assert raw["brier"].value == pytest.approx(brier_score_loss(y, test.rows["score"][known]), rel=1e-9)
    assert after["log_loss"].value == pytest.approx(log_loss(y, served), rel=1e-9)
    assert after["log_loss"].value < raw["log_loss"].value
    assert after["recall"].value == raw["recall"].value == tp / (tp + fn)
    assert (raw["brier"].expect_low is not None) is timed
    for shown in (result.raw, result.served):
        assert sum(b.n for b in shown.frozen) == sum(b.n for b in shown.width10) == known.sum()


def test_nothing_of_the_test_rows_is_in_the_policy():
    """Other scores and outcomes of the test rows, and other outcomes of the selection rows for the calibrator, change nothing."""
    v = world(12_000, temperature=1.6)
    slices, _ = frozen(v)
    found = chosen(v, slices, Objective("f1"))
    other = replace(v, rows=v.rows.copy(), labels=v.labels.copy())
    test, selection = (v.role == ROLES.index(name) for name in ("test", "selection"))
    other.rows["score"][test] = 0.5
    other.labels["outcome"][test | selection] = 1 - np.maximum(v.labels["outcome"][test | selection], 0)
    again = chosen(other, slices, Objective("f1"))
    assert again.calibration == found.calibration
    assert again.policy.calibrator == found.policy.calibrator != IDENTITY
    other.labels["outcome"][selection] = v.labels["outcome"][selection]
    assert chosen(other, slices, Objective("f1")).policy == found.policy


def test_review_and_abstain_are_counted_apart():
    """Rows that somebody reviews or nobody decides are neither right nor wrong; all counts add up to the rows."""
    v = world(3_000)
    made = policy("", "m", "v", {"all": 0.5}, review=(0.2, 0.3), abstain=0.2)
    found = measured(v, made, frozen(v)[1])
    score, known = v.rows["score"], v.labels["outcome"] >= 0
    low, high = made.review
    assert found.counts["review"] == int((known & (score >= low) & (score < high)).sum())
    assert found.counts["abstain"] > 0
    assert sum(found.counts.values()) == 3_000


@pytest.mark.parametrize(
    ("change", "objective", "calibration", "selection"),
    [
        ({}, None, "no_improvement", "no_objective"),
        ({"margins": True}, cost(1, 1), "margin_scores", "margin_scores"),
        ({"timed": False}, Objective("capacity", 10), None, "no_times"),
    ],
)
def test_no_policy_has_a_reason(change, objective, calibration, selection):
    """Where no threshold can be chosen there is no policy but a reason, and the test rows are measured all the same."""
    v = replace(world(12_000), **change)
    slices, edges = frozen(v)
    found = chosen(v, slices, objective)
    assert found.policy is None
    assert found.selection["reason"] == selection
    assert calibration in (None, found.calibration["reason"])
    result = measured(v.of("test"), None, edges)
    assert result.counts["undecided"] + result.counts["unlabelled"] == result.rows
    estimates = {e.metric: e for e in result.raw.estimates}
    assert estimates["recall"].reason == "no_threshold"
    assert estimates["brier"].reason == ("margin_scores" if v.margins else "")


def test_thresholds_by_slice():
    """A slice with 300 positives or more has a threshold of its own, and the test counts what it decides."""
    v = world(24_000)
    v.rows["score"][v.rows["combo"] == 1] **= 2
    slices, edges = frozen(v)
    found = chosen(v, slices, Objective("f1"), "country")
    assert found.policy.thresholds["country=FR"] < found.policy.thresholds["country=DE"]
    test = v.of("test")
    cut = np.where(test.rows["combo"] == 0, *(found.policy.thresholds[f"country={c}"] for c in ("DE", "FR")))
    positive = test.labels["outcome"] == 1
    assert measured(test, found.policy, edges).counts["tp"] == int((positive & (test.rows["score"] >= cut)).sum())


def test_few_labels_choose_nothing():
    """Where fewer than .8 of the rows have an outcome nobody knows how these were picked, and nothing is chosen."""
    v = world(6_000)
    v.labels["outcome"][::3] = -1
    slices, edges = frozen(v)
    found = chosen(v, slices, cost(1, 1))
    assert (found.policy, found.selection["reason"]) == (None, "unidentified")
    assert {e.reason for e in measured(v.of("test"), None, edges).raw.estimates} >= {"unidentified"}


def test_few_positives_are_cross_fitted():
    """With few positives each fold is decided by the others, calibrators are a diagnosis, and the policy has none of them."""
    v = world(1_500, temperature=1.6)
    v = replace(v, key=np.repeat(v.key[:500], 3))
    slices, edges = frozen(v)
    found, result = cross_fitted(v, slices, Objective("f1"), "", edges)
    assert found.policy.calibrator == IDENTITY
    assert found.calibration["reason"] == "few_to_calibrate"
    diagnosis = found.calibration["diagnosis"]
    assert diagnosis["temperature"]["calibrator"]["t"] == pytest.approx(1.6, abs=0.3)
    assert diagnosis["temperature"]["log_loss"]["high"] < 0
    assert diagnosis["isotonic"] == {"reason": "low_n"}
    assert result.served is None
    assert sum(result.counts.values()) == result.rows == 1_500
    fold, known = (v.key % np.uint64(5)).astype(int), v.labels["outcome"] >= 0
    tp = 0
    for k in range(5):
        others = v.some(fold != k)
        cut = chosen(replace(others, role=np.full(len(others.role), 1)), slices, Objective("f1")).policy.cut
        tp += int(((fold == k) & known & (v.labels["outcome"] == 1) & (v.rows["score"] >= cut)).sum())
    assert result.counts["tp"] == tp


def test_a_capacity_is_that_of_all_rows_of_a_day():
    """Chosen on a part of each day, it is kept by the whole days: the part stands for as much of a day as it is."""
    v = world()
    slices, edges = frozen(v)
    parts = replace(v, role=split(SHARES, v.key, None))
    cut = chosen(parts, slices, Objective("capacity", 20.0)).policy.cut
    assert (v.rows["score"] >= cut).sum() / 30 == pytest.approx(20, rel=0.15)
    days = v.of("selection").rows
    cut = chosen(v, slices, Objective("capacity", 20.0)).policy.cut
    most = 20 * len(np.unique(days["ts"] // DAY))
    assert (days["score"] >= cut).sum() <= most < (days["score"] >= cut - 0.02).sum()
    few = v.some(np.arange(len(v.role)) % 4 == 0)
    result = cross_fitted(few, slices, Objective("capacity", 5.0), "", edges)[1]
    labelled = (few.labels["outcome"] >= 0).mean()
    assert (result.counts["tp"] + result.counts["fp"]) / labelled / 30 == pytest.approx(5, rel=0.15)


def test_rows_of_one_entity_widen_the_interval_of_a_diagnosis():
    """Rows that come ten times under one key say no more than rows that come once: the interval is about as wide."""
    once = world(800, temperature=1.6)
    slices, edges = frozen(once)
    ten = replace(once, **{name: np.repeat(getattr(once, name), 10) for name in ("rows", "labels", "role", "key")})
    found = [cross_fitted(v, slices, None, "", edges)[0].calibration["diagnosis"]["offset"]["log_loss"] for v in (once, ten)]
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)
