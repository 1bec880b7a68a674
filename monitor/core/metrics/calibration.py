"""Whether a score of p means that a share p is positive. Bins are bins of P(positive), never of a confidence."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import Measured, noise_ball, normal, wilson
from monitor.core.readings import Reading
from monitor.core.tables import EDGES, edges_of_width, log_losses

CALIBRATION_LEVEL = 0.99
BINS = 15
"""At most so many calibration bins are frozen in a baseline."""
MIN_N = 20
"""Rows a frozen bin needs before its error counts for `mce`; below that it is noise."""
WIDTH10 = edges_of_width(10)

F = TypeVar("F", bound=Callable[..., Any])


def _once(function: F) -> F:
    """Return the function with its last result remembered, because half a dozen metrics read the same sums.

    Arguments are compared by identity: readings and edges are never changed in place.
    """
    last: tuple[tuple[Any, ...], Any] = ((), None)

    def remembered(*args: Any) -> Any:
        nonlocal last
        seen, value = last  # read and replaced as a whole, so two threads at most compute the same twice
        if len(seen) == len(args) and all(a is b for a, b in zip(seen, args, strict=True)):
            return value
        value = function(*args)
        last = (args, value)
        return value

    return cast(F, remembered)


@_once
def _columns(reading: Reading) -> Floats:
    """Return per cell n, sum y, sum p, sum p(1 - p) and sum (y - p)**2, shape (5, cells).

    Scores of a cell are taken as their mean; over a grid bin that changes the last two by less than 2e-5 of their size.
    """
    p, q = reading.score, 1.0 - reading.score
    expected = reading.n * p
    return np.stack((reading.n, reading.pos, expected, expected * q, reading.pos * q * q + reading.neg * p * p))


@_once
def sums(reading: Reading, edges: Ints) -> Floats:
    """Return the same sums per calibration bin, zero where a bin is empty, shape (5, bins)."""
    start = np.searchsorted(reading.bin, edges)
    stop = np.append(start[1:], len(reading.bin))
    occupied = stop > start
    result = np.zeros((5, len(edges)))
    # Empty bins must be left out: reduceat gives them the first cell of the next bin.
    result[:, occupied] = np.add.reduceat(_columns(reading), start[occupied], axis=1)
    return result


def _spread(n: Floats, y: Floats, p: Floats, v: Floats, square: Floats) -> Floats:
    """Return the variance of sum (y - p): what the scores imply or what is seen around the mean error, the larger."""
    error = y - p
    return np.maximum(v, square - error * error / np.maximum(n, 1.0))


def ece(reading: Reading, edges: Ints) -> Measured:
    """Return sum_b |sum y - sum p| / n, with the noise ball at `CALIBRATION_LEVEL` as its interval."""
    n, y, p, v, square = sums(reading, edges)
    total = float(n.sum())
    value = float(np.abs(y - p).sum()) / total
    ball = noise_ball(_spread(n, y, p, v, square), total, CALIBRATION_LEVEL)
    return Measured(value, max(0.0, value - ball), value + ball, int(total))


def ece_width10(reading: Reading, _: object = None) -> Measured:
    """Return the same over ten equal-width bins."""
    return ece(reading, WIDTH10)


def ece_noise_floor(reading: Reading, edges: Ints) -> Measured:
    """Return sqrt(2 / pi) sum_b sqrt(V_b) / n, which `ece` has on average when the model is calibrated."""
    n, _, _, v, _ = sums(reading, edges)
    total = float(n.sum())
    return Measured(math.sqrt(2 / math.pi) * float(np.sqrt(v).sum()) / total, None, None, int(total))


def _mce(reading: Reading, edges: Ints, min_n: int) -> Measured | str:
    n, y, p, _, _ = sums(reading, edges)
    enough = n >= min_n
    if not enough.any():
        return "low_n"
    return Measured(float((np.abs(y - p)[enough] / n[enough]).max()), None, None, int(n.sum()))


def mce(reading: Reading, edges: Ints) -> Measured | str:
    """Return the largest |mean y - mean p| over the bins with at least `MIN_N` rows."""
    return _mce(reading, edges, MIN_N)


def mce_width10(reading: Reading, _: object = None) -> Measured | str:
    """Return the largest |mean y - mean p| over ten equal-width bins, however few rows they hold."""
    return _mce(reading, WIDTH10, 1)


def bias(reading: Reading, _: object = None) -> Measured:
    """Return mean p - mean y: positive when the scores are too high."""
    columns = _columns(reading).sum(axis=1)
    n, y, p = columns[:3].tolist()
    value = (p - y) / n
    return Measured(value, *normal(value, float(_spread(*columns)) / (n * n)), int(n))


def _mean_loss(reading: Reading, loss: float, if_pos: Floats, if_neg: Floats) -> Measured:
    """Return the exact mean loss; its standard error reads the loss of a row off the mean score of its cell."""
    n = float(reading.n.sum())
    first = float(reading.pos @ if_pos + reading.neg @ if_neg) / n
    second = float(reading.pos @ (if_pos * if_pos) + reading.neg @ (if_neg * if_neg)) / n
    low, high = normal(loss / n, max(0.0, second - first * first) / n)
    return Measured(loss / n, max(0.0, low), high, int(n))


def brier(reading: Reading, _: object = None) -> Measured:
    """Return the mean of (p - y)**2."""
    p, q = reading.score, 1.0 - reading.score
    return _mean_loss(reading, reading.losses[0], q * q, p * p)


def log_loss(reading: Reading, _: object = None) -> Measured | str:
    """Return the mean of -ln of the probability given to what happened."""
    if reading.clipped >= reading.n.sum():
        return "degenerate"
    yes = np.ones(len(reading.n), bool)
    return _mean_loss(reading, reading.losses[1], log_losses(reading.score, yes), log_losses(reading.score, ~yes))


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram: scores in [lower, upper), the last one closed; None where it holds no rows."""

    lower: float
    upper: float
    n: int
    mean_score: float | None
    observed: float | None
    low: float | None
    high: float | None


