"""Sizing: days, rows, shares and bytes of hand-made loads."""

import numpy as np
import pytest

from monitor.core.events import DAY, HOUR
from monitor.core.sampling import FILL, FLOOR, LEAST, SCORE_BINS
from monitor.core.sizing import INDEX_BYTES, PROCESS_BYTES, ROW_BYTES, Load, size

FRAUD = Load("fraud", 100_000, 90 * DAY, 28 * DAY)


def test_everything_waits():
    """Where all fits every row waits from its day to the end of the corrections, and bytes follow from the rows."""
    found = size([FRAUD, Load("small", 1, 12 * HOUR, 0)], 20_000_000)
    fraud, small = found.shares
    assert (fraud.days, fraud.rows, fraud.share, fraud.first, fraud.sampled) == (119.0, 11_900_000, 1.0, 90 * DAY, False)
    assert (small.days, small.rows, small.share, small.starved) == (1.5, 2, 1.0, False)
    assert (found.rows, found.sure) == (11_900_002, 11_900_002)
    assert found.disk == found.least_disk == 11_900_002 * ROW_BYTES == 11_900_002 * 72
    assert found.index == tuple(11_900_002 * b for b in INDEX_BYTES)
    assert found.least_memory == PROCESS_BYTES + found.index[0]


def test_a_sample_waits():
    """Past the limit a share of each model waits, its floor at least, and together they use nine tenths."""
    found = size([FRAUD, Load("small", 3_000, 90 * DAY, 28 * DAY)], 1_000_000)
    fraud, small = found.shares
    assert (small.share, small.sampled) == (1.0, False)
    assert fraud.share == pytest.approx((FILL * 1_000_000 / 119 - 3_000) / 100_000, rel=3e-4)
    assert fraud.sampled
    assert not fraud.starved
    assert found.rows == pytest.approx(FILL * 1_000_000, rel=3e-4)


def test_too_few_wait():
    """A model starves when fewer than a thousand of its rows a day wait although more come."""
    (fraud,) = size([FRAUD], 50_000).shares
    assert fraud.starved
    assert fraud.waiting_per_day == pytest.approx(45_000 / 119, rel=3e-4)
    (few,) = size([Load("few", 500, 90 * DAY, 28 * DAY)], 100_000).shares
    assert (few.share, few.starved) == (1.0, False)
    enough = size([FRAUD, Load("small", FLOOR * SCORE_BINS, 0, 0)], 1_000_000).shares
    assert [s.starved for s in enough] == [False, False]


def test_more_than_the_least_probability_can_hold():
    """Rows that wait whatever the plan are shown above the limit, never cut down to it."""
    found = size([Load("flood", 10**11, 90 * DAY, 28 * DAY)], 60_000_000)
    assert found.rows == found.sure == pytest.approx(10**11 * 119 * LEAST, rel=3e-4)
    assert found.sure > found.limit


def test_nobody_said_how_many():
    """Without a volume the plan is that of the limit, and nothing is needed for sure but what is known."""
    found = size([Load("churn", None, 30 * DAY, 28 * DAY)], 20_000_000)
    (churn,) = found.shares
    assert (churn.days, churn.share, churn.rows, churn.sampled, churn.starved) == (59.0, None, 0, False, False)
    assert (found.rows, found.sure) == (20_000_000, 0)
    both = size([FRAUD, Load("churn", None, 30 * DAY, 28 * DAY)], 20_000_000)
    assert (both.rows, both.sure) == (20_000_000, 11_900_000)
    assert np.isclose(both.log, 2 * size([FRAUD], 1).log)
