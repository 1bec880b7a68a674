"""The area under the ROC curve against scikit-learn, brute force and simulation."""

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from monitor.core.events import FLAG, PASS
from monitor.core.intervals import delong, wilson
from monitor.core.metrics.ranking import MAX_FPR, average_precision, partial_roc_auc, roc_auc
from monitor.core.readings import LabelRule, known, mature
from monitor.core.tables import BINS, grid_bin

UNKNOWN = (LabelRule("unknown"),) * 6


def _world(rng, n, shift, center):
    y = rng.random(n) < 1 / (1 + math.exp(-center))
    return 1 / (1 + np.exp(-(center + shift * (y - 0.5) + rng.normal(0, 1, n)))), y.astype(np.int8)


@pytest.mark.parametrize(("n", "center"), [(1_000, -1), (30_000, -1), (30_000, -4), (100_000, 0)])
def test_agrees_with_scikit_learn(table, n, center):
    """The area is scikit-learn's within max(5e-5, 1/50 of its standard error), and exactly that of the binned scores."""
    score, y = _world(np.random.default_rng(9), n, 1.5, center)
    found = roc_auc(known(table(score, y))).value
    bins = grid_bin(score)
    se = math.sqrt(delong(*(np.bincount(bins[y == k], minlength=BINS).astype(float) for k in (0, 1)))[1])
    assert found == pytest.approx(roc_auc_score(y, bins), abs=1e-12)
    assert abs(found - roc_auc_score(y, score)) <= max(5e-5, se / 50)


def test_assessment_lecture_fawcett20(table, vector):
    """The lecture's twenty cases have area .68."""
    inputs, expected = vector("assessment_lecture_fawcett20")
    assert roc_auc(known(table(inputs["scores"], inputs["labels"]))).value == pytest.approx(expected["auc"], abs=1e-12)


def test_assessment_lecture_baserate(table, vector):
    """A constant score has area .5, and its interval does not claim certainty."""
    inputs, expected = vector("assessment_lecture_baserate")
    found = roc_auc(known(table(np.full(100, inputs["score"]), np.arange(100) < 5)))
    assert found.value == expected["auc"]
    assert found[1:4] == pytest.approx((*wilson(2.5, 5.0), 100))


def test_calib40(table, vector):
    """The area of the vector comes out."""
    inputs, expected = vector("calib40")
    assert roc_auc(known(table(inputs["scores"], inputs["labels"]))).value == pytest.approx(expected["auc"], abs=1e-12)


def test_verdicts_do_not_split_ties(table):
    """Rows of one bin are tied whatever was decided about them."""
    rng = np.random.default_rng(3)
    score, y = rng.integers(1, 5, 400) / 5, rng.integers(0, 2, 400)
    r = known(table(score, y, verdicts=np.where(rng.random(400) < 0.5, FLAG, PASS)))
    assert len(r.bin) == 8
    assert roc_auc(r) == roc_auc(known(table(score, y)))
    assert roc_auc(r).value == pytest.approx(roc_auc_score(y, score), abs=1e-12)


@pytest.mark.parametrize("y", [0, 1])
def test_d05_one_class(table, y):
    """With one class the area is undefined, not 0, .5 or 1."""
    assert roc_auc(known(table(np.linspace(0, 1, 500), np.full(500, y)))) == "one_class"


def test_classes_apart(table):
    """Perfect separation of few rows is not certainty: the interval is that of as many disjoint pairs."""
    found = roc_auc(known(table([0.1, 0.2, 0.3, 0.8, 0.9], [0, 0, 0, 1, 1])))
    assert found[:4] == pytest.approx((1.0, *wilson(2.0, 2.0), 5))
    assert found.low < 0.5


def test_single_positive(table):
    """One positive has a value and a very wide interval."""
    found = roc_auc(known(table([0.1, 0.2, 0.3, 0.4, 0.35], [0, 0, 0, 0, 1])))
    assert found.value == 0.75
    assert found.high - found.low > 0.7


