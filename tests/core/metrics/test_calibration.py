"""Calibration metrics against plain numpy, scikit-learn, the shared vectors and simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sk_log_loss

from monitor.core.events import NONE
from monitor.core.intervals import noise_ball, normal, quantile, wilson
from monitor.core.metrics import calibration as c
from monitor.core.readings import LabelRule, Reading, known, mature, scored
from monitor.core.tables import EDGES, edges_of_width, grid_bin
from rows import next_edge

NEGATIVE = (LabelRule("negative"),) * 6
UNKNOWN = (LabelRule("unknown"),) * 6


def _plain_ece(score, y, bounds):
    """Return ECE and MCE row by row; bins [a, b), the last one closed."""
    at = np.clip(np.digitize(score, bounds) - 1, 0, len(bounds) - 2)
    gaps = [(abs((y - score)[at == b].mean()), (at == b).mean()) for b in range(len(bounds) - 1) if (at == b).any()]
    return sum(g * w for g, w in gaps), max(g for g, _ in gaps)


def _world(seed, n=5_000, a=2.0, b=3.0):
    rng = np.random.default_rng(seed)
    score = rng.beta(a, b, n)
    return score, (rng.random(n) < score**1.3).astype(np.int8)


def _read(table, score, y):
    return known(table(score, y))


def _gaps(bins):
    return [abs(b.observed - b.mean_score) for b in bins if b.n]


@pytest.mark.parametrize("seed", range(3))
def test_ece_is_exact(table, seed):
    """Both calibration errors over widths and over frozen edges are those of a row-by-row computation."""
    score, y = _world(seed)
    r = _read(table, score, y)
    assert (c.ece_width10(r).value, c.mce_width10(r).value) == pytest.approx(_plain_ece(score, y, np.arange(11) / 10), rel=1e-9)
    edges = c.calibration_edges(scored(table(_world(seed + 10)[0])))
    expected = _plain_ece(score, y, np.append(EDGES[edges], 1.0))
    assert (c.ece(r, edges).value, c.mce(r, edges).value) == pytest.approx(expected, rel=1e-9)
    assert c.ece(r, edges).n == 5_000


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_ece_interval_is_the_noise_ball(table, rate):
    """The ball takes, bin by bin, the larger of the implied variance and the one seen around the mean error of the bin."""
    rng = np.random.default_rng(14)
    score = rng.uniform(0, 0.1, 2_000)  # one bin of ten; a rate of .05 is what the scores imply, .5 varies much more
    y = (rng.random(2_000) < rate).astype(float)
    spread = max((score * (1 - score)).sum(), ((y - score - (y - score).mean()) ** 2).sum())
    found = c.ece_width10(_read(table, score, y.astype(np.int8)))
    q = noise_ball(np.array([spread]), 2_000, 0.99)
    assert (found.low, found.high) == pytest.approx((max(0, found.value - q), found.value + q), rel=1e-3)


def test_losses_are_scikit_learns(table):
    """Brier score and log loss are those of scikit-learn to 1e-12, their intervals those of the rows to 1e-3."""
    score, y = _world(5)
    r = _read(table, score, y)
    rows = {"brier": (score - y) ** 2, "log_loss": -np.log(np.where(y, score, 1 - score))}
    for name, expected in {"brier": brier_score_loss(y, score), "log_loss": sk_log_loss(y, score)}.items():
        found = getattr(c, name)(r)
        half = quantile(0.95) * rows[name].std() / math.sqrt(len(y))
        assert found.value == pytest.approx(expected, rel=1e-12)
        assert (found.low, found.high) == pytest.approx((expected - half, expected + half), abs=1e-3 * half)


def test_bias_and_its_interval(table):
    """Bias is mean p - mean y; its variance is the larger of the implied and the observed one."""
    score, y = _world(6)
    found = c.bias(_read(table, score, y))
    error = y - score
    variance = max((score * (1 - score)).sum(), ((error - error.mean()) ** 2).sum())
    half = quantile(0.95) * math.sqrt(variance) / len(y)
    assert found.value == pytest.approx(-error.mean(), rel=1e-9)
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), rel=1e-4)


def test_metrics_article_ex3(vector):
    """The article's bins are unions of grid bins, so its ECE and MCE come out."""
    inputs, expected = vector("metrics_article_ex3")
    edges = np.searchsorted(EDGES, inputs["edges"][:-1])
    r = _rows(inputs["confidence"], inputs["correct"])
    assert c.ece(r, edges).value == pytest.approx(expected["ece"], abs=1e-9)
    bins = c.reliability(r, edges)
    assert [b.n for b in bins] == expected["bin_counts"]
    assert max(_gaps(bins)) == pytest.approx(expected["mce"], abs=1e-9)
    assert c.mce(r, edges) == "low_n"


