"""The grid, the stored row, and additive tables of counts. Everything a metric reads is such a table, and tables add by +."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import FLAGGED, NONE, SECOND, VERDICTS, Bools, Floats, Ints, prob_of

SCHEMA = 3
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


MOST_CLASSES = 50
"""A model has at most so many classes."""
MARGIN_BINS = 10
"""Margins between the two best classes are counted in so many bins of equal width."""
PAIR_CLASSES = 10
"""Of so many classes at most it is counted how the scores of each are spread by true class."""
_PAIR_BINS = 128
CLASS_SHAPES = ((MARGIN_BINS + MOST_CLASSES, MOST_CLASSES + 1), (_PAIR_BINS, PAIR_CLASSES + 1))
"""The shapes of Table.classes, of the target of the predicted class and of that of a class."""


def _pair_bins() -> Ints:
    """Return the one of 128 bins in which each grid bin lies: 58 of width 1/60 and, beyond them, 35 even in logit each side."""
    z = np.log(EDGES[1:] / (1.0 - EDGES[1:]))
    end, z = float(np.log(59.0)), np.append(-_SPAN, z)
    tail = np.clip((_SPAN - np.abs(z)) / (_SPAN - end) * 35, 0, 34).astype(np.int64)
    width = np.searchsorted(_CUTS, EDGES, side="right")
    found: Ints = np.where(width == 0, tail, np.where(width == 59, _PAIR_BINS - 1 - tail, 34 + width))
    return found


_PAIR_BIN = _pair_bins()

FEATURES, FEATURE_CODES = 14, 24
"""So many features of a row can be kept, each as one of so many codes."""
FEATURE_MISSING, FEATURE_UNSEEN = 22, 23
"""Codes 1 to 21 are the bins or categories that the baseline froze."""

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
        ("audit", "u1"),
        ("label_prob", "<u2"),
        ("wait_prob", "<u2"),
        ("cluster", "<u4"),
        ("target", "u1"),
        ("margin", "u1"),
        ("features", "u1", (FEATURES,)),
    ]
)
"""One stored prediction (64 bytes): id hash, ms since 1970, score, codes into the code books, verdict, what the audit drew,
how likely its label is to be looked for and the row was to wait (codes of `prob_code`), hash of its cluster (0: none).

The outcome that the score is the probability of is 1 where `target` is 0, else `target` - 1: a class. Where the score is that
of the predicted class, `margin` is how far it is ahead, in steps of 1/255 and at least one, else 0. `features` hold by position
in the baseline a bin or category from 1 on, FEATURE_MISSING, FEATURE_UNSEEN, or 0 where the event said nothing of features."""

NO_AUDIT, PICKED, PASSED_OVER = range(3)
"""What the audit sampler drew for a row: it was not asked, the row is to be reviewed, or it is not."""

LABEL = np.dtype([("outcome", "i1"), ("revision", "u1"), ("label_prob", "<u2"), ("delta", "<i4")])
"""The label of a row (8 bytes): outcome -1 none, revision, code of its `label_prob` in 15 bits (0: not given) and in the
highest bit whether it named its version (NAMED), label ts - prediction ts in seconds."""
NAMED = 0x8000

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

WEIGHT = np.dtype(
    [
        ("out", "<f8"),
        ("p_out", "<f8"),
        ("w_none", "<f8"),
        ("w_neg", "<f8"),
        ("w_pos", "<f8"),
        ("w2_none", "<f8"),
        ("w2_neg", "<f8"),
        ("w2_pos", "<f8"),
        ("expected", "<f8"),
        ("covered", "<f8"),
    ]
)
"""What a cell adds where not every row waits or not every label is looked for.

