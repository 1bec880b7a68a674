"""Days and windows: which days are mature at `now`, and which of them a window holds."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from monitor.core.events import DAY, HOUR


class Key(NamedTuple):
    """What is counted, matures and is stored as one table."""

    model: str
    version: str
    slice: str
    day: int


WINDOWS = {"1h": HOUR, "24h": DAY, "7d": 7 * DAY, "28d": 28 * DAY}
RECENT = ("1h", "24h")
MATURE = ("7d", "28d")


def matures_at(day: int, horizon: int) -> int:
    """Return the time in ms from which the day counts: `horizon` ms after it ended."""
    return (day + 1) * DAY + horizon


def newest_mature(now: int, horizon: int) -> int:
    """Return the newest day that is mature at `now`."""
    return (now - horizon) // DAY - 1


def oldest_kept(now: int, horizon: int, corrections: int) -> int:
    """Return the oldest day whose rows are still kept for corrections at `now`."""
    return newest_mature(now, horizon + corrections) + 1


def mature_window(days: Iterable[int], now: int, horizon: int, window: str) -> tuple[int, ...]:
    """Return those of `days` that are in the last `window` of whole mature days, ascending."""
    last = newest_mature(now, horizon)
    first = last - WINDOWS[window] // DAY + 1
    return tuple(sorted(d for d in days if first <= d <= last))


def recent_hours(now: int, window: str) -> range:
    """Return the whole UTC hours that overlap the last `window` before `now`."""
    return range((now - WINDOWS[window]) // HOUR, -(-now // HOUR))


def month_of(day: int) -> str:
    """Return the calendar month of a day number as YYYY-MM."""
    return iso(day * DAY)[:7]


def month_end(month: str) -> int:
    """Return the last day number of a month given as YYYY-MM."""
    first = (np.datetime64(month, "M") + 1).astype("datetime64[D]")
    return int(first.astype(np.int64)) - 1


def iso(ts: int) -> str:
    """Return a time in ms as ISO-8601 in UTC, to the second."""
    return f"{np.datetime64(ts // 1000, 's')}Z"
