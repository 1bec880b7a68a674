"""Counts of decisions against the worked examples and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score, precision_score, recall_score

from monitor.core.events import ABSTAIN, BLOCK, FLAG, NONE, PASS, REVIEW
from monitor.core.intervals import logit_normal, share, wilson
from monitor.core.metrics import confusion as c
from monitor.core.readings import LabelRule, Reading, known, mature, scored

UNKNOWN = (LabelRule("unknown"),) * 6


def _counts(tp, fp, fn, tn):
    """Return a reading of two cells, one flagged, whose counts may be fractions."""
    neg, pos = np.array([tn, fp], float), np.array([fn, tp], float)
    verdict = np.array([PASS, FLAG], np.uint8)
    return Reading("known", np.array([9, 99]), verdict, neg + pos, np.array([0.1, 0.9]), neg, pos, (0.0, 0.0), 0.0)


def test_metrics_article_ex1(table, vector):
    """The article's six cases at .5 give its counts, precision, recall and F1."""
    inputs, expected = vector("metrics_article_ex1")
    r = known(table(inputs["probs"], inputs["labels"], inputs["threshold"]))
    assert c.confusion(r) == tuple(expected[k] for k in ("tp", "fp", "fn", "tn"))
    for name in ("precision", "recall", "f1"):
        assert getattr(c, name)(r).value == pytest.approx(expected[name], abs=1e-9)


def test_assessment_lecture_majority(vector):
    """A model that flags nobody is 95 % accurate, has recall and F1 of 0 and no precision at all."""
    inputs, expected = vector("assessment_lecture_majority")
    r = _counts(**inputs)
    assert c.precision(r) == "no_flagged"
    assert expected["precision"] is None
    for name in ("accuracy", "recall", "f1"):
        assert getattr(c, name)(r).value == pytest.approx(expected[name], abs=1e-12)
    assert c.recall(r).low == 0 < c.recall(r).high


def test_assessment_lecture_screening(vector):
    """Precision falls with prevalence while recall and false-positive rate stay."""
    inputs, expected = vector("assessment_lecture_screening")
    for pi, want in zip(inputs["prevalences"], expected["precision"], strict=True):
        tp, fp = 1_000 * pi * inputs["tpr"], 1_000 * (1 - pi) * inputs["fpr"]
        r = _counts(tp, fp, 1_000 * pi - tp, 1_000 * (1 - pi) - fp)
        assert c.precision(r).value == pytest.approx(want, abs=1e-9)
        assert (c.recall(r).value, c.fpr(r).value) == pytest.approx((inputs["tpr"], inputs["fpr"]))


@pytest.mark.parametrize("threshold", [0.54, 0.505])
def test_assessment_lecture_fawcett20(table, vector, threshold):
    """Accuracy, recall and false-positive rate of the lecture's twenty cases at two thresholds."""
    inputs, expected = vector("assessment_lecture_fawcett20")
    r = known(table(inputs["scores"], inputs["labels"], threshold))
    name = str(threshold).replace(".", "_")
    assert c.accuracy(r).value == pytest.approx(expected[f"acc_at_{name}"])
    assert (c.recall(r).value, c.fpr(r).value) == pytest.approx(expected[f"tpr_fpr_at_{name}"])


def test_agrees_with_scikit_learn(table):
    """Counts and shares are those of scikit-learn; the counts sum to the rows."""
    rng = np.random.default_rng(2)
    score = rng.beta(1, 3, 3_000)
    y = rng.random(3_000) < score
    said = score >= 0.35
    r = known(table(score, y, 0.35))
    tn, fp, fn, tp = confusion_matrix(y, said).ravel().tolist()
    assert c.confusion(r)[:4] == (tp, fp, fn, tn)
    assert tp + fp + fn + tn == 3_000
    oracles = {"recall": recall_score, "precision": precision_score, "f1": f1_score, "accuracy": accuracy_score}
    for name, oracle in oracles.items():
        assert getattr(c, name)(r).value == pytest.approx(oracle(y, said), rel=1e-12)
    assert c.flagged_share(r) == c.flagged_share(scored(table(score, None, 0.35)))
    assert c.flagged_share(r).value == pytest.approx(said.mean())