Rows that did not wait and the sum of their scores (`n_none` and `p_none` are without them); sums of the weights
1 / P(the label is seen) and of their squares; how many labels are expected of the rows that wait, and how many of those are
there. `w_none` has only rows without a `label_prob`: of others no label says nothing.
"""

DELAYS, LATE_DELAYS = 48, 16
"""Delay cells up to the horizon, with edges horizon * (j / 48)**2, and of equal width from there to the end of corrections."""
GROUPS = 64
"""Clusters are counted in so many groups by their hash."""
GROUP_COLUMNS = ("unflagged", "flagged", "undecided", "score", "brier", "log_loss")

_RAW = np.dtype((np.void, CELL.itemsize))
COUNTS = ("n_none", "n_neg", "n_pos", "p_none", "p_lab")
TOTALS = ("n", "score", "brier", "log_loss", "clipped")
TINY = 2.0**-52
"""Log loss clips scores to [TINY, 1 - TINY], as scikit-learn does."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Additive counts of any set of rows.

    `cells` is sorted by (bin, verdict). `totals` (3, 5) holds for rows without label, negatives and positives the columns
    of TOTALS, exactly; a row without label is read as a negative there, and so is one that did not wait. `weights` (WEIGHT)
    are aligned with the cells; None where every row waits and no `label_prob` was given. Counted for the slice `all` only:
    `delays` (2, verdicts, DELAYS + LATE_DELAYS + 1), labels by class, verdict and delay cell, and `groups` (GROUPS, 3, 6),
    by cluster group and kind of row (without label, negative, positive) the sums of GROUP_COLUMNS of the rows that have a
    cluster, None where none has one. `features` (FEATURES, FEATURE_CODES) are rows by feature and code, None where no row
    has features. `classes`, of CLASS_SHAPES, are rows of a model with classes by true class, of which column 0 is for
    rows without a label: where scores are those of the predicted class, by margin and then by that class; where they are
    those of one of the first PAIR_CLASSES, labelled ones of these by 128 bins of the score; else None.
    """

    cells: NDArray[Any]
    totals: Floats
    weights: NDArray[Any] | None = None
    delays: Ints | None = None
    groups: Floats | None = None
    features: Ints | None = None
    classes: Ints | None = None

    @property
    def n(self) -> int:
        """Return how many rows were counted."""
        return int(self.totals[:, 0].sum())

    @property
    def out(self) -> int:
        """Return how many of the rows did not wait for a label."""
        return 0 if self.weights is None else int(self.weights["out"].sum())

    @property
    def labelled(self) -> int:
        """Return how many of the rows have a label."""
        return int(self.totals[1:, 0].sum())

    def __add__(self, other: "Table") -> "Table":
        """Return the counts of both."""
        return total([self, other])


def differing(a: Table, b: Table) -> list[str]:
    """Return which parts of two tables are not the same bytes."""
    pairs = ((f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(Table))
    return [name for name, x, y in pairs if (None if x is None else x.tobytes()) != (None if y is None else y.tobytes())]


def unlike(a: Mapping[str, Table], b: Mapping[str, Table]) -> dict[str, list[str]]:
    """Return the slices whose tables differ, and in which parts; a slice without rows may be left out."""
    names = dict.fromkeys((*a, *b))
    parts = {name: differing(a.get(name, EMPTY), b.get(name, EMPTY)) for name in names}
    return {name: differ for name, differ in parts.items() if differ}


def to_dict(table: Table) -> dict[str, Any]:
    """Return a table as lists: {totals, one list per column of CELL, and the optional parts that it has}."""
    out = {"totals": table.totals.tolist(), **{name: table.cells[name].tolist() for name in CELL.names or ()}}
    if table.weights is not None:
        out["weights"] = {name: table.weights[name].tolist() for name in WEIGHT.names or ()}
    rest = ((name, getattr(table, name)) for name in ("delays", "groups", "features", "classes"))
    return out | {name: a.tolist() for name, a in rest if a is not None}


def from_dict(body: Mapping[str, Any]) -> Table:
    """Return the table that `to_dict` wrote; raise KeyError, TypeError, ValueError or OverflowError when it is none."""
    cells = _records(body, CELL, len(body["bin"]))
    place = cells["bin"].astype(np.int64) << 3 | cells["verdict"]
    if (np.diff(place, prepend=-1) <= 0).any() or (cells["bin"] >= BINS).any() or (cells["verdict"] >= len(VERDICTS)).any():
        raise ValueError("the cells are not those of a table")
    weights = _records(body["weights"], WEIGHT, len(cells)) if "weights" in body else None
    delays = np.array(body["delays"], np.int64).reshape(2, len(VERDICTS), -1) if "delays" in body else None
    groups = np.array(body["groups"], np.float64).reshape(GROUPS, 3, len(GROUP_COLUMNS)) if "groups" in body else None
    if delays is not None and delays.shape[2] != DELAYS + LATE_DELAYS + 1:
        raise ValueError("the delay cells are not those of a table")
    totals = np.array(body["totals"], np.float64).reshape(3, len(TOTALS))
    features = np.array(body["features"], np.int64).reshape(FEATURES, FEATURE_CODES) if "features" in body else None
    classes = np.array(body["classes"], np.int64) if "classes" in body else None
    if classes is not None and classes.shape not in CLASS_SHAPES:
        raise ValueError("the classes are not those of a table")
    return Table(cells, totals, weights, delays, groups, features, classes)


def _records(columns: Mapping[str, Any], dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    out = np.zeros(n, dtype)
    for name in dtype.names or ():
        if len(columns[name]) != n:
            raise ValueError(f"{name} has {len(columns[name])} of {n} numbers")
        out[name] = columns[name]
    return out


EMPTY = Table(np.empty(0, CELL), np.zeros((3, len(TOTALS))))


def _sums(inverse: Ints, n: int, columns: Mapping[str, NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return records of sums of the columns by position."""
    out = np.zeros(n, dtype)
    for name, values in columns.items():
        out[name] = np.bincount(inverse, values, n)
    return out


