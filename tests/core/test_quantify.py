"""How common positives are, from scores alone: against EM, the confusion-matrix methods, scipy and simulated truth."""

import numpy as np
import pytest

from monitor.core.quantify import FIT_LEVEL, Classes, Quantified, classes, corrected, histogram_ml
from monitor.core.tables import grid_bin

PRIOR = 0.05


def draw(rng, n, prevalence, negatives=0.0, positives=2.0):
    """Return grid bins and outcomes of a model that is right where prevalence is PRIOR, negatives at 0 and positives at 2."""
    y = rng.random(n) < prevalence
    x = rng.standard_normal(n) + np.where(y, positives, negatives)
    return grid_bin(1 / (1 + np.exp(-(np.log(PRIOR / (1 - PRIOR)) + 2 * x - 2)))), y


def known(rng, n=20_000, prevalence=PRIOR):
    """Return the classes of a validation."""
    bins, y = draw(rng, n, prevalence)
    grid, at = np.unique(bins, return_inverse=True)
    return classes(grid.astype(np.int64), np.bincount(at, ~y).astype(float), np.bincount(at, y).astype(float))


def quantify(validation, bins):
    """Return what live scores say."""
    grid, n = np.unique(bins, return_counts=True)
    return histogram_ml(grid.astype(np.int64), n.astype(float), validation)


@pytest.mark.parametrize(("prevalence", "n", "live"), [(0.05, 20_000, 10_000), (0.1, 20_000, 10_000), (0.02, 6_000, 2_000)])
def test_coverage(prevalence, n, live):
    """The 95 % interval holds the truth in .93 to .97 of runs and a change of prevalence alone is rejected in about .01."""
    rng = np.random.default_rng(1)
    found = [quantify(known(rng, n), draw(rng, live, prevalence)[0]) for _ in range(400)]
    ends = np.array([(f.value - 1.96 * f.variance**0.5, f.value + 1.96 * f.variance**0.5) for f in found])
    assert 0.92 <= np.mean((ends[:, 0] <= prevalence) & (prevalence <= ends[:, 1])) <= 0.98
    assert np.mean([f.value for f in found]) == pytest.approx(prevalence, abs=1e-3)
    assert np.mean([not f.fits for f in found]) <= 0.025


def test_other_changes_are_rejected():
    """Scores of negatives or of all rows that moved fit no mixture: there is a value, no interval, and a reason."""
    rng = np.random.default_rng(2)
    validation = known(rng)
    for moved in ({"negatives": 0.3}, {"negatives": 0.3, "positives": 2.3}):
        found = quantify(validation, draw(rng, 10_000, PRIOR, **moved)[0])
        assert found.fit < FIT_LEVEL
        assert found.measured == (found.value, None, None, 10_000, "label_shift_rejected")


def test_em_and_confusion_matrix_agree():
    """EM on the same histograms ends at the same value; BBSE, hard and soft, is close to it."""
    rng = np.random.default_rng(3)
    validation, live = known(rng), draw(rng, 20_000, 0.12)[0]
    found = quantify(validation, live)
    x = np.bincount(np.searchsorted(validation.edges, live, side="right") - 1, minlength=len(validation.edges))
    f0, f1 = ((rows + 0.5) / (rows + 0.5).sum() for rows in (validation.neg, validation.pos))
    q = 0.5
    for _ in range(5_000):
        q = float(x @ (q * f1 / (q * f1 + (1 - q) * f0))) / x.sum()
    assert found.value == pytest.approx(q, abs=1e-9)
    for weight in (np.arange(len(x)) >= 14, np.arange(len(x)) / len(x)):
        live_mean, in_neg, in_pos = (float(weight @ h) / h.sum() for h in (x, validation.neg, validation.pos))
        assert (live_mean - in_neg) / (in_pos - in_neg) == pytest.approx(found.value, abs=0.02)


def test_bbse(vector):
    """With scores of two values (all others empty) the likeliest prevalence is the adjusted count of the vector."""
    inputs, expected = vector("bbse")
    rates, big = np.array([inputs["fpr"], inputs["tpr"], inputs["flag_rate"]]), 1e9
    neg, pos, live = (np.array([(1 - r) / 2, (1 - r) / 2, r]) * big for r in rates)
    found = histogram_ml(np.arange(3), live, Classes(np.arange(3), neg, pos))
    assert found.value == pytest.approx(expected["prevalence"], abs=1e-6)


def test_saerens(vector):
    """Corrected for the prevalence that EM on scores finds, the scores are those of the vector, and that their mean."""
    inputs, expected = vector("saerens")
    p, prior = np.array(inputs["scores"]), inputs["train_prevalence"]
    found = corrected(p, prior, expected["prevalence"])
    np.testing.assert_allclose(found, expected["corrected_scores"], atol=1e-7)
    assert found.mean() == pytest.approx(expected["prevalence"], abs=1e-7)


def test_prior_shift(vector):
    """The correction is that of the vector, and so is the threshold on raw scores that does the same."""
    v, expected = vector("prior_shift_threshold")
    assert corrected(np.array([v["score"]]), v["pi_train"], v["pi_live"])[0] == pytest.approx(expected["corrected"], abs=1e-6)
    cut = np.array([expected["bayes_threshold_on_corrected"]])
    raw = corrected(cut, v["pi_live"], v["pi_train"])[0]
    assert raw == pytest.approx(expected["equivalent_threshold_on_raw"], abs=1e-6)


def test_ends():
    """Scores of one class alone give 0 or 1, with an interval inside [0, 1]."""
    grid, neg, pos = np.arange(4), np.array([900.0, 90, 9, 1]), np.array([1.0, 9, 90, 900])
    for rows, value in ((np.array([2_000.0, 1, 0, 0]), 0.0), (np.array([0.0, 0, 1, 2_000]), 1.0)):
        found = histogram_ml(grid, rows, classes(grid, neg, pos))
        assert found.value == value
        measured = Quantified(value, found.variance, 1.0, found.n).measured
        assert 0 <= measured.low <= value <= measured.high <= 1


def test_reasons():
    """Too few rows, too few outcomes of a class, too few bins, classes alike: each gives its reason."""
    grid, many = np.arange(4), np.full(4, 500.0)
    assert histogram_ml(grid, many, classes(grid, many, many)) == "unseparated"
    assert histogram_ml(grid, many / 10, classes(grid, many, many[::-1].cumsum())) == "low_n"
    assert histogram_ml(grid, many, classes(grid, many, many / 10.1)) == "few_outcomes"
    assert histogram_ml(grid, many, classes(grid, many * 0, many)) == "few_outcomes"
    assert histogram_ml(grid, many, classes(grid[:0], many[:0], many[:0])) == "few_outcomes"
    assert histogram_ml(grid[:1], many[:1] * 9, classes(grid[:1], many[:1], many[:1])) == "few_scores"


def test_scores_that_say_nothing_are_rejected():
    """All live scores in a bin where both classes are equally common: no prevalence is likelier than another, and none fits."""
    grid, neg, pos = np.arange(3), np.array([250.0, 500.0, 250.0]), np.array([150.0, 500.0, 350.0])
    assert histogram_ml(grid, np.array([0.0, 2_000.0, 0.0]), classes(grid, neg, pos)) == "label_shift_rejected"
