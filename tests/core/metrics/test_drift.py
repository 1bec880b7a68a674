"""Drift of scores against the shared vector, acceptance case D10 and simulation."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import ks_2samp, wasserstein_distance

from monitor.core.events import NONE
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.metrics.drift import (
    js,
    js_null,
    ks,
    ks_null,
    psi,
    psi_null,
    wasserstein,
    wasserstein_null,
)
from monitor.core.readings import Reading, scored
from monitor.core.tables import EDGES, edges_of_width, grid_bin


def _histogram(counts):
    n, grid = np.array(counts, float), edges_of_width(len(counts))
    return Reading("scored", grid, np.full(len(n), NONE, np.uint8), n, EDGES[grid], 0 * n, 0 * n, (0.0, 0.0), 0.0)


def test_psi10(vector):
    """Ten bins give the smoothed index and its level without drift."""
    inputs, expected = vector("psi10")
    live, base, edges = _histogram(inputs["live"]), _histogram(inputs["baseline"]), edges_of_width(10)
    assert psi(live, edges, base)[:4] == pytest.approx((expected["psi_smoothed"], None, None, sum(inputs["live"])), abs=1e-9)
    assert psi_null(live, edges, base).value == pytest.approx(expected["null_mean"], abs=1e-12)
    assert js(live, edges, base).value == pytest.approx(expected["js_distance_base2"], abs=1e-9)
    assert ks(live, edges, base).value == pytest.approx(expected["ks_binned"], abs=1e-9)
    assert wasserstein(live, edges, base).value * 10 == pytest.approx(expected["wasserstein_bin_units"], abs=1e-9)


def test_d10_empty_bin(table):
    """One score far outside the baseline keeps the index finite and below .02."""
    shape = np.arange(1_000) / 2_000
    base, live = scored(table(shape)), scored(table(np.append(shape, 0.95)))
    assert 0 < psi(live, calibration_edges(base), base).value < 1e-4
    assert psi(live, edges_of_width(10), base).value == pytest.approx(0.0011, abs=1e-4)


def test_same_scores_do_not_drift(table):
    """A reading against itself has no drift, exactly, and swapping the two changes nothing."""
    rng = np.random.default_rng(1)
    a, b = scored(table(rng.beta(2, 5, 500))), scored(table(rng.beta(2, 4, 500)))
    edges = calibration_edges(a)
    for metric in (psi, js, ks, wasserstein):
        assert metric(a, edges, a).value == pytest.approx(0, abs=1e-7)
        assert metric(a, edges, b).value > 0
        # A bin of the grid stands where the baseline's scores are.
        assert metric(a, edges, b).value == pytest.approx(metric(b, edges, a).value, abs=1e-4 if metric is wasserstein else 1e-12)


@pytest.mark.parametrize(("n", "m", "shape"), [(300, 5_000, 5), (20_000, 20_000, 4)])
def test_distances_agree_with_scipy(table, n, m, shape):
    """KS and Jensen-Shannon are scipy's of the binned scores, Wasserstein that of the scores within .0005."""
    rng = np.random.default_rng(4)
    live, base = rng.beta(2, shape, n), rng.beta(2, 5, m)
    a, b = scored(table(live)), scored(table(base))
    edges = calibration_edges(b)
    assert ks(a, edges, b).value == pytest.approx(ks_2samp(grid_bin(live), grid_bin(base)).statistic, abs=1e-12)
    assert wasserstein(a, edges, b).value == pytest.approx(wasserstein_distance(live, base), abs=5e-4)
    histograms = [np.histogram(x, [*EDGES[edges], 1])[0] for x in (live, base)]
    assert js(a, edges, b).value == pytest.approx(jensenshannon(*histograms, base=2), abs=1e-9)


def test_all_scores_moved(table):
    """When every score moves by .2 so does Wasserstein; when no bin has rows of both, the other distances are 1."""
    a, b = scored(table([0.3] * 50 + [0.7] * 50)), scored(table([0.5] * 80 + [0.9] * 80))
    assert wasserstein(a, calibration_edges(b), b).value == pytest.approx(0.2, abs=0.003)
    below = scored(table([0.3] * 50))
    assert (ks(below, edges_of_width(10), b).value, js(below, edges_of_width(10), b).value) == (1.0, 1.0)


@pytest.mark.parametrize("n", [200, 2_000])
def test_null_level(table, n):
    """Without drift each effect size is what its null level says on average, within 10 %."""
    rng = np.random.default_rng(2)
    base = scored(table(rng.beta(2, 5, 5_000)))
    edges = calibration_edges(base)
    bases = [scored(table(rng.beta(2, 5, 5_000))) for _ in range(20)]
    pairs = [(scored(table(rng.beta(2, 5, n))), b) for b in bases for _ in range(20)]
    for metric, null in ((psi, psi_null), (js, js_null), (ks, ks_null), (wasserstein, wasserstein_null)):
        expected = np.mean([null(a, edges, b).value for a, b in pairs[::20]])
        assert np.mean([metric(a, edges, b).value for a, b in pairs]) == pytest.approx(expected, rel=0.1)


def test_ties_stay_below_the_null_level(table):
    """Of five distinct scores KS is on average no more than its level, and Wasserstein is at its own."""
    rng = np.random.default_rng(3)
    draw = lambda n: scored(table(rng.choice([0.1, 0.3, 0.5, 0.7, 0.9], n, p=[0.4, 0.3, 0.15, 0.1, 0.05])))  # noqa: E731
    pairs = [(draw(500), draw(2_000)) for _ in range(300)]
    edges = calibration_edges(pairs[0][1])
    assert np.mean([ks(a, edges, b).value for a, b in pairs]) < ks_null(*pairs[0][:1], edges, pairs[0][1]).value
    expected = np.mean([wasserstein_null(a, edges, b).value for a, b in pairs])
    assert np.mean([wasserstein(a, edges, b).value for a, b in pairs]) == pytest.approx(expected, rel=0.1)


def test_d09_much_data_is_no_drift(table):
    """D09: a shift of .01 standard deviations in a million rows is above every null level and still a small effect."""
    rng = np.random.default_rng(5)
    base, live = (scored(table(1 / (1 + np.exp(-rng.normal(mean, 1, 1_000_000))))) for mean in (0.0, 0.01))
    edges = calibration_edges(base)
    assert psi_null(live, edges, base).value < psi(live, edges, base).value < 3e-4
    for metric, null in ((js, js_null), (ks, ks_null), (wasserstein, wasserstein_null)):
        assert null(live, edges, base).value < metric(live, edges, base).value < 0.01
