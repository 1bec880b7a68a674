"""How common positives are, by outcomes and by scores."""

import numpy as np
import pytest

from monitor.core.intervals import quantile, wilson
from monitor.core.metrics.prevalence import majority_share, mean_score, prevalence
from monitor.core.readings import LabelRule, known, mature, scored

NEGATIVE = (LabelRule("negative"),) * 6
UNKNOWN = (LabelRule("unknown"),) * 6


def test_prevalence(table):
    """Prevalence is the share of positives with its Wilson interval."""
    assert prevalence(known(table([0.5] * 10, [1, 1, 1] + [0] * 7)))[:4] == pytest.approx((0.3, *wilson(3, 10), 10))


def test_missing_labels_are_no_class(table):
    """D07: rows without label are left out unless the day is mature and missing means negative."""
    t = table([0.5] * 5, [0, 0, 1, 1, -1])
    assert prevalence(known(t)).value == 0.5
    assert prevalence(mature(t, UNKNOWN)).value == 0.5
    assert prevalence(mature(t, NEGATIVE)).value == 0.4


@pytest.mark.parametrize("positives", [3, 7])
def test_majority_share(table, positives):
    """The share of the more common class, whichever it is."""
    y = np.arange(10) < positives
    assert majority_share(known(table([0.5] * 10, y)))[:4] == pytest.approx((0.7, *wilson(7, 10), 10))


def test_saerens_mean_score(table, vector):
    """The model-implied prevalence is the mean score of the vector."""
    inputs, expected = vector("saerens")
    assert mean_score(scored(table(inputs["scores"]))).value == pytest.approx(expected["mean_score"], abs=1e-12)


def test_mean_score_interval(table):
    """Its interval is where the share of positives lies when scores are honest, and stays inside [0, 1]."""
    score = np.random.default_rng(5).beta(2, 5, 4_000)
    half = quantile(0.95) * np.sqrt((score * (1 - score)).sum()) / 4_000
    found = mean_score(scored(table(score)))
    assert found[:4] == pytest.approx((score.mean(), score.mean() - half, score.mean() + half, 4_000), rel=1e-5)
    assert mean_score(scored(table([0.01]))).low == 0
    assert mean_score(scored(table([0.99]))).high == 1
