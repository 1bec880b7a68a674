"""A table as one way of counting sees it. A metric never sees a table, only a reading of it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import FLAG, FLAGGED, NONE, PASS, Bools, Floats
from monitor.core.tables import EDGES, Table

ACTING = ("scored", "mature")
"""The only bases that a rule which acts may read."""

_ENOUGH = 0.8


@dataclass(frozen=True, slots=True)
class LabelRule:
    """What no label at the horizon means after a verdict (negative or unknown); `never`: the outcome was prevented."""

    missing: str
    never: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Rows per cell and their outcomes under one way of counting.

    All arrays have one entry per cell, sorted by bin: `n` rows, `score` their mean score, `neg` and `pos` their outcomes
    (both zero in the basis `scored`). `losses` are the exact sums of the Brier and the logarithmic loss over the n rows.
    `reason` says why outcomes mean nothing here, else it is empty; `flagged_reason` why those of the flagged rows do.

    Where outcomes are weighted, `neg` and `pos` are estimates: `spread` (3, cells) then holds the variances of `neg` and of
    `pos` and their covariance, and `seen` how many positives were really seen; None where outcomes are counts of rows.
    `groups` are the sums by cluster group that the outcomes were read from (Table.groups), None without clusters.
    """

    basis: str
    bin: NDArray[np.int64]
    verdict: NDArray[np.uint8]
    n: Floats
    score: Floats
    neg: Floats
    pos: Floats
    losses: tuple[float, float]
    clipped: float
    reason: str = ""
    flagged_reason: str = ""
    spread: Floats | None = None
    seen: Floats | None = None
    groups: Floats | None = None

    @property
    def flagged(self) -> Bools:
        """Return which cells were flagged."""
        mask: Bools = FLAGGED[self.verdict]
        return mask

    @property
    def decided(self) -> bool:
        """Return whether anybody decided about the rows at all."""
        return bool((self.verdict != NONE).any())


def _reading(
    basis: str, table: Table, n: Floats, score_sum: Floats, neg: Floats, pos: Floats, kinds: tuple[int, ...], reason: str
) -> Reading:
    keep = n > 0
    sums = table.totals[list(kinds)].sum(axis=0)
    return Reading(
        basis,
        table.cells["bin"][keep].astype(np.int64),
        table.cells["verdict"][keep],
        n[keep],
        score_sum[keep] / n[keep],
        neg[keep],
        pos[keep],
        (float(sums[2]), float(sums[3])),
        float(sums[4]),
        reason,
    )


def scored(table: Table) -> Reading:
    """Return all rows, no outcomes."""
    c = table.cells
    n = c["n_none"].astype(np.float64) + c["n_neg"] + c["n_pos"]
    zero = np.zeros(len(n))
    return _reading("scored", table, n, c["p_none"] + c["p_lab"], zero, zero, (0, 1, 2), "" if len(n) else "no_events")


def known(table: Table) -> Reading:
    """Return the rows whose label is in, whatever the age of their day."""
    c = table.cells
    neg, pos = c["n_neg"].astype(np.float64), c["n_pos"].astype(np.float64)
    reason = "no_events" if not len(c) else "" if table.labelled else "no_labels"
    return _reading("known", table, neg + pos, c["p_lab"].copy(), neg, pos, (1, 2), reason)


def mature(table: Table, missing: str) -> Reading:
    """Return the outcomes of mature days; `missing` (negative or unknown) is what no label at the horizon means."""
    c = table.cells
    neg, pos = c["n_neg"].astype(np.float64), c["n_pos"].astype(np.float64)
    if not len(c):
        return _reading("mature", table, neg, c["p_lab"], neg, pos, (1, 2), "no_mature_days")
    if missing == "negative":
        neg = neg + c["n_none"]
        return _reading("mature", table, neg + pos, c["p_none"] + c["p_lab"], neg, pos, (0, 1, 2), "")
    reason = "no_labels" if not table.labelled else "unidentified" if table.labelled < _ENOUGH * table.n else ""
    return _reading("mature", table, neg + pos, c["p_lab"].copy(), neg, pos, (1, 2), reason)


def baseline(table: Table, threshold: float | None) -> Reading:
    """Return the validation outcomes as the current threshold would have decided: a new threshold changes the promise, too."""
    r = known(table)
    verdict = np.full(len(r.bin), NONE, np.uint8)
    if threshold is not None:
        verdict = np.where(EDGES[r.bin] >= threshold, FLAG, PASS).astype(np.uint8)
    return replace(r, basis="baseline", verdict=verdict)
