"""Calibrators from outcomes: which map from the model's score to the one that is served fits them best."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import effective
from monitor.core.metrics.counts import classes, logs, rows, size
from monitor.core.metrics.decomposition import pool
from monitor.core.metrics.fit import fit_line, fit_offset
from monitor.core.metrics.ranking import by_bin, starts
from monitor.core.policy import Calibrator, check, expit
from monitor.core.readings import Reading
from monitor.core.tables import EDGES, TINY

STEPS, HALVINGS = 100, 40
BINS_OF_MASS = 10
"""The histogram has so many bins of equal mass."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """How a kind of calibrator is fitted, how many rows and outcomes of each class it takes, and how many numbers it fits.

    There must be as many negatives as `positives`. The numbers of isotonic regression are not fixed: `parameters` is about what
    it has at the least rows.
    """

    fit: Callable[[Reading], Calibrator | str]
    rows: int
    positives: int
    parameters: int


def _likelihood(z: Floats, n: Floats, pos: Floats) -> float:
    """Return the log-likelihood of positives among n with these logits."""
    return float(pos @ z - n @ np.logaddexp(0.0, z))


def logistic(columns: Floats, reading: Reading) -> Floats | str:
    """Return the most likely b of logit P(positive) = b @ columns, shape (k,), or why there is none; columns are (k, cells).

    Newton's steps, each halved until the likelihood does not fall. They begin with 0, where every row has a weight: with the
    scores as they are, those near 0 and 1 have none. Where outcomes are separable the likelihood has no maximum, and what is
    returned is only far out: the caller looks for that.
    """
    n, pos, b = classes(reading).sum(axis=0), reading.pos, np.zeros(len(columns))
    now = _likelihood(b @ columns, n, pos)
    for _ in range(STEPS):
        p = expit(b @ columns)
        gradient, information = columns @ (pos - n * p), (columns * (n * p * (1 - p))) @ columns.T
        if np.linalg.det(information) <= TINY * information.diagonal().prod():
            return "no_fit"
        step: Floats = np.linalg.solve(information, gradient)
        # Half of this is what the likelihood still gains; the step that is taken leaves about the square of it.
        gain = float(step @ gradient)
        for _ in range(HALVINGS):
            if (reached := _likelihood((b + step) @ columns, n, pos)) >= now:
                break
            step = step / 2
        else:
            return b  # what is likelier cannot be told apart from it
        b, now = b + step, reached
        if gain < 1e-6:
            return b
    return "no_fit"


def _temperature(reading: Reading) -> Calibrator | str:
    """Return the most likely t of logit p / t (Guo et al., ICML 2017)."""
    against, towards = logs(reading)
    x = towards - against
    if not (reading.pos[x < 0].any() or reading.neg[x > 0].any()):
        return "separable"  # the smaller t the likelier
    found = logistic(x[None], reading)
    if isinstance(found, str):
        return found
    return {"kind": "temperature", "t": 1 / float(found[0])} if found[0] > 0 else "not_monotone"


def _offset(reading: Reading) -> Calibrator | str:
    """Return the most likely a of logit p + a: what another prevalence, or classes weighted in training, do to scores."""
    found = fit_offset(reading)
    return found if isinstance(found, str) else {"kind": "offset", "a": found.intercept}


def _platt(reading: Reading) -> Calibrator | str:
    """Return the most likely a and b of a + b logit p (Platt 1999)."""
    line = fit_line(reading)
    if line == "no_fit":
        against, towards = logs(reading)
        found = logistic(np.stack((np.ones(len(towards)), towards - against)), reading)
    else:
        found = line if isinstance(line, str) else np.array(line[:2])
    if isinstance(found, str):
        return found
    return {"kind": "platt", "a": float(found[0]), "b": float(found[1])} if found[1] > 0 else "not_monotone"


def _beta(reading: Reading) -> Calibrator | str:
    """Return the most likely a, b and c of c + a ln p - b ln(1 - p) with a and b not below 0.

    One that comes out below 0 is left out (Kull, Silva Filho and Flach, Electronic Journal of Statistics 11 (2017), 5052-5080):
    the likelihood has one peak, so the best place that is allowed is then where it is 0.
    """
    if fit_line(reading) == "separable":
        return "separable"
    against, towards = logs(reading)
    columns, use, found = np.stack((towards, -against, np.ones(len(towards)))), np.array([True, True, True]), np.zeros(3)
    while use[:2].any():
        fitted = logistic(columns[use], reading)
        if isinstance(fitted, str):
            return fitted
        found[:], found[use] = 0.0, fitted
        if (found[:2] >= 0).all():
            return {"kind": "beta"} | dict(zip("abc", found.tolist(), strict=True))
        use[:2] &= found[:2] > 0
    return "not_monotone"


def _steps(kind: str, reading: Reading, bins: Ints, pos: Floats, n: Floats) -> Calibrator:
    """Return the calibrator that serves shares of positives from each of the grid's bins on.

    A share of 0 or 1 would claim certainty, and one wrong row would cost an infinite log loss. So each step gets half a row of
    either class more; of weighted rows, half a mean one. Steps that change places by that, which have few rows, are pooled again.
    """
    half = 0.5 * rows(reading) / size(reading)
    k, m, first = pool(pos + half, n + 2 * half)
    return {"kind": kind, "edges": [0.0, *EDGES[bins[first[1:]]].tolist()], "values": (k / m).tolist()}


def _histogram(reading: Reading) -> Calibrator | str:
    """Return shares of positives in bins of equal mass, where these do not fall (Zadrozny and Elkan, ICML 2001)."""
    bins, (neg, pos) = reading.bin[starts(reading)], by_bin(reading)
    n = neg + pos
    of = ((n.cumsum() - n / 2) * (BINS_OF_MASS / n.sum())).astype(np.int64)
    first = np.unique(of, return_index=True)[1]
    pos, n = np.add.reduceat(pos, first), np.add.reduceat(n, first)
    return "not_monotone" if (np.diff(pos / n) < 0).any() else _steps("histogram", reading, bins[first], pos, n)


def _isotonic(reading: Reading) -> Calibrator | str:
    """Return the most likely map that never falls, by the bins of the grid (Zadrozny and Elkan, KDD 2002)."""
    bins, (neg, pos) = reading.bin[starts(reading)], by_bin(reading)
    k, n, first = pool(pos, neg + pos)
    return _steps("isotonic", reading, bins[first], k, n)


CANDIDATES: Mapping[str, Candidate] = {
    "temperature": Candidate(_temperature, 300, 30, 1),
    "offset": Candidate(_offset, 300, 30, 1),
    "platt": Candidate(_platt, 500, 50, 2),
    "beta": Candidate(_beta, 1_000, 100, 3),
    "histogram": Candidate(_histogram, 2_000, 150, BINS_OF_MASS),
    "isotonic": Candidate(_isotonic, 3_000, 300, 25),
}
"""Every kind that is tried, the simplest first."""


def fit(kind: str, reading: Reading) -> Calibrator | str:
    """Return the calibrator of a kind that fits the outcomes best, or a code of `reasons` that says why there is none.

    It is one that `policy.check` lets pass. Of weighted rows the numbers that count are effective ones.
    """
    candidate = CANDIDATES[kind]
    if reading.reason:
        return reading.reason
    neg, pos = _seen(reading)
    if not neg or not pos:
        return "one_class"
    if reading.clipped >= rows(reading):
        return "degenerate"
    if size(reading) < candidate.rows:
        return "low_n"
    if min(neg, pos) < candidate.positives:
        return "few_positives" if pos < candidate.positives else "few_negatives"
    found = candidate.fit(reading)
    return found if isinstance(found, str) or not check(found) else "not_monotone"


def _seen(reading: Reading) -> tuple[float, float]:
    """Return how many negatives and positives there are, of weighted ones the effective numbers."""
    sums = classes(reading).sum(axis=1)
    if reading.spread is not None:
        sums = effective(sums, reading.spread[:2].sum(axis=1))
    return float(sums[0]), float(sums[1])
