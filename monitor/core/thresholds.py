"""Choosing the threshold of a policy: what it is for, what its candidates do, and how sure a choice is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.core.events import OTHER, Bools, Floats, Ints
from monitor.core.intervals import clopper_pearson, cluster_variance, effective, no_interval
from monitor.core.policy import IDENTITY, Calibrator, expit, logit, served_edges
from monitor.core.readings import Reading
from monitor.core.tables import BINS, GROUP_COLUMNS

POSITIVES = 300
"""With fewer positives a bound on recall is honest but wide, and a slice has no threshold of its own."""
ROWS = 5_000
"""The cheapest threshold of fewer rows costs some percent more than the best one; a calibrated Bayes threshold does not."""
PREVALENCES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Precision is shown at so many times the prevalence of the outcomes."""
_SHARES = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
"""Candidates are shown that flag about so many times what the chosen one does."""
_LEVEL = 0.95
_SCORE = GROUP_COLUMNS.index("score")

OBJECTIVES = ("cost", "utility", "capacity", "min_recall", "precision_floor", "fpr_cap", "f1", "youden", "fixed")


@dataclass(frozen=True, slots=True)
class Objective:
    """What a threshold is for, one of OBJECTIVES.

    `value` is the recall, precision or false positive rate to keep, the cases a day, or the fixed threshold; `utility` what a
    true positive, a false positive, a false negative and a true negative are worth.
    """

    name: str
    value: float = 0.0
    utility: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def cost(missed: float, false_alarm: float) -> Objective:
    """Return the objective of the least cost of missed positives and false alarms."""
    return Objective("cost", utility=(0.0, -false_alarm, -missed, 0.0))


@dataclass(frozen=True, slots=True)
class Choice:
    """A threshold of served scores, what it would have counted, and `bound`, what it keeps with a confidence of .95 (None:
    nothing).

    It is not `automatic` when a person should look first: `reason` is then a code of `reasons.CHOSEN`.
    """

    threshold: float
    tp: float
    fp: float
    fn: float
    tn: float
    bound: float | None = None
    reason: str = ""

    @property
    def automatic(self) -> bool:
        """Return whether it may be used without a person."""
        return not self.reason

    @property
    def flagged(self) -> float:
        """Return how many rows it flags."""
        return self.tp + self.fp

    @property
    def recall(self) -> float | None:
        """Return the share of the positives that it flags."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else None

    @property
    def precision(self) -> float | None:
        """Return the share of positives among what it flags."""
        return self.tp / self.flagged if self.flagged else None

    @property
    def fpr(self) -> float | None:
        """Return the share of the negatives that it flags."""
        return self.fp / (self.fp + self.tn) if self.fp + self.tn else None

    def worth(self, objective: Objective) -> float:
        """Return the utility of all rows; a cost is a utility below 0."""
        return float(np.dot(objective.utility, (self.tp, self.fp, self.fn, self.tn)))


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Every threshold that decides differently, the lowest first: the served score, and what it would have counted."""

    threshold: Floats
    tp: Floats
    fp: Floats
    positives: float
    negatives: float

    def at(self, i: int, bound: float | None = None, reason: str = "") -> Choice:
        """Return one of them."""
        tp, fp = float(self.tp[i]), float(self.fp[i])
        return Choice(float(self.threshold[i]), tp, fp, self.positives - tp, self.negatives - fp, bound, reason)


def _levels(calibrator: Calibrator) -> tuple[Floats, Ints]:
    """Return every served score of the grid and the first bin with it: a threshold flags all bins with the same or none.

    The last one is 1, of a bin above all where nothing is served as 1: it flags no score.
    """
    served = np.append(served_edges(calibrator), 1.0)
    first = np.flatnonzero(np.diff(served, prepend=-1.0))
    return served[first], first


def _above(bins: Ints, n: Floats, first: Ints) -> Floats:
    """Return for each bin in `first` how many rows are in it or above."""
    by_bin = np.bincount(bins, n, BINS + 1)
    found: Floats = by_bin[::-1].cumsum()[::-1][first]
    return found


def _table(reading: Reading, calibrator: Calibrator) -> _Table:
    levels, first = _levels(calibrator)
    tp, fp = (_above(reading.bin, n, first) for n in (reading.pos, reading.neg))
    return _Table(levels, tp, fp, float(reading.pos.sum()), float(reading.neg.sum()))


def _last(allowed: Bools) -> int | None:
    """Return the place of the highest threshold that is allowed, None when none is."""
    found = np.flatnonzero(allowed)
    return int(found[-1]) if len(found) else None


def _most(value: Floats, allowed: Bools | None = None) -> int | None:
    """Return the place of the largest value, the highest threshold among several; of the allowed ones only."""
    usable = np.ones(len(value), bool) if allowed is None else allowed
    return _last(usable & (value >= value[usable].max() - 1e-12 * (1 + abs(value[usable].max())))) if usable.any() else None


