"""Two versions of a model on the same days: how they differ, and how on the rows that both have scored."""

from typing import Any

from monitor.core import readings
from monitor.core.compare import Pairs, Side, differences, paired
from monitor.core.days import Key, iso, mature_window
from monitor.core.events import DAY
from monitor.core.metrics import Estimate
from monitor.core.tables import total
from monitor.pairs import pairs
from monitor.timeline import number
from monitor.watched import Watched

PAIRED_ROWS = 300_000
"""Pairs are looked for on the newest mature days that have so many rows together, and at least on one."""


def beside(a: Watched, b: Watched, now: int) -> dict[str, Any]:
    """Return how version `a` differs from version `b` on the last 28 mature days that both have, by slice, and paired by id."""
    days = [d for d in mature_window(a.days, now, a.model.labels.longest, "28d") if d in b.days]
    said: dict[str, Any] = {
        "model": a.model.name,
        "version": a.version,
        "with": b.version,
        "days": [iso(d * DAY)[:10] for d in days],
    }
    if not days:
        return said | {"reason": "no_mature_days"}
    key = Key(*a.name, "all", days[-1])
    slices = {name: differences(*_sides(a, b, days, name), key._replace(slice=name), "28d", a.edges) for name in _common(a, b)}
    return said | {
        "slices": {name: _numbers(a.allowed(found)) for name, found in slices.items()},
        "paired": _numbers(a.allowed(paired(_pairs(a, b, days), key, "28d"))),
    }


def _common(a: Watched, b: Watched) -> list[str]:
    return [name for name in a.slices if name in b.slices]


def _sides(a: Watched, b: Watched, days: list[int], name: str) -> tuple[Side, Side]:
    tables = (total([t for d in days if (t := w.tables_of(d).get(name)) is not None]) for w in (a, b))
    one, two = (Side(readings.scored(t), readings.mature(t, a.model.labels.rules)) for t in tables)
    return one, two


def _pairs(a: Watched, b: Watched, days: list[int]) -> Pairs:
    """Return the pairs of the newest days."""
    found: list[Pairs] = []
    rows = 0
    for day in reversed(days):
        rows += max(w.store.spans[w.code, day].n if (w.code, day) in w.store.spans else 0 for w in (a, b))
        if found and rows > PAIRED_ROWS:
            break
        found.append(pairs(a.store, (a.code, b.code), day, a.model.labels.rules))
    return Pairs.concat(found)


def _numbers(found: tuple[Estimate, ...]) -> dict[str, Any]:
    return {e.metric: number(e) for e in found}