def weights_of(table: Table) -> NDArray[Any]:
    """Return the weights of a table; of one without, those that its counts imply."""
    if table.weights is not None:
        return table.weights
    c, out = table.cells, np.zeros(len(table.cells), WEIGHT)
    for kind in ("none", "neg", "pos"):
        out[f"w_{kind}"] = out[f"w2_{kind}"] = c[f"n_{kind}"]
    out["covered"] = out["w_neg"] + out["w_pos"]
    out["expected"] = out["covered"] + out["w_none"]
    return out


def total(tables: Sequence[Table]) -> Table:
    """Return the sum of tables; the sum of none is the empty table."""
    tables = [t for t in tables if len(t.cells)]
    if len(tables) < 2:
        return tables[0] if tables else EMPTY
    # As raw bytes: joining structured arrays compares their fields one by one, which takes longer than the counting.
    cells = np.concatenate([t.cells.view(_RAW) for t in tables]).view(CELL)
    weighted = any(t.weights is not None for t in tables)
    summed, weights = _merged(cells, np.concatenate([weights_of(t) for t in tables]) if weighted else None)
    totals = np.sum([t.totals for t in tables], axis=0)
    rest = (_plus([getattr(t, name) for t in tables]) for name in ("delays", "groups", "features", "classes"))
    return Table(summed, totals, weights, *rest)


