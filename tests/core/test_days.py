"""Days, windows and months against Python's calendar."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.days import (
    iso,
    mature_window,
    matures_at,
    month_end,
    month_of,
    newest_mature,
    oldest_kept,
    recent_hours,
)
from monitor.core.events import DAY, EARLIEST, HOUR, LATEST

TIMES = st.integers(EARLIEST, LATEST - 1)
HORIZONS = st.integers(0, 90 * 24).map(lambda h: h * HOUR)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(TIMES)
def test_calendar(ts):
    """Days, months and texts are those of UTC."""
    at = EPOCH + timedelta(milliseconds=ts)
    assert ts // DAY == (at.date() - date(1970, 1, 1)).days
    assert month_of(ts // DAY) == f"{at:%Y-%m}"
    assert iso(ts) == f"{at:%Y-%m-%dT%H:%M:%S}Z"


@given(TIMES)
def test_month_end(ts):
    """The last day of a month is in it and the day after is not."""
    month = month_of(ts // DAY)
    assert (month_of(month_end(month)), month_of(month_end(month) + 1) > month) == (month, True)


@pytest.mark.parametrize(("month", "last"), [("2024-02", "2024-02-29"), ("2023-02", "2023-02-28"), ("2023-12", "2023-12-31")])
def test_month_ends(month, last):
    """Leap years and the turn of the year are counted."""
    assert iso(month_end(month) * DAY)[:10] == last


@given(TIMES, HORIZONS)
def test_mature(now, horizon):
    """The newest mature day has matured at `now`, the day after it has not."""
    day = newest_mature(now, horizon)
    assert matures_at(day, horizon) <= now < matures_at(day + 1, horizon)


@given(TIMES, HORIZONS, HORIZONS)
def test_kept(now, horizon, corrections):
    """Rows are kept from the first day whose corrections are not over."""
    day = oldest_kept(now, horizon, corrections)
    assert matures_at(day - 1, horizon) + corrections <= now < matures_at(day, horizon) + corrections


@given(TIMES, HORIZONS, st.sampled_from([("7d", 7), ("28d", 28)]))
def test_windows(now, horizon, window):
    """A window holds the last whole mature days that there are, ascending."""
    name, n = window
    last = newest_mature(now, horizon)
    assert mature_window(range(last + 9, last - 60, -1), now, horizon, name) == tuple(range(last - n + 1, last + 1))
    assert mature_window({last, last - n, last - 2, last + 1}, now, horizon, name) == (last - 2, last)
    assert mature_window((), now, horizon, name) == ()


@given(TIMES, st.sampled_from([("1h", 1), ("24h", 24)]))
def test_hours(now, window):
    """Recent hours are whole and cover the window: one more than its length, save on the hour."""
    name, n = window
    hours = recent_hours(now, name)
    assert len(hours) == n + (now % HOUR > 0)
    assert hours.start * HOUR <= now - n * HOUR < (hours.start + 1) * HOUR
    assert (hours.stop - 1) * HOUR < now <= hours.stop * HOUR
