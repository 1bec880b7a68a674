"""Which metrics a reading has, which it has not, and why."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.days import Key
from monitor.core.events import BLOCK, FLAG, NONE, PASS, REVIEW
from monitor.core.metrics import METRICS, Estimate, measure, of_margins
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.readings import LabelRule, known, mature, scored
from monitor.core.reasons import NO_INTERVAL, UNDEFINED
from monitor.core.tables import EMPTY, not_waiting

NEGATIVE = (LabelRule("negative"),) * 6
UNKNOWN = (LabelRule("unknown"),) * 6

KEY = Key("m", "1", "all", 20_000)
DRIFT = [f"{name}{end}" for name in ("psi", "js", "ks", "wasserstein") for end in ("", "_null")]
SCORED = ["flagged_share", "mean_score", *DRIFT]
DECIDED = {"flagged_share", "recall", "precision", "f1", "fpr", "accuracy", "balanced_accuracy"}
BASELINED = {*DRIFT, "ece", "mce", "ece_noise_floor", "squared_calibration_error"}


def _mixed(table, n=500, threshold=0.5):
    rng = np.random.default_rng(6)
    score = rng.beta(1, 2, n)
    return table(score, rng.random(n) < score, threshold)


def _reasons(estimates):
    return {e.metric: e.reason for e in estimates}


def test_everything_is_defined(table):
    """With outcomes, verdicts and a baseline every metric has a value, in the order of METRICS."""
    t = _mixed(table)
    found = measure(mature(t, UNKNOWN), KEY, "28d", calibration_edges(scored(t)), scored(t))
    assert [e.metric for e in found] == list(METRICS)
    assert all(e.reason == "" and (e.key, e.window, e.basis) == (KEY, "28d", "mature") for e in found)


def test_scored_has_no_outcome_metrics(table):
    """The basis scored has only the metrics that need no outcomes."""
    t = _mixed(table)
    assert [e.metric for e in measure(scored(t), KEY, "24h", calibration_edges(scored(t)), scored(t))] == SCORED


def test_names_restrict(table):
    """Only the named metrics are measured, with the values they have anyway."""
    r = known(_mixed(table))
    some = measure(r, KEY, "7d", names={"recall", "ece"})
    assert some == tuple(e for e in measure(r, KEY, "7d") if e.metric in {"recall", "ece"})
    assert [e.metric for e in some] == ["ece", "recall"]


def test_no_baseline(table):
    """Without a baseline the metrics on its edges or scores say so and all others are there."""
    found = _reasons(measure(known(_mixed(table)), KEY, "7d"))
    assert found == {name: "no_baseline" if name in BASELINED else "" for name in METRICS}
    empty = measure(known(_mixed(table)), KEY, "7d", np.zeros(1, np.int64), scored(EMPTY), names={"psi", "psi_null"})
    assert {e.reason for e in empty} == {"no_baseline"}


def test_no_threshold(table):
    """Without verdicts the metrics of decisions say so and all others are there."""
    t = _mixed(table, threshold=None)
    found = _reasons(measure(known(t), KEY, "7d", calibration_edges(scored(t)), scored(t)))
    assert found == {name: "no_threshold" if name in DECIDED else "" for name in METRICS}


def test_d05_one_class(table):
    """With no positive, area, recall and F1 are undefined with a reason, the rest is right, and the next window recovers."""
    score = np.full(500, 0.25)
    r = known(table(score, np.zeros(500), 0.5))
    found = {e.metric: e for e in measure(r, KEY, "7d")}
    assert {name: e.reason for name, e in found.items() if e.reason and name not in BASELINED} == {
        **dict.fromkeys(("roc_auc", "partial_roc_auc", "offset", "slope", "intercept"), "one_class"),
        **dict.fromkeys(("recall", "balanced_accuracy", "average_precision"), "no_positives"),
        "high_confidence_error_share": "no_high_confidence",
        "f1": "no_positives",
        "precision": "no_flagged",
    }
    assert found["roc_auc"] == Estimate("roc_auc", KEY, "7d", "known", None, None, None, 500, "one_class")
    assert found["ece_width10"].value == pytest.approx(0.25)
    assert found["brier"].value == pytest.approx(0.0625)
    assert found["log_loss"].value == pytest.approx(-math.log(0.75))
    mixed = known(table(score, np.zeros(500), 0.5) + _mixed(table))
    assert {e.reason for e in measure(mixed, KEY, "7d") if e.metric not in BASELINED} == {""}


def test_d15_degenerate(table):
    """Scores that are all 1 keep their calibration error, and the log loss says that they are degenerate."""
    found = {e.metric: e for e in measure(known(table(np.ones(1_000), np.arange(1_000) < 700)), KEY, "7d")}
    assert found["ece_width10"].value == pytest.approx(0.3)
    assert (found["log_loss"].value, found["log_loss"].reason) == (None, "degenerate")


@pytest.mark.parametrize(
    ("reading", "reason"),
    [(scored(EMPTY), "no_events"), (known(EMPTY), "no_events"), (mature(EMPTY, NEGATIVE), "no_mature_days")],
)
def test_nothing_to_read(reading, reason):
    """An empty reading gives its reason for every metric and n = 0."""
    assert {(e.value, e.n, e.reason) for e in measure(reading, KEY, "28d")} == {(None, 0, reason)}


def test_no_labels(table):
    """Events without labels give no_labels for every metric of outcomes."""
    assert set(_reasons(measure(known(table([0.2, 0.4])), KEY, "28d")).values()) == {"no_labels"}


def test_unidentified(table):
    """Too few labels take away every metric of outcomes; what the labelled rows score is still said."""
    t = table(np.linspace(0, 1, 10), [0, 1, 0, 1, 1] + [-1] * 5, 0.5)
    found = _reasons(measure(mature(t, UNKNOWN), KEY, "28d", calibration_edges(scored(t)), scored(t)))
    assert found == {name: "unidentified" if METRICS[name].outcomes else "" for name in METRICS}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])),
            st.sampled_from([-1, 0, 1]),
            st.sampled_from([PASS, FLAG, NONE]),
        ),
        max_size=40,
    )
)
def test_a_value_or_a_reason(table, events):
    """Whatever the rows, each estimate has a finite value inside its interval or else a known reason; never NaN."""
    scores, outcomes, verdicts = zip(*events, strict=True) if events else ((), (), ())
    t = table(np.array(scores, float), np.array(outcomes, np.int8), verdicts=np.array(verdicts, np.uint8))
    for r in (scored(t), known(t), mature(t, NEGATIVE), mature(t, UNKNOWN)):
        for e in measure(r, KEY, "28d", calibration_edges(scored(t)), scored(t)):
            if e.value is None:
                assert e.reason in UNDEFINED
                assert e.low is e.high is None
            else:
                assert not e.reason
                assert math.isfinite(e.value)
                assert type(e.value) is float
                assert e.n > 0
                assert (e.low is None) is (e.high is None)
                if e.low is not None:
                    assert e.low - 1e-9 <= e.value <= e.high + 1e-9


ROWS = st.tuples(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.3, 1.0])),
    st.sampled_from([-1, 0, 1]),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.0, 1.0, 0.3, 1e-6]),
    st.sampled_from([0, 1, 2, 3]),
)
RULE = st.builds(LabelRule, st.sampled_from(["negative", "unknown"]), st.booleans())
POINTS = {
    *DRIFT,
    *("mce", "mce_width10", "ece_noise_floor", "partial_roc_auc"),
    *(f"{loss}_{part}" for loss in ("brier", "log_loss") for part in ("refinement", "calibration")),
}


@given(st.lists(ROWS, max_size=40), st.tuples(*[RULE] * 6), st.booleans(), st.booleans())
def test_an_interval_or_a_reason(table, events, rules, weighted, many):
    """Whatever weights, clusters and rules, an estimate lies inside its interval or says why there is none; never NaN."""
    scores, outcomes, verdicts, prob, cluster = np.array(events, float).reshape(-1, 5).T
    columns = {"label_prob": prob * weighted, "cluster": cluster * (1 + many * np.arange(len(cluster)))}
    t = table(scores, outcomes.astype(np.int8), verdicts=verdicts.astype(np.uint8), **columns)
    for r in (scored(t), known(t), mature(t, rules), mature(t + not_waiting(t), rules)):
        for e in measure(r, KEY, "28d", calibration_edges(scored(t)), scored(t)):
            if e.reason:
                assert (e.value, e.low, e.high, e.interval_reason) == (None, None, None, "")
                assert e.reason in UNDEFINED
                continue
            assert math.isfinite(e.value)
            assert e.n > 0
            assert (e.low is None) is (e.high is None) is (e.metric in POINTS or e.interval_reason in NO_INTERVAL)
            if e.low is not None:
                assert (type(e.value), type(e.low), type(e.high), type(e.n)) == (float, float, float, int)
                assert e.low - 1e-9 <= e.value <= e.high + 1e-9


@pytest.mark.parametrize("threshold", [0.3, None])
def test_variances_of_counts_change_nothing(table, threshold):
    """With the variances that counts have every metric says what it says of counts: shares to the bit, the rest to 1e-12."""
    r = known(_mixed(table, 2_000, threshold))
    same = dataclasses.replace(r, spread=np.stack((r.neg, r.pos, np.zeros(len(r.n)))), seen=r.pos)
    edges = calibration_edges(r)
    for a, b in zip(measure(r, KEY, "7d", edges, r), measure(same, KEY, "7d", edges, r), strict=True):
        numbers = [[v for v in (x.value, x.low, x.high) if v is not None] for x in (a, b)]
        assert numbers[1] == (numbers[0] if a.metric in DECIDED else pytest.approx(numbers[0], rel=1e-12, abs=1e-15))
        assert dataclasses.replace(b, value=a.value, low=a.low, high=a.high) == a


NEVER = tuple(LabelRule("unknown", never=v == BLOCK) for v in range(6))
SEEN = {
    *("bias", "ece", "mce", "ece_noise_floor", "ece_width10", "mce_width10", "squared_calibration_error"),
    *("offset", "slope", "intercept"),
}


def test_prevented_outcomes(table):
    """Where blocking prevents outcomes, only what holds given the score is said, about the other rows."""
    rng = np.random.default_rng(6)
    score = rng.beta(1, 2, 500)
    y, blocked = (rng.random(500) < score).astype(np.int8), score > 0.8
    t = table(score, np.where(blocked, -1, y), verdicts=np.where(blocked, BLOCK, np.where(score > 0.5, FLAG, PASS)))
    found = {e.metric: e for e in measure(mature(t, NEVER), KEY, "28d", calibration_edges(scored(t)), scored(t))}
    assert {name: e.reason for name, e in found.items() if METRICS[name].outcomes} == {
        name: "" if name in SEEN else "prevented" for name, m in METRICS.items() if m.outcomes
    }
    assert found["bias"].value == pytest.approx((score - y)[~blocked].mean())
    assert found["bias"].n == (~blocked).sum()
    assert {name for name, m in METRICS.items() if m.about == "seen"} == SEEN


def test_precision_needs_the_flagged_only(table):
    """Precision is right although nobody looks at passed rows; with labels on passed rows only it is the one that is not."""
    score = np.linspace(0.05, 0.95, 100)
    y = (np.arange(100) % 3 == 0).astype(np.int8)
    for looked, reason in ((score >= 0.5, ""), (score < 0.5, "unidentified")):
        found = _reasons(measure(mature(table(score, np.where(looked, y, -1), 0.5), UNKNOWN), KEY, "28d"))
        assert (found["precision"], found["recall"], found["bias"]) == (reason, "unidentified", "unidentified")


def test_weighted_clusters_have_no_intervals(table):
    """Weights and clusters together: the estimate is there, its interval is not."""
    rng = np.random.default_rng(7)
    score = rng.beta(1, 2, 2_000)
    y, cluster = (rng.random(2_000) < score).astype(np.int8), rng.integers(1, 2**32, 500).repeat(4)
    r = mature(table(score, y, 0.5, label_prob=np.full(2_000, 0.5), cluster=cluster), UNKNOWN)
    for e in measure(r, KEY, "28d", calibration_edges(r), r):
        assert e.value is not None
        assert e.interval_reason == ("" if e.metric in POINTS else "clustered")


def test_rules_that_groups_cannot_tell(table):
    """Where verdicts of the flagged rows differ in their rules, intervals with clusters are absent."""
    rng = np.random.default_rng(8)
    score = rng.beta(1, 2, 2_000)
    y, cluster = rng.integers(-1, 2, 2_000), rng.integers(1, 2**32, 500).repeat(4)
    verdicts = np.where(score > 0.5, np.where(score > 0.7, REVIEW, FLAG), PASS)
    rules = tuple(LabelRule("unknown" if v == REVIEW else "negative") for v in range(6))
    reviewed = verdicts == REVIEW
    y[reviewed] = np.where(rng.random(reviewed.sum()) < 0.9, np.abs(y[reviewed]), -1)
    t = table(score, y, verdicts=verdicts, cluster=cluster)
    some = {e.metric: e.interval_reason for e in measure(mature(t, rules), KEY, "28d", names=["precision", "bias", "brier"])}
    assert some == dict.fromkeys(some, "clustered")
    assert {e.interval_reason for e in measure(mature(t, NEGATIVE), KEY, "28d", names=list(some))} == {""}


def test_reasons_and_helps():
    """Every metric has one sentence of help; the model-implied prevalence and the kind of ECE are named."""
    assert all(m.help.endswith(".") and "\n" not in m.help for m in METRICS.values())
    assert "not the prevalence" in METRICS["mean_score"].help
    assert "P(positive)" in METRICS["ece_width10"].help
    assert {name for name, m in METRICS.items() if m.decided} == DECIDED
    assert {name for name, m in METRICS.items() if m.edges or m.reference} == BASELINED
    assert [name for name, m in METRICS.items() if not m.outcomes] == SCORED


def test_estimates_are_frozen(table):
    """An estimate cannot be changed after it was made."""
    estimate = measure(known(_mixed(table)), KEY, "7d")[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate.value = 0.0


def test_margins_are_no_probabilities(table):
    """Of margins what ranks, drifts, counts outcomes or verdicts is as it is, and all else is refused, on every basis."""
    t = _mixed(table)
    found = of_margins(measure(known(t), KEY, "28d", calibration_edges(scored(t)), scored(t)))
    ranking = {"roc_auc", "partial_roc_auc", "average_precision"}
    assert {e.metric for e in found if not e.reason} == {*DRIFT, *DECIDED, *ranking, "prevalence", "majority_share"}
    assert {e.reason for e in found} == {"", "margin_scores"}
    names = [f"{name}{end}" for name in ("prevalence", "recall", "precision") for end in ("", "_bias")]
    implied = of_margins(Estimate(name, KEY, "24h", "estimated", 0.5, 0.4, 0.6, 9) for name in names)
    assert [e.metric for e in implied if not e.reason] == ["prevalence", "prevalence_bias"]
