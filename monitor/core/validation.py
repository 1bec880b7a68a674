"""Rows of a validation by what they are used for: some choose a policy, others test it, and none does both."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from monitor.core import gate
from monitor.core.baseline import MIN_DAYS, Combo, members
from monitor.core.calibrators import CANDIDATES, fit
from monitor.core.days import Key
from monitor.core.events import ABSTAIN, DAY, FLAGGED, NONE, REVIEW, VERDICTS, Bools, Coded, Ints
from monitor.core.intervals import normal
from monitor.core.metrics import Estimate, measure, of_margins
from monitor.core.metrics.calibration import Bin, reliability
from monitor.core.metrics.daily import days_of
from monitor.core.policy import IDENTITY, Calibrator, Policy, apply, policy, served_bins, verdicts
from monitor.core.readings import LabelRule, Reading, mature, scored
from monitor.core.tables import Table, log_losses, tables, total, wanted
from monitor.core.thresholds import Objective, by_slice, choose, thresholds

ROLES = ("calibration", "selection", "test")
FEW = 300
"""With fewer positives no role would have enough of them, and rows are cross-fitted instead."""
FOLDS, PARTS = 5, 20
"""Rows are cross-fitted in five folds; rows without times stand for so many days when calibrators are tried."""

RULES = (LabelRule("unknown"),) * len(VERDICTS)
"""A row of a validation that has no outcome says nothing, whatever it means in service."""

_SHOWN = (
    "prevalence",
    "mean_score",
    "bias",
    "ece",
    "ece_width10",
    "squared_calibration_error",
    "intercept",
    "slope",
    "brier",
    "log_loss",
    "roc_auc",
    "average_precision",
    "high_confidence_error_share",
    "flagged_share",
    "recall",
    "precision",
    "f1",
    "fpr",
)


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """Rows (ROW) and labels (LABEL) of a version with the `role` of each as its place in ROLES.

    `key` are 64 random bits of its entity, or of its id where it has none: rows with equal keys belong together. Not `timed`, all
    rows have one time that means nothing. `margins`: scores order rows and are no probabilities.
    """

    model: str
    version: str
    segments: tuple[str, ...]
    rows: NDArray[Any]
    labels: NDArray[Any]
    combos: tuple[Combo, ...]
    role: Ints
    key: NDArray[np.uint64]
    timed: bool
    margins: bool = False

    def some(self, keep: NDArray[Any]) -> "Validation":
        """Return the rows that a mask keeps."""
        parts = {name: getattr(self, name)[keep] for name in ("rows", "labels", "role", "key")}
        return replace(self, **parts)

    def of(self, *roles: str) -> "Validation":
        """Return the rows of some roles."""
        return self.some(np.isin(self.role, [ROLES.index(role) for role in roles]))

    def by_day(self, slices: tuple[str, ...] = ("all",)) -> dict[int, dict[str, Table]]:
        """Return their tables by day and slice."""
        if slices == ("all",):
            lut = np.zeros((1, max(len(self.combos), 1)), np.int32)
        else:
            lut = members(slices, self.combos, self.segments)
        day = self.rows["ts"] // DAY
        out = {}
        for d in np.unique(day).tolist():
            counted = tables(self.rows[day == d], self.labels[day == d], lut, len(slices))
            out[d] = {name: t for name, t in zip(slices, counted, strict=True) if t.n}
        return out

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows there are, how many have an outcome, and of how many it is positive."""
        outcome = self.labels["outcome"]
        return {
            "rows": len(outcome),
            "labelled": int((outcome >= 0).sum()),
            "positives": int(self.positive.sum()),
        }

    @property
    def positive(self) -> Bools:
        """Return which rows have the outcome that the score is the probability of."""
        found: Bools = self.labels["outcome"] == wanted(self.rows)
        return found


def split(shares: Sequence[float], key: NDArray[np.uint64], ts: Ints | None) -> Ints:
    """Return the role of each row so that each role has its share: by time where there are times, else by key.

    From MIN_DAYS days on each day has one role, because what is peculiar to a day is in all of its rows; rows of one time always
    have one role.

    >>> split((0.5, 0.25, 0.25), np.zeros(4, np.uint64), np.array([30, 10, 20, 40])).tolist()
    [1, 0, 0, 2]
    """
    ends = np.cumsum(shares)[:-1] / np.sum(shares)
    if ts is None:
        return np.searchsorted(ends, key / 2.0**64, side="right").astype(np.int64)
    days = ts // DAY
    when = days if len(np.unique(days)) >= MIN_DAYS else ts
    _, inverse, count = np.unique(when, return_inverse=True, return_counts=True)
    middle = (count.cumsum() - count / 2) / len(ts)
    return np.searchsorted(ends, middle, side="right").astype(np.int64)[inverse]


@dataclass(frozen=True, slots=True, eq=False)
class Leak:
    """Why roles are not apart: a code of `reasons.LEAKS`, and the places of the rows that show it."""

    reason: str
    at: Ints


