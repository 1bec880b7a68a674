"""Estimates without labels: what they say after a change of prevalence, when they refuse, and what they were worth."""

import numpy as np
import pytest

from monitor.core.before_labels import ESTIMATED, Error, before_labels, errors, off, worth
from monitor.core.days import Key
from monitor.core.quantify import Quantified
from monitor.core.readings import LabelRule, estimated, promised, scored
from monitor.core.tables import EMPTY

RULES = (LabelRule("unknown"),) * 6
KEY = Key("m", "v", "all", 0)
PRIOR = 0.05


def world(table, rng, n, prevalence, negatives=0.0, day=0.0, threshold=0.2, **columns):
    """Return the table of labelled rows: negatives N(0, 1), positives N(2, 1), scores right at PRIOR, flagged from .2 on."""
    y = rng.random(n) < prevalence * np.exp(day)
    x = rng.standard_normal(n) + np.where(y, 2.0, negatives)
    p = 1 / (1 + np.exp(-(np.log(PRIOR / (1 - PRIOR)) + 2 * x - 2)))
    return table(p, y.astype(np.int8), threshold, **columns), y, p >= 0.2


def truth(y, flagged):
    """Return the prevalence, recall and precision that rows have."""
    return np.array([y.mean(), flagged[y].mean(), y[flagged].mean()])


@pytest.fixture(scope="module")
def validation(table):
    return promised(world(table, np.random.default_rng(0), 40_000, PRIOR)[0])


@pytest.mark.parametrize("prevalence", [0.02, 0.05, 0.1])
def test_after_a_change_of_prevalence(table, validation, prevalence):
    """The intervals hold what the rows really have in at least .9 of runs, where uncorrected scores are far off."""
    rng, held = np.random.default_rng(1), np.zeros(3)
    for _ in range(100):
        made, y, flagged = world(table, rng, 10_000, prevalence)
        found = before_labels(made, validation, KEY, "24h", {})
        assert [e.metric for e in found] == list(ESTIMATED)
        held += [
            e.reason == "" and not e.interval_reason and e.low <= t <= e.high
            for e, t in zip(found, truth(y, flagged), strict=True)
        ]
    assert (held >= 90).all(), held
    assert {e.basis for e in found} == {"estimated"}


def test_cbpe(table, vector):
    """Without a change of prevalence the counts are the sums of scores of the vector."""
    inputs, expected = vector("cbpe")
    live = scored(table(inputs["scores"], threshold=inputs["threshold"]))
    validation = promised(table([0.2, 0.9], [0, 1]))
    found = estimated(live, validation, Quantified(0.5, 0.0, 1.0, 10))
    counts = [side[mask].sum() for mask in (found.flagged, ~found.flagged) for side in (found.pos, found.neg)]
    assert counts == pytest.approx([expected[name] for name in ("tp", "fp", "fn", "tn")], abs=1e-6)


def test_other_changes(table, validation):
    """When scores are no mixture of the classes there is a prevalence without interval, and no recall or precision."""
    made = world(table, np.random.default_rng(2), 20_000, PRIOR, negatives=0.3)[0]
    prevalence, *rest = before_labels(made, validation, KEY, "24h", {})
    assert prevalence.value > 0.08
    assert (prevalence.low, prevalence.interval_reason, prevalence.reason) == (None, "label_shift_rejected", "")
    assert [(e.value, e.reason) for e in rest] == [(None, "label_shift_rejected")] * 2


def test_reasons(table, validation):
    """No baseline, no rows, few rows, no decisions: all say so."""
    rng = np.random.default_rng(3)
    made = world(table, rng, 2_000, PRIOR)[0]
    assert {e.reason for e in before_labels(made, None, KEY, "24h", {})} == {"no_baseline"}
    assert {e.reason for e in before_labels(EMPTY, validation, KEY, "24h", {})} == {"no_events"}
    assert {e.reason for e in before_labels(world(table, rng, 900, PRIOR)[0], validation, KEY, "24h", {})} == {"low_n"}
    undecided = before_labels(world(table, rng, 2_000, PRIOR, threshold=None)[0], validation, KEY, "24h", {})
    assert [e.reason for e in undecided] == ["", "no_threshold", "no_threshold"]


def test_clusters(table, validation):
    """Rows that share clusters get no interval, because how their scores agree is not known."""
    made = world(table, np.random.default_rng(4), 5_000, PRIOR, cluster=np.arange(5_000) // 5 + 1)[0]
    found = before_labels(made, validation, KEY, "24h", {})
    assert {(e.low, e.interval_reason) for e in found} == {(None, "clustered")}


def test_worth(table, validation):
    """Errors of whole days are small without another change; after days with one an interval says next to nothing."""
    rng = np.random.default_rng(5)
    days = [world(table, rng, 4_000, PRIOR, day=rng.normal(0, 0.3))[0] for _ in range(20)]
    found = errors(off(t, validation, RULES) for t in days)
    assert set(found) == set(ESTIMATED)
    for error in found.values():
        assert error.days >= 17
        assert abs(error.mean) <= 3 * error.rms / np.sqrt(error.days)
    assert found["prevalence"].rms < 0.01
    shifted = [world(table, rng, 20_000, PRIOR, negatives=0.4)[0] for _ in range(8)]
    found = errors(off(t, validation, RULES) for t in shifted)
    assert found["prevalence"].mean > 0.05
    assert before_labels(days[0], validation, KEY, "24h", {})[0].high < 0.08
    assert before_labels(days[0], validation, KEY, "24h", found)[0].high > 0.15
    assert errors(off(t, validation, RULES) for t in days[:6]) == {}


def test_worth_of_positives_that_changed(table, validation):
    """What scores cannot show is shown by the bias: when positives become harder to tell, prevalence was put too low."""
    rng = np.random.default_rng(6)
    days = []
    for _ in range(12):
        y = rng.random(2_000) < PRIOR
        x = rng.standard_normal(2_000) + 1.4 * y
        days.append(table(1 / (1 + np.exp(-(np.log(PRIOR / (1 - PRIOR)) + 2 * x - 2))), y.astype(np.int8), threshold=0.2))
    bias, *_ = worth(errors(off(t, validation, RULES) for t in days), KEY)
    assert (bias.metric, bias.window, bias.basis) == ("prevalence_bias", "28d", "estimated")
    assert bias.value < -0.01
    assert [e.reason for e in worth({}, KEY)] == ["few_compared_days"] * 3


def test_earlier_errors_widen(table, validation):
    """An interval is never narrower than earlier errors were, and not changed by smaller ones."""
    made = world(table, np.random.default_rng(7), 10_000, PRIOR)[0]
    plain = before_labels(made, validation, KEY, "24h", {})
    assert before_labels(made, validation, KEY, "24h", {name: Error(0.0, 1e-6, 28) for name in ESTIMATED}) == plain
    wide = before_labels(made, validation, KEY, "24h", {"recall": Error(-0.1, 0.12, 28)})
    assert (wide[0], wide[2]) == (plain[0], plain[2])
    assert wide[1].low == pytest.approx(plain[1].value - 2.0484 * 0.12, abs=1e-4)
    assert wide[1].high == pytest.approx(plain[1].value + 2.0484 * 0.12, abs=1e-4)
