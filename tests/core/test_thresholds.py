"""The cheapest threshold against trying all."""

import numpy as np
import pytest

from monitor.core.readings import known
from monitor.core.tables import EDGES, grid_bin
from monitor.core.thresholds import cheapest


def brute(scores, outcomes, missed, false_alarm):
    """Return the highest edge of least cost."""
    at = EDGES[grid_bin(scores)]
    cost = [missed * outcomes[at < t].sum() + false_alarm * (1 - outcomes[at >= t]).sum() for t in EDGES]
    return float(EDGES[np.flatnonzero(np.isclose(cost, min(cost), rtol=0, atol=1e-9))[-1]])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("missed", "false_alarm"), [(1, 1), (10, 1), (1, 10), (0, 1), (1, 0), (0.25, 0.5)])
def test_brute_force(table, seed, missed, false_alarm):
    """It is the highest of the grid edges at which the cost is least."""
    rng = np.random.default_rng(seed)
    scores = rng.choice([0.0, 0.1, 0.25, 0.5, 0.9, 1.0], 60) if seed % 2 else rng.random(200)
    outcomes = (rng.random(len(scores)) < scores).astype(np.int8)
    assert cheapest(known(table(scores, outcomes)), missed, false_alarm) == brute(scores, outcomes, missed, false_alarm)


def test_one_class(table):
    """Where nothing is positive the highest edge is best, where everything is, the lowest bin's own."""
    scores = np.array([0.2, 0.6])
    assert cheapest(known(table(scores, np.zeros(2, np.int8))), 1, 1) == EDGES[-1]
    assert cheapest(known(table(scores, np.ones(2, np.int8))), 1, 1) == EDGES[grid_bin(scores)[0]]