def _rows(score, pos, n=None):
    """Return a reading with one cell per row, whose counts may be fractions."""
    order = np.argsort(score)
    score, pos = np.asarray(score, float)[order], np.asarray(pos, float)[order]
    n = np.ones(len(score)) if n is None else np.asarray(n, float)[order]
    losses = (float((pos * (1 - score) ** 2 + (n - pos) * score**2).sum()), 0.0)
    verdict = np.full(len(score), NONE, np.uint8)
    return Reading("known", grid_bin(score).astype(np.int64), verdict, n, score, n - pos, pos, losses, 0.0)


def test_confidence_article_75cases(vector):
    """The article's three bins give its ECE and its hidden gap."""
    inputs, expected = vector("confidence_article_75cases")
    n, score, rate = (np.array([b[k] for b in inputs["bins"]]) for k in ("n", "confidence", "accuracy"))
    r = _rows(score, n * rate, n)
    assert c.ece_width10(r).value == pytest.approx(expected["ece"], abs=1e-9)
    assert c.mce_width10(r).value == pytest.approx(expected["max_gap"], abs=1e-9)


def test_assessment_lecture_weather(table, vector):
    """Each distinct forecast has its bin; observed shares, ECE and Brier score are the lecture's."""
    inputs, expected = vector("assessment_lecture_weather")
    r = _read(table, inputs["scores"], inputs["labels"])
    found = [{"score": b.mean_score, "n": b.n, "observed": b.observed} for b in c.reliability(r, None, width=True) if b.n]
    assert [row["n"] for row in found] == [row["n"] for row in expected["table"]]
    for row, want in zip(found, expected["table"], strict=True):
        assert row == pytest.approx(want)
    assert c.ece_width10(r).value == pytest.approx(expected["ece"], abs=1e-9)
    assert c.brier(r).value == pytest.approx(expected["brier"], abs=1e-9)


def test_assessment_lecture_baserate(table, vector):
    """A constant base rate has no calibration error and the Brier score of its uncertainty."""
    inputs, expected = vector("assessment_lecture_baserate")
    y = np.arange(1_000) < 1_000 * inputs["prevalence"]
    r = _read(table, np.full(1_000, inputs["score"]), y)
    assert c.ece_width10(r).value == pytest.approx(expected["ece"], abs=1e-12)
    assert c.brier(r).value == pytest.approx(expected["brier"], abs=1e-12)


def test_calib40(table, vector):
    """All values of the vector over five equal widths."""
    inputs, expected = vector("calib40")
    r = _read(table, inputs["scores"], inputs["labels"])
    edges = edges_of_width(inputs["bins"])
    assert c.ece(r, edges).value == pytest.approx(expected["ece"], abs=1e-9)
    assert max(_gaps(c.reliability(r, edges))) == pytest.approx(expected["mce"], abs=1e-9)
    assert c.ece_noise_floor(r, edges).value == pytest.approx(expected["ece_null_mean_gauss"], abs=1e-6)
    assert c.brier(r).value == pytest.approx(expected["brier"], rel=1e-12)
    assert c.log_loss(r).value == pytest.approx(expected["log_loss"], rel=1e-12)


