"""What several metrics read off one reading: outcomes by what was decided, shares of them, and how many rows they are."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from monitor.core.events import FLAGGED, NONE, Floats, Ints
from monitor.core.intervals import Groups, Measured, Spread, effective, share
from monitor.core.readings import Reading
from monitor.core.tables import TINY

ROLE = FLAGGED.astype(np.int64)
ROLE[NONE] = 2
"""Per verdict: 0 not flagged, 1 flagged, 2 nobody decided."""

TN, FP, _NEG, FN, TP, _POS = np.eye(6)
"""Places of the outcomes of `outcomes`; those with an underscore are of rows that nobody decided about."""
NEGATIVES, POSITIVES = TN + FP + _NEG, FN + TP + _POS

F = TypeVar("F", bound=Callable[..., Any])


def once(function: F) -> F:
    """Return a function of one to three arguments with its last result remembered, because many metrics read the same sums.

    Arguments are compared by identity: readings and edges are never changed in place.
    """
    last: tuple[tuple[Any, ...], Any] = ((None,), None)

    def remembered(*args: Any) -> Any:
        nonlocal last
        seen, value = last  # read and replaced as a whole, so two threads at most compute the same twice
        middle = len(args) // 2
        if seen[0] is args[0] and seen[middle] is args[middle] and seen[-1] is args[-1]:
            return value
        value = function(*args)
        last = (args, value)
        return value

    return cast(F, remembered)


@once
def classes(reading: Reading) -> Floats:
    """Return the negatives and the positives by cell, shape (2, cells)."""
    return np.array((reading.neg, reading.pos))


@once
def logs(reading: Reading) -> Floats:
    """Return ln(1 - p) and ln p by cell, shape (2, cells); scores are clipped as the log loss does."""
    p = np.minimum(np.maximum(reading.score, TINY), 1.0 - TINY)
    found: Floats = np.log(np.array((1.0 - p, p)))
    return found


@once
def roles(reading: Reading) -> Ints:
    """Return by cell whether its rows were flagged or nobody decided (ROLE)."""
    return ROLE.take(reading.verdict)


@once
def outcomes(reading: Reading) -> Floats:
    """Return the negatives not flagged, flagged and undecided, then the positives likewise, shape (6,)."""
    role = roles(reading)
    return np.concatenate((np.bincount(role, reading.neg, 3), np.bincount(role, reading.pos, 3)))


@once
def _variances(reading: Reading) -> tuple[Floats, Floats]:
    """Return the variances of `outcomes`, shape (6,), and the covariance of the classes within each role, shape (3,)."""
    assert reading.spread is not None
    role = roles(reading)
    neg2, pos2, both = (np.bincount(role, x, 3).astype(np.float64) for x in reading.spread)
    return np.concatenate((neg2, pos2)), both


def by_group(reading: Reading) -> Floats | None:
    """Return the sums by cluster group (Reading.groups), all NaN beside weights, which they do not know."""
    return reading.groups if reading.groups is None or reading.spread is None else np.full_like(reading.groups, np.nan)


def spread_of(reading: Reading, hits: Floats, rest: Floats) -> Spread | None:
    """Return the variances of two sums of outcomes and their covariance, None where they are counts."""
    if reading.spread is None:
        return None
    variance, both = _variances(reading)
    within, across = (float(both @ (hits[:3] * x[3:] + hits[3:] * x[:3])) for x in (hits, rest))
    of_rest = float(variance @ rest + 2 * (both @ (rest[:3] * rest[3:])))
    return float(variance @ hits) + within, of_rest, across


def groups_of(reading: Reading, hits: Floats, rest: Floats) -> Groups | None:
    """Return by cluster group the sum of the hits and that of hits and rest, None without clusters."""
    sums = by_group(reading)
    if sums is None:
        return None
    counts = sums[:, :, :3].reshape(len(sums), 6)
    # Columns are chosen, not weighted: one that cannot be told must not spoil the others.
    above = counts[:, hits > 0].sum(axis=1)
    return above, above + counts[:, rest > 0].sum(axis=1)


def share_of(reading: Reading, hits: Floats, rest: Floats, undefined: str = "no_events") -> Measured | str:
    """Return the share of the hits among hits and rest, given by their places in `outcomes`; without any, a reason."""
    counts = outcomes(reading)
    k = float(counts @ hits)
    n = k + float(counts @ rest)
    if n < TINY:  # what only likely outcomes add up to where none is likely
        return undefined
    if reading.spread is None and reading.groups is None:
        return share(k, n)
    return share(k, n, spread_of(reading, hits, rest), groups_of(reading, hits, rest))


@once
def rows(reading: Reading) -> float:
    """Return the number of rows, of weighted ones their sum of weights."""
    return float(reading.n.sum())


@once
def size(reading: Reading) -> float:
    """Return the number of rows, of weighted ones the effective number."""
    n = rows(reading)
    return n if reading.spread is None else float(effective(n, float(reading.spread[:2].sum())))


def mean_of(reading: Reading, by_class: Floats) -> tuple[float, float]:
    """Return the mean over rows of numbers that negatives and positives of a cell have, shape (2, cells), and its variance."""
    n, counts = rows(reading), classes(reading)
    mean = float(np.vdot(counts, by_class)) / n
    if reading.spread is None:
        return mean, max(0.0, float(np.vdot(counts, by_class * by_class)) / n - mean * mean) / n
    neg2, pos2, both = reading.spread
    b, a = by_class - mean
    return mean, max(0.0, float(pos2 @ (a * a) + neg2 @ (b * b) + 2 * (both @ (a * b)))) / (n * n)
