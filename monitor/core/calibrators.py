"""Fitting calibrators to outcomes: what should be served instead of the model's score."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.metrics.counts import logs
from monitor.core.metrics.decomposition import pool
from monitor.core.metrics.fit import fit_line, fit_offset
from monitor.core.policy import Calibrator, check
from monitor.core.readings import Reading
from monitor.core.tables import BINS, EDGES

_STEPS, _CLOSE = 100, 1e-9
_BINS = 10
"""The histogram has so many bins of equal mass."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kind of calibrator: how it is fitted, and how many rows and positives it takes to try it."""

    fit: Callable[[Reading], Calibrator | str]
    rows: int
    positives: int


def logistic(columns: Floats, n: Floats, pos: Floats, first: Floats) -> Floats | None:
    """Return the most likely coefficients of logit P(positive) = sum of the columns (k, cells), None where none are found.

    Newton's steps from the `first` ones, each halved until the likelihood does not fall.
    """
    beta, value = first, _likelihood(first @ columns, n, pos)
    for _ in range(_STEPS):
        p = 0.5 * np.tanh(0.5 * (beta @ columns)) + 0.5
        information = (columns * (n * p * (1 - p))) @ columns.T
        try:
            step = np.linalg.solve(information, columns @ (pos - n * p))
        except np.linalg.LinAlgError:
            return None
        for half in range(30):
            tried = beta + step / 2**half
            reached = _likelihood(tried @ columns, n, pos)
            if reached >= value:
                break
        else:
            return beta
        beta, gained, value = tried, reached - value, reached
        if gained < _CLOSE:
            return beta if np.isfinite(beta).all() else None
    return None


def _likelihood(z: Floats, n: Floats, pos: Floats) -> float:
    return float(pos @ z - n @ np.logaddexp(0.0, z))


def _kept(reading: Reading) -> tuple[Floats, Floats, Floats, Floats]:
    """Return ln(1 - p), ln p, rows and positives by cell."""
    against, towards = logs(reading)
    return against, towards, reading.neg + reading.pos, reading.pos


def _temperature(reading: Reading) -> Calibrator | str:
    """Return the t of logit p / t that is most likely (Guo et al. 2017)."""
    against, towards, n, pos = _kept(reading)
    found = logistic((towards - against)[None], n, pos, np.ones(1))
    if found is None:
        return "no_fit"
    return {"kind": "temperature", "t": 1 / float(found[0])} if found[0] > 0 else "not_monotone"


def _offset(reading: Reading) -> Calibrator | str:
    """Return the a of logit p + a that is most likely."""
    found = fit_offset(reading)
    return found if isinstance(found, str) else {"kind": "offset", "a": found.intercept}


def _platt(reading: Reading) -> Calibrator | str:
    """Return the a and b of a + b logit p that are most likely (Platt 1999)."""
    found = fit_line(reading)
    if isinstance(found, str):
        return found
    return {"kind": "platt", "a": found.intercept, "b": found.slope} if found.slope > 0 else "not_monotone"


def _beta(reading: Reading) -> Calibrator | str:
    """Return the a, b and c of c + a ln p - b ln(1 - p) that are most likely with a and b at least 0.

    A coefficient that comes out below 0 is left out. Kull, Silva Filho and Flach, AISTATS 2017.
    """
    against, towards, n, pos = _kept(reading)
    columns, use = np.stack((towards, -against, np.ones(len(n)))), np.ones(3, bool)
    for _ in range(2):
        found = logistic(columns[use], n, pos, np.array([1.0, 1.0, 0.0])[use])
        if found is None:
            return "no_fit"
        whole = np.zeros(3)
        whole[use] = found
        a, b, c = whole
        if min(a, b) >= 0:
            return {"kind": "beta", "a": float(a), "b": float(b), "c": float(c)} if max(a, b) > 0 else "not_monotone"
        use &= np.array([a > 0, b > 0, True])
    return "not_monotone"


def _steps(kind: str, first: Ints, n: Floats, pos: Floats) -> Calibrator:
    """Return steps from grid bins on, each the share of its positives with half a row of either class more."""
    values = np.maximum.accumulate((pos + 0.5) / (n + 1.0)) if kind == "isotonic" else (pos + 0.5) / (n + 1.0)
    return {"kind": kind, "edges": [0.0, *EDGES[first[1:]].tolist()], "values": values.tolist()}


def _by_bin(reading: Reading) -> tuple[Ints, Floats, Floats]:
    """Return the grid bins that have rows, their rows and their positives."""
    n = np.bincount(reading.bin, reading.neg + reading.pos, BINS)
    there = np.flatnonzero(n)
    pos = np.bincount(reading.bin, reading.pos, BINS).astype(np.float64)
    return there.astype(np.int64), n[there].astype(np.float64), pos[there]


def _histogram(reading: Reading) -> Calibrator | str:
    """Return the share of positives in bins of equal mass (Zadrozny and Elkan 2001), where it rises from bin to bin."""
    there, n, pos = _by_bin(reading)
    of = np.minimum((n.cumsum() - n / 2) / n.sum() * _BINS, _BINS - 1).astype(np.int64)
    _, first = np.unique(of, return_index=True)
    made = _steps("histogram", there[first], np.add.reduceat(n, first), np.add.reduceat(pos, first))
    return "not_monotone" if check(made) else made


def _isotonic(reading: Reading) -> Calibrator | str:
    """Return isotonic regression (Zadrozny and Elkan 2002) on the bins of the grid, its steps kept away from 0 and 1."""
    there, n, pos = _by_bin(reading)
    k, m, first = pool(pos, n)
    made = _steps("isotonic", there[first], m, k)
    return "not_monotone" if check(made) else made


CANDIDATES: Mapping[str, Candidate] = {
    "temperature": Candidate(_temperature, 300, 30),
    "offset": Candidate(_offset, 300, 30),
    "platt": Candidate(_platt, 500, 50),
    "beta": Candidate(_beta, 1_000, 100),
    "histogram": Candidate(_histogram, 2_000, 150),
    "isotonic": Candidate(_isotonic, 3_000, 300),
}
"""Every kind that is tried, the simplest first."""


def fit(kind: str, reading: Reading) -> Calibrator | str:
    """Return the calibrator of a kind that fits the outcomes best, or a code of `reasons` that says why there is none."""
    candidate = CANDIDATES[kind]
    n, pos = float((reading.neg + reading.pos).sum()), float(reading.pos.sum())
    if reading.reason:
        return reading.reason
    if not 0 < pos < n:
        return "one_class"
    if reading.clipped >= n:
        return "degenerate"
    if n < candidate.rows or pos < candidate.positives:
        return "low_n"
    found = candidate.fit(reading)
    return found if isinstance(found, str) or not check(found) else "not_monotone"