def test_miscal60(table, vector):
    """The vector's quantile bins hold the same rows when their edges move up to the grid."""
    inputs, expected = vector("miscal60")
    r = _read(table, inputs["scores"], inputs["labels"])
    edges = np.searchsorted(EDGES, [0.0, *map(next_edge, expected["edges"])])
    assert [b.n for b in c.reliability(r, edges)] == expected["n"]
    assert c.ece(r, edges).value == pytest.approx(expected["ece"], abs=1e-9)
    assert max(_gaps(c.reliability(r, edges))) == pytest.approx(expected["mce"], abs=1e-9)
    assert c.ece_noise_floor(r, edges).value == pytest.approx(expected["ece_null_mean_gauss"], abs=1e-6)
    assert c.bias(r).value == pytest.approx(expected["mean_pred"] - expected["base_rate"], abs=1e-9)
    assert c.brier(r).value == pytest.approx(expected["brier"], rel=1e-12)
    assert c.log_loss(r).value == pytest.approx(expected["log_loss"], rel=1e-12)


def test_d01_last_bin_is_closed(table):
    """A score of exactly 1 belongs to the last of ten bins."""
    r = _read(table, [0.95, 1.0], [1, 0])
    assert c.ece_width10(r).value == pytest.approx(0.475, abs=1e-12)
    assert c.mce_width10(r).value == pytest.approx(0.475, abs=1e-12)
    bins = c.reliability(r, None, width=True)
    assert (len(bins), bins[-1].n) == (10, 2)


def test_d02_positive_class_not_top_label(table):
    """A model 20 points too low everywhere has ECE .2 and bias -.2, while the top-label form sees nothing."""
    r = _read(table, [0.2] * 5 + [0.8] * 5, [1, 1, 0, 0, 0] + [1] * 5)
    assert c.ece_width10(r).value == pytest.approx(0.2)
    assert c.bias(r).value == pytest.approx(-0.2)
    assert c.top_label_ece(r) == pytest.approx(0.0, abs=1e-12)


def test_d15_degenerate_scores(table):
    """Scores that are all 1 have a calibration error of one minus the share of positives, but no log loss."""
    r = _read(table, np.ones(1_000), np.arange(1_000) < 700)
    assert c.ece_width10(r).value == pytest.approx(0.3)
    assert c.log_loss(r) == "degenerate"
    assert c.calibration_edges(r).tolist() == [0]


def test_d17_empty_bins_stay(table):
    """A reliability diagram always has all bins with their edges; an empty one has count 0 and no means."""
    bins = c.reliability(_read(table, [0.9, 0.8, 0.2], [1, 1, 0]), None, width=True)
    assert [(b.lower, b.upper) for b in bins] == [(k / 10, (k + 1) / 10) for k in range(10)]
    assert [b.n for b in bins] == [0, 0, 1, 0, 0, 0, 0, 0, 1, 1]
    assert bins[0] == c.Bin(0.0, 0.1, 0, None, None, None, None, None, 0.0)
    assert bins[9] == c.Bin(0.9, 1.0, 1, 0.9, 1.0, *wilson(1.0, 1.0), pytest.approx(0.1), pytest.approx(0.1 / 3))


def test_reliability_without_rows_or_edges(table):
    """Without rows all bins are empty; without frozen edges there are no bins."""
    r = _read(table, [], [])
    assert [b.n for b in c.reliability(r, None, width=True)] == [0] * 10
    assert c.reliability(r, None) == []


def test_mce_needs_twenty_rows(table):
    """A frozen bin counts from 20 rows on; ten equal widths have no minimum."""
    score, y = [0.05] * 19 + [0.95] * 20, [1] * 19 + [1] * 20
    r, edges = _read(table, score, y), edges_of_width(2)
    assert c.mce(r, edges).value == pytest.approx(0.05)
    assert c.mce_width10(r).value == pytest.approx(0.95)
    assert c.mce(_read(table, score[:19], y[:19]), edges) == "low_n"


