"""What time it is for the agent: the machine's, or that of the newest events it has read."""

import time
from collections.abc import Iterator


def wall() -> int:
    """Return the machine's time in ms since 1970."""
    return time.time_ns() // 1_000_000


class WallClock:
    """Ticks come from a timer; events need not be cut. `last` is the last tick, None before the first."""

    def __init__(self, last: int | None) -> None:
        self.last = last
        self.started = wall()

    @property
    def now(self) -> int:
        """Return the present time in ms."""
        return wall()


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
