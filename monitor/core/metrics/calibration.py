"""Whether a score of p means that a share p is positive. Bins are bins of P(positive), never of a confidence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import (
    Groups,
    Measured,
    cluster_variance,
    clustered,
    effective,
    no_interval,
    noise_ball,
    normal,
    whole,
    wilson,
)
from monitor.core.metrics.counts import by_group, logs, mean_of, once, rows, size
from monitor.core.readings import Reading
from monitor.core.tables import EDGES, GROUP_COLUMNS, edges_of_width

CALIBRATION_LEVEL = 0.99
BINS = 15
"""At most so many calibration bins are frozen in a baseline."""
MIN_N = 20
"""Rows a frozen bin needs before its error counts for `mce`; below that it is noise."""
WIDTH10 = edges_of_width(10)

_SCORE, _BRIER, _LOG_LOSS = range(3, len(GROUP_COLUMNS))


@once
def _columns(reading: Reading) -> Floats:
    """Return per cell n, sum y, sum p, sum p(1 - p) and sum (y - p)**2, shape (5, cells).

    Scores of a cell are taken as their mean; over a grid bin that changes the last two by less than 2e-5 of their size. Where
    outcomes are weighted the last two are the variances they stand for, and three columns more (8, cells) say how the variance
    of sum (y - p - e) depends on e: it is column 4 - 2 e column 5 + e**2 (column 6 + 2 column 7).
    """
    p, q = reading.score, 1.0 - reading.score
    expected = reading.n * p
    if reading.spread is None:
        return np.array((reading.n, reading.pos, expected, expected * q, reading.pos * (q * q) + reading.neg * (p * p)))
    neg2, pos2, both = reading.spread
    square = pos2 * q * q + neg2 * p * p - 2 * both * p * q
    slope = pos2 * q - neg2 * p + both * (q - p)
    return np.stack((reading.n, reading.pos, expected, (neg2 + pos2) * p * q, square, slope, neg2 + pos2, both))


@once
def sums(reading: Reading, edges: Ints) -> Floats:
    """Return the same sums per calibration bin, zero where a bin is empty, shape (5 or 8, bins)."""
    start, columns = reading.bin.searchsorted(edges), _columns(reading)
    occupied = np.empty(len(start), bool)
    np.greater(start[1:], start[:-1], out=occupied[:-1])
    occupied[-1] = start[-1] < len(reading.bin)
    if occupied.all():
        return np.add.reduceat(columns, start, axis=1)
    result = np.zeros((len(columns), len(edges)))
    # Empty bins must be left out: reduceat gives them the first cell of the next bin.
    result[:, occupied] = np.add.reduceat(columns, start[occupied], axis=1)
    return result


def _spread(columns: Floats) -> Floats:
    """Return the variance of sum (y - p): what the scores imply or what is seen around the mean error, the larger."""
    n, y, p, v, square, *weighted = columns
    error = y - p
    if not weighted:
        seen = square - error * error / np.maximum(n, 1.0)
    else:
        slope, squares, both = weighted
        mean = error / np.maximum(n, 1.0)
        seen = square - 2 * mean * slope + mean * mean * (squares + 2 * both)
    larger: Floats = np.maximum(v, seen)
    return larger


def _rows(columns: Floats) -> Floats:
    """Return the number of rows, of weighted ones the effective number."""
    return columns[0] if len(columns) == 5 else effective(columns[0], columns[6])


@once
def _spreads(reading: Reading, edges: Ints) -> Floats:
    """Return the variance of sum (y - p) per calibration bin."""
    return _spread(sums(reading, edges))


@once
def _bins(reading: Reading, edges: Ints) -> list[tuple[float, ...]]:
    """Return per calibration bin rows (of weighted ones the effective number), n, sum y, sum p, sum p(1 - p) and its spread.

    Of 15 bins Python's numbers are read faster than arrays are made.
    """
    columns = sums(reading, edges)
    return list(zip(_rows(columns).tolist(), *columns[:4].tolist(), _spreads(reading, edges).tolist(), strict=True))


@once
def totals(reading: Reading) -> Floats:
    """Return the same sums over all rows, shape (5 or 8,)."""
    total: Floats = _columns(reading).sum(axis=1)
    return total


@once
def _bias(reading: Reading) -> tuple[float, float]:
    """Return mean p - mean y and its variance."""
    columns = totals(reading)
    n, y, p = columns[:3].tolist()
    return (p - y) / n, float(_spread(columns)) / (n * n)


def _mean_groups(reading: Reading, column: int) -> Groups | None:
    """Return by cluster group the sum of a column of GROUP_COLUMNS, of the score less the positives, and the rows."""
    groups = by_group(reading)
    if groups is None:
        return None
    above = groups[:, :, column].sum(axis=1)
    return above - groups[:, 1, :3].sum(axis=1) if column == _SCORE else above, groups[:, :, :3].sum(axis=(1, 2))


def design_effect(reading: Reading) -> float | str:
    """Return the variance that clusters give the bias over that of as many independent rows, at least 1, or a reason.

    Without clusters it is 1. It stands for the design effect of metrics that are no ratio of sums.
    """
    groups = _mean_groups(reading, _SCORE)
    if groups is None:
        return 1.0
    value, iid = _bias(reading)
    variance, clusters = cluster_variance(value, groups, rows(reading), iid)
    return no_interval(variance, clusters) or (max(1.0, variance / iid) if iid else 1.0)


def bias_variance(reading: Reading) -> float:
    """Return the variance of the bias, with clusters of so many rows as there are."""
    effect = design_effect(reading)
    return _bias(reading)[1] * (1.0 if isinstance(effect, str) else effect)


def ece(reading: Reading, edges: Ints) -> Measured:
    """Return sum_b |sum y - sum p| / n, with the noise ball at `CALIBRATION_LEVEL` as its interval.

    Clusters widen the ball by the design effect of the bias.
    """
    value = sum(abs(y - p) for _, _, y, p, _, _ in _bins(reading, edges)) / rows(reading)
    n, effect = whole(size(reading)), design_effect(reading)
    if isinstance(effect, str):
        return Measured(value, None, None, n, effect)
    ball = noise_ball(_spreads(reading, edges) * effect, rows(reading), CALIBRATION_LEVEL)
    return Measured(value, max(0.0, value - ball), value + ball, n)


def ece_width10(reading: Reading, _: object = None) -> Measured:
    """Return the same over ten equal-width bins."""
    return ece(reading, WIDTH10)


def ece_noise_floor(reading: Reading, edges: Ints) -> Measured:
    """Return sqrt(2 / pi) sum_b sqrt(V_b) / n, which `ece` has on average when the model is calibrated."""
    value = math.sqrt(2 / math.pi) * sum(math.sqrt(v) for *_, v, _ in _bins(reading, edges)) / rows(reading)
    return Measured(value, None, None, whole(size(reading)))


def squared_calibration_error(reading: Reading, edges: Ints) -> Measured | str:
    """Return sum_b n_b / n ((mean y - mean p)**2 - r (1 - r) / (n_b - 1)), r = mean y, over the bins with two rows or more.

    What noise adds to the squared gap on average is taken away, so it is below 0 as often as not where the model is
    calibrated (Broecker 2012; Kumar, Liang and Ma, NeurIPS 2019). Of a squared gap g**2 with noise of variance s the variance
    is 4 g**2 s + 2 s**2. Of weighted rows n_b is the effective number; clusters raise the noise by the design effect of the bias.
    """
    used, effect = [b for b in _bins(reading, edges) if b[0] >= 2 - 1e-9], design_effect(reading)
    if not used:
        return "low_n"
    total, factor = sum(b[1] for b in used), 1.0 if isinstance(effect, str) else effect
    value = least = more = 0.0
    for k, n, y, p, _, spread in used:
        share, r, noise = n / total, y / n, factor * spread / (n * n)
        square = ((y - p) / n) ** 2 - factor * (r - r * r) / max(k - 1, 1.0)
        value += share * square
        least += 2 * (share * noise) ** 2
        more += 4 * share * share * square * noise
    of = whole(size(reading))
    if isinstance(effect, str):
        return Measured(value, None, None, of, effect)
    # `least` is that of a calibrated model; squares may add up to less than 0.
    return Measured(value, *normal(value, max(least, least + more)), of)


def _mce(reading: Reading, edges: Ints, min_n: int) -> Measured | str:
    # Equal weights give whole effective numbers up to rounding.
    gaps = [abs(y - p) / n for k, n, y, p, _, _ in _bins(reading, edges) if k >= min_n - 1e-9]
    return Measured(max(gaps), None, None, whole(size(reading))) if gaps else "low_n"


def mce(reading: Reading, edges: Ints) -> Measured | str:
    """Return the largest |mean y - mean p| over the bins with at least `MIN_N` rows."""
    return _mce(reading, edges, MIN_N)


def mce_width10(reading: Reading, _: object = None) -> Measured | str:
    """Return the largest |mean y - mean p| over ten equal-width bins, however few rows they hold."""
    return _mce(reading, WIDTH10, 1)


def _mean(reading: Reading, value: float, variance: float, groups: Groups | None) -> Measured:
    """Return a mean with its normal interval, which clusters widen."""
    found = Measured(value, *normal(value, variance), whole(size(reading)))
    if groups is None:
        return found
    return clustered(found, groups, rows(reading), variance, lambda value, variance, _: normal(value, variance))


def bias(reading: Reading, _: object = None) -> Measured:
    """Return mean p - mean y: positive when the scores are too high."""
    return _mean(reading, *_bias(reading), _mean_groups(reading, _SCORE))


def _mean_loss(reading: Reading, loss: float, by_class: Floats, groups: Groups | None, most: float) -> Measured:
    """Return the exact mean loss; its standard error reads the loss of a row off the mean score of its cell.

    `by_class` is the loss of a negative and of a positive there, shape (2, cells), and `most` the largest there is.
    """
    found = _mean(reading, loss / rows(reading), mean_of(reading, by_class)[1], groups)
    if found.low is None or found.high is None:
        return found
    return found._replace(low=max(0.0, found.low), high=min(found.high, most))


def brier(reading: Reading, _: object = None) -> Measured:
    """Return the mean of (p - y)**2."""
    p = reading.score
    return _mean_loss(reading, reading.losses[0], np.array((p, 1.0 - p)) ** 2, _mean_groups(reading, _BRIER), 1.0)


def log_loss(reading: Reading, _: object = None) -> Measured | str:
    """Return the mean of -ln of the probability given to what happened."""
    if reading.clipped >= rows(reading):
        return "degenerate"
    return _mean_loss(reading, reading.losses[1], -logs(reading), _mean_groups(reading, _LOG_LOSS), math.inf)


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram: scores in [lower, upper), the last one closed; None where it holds no rows.

    `gap` is observed - mean score, and `contribution` what the bin adds to the calibration error.
    """

    lower: float
    upper: float
    n: int
    mean_score: float | None
    observed: float | None
    low: float | None
    high: float | None
    gap: float | None
    contribution: float


