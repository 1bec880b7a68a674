"""Rows that share their outcomes: intervals by cluster groups against simulation and forecasts that were really published."""

from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from monitor.core.metrics import calibration as c
from monitor.core.metrics import confusion as k
from monitor.core.metrics import prevalence as p
from monitor.core.metrics.ranking import roc_auc
from monitor.core.readings import LabelRule, mature, scored

UNKNOWN = (LabelRule("unknown"),) * 6
METRICS = {f.__name__: f for f in (c.bias, c.brier, c.log_loss, k.recall, k.precision, k.fpr, k.accuracy, k.f1, p.prevalence)}


def _world(rng, clusters, rows):
    """Return scores, outcomes, their true probabilities and clusters, which have scores and errors of their own."""
    n = clusters * rows
    error, level = rng.normal(0, 1.5, clusters).repeat(rows), rng.normal(-0.5, 1, clusters).repeat(rows)
    z = level + rng.normal(0, 1, n)
    truth = 1 / (1 + np.exp(-z - error))
    return 1 / (1 + np.exp(-z)), (rng.random(n) < truth).astype(np.int8), truth, rng.integers(1, 2**32, clusters).repeat(rows)


def _population():
    """Return what the metrics are in the population."""
    score, _, truth, _ = _world(np.random.default_rng(0), 20_000, 40)
    flagged = score >= 0.5
    tp, fp, fn = truth[flagged].sum(), (1 - truth)[flagged].sum(), truth[~flagged].sum()
    return {
        "bias": (score - truth).mean(),
        "brier": (truth * (1 - score) ** 2 + (1 - truth) * score**2).mean(),
        "log_loss": -(truth * np.log(score) + (1 - truth) * np.log(1 - score)).mean(),
        "recall": tp / (tp + fn),
        "precision": tp / (tp + fp),
        "fpr": fp / (1 - truth).sum(),
        "accuracy": np.where(flagged, truth, 1 - truth).mean(),
        "f1": 2 * tp / (2 * tp + fp + fn),
        "prevalence": truth.mean(),
    }


POPULATION = _population()


@pytest.mark.parametrize(("clusters", "rows", "runs", "iid"), [(30, 40, 200, 0.65), (210, 40, 200, 0.65), (2_000, 20, 100, 0.8)])
def test_intervals_cover(table, clusters, rows, runs, iid):
    """Intervals by groups hold the population's value in about 95 % of the runs, those of independent rows in far fewer."""
    rng = np.random.default_rng(clusters)
    inside, naive, absent = (dict.fromkeys(METRICS, 0) for _ in range(3))
    for _ in range(runs):
        score, y, _, cluster = _world(rng, clusters, rows)
        r = mature(table(score, y, 0.5, cluster=cluster), UNKNOWN)
        for name, metric in METRICS.items():
            found, plain = metric(r), metric(replace(r, groups=None))
            assert found.value == plain.value
            absent[name] += found.interval_reason == "few_clusters"
            inside[name] += found.low is not None and found.low <= POPULATION[name] <= found.high
            naive[name] += plain.low <= POPULATION[name] <= plain.high
    for name in METRICS:
        shown = runs - absent[name]
        assert inside[name] / shown >= 0.9, (name, inside[name], shown)
        assert naive[name] / runs <= iid, (name, naive[name])
    # Thirty clusters are often fewer than twenty effective ones among the positives or the flagged rows alone.
    assert absent["prevalence"] <= 10
    assert clusters == 30 or not any(absent.values())


def test_flagged_share_needs_no_outcomes(table):
    """The flagged share has clusters without labels, too, and the mean score no interval, because it is about outcomes."""
    score, y, _, cluster = _world(np.random.default_rng(5), 200, 20)
    r = scored(table(score, y, 0.5, cluster=cluster))
    found, plain = k.flagged_share(r), k.flagged_share(replace(r, groups=None))
    assert found.value == plain.value
    assert found.high - found.low > 2 * (plain.high - plain.low)
    assert p.mean_score(r)[1:] == (None, None, 4_000, "clustered")


def test_clusters_of_one_row_change_little(table):
    """Independent rows that are declared as clusters of their own have intervals hardly wider than without."""
    score, y, _, cluster = _world(np.random.default_rng(6), 5_000, 1)
    r = mature(table(score, y, 0.5, cluster=cluster), UNKNOWN)
    for metric in (*METRICS.values(), c.ece_width10, roc_auc):
        found, plain = metric(r), metric(replace(r, groups=None))
        assert 1 <= (found.high - found.low) / (plain.high - plain.low) < 1.4
        assert found.n == plain.n


@pytest.fixture(scope="module")
def season(shared, table):
    """Return a function that reads the daily forecasts of team seasons of which `keep(event, season, team)` is true."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(shared / "data/fte_forecasts/season_forecasts.parquet").to_pydict()
    names = list(zip(rows["event"], rows["season"], rows["team"], strict=True))
    score, label = np.array(rows["score"]), np.array(rows["label"], np.int8)
    cluster = np.array([crc32("\0".join(map(str, name)).encode()) for name in names])

    def read(keep):
        at = np.array([keep(*name) for name in names])
        return mature(table(score[at], label[at], 0.5, cluster=cluster[at]), UNKNOWN)

    return read


@pytest.mark.parametrize("event", ["mlb_make_playoffs", "nfl_make_playoffs", ""])
def test_seasons_share_one_outcome(season, event):
    """All forecasts of a team's season have one outcome: the bias is at least five times less sure than it looks."""
    r = season(lambda e, _season, _team: e.startswith(event))
    found, plain = c.bias(r), c.bias(replace(r, groups=None))
    assert found.value == plain.value
    assert found.high - found.low > 5 * (plain.high - plain.low)
    ball, naive = c.ece_width10(r), c.ece_width10(replace(r, groups=None))
    assert naive.low > 0 == ball.low  # what looks like miscalibration is none that could be seen
    for metric in (k.recall, k.precision, c.brier, roc_auc):
        found, plain = metric(r), metric(replace(r, groups=None))
        assert found.high - found.low > 2 * (plain.high - plain.low)
    for wide, narrow in zip(c.reliability(r, None, True), c.reliability(replace(r, groups=None), None, True), strict=True):
        assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_few_seasons_have_no_interval(season):
    """Seven teams are no sample, however many forecasts they have: the value is shown, its interval is not."""
    r = season(lambda event, year, team: event == "nfl_make_playoffs" and year == 2015 and team < "C")
    assert r.n.sum() > 300
    for metric in (*METRICS.values(), c.ece_width10, roc_auc):
        assert metric(r)[1:3] == (None, None)
        assert metric(r).interval_reason == "few_clusters"
    assert all(b.low is None for b in c.reliability(r, None, True))