@pytest.mark.parametrize(("a", "b", "n"), [(1, 1, 500), (1, 1, 5_000), (0.3, 9, 2_000), (6, 1, 1_000)])
def test_interval_of_a_calibrated_model(table, a, b, n):
    """For honest scores the lower end is above 0 in at most 4 % of runs, and the mean ECE is the noise floor."""
    rng = np.random.default_rng(11)
    edges = c.calibration_edges(scored(table(rng.beta(a, b, 20_000))))
    score = rng.beta(a, b, (200, n))
    readings = [_read(table, s, rng.random(n) < s) for s in score]
    found = [c.ece(r, edges) for r in readings]
    assert np.mean([e.low > 0 for e in found]) <= 0.04
    floor = np.mean([c.ece_noise_floor(r, edges).value for r in readings])
    assert np.mean([e.value for e in found]) == pytest.approx(floor, rel=0.08)


@pytest.mark.parametrize(("a", "b", "power"), [(1, 1, 1.5), (0.3, 9, 0.8), (6, 1, 2.0)])
def test_interval_of_a_wrong_model(table, a, b, power):
    """The interval covers the binned error of the model itself in at least 97 % of runs."""
    rng = np.random.default_rng(12)
    edges = c.calibration_edges(scored(table(rng.beta(a, b, 20_000))))
    covered = []
    for _ in range(200):
        score = rng.beta(a, b, 2_000)
        truth = score**power
        at = np.searchsorted(edges, grid_bin(score), side="right") - 1
        error = np.abs(np.bincount(at, truth - score)).sum() / len(score)
        found = c.ece(_read(table, score, rng.random(2_000) < truth), edges)
        covered.append(found.low <= error <= found.high)
    assert np.mean(covered) >= 0.97


def test_bias_interval_covers(table):
    """The interval of bias holds the true bias in 92 to 98 % of 400 runs."""
    rng = np.random.default_rng(13)
    covered = []
    for _ in range(400):
        score = rng.beta(2, 5, 800)
        found = c.bias(_read(table, score, rng.random(800) < score**1.2))
        covered.append(found.low <= (score - score**1.2).mean() <= found.high)
    assert 0.92 <= np.mean(covered) <= 0.98


def test_missing_negatives_count(table):
    """A metric reads the reading: unlabelled rows of a mature day are negatives when missing says so."""
    t = table([0.2] * 4, [1, -1, -1, -1])
    assert c.bias(mature(t, NEGATIVE)).value == pytest.approx(-0.05)
    assert c.bias(known(t)).value == pytest.approx(-0.8)


def test_sums_are_not_mixed_up(table):
    """Remembered sums belong to their own reading and edges, in whatever order they are asked for."""
    readings = [_read(table, *_world(seed, 200)) for seed in (1, 2)]
    edges = [edges_of_width(5), edges_of_width(12)]
    alone = [[c.ece(_read(table, *_world(seed, 200)), e) for e in edges] for seed in (1, 2)]
    for i, j in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0)):
        assert c.ece(readings[i], edges[j]) == alone[i][j]


def _top_label(score, y):
    confidence = np.maximum(score, 1 - score)
    return _plain_ece(confidence, (score >= 0.5) == y, np.arange(11) / 10)[0]


def test_top_label_ece(table):
    """The top-label form is that of the rows; a cell below .5 may straddle an edge, which moves it by very little."""
    score, y = _world(8)
    assert c.top_label_ece(_read(table, score, y)) == pytest.approx(_top_label(score, y), abs=2e-3)
    hundredths = score.round(2)
    assert c.top_label_ece(_read(table, [], [])) is None
    twentieths = (hundredths * 20).round() / 20
    at = np.minimum(np.floor(np.maximum(twentieths, 1 - twentieths) * 10 + 1e-9), 9)
    right = (twentieths >= 0.5) == y
    plain = np.abs(np.bincount(at.astype(int), right - np.maximum(twentieths, 1 - twentieths))).sum() / len(y)
    assert c.top_label_ece(_read(table, twentieths, y)) == pytest.approx(plain, rel=1e-9)