def leaks(ids: Ints, entity: Ints, role: Ints, ts: Ints | None) -> list[Leak]:
    """Return what connects the roles of rows; rows have codes of their id and of their entity (-1: none).

    An id must be there once. An entity must have one role. Where there are times no row may be before one of an earlier role.
    """
    found = [Leak("duplicate_id", np.flatnonzero(np.bincount(ids, minlength=1)[ids] > 1))]
    named = np.flatnonzero(entity >= 0)
    roles = np.zeros((int(entity.max(initial=0)) + 1, len(ROLES)), bool)
    roles[entity[named], role[named]] = True
    found.append(Leak("entity_in_two_roles", named[roles.sum(axis=1)[entity[named]] > 1]))
    if ts is not None:
        last = [max((int(ts[role == r].max()) for r in range(k) if (role == r).any()), default=-1) for k in range(len(ROLES))]
        early = np.flatnonzero(ts < np.array(last)[role])
        found.append(Leak("time_order", early[np.argsort(ts[early], kind="stable")]))
    return [leak for leak in found if len(leak.at)]


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What rows led to: a policy, None where no threshold could be chosen, and a report of the trial of calibrators and one of
    the choice of the threshold, each with a `reason`.
    """

    policy: Policy | None
    calibration: Mapping[str, Any]
    selection: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What scores are worth: metrics, and reliability bins over the frozen edges and over ten equal widths."""

    estimates: tuple[Estimate, ...]
    frozen: list[Bin]
    width10: list[Bin]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a policy does on rows: `counts` that add up to all of them, and what the scores of the model (`raw`) and, where it
    serves others, those (`served`) are worth.
    """

    rows: int
    counts: Mapping[str, int]
    raw: Shown
    served: Shown | None


def chosen(v: Validation, slices: tuple[str, ...], objective: Objective | None, by: str = "") -> Chosen:
    """Return the policy of a validation: a calibrator where the gate accepts one, then the threshold of what is served.

    With `by` the values of a segment with enough positives have a threshold of their own.
    """
    trial = _calibrated(v.of("calibration"), slices)
    calibrator = trial["calibrator"] if trial["reason"] == "accepted" else IDENTITY
    return _selected(v, v.role == ROLES.index("selection"), slices, objective, by, calibrator, trial)


def _calibrated(v: Validation, slices: tuple[str, ...]) -> dict[str, Any]:
    """Return the report of the gate, or why it was not asked."""
    if v.margins:
        return {"reason": "margin_scores", **v.counts}
    if v.counts["positives"] < FEW:
        return {"reason": "few_to_calibrate", **v.counts}
    if not v.timed:
        rows = v.rows.copy()
        rows["ts"] = (v.key % np.uint64(PARTS)).astype(np.int64) * DAY
        v = replace(v, rows=rows)
    return gate.trial(v.by_day(slices), RULES, IDENTITY).to_dict()


def _selected(
    every: Validation,
    use: Bools,
    slices: tuple[str, ...],
    objective: Objective | None,
    by: str,
    calibrator: Calibrator,
    trial: Mapping[str, Any],
) -> Chosen:
    """Return the policy with the threshold that an objective chooses on the rows to `use`."""
    v = every.some(use)
    reason = "margin_scores" if v.margins else "no_objective" if objective is None else "" if len(v.rows) else "no_events"
    if objective is None or reason or (objective.name == "capacity" and not v.timed):
        return Chosen(None, trial, {"reason": reason or "no_times", **v.counts})
    days, accepted = v.by_day(slices), trial["reason"] == "accepted"
    whole = {name: total([t[name] for t in days.values() if name in t]) for name in slices}
    readings = {name: mature(table, RULES) for name, table in whole.items()}
    found = choose(objective, readings["all"], calibrator, accepted, scored(whole["all"]), _days(every, use))
    if isinstance(found, str):
        return Chosen(None, trial, {"reason": found, **v.counts})
    own = by_slice(objective, readings, by, found, calibrator, accepted)
    made = policy("", v.model, v.version, thresholds(found, own), calibrator)
    by_name = {name: {"kept": asdict(kept), "own": asdict(its)} for name, (kept, its) in own.items()}
    return Chosen(made, trial, {"objective": asdict(objective), **asdict(found), **v.counts, "slices": by_name})


def _days(v: Validation, use: Bools) -> float:
    """Return for how many days of traffic some rows stand: of each day the share of its rows that they are."""
    _, day, count = np.unique(v.rows["ts"] // DAY, return_inverse=True, return_counts=True)
    return float((np.bincount(day[use], minlength=len(count)) / count).sum())


def measured(v: Validation, made: Policy | None, edges: Ints) -> Result:
    """Return what a policy does on rows, and what scores are worth there over the frozen `edges`."""
    return _tested(v, _verdicts(v, made), IDENTITY if made is None else made.calibrator, edges)


def _verdicts(v: Validation, made: Policy | None) -> NDArray[np.uint8]:
    if made is None:
        return np.full(len(v.rows), NONE, np.uint8)
    return verdicts(made, v.rows["score"], Coded(v.combos, v.rows["combo"].astype(np.int32)))


def _tested(v: Validation, verdict: NDArray[np.uint8], calibrator: Calibrator, edges: Ints) -> Result:
    rows = v.rows.copy()
    rows["verdict"] = verdict
    raw = _shown(replace(v, rows=rows), edges)
    served = None
    if dict(calibrator) != IDENTITY:
        mapped = rows.copy()
        mapped["score"] = apply(calibrator, rows["score"])
        # The same rows are in a bin of the served scores as in that of the model's, but for bins that become one.
        served = _shown(replace(v, rows=mapped), served_bins(edges, calibrator))
    return Result(len(rows), _counts(v, verdict), raw, served)


def _counts(v: Validation, verdict: NDArray[np.uint8]) -> dict[str, int]:
    """Return each row in one of the counts: what is reviewed or abstained from is neither right nor wrong."""
    labelled, positive = v.labels["outcome"] >= 0, v.positive
    apart = {"review": verdict == REVIEW, "abstain": verdict == ABSTAIN, "undecided": verdict == NONE}
    decided, flagged = labelled & ~np.logical_or.reduce([*apart.values()]), FLAGGED[verdict]
    masks = {
        "tp": decided & flagged & positive,
        "fp": decided & flagged & ~positive,
        "fn": decided & ~flagged & positive,
        "tn": decided & ~flagged & ~positive,
        **{name: mask & labelled for name, mask in apart.items()},
        "unlabelled": ~labelled,
    }
    return {name: int(mask.sum()) for name, mask in masks.items()}


def _shown(v: Validation, edges: Ints) -> Shown:
    daily = [t["all"] for _, t in sorted(v.by_day().items())]
    reading = mature(total(daily), RULES)
    days = days_of([mature(t, RULES) for t in daily]) if v.timed and daily else None
    key = Key(v.model, v.version, "all", int(v.rows["ts"].max(initial=0)) // DAY)
    found = measure(reading, key, "", edges, None, _SHOWN, days)
    if v.margins or reading.reason:
        return Shown(of_margins(found) if v.margins else found, [], [])
    return Shown(found, reliability(reading, edges), reliability(reading, None, width=True))


def cross_fitted(
    v: Validation, slices: tuple[str, ...], objective: Objective | None, by: str, edges: Ints
) -> tuple[Chosen, Result]:
    """Return the policy of rows with few positives, and what choosing like that did on rows that it was not chosen on.

    Rows with equal keys are in one of FOLDS folds; each is decided by the threshold that the others choose. Calibrators are
    fitted likewise, as a diagnosis of the scores: the policy has none of them.
    """
    fold = (v.key % np.uint64(FOLDS)).astype(np.int64)
    trial = {"reason": "few_to_calibrate", **v.counts, "diagnosis": {kind: _held_out(v, fold, kind) for kind in CANDIDATES}}
    verdict = np.full(len(v.rows), NONE, np.uint8)
    for k in range(FOLDS):
        mine = fold == k
        made = _selected(v, ~mine, slices, objective, by, IDENTITY, trial).policy
        verdict[mine] = _verdicts(v.some(mine), made)
    return _selected(v, np.ones(len(v.role), bool), slices, objective, by, IDENTITY, trial), _tested(v, verdict, IDENTITY, edges)


def _held_out(v: Validation, fold: Ints, kind: str) -> dict[str, Any]:
    """Return by how much a kind of calibrator changes the mean log loss of folds that it was not fitted to, or why it cannot.

    The interval is that of a ratio of sums over keys, whose rows need not be independent. Any two fits share most of their rows,
    which it does not know: it is a little too narrow.
    """
    if v.margins:
        return {"reason": "margin_scores"}
    fits = [fit(kind, _reading(v.some(fold != k))) for k in range(FOLDS)] + [fit(kind, _reading(v))]
    if reason := next((made for made in fits if isinstance(made, str)), ""):
        return {"reason": reason}
    served = v.rows["score"].copy()
    for k, made in enumerate(fits[:FOLDS]):
        served[fold == k] = apply(cast(Calibrator, made), served[fold == k])
    labelled = v.labels["outcome"] >= 0
    gap = (log_losses(served, v.positive) - log_losses(v.rows["score"], v.positive))[labelled]
    _, at = np.unique(v.key[labelled], return_inverse=True)
    value = float(gap.mean())
    low, high = normal(value, float(((np.bincount(at, gap) - np.bincount(at) * value) ** 2).sum()) / len(gap) ** 2)
    return {"calibrator": fits[FOLDS], "log_loss": {"value": value, "low": low, "high": high}}


def _reading(v: Validation) -> Reading:
    return mature(total([t["all"] for t in v.by_day().values()]), RULES)