def test_intervals_are_wilsons_of_their_own_rows():
    """Each share counts the rows it is a share of, and its interval is theirs."""
    r = _counts(tp=30, fp=10, fn=20, tn=140)
    assert c.recall(r)[:4] == (0.6, *wilson(30, 50), 50)
    assert c.precision(r)[:4] == (0.75, *wilson(30, 40), 40)
    assert c.fpr(r)[:4] == (10 / 150, *wilson(10, 150), 150)
    assert c.accuracy(r)[:4] == (0.85, *wilson(170, 200), 200)
    assert c.flagged_share(r)[:4] == (0.2, *wilson(40, 200), 200)


def test_f1_interval_is_carried_over():
    """The ends of F1 are 2j/(1+j) of the ends of tp/(tp+fp+fn)."""
    r = _counts(tp=30, fp=10, fn=20, tn=140)
    low, high = wilson(30, 60)
    assert c.f1(r)[:4] == pytest.approx((60 / 90, 2 * low / (1 + low), 2 * high / (1 + high), 60))


def test_undefined_is_a_reason():
    """Where a denominator is empty there is a reason instead of a number."""
    assert c.recall(_counts(0, 5, 0, 5)) == c.f1(_counts(0, 5, 0, 5)) == "no_positives"
    assert c.precision(_counts(0, 0, 5, 5)) == "no_flagged"
    assert c.fpr(_counts(5, 0, 5, 0)) == "no_negatives"


def test_verdicts(table):
    """Flag, review and block are flagged, pass and abstain are not, and rows nobody decided about do not count."""
    r = known(table([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1] * 6, verdicts=[PASS, FLAG, REVIEW, ABSTAIN, BLOCK, NONE]))
    assert c.confusion(r)[:4] == (3, 0, 2, 0)
    assert c.recall(r).n == c.flagged_share(r).n == 5


@given(*[st.integers(0, 50)] * 4)
def test_f1_is_the_harmonic_mean(tp, fp, fn, tn):
    """F1 is the harmonic mean of precision and recall wherever both are defined."""
    r = _counts(tp, fp, fn, tn)
    p, q = c.precision(r), c.recall(r)
    if not isinstance(p, str) and not isinstance(q, str) and tp:
        assert c.f1(r).value == pytest.approx(2 * p.value * q.value / (p.value + q.value))


def _audited(table, tp=240, fp=60, found=5, honest=95, q=0.02):
    """Return a mature reading: all flagged rows looked at, of the passed ones each with probability q."""
    y = np.repeat([1, 0, 1, 0], [tp, fp, found, honest])
    flagged = np.arange(len(y)) < tp + fp
    prob = np.where(flagged, 0.0, q)
    return mature(table(np.where(flagged, 0.8, 0.1), y, verdicts=np.where(flagged, FLAG, PASS), label_prob=prob), UNKNOWN)


def test_ht_recall(table, vector):
    """Each missed positive that was found stands for 1 / q (to the 2.5e-4 that stored probabilities have)."""
    inputs, expected = vector("ht_recall")
    q, found = inputs["audit_prob"], inputs["audited_fn"]
    r = _audited(table, tp=inputs["flagged_tp"], found=found, q=q)
    assert c.confusion(r)[2] == pytest.approx(expected["fn_hat"], rel=2.5e-4)
    assert c.recall(r) == "few_audited_misses"
    assert c.recall(replace(r, seen=r.seen * 2)).value == pytest.approx(expected["recall"], rel=2.5e-4)


def test_weighted_intervals(table):
    """Recall has the delta-method variance on the logit scale and an effective n; precision has weights of 1 and Wilson."""
    r = _audited(table, found=20)
    w = 1_000 / 20
    found = c.recall(r)
    n = 240 + 1_000
    variance = (1_000**2 * 240 + 240**2 * 20 * w**2) / n**4
    assert found[:3] == pytest.approx((240 / n, *logit_normal(240 / n, variance)), rel=1e-3)
    assert found.n == int(n**2 / (240 + 20 * w**2))
    assert c.precision(r) == share(240.0, 300.0)
    assert c.fpr(r).n < 100 < c.accuracy(r).n
    j = share(240.0, 1_300.0, (240.0, 60 + 20 * w**2, 0.0))
    assert c.f1(r)[:4] == pytest.approx((*(2 * x / (1 + x) for x in j[:3]), j.n), rel=1e-3)


