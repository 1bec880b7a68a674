"""What time it is for the agent: the machine's, or that of the newest events it has read."""

import logging
import time
from collections.abc import Iterator

from monitor.core.events import MINUTE

log = logging.getLogger("scorewatch")


def wall() -> int:
    """Return the machine's time in ms since 1970."""
    return time.time_ns() // 1_000_000


def steady() -> int:
    """Return a time in ms that never jumps; only differences mean something."""
    return time.monotonic_ns() // 1_000_000


class WallClock:
    """Ticks come from a timer; events need not be cut. `last` is the last tick, None before the first.

    A jump of the machine's time by more than five minutes is believed only when it has lasted for fifteen: a tick in a wrong
    future would close days without their labels and let rows go.
    """

    JUMP, PATIENCE = 5 * MINUTE, 15 * MINUTE

    def __init__(self, last: int | None) -> None:
        self.last = last
        self.started = wall()
        self._wall, self._steady = self.started, steady()
        self._jumped: int | None = None

    @property
    def now(self) -> int:
        """Return the present time in ms."""
        at, said = steady(), wall()
        expected = self._wall + at - self._steady
        if abs(said - expected) <= self.JUMP:
            self._jumped = None
        elif self._jumped is None:
            self._jumped = at
            log.warning("the machine's time jumped by %d s; it is believed if that lasts", (said - expected) // 1000)
        if self._jumped is not None and at - self._jumped < self.PATIENCE:
            return expected
        self._wall, self._steady, self._jumped = said, at, None
        return said


class EventClock:
    """Ticks at every multiple of `tick` ms that the events pass; the first event says where they begin.

    `last` is the last tick, or the boundary before the first event.
    """

    def __init__(self, tick: int, last: int | None) -> None:
        self.tick, self.last = tick, last

    @property
    def now(self) -> int | None:
        """Return the time of the last tick; None before the first event."""
        return self.last

    def begin(self, ts: int) -> None:
        """Start at the first event ever."""
        if self.last is None:
            self.last = ts // self.tick * self.tick

    @property
    def boundary(self) -> int | None:
        """Return the time of the next tick."""
        return None if self.last is None else self.last + self.tick

    def due(self, ts: int, settled: int) -> Iterator[int]:
        """Yield the ticks up to `ts`. Ticks after `settled` change nothing, so of those only the last is made."""
        while self.last is not None and self.last + self.tick <= ts:
            step = self.tick
            if self.last > settled:
                step = (ts - self.last) // self.tick * self.tick
            self.last += step
            yield self.last