def reliability(reading: Reading, edges: Ints | None, width: bool = False) -> list[Bin]:
    """Return every bin of the frozen edges or, with `width`, of ten equal widths; without edges there are none."""
    first = WIDTH10 if width else edges
    if first is None:
        return []
    n, y, p, _, _ = sums(reading, first)
    bounds = [*EDGES[first].tolist(), 1.0]
    rows = np.maximum(n, 1.0)
    columns = np.stack((p / rows, y / rows, *wilson(y, n))).T.tolist()
    return [
        Bin(lower, upper, int(k), *column) if k else Bin(lower, upper, 0, None, None, None, None)
        for lower, upper, k, column in zip(bounds, bounds[1:], n, columns, strict=False)
    ]


def top_label_ece(reading: Reading) -> float | None:
    """Return the calibration error of the predicted class over ten equal-width bins of confidence max(p, 1 - p).

    It can hide a bias of P(positive) altogether, so it is no metric. Below .5 a confidence bin is open where a grid bin is
    closed: a cell goes where its mean score belongs.
    """
    if not len(reading.n):
        return None
    above = reading.score >= 0.5
    confidence = np.where(above, reading.score, 1.0 - reading.score)
    right = np.where(above, reading.pos, reading.neg)
    # A mean of equal scores is off by some ulps, which must not carry it over an edge.
    at = np.minimum((confidence * 10 + 1e-9).astype(np.int64), 9)
    gap = np.bincount(at, right - reading.n * confidence, 10)
    return float(np.abs(gap).sum() / reading.n.sum())


def calibration_edges(reading: Reading) -> Ints:
    """Return the first grid bins of at most `BINS` calibration bins of equal mass, to be frozen in a baseline.

    A grid bin that holds 1/15 of the mass or more stands alone. The bins left go to the stretches of light grid bins between
    the heavy ones: one each (to the heaviest, when there are more stretches than bins), then always where a bin is fullest.
    """
    grid, first = np.unique(reading.bin, return_index=True)
    if not len(grid):
        return np.zeros(1, np.int64)
    mass = np.add.reduceat(reading.n, first)
    heavy = mass * BINS >= mass.sum()
    after = np.append(False, heavy[:-1])
    runs = np.split(np.arange(len(grid)), np.flatnonzero((heavy | after)[1:]) + 1)
    light = sorted((run for run in runs if not heavy[run[0]]), key=lambda run: -mass[run].sum())
    light = light[: BINS - int(heavy.sum())]
    parts = [1] * len(light)
    for _ in range(BINS - int(heavy.sum()) - len(light)):
        fullness = [mass[run].sum() / k if k < len(run) else 0.0 for run, k in zip(light, parts, strict=True)]
        if any(fullness):  # else every occupied grid bin is a calibration bin already
            parts[int(np.argmax(fullness))] += 1
    edges = grid[heavy].tolist()
    for run, k in zip(light, parts, strict=True):
        middle = np.cumsum(mass[run]) - mass[run] / 2
        group = (middle * k / mass[run].sum()).astype(np.int64)
        edges += grid[run[1:][np.diff(group) > 0]].tolist()
        # A heavy bin ends where it ends, even if the baseline has no score right above it.
        edges.append(grid[run[0] - 1] + 1 if run[0] else 0)
    edges = np.sort(np.array(edges, np.int64))
    edges[0] = 0
    return edges
