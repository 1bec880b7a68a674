"""What a table means under each way of counting."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sk_log_loss

from monitor.core.events import FLAG, PASS
from monitor.core.readings import baseline, known, mature, scored
from monitor.core.tables import EMPTY

SCORE = np.array([0.1, 0.1, 0.3, 0.6, 0.6, 0.9])
OUTCOME = np.array([0, -1, -1, 1, 0, 1], np.int8)


def test_scored_has_every_row_and_no_outcome(table):
    """The basis scored counts all rows and knows no outcome."""
    r = scored(table(SCORE, OUTCOME, threshold=0.5))
    assert (r.basis, r.reason, r.decided) == ("scored", "", True)
    np.testing.assert_allclose(r.score, [0.1, 0.3, 0.6, 0.9])
    assert r.n.tolist() == [2, 1, 2, 1]
    assert r.neg.tolist() == r.pos.tolist() == [0, 0, 0, 0]
    assert r.flagged.tolist() == [False, False, True, True]


def test_known_has_the_labelled_rows(table):
    """The basis known counts rows whose label is in, with exactly their scores and losses."""
    r = known(table(SCORE, OUTCOME, threshold=0.5))
    seen = OUTCOME >= 0
    np.testing.assert_allclose(r.score, [0.1, 0.6, 0.9])
    assert (r.neg.tolist(), r.pos.tolist()) == ([1, 1, 0], [0, 1, 1])
    assert r.losses[0] / 4 == pytest.approx(brier_score_loss(OUTCOME[seen], SCORE[seen]), rel=1e-12)
    assert r.losses[1] / 4 == pytest.approx(sk_log_loss(OUTCOME[seen], SCORE[seen]), rel=1e-12)


def test_mature_missing_negative(table):
    """Where no label means negative, the unlabelled rows of a mature day are negatives, in the losses too."""
    r = mature(table(SCORE, OUTCOME, threshold=0.5), "negative")
    y = np.maximum(OUTCOME, 0)
    assert (r.basis, r.reason) == ("mature", "")
    assert (r.n.tolist(), r.neg.tolist(), r.pos.tolist()) == ([2, 1, 2, 1], [2, 1, 1, 0], [0, 0, 1, 1])
    assert r.losses[0] / 6 == pytest.approx(brier_score_loss(y, SCORE), rel=1e-12)
    assert r.losses[1] / 6 == pytest.approx(sk_log_loss(y, SCORE), rel=1e-12)


@pytest.mark.parametrize(("labelled", "reason"), [(10, ""), (8, ""), (7, "unidentified"), (0, "no_labels")])
def test_mature_missing_unknown(table, labelled, reason):
    """Where no label means nothing, under .8 of the labels identify nothing; unlabelled rows are left out."""
    outcome = np.where(np.arange(10) < labelled, np.arange(10) % 2, -1)
    r = mature(table(np.linspace(0.05, 0.95, 10), outcome), "unknown")
    assert r.reason == reason
    assert r.n.sum() == labelled
    assert (r.neg + r.pos).tolist() == r.n.tolist()


def test_nothing_at_all():
    """An empty table has a reason on every basis, and no cells."""
    readings = [scored(EMPTY), known(EMPTY), mature(EMPTY, "negative"), mature(EMPTY, "unknown"), baseline(EMPTY, None)]
    assert [r.reason for r in readings] == ["no_events", "no_events", "no_mature_days", "no_mature_days", "no_events"]
    assert all(len(r.n) == 0 and r.losses == (0.0, 0.0) and not r.decided for r in readings)


def test_events_without_labels(table):
    """Scores without a single label say no_labels, not no_events."""
    assert known(table(SCORE)).reason == "no_labels"


def test_baseline_follows_the_current_policy(table):
    """The baseline is decided anew by the threshold it is asked about; a score on the threshold is flagged."""
    t = table(SCORE, np.maximum(OUTCOME, 0), threshold=0.05)
    r = baseline(t, 0.6)
    assert r.basis == "baseline"
    assert r.verdict.tolist() == [PASS, PASS, FLAG, FLAG]
    assert not baseline(t, None).decided


def test_clipped_are_counted(table):
    """Scores at the very ends are counted on the basis they belong to."""
    t = table([0.0, 1.0, 1.0, 0.5], [0, 1, -1, 1])
    assert (scored(t).clipped, known(t).clipped, mature(t, "negative").clipped) == (3, 2, 3)
