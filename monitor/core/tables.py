"""The grid, the stored row, and additive tables of counts. Everything a metric reads is such a table, and tables add by +."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import NONE, Bools, Floats, Ints

SCHEMA = 1
"""Version of ROW, LABEL and CELL on disk."""
GRID = 1
"""Version of the grid; counts of another grid cannot be added."""

_LOGIT_BINS, _SPAN = 2_048, 18.0
_CUTS = np.arange(1, 60) / 60.0


def _logit_bin(score: Floats) -> NDArray[np.int32]:
    with np.errstate(divide="ignore"):
        z = np.log(score / (1.0 - score))
    z += _SPAN
    z *= _LOGIT_BINS / (2 * _SPAN)
    # Scores of exactly 0 and 1 are infinite here; casting an infinity to an integer would give an index of -2**31.
    np.clip(z, 0, _LOGIT_BINS - 1, out=z)
    return z.astype(np.int32)


_cut_bins = _logit_bin(_CUTS)
_cut = np.full(_LOGIT_BINS, 2.0)
_cut[_cut_bins] = _CUTS
_lut = np.arange(_LOGIT_BINS, dtype=np.int32)
_lut += np.searchsorted(_cut_bins, _lut, side="left").astype(np.int32)
BINS = _LOGIT_BINS + len(_CUTS)


def grid_bin(score: Floats) -> NDArray[np.int32]:
    """Return the bin of each score in [0, 1]: 2,048 bins even in logit over +-18, with the edges k/60 put in between."""
    i = _logit_bin(score)
    found: NDArray[np.int32] = _lut[i] + (score >= _cut[i])
    return found


def _lower_edges() -> Floats:
    """Return the smallest score of each bin; the closed form rounds, so each edge is settled by asking the bin function."""
    z = np.arange(_LOGIT_BINS) * (2 * _SPAN / _LOGIT_BINS) - _SPAN
    edges = np.sort(np.concatenate((1.0 / (1.0 + np.exp(-z)), _CUTS)))
    edges[0] = 0.0
    bins = np.arange(BINS)
    for _ in range(64):
        low = grid_bin(edges) < bins
        if not low.any():
            break
        edges[low] = np.nextafter(edges[low], 2.0)
    for _ in range(64):
        below = np.nextafter(edges, -1.0)
        high = (bins > 0) & (grid_bin(np.maximum(below, 0.0)) >= bins)
        if not high.any():
            break
        edges[high] = below[high]
    return edges


EDGES = _lower_edges()
"""Lower edge of each bin, shape (BINS,); bin b holds the scores in [EDGES[b], EDGES[b + 1]), the last one is closed."""


def edges_of_width(bins: int) -> Ints:
    """Return the first grid bin of each of `bins` equal-width bins; `bins` must divide 60."""
    return np.searchsorted(EDGES, np.arange(bins) / bins).astype(np.int64)


def next_edge(score: float) -> float:
    """Return the smallest grid edge that is not below `score`; at most 1."""
    i = int(np.searchsorted(EDGES, score))
    return float(EDGES[i]) if i < BINS else 1.0


ROW = np.dtype(
    [
        ("h1", "<u8"),
        ("h2", "<u8"),
        ("ts", "<i8"),
        ("score", "<f8"),
        ("version", "<u2"),
        ("combo", "<u2"),
        ("policy", "<u2"),
        ("verdict", "u1"),
        ("spare", "u1"),
        ("weight", "<f4"),
        ("label_prob", "<f4"),
    ]
)
"""One stored prediction (48 bytes): id hash, ms since 1970, score, codes into the code books, verdict."""

LABEL = np.dtype([("outcome", "i1"), ("revision", "u1"), ("label_prob", "<u2"), ("delta", "<i4")])
"""The label of a row (8 bytes): outcome -1 none, revision, label_prob in 1/65535, label ts - prediction ts in seconds."""

CELL = np.dtype(
    [
        ("bin", "<u2"),
        ("verdict", "u1"),
        ("n_none", "<u4"),
        ("n_neg", "<u4"),
        ("n_pos", "<u4"),
        ("p_none", "<f8"),
        ("p_lab", "<f8"),
    ]
)
"""Counts of one (bin, verdict): rows without label, negative, positive; sums of scores without and with label."""

_RAW = np.dtype((np.void, CELL.itemsize))
COUNTS = ("n_none", "n_neg", "n_pos", "p_none", "p_lab")
TOTALS = ("n", "score", "brier", "log_loss", "clipped")
_TINY = 2.0**-52


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Additive counts of any set of rows.

    `cells` is sorted by (bin, verdict). `totals` (3, 5) holds for rows without label, negatives and positives the columns
    of TOTALS, exactly; a row without label is read as a negative there.
    """

    cells: NDArray[Any]
    totals: Floats

    @property
    def n(self) -> int:
        """Return how many rows were counted."""
        return int(self.totals[:, 0].sum())

    @property
    def labelled(self) -> int:
        """Return how many of the rows have a label."""
        return int(self.totals[1:, 0].sum())

    def __add__(self, other: "Table") -> "Table":
        """Return the counts of both."""
        return total([self, other])