@pytest.mark.parametrize("name", ["recall", "f1"])
def test_few_audited_misses(table, name):
    """Fewer than ten found misses that stand for others are no recall, none at all least of all."""
    metric = getattr(c, name)
    assert metric(_audited(table, found=9)) == metric(_audited(table, found=0)) == "few_audited_misses"
    assert metric(_audited(table, found=10)).value < 0.5
    assert metric(_audited(table, found=9, q=1.0)).value > 0.8
    assert not isinstance(c.precision(_audited(table, found=0)), str)


def test_complements_are_known(table):
    """Where negatives are the rest of the rows, precision is as sure as its positives alone."""
    spread = np.array([[40.0, 90.0], [40.0, 90.0], [-40.0, -90.0]])
    r = replace(_counts(tp=60, fp=40, fn=20, tn=880), spread=spread)
    assert c.precision(r)[:3] == pytest.approx((0.6, *logit_normal(0.6, 90 / 100**2)))
    assert c.recall(r)[:3] == pytest.approx((0.75, *logit_normal(0.75, (20**2 * 90 + 60**2 * 40) / 80**4)))
    assert c.flagged_share(r)[:3] == (0.1, *wilson(100, 1_000))
    assert c.accuracy(r)[:3] == pytest.approx((0.94, *logit_normal(0.94, (90 + 40) / 1_000**2)))


def test_recall_covers_the_population(table):
    """The interval of recall from some 1,000 audits with probability sqrt(score) holds the truth in 90 % of 200 runs."""
    rng = np.random.default_rng(11)
    p = 1 / (1 + np.exp(3.5 - rng.normal(0, 1, 400_000)))
    recall = p[p >= 0.2].sum() / p.sum()
    inside = none = 0
    for _ in range(200):
        score = 1 / (1 + np.exp(3.5 - rng.normal(0, 1, 20_000)))
        y = (rng.random(20_000) < score).astype(np.int8)
        flagged = score >= 0.2
        q = 1_000 * np.sqrt(score) / np.sqrt(score[~flagged]).sum()
        looked = flagged | (rng.random(20_000) < q)
        verdicts, prob = np.where(flagged, FLAG, PASS)[looked], np.where(flagged, 0.0, q)[looked]
        found = c.recall(mature(table(score[looked], y[looked], verdicts=verdicts, label_prob=prob), UNKNOWN))
        none += isinstance(found, str)
        inside += not isinstance(found, str) and found.low <= recall <= found.high
    assert none == 0
    assert inside >= 180


def test_balanced_accuracy(table, vector):
    """It is scikit-learn's, .5 for always saying the same, and undefined where one of its halves is."""
    rng = np.random.default_rng(41)
    score = rng.random(400)
    y = (rng.random(400) < score**2).astype(np.int8)
    assert c.balanced_accuracy(known(table(score, y, 0.5))).value == pytest.approx(balanced_accuracy_score(y, score >= 0.5))
    inputs, expected = vector("assessment_lecture_majority")
    assert c.balanced_accuracy(_counts(**inputs)).value == expected["balanced_accuracy"]
    assert c.balanced_accuracy(_counts(0, 3, 0, 2)) == "no_positives"
    assert c.balanced_accuracy(_counts(3, 0, 2, 0)) == "no_negatives"


@pytest.mark.parametrize("prevalence", [0.03, 0.5])
def test_interval_of_balanced_accuracy_covers(table, prevalence):
    """The 95 % interval holds the truth in 92 to 98 % of 400 runs, few positives or many."""
    rng = np.random.default_rng(42)
    found = []
    for _ in range(400):
        y = rng.random(1_000) < prevalence
        found.append(c.balanced_accuracy(known(table(np.where(rng.random(1_000) < np.where(y, 0.8, 0.1), 0.9, 0.1), y, 0.5))))
    assert 0.92 <= np.mean([e.low <= 0.85 <= e.high for e in found]) <= 0.98


