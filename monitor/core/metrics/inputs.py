"""Whether what comes into a model is spread as it was in the baseline: features over their bins, rows over the slices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.features import Feature
from monitor.core.intervals import Measured, share
from monitor.core.metrics.drift import js_of, psi_of
from monitor.core.tables import FEATURE_MISSING, FEATURE_UNSEEN


@dataclass(frozen=True, slots=True)
class Cell:
    """One bin, value or slice: its share of the rows with the 95 % Wilson interval, and its share in the baseline."""

    name: str
    share: Measured
    baseline: float


@dataclass(frozen=True, slots=True)
class Shift:
    """How far rows are spread otherwise than in the baseline over the cells of a feature or the slices of a segment.

    Effect sizes over the `n` rows that are in a cell: `psi`, what it is on average without a shift, and `js`; None exactly when
    `reason` is a code of `reasons.UNDEFINED`. `missing` and `unseen` are shares of the rows that say something of features,
    None where there are none.
    """

    name: str
    n: int
    psi: float | None = None
    psi_null: float | None = None
    js: float | None = None
    cells: tuple[Cell, ...] = ()
    missing: Cell | None = None
    unseen: Cell | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What came into a version in a window; `day` is the newest one it holds, 0 where it holds none."""

    window: str
    day: int
    features: tuple[Shift, ...]
    segments: tuple[Shift, ...]


def shift(name: str, cells: Sequence[str], live: Floats | Ints, base: Floats | Ints, empty: str = "no_events") -> Shift:
    """Return how rows by cell differ from those of the baseline; without any the reason is `empty`.

    Cells that are empty in both count for nothing: half a row added to them would be a difference where n and m differ.

    >>> found = shift("a", ("x", "y", "z"), np.array([30, 10, 0]), np.array([20, 20, 0]))
    >>> round(found.psi, 4), round(found.psi_null, 4), round(found.js, 4), found.cells[0].share.value
    (0.2601, 0.05, 0.2211, 0.75)
    """
    n, m = int(live.sum()), int(base.sum())
    if not n or not m:
        return Shift(name, n, reason=empty if m else "no_baseline")
    used = np.flatnonzero(live + base)
    a, b = live[used].astype(np.float64), base[used].astype(np.float64)
    shares = (Cell(c, share(float(k), n), float(p)) for c, k, p in zip(cells, live, base / m, strict=True))
    return Shift(name, n, psi_of(a, b), (len(used) - 1) * (1 / n + 1 / m), js_of(a, b), tuple(shares))


def feature_shifts(
    names: Sequence[str], features: Mapping[str, Feature], live: Ints | None, base: Ints | None
) -> tuple[Shift, ...]:
    """Return the shift of each named feature; `live` and `base` are the counts of `Table.features`, None where there are none."""
    place = {name: i for i, name in enumerate(features)}
    out = []
    for name in names:
        if base is None or name not in features:
            out.append(Shift(name, 0, reason="no_baseline"))
        elif live is None or not (counts := live[place[name]])[1:].any():
            out.append(Shift(name, 0, reason="no_events"))
        else:
            out.append(_feature(name, features[name], counts, base[place[name]]))
    return tuple(out)


def _feature(name: str, feature: Feature, live: Ints, base: Ints) -> Shift:
    bins = slice(1, 1 + len(feature.bins))
    found = shift(name, feature.bins, live[bins], base[bins], "no_values")
    said, promised = int(live[1:].sum()), max(int(base[1:].sum()), 1)
    apart = (("missing", FEATURE_MISSING), ("unseen", FEATURE_UNSEEN))
    missing, unseen = (Cell(what, share(float(live[c]), said), float(base[c]) / promised) for what, c in apart)
    return Shift(name, found.n, found.psi, found.psi_null, found.js, found.cells, missing, unseen, found.reason)


def slice_mix(segments: Sequence[str], live: Mapping[str, int], base: Mapping[str, int]) -> tuple[Shift, ...]:
    """Return by segment how rows are spread over its slices, given the rows of each slice; the slices are those of `base`."""
    out = []
    for segment in segments:
        names = [name for name in base if name.startswith(f"{segment}=")]
        found, promised = (np.array([rows.get(name, 0) for name in names], np.int64) for rows in (live, base))
        out.append(shift(segment, names, found, promised))
    return tuple(out)
