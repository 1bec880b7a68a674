"""Final day tables out of an agent as NDJSON, a baseline of them, and the sum of what several agents wrote."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from monitor import timeline
from monitor.core.baseline import Baseline
from monitor.core.days import Key, iso, month_of
from monitor.core.events import DAY, OTHER, VERDICTS
from monitor.core.metrics import of_margins
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.readings import LabelRule, scored
from monitor.core.tables import EMPTY, GRID, Table, from_dict, to_dict, total
from monitor.watched import Watched, baseline_checksum, summary

FORMAT = 1
"""Version of the lines."""


def export(watched: Iterable[Watched]) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of one closed day after the other: one per slice, with the counts and how outcomes are read.

    A line holds `format`, `grid`, `model`, `version`, `day`, `slice`, `labels` (horizon and corrections in ms, and by verdict
    what no label means), `margins` (whether scores only order rows) and the table as `tables.to_dict` writes it.
    """
    for w in watched:
        labels = {
            "horizon": w.horizon[0],
            "corrections": w.horizon[1],
            "verdicts": {v: "never" if r.never else r.missing for v, r in zip(VERDICTS, w.model.labels.rules, strict=True)},
        }
        for day in sorted(d for v, d in w.store.closed if v == w.code):
            if (w.code, day) not in w.store.closed:
                continue  # it was too old for the tick that came between
            head = {"format": FORMAT, "grid": GRID, "model": w.model.name, "version": w.version, "day": iso(day * DAY)[:10]}
            tables = w.store.log.day(w.code, day)
            read = {"labels": labels, "margins": w.model.score == "margin"}
            yield [{**head, "slice": name, **read, **to_dict(t)} for name, t in tables.items()]


class Days(NamedTuple):
    """Closed days of a version by slice, and what no label means by verdict."""

    rules: tuple[LabelRule, ...]
    tables: dict[int, dict[str, Table]]


def days_of(lines: Iterable[bytes], model: str, version: str | None) -> tuple[str, Days]:
    """Return (version, its closed days) from the lines of `export`; raise ValueError when there are none, or several versions."""
    found: dict[str, Days] = {}
    for text in lines:
        line = json.loads(text)
        if line["model"] == model and version in (None, line["version"]):
            _check(line)
            days = found.setdefault(line["version"], Days(_rules(line), {}))
            days.tables.setdefault(_day(line), {})[line["slice"]] = from_dict(line)
    if len(found) != 1:
        raise ValueError(f"say which version of {model}: {', '.join(found)}" if found else f"{model} has no mature day yet")
    return next(iter(found.items()))


def _check(line: dict[str, Any]) -> None:
    for name, ours in (("format", FORMAT), ("grid", GRID)):
        if line[name] != ours:
            raise ValueError(f"{name} {line[name]!r}, this version reads {ours}; export it with the same version of Scorewatch")


def _rules(line: dict[str, Any]) -> tuple[LabelRule, ...]:
    given = (line["labels"]["verdicts"][v] for v in VERDICTS)
    return tuple(LabelRule("unknown", never=True) if v == "never" else LabelRule(v) for v in given)


def _day(line: dict[str, Any]) -> int:
    return int(np.datetime64(line["day"], "D").astype(np.int64))


class Span(NamedTuple):
    """Which days of what an agent exported: those of a model, of a version unless there is one only, from `since` to before
    `until` (days since 1970). `segments` are those configured, None where nobody said.
    """

    model: str
    version: str | None
    since: int
    until: int
    segments: tuple[str, ...] | None = None