def _spread_zeros(share):
    rng = np.random.default_rng(4)
    return np.where(rng.random(50_000) < share, 0.0, rng.beta(1, 3, 50_000))


@pytest.mark.parametrize(
    ("scores", "bins"),
    [
        (np.random.default_rng(4).beta(1, 3, 50_000), 15),
        (_spread_zeros(0.9), 15),
        (_spread_zeros(0.5), 15),
        (np.repeat([0.1, 0.3, 0.5, 0.7, 0.9], 100), 5),
        (np.repeat([0.1, 0.3, 0.5, 0.7, 0.9], [800, 50, 50, 50, 50]), 5),
        (np.repeat([0.0, 1.0], 50), 2),
        (np.array([0.4]), 1),
        (np.array([]), 1),
    ],
    ids=["smooth", "90 % zeros", "50 % zeros", "five values", "five unequal values", "hard", "one", "none"],
)
def test_number_of_calibration_edges(table, scores, bins):
    """A heavy grid bin stands alone and the rest is of equal mass: 90 % and 50 % zeros give 15 bins, five values five."""
    edges = c.calibration_edges(scored(table(scores)))
    assert (len(edges), edges[0]) == (bins, 0)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_calibration_bins_are_of_equal_mass(table, share):
    """Apart from the heavy bin of zeros all bins hold the same number of rows, up to the grid."""
    r = scored(table(_spread_zeros(share)))
    n = c.sums(r, c.calibration_edges(r))[0]
    rest = n[1:] if share else n
    assert rest == pytest.approx(np.full(len(rest), rest.mean()), rel=0.15)
    if share:
        assert n[0] == r.n[0]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), min_size=1, max_size=80))
def test_calibration_edges_are_edges(cells):
    """Whatever the scores, there are 1 to 15 ascending edges from 0 on, none of whose bins is empty."""
    cells = sorted(dict(cells).items())
    n = np.array([m for _, m in cells], float)
    grid = np.array([b for b, _ in cells], np.int64)
    r = Reading("scored", grid, np.full(len(n), NONE, np.uint8), n, EDGES[grid], 0 * n, 0 * n, (0.0, 0.0), 0.0)
    edges = c.calibration_edges(r)
    assert edges.dtype == np.int64
    assert 1 <= len(edges) <= 15
    assert edges[0] == 0
    assert (np.diff(edges) > 0).all()
    assert (c.sums(r, edges)[0] > 0).all()


def test_a_heavy_bin_stands_alone(table):
    """A grid bin with exactly 1/15 of the mass is a bin of its own, which ends where the grid bin ends."""
    r = scored(table(np.concatenate((np.linspace(0.1, 0.4, 70), np.full(10, 0.5), np.linspace(0.7, 0.9, 70)))))
    edges = c.calibration_edges(r)
    (grid,) = grid_bin(np.array([0.5]))
    assert {grid, grid + 1} <= set(edges)


def test_more_stretches_than_bins(table):
    """With more light stretches than bins left the lightest join a heavy neighbour, and 15 bins remain."""
    heavy, light = np.arange(1, 14) / 15, np.arange(0, 14) / 15 + 1 / 30
    r = scored(table(np.concatenate((np.repeat(heavy, 100), np.repeat(light, np.arange(1, 15))))))
    edges = c.calibration_edges(r)
    assert len(edges) == 15
    assert set(grid_bin(heavy[1:])) <= set(edges)


