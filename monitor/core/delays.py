"""How long labels take: delay curves that know what open days cannot have shown yet, completeness, the horizon they suggest."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.core.events import DAY, FLAGGED, HOUR, NONE, VERDICTS, Bools, Floats, Ints
from monitor.core.tables import DELAYS, Table, delay_edges

ENOUGH = 30
"""Labels of mature days that a delay curve needs."""
SUGGEST_ENOUGH = 50
"""Labels of mature days that a suggested horizon needs."""
COMPLETE = 0.98
"""A suggested horizon is the smallest with so much completeness; more than the rest after the configured one is too much."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Completeness F by the age of a row: the share of the labels that come by the last edge which are in at that age.

    `edges` (k + 1,) are ages in ms from 0 on, `f` and its standard errors `se` the values there, linear in between and 1
    from the last edge on. `n` (k,) are the delays that each cell between two edges rests on.
    """

    edges: Floats
    f: Floats
    se: Floats
    n: Ints

    def at(self, age: int) -> tuple[float, float]:
        """Return the mean of F over the rows of a day that ended `age` ms ago, and the standard error of its logarithm.

        The rows have ages even between `age` and `age` + 24 h; of a day that has not ended, only those above 0 are there. The
        errors at all ages are taken as fully correlated. F is 0, with an error of 0, before anything can have come.
        """
        low, high = float(max(age, 0)), float(age + DAY)
        inside = self.edges[(self.edges > low) & (self.edges < high)]
        ages = np.concatenate(([low], inside, [max(high, low)]))
        f, se = (
            float(np.trapezoid(np.interp(ages, self.edges, values), ages)) / max(high - low, 1.0) for values in (self.f, self.se)
        )
        return f, se / f if f > 0 else 0.0


def curve(counts: Ints, ages: Ints, edges: Floats) -> Curve:
    """Return the delay curve of labels from days of known age by the reverse-time product limit.

    F(x) = product over cells u > x of 1 - #{d = u} / #{d <= u <= age}, with the variance of ln F as Greenwood's: the sum of
    #{d = u} / (y (y - #{d = u})), y = #{d <= u <= age}. `counts` (days, k) are the labels of each day by delay cell
    [edges[u], edges[u + 1]), `ages` (days,) the ms since the days ended. A day counts for a cell only if its youngest row
    is old enough to have shown it. F is relative to the last edge, so it means something only where n[-1] > 0. Lagakos,
    Barraj and De Gruttola, Biometrika 75 (1988), 515-523; Kalbfleisch and Lawless, Statistica Sinica 1 (1991), 19-32.

    >>> hour = 3_600_000
    >>> curve(np.array([[6, 2], [9, 0]]), np.array([2 * hour, hour]), np.array([0, 1, 2]) * hour).f.tolist()
    [0.0, 0.75, 1.0]
    """
    shown = ages[:, None] >= edges[1:]
    d = (counts * shown).sum(axis=0)
    y = (counts.cumsum(axis=1) * shown).sum(axis=0)
    left = y - d
    f = np.append(np.cumprod(np.where(y > 0, left / np.maximum(y, 1), 1.0)[::-1])[::-1], 1.0)
    # A cell that nothing came before has left = 0; F is 0 below it, without error.
    terms = np.where(left > 0, d / np.maximum(y * left, 1), 0.0)
    variance = np.append(np.cumsum(terms[::-1])[::-1], 0.0)
    return Curve(edges, f, f * np.sqrt(variance), y)


@dataclass(frozen=True, slots=True, eq=False)
class Completeness:
    """How complete the labels of one day are, by class and verdict, each of shape (2, verdicts).

    `f` is the share that is in of the labels that come by the horizon: NaN where no label of the kind was ever seen, 0 where
    too few were to say. `sd` is the standard error of ln f, `curve` tells which of them rest on one curve and so share it.
    """

    f: Floats
    sd: Floats
    curve: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Delay curves by class and verdict: `curves[which[class, verdict]]`, -1 where no label was seen and -2 where too few were.

    `borrowed` (2, verdicts) says where the curve is that of the whole class.
    """

    curves: tuple[Curve, ...]
    which: Ints
    borrowed: Bools

    def at(self, age: int) -> Completeness:
        """Return the completeness of a day that ended `age` ms ago (negative: it has not ended).

        Labels of flagged rows come at another pace than those of passed ones. So where a curve is borrowed from the whole
        class, all of its correction counts as a standard error.
        """
        values = [*(c.at(age) for c in self.curves), (0.0, 0.0), (math.nan, math.nan)]
        f, sd = np.array(values).T[:, self.which]
        wide = self.borrowed & (f > 0)
        sd[wide] = np.hypot(sd[wide], np.log(f[wide]))
        return Completeness(f, sd, self.which)


