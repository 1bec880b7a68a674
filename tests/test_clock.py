"""What time it is, and which ticks are due."""

import numpy as np
import pytest

from monitor.clock import EventClock, WallClock, wall
from monitor.core.events import EARLIEST, HOUR, LATEST

NEVER = 10**18
T0 = 1_700_000_000_000 // HOUR * HOUR


def test_wall():
    """The wall clock is the machine's, in ms; its last tick is what it is given."""
    clock = WallClock(5)
    assert EARLIEST < clock.started <= clock.now <= wall() < LATEST
    assert clock.last == 5


def test_before_the_first_event():
    """A clock of events says nothing before the first event, and no tick is due."""
    clock = EventClock(HOUR, None)
    assert (clock.now, clock.boundary, list(clock.due(NEVER, NEVER))) == (None, None, [])


@pytest.mark.parametrize(("ts", "begun"), [(T0, T0), (T0 + 1, T0), (T0 + HOUR - 1, T0)])
def test_begin(ts, begun):
    """The first event begins its own hour; later ones begin nothing, nor does any after a restart."""
    clock = EventClock(HOUR, None)
    clock.begin(ts)
    clock.begin(ts - 9 * HOUR)
    assert (clock.now, clock.boundary) == (begun, begun + HOUR)
    restarted = EventClock(HOUR, begun + HOUR)
    restarted.begin(T0 - 30 * HOUR)
    assert restarted.now == begun + HOUR


def test_due():
    """Every boundary that is passed or reached is a tick, once."""
    clock = EventClock(HOUR, T0)
    assert list(clock.due(T0 + HOUR - 1, NEVER)) == []
    assert list(clock.due(T0 + HOUR, NEVER)) == [T0 + HOUR]
    assert list(clock.due(T0 + HOUR, NEVER)) == []
    assert list(clock.due(T0 + 4 * HOUR + 5, NEVER)) == [T0 + h * HOUR for h in (2, 3, 4)]
    assert list(clock.due(T0, NEVER)) == []
    assert clock.now == T0 + 4 * HOUR


def test_one_at_a_time():
    """The clock stands at the tick that is being made, so whoever stops in between goes on there."""
    clock = EventClock(HOUR, T0)
    ticks = clock.due(T0 + 3 * HOUR, NEVER)
    assert (next(ticks), clock.now, clock.boundary) == (T0 + HOUR, T0 + HOUR, T0 + 2 * HOUR)
    assert list(clock.due(T0 + 3 * HOUR, NEVER)) == [T0 + 2 * HOUR, T0 + 3 * HOUR]


@pytest.mark.parametrize(
    ("ts", "settled", "hours"),
    [
        (T0 + 5 * HOUR, T0 + 2 * HOUR, [1, 2, 3, 5]),
        (T0 + 5 * HOUR, T0 - 1, [5]),
        (T0 + 5 * HOUR + 7, T0 - 1, [5]),
        (T0 + HOUR, T0 - 1, [1]),
        (T0 + 100_000 * HOUR, T0 + HOUR, [1, 2, 100_000]),
    ],
)
def test_gaps(ts, settled, hours):
    """Ticks after everything has settled change nothing: of those only the last is made, however long the gap."""
    assert list(EventClock(HOUR, T0).due(ts, settled)) == [T0 + h * HOUR for h in hours]


@pytest.mark.parametrize("seed", range(20))
def test_batches_change_nothing(seed):
    """The ticks are the same however the same events are cut."""
    rng = np.random.default_rng(seed)
    ts = (T0 + rng.integers(0, 300 * HOUR, 200).cumsum() // 20).tolist()

    def ticks(parts):
        clock, out = EventClock(HOUR, None), []
        clock.begin(ts[0])
        for part in parts:
            out += clock.due(max(part), NEVER)
        return out

    cuts = sorted(rng.choice(np.arange(1, 200), 10, replace=False).tolist())
    parts = [ts[a:b] for a, b in zip([0, *cuts], [*cuts, 200], strict=True)]
    assert ticks([[t] for t in ts]) == ticks(parts) == ticks([ts])