def _weighted(seed, n=400):
    """Return scores, outcomes and probabilities that their labels are seen."""
    rng = np.random.default_rng(seed)
    score = rng.beta(1, 2, n)
    return score, (rng.random(n) < score**1.2).astype(np.int8), np.exp(-rng.integers(0, 16, n) / 8)


def test_weighted_means_are_of_the_population(table):
    """Bias, losses and ECE count a row 1 / q; variances are sums of w**2 around the mean, as row by row."""
    score, y, q = _weighted(31)
    r = mature(table(score, y, label_prob=q), UNKNOWN)
    w, error = 1 / q, score - y
    n = int(w.sum() ** 2 / (w * w).sum())
    value = w @ error / w.sum()
    variance = max((w * w) @ (error - value) ** 2, (w * w) @ (score * (1 - score))) / w.sum() ** 2
    assert c.bias(r)[:4] == pytest.approx((value, *normal(value, variance), n), rel=1e-3)
    losses = {"brier": error**2, "log_loss": -np.log(np.where(y, score, 1 - score))}
    for name, loss in losses.items():
        value = w @ loss / w.sum()
        variance = (w * w) @ (loss - value) ** 2 / w.sum() ** 2
        assert getattr(c, name)(r)[:4] == pytest.approx((value, *normal(value, variance), n), rel=2e-3)
    at = np.minimum((score * 10).astype(int), 9)
    gap, implied = np.bincount(at, w * error), np.bincount(at, w * w * score * (1 - score))
    mean = gap / np.bincount(at, w)
    spread = np.maximum(implied, np.bincount(at, (w * (error - mean[at])) ** 2))
    found, value = c.ece_width10(r), np.abs(gap).sum() / w.sum()
    ball = noise_ball(spread, w.sum(), 0.99)
    assert found[:4] == pytest.approx((value, max(0, value - ball), value + ball, n), rel=2e-3)
    assert c.mce_width10(r).value == pytest.approx(np.abs(mean).max(), rel=1e-3)
    assert c.ece_noise_floor(r, c.WIDTH10).value == pytest.approx(
        math.sqrt(2 / math.pi) * np.sqrt(implied).sum() / w.sum(), rel=1e-3
    )


def test_mce_counts_effective_rows(table):
    """A bin of 19 rows is too small for `mce`, whatever weights they have."""
    y = np.arange(40) % 2
    for few, reason in ((19, "low_n"), (20, None)):
        r = mature(table(np.full(few, 0.3), y[:few], label_prob=np.full(few, 0.01)), UNKNOWN)
        found = c.mce(r, c.WIDTH10)
        assert (found if isinstance(found, str) else None) == reason


def test_bias_of_complements(table):
    """Where negatives are the rest of the rows, the sum of y - p varies as the positives alone."""
    score, y, _ = _weighted(32)
    r = known(table(score, y))
    pos2 = r.n * 0.7  # more than the scores imply
    r = replace(r, spread=np.stack((pos2, pos2, -pos2)))
    value = (score - y).mean()
    assert c.bias(r)[:3] == pytest.approx((value, *normal(value, 0.7 / 400)), rel=1e-6)


def test_reliability_of_weighted_rows(table):
    """Bins show effective rows, shares of the population, and Wilson's interval of the former."""
    r = mature(table([0.25] * 40, [1] * 10 + [0] * 30, label_prob=np.full(40, np.exp(-2))), UNKNOWN)
    found = c.reliability(r, None, width=True)[2]
    assert (found.n, found.observed) == (40, pytest.approx(0.25))
    assert (found.low, found.high) == pytest.approx(wilson(10, 40))


@pytest.mark.parametrize("name", ["calib40", "miscal60"])
def test_debiased_squared_error_of_the_vectors(table, vector, name):
    """The debiased squared error is the vectors'; where the model is calibrated it is below 0."""
    inputs, expected = vector(name)
    r = _read(table, inputs["scores"], inputs["labels"])
    edges = np.searchsorted(EDGES, [0.0, *map(next_edge, expected["edges"])]) if "edges" in expected else edges_of_width(5)
    found = c.squared_calibration_error(r, edges)
    assert found.value == pytest.approx(expected["ece_l2_debiased_sq_kumar"], abs=1e-9)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("n", [500, 5_000])
