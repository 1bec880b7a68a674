"""What only shows when the binary targets of a model with classes are seen together."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import chi_square_tail, delong
from monitor.core.metrics import calibration, ranking
from monitor.core.readings import Reading
from monitor.core.tables import MARGIN_BINS, PAIR_CLASSES, Table, log_losses


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What a model with `classes` was seen to do: tables and readings of the targets of its classes and of the predicted class.

    The latter are None where any number of classes may be right. `before` is the table of the predicted class in the baseline.
    """

    classes: tuple[str, ...]
    tables: Sequence[Table]
    readings: Sequence[Reading]
    top: tuple[Table, Reading] | None = None
    before: Table | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """The mean score of a class beside the share of rows that are of it.

    `z` is their difference in standard errors of honest scores, `p` how likely one as large is, `q` the same after
    `benjamini_hochberg` over the classes; `reason` says why a number is missing.
    """

    name: str
    n: int
    mean_score: float | None = None
    base_rate: float | None = None
    z: float | None = None
    p: float | None = None
    q: float | None = None
    roc_auc: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowDrift:
    """How differently from the baseline the rows of a true class are predicted: a chi-square test of both rows of counts."""

    true: str
    chi2: float | None = None
    df: int | None = None
    p: float | None = None
    q: float | None = None
    reason: str = ""


Test = TypeVar("Test", Balance, RowDrift)


