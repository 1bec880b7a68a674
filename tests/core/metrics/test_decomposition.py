"""Refinement and calibration loss against scikit-learn's isotonic regression, model-diagnostics and the shared vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from monitor.core.metrics.calibration import brier, log_loss
from monitor.core.metrics.decomposition import (
    brier_calibration,
    brier_refinement,
    log_loss_calibration,
    log_loss_refinement,
    pool,
)
from monitor.core.readings import known
from monitor.core.tables import grid_bin


def _world(seed, n, slope=1.0):
    rng = np.random.default_rng(seed)
    z = rng.normal(-2, 1.5, n)
    return 1 / (1 + np.exp(-z)), (rng.random(n) < 1 / (1 + np.exp(-slope * z))).astype(np.int8)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any), min_size=1, max_size=60))
def test_pool_is_isotonic_regression(counts):
    """The shares of the blocks are scikit-learn's isotonic regression of the shares, and rise strictly."""
    k, rest = np.array(counts, float).T
    n = k + rest
    blocks = np.array(pool(k, n)[:2])
    share = blocks[0] / blocks[1]
    assert (np.diff(share) > 0).all()
    assert blocks.sum(axis=1) == pytest.approx((k.sum(), n.sum()))
    of = np.searchsorted(np.cumsum(blocks[1]), np.cumsum(n) - 0.5)
    fitted = IsotonicRegression(y_min=0, y_max=1).fit_transform(np.arange(len(n)), k / n, sample_weight=n)
    assert share[of] == pytest.approx(fitted, abs=1e-9)


@pytest.mark.parametrize(("n", "slope"), [(500, 1.0), (20_000, 0.5)])
def test_agrees_with_isotonic_regression_of_the_rows(table, n, slope):
    """The refinement losses are those of scikit-learn's isotonic regression on the binned scores."""
    score, y = _world(1, n, slope)
    r = known(table(score, y, 0.3))
    p = IsotonicRegression(y_min=0, y_max=1).fit_transform(grid_bin(score), y)
    assert brier_refinement(r).value == pytest.approx(((p - y) ** 2).mean(), rel=1e-9)
    given = np.where(y == 1, p, 1 - p)
    assert log_loss_refinement(r).value == pytest.approx(-np.log(given).mean(), rel=1e-9)


@pytest.mark.parametrize("n", [400, 5_000])
def test_agrees_with_model_diagnostics(table, n):
    """Both parts of both losses are those of model-diagnostics' CORP decomposition of the rows, up to ties on the grid."""
    scoring = pytest.importorskip("model_diagnostics.scoring", reason="model-diagnostics is not installed")
    score, y = _world(2, n, 0.6)
    r = known(table(score, y))
    for loss, refinement, calibration in (
        (scoring.SquaredError(), brier_refinement, brier_calibration),
        (scoring.LogLoss(), log_loss_refinement, log_loss_calibration),
    ):
        found = scoring.decompose(y, score, scoring_function=loss)
        parts = {name: found[name].item() for name in ("miscalibration", "discrimination", "uncertainty")}
        assert calibration(r).value == pytest.approx(parts["miscalibration"], rel=0.05)
        assert refinement(r).value == pytest.approx(parts["uncertainty"] - parts["discrimination"], rel=0.01)


def test_parts_add_up(table):
    """Refinement and calibration add up to the loss, to the last digits."""
    r = known(table(*_world(3, 3_000)))
    assert brier_refinement(r).value + brier_calibration(r).value == pytest.approx(brier(r).value, rel=1e-12)
    assert log_loss_refinement(r).value + log_loss_calibration(r).value == pytest.approx(log_loss(r).value, rel=1e-12)


def test_calibration_is_seen(table):
    """Scores that are too extreme lose by their calibration many times what honest ones do, and as much by their refinement."""
    honest, extreme = (known(table(*_world(4, 20_000, slope))) for slope in (1.0, 0.4))
    assert brier_calibration(extreme).value > 10 * brier_calibration(honest).value
    score, y = _world(4, 20_000)
    same = known(table(score**2 / (score**2 + (1 - score) ** 2), y))
    assert brier_refinement(same).value == pytest.approx(brier_refinement(honest).value, rel=0.01)


def test_degenerate(table):
    """Scores of 0 and 1 have no log loss and so no calibration part of it; what ranking cannot tell is still said."""
    r = known(table([0.0, 1.0, 1.0, 1.0], [0, 0, 1, 1]))
    assert log_loss_calibration(r) == "degenerate"
    assert log_loss_refinement(r).value == pytest.approx(-(np.log(1 / 3) + 2 * np.log(2 / 3)) / 4)
    assert (brier_refinement(r).value, brier_calibration(r).value) == pytest.approx((1 / 6, 1 / 12))
