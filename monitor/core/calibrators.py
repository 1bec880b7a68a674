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
from monitor.core.policy import IDENTITY, Calibrator, check, expit
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


def _climbed(b: Floats, likelihood: Callable[[Floats], float], slopes: Callable[[Floats], tuple[Floats, Floats]]) -> Floats | str:
    """Return where a concave log-likelihood is highest, searched from b on, or why it is not found.

    `slopes` returns its gradient (k,) and its information (k, k). Newton's steps, each halved until the likelihood does not fall.
    """
    now = likelihood(b)
    for _ in range(STEPS):
        gradient, information = slopes(b)
        size_of = np.sqrt(information.diagonal())
        if not size_of.all() or np.linalg.eigvalsh(information / np.outer(size_of, size_of))[0] <= 1e-12:
            return "no_fit"
        step = np.asarray(np.linalg.solve(information, gradient), np.float64)
        # Half of this is what the likelihood still gains; the step that is taken leaves about the square of it.
        gain = float(step @ gradient)
        for _ in range(HALVINGS):
            if (reached := likelihood(b + step)) >= now:
                break
            step = step / 2
        else:
            return b  # what is likelier cannot be told apart from it
        b, now = b + step, reached
        if gain < 1e-6:
            return b
    return "no_fit"


def logistic(columns: Floats, reading: Reading) -> Floats | str:
    """Return the most likely b of logit P(positive) = b @ columns, shape (k,), or why there is none; columns are (k, cells).

    The search begins with 0, where every row has a weight: with the scores as they are, those near 0 and 1 have none. Where
    outcomes are separable the likelihood has no maximum, and what is returned is only far out: the caller looks for that.
    """
    n, pos = classes(reading).sum(axis=0), reading.pos

    def likelihood(b: Floats) -> float:
        z = b @ columns
        return float(pos @ z - n @ np.logaddexp(0.0, z))

    def slopes(b: Floats) -> tuple[Floats, Floats]:
        p = expit(b @ columns)
        return columns @ (pos - n * p), (columns * (n * p * (1 - p))) @ columns.T

    return _climbed(np.zeros(len(columns)), likelihood, slopes)


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


CLASS_ROWS = 300
"""`class_temperature` takes so many rows."""
ROWS_OF_CLASS = 50
"""`vector` takes so many rows of each class."""
PENALTY = 1e-3
"""What `vector` pays for a parameter at a distance d from that of the identity is half of this times d**2.

So a distance of 10 costs .05 of log-likelihood, which is next to nothing; it keeps parameters finite where classes are separable.
"""
BLOCKS, SURE = 5, 1.96
CLASS_KINDS: Mapping[str, tuple[str, ...]] = {"identity": (), "class_temperature": ("t",), "vector": ("w", "b")}
"""Every kind of calibrator of the scores of classes and its parameters, the simplest first.

class_temperature: softmax(ln p / t) (Guo et al., ICML 2017); vector: softmax(w * ln p + b) with a w and a b by class.
"""


def _logs(scores: Floats) -> Floats:
    found: Floats = np.log(np.clip(scores, TINY, 1.0))
    return found


def _class_logits(calibrator: Calibrator, logs: Floats) -> Floats:
    """Return what the softmax is taken of, from ln p of the classes."""
    if calibrator["kind"] == "vector":
        found: Floats = np.array(calibrator["w"]) * logs + np.array(calibrator["b"])
        return found
    return logs / float(calibrator.get("t", 1.0))


def _log_softmax(z: Floats) -> Floats:
    z = z - z.max(axis=1, keepdims=True)
    found: Floats = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return found


def apply_classes(calibrator: Calibrator, scores: Floats) -> Floats:
    """Return the served scores of the classes, shape (n, K): in [0, 1] with rows that sum to 1, whatever is 0 in `scores`.

    >>> apply_classes({"kind": "class_temperature", "t": 0.5}, np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])).round(4).tolist()
    [[0.6667, 0.1667, 0.1667], [1.0, 0.0, 0.0]]
    """
    found: Floats = np.exp(_log_softmax(_class_logits(calibrator, _logs(scores))))
    return found


def check_classes(calibrator: Calibrator, k: int) -> str:
    """Return what is wrong with a calibrator of the scores of k classes, nothing when it can be applied."""
    kind = str(calibrator.get("kind"))
    if kind not in CLASS_KINDS:
        return f"its kind is {kind!r}, not one of {', '.join(CLASS_KINDS)}"
    wanted = {"kind", *CLASS_KINDS[kind]}
    if calibrator.keys() != wanted:
        return f"{kind} has the keys {', '.join(sorted(wanted))}, found {', '.join(sorted(calibrator))}"
    for name in CLASS_KINDS[kind]:
        try:
            numbers = np.asarray(calibrator[name], np.float64)
        except (TypeError, ValueError):
            return f"{name} of {kind} is no number"
        if numbers.shape != (() if name == "t" else (k,)):
            return f"{name} of {kind} must be {'a number' if name == 't' else f'a list of {k} numbers, one for each class'}"
        if not np.isfinite(numbers).all():
            return f"{name} of {kind} is not finite"
        if name in ("t", "w") and (numbers <= 0).any():
            return f"{name} of {kind} must be above 0, or a class would be served less the more likely it is"
    with np.errstate(over="ignore", invalid="ignore"):
        z = _class_logits(calibrator, _logs(np.eye(k)))
        return "" if np.isfinite(z - z.max(axis=1, keepdims=True)).all() else "it serves scores that are not finite"


