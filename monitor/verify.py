"""Whether what is kept is what the rows say: every day that still has its rows is counted again."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from monitor.core.days import iso, recent_hours
from monitor.core.events import DAY, HOUR
from monitor.core.tables import EMPTY, Table, unlike, weights_of
from monitor.store import StateError, Store
from monitor.watched import Watched

SAMPLED = 1_000_000
"""So many rows at most are looked up in the index, evenly spread."""

SKIPPED = {
    "left": "without their rows, which left after the corrections",
    "recount": "to be counted again at the next tick",
    "open": "open",
    "unknown": "of a model that is not in the configuration",
}
"""Why tables of a day are not compared: its rows are not kept any more, or its tables are not final."""

Found = tuple[str, str]
Looked = tuple[int, str, list[Found]]
"""Rows, a code of SKIPPED or nothing, and what differs."""


@dataclass(frozen=True, slots=True)
class Step:
    """One comparison of `of`: a day of a version, or another part of the state (`what`; where it has no version both are empty).

    `differences` are (slice, what differs); `skipped` is a code of SKIPPED when there was no final table to compare.
    """

    of: int
    model: str
    version: str
    what: str
    rows: int
    seconds: float
    skipped: str
    differences: tuple[Found, ...]


def verify(store: Store, watched: Mapping[int, Watched], count: Callable[[int], None] | None) -> Iterator[Step]:
    """Yield one step after the other; the store may take in events between two of them, not during one.

    With `count`, which brings the tables of the last hours forward to the tick at a time, tables in memory are compared, too.
    """
    days = sorted(store.closed.keys() | store.spans.keys())
    every = max(1, -(-(store.tail - store.head) // SAMPLED))
    live = [] if count is None or store.meta.get("last_tick") is None else list(watched.values())
    looks: list[tuple[tuple[str, str], str, Callable[[], Looked]]] = [
        (_name(store, code), iso(day * DAY)[:10], partial(_day, store, watched.get(code), code, day, every)) for code, day in days
    ]
    for w in live:
        assert count is not None
        looks += [(w.name, "last hours", partial(_hours, w, count)), (w.name, "mature windows", partial(_windows, w))]
    looks += [(("", ""), "journal", partial(_journal, store)), (("", ""), "memory", partial(_memory, store))]
    if count is None:  # it takes long, and nobody waits for the store now
        looks.append((("", ""), "log.db", partial(_file, store)))
    for (model, version), what, look in looks:
        begun = time.perf_counter()
        rows, skipped, differences = look()
        yield Step(len(looks), model, version, what, rows, time.perf_counter() - begun, skipped, tuple(differences))


def _name(store: Store, code: int) -> tuple[str, str]:
    names = store.versions.names
    return names[code] if code < len(names) else ("unknown", str(code))


def _day(store: Store, w: Watched | None, code: int, day: int, every: int) -> Looked:
    """Compare a day with its rows, and every so many of these with the index."""
    key, now = (code, day), store.meta.get("last_tick")
    span = store.spans.get(key)
    if day < store.left.get(code, 0):
        return 0, "left", []
    n = labelled = missed = asked = 0
    for rows, labels in store.pieces_of(code, day):
        n, labelled = n + len(rows), labelled + int((labels["outcome"] >= 0).sum())
        some = rows[::every]
        asked, missed = asked + len(some), missed + int((~store.finds(some)).sum())
    found: list[Found] = (
        [] if code < len(store.versions.names) else [("all", f"{n:,} rows of a version that the log does not name")]
    )
    if missed:
        found.append(("all", f"the index misses {missed:,} of {asked:,} rows looked up"))
    if span is not None and (span.n, span.labelled) != (n, labelled):
        found.append(("all", f"in memory {span.n:,} rows, {span.labelled:,} labelled; there are {n:,} and {labelled:,}"))
    if w is None:
        return n, "unknown", found
    if key not in store.closed:
        return n, "open", found
    if key in store.recount:
        return n, "recount", found
    if span is None and (now is None or day < w.oldest_kept(now)):
        return n, "left", found
    return n, "", found + _tables(store, w, day, n)


def _tables(store: Store, w: Watched, day: int, n: int) -> list[Found]:
    try:
        kept = store.log.day(w.code, day)
    except StateError as e:
        return [("all", str(e))]
    everything = kept.get("all", EMPTY)
    if not n and (w.code, "day", day) not in store.passed and everything.n == everything.out:
        return []  # no row waited, and the table that says so went with the corrections of a shorter period
    try:
        counted = w.counted(day)
    except (ArithmeticError, LookupError, ValueError) as e:
        return [("all", f"the rows cannot be counted ({e})")]
    found = [
        (name, f"{', '.join(parts)}: kept {_size(kept.get(name, EMPTY))}; counted {_size(counted.get(name, EMPTY))}")
        for name, parts in unlike(kept, counted).items()
    ]
    said = store.closed[w.code, day]
    if said != (everything.n, everything.labelled):
        found.append(("all", f"the log notes {said[0]:,} rows, {said[1]:,} labelled; kept {_size(everything)}"))
    return found


def _size(table: Table) -> str:
    return f"{table.n:,} rows, {table.labelled:,} labelled"


def _scored(table: Table) -> tuple[Any, ...]:
    """Return what readings of scores see: cells, their rows and their sums of scores, whether or not they wait."""
    c, w = table.cells, weights_of(table)
    rows = c["n_none"].astype(np.float64) + c["n_neg"] + c["n_pos"] + w["out"]
    return c["bin"].tolist(), c["verdict"].tolist(), rows.tolist(), c["p_none"] + c["p_lab"] + w["p_out"]


def _hours(w: Watched, count: Callable[[int], None]) -> Looked:
    now = w.store.meta["last_tick"]
    count(now)
    fresh = replace(w, hours={}, following={}, stale=True)
    fresh.recount(now)
    found = []
    first = max(recent_hours(now, "24h").start, w.store.left.get(w.code, 0) * DAY // HOUR)
    for hour in sorted(h for h in w.hours.keys() | fresh.hours.keys() if h >= first):
        nothing = [EMPTY] * len(w.slices)
        for name, a, b in zip(w.slices, w.hours.get(hour, nothing), fresh.hours.get(hour, nothing), strict=True):
            (*cells, sums), (*others, counted) = _scored(a), _scored(b)
            # Hours are counted as their rows come, so the sums of scores may round otherwise.
            if cells != others or not np.allclose(sums, counted, rtol=1e-9, atol=1e-9):
                found.append((name, f"hour {iso(hour * HOUR)[:13]}: in memory {a.n:,} rows; counted {b.n:,}"))
    return 0, "", found


def _windows(w: Watched) -> Looked:
    found = []
    for day, tables in sorted(w.days.items()):
        try:
            stored = w.store.log.day(w.code, day)
        except (KeyError, StateError) as e:
            found.append(("all", f"{iso(day * DAY)[:10]}: {e}"))
            continue
        both = tables.keys() & stored.keys()  # of a day that was counted under other slices memory has only `all`
        for name, parts in unlike({k: tables[k] for k in both}, {k: stored[k] for k in both}).items():
            found.append((name, f"{iso(day * DAY)[:10]}: {', '.join(parts)} in memory are not those of the log"))
    return 0, "", found


def _journal(store: Store) -> Looked:
    broken = store.log.broken_link()
    return 0, "", [] if broken is None else [("", broken)]


def _memory(store: Store) -> Looked:
    return 0, "", [("", f"{what} are not those of the log") for what in store.unlike_log()]


def _file(store: Store) -> Looked:
    return 0, "", [("", text) for text in store.log.problems()]


def report(steps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the steps (as dicts) found, by version; raise ValueError when some of them are missing."""
    versions: dict[tuple[str, str], dict[str, Any]] = {}
    differences, of, done = [], 0, 0
    for step in steps:
        of, done = step["of"], done + 1
        model, version = step["model"], step["version"]
        for where, what in step["differences"]:
            differences.append({"model": model, "version": version, "part": step["what"], "slice": where, "what": what})
        if not model:
            continue
        nothing = {"model": model, "version": version, "days": 0, "equal": 0, "rows": 0, "seconds": 0.0}
        v = versions.setdefault((model, version), {**nothing, "skipped": dict.fromkeys(SKIPPED, 0)})
        v["rows"], v["seconds"] = v["rows"] + step["rows"], v["seconds"] + step["seconds"]
        if step["skipped"]:
            v["skipped"][step["skipped"]] += 1
        elif step["what"][:1].isdigit():
            v["days"] += 1
            v["equal"] += not step["differences"]
    if done != of:
        raise ValueError(f"only {done} of {of} comparisons were made")
    return {"equal": not differences, "versions": list(versions.values()), "differences": differences}


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return a report for people."""
    out = []
    for v in found["versions"]:
        skipped = "".join(f"; {n:,} {SKIPPED[reason]}" for reason, n in v["skipped"].items() if n)
        days = f"{v['equal']:,} of {v['days']:,} days equal" if v["equal"] != v["days"] else f"{v['days']:,} days equal"
        out.append(f"{v['model']} {v['version']}: {days}, {v['rows']:,} rows in {v['seconds']:.1f} s{skipped}")
    for d in found["differences"]:
        where = " ".join(part for part in (d["model"], d["version"], d["part"], d["slice"]) if part)
        out.append(f"  {where}: {d['what']}")
    n = len(found["differences"])
    out.append("what is kept is what the rows say" if not n else f"{n:,} difference{'s' if n > 1 else ''}")
    return out