def observed(lines: Iterable[bytes], span: Span, code: str, at: int) -> Baseline:
    """Return the baseline of the mature days of a running model from lines of `export data`.

    It is `observed`: what was served and came true, not what validation promised, so it promises nothing. It has no features:
    days tell their bins by number only. Raises ValueError when there is no such day or the version has to be named.
    """
    version, exported = days_of(lines, span.model, span.version)
    days: dict[str, dict[int, Table]] = {}
    for day in sorted(d for d in exported.tables if span.since <= d < span.until):
        for name, table in exported.tables[day].items():
            days.setdefault(name, {})[day] = replace(table, features=None)
    if not days:
        first, last = _date(span.since), _date(span.until - 1)
        raise ValueError(f"{span.model} {version} has no mature day from {first} to {last}")
    there = sorted(days["all"])
    names = tuple(name for name in days if name != "all")
    segments = tuple(dict.fromkeys(name.partition("=")[0] for name in names)) if span.segments is None else span.segments
    others = tuple(f"{name}={OTHER}" for name in segments)
    provenance = {
        "kind": "observed",
        "days": len(there),
        "first_day": _date(there[0]),
        "last_day": _date(there[-1]),
        "data": f"mature days from {_date(span.since)} to {_date(span.until - 1)}",
        "rows": sum(t.n for t in days["all"].values()),
        "code": code,
        "built_at": iso(at),
    }
    slices = ("all", *(name for name in names if name not in others), *others)
    edges = calibration_edges(scored(total(list(days["all"].values()))))
    made = Baseline(span.model, version, segments, slices, edges, days, (there[-1] + 1) * DAY, provenance)
    return replace(made, checksum=baseline_checksum(made))


def _date(day: int) -> str:
    return iso(day * DAY)[:10]


class Part(NamedTuple):
    """What a file held of a slice: days of versions, and rows."""

    path: Path
    days: int
    rows: int


class Merged:
    """Sums of the tables of one slice by (model, version) and day; `parts` says what each file gave.

    Raises ValueError with file and line for what cannot be added: another format or grid, outcomes or scores read otherwise, or
    a slice that an agent has not because it cut the segment into others.
    """

    def __init__(self, paths: Sequence[Path], of: str = "all") -> None:
        self.slice = of
        self.days: dict[tuple[str, str], dict[int, Table]] = {}
        self.read: dict[str, tuple[dict[str, Any], tuple[LabelRule, ...], Path]] = {}
        self._cut: dict[tuple[str, str], tuple[set[str], Path]] = {}
        self.parts = [self._add(path) for path in paths]

    def _add(self, path: Path) -> Part:
        n = rows = 0
        cut: dict[tuple[str, str], set[str]] = {}
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                    table = self._line(path, line)
                except (LookupError, TypeError, AttributeError, OverflowError, json.JSONDecodeError) as e:
                    raise ValueError(f"{path}: line {number}: not written by `scorewatch export data` ({e!r})") from None
                except ValueError as e:
                    raise ValueError(f"{path}: line {number}: {e}") from None
                n, rows = n + (table is not EMPTY), rows + table.n
                if line["slice"].partition("=")[0] == self.slice.partition("=")[0]:
                    cut.setdefault((line["model"], line["version"]), set()).add(line["slice"])
        if not n:
            raise ValueError(f"{path}: has no day of slice {self.slice}")
        for version, names in cut.items():
            others, where = self._cut.setdefault(version, (names, path))
            if names != others:
                here, there = (", ".join(sorted(some)) for some in (names, others))
                raise ValueError(f"{path}: {' '.join(version)} has slices {here}, in {where} {there}; they cannot be added")
        return Part(path, n, rows)

    def _line(self, path: Path, line: dict[str, Any]) -> Table:
        """Add a line and return its table; that of another slice is empty."""
        _check(line)
        rules = _rules(line)
        here = {name: line[name] for name in ("labels", "margins")}
        said, _, where = self.read.setdefault(line["model"], (here, rules, path))
        for name in here:
            if said[name] != here[name]:
                raise ValueError(f"{name} of {line['model']} are {here[name]}, in {where} {said[name]}; they cannot be added")
        if line["slice"] != self.slice:
            return EMPTY
        day = _day(line)
        days = self.days.setdefault((line["model"], line["version"]), {})
        table = from_dict(line)
        days[day] = days.get(day, EMPTY) + table
        return table

    def items(self, by: str) -> Iterator[dict[str, Any]]:
        """Yield the timeline items of every month or day (`by`): the mature estimates, by version.

        Frozen bins are an agent's own, so there is no `ece` but `ece_width10`.
        """
        for (model, version), days in sorted(self.days.items()):
            groups: dict[str, list[int]] = {}
            for day in sorted(days):
                groups.setdefault(month_of(day) if by == "month" else iso(day * DAY)[:10], []).append(day)
            for name, some in groups.items():
                table = total([days[d] for d in some])
                read, rules, _ = self.read[model]
                made = summary(table, rules, Key(model, version, self.slice, some[-1]), name, None)
                made = of_margins(made) if read["margins"] else made
                yield timeline.estimates(by, name, (model, version), made) | {"slice": self.slice, "rows": table.n}
