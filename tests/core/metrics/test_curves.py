"""Curves and counts by threshold against scikit-learn and the worked examples."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from monitor.core.events import FLAG, PASS
from monitor.core.metrics import curves
from monitor.core.metrics.ranking import average_precision, roc_auc
from monitor.core.readings import known
from monitor.core.tables import EDGES, grid_bin


def _world(seed, n):
    rng = np.random.default_rng(seed)
    score = rng.beta(1, 3, n)
    return score, (rng.random(n) < score).astype(np.int8)


@pytest.mark.parametrize("n", [50, 5_000])
def test_curves_are_scikit_learns(table, n):
    """Both curves are scikit-learn's of the binned scores, whatever the verdicts, with edges of the grid as thresholds."""
    score, y = _world(1, n)
    r, edges = known(table(score, y, verdicts=np.where(np.arange(n) % 2, FLAG, PASS))), EDGES[grid_bin(score)]
    fpr, tpr, thresholds = roc_curve(y, edges, drop_intermediate=False)
    found = curves.roc(r)
    assert (found.fpr, found.tpr) == (pytest.approx(fpr), pytest.approx(tpr))
    assert found.threshold == [None, *thresholds[1:]]
    assert np.trapezoid(found.tpr, found.fpr) == pytest.approx(roc_auc(r).value, abs=1e-12)
    precision, recall, thresholds = precision_recall_curve(y, edges)
    other = curves.precision_recall(r)
    assert other.threshold == thresholds[::-1].tolist()
    assert (other.precision, other.recall) == (pytest.approx(precision[-2::-1]), pytest.approx(recall[-2::-1]))
    assert other.prevalence == pytest.approx(y.mean())
    assert np.diff([0, *other.recall]) @ other.precision == pytest.approx(average_precision(r).value, abs=1e-12)


def test_counts_are_scikit_learns(table):
    """The counts at every step and at a threshold between edges of the grid are those of the rows."""
    score, y = _world(2, 3_000)
    for c in curves.counts_at(known(table(score, y)), [0.0, *curves.STEPS, 1.0]):
        assert [c.tn, c.fp, c.fn, c.tp] == confusion_matrix(y, score >= c.threshold).ravel().tolist()
    r = known(table([0.5, EDGES[grid_bin(np.array([0.5]))[0] + 1]], [0, 1]))
    assert curves.counts_at(r, [0.501]) == [curves.Counts(0.501, 1.0, 0.0, 0.0, 1.0)]


def test_metrics_article_ex2(table, vector):
    """The article's utilities follow from the counts at its thresholds."""
    inputs, expected = vector("metrics_article_ex2")
    found = curves.counts_at(known(table(inputs["probs"], inputs["labels"])), inputs["thresholds"])
    for c in found:
        want = expected["per_threshold"][str(c.threshold)]
        assert {name: getattr(c, name) for name in ("tp", "fp", "fn")} == {name: want[name] for name in ("tp", "fp", "fn")}
        assert sum(inputs["utility"][name] * getattr(c, name) for name in ("tp", "fp", "fn")) == want["utility"]


def test_assessment_lecture_fawcett20(table, vector):
    """The lecture's points are on the curve, and its Youden index is the largest difference."""
    inputs, expected = vector("assessment_lecture_fawcett20")
    r = known(table(inputs["scores"], inputs["labels"]))
    found = curves.roc(r)
    for threshold in ("0_54", "0_505"):
        point = tuple(expected[f"tpr_fpr_at_{threshold}"])
        at = int(np.searchsorted(-np.array(found.threshold[1:]), -float(threshold.replace("_", ".")), side="left")) + 1
        at -= found.threshold[at] > float(threshold.replace("_", "."))
        assert (found.tpr[at], found.fpr[at]) == pytest.approx(point)
    assert found.youden == pytest.approx(expected["youden_j"])
    counts = curves.counts_at(r, [found.youden_threshold])[0]
    assert counts.tp / 10 - counts.fp / 10 == pytest.approx(expected["youden_j"])


def test_one_class(table):
    """With one class there is no ROC curve, without positives no precision-recall curve; counts are always there."""
    negative, positive = known(table([0.2, 0.6], [0, 0])), known(table([0.2, 0.6], [1, 1]))
    assert (curves.roc(negative), curves.roc(positive)) == ("one_class", "one_class")
    assert curves.precision_recall(negative) == "no_positives"
    assert curves.precision_recall(positive).precision == [1.0, 1.0]
    assert curves.counts_at(negative, [0.5]) == [curves.Counts(0.5, 0.0, 1.0, 0.0, 1.0)]


def test_useless_scores_have_no_threshold(table):
    """Where no threshold is better than none the Youden index is 0 at flagging nothing."""
    found = curves.roc(known(table([0.2, 0.2, 0.6, 0.6], [1, 1, 0, 0])))
    assert (found.youden, found.youden_threshold) == (0.0, None)
