"""What validation promised: day tables with frozen slices and calibration edges, and where they come from."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core import features as frozen
from monitor.core.events import DAY, OTHER, Ints
from monitor.core.features import Feature
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.readings import known, scored
from monitor.core.tables import EMPTY, GRID, Table, all_rows, count_pieces, from_dict, to_dict, total

Combo = tuple[tuple[str, str], ...]

MIN_DAYS = 14
"""Fewer days do not show how much days differ."""
SLICES = 100
SLICE_ROWS = 200


@dataclass(frozen=True, slots=True)
class Baseline:
    """Frozen before anything is compared with it. `days` maps a slice to {day: Table}; `edges` are grid bins, the first 0.

    `until` is the time in ms where it ends: live days before it are not judged by it. `provenance["kind"]` is `validation`
    or `observed`; an observed one freezes slices and edges but promises nothing. `features` are in the order of their codes
    in a row, which the tables count. `report` is how a policy was chosen and what it did on rows kept for its test.
    """

    model: str
    version: str
    segments: tuple[str, ...]
    slices: tuple[str, ...]
    edges: Ints
    days: Mapping[str, Mapping[int, Table]]
    until: int
    provenance: Mapping[str, Any]
    checksum: str = ""
    features: Mapping[str, Feature] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def promises(self) -> bool:
        """Return whether it came from validation."""
        return bool(self.provenance["kind"] == "validation")

    @property
    def timed(self) -> bool:
        """Return whether its rows had times; else all of them are counted as one day, which is no day of traffic."""
        return bool(self.provenance.get("timed", True))

    def table(self, name: str) -> Table:
        """Return the sum of all days of a slice."""
        return total(list(self.days.get(name, {}).values()))

    @property
    def day_spread(self) -> float | None:
        """Return how much calibration differs between days beyond chance, in logits; None of fewer than 14 days with outcomes.

        A day with S = sum (y - p) and V = sum p (1 - p) is off by about S / V, a number whose variance by chance is 1 / V. What
        the variance between days is above that is the day effect; this is its standard deviation (DerSimonian and Laird,
        Controlled Clinical Trials 7 (1986), with equal weights).
        """
        readings = [known(t) for t in self.days.get("all", {}).values()]
        sums = np.array([(float((r.pos - r.score * r.n).sum()), float((r.n * r.score * (1 - r.score)).sum())) for r in readings])
        sums = sums[sums[:, 1] > 0] if len(sums) else sums
        if len(sums) < MIN_DAYS:
            return None
        excess = np.var(sums[:, 0] / sums[:, 1], ddof=1) - np.mean(1 / sums[:, 1])
        return math.sqrt(max(0.0, float(excess)))

    def rows(self) -> dict[str, int]:
        """Return how many rows each slice has."""
        return {name: sum(t.n for t in self.days.get(name, {}).values()) for name in self.slices}


def slice_names(count: Ints, combos: Sequence[Combo], segments: Sequence[str]) -> tuple[str, ...]:
    """Return `all`, then one slice per segment value with at least 200 rows, largest first, at most 100, then the others.

    `count` is how many rows each combination has.
    """
    n: dict[str, int] = {}
    for combo, k in zip(combos, count.tolist(), strict=True):
        for name, value in combo:
            if name in segments:
                n[f"{name}={value}"] = n.get(f"{name}={value}", 0) + k
    large = sorted((-k, name) for name, k in n.items() if k >= SLICE_ROWS)
    others = [f"{name}={OTHER}" for name in segments]
    room = SLICES - 1 - len(others)
    return ("all", *(name for _, name in large[:room] if name not in others), *others)


def members(slices: Sequence[str], combos: Sequence[Combo], segments: Sequence[str]) -> NDArray[np.int32]:
    """Return which slices a combination of segment values belongs to, shape (1 + segments, combos), as positions in `slices`.

    A value without a slice of its own, or an absent one, belongs to `other` of its segment.
    """
    place = {name: i for i, name in enumerate(slices)}
    out = np.zeros((1 + len(segments), max(len(combos), 1)), np.int32)
    for j, combo in enumerate(combos):
        values = dict(combo)
        for i, name in enumerate(segments, 1):
            out[i, j] = place.get(f"{name}={values.get(name, OTHER)}", place[f"{name}={OTHER}"])
    return out


def build(
    model: str,
    version: str,
    segments: tuple[str, ...],
    rows: NDArray[Any],
    labels: NDArray[Any],
    combos: Sequence[Combo],
    provenance: Mapping[str, Any],
    features: Mapping[str, Feature] | None = None,
) -> Baseline:
    """Return the baseline of rows (ROW) and labels (LABEL); its end is the end of its last day.

    The codes in the rows are those of `features`, by position.
    """
    day = rows["ts"] // DAY
    days = np.unique(day).tolist()
    made = build_by_day(model, version, segments, days, lambda d: [(rows[day == d], labels[day == d])], combos, provenance)
    return replace(made, features=features or {})


def build_by_day(
    model: str,
    version: str,
    segments: tuple[str, ...],
    days: Sequence[int],
    pieces: Callable[[int], Iterable[tuple[NDArray[Any], NDArray[Any]]]],
    combos: Sequence[Combo],
    provenance: Mapping[str, Any],
    passed: Mapping[int, Table] | None = None,
) -> Baseline:
    """Return the baseline of days whose `pieces(day)` of rows and labels are gone through twice, never held together.

    `passed` are the tables by day of the rows that did not wait; they belong to the slice `all`, whose edges are frozen.
    """
    count = np.zeros(len(combos), np.int64)
    for day in days:
        for rows, _ in pieces(day):
            count += np.bincount(rows["combo"], minlength=len(combos))
    slices = slice_names(count, combos, segments)
    lut = members(slices, combos, segments)
    tables_of: dict[str, dict[int, Table]] = {name: {} for name in slices}
    for day in days:
        for name, table in zip(slices, count_pieces(pieces(day), lut, len(slices)), strict=True):
            if table is not EMPTY:
                tables_of[name][day] = table
    for day, table in (passed or {}).items():
        tables_of["all"][day] = all_rows(tables_of["all"].get(day, EMPTY) + table)
    everything = scored(total(list(tables_of["all"].values())))
    until = (max(days) + 1) * DAY
    return Baseline(model, version, segments, slices, calibration_edges(everything), tables_of, until, provenance)


def to_json(baseline: Baseline) -> str:
    """Return the baseline as JSON."""
    days = {name: {str(day): to_dict(t) for day, t in tables.items()} for name, tables in baseline.days.items()}
    body = {
        "grid": GRID,
        "model": baseline.model,
        "version": baseline.version,
        "segments": list(baseline.segments),
        "slices": list(baseline.slices),
        "edges": baseline.edges.tolist(),
        "until": baseline.until,
        "provenance": dict(baseline.provenance),
        "checksum": baseline.checksum,
        **({"features": frozen.to_dict(baseline.features)} if baseline.features else {}),
        **({"report": dict(baseline.report)} if baseline.report else {}),
        "days": days,
    }
    return json.dumps(body, separators=(",", ":")) + "\n"


def from_json(text: str) -> Baseline:
    """Return the baseline that `to_json` wrote; raise ValueError when it is none or was made on another grid."""
    try:
        body = json.loads(text)
        if body["grid"] != GRID:
            raise ValueError(f"made on grid {body['grid']}, this version counts on grid {GRID}")
        days = {name: {int(day): from_dict(t) for day, t in tables.items()} for name, tables in body["days"].items()}
        return Baseline(
            body["model"],
            body["version"],
            tuple(body["segments"]),
            tuple(body["slices"]),
            np.array(body["edges"], np.int64),
            days,
            int(body["until"]),
            body["provenance"],
            body["checksum"],
            frozen.from_dict(body.get("features", {})),
            dict(body.get("report", {})),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as e:
        raise ValueError(f"not a baseline: {e!r}") from None
