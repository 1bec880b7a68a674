"""Two thresholds on the same scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.compare import flagged_at, policy_volume
from monitor.core.intervals import Measured
from monitor.core.readings import scored
from monitor.core.tables import EDGES

THRESHOLDS = st.sampled_from([0.0, 1 / 60, 0.25, 0.5, 0.75, float(EDGES[7]), float(EDGES[-1])])
SCORES = st.lists(st.one_of(st.floats(0, 1), THRESHOLDS), min_size=1, max_size=40)


@given(SCORES, THRESHOLDS, THRESHOLDS)
def test_exact(table, scores, current, previous):
    """The ratio of the flagged counts is exact, without an interval of its own."""
    reading = scored(table(np.array(scores)))
    now, before = (sum(s >= t for s in scores) for t in (current, previous))
    assert (flagged_at(reading, current), flagged_at(reading, previous)) == (now, before)
    ratio = 1.0 if now == before else now / max(before, 1)
    assert policy_volume(reading, current, previous) == Measured(ratio, ratio, ratio, len(scores))


@pytest.mark.parametrize(
    ("current", "previous", "ratio"), [(0.5, 0.5, 1.0), (0.5, 0.25, 0.5), (0.25, 0.5, 2.0), (0.75, 0.5, 0.0), (0.25, 0.75, 4.0)]
)
def test_cases(table, current, previous, ratio):
    """More flagged is above 1, fewer below; a previous threshold that flags nothing counts as one row."""
    reading = scored(table(np.array([0.25, 0.3, 0.5, 0.6])))
    assert policy_volume(reading, current, previous) == Measured(ratio, ratio, ratio, 4)


def test_nothing(table):
    """Neither flags anything: the ratio is 1. No rows: there is no ratio."""
    assert policy_volume(scored(table(np.array([0.1]))), 0.5, 0.75) == Measured(1.0, 1.0, 1.0, 1)
    assert policy_volume(scored(table(np.array([]))), 0.5, 0.75) == "no_events"