def test_squared_error_has_no_bias(table, n):
    """Over 400 runs its mean is that of the model; its interval holds that in 92 to 99 %, or more where there is no error."""
    rng = np.random.default_rng(51)
    edges = edges_of_width(10)
    for power in (1.0, 1.5):
        p = np.linspace(0, 1, 100_001)[:-1] + 5e-6
        truth = np.mean(np.array([(x**power - x).mean() for x in np.split(p, 10)]) ** 2)
        found = []
        for _ in range(400):
            score = rng.random(n)
            found.append(c.squared_calibration_error(_read(table, score, rng.random(n) < score**power), edges))
        values = np.array([e.value for e in found])
        assert abs(values.mean() - truth) < 3 * values.std() / 20
        assert 0.92 <= np.mean([e.low <= truth <= e.high for e in found]) <= (1.0 if power == 1 else 0.99)


def test_squared_error_needs_two_rows_in_a_bin(table):
    """Bins of one row are left out, because their noise cannot be told; when all are, there is no number."""
    score, y = [0.05, 0.15, 0.15, 0.95], [0, 1, 0, 1]
    both = c.squared_calibration_error(_read(table, score, y), edges_of_width(10))
    assert both.value == pytest.approx(0.35**2 - 0.25)
    assert c.squared_calibration_error(_read(table, [0.05, 0.15], [0, 1]), edges_of_width(10)) == "low_n"


def test_contributions_add_up(table):
    """The contributions of all bins add up to the calibration error, and each is its share of the rows times its gap."""
    r = _read(table, *_world(52))
    edges = c.calibration_edges(r)
    for width, ece in ((False, c.ece(r, edges)), (True, c.ece_width10(r))):
        bins = c.reliability(r, edges, width)
        assert sum(b.contribution for b in bins) == pytest.approx(ece.value, rel=1e-12)
        for b in bins:
            if b.n:
                assert b.gap == pytest.approx(b.observed - b.mean_score, abs=1e-12)
                assert b.contribution == pytest.approx(b.n / 5_000 * abs(b.gap), rel=1e-12)


def test_conclusion_under_other_bins(table):
    """A large error survives 10, 15 and 30 bins and so does its absence; between them it depends on the bins."""
    r = _read(table, *_world(53, 20_000))
    found = c.ece_by_bins(r, c.calibration_edges(r))
    assert list(found) == ["frozen", "width10", "width15", "width30"]
    for k in (10, 15, 30):
        assert found[f"width{k}"].value == pytest.approx(_plain_ece(*_world(53, 20_000), np.arange(k + 1) / k)[0], rel=1e-9)
    assert c.survives(found, 0.0) is c.survives(found, 0.5) is True
    lows = sorted(e.low for e in found.values())
    assert lows[0] < lows[-1]
    assert c.survives(found, (lows[0] + lows[-1]) / 2) is False
    assert list(c.ece_by_bins(r, None)) == ["width10", "width15", "width30"]
    unknown = replace(r, groups=np.full((64, 2, 6), np.nan))
    assert c.survives(c.ece_by_bins(unknown, None), 0.0) is None


def test_noise_ball_of_thirty_bins():
    """The ball of 30 bins is the quantile of their noise within 2 %, though there are draws for 15."""
    spread = np.random.default_rng(54).gamma(2, 30, 30)
    draws = np.abs(np.random.default_rng(55).standard_normal((100_000, 30))) @ np.sqrt(spread)
    assert noise_ball(spread, 1_000, 0.99) == pytest.approx(np.quantile(draws, 0.99) / 1_000, rel=0.02)