def _merged(cells: NDArray[Any], parts: NDArray[Any] | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return cells in any order, and their weights if they have some, with those of one bin and verdict added up."""
    key = cells["bin"].astype(np.int64) << 3 | cells["verdict"]
    # There are few keys, so marking them is faster than sorting.
    there = np.zeros(BINS << 3, bool)
    there[key] = True
    unique = there.nonzero()[0]
    inverse = (there.cumsum() - 1)[key]
    summed = _sums(inverse, len(unique), {name: cells[name] for name in COUNTS}, CELL)
    summed["bin"], summed["verdict"] = unique >> 3, unique & 7
    weights = None if parts is None else _sums(inverse, len(unique), {name: parts[name] for name in WEIGHT.names or ()}, WEIGHT)
    return summed, weights


def at_bins(table: Table, served: Callable[[Floats], Floats]) -> Table:
    """Return a table as if other scores had been `served`, a function of the score: the rows of a cell are moved as their mean.

    Losses are those of what is served for the means, to second order in the width of a bin. Sums of scores and losses by cluster
    group cannot be told and are NaN; delays, features and classes are not about the score and stay.
    """
    if not len(table.cells):
        return table
    cells, weights = table.cells.copy(), None if table.weights is None else table.weights.copy()
    labelled, out = cells["n_neg"].astype(np.float64) + cells["n_pos"], np.zeros(len(cells))
    none, p_out = cells["n_none"].astype(np.float64), np.zeros(len(cells))
    if weights is not None:
        out, p_out = weights["out"], weights["p_out"]
    rows, sums = none + labelled + out, cells["p_none"] + cells["p_lab"] + p_out
    score = served(np.clip(sums / np.where(rows > 0, rows, 1.0), 0.0, 1.0))
    cells["bin"], cells["p_none"], cells["p_lab"] = grid_bin(score), none * score, labelled * score
    if weights is not None:
        weights["p_out"] = out * score
    kinds = np.stack((none + out, cells["n_neg"], cells["n_pos"]))
    losses = (
        np.stack((score**2, score**2, (1 - score) ** 2)),
        np.stack([log_losses(score, np.full(len(score), k == 2)) for k in range(3)]),
    )
    clipped = (score < TINY) | (score > 1 - TINY)
    columns = (kinds, kinds * score, *(kinds * loss for loss in losses), kinds * clipped)
    groups = None if table.groups is None else table.groups.copy()
    if groups is not None:
        groups[:, :, GROUP_COLUMNS.index("score") :] = np.nan
    totals = np.stack([column.sum(axis=1) for column in columns], axis=1)
    return replace(table, cells=(merged := _merged(cells, weights))[0], weights=merged[1], totals=totals, groups=groups)


def _plus(arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Return the sum of those that are there."""
    there = [a for a in arrays if a is not None]
    return np.sum(there, axis=0) if there else None


def log_losses(score: Floats, positive: Bools | NDArray[np.int8]) -> Floats:
    """Return -ln of the probability given to what happened, scores clipped to [2**-52, 1 - 2**-52] as scikit-learn does."""
    q = np.clip(score, TINY, 1 - TINY)
    return -np.log(np.where(positive, q, 1.0 - q))


def tables(
    rows: NDArray[Any], labels: NDArray[Any] | None, members: NDArray[np.int32], slices: int, horizon: tuple[int, int] = (0, 0)
) -> list[Table]:
    """Return one table per slice for rows (ROW) and their labels (LABEL, None: nobody looks at outcomes).

    `members` (k, combos) says which k slices a combination of segment values belongs to (`all` is slice 0), `horizon` are
    the horizon and the corrections period in ms, by which delays are counted.
    """
    return count_pieces([(rows, labels)], members, slices, horizon)


def count_pieces(
    pieces: Iterable[tuple[NDArray[Any], NDArray[Any] | None]],
    members: NDArray[np.int32],
    slices: int,
    horizon: tuple[int, int] = (0, 0),
) -> list[Table]:
    """Return one table per slice of rows and labels that come in pieces, as `tables` does.

    This one function counts for ticks, maturity, restart and replay. Equal rows give equal bytes in whatever order they
    come: each number is summed as a coarse part, exact in any order, and a fine rest.
    """
    coarse: list[list[Table]] = [[] for _ in range(slices)]
    fine: list[list[Table]] = [[] for _ in range(slices)]
    for rows, labels in pieces:
        if len(rows):
            _count(rows, labels, members, horizon, coarse, fine)
    return [_settle(total(a), total(b)) for a, b in zip(coarse, fine, strict=True)]


_COARSE = 2.0**-18


def _split(values: Floats) -> tuple[Floats, Floats]:
    """Return multiples of 2**-18, whose sums are exact up to 2**35, and what is left of the values."""
    coarse = np.rint(values / _COARSE) * _COARSE
    return coarse, values - coarse


def _settle(coarse: Table, fine: Table) -> Table:
    """Return the sum of the two parts, which have the same cells."""
    if not len(coarse.cells):
        return EMPTY
    cells = coarse.cells.copy()
    for name in ("p_none", "p_lab"):
        cells[name] += fine.cells[name]
    weights = None
    if coarse.weights is not None:
        weights = coarse.weights.copy()
        rest = weights_of(fine)
        for name in WEIGHT.names or ():
            weights[name] += rest[name]
    groups = None if coarse.groups is None or fine.groups is None else coarse.groups + fine.groups
    return Table(cells, coarse.totals + fine.totals, weights, coarse.delays, groups, coarse.features, coarse.classes)


def _count(
    rows: NDArray[Any],
    labels: NDArray[Any] | None,
    members: NDArray[np.int32],
    horizon: tuple[int, int],
    coarse: list[list[Table]],
    fine: list[list[Table]],
) -> None:
    """Add the two parts of the table of each slice that has rows."""
    n = len(rows)
    score = np.ascontiguousarray(rows["score"])
    outcome = np.full(n, -1, np.int8) if labels is None else labels["outcome"]
    positive = outcome == wanted(rows)
    cell = grid_bin(score).astype(np.int64) << 3 | rows["verdict"]
    none = (outcome < 0) | ((outcome > 1) & (rows["target"] == 0))
    kind = np.where(none, 0, 1 + positive)  # 0 none, 1 negative, 2 positive
    sums = [_split(score), _split((score - positive) ** 2), _split(log_losses(score, positive))]
    clipped = ((score < TINY) | (score > 1 - TINY)).astype(np.float64)
    weights = None if labels is None else _weights(rows, labels, kind)
    belongs = members[:, rows["combo"]]
    present = np.unique(belongs)
    for s in range(len(coarse)):
        if s and s not in present:
            continue
        at = slice(None) if s == 0 else np.flatnonzero((members == s).any(axis=0)[rows["combo"]])
        o = kind[at]
        unique, inverse = np.unique(cell[at], return_inverse=True)
        size = len(unique)
        counts = {name: (o == code).astype(np.float64) for code, name in enumerate(("n_none", "n_neg", "n_pos"))}
        for part, made in enumerate((coarse, fine)):
            p = sums[0][part][at]
            columns = {"p_none": np.where(o == 0, p, 0.0), "p_lab": np.where(o == 0, 0.0, p)}
            cells = _sums(inverse, size, columns if part else counts | columns, CELL)
            cells["bin"], cells["verdict"] = unique >> 3, unique & 7
            totals = np.zeros((3, len(TOTALS)))
            for j, values in enumerate(sums, 1):
                totals[:, j] = np.bincount(o, values[part][at], 3)
            if not part:
                totals[:, 0] = np.bincount(o, minlength=3)
                totals[:, 4] = np.bincount(o, clipped[at], 3)
            some = None
            if weights is not None:
                some = _sums(inverse, size, {name: w[part][at] for name, w in weights.items()}, WEIGHT)
            table = Table(cells, totals, some)
            if s == 0:
                groups = None if labels is None else _groups(rows, kind, [v[part] for v in sums], part == 0)
                delays = None if part or labels is None or not horizon[0] else _delays(rows, labels, kind, horizon)
                whole = (None, None) if part else (_features(rows), _classes(rows, outcome))
                table = Table(cells, totals, some, delays, groups, *whole)
            made[s].append(table)


def wanted(rows: NDArray[Any]) -> NDArray[np.int8]:
    """Return the outcome of each row that its score is the probability of."""
    wanted: NDArray[np.int8] = np.where(rows["target"] == 0, 1, rows["target"].astype(np.int8) - 1)
    return wanted


def _classes(rows: NDArray[Any], outcome: NDArray[np.int8]) -> Ints | None:
    """Return rows by predicted and true class, or by score and true class; None where there are no classes."""
    target, true = rows["target"].astype(np.int64), outcome.astype(np.int64) + 1
    if rows["margin"].any():
        shape = CLASS_SHAPES[0]
        margin = np.minimum(rows["margin"].astype(np.int64) * MARGIN_BINS // 255, MARGIN_BINS - 1)
        key = np.concatenate((margin, MARGIN_BINS - 1 + target)) * shape[1] + np.tile(true, 2)
    elif target.any() and target.max() <= PAIR_CLASSES and true.any():
        shape = CLASS_SHAPES[1]
        few = (true > 0) & (true <= PAIR_CLASSES)
        key = _PAIR_BIN[grid_bin(np.ascontiguousarray(rows["score"][few]))] * shape[1] + true[few]
    else:
        return None
    found: Ints = np.bincount(key, minlength=shape[0] * shape[1]).reshape(shape)
    return found


def _features(rows: NDArray[Any]) -> Ints | None:
    """Return rows by feature and code, None where no row has features."""
    codes = rows["features"]
    if not codes.any():
        return None
    key = codes.astype(np.int64) + np.arange(FEATURES) * FEATURE_CODES
    found: Ints = np.bincount(key.ravel(), minlength=FEATURES * FEATURE_CODES).reshape(FEATURES, FEATURE_CODES)
    return found


def _weights(rows: NDArray[Any], labels: NDArray[Any], kind: Ints) -> dict[str, tuple[Floats, Floats]] | None:
    """Return the columns of WEIGHT of waiting rows in two parts each, None when all weights are 1.

    A picked row waits for sure, so its label is seen with the probability of the pick. A label of a row that the audit
    passed over came by itself: it says nothing about the rows the audit stands for.
    """
    given = np.maximum(rows["label_prob"], labels["label_prob"] & ~np.uint16(NAMED))
    if not given.any() and not (rows["wait_prob"] > 1).any():
        return None
    seen, passed_over = kind > 0, rows["audit"] == PASSED_OVER
    looked, waited = prob_of(given), np.where(rows["audit"] == NO_AUDIT, prob_of(rows["wait_prob"]), 1.0)
    w = 1.0 / (looked * waited)
    known = np.where(passed_over, 0.0, w)
    open_ = np.where(given > 0, 0.0, w)
    by_row = (rows["label_prob"] > 0) & (rows["audit"] == NO_AUDIT)
    columns = {
        "w_none": np.where(kind == 0, open_, 0.0),
        "w_neg": np.where(kind == 1, known, 0.0),
        "w_pos": np.where(kind == 2, known, 0.0),
    }
    columns |= {name.replace("w_", "w2_"): values * values for name, values in columns.items()}
    columns["expected"] = np.where(by_row, looked, np.where(passed_over, 0.0, 1.0))
    # A label_prob that only comes with the label stands for the unlabelled rows like it, which nobody knows.
    by_label = (given > 0) & (rows["label_prob"] == 0)
    columns["covered"] = np.where(seen & ~passed_over, np.where(by_label, 1.0 / looked, 1.0), 0.0)
    return {name: _split(values) for name, values in columns.items()}


def delay_edges(horizon: int, corrections: int) -> Floats:
    """Return the lower edges in ms of the delay cells, the last of which is open: shape (DELAYS + LATE_DELAYS + 1,)."""
    early = horizon * (np.arange(DELAYS) / DELAYS) ** 2
    return np.concatenate((early, horizon + corrections * (np.arange(LATE_DELAYS + 1) / LATE_DELAYS)))


def _delays(rows: NDArray[Any], labels: NDArray[Any], kind: Ints, horizon: tuple[int, int]) -> Ints:
    """Return labels by class, verdict and delay cell; labels dated before their prediction count as at once."""
    size = DELAYS + LATE_DELAYS + 1
    at = np.flatnonzero(kind)
    delay = labels["delta"][at].astype(np.float64) * SECOND
    cell = np.maximum(np.searchsorted(delay_edges(*horizon), delay, side="right") - 1, 0)
    key = ((kind[at] - 1) * len(VERDICTS) + rows["verdict"][at]) * size + cell
    found: Ints = np.bincount(key, minlength=2 * len(VERDICTS) * size).reshape(2, len(VERDICTS), size)
    return found


def _groups(rows: NDArray[Any], kind: Ints, sums: Sequence[Floats], counts: bool) -> Floats | None:
    """Return the sums by cluster group of the rows that have a cluster."""
    at = np.flatnonzero(rows["cluster"])
    if not len(at):
        return None
    out = np.zeros((GROUPS * 3, len(GROUP_COLUMNS)))
    key = rows["cluster"][at].astype(np.int64) % GROUPS * 3 + kind[at]
    if counts:
        verdict = rows["verdict"][at]
        role = np.where(verdict == NONE, 2, FLAGGED[verdict])
        out[:, :3] = np.bincount(key * 3 + role, minlength=GROUPS * 9).reshape(-1, 3)
    for j, values in enumerate(sums, 3):
        out[:, j] = np.bincount(key, values[at], len(out))
    return out.reshape(GROUPS, 3, -1)


def not_waiting(table: Table) -> Table:
    """Return the table of rows that were counted as unlabelled and do not wait: no outcome of theirs will be seen."""
    weights = np.zeros(len(table.cells), WEIGHT)
    weights["out"], weights["p_out"] = table.cells["n_none"], table.cells["p_none"]
    cells = table.cells.copy()
    cells["n_none"] = cells["p_none"] = 0
    return Table(cells, table.totals, weights, features=table.features, classes=table.classes)


def all_rows(table: Table) -> Table:
    """Return the scores of a table with the rows that did not wait among those without a label, and no weights."""
    if table.weights is None:
        return table
    cells = table.cells.copy()
    cells["n_none"] += table.weights["out"].astype(np.uint32)
    cells["p_none"] += table.weights["p_out"]
    return Table(cells, table.totals, features=table.features, classes=table.classes)


def decided(table: Table) -> bool:
    """Return whether somebody said what to do with the rows (a verdict, a policy or a configured threshold)."""
    return bool(len(table.cells)) and not bool((table.cells["verdict"] == NONE).all())