EMPTY = Table(np.empty(0, CELL), np.zeros((3, len(TOTALS))))


def _cells(key: Ints, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return cells summed by key = bin * 8 + verdict."""
    unique, inverse = np.unique(key, return_inverse=True)
    cells = np.zeros(len(unique), CELL)
    cells["bin"], cells["verdict"] = unique >> 3, unique & 7
    for name, values in columns.items():
        cells[name] = np.bincount(inverse, values, len(unique))
    return cells


def total(tables: Sequence[Table]) -> Table:
    """Return the sum of tables; the sum of none is the empty table."""
    tables = [t for t in tables if len(t.cells)]
    if len(tables) < 2:
        return tables[0] if tables else EMPTY
    # As raw bytes: joining structured arrays compares their fields one by one, which takes longer than the counting.
    cells = np.concatenate([t.cells.view(_RAW) for t in tables]).view(CELL)
    key = cells["bin"].astype(np.int64) << 3 | cells["verdict"]
    summed = _cells(key, {name: cells[name] for name in COUNTS})
    return Table(summed, np.sum([t.totals for t in tables], axis=0))


def log_losses(score: Floats, positive: Bools | NDArray[np.int8]) -> Floats:
    """Return -ln of the probability given to what happened, scores clipped to [2**-52, 1 - 2**-52] as scikit-learn does."""
    q = np.clip(score, _TINY, 1 - _TINY)
    return -np.log(np.where(positive, q, 1.0 - q))


def tables(rows: NDArray[Any], labels: NDArray[Any] | None, members: NDArray[np.int32], slices: int) -> list[Table]:
    """Return one table per slice for rows (ROW) and their labels (LABEL, None: nobody looks at outcomes).

    `members` (k, combos) says which k slices a combination of segment values belongs to (`all` is slice 0).
    This one function counts for ticks, maturity, restart and replay.
    """
    n = len(rows)
    if not n:
        return [EMPTY] * slices
    score = np.ascontiguousarray(rows["score"])
    outcome = np.full(n, -1, np.int8) if labels is None else labels["outcome"]
    positive = outcome == 1
    bins = grid_bin(score)
    cell = bins.astype(np.int64) << 3 | rows["verdict"]
    kind = (outcome + 1).astype(np.int64)  # 0 none, 1 negative, 2 positive
    sums = {
        "score": score,
        "brier": (score - positive) ** 2,
        "log_loss": log_losses(score, positive),
        "clipped": ((score < _TINY) | (score > 1 - _TINY)).astype(np.float64),
    }
    belongs = members[:, rows["combo"]]
    result = []
    present = np.unique(belongs)
    for s in range(slices):
        if s and s not in present:
            result.append(EMPTY)
            continue
        at = slice(None) if s == 0 else np.flatnonzero((belongs == s).any(axis=0))
        k, o = cell[at], kind[at]
        columns = {name: (o == code).astype(np.float64) for code, name in enumerate(("n_none", "n_neg", "n_pos"))}
        columns["p_none"] = np.where(o == 0, score[at], 0.0)
        columns["p_lab"] = np.where(o == 0, 0.0, score[at])
        totals = np.zeros((3, len(TOTALS)))
        totals[:, 0] = np.bincount(o, minlength=3)
        for j, name in enumerate(TOTALS[1:], 1):
            totals[:, j] = np.bincount(o, sums[name][at], 3)
        result.append(Table(_cells(k, columns), totals))
    return result


def decided(table: Table) -> bool:
    """Return whether somebody said what to do with the rows (a verdict, a policy or a configured threshold)."""
    return bool(len(table.cells)) and not bool((table.cells["verdict"] == NONE).all())
