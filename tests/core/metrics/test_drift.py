"""Drift of scores against the shared vector, acceptance case D10 and simulation."""

import numpy as np
import pytest

from monitor.core.events import NONE
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.metrics.drift import psi, psi_null
from monitor.core.readings import Reading, scored
from monitor.core.tables import EDGES, edges_of_width


def _histogram(counts):
    n, grid = np.array(counts, float), edges_of_width(len(counts))
    return Reading("scored", grid, np.full(len(n), NONE, np.uint8), n, EDGES[grid], 0 * n, 0 * n, (0.0, 0.0), 0.0)


def test_psi10(vector):
    """Ten bins give the smoothed index and its level without drift."""
    inputs, expected = vector("psi10")
    live, base, edges = _histogram(inputs["live"]), _histogram(inputs["baseline"]), edges_of_width(10)
    assert psi(live, edges, base)[:4] == pytest.approx((expected["psi_smoothed"], None, None, sum(inputs["live"])), abs=1e-9)
    assert psi_null(live, edges, base).value == pytest.approx(expected["null_mean"], abs=1e-12)


def test_d10_empty_bin(table):
    """One score far outside the baseline keeps the index finite and below .02."""
    shape = np.arange(1_000) / 2_000
    base, live = scored(table(shape)), scored(table(np.append(shape, 0.95)))
    assert 0 < psi(live, calibration_edges(base), base).value < 1e-4
    assert psi(live, edges_of_width(10), base).value == pytest.approx(0.0011, abs=1e-4)


def test_same_scores_do_not_drift(table):
    """A reading against itself has an index of exactly 0, and swapping the two changes nothing."""
    rng = np.random.default_rng(1)
    a, b = scored(table(rng.beta(2, 5, 500))), scored(table(rng.beta(2, 4, 500)))
    edges = calibration_edges(a)
    assert psi(a, edges, a).value == 0
    assert psi(a, edges, b).value == pytest.approx(psi(b, edges, a).value)
    assert psi(a, edges, b).value > 0


@pytest.mark.parametrize("n", [200, 2_000])
def test_null_level(table, n):
    """Without drift the index is psi_null on average, within 10 %."""
    rng = np.random.default_rng(2)
    base = scored(table(rng.beta(2, 5, 5_000)))
    edges = calibration_edges(base)
    bases = [scored(table(rng.beta(2, 5, 5_000))) for _ in range(20)]
    found = [psi(scored(table(rng.beta(2, 5, n))), edges, b).value for b in bases for _ in range(20)]
    assert np.mean(found) == pytest.approx(psi_null(_histogram([n]), edges, base).value, rel=0.1)