def reliability(reading: Reading, edges: Ints | None, width: bool = False) -> list[Bin]:
    """Return every bin of the frozen edges or, with `width`, of ten equal widths; without edges there are none.

    The interval of the observed share is Wilson's of the (effective) rows, with clusters of as many independent ones as say
    as much by the design effect of the bias.
    """
    first = WIDTH10 if width else edges
    if first is None:
        return []
    columns, effect = sums(reading, first), design_effect(reading)
    n, y, p = columns[:3]
    some = np.maximum(n, 1.0)
    independent = _rows(columns) / (1.0 if isinstance(effect, str) else effect)
    ends = wilson(y * (independent / some), independent)
    found = np.stack((p / some, y / some, *ends, (y - p) / some, np.abs(y - p) / max(1.0, rows(reading)))).T.tolist()
    bounds = [*EDGES[first].tolist(), 1.0]
    bins = []
    for lower, upper, k, numbers in zip(bounds, bounds[1:], _rows(columns).tolist(), found, strict=False):
        if k and isinstance(effect, str):
            numbers[2:4] = None, None
        bins.append(Bin(lower, upper, whole(k), *numbers) if k else Bin(lower, upper, 0, None, None, None, None, None, 0.0))
    return bins


def ece_by_bins(reading: Reading, edges: Ints | None) -> dict[str, Measured]:
    """Return the calibration error over the frozen edges, where there are some, and over 10, 15 and 30 equal widths."""
    forms = {"frozen": edges} | {f"width{k}": edges_of_width(k) for k in (10, 15, 30)}
    return {name: ece(reading, e) for name, e in forms.items() if e is not None}


def survives(found: Mapping[str, Measured], limit: float) -> bool | None:
    """Return whether calibration errors agree that it is above the limit or that it need not be; None without intervals."""
    above = {None if e.low is None else e.low > limit for e in found.values()}
    return None if None in above else len(above) == 1


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
    return float(np.abs(gap).sum()) / rows(reading)


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
