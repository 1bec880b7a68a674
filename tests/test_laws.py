"""Laws over the registries: a new metric or reading is held to them by its entry alone."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core import readings
from monitor.core.before_labels import ESTIMATED
from monitor.core.days import Key
from monitor.core.delays import Completeness
from monitor.core.events import VERDICTS
from monitor.core.metrics import METRICS, measure
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.metrics.daily import days_of
from monitor.core.quantify import Quantified
from monitor.core.readings import LabelRule
from monitor.core.reasons import NO_INTERVAL, REASONS, UNDEFINED
from monitor.core.tables import EMPTY, total
from monitor.series import NOWCAST, SERIES
from rows import at, table_of

KEY = Key("m", "1", "all", 20_000)
HALF = Completeness(*(np.full((2, len(VERDICTS)), x) for x in (0.5, 0.01)), np.zeros((2, len(VERDICTS)), np.int64))

_SCORE = np.linspace(0.05, 0.95, 1_000)
VALIDATION = readings.promised(table_of(_SCORE, np.random.default_rng(0).random(1_000) < _SCORE))
FOUND = Quantified(0.3, 1e-4, 0.5, 1_000)

READINGS = {
    "scored": readings.scored,
    "known": readings.known,
    "mature_negative": lambda t: readings.mature(t, (LabelRule("negative"),) * 6),
    "mature_unknown": lambda t: readings.mature(t, (LabelRule("unknown"),) * 6),
    "mature_never": lambda t: readings.mature(t, tuple(LabelRule("unknown", never=v == 5) for v in range(6))),
    "nowcast": lambda t: readings.nowcast([(t, HALF)], (LabelRule("unknown"),) * 6),
    "estimated": lambda t: readings.estimated(readings.scored(t), VALIDATION, FOUND),
    "baseline": lambda t: readings.baseline({"all": t}, at(0.5)),
}
"""Every reading of a table of rows; a new one joins here."""

ANY = (-math.inf, math.inf)
RANGE = {
    "bias": (-1.0, 1.0),
    "squared_calibration_error": (-1.0, 1.0),
    **dict.fromkeys(("offset", "slope", "intercept"), ANY),
    **dict.fromkeys(("psi", "psi_null", "js_null", "ks_null", "wasserstein_null"), (0.0, math.inf)),
    **dict.fromkeys(("log_loss", "log_loss_refinement"), (0.0, 52 * math.log(2))),
    # Scores of one bin of the grid can be told apart by the loss, and not by the regression.
    "log_loss_calibration": (-0.02, 52 * math.log(2)),
    "brier_calibration": (-0.005, 1.0),
}
"""Where the values of a metric lie when not between 0 and 1."""

ROWS = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-250, 1e-90, 1e-30, 0.2, 0.3, 0.8, 1.0])),
        st.sampled_from([-1, 0, 1]),
        st.integers(0, 5),
        st.sampled_from([0, 1, 2, 3]),
    ),
    max_size=60,
)
MODELS = {"rare": (0.5, 9.0), "even": (2.0, 2.0), "sure": (0.2, 0.2), "coarse": (1.0, 1.0)}


def _rows(name, n=3_000, **columns):
    """Return scores, outcomes and verdicts of a model; the last of them says only multiples of .1."""
    rng = np.random.default_rng(list(MODELS).index(name))
    score = rng.beta(*MODELS[name], n)
    score = np.round(score, 1) if name == "coarse" else score
    outcome = np.where(rng.random(n) < 0.9, rng.random(n) < score, -1).astype(np.int8)
    verdict = np.where(score >= 0.5, 1, 0) + 4 * (score > 0.95)
    return score, outcome, verdict, rng


def _measured(reading, table, names=None, days=None):
    """Return every estimate of a reading by name, against a baseline of the same scores."""
    base = readings.scored(table)
    names = {"nowcast": NOWCAST, "estimated": ESTIMATED}.get(reading.basis, names)
    return {e.metric: e for e in measure(reading, KEY, "28d", calibration_edges(base), base, names, days)}


def _numbers(e):
    return [x for x in (e.value, e.low, e.high) if x is not None]


def _alike(found, expected, near=None):
    """Check that two sets of estimates say the same, to the bit or as near as is said."""
    assert found.keys() == expected.keys()
    for name, e in found.items():
        other = expected[name]
        assert (e.reason, e.interval_reason, e.n) == (other.reason, other.interval_reason, other.n), name
        assert _numbers(e) == (_numbers(other) if near is None else pytest.approx(_numbers(other), **near)), name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("reading", READINGS)
def test_merge_is_concatenation(model, reading):
    """The tables of parts of the rows add up to the estimates of all rows, whatever the parts."""
    score, outcome, verdict, rng = _rows(model)
    part = rng.integers(0, 4, len(score))
    parts = [table_of(score[part == k], outcome[part == k], verdicts=verdict[part == k]) for k in range(5)]
    whole = table_of(score, outcome, verdicts=verdict)
    read = READINGS[reading]
    _alike(_measured(read(total(parts)), whole), _measured(read(whole), whole), {"rel": 1e-7, "abs": 1e-9})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("reading", READINGS)
def test_order_is_irrelevant(model, reading):
    """The same rows in another order give the same estimates, to the bit."""
    score, outcome, verdict, rng = _rows(model)
    order = rng.permutation(len(score))
    tables = table_of(score, outcome, verdicts=verdict), table_of(score[order], outcome[order], verdicts=verdict[order])
    _alike(*(_measured(READINGS[reading](t), tables[0]) for t in tables))


def _check(e):
    """Check that an estimate is a number in its range and its interval, or a known reason and no number."""
    if e.value is None:
        assert e.reason in UNDEFINED
        assert (e.low, e.high, e.expect_low, e.expect_high, e.design_effect, e.interval_reason) == (*[None] * 5, "")
        return
    low, high = RANGE.get(e.metric, (0.0, 1.0))
    assert e.reason == ""
    assert type(e.value) is float
    assert math.isfinite(e.value)
    assert low - 1e-9 <= e.value <= high + 1e-9, e
    assert low < 0 or str(e.value) != "-0.0", e
    assert type(e.n) is int
    assert e.n > 0
    for a, b in ((e.low, e.high), (e.expect_low, e.expect_high)):
        assert (a is None) is (b is None)
        if a is not None:
            assert a - 1e-9 <= e.value <= b + 1e-9, e
            assert not math.isnan(a + b)
    bounded = f"scorewatch_{e.metric}_low" in SERIES
    assert (e.low is None) is (not bounded or e.interval_reason in NO_INTERVAL)
    assert e.design_effect is None or e.design_effect >= 1


@given(ROWS, st.booleans())
def test_a_value_in_its_range_or_a_reason(events, clustered):
    """Whatever the rows, every metric of every reading is a number in its range and its intervals, also those of what days
    like its own are expected to show, or a reason and no number.
    """
    score, outcome, verdict, cluster = np.array(events, float).reshape(-1, 4).T

    def rows(at):
        columns = {"verdicts": verdict[at].astype(np.uint8), "cluster": cluster[at] * clustered}
        return table_of(score[at], outcome[at].astype(np.int8), **columns)

    days = [rows(slice(i, None, 8)) for i in range(8)]
    t = total(days)
    for name, read in READINGS.items():
        by_day = None if name in ("nowcast", "estimated") else days_of([read(d) for d in days])
        for e in _measured(read(t), t, days=by_day).values():
            _check(e)


@pytest.mark.parametrize("reading", READINGS)
def test_nothing_gives_a_reason(reading):
    """Of no rows no metric is a number."""
    found = _measured(READINGS[reading](EMPTY), EMPTY)
    assert found
    assert {(e.value, e.n, e.reason in UNDEFINED) for e in found.values()} == {(None, 0, True)}


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_ranking(label):
    """Of one class what compares positives with negatives is undefined, never 0, .5 or 1; the losses are numbers."""
    score = np.linspace(0.02, 0.98, 200)
    found = _measured(readings.known(table_of(score, np.full(200, label), 0.5)), table_of(score))
    for e in found.values():
        _check(e)
    reasons = {name: e.reason for name, e in found.items() if e.reason}
    assert reasons.keys() >= {"roc_auc", "partial_roc_auc", "balanced_accuracy", "offset", "slope", "intercept"}
    assert not reasons.keys() & {"brier", "log_loss", "brier_refinement", "ece", "prevalence"}


@pytest.mark.parametrize("model", MODELS)
def test_a_metric_needs_what_it_says(model):
    """Without edges, baseline, outcomes or verdicts exactly the metrics that say they need them are undefined for that reason."""
    score, outcome, verdict, _ = _rows(model)
    t = table_of(score, outcome, verdicts=verdict)
    bare = {e.metric: e.reason for e in measure(readings.known(t), KEY, "28d")}
    assert {name for name, reason in bare.items() if reason == "no_baseline"} == {
        name for name, m in METRICS.items() if m.edges or m.reference
    }
    undecided = _measured(readings.known(table_of(score, outcome)), t)
    assert {name for name, e in undecided.items() if e.reason == "no_threshold"} == {n for n, m in METRICS.items() if m.decided}
    assert _measured(readings.scored(t), t).keys() == {name for name, m in METRICS.items() if not m.outcomes}
    unlabelled = _measured(readings.known(table_of(score, verdicts=verdict)), t)
    assert all(e.reason == "no_labels" for name, e in unlabelled.items() if METRICS[name].outcomes)


def test_weights_of_one_change_nothing():
    """Rows whose weights are all 1 have the estimates of counted rows, up to the last digits."""
    score, outcome, verdict, _ = _rows("even")
    t = table_of(score, outcome, verdicts=verdict)
    r = readings.known(t)
    same = dataclasses.replace(r, spread=np.stack((r.neg, r.pos, np.zeros(len(r.n)))), seen=r.pos)
    _alike(_measured(same, t), _measured(r, t), {"rel": 1e-9, "abs": 1e-12})


def test_every_metric_is_in_the_contract():
    """A metric has its gauge, those of both ends of its interval or of none, the promise of outcomes, and a sentence of help."""
    for name, m in METRICS.items():
        assert SERIES[f"scorewatch_{name}"].help == m.help
        assert (f"scorewatch_{name}_low" in SERIES) is (f"scorewatch_{name}_high" in SERIES)
        assert (f"scorewatch_baseline_{name}" in SERIES) is (m.outcomes or name == "flagged_share")
        assert m.help[0].isupper()
        assert m.help.endswith(".")
        assert m.about in ("all", "flagged", "seen")
    assert set(NOWCAST) <= METRICS.keys()
    assert RANGE.keys() <= METRICS.keys()


def test_reasons_are_sentences_under_one_code_each():
    """A reason is a lower-case code with one sentence."""
    for code, sentence in REASONS.items():
        assert code == code.lower().replace(" ", "_")
        assert sentence[0].isupper()
        assert sentence.endswith(".")