def _class_temperature(x: Floats, codes: Ints) -> Calibrator | str:
    """Return the most likely t; x are ln p, shape (n, K)."""
    mine = x[np.arange(len(x)), codes]
    if (mine >= x.max(axis=1)).all():
        return "separable"  # the smaller t the likelier

    def likelihood(b: Floats) -> float:
        return float(_log_softmax(b * x)[np.arange(len(x)), codes].sum())

    def slopes(b: Floats) -> tuple[Floats, Floats]:
        p = np.exp(_log_softmax(b * x))
        mean = (p * x).sum(axis=1, keepdims=True)
        return np.array([(mine - mean[:, 0]).sum()]), np.array([[(p * (x - mean) ** 2).sum()]])

    found = _climbed(np.zeros(1), likelihood, slopes)
    if isinstance(found, str):
        return found
    return {"kind": "class_temperature", "t": 1 / float(found[0])} if found[0] > 0 else "not_monotone"


def _vector(x: Floats, codes: Ints) -> Calibrator | str:
    """Return the most likely w and b under PENALTY; x are ln p, shape (n, K)."""
    n, k = x.shape
    one, away = np.eye(k)[codes], np.repeat([1.0, 0.0], k)

    def likelihood(b: Floats) -> float:
        found = _log_softmax(b[:k] * x + b[k:])[np.arange(n), codes].sum()
        return float(found) - PENALTY / 2 * float(((b - away) ** 2).sum())

    def slopes(b: Floats) -> tuple[Floats, Floats]:
        p = np.exp(_log_softmax(b[:k] * x + b[k:]))
        gradient = np.concatenate((((one - p) * x).sum(axis=0), (one - p).sum(axis=0))) - PENALTY * (b - away)
        both = np.concatenate((p * x, p), axis=1)
        mixed = np.diag((p * x).sum(axis=0))
        within = np.block([[np.diag((p * x * x).sum(axis=0)), mixed], [mixed, np.diag(p.sum(axis=0))]])
        return gradient, within - both.T @ both + PENALTY * np.eye(2 * k)

    found = _climbed(np.zeros(2 * k), likelihood, slopes)
    return found if isinstance(found, str) else {"kind": "vector", "w": found[:k].tolist(), "b": found[k:].tolist()}


def fit_classes(kind: str, scores: Floats, codes: Ints) -> Calibrator | str:
    """Return the calibrator of a kind that fits labels best, or a code of `reasons` that says why there is none.

    `scores` are those of the classes, shape (n, K), `codes` the position of the class of each row.
    """
    n, k = scores.shape
    of = np.bincount(codes, minlength=k)
    if n < CLASS_ROWS:
        return "low_n"
    if of.max() == n:
        return "one_class"
    if kind == "vector" and of.min() < ROWS_OF_CLASS:
        return "few_of_class"
    if (scores.max(axis=1) > 1 - TINY).all():
        return "degenerate"
    found = (_vector if kind == "vector" else _class_temperature)(_logs(scores), codes)
    return found if isinstance(found, str) or not check_classes(found, k) else "not_monotone"


@dataclass(frozen=True, slots=True)
class TriedClasses:
    """What a kind loses per held-out row over the identity, below 0 where it is better, or why it was not tried."""

    kind: str
    reason: str = ""
    log_loss: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class ChosenClasses:
    """The calibrator of the scores of classes to serve, `accepted` or else the identity with the reason, and what was tried."""

    calibrator: Calibrator
    reason: str
    tried: tuple[TriedClasses, ...]


def choose_classes(scores: Floats, codes: Ints) -> ChosenClasses:
    """Return the calibrator of rows in order of time that loses less than the identity on rows it was not fitted to, z > 1.96.

    Five blocks of rows in a row are each served by a fit to the others. Of the kinds within one standard error of the best the
    simplest is taken, and fitted to all rows in the end. Rows are compared in pairs, because tables of days know no vectors.
    """
    block = np.arange(len(codes)) * BLOCKS // max(len(codes), 1)
    before = _losses(IDENTITY, scores, codes)
    tried, worse = [], {}
    for kind in tuple(CLASS_KINDS)[1:]:
        after = _held_out(kind, scores, codes, block)
        if isinstance(after, str):
            tried.append(TriedClasses(kind, after))
        else:
            worse[kind] = after - before
            tried.append(TriedClasses(kind, "", *_mean(worse[kind])))
    if not worse:
        return ChosenClasses(IDENTITY, tried[0].reason, tuple(tried))
    best = min(worse.values(), key=lambda d: float(d.mean()))
    kind = next(kind for kind, d in worse.items() if (d - best).mean() <= _mean(d - best)[1])
    mean, error = _mean(worse[kind])
    if not mean < -SURE * error:
        return ChosenClasses(IDENTITY, "no_improvement", tuple(tried))
    made = fit_classes(kind, scores, codes)
    return ChosenClasses(IDENTITY if isinstance(made, str) else made, made if isinstance(made, str) else "accepted", tuple(tried))


def _losses(calibrator: Calibrator, scores: Floats, codes: Ints) -> Floats:
    """Return the log loss of each row under a calibrator."""
    found: Floats = -_log_softmax(_class_logits(calibrator, _logs(scores)))[np.arange(len(codes)), codes]
    return found


def _held_out(kind: str, scores: Floats, codes: Ints, block: Ints) -> Floats | str:
    """Return the log loss of each row under a fit to the other blocks, or why there is none."""
    after = np.empty(len(codes))
    for b in range(BLOCKS):
        out = block == b
        made = fit_classes(kind, scores[~out], codes[~out])
        if isinstance(made, str):
            return made
        after[out] = _losses(made, scores[out], codes[out])
    return after


def _mean(d: Floats) -> tuple[float, float]:
    """Return the mean of differences and its standard error."""
    return float(d.mean()), float(d.std(ddof=1)) / len(d) ** 0.5