def test_balanced_accuracy_of_clusters(table):
    """Clusters widen the interval at least to what their rows' worth would give, errors of the halves added up."""
    rng = np.random.default_rng(43)
    score, cluster = rng.random(300), rng.integers(1, 2**32, 300)
    y = (rng.random(300) < score).astype(np.int8)
    r = known(table(score.repeat(8), y.repeat(8), 0.5, cluster=cluster.repeat(8)))
    wide, narrow = c.balanced_accuracy(r), c.balanced_accuracy(replace(r, groups=None))
    assert wide.value == narrow.value
    assert 2 < (wide.high - wide.low) / (narrow.high - narrow.low) < 5
    hits = c.recall(r)
    assert wide.value - wide.low > (hits.value - hits.low) / 2
    unknown = c.balanced_accuracy(replace(r, groups=np.full_like(r.groups, np.nan)))
    assert (unknown.low, unknown.interval_reason) == (None, "clustered")


def test_confidence_article_75cases(vector):
    """Of the article's nine errors four have a confidence of .8 or more, which is their share of the rows that do."""
    inputs, expected = vector("confidence_article_75cases")
    n, p = (np.array([b[k] for b in inputs["bins"]]) for k in ("n", "confidence"))
    neg = np.array(expected["errors_rounded"], float)
    order = np.argsort(p)
    n, p, neg = n[order], p[order], neg[order]
    r = Reading("known", np.array([1, 2, 3]), np.full(3, NONE, np.uint8), n, p, neg, n - neg, (0.0, 0.0), 0.0)
    wrong, high = c.errors(r)
    assert wrong[high].sum() == expected["high_conf_errors"]
    assert wrong[high].sum() / wrong.sum() == pytest.approx(expected["high_conf_error_share"], abs=1e-9)
    assert c.high_confidence_error_share(r)[:4] == pytest.approx((4 / 55, *wilson(4.0, 55.0), 55))


def test_high_confidence_counts_both_ends(table):
    """A confidence of .8 is high at both ends, .2 and .8, whatever sums of equal scores round to; none is a reason."""
    score = np.array([0.2] * 30 + [0.21] * 30 + [0.79] * 30 + [0.8] * 30 + [1.0, 0.0])
    y = np.array(([1] * 3 + [0] * 27) * 2 + ([0] * 5 + [1] * 25) * 2 + [0, 1])
    found = c.high_confidence_error_share(known(table(score, y)))
    assert found[:4] == pytest.approx((10 / 62, *wilson(10.0, 62.0), 62))
    assert c.high_confidence_error_share(known(table([0.3, 0.6], [0, 1]))) == "no_high_confidence"


def test_high_confidence_of_weights_and_clusters(table):
    """Weights count errors as the rows they stand for, and equal ones change no value; clusters widen the interval."""
    rng = np.random.default_rng(44)
    score = rng.beta(1, 4, 3_000)
    y = (rng.random(3_000) < score).astype(np.int8)
    plain = c.high_confidence_error_share(known(table(score, y)))
    equal = c.high_confidence_error_share(mature(table(score, y, label_prob=np.full(3_000, 0.25)), UNKNOWN))
    assert (equal.value, equal.n) == (pytest.approx(plain.value), plain.n)
    assert (equal.low, equal.high) == pytest.approx(
        logit_normal(plain.value, plain.value * (1 - plain.value) / plain.n), rel=1e-3
    )
    r = known(table(score.repeat(6), y.repeat(6), cluster=rng.integers(1, 2**32, 3_000).repeat(6)))
    wide, narrow = c.high_confidence_error_share(r), c.high_confidence_error_share(replace(r, groups=None))
    assert wide.value == narrow.value == pytest.approx(plain.value)
    assert 1.8 < (wide.high - wide.low) / (narrow.high - narrow.low) < 3.5