def delay_curves(days: Sequence[tuple[Table, int]], horizon: int, corrections: int) -> Curves:
    """Return the delay curves of the days: pairs of a table of the slice `all` and the ms since its day ended.

    Open days and mature ones count; `horizon` and `corrections` (ms) are those the delays were counted with. A curve needs
    ENOUGH labels from mature days. A verdict with fewer takes the curve of its class over all verdicts that flagged (or did
    not), and when that too has fewer, the curve of its class.
    """
    counts, ages = _stacked(days)
    edges = delay_edges(horizon, corrections)[: DELAYS + 1]
    which = np.full((2, len(VERDICTS)), -1)
    borrowed = np.zeros((2, len(VERDICTS)), bool)
    found: dict[tuple[int, tuple[int, ...]], Curve] = {}
    for label, verdict in zip(*np.nonzero(counts.any(axis=(0, 3))), strict=True):
        which[label, verdict] = -2
        for level, pool in enumerate(_pools(int(verdict))):
            key = (int(label), pool)
            if key not in found:
                found[key] = curve(counts[:, label, pool, :DELAYS].sum(axis=1), ages, edges)
            if found[key].n[-1] >= ENOUGH:
                which[label, verdict] = list(found).index(key)
                borrowed[label, verdict] = level == 2
                break
    return Curves(tuple(found.values()), which, borrowed)


def share_in(days: Sequence[tuple[Table, Completeness]]) -> float | None:
    """Return the share of the labels of these days, as many as come by the horizon, that are in; None when nobody can say."""
    seen = to_come = 0.0
    for table, complete in days:
        c = table.cells
        counts = np.stack([np.bincount(c["verdict"], c[name], len(VERDICTS)) for name in ("n_neg", "n_pos")])
        known = complete.f > 0
        seen += float(counts[known].sum())
        to_come += float((counts[known] / complete.f[known]).sum())
    return seen / to_come if to_come else None


def _pools(verdict: int) -> Iterator[tuple[int, ...]]:
    """Return the verdicts whose labels may stand for those of a verdict, the nearest first."""
    yield (verdict,)
    decided = range(NONE)
    yield (NONE,) if verdict == NONE else tuple(v for v in decided if FLAGGED[v] == FLAGGED[verdict])
    yield tuple(range(len(VERDICTS)))


def _stacked(days: Sequence[tuple[Table, int]]) -> tuple[Ints, Ints]:
    """Return the delays (days, 2, verdicts, cells) and ages (days,) of the days that have delays."""
    there = [(t.delays, age) for t, age in days if t.delays is not None]
    if not there:
        return np.zeros((0, 2, len(VERDICTS), DELAYS), np.int64), np.zeros(0, np.int64)
    return np.stack([delays for delays, _ in there]), np.array([age for _, age in there])


@dataclass(frozen=True, slots=True)
class SuggestedHorizon:
    """The horizon that delays suggest in ms, and the share of labels that come after the configured one.

    Both are None when `reason` is a code of `reasons.UNDEFINED`; `n` labels of mature days were seen.
    """

    horizon: int | None
    late: float | None
    n: int
    reason: str = ""


def suggested_horizon(
    days: Sequence[tuple[Table, int]], horizon: int, corrections: int, label: int | None = None, verdict: int | None = None
) -> SuggestedHorizon:
    """Return the smallest horizon with completeness COMPLETE, in whole hours below two days and in whole days above.

    Completeness is relative to the labels that come up to `horizon` + `corrections`; `days` are as `delay_curves` takes them.
    Over all labels, or those of one class (`label`) and verdict.
    """
    counts, ages = _stacked(days)
    labels = slice(None) if label is None else slice(label, label + 1)
    verdicts = slice(None) if verdict is None else slice(verdict, verdict + 1)
    edges = delay_edges(horizon, corrections)
    counts = counts[:, labels, verdicts, : len(edges) - 1].sum(axis=(1, 2))
    if not counts.any():
        return SuggestedHorizon(None, None, 0, "no_labels")
    seen = curve(counts, ages, edges)
    n = int(seen.n[DELAYS - 1])
    if n < SUGGEST_ENOUGH:
        return SuggestedHorizon(None, None, n, "low_n" if (ages >= horizon).any() else "no_mature_days")
    upper = int(np.argmax(seen.f >= COMPLETE))  # at least 1: F starts at 0
    share = (COMPLETE - seen.f[upper - 1]) / (seen.f[upper] - seen.f[upper - 1])
    age = float(edges[upper - 1] + share * (edges[upper] - edges[upper - 1]))
    step = HOUR if age <= 2 * DAY else DAY
    return SuggestedHorizon(math.ceil(age / step) * step, float(1.0 - seen.f[DELAYS]), n)