@dataclass(frozen=True, slots=True)
class Growth:
    """A share that grew: of the rows that are `true` (None: anything else), those that are predicted as `predicted`."""

    true: str | None
    predicted: str
    before: float
    now: float


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values: calling those at most q significant makes at most a share q of the calls false.

    min over j >= i of m p_(j) / j (Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995), 289-300).

    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]
    """
    order = np.argsort(p, kind="stable")[::-1]
    scaled = np.array(p)[order] * len(p) / np.arange(len(p), 0, -1)
    out = np.empty(len(p))
    out[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    found: list[float] = out.tolist()
    return found


def balances(w: Window) -> list[Balance]:
    """Return for each class z = (sum p - n_k) / sqrt(sum p (1 - p)), with its p-value and that after Benjamini and Hochberg.

    Rows are counted as the readings weight them. A class whose scores are all 0 or 1 has no z.
    """
    return _adjusted([_balance(name, reading) for name, reading in zip(w.classes, w.readings, strict=True)])


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    """Return tests with the `q` of those that have a `p`."""
    q = iter(benjamini_hochberg([t.p for t in tests if t.p is not None]))
    return [t if t.p is None else replace(t, q=next(q)) for t in tests]


def _balance(name: str, r: Reading) -> Balance:
    n = float(r.n.sum())
    if r.reason or not n:
        return Balance(name, int(n), reason=r.reason or "no_labels")
    expected, positive = float(r.n @ r.score), float(r.pos.sum())
    square = r.n if r.spread is None else r.spread[0] + r.spread[1]
    variance = float(square @ (r.score * (1.0 - r.score)))
    z = (expected - positive) / math.sqrt(variance) if variance > 0 else None
    auc = ranking.roc_auc(r)
    return Balance(
        name,
        int(n),
        expected / n,
        positive / n,
        z,
        None if z is None else math.erfc(abs(z) / math.sqrt(2.0)),
        None,
        None if isinstance(auc, str) else auc.value,
        "no_positives" if not positive else "",
    )


# The confusion matrix. Its rows are labelled predictions, unweighted.


def confusion_matrix(table: Table, k: int) -> Ints:
    """Return labelled rows by true (rows) and predicted class (columns), shape (k, k), of a target of the predicted class."""
    if table.classes is None:
        return np.zeros((k, k), np.int64)
    return table.classes[MARGIN_BINS : MARGIN_BINS + k, 1 : k + 1].T


def shares(matrix: Ints) -> Floats:
    """Return each row over its sum; a row of nothing stays 0."""
    of: Floats = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    return of


def row_drifts(names: Sequence[str], live: Ints, base: Ints) -> list[RowDrift]:
    """Return the drift of each row of a confusion matrix against the same row of the baseline."""
    return _adjusted([_row_drift(name, np.stack(rows)) for name, *rows in zip(names, live, base, strict=True)])


def _row_drift(name: str, rows: Ints) -> RowDrift:
    """Return the chi-square test of homogeneity of two rows of counts, over the columns that either has."""
    totals = rows.sum(axis=1)
    if not totals.all():
        return RowDrift(name, reason="no_positives" if not totals[0] else "no_baseline")
    rows = rows[:, rows.any(axis=0)]
    expected = np.outer(totals, rows.sum(axis=0)) / totals.sum()
    chi2, df = float(((rows - expected) ** 2 / expected).sum()), rows.shape[1] - 1
    return RowDrift(name, chi2, df, chi_square_tail(chi2, df) if df else 1.0)


def largest_growth(names: Sequence[str], live: Ints, base: Ints) -> Growth | None:
    """Return which confusion of two classes grew most as a share of its true class, of those that both matrices have."""
    both = (live.sum(axis=1) > 0) & (base.sum(axis=1) > 0)
    grown = np.where(both[:, None] & ~np.eye(len(names), dtype=bool), shares(live) - shares(base), -1.0)
    i, j = divmod(int(grown.argmax()), len(names))
    return Growth(names[i], names[j], float(shares(base)[i, j]), float(shares(live)[i, j])) if grown[i, j] > 0 else None


def sink(names: Sequence[str], live: Ints, base: Ints) -> Growth | None:
    """Return which class draws more of the rows of all other classes than it did, by how much its share of them grew."""
    now, before = _drawn(live), _drawn(base)
    grown = np.nan_to_num(now - before)
    j = int(grown.argmax())
    return Growth(None, names[j], float(before[j]), float(now[j])) if grown[j] > 0 else None


def _drawn(matrix: Ints) -> Floats:
    """Return by class the share of the rows of other classes that are predicted as it, NaN where there are none."""
    others = matrix.sum() - matrix.sum(axis=1)
    wrong: Floats = (matrix.sum(axis=0) - np.diag(matrix)) / np.where(others > 0, others, np.nan)
    return wrong


def recall_and_f1(matrix: Ints) -> tuple[list[float | None], list[float | None]]:
    """Return recall and F1 by class; None where a class has no rows, for F1 neither true nor predicted ones."""
    hits, true, predicted = (x.tolist() for x in (np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)))
    recall = [h / t if t else None for h, t in zip(hits, true, strict=True)]
    f1 = [2 * h / (t + p) if t + p else None for h, t, p in zip(hits, true, predicted, strict=True)]
    return recall, f1


def _mean(values: Sequence[float | None]) -> float | str:
    """Return the mean of those that are there."""
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else "no_labels"


def _unread(w: Window) -> str:
    """Return why the outcomes of some class mean nothing, else nothing."""
    return next((r.reason or "no_labels" for r in w.readings if r.reason or not r.n.any()), "")


# Ranking.


def macro_auc(w: Window) -> float | str:
    """Return the mean over the classes of P(a row of the class scores higher for it than another row does)."""
    if reason := _unread(w):
        return reason
    values = [b.roc_auc for b in balances(w)]
    there = [v for v in values if v is not None]
    return "unseen_class" if len(there) < len(values) else sum(there) / len(there)


def micro_auc(w: Window) -> float | str:
    """Return the area under the ROC curve of all pairs of a row and a class, whose outcome is whether it is of it."""
    if reason := _unread(w):
        return reason
    columns = [np.concatenate([getattr(r, name) for r in w.readings]) for name in ("bin", "neg", "pos")]
    grid, at = np.unique(columns[0], return_inverse=True)
    neg, pos = (np.bincount(at, column, len(grid)).astype(np.float64) for column in columns[1:])
    return delong(neg, pos)[0] if neg.any() and pos.any() else "one_class"


def ovo_auc(w: Window) -> float | str:
    """Return the mean over pairs of classes (i, j) of (A(i|j) + A(j|i)) / 2 (Hand and Till, Machine Learning 45 (2001), 171-186).

    A(i|j) is P(a row of i has a higher score of i than one of j has); scores in one of 128 bins are ties, which count 1/2.
    """
    if len(w.classes) > PAIR_CLASSES:
        return "too_many_classes"
    if reason := _unread(w):
        return reason
    counts = [t.classes for t in w.tables]
    if any(c is None or not c[:, i + 1].any() for i, c in enumerate(counts)):
        return "unseen_class"
    areas = []
    for i, j in combinations(range(len(counts)), 2):
        for of, other in ((i, j), (j, i)):
            by_true = counts[of]
            assert by_true is not None
            areas.append(delong(*by_true[:, (other + 1, of + 1)].T.astype(np.float64))[0])
    return sum(areas) / len(areas)


# Losses.


def brier(w: Window) -> float | str:
    """Return the mean over rows of the sum over classes of (p_k - y_k)**2, which lies between 0 and 2."""
    return _unread(w) or sum(r.losses[0] / float(r.n.sum()) for r in w.readings)


def log_loss(w: Window) -> float | str:
    """Return the mean of -ln of the probability given to the true class.

    It is exact where every row waited and was looked for; weighted rows are read off the mean scores of the grid's bins.
    """
    if reason := _unread(w):
        return reason
    n, total = float(w.readings[0].n.sum()), 0.0
    for table, r in zip(w.tables, w.readings, strict=True):
        exact = table.weights is None and table.labelled == r.n.sum()
        total += float(table.totals[2, 3]) if exact else float(r.pos @ log_losses(r.score, np.ones(len(r.n), bool)))
    return total / n


# All of it.


def view(w: Window) -> dict[str, Any]:
    """Return what is to be said of a window, as mappings, lists and numbers; what has no value has a reason."""
    found: dict[str, Any] = {
        "classes": [asdict(b) for b in balances(w)],
        "roc_auc_macro": _said(macro_auc(w)),
        "roc_auc_micro": _said(micro_auc(w)),
        "brier": _said(brier(w)),
    }
    return found if w.top is None else found | _view_of_top(w, *w.top)


def _said(value: float | str) -> dict[str, Any]:
    return {"reason": value} if isinstance(value, str) else {"value": value}


def _view_of_top(w: Window, table: Table, reading: Reading) -> dict[str, Any]:
    k, names = len(w.classes), w.classes
    matrix = confusion_matrix(table, k)
    recall, f1 = recall_and_f1(matrix)
    n = int(matrix.sum())
    base = None if w.before is None else confusion_matrix(w.before, k)
    known = base is not None and bool(base.any())
    margins = np.zeros(MARGIN_BINS, np.int64) if table.classes is None else table.classes[:MARGIN_BINS].sum(axis=1)
    ece = reading.reason or (calibration.ece_width10(reading).value if len(reading.n) else "no_labels")
    return {
        "roc_auc_ovo": _said(ovo_auc(w)),
        "log_loss": _said(log_loss(w)),
        "ece_top_label": _said(ece),
        "accuracy": _said(float(np.trace(matrix)) / n if n else "no_labels"),
        "recall_macro": _said(_mean(recall)),
        "f1_macro": _said(_mean(f1)),
        "recall": dict(zip(names, recall, strict=True)),
        "f1": dict(zip(names, f1, strict=True)),
        "confusion": {
            "counts": matrix.tolist(),
            "true": matrix.sum(axis=1).tolist(),
            "predicted": matrix.sum(axis=0).tolist(),
            "shares": shares(matrix).tolist(),
            "drift": [asdict(d) for d in row_drifts(names, matrix, base)] if base is not None and known else [],
            "largest_growth": _growth(largest_growth(names, matrix, base)) if base is not None and known else None,
            "sink": _growth(sink(names, matrix, base)) if base is not None and known else None,
            **({} if known else {"reason": "no_baseline"}),
        },
        "margin": {"bins": [i / MARGIN_BINS for i in range(MARGIN_BINS + 1)], "n": margins.tolist()},
    }


def _growth(g: Growth | None) -> dict[str, Any] | None:
    return None if g is None else asdict(g)