def _counts(reading: Reading) -> tuple[float, float]:
    """Return as how many rows the positives and the negatives count, over what they add up to: 1 of rows that stand for
    themselves alone, less where they are weighted or share clusters.
    """
    spread = (None, None) if reading.spread is None else (reading.spread[1], reading.spread[0])
    pos, neg = (
        _count(n, square, reading.score, None if reading.groups is None else reading.groups[:, k])
        for k, n, square in zip((1, 0), (reading.pos, reading.neg), spread, strict=True)
    )
    return pos, neg


def _count(n: Floats, square: Floats | None, score: Floats, groups: Floats | None) -> float:
    """Return as how many rows those of a class count, over what they add up to.

    How much the rows of a cluster agree about what is flagged is taken to be how much they agree in score; where that cannot be
    seen they are taken to agree completely, so that clusters count and not rows. Beside weights nothing is known of clusters.
    """
    rows = float(n.sum())
    if not rows:
        return 1.0
    if square is not None:
        return float(effective(rows, float(square.sum()))) / rows
    if groups is None or np.isnan(groups[:, :_SCORE]).any():
        return 1.0
    mean = float(n @ score) / rows
    iid = float(n @ (score - mean) ** 2) / (rows * rows)
    variance, clusters = cluster_variance(mean, (groups[:, _SCORE], groups[:, :_SCORE].sum(axis=1)), rows, iid)
    if no_interval(variance, clusters):
        return clusters / rows
    return min(1.0, iid / variance) if variance > 0 else 1.0


def bayes(utility: tuple[float, float, float, float]) -> float | None:
    """Return the threshold of an honest probability with the largest utility on average, None when one decision is always better.

    (u_tn - u_fp) / ((u_tn - u_fp) + (u_tp - u_fn)); with costs, c_fp / (c_fp + c_fn). Elkan, IJCAI 2001.

    >>> bayes((0.0, -1.0, -10.0, 0.0))
    0.09090909090909091
    """
    tp, fp, fn, tn = utility
    alarm, miss = tn - fp, tp - fn
    return alarm / (alarm + miss) if alarm > 0 and miss > 0 else None


def choose(
    objective: Objective,
    reading: Reading,
    calibrator: Calibrator = IDENTITY,
    accepted: bool = False,
    scored: Reading | None = None,
    days: float = 1.0,
) -> Choice | str:
    """Return the threshold of served scores that an objective chooses on outcomes, or a code of `reasons` that says why it
    cannot.

    Of several that are as good the highest is taken. Recall, precision and false positive rate are kept with a confidence of
    .95, by one-sided bounds of Clopper and Pearson: chosen by what was counted, a target is missed every other time. Cost and
    utility take the threshold of Bayes where the served scores are `accepted` as honest, else the one that would have been
    best. A capacity is that of the `scored` rows of so many `days`, for which no outcome is needed.
    """
    made = _table(reading, calibrator)
    if objective.name == "fixed":
        return _at_least(made, objective.value)
    if objective.name == "capacity":
        return _capacity(objective.value, reading if scored is None else scored, days, calibrator, made)
    if reading.reason:
        return reading.reason
    if not made.positives or not made.negatives:
        return "one_class"
    if objective.name in ("cost", "utility"):
        return _useful(objective, made, accepted, reading)
    if objective.name in ("f1", "youden"):
        youden = made.tp / made.positives - made.fp / made.negatives
        best = _most(2 * made.tp / (made.tp + made.fp + made.positives) if objective.name == "f1" else youden)
        assert best is not None
        return made.at(best, None, _few(made, reading))
    return _bounded(objective, made, reading)


def _few(made: _Table, reading: Reading) -> str:
    return "wide_bound" if made.positives * _counts(reading)[0] < POSITIVES else ""


def _at_least(made: _Table, threshold: float) -> Choice:
    return made.at(int(np.searchsorted(made.threshold, threshold)))


def _capacity(per_day: float, scored: Reading, days: float, calibrator: Calibrator, made: _Table) -> Choice | str:
    """Return the lowest threshold that flags at most so many rows a day."""
    if not len(scored.n):
        return "no_events"
    flagged = _above(scored.bin, scored.n, _levels(calibrator)[1])
    few = np.flatnonzero(flagged <= per_day * days)
    return made.at(int(few[0])) if len(few) else "no_choice"


def _useful(objective: Objective, made: _Table, accepted: bool, reading: Reading) -> Choice:
    honest = bayes(objective.utility)
    if accepted and honest is not None:
        return _at_least(made, honest)
    counts = np.stack((made.tp, made.fp, made.positives - made.tp, made.negatives - made.fp))
    best = _most(np.array(objective.utility) @ counts)
    assert best is not None
    return made.at(best, None, "few_rows" if np.dot(_counts(reading), (made.positives, made.negatives)) < ROWS else "")