@pytest.mark.parametrize(("n", "center"), [(300, -2), (2_000, -3)])
def test_interval_covers(table, n, center):
    """The 95 % interval holds the true area in 92 to 98 % of 400 runs."""
    rng = np.random.default_rng(21)
    truth = 0.5 * math.erfc(-1.5 / math.sqrt(2) / math.sqrt(2))  # P(N(1.5, 2) > 0)
    found = [roc_auc(known(table(*_world(rng, n, 1.5, center)))) for _ in range(400)]
    assert 0.92 <= np.mean([e.low <= truth <= e.high for e in found]) <= 0.98


def test_weighted_area(table):
    """A pair counts the product of the weights of its rows; equal weights are worth their rows, not what they stand for."""
    rng = np.random.default_rng(5)
    score, y = _world(rng, 300, 1.5, -1)
    q = np.exp(-rng.integers(0, 12, 300) / 8)
    r = mature(table(score, y, label_prob=q), UNKNOWN)
    assert roc_auc(r).value == pytest.approx(roc_auc_score(y, grid_bin(score), sample_weight=1 / q), abs=1e-4)
    plain, equal = roc_auc(known(table(score, y))), roc_auc(mature(table(score, y, label_prob=np.full(300, 0.05)), UNKNOWN))
    assert equal[:4] == pytest.approx(plain[:4], rel=1e-9)
    apart = mature(table([0.1, 0.2, 0.3, 0.8, 0.9], [0, 0, 0, 1, 1], label_prob=[0.01] * 5), UNKNOWN)
    assert roc_auc(apart)[:4] == pytest.approx((1.0, *wilson(2.0, 2.0), 5))


@pytest.mark.parametrize(("n", "center"), [(60, 0), (1_000, -1), (30_000, -4)])
def test_partial_area_and_precision_agree_with_scikit_learn(table, n, center):
    """The standardised partial area and the average precision are scikit-learn's of the binned scores, and close to the rows'."""
    score, y = _world(np.random.default_rng(31), n, 1.5, center)
    r, bins = known(table(score, y)), grid_bin(score)
    assert partial_roc_auc(r).value == pytest.approx(roc_auc_score(y, bins, max_fpr=MAX_FPR), abs=1e-12)
    assert average_precision(r).value == pytest.approx(average_precision_score(y, bins), abs=1e-12)
    assert average_precision(r).value == pytest.approx(average_precision_score(y, score), rel=0.01)


def test_partial_area_of_fawcett20(table, vector):
    """The partial area and the average precision of the lecture's cases, at its rate."""
    inputs, expected = vector("assessment_lecture_fawcett20")
    r = known(table(inputs["scores"], inputs["labels"]))
    found = partial_roc_auc(r, None, 0.2).value
    assert found == pytest.approx(expected["partial_auc_max_fpr_0_2_standardized"], abs=1e-12)
    assert average_precision(r).value == pytest.approx(expected["average_precision"], abs=1e-12)


def test_ends_of_partial_area_and_precision(table):
    """Perfect ranking has 1 in both, a constant score chance: .5 and the prevalence; no class, no number."""
    perfect, constant = known(table([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1])), known(table(np.full(100, 0.3), np.arange(100) < 20))
    assert (partial_roc_auc(perfect).value, average_precision(perfect).value) == (1.0, 1.0)
    assert average_precision(perfect)[1:3] == pytest.approx(wilson(2.0, 2.0))
    assert (partial_roc_auc(constant).value, average_precision(constant).value) == pytest.approx((0.5, 0.2))
    reasons = [(partial_roc_auc(r), average_precision(r)) for r in (known(table([0.2, 0.3], [k, k])) for k in (0, 1))]
    assert reasons[0] == ("one_class", "no_positives")
    assert (reasons[1][0], reasons[1][1].value) == ("one_class", 1.0)


@pytest.mark.parametrize(("n", "center"), [(1_000, -1), (5_000, -3)])
def test_interval_of_average_precision_covers(table, n, center):
    """The 95 % interval holds the average precision of a large sample in 90 to 99 % of 200 runs."""
    rng = np.random.default_rng(32)
    truth = average_precision_score(*_world(rng, 1_000_000, 1.5, center)[::-1])
    found = [average_precision(known(table(*_world(rng, n, 1.5, center)))) for _ in range(200)]
    assert 0.90 <= np.mean([e.low <= truth <= e.high for e in found]) <= 0.99