def _bounded(objective: Objective, made: _Table, reading: Reading) -> Choice | str:
    """Return the choice that keeps recall, precision or false positive rate and flags what else is best."""
    pos, neg = _counts(reading)
    if objective.name == "min_recall":
        low = clopper_pearson(made.tp * pos, np.full(len(made.tp), made.positives * pos), _LEVEL)[0]
        best = _last(low >= objective.value)
        bound = low
    elif objective.name == "precision_floor":
        n = (made.tp + made.fp) * min(pos, neg)
        bound = clopper_pearson(made.tp * min(pos, neg), n, _LEVEL)[0]
        best = _most(made.tp, (bound >= objective.value) & (n > 0))
    else:
        bound = clopper_pearson(made.fp * neg, np.full(len(made.fp), made.negatives * neg), _LEVEL)[1]
        best = _most(made.tp, bound <= objective.value)
    return "no_choice" if best is None else made.at(best, float(bound[best]), _few(made, reading))


def by_slice(
    objective: Objective,
    readings: Mapping[str, Reading],
    by: str,
    whole: Choice,
    calibrator: Calibrator = IDENTITY,
    accepted: bool = False,
) -> dict[str, tuple[Choice, Choice]]:
    """Return for each slice of the segment `by` with rows what the threshold of all does there, and what its own would do.

    A slice with fewer than POSITIVES positives, or none to choose, keeps the threshold of all. So do all slices for a capacity,
    which they share. The values in `other` are not known to the model server, so it has none, nor has the empty value, which a
    policy cannot name.
    """
    out = {}
    for name, reading in readings.items():
        if not by or not name.startswith(f"{by}=") or name in (f"{by}=", f"{by}={OTHER}") or not len(reading.n):
            continue
        kept = _at_least(_table(reading, calibrator), whole.threshold)
        enough = float(reading.pos.sum()) * _counts(reading)[0] >= POSITIVES and objective.name != "capacity"
        own = choose(objective, reading, calibrator, accepted) if enough else kept
        out[name] = kept, kept if isinstance(own, str) or own.threshold == kept.threshold else own
    return out


def thresholds(whole: Choice, slices: Mapping[str, tuple[Choice, Choice]]) -> dict[str, float]:
    """Return the thresholds of a policy: that of all, and those of slices where another one was chosen."""
    return {"all": whole.threshold} | {name: own.threshold for name, (kept, own) in slices.items() if own != kept}


def flagged(scored: Reading, threshold: float, calibrator: Calibrator = IDENTITY) -> float:
    """Return how many of all rows a threshold flags, whether their outcome is known or not."""
    return float(scored.n[served_edges(calibrator)[scored.bin] >= threshold].sum())


def candidates(reading: Reading, chosen: Choice, calibrator: Calibrator = IDENTITY, more: Sequence[float] = ()) -> list[Choice]:
    """Return about a dozen thresholds around the chosen one, which flag from a quarter to four times as much, and `more`."""
    made = _table(reading, calibrator)
    rising = (made.tp + made.fp)[::-1]
    places = {
        len(rising) - 1 - int(np.searchsorted(rising, chosen.flagged * s)) for s in _SHARES if chosen.flagged * s <= rising[-1]
    }
    places |= {int(np.searchsorted(made.threshold, t)) for t in (*more, chosen.threshold)}
    return [made.at(i) for i in sorted(places)]


def shifted(threshold: float, before: float, now: float) -> float:
    """Return where a threshold of scores belongs when the prevalence goes from `before` to `now` and nothing else changes.

    logit t - (logit now - logit before): deciding so is deciding on corrected scores. Saerens, Latinne and Decaestecker, Neural
    Computation 14 (2002).

    >>> round(shifted(1 / 11, 0.05, 0.1), 6)
    0.045226
    """
    t, b, n = logit(np.array([threshold, before, now])).tolist()
    return float(expit(np.array(t - (n - b))))


def precisions(choice: Choice) -> dict[float, float]:
    """Return the precision that the rates of a choice would give at PREVALENCES times the prevalence of its outcomes.

    prevalence recall / (prevalence recall + (1 - prevalence) fpr); nothing for multiples that are no prevalence.
    """
    recall, fpr = choice.recall, choice.fpr
    if recall is None or fpr is None or not recall + fpr:
        return {}
    prevalence = (choice.tp + choice.fn) / (choice.tp + choice.fp + choice.fn + choice.tn)
    found = {times: times * prevalence for times in PREVALENCES if times * prevalence < 1}
    return {times: p * recall / (p * recall + (1 - p) * fpr) for times, p in found.items()}
