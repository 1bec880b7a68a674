"""Two policies or two versions on the same days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.core.days import Key
from monitor.core.events import FLAGGED, NONE, Bools, Floats, Ints
from monitor.core.intervals import Measured, Spread, normal, share, wilson
from monitor.core.metrics import Estimate, measure
from monitor.core.metrics.counts import classes, rows, size
from monitor.core.policy import Calibrator, Policy, apply
from monitor.core.readings import Reading
from monitor.core.tables import BINS, GROUPS, grid_bin, log_losses

_SCORED, _OUTCOMES = ("flagged_share", "mean_score"), ("prevalence", "bias", "recall", "precision", "roc_auc")
PAIRED = ("flagged_share", "mean_score", "bias", "recall", "precision", "roc_auc")
"""What is subtracted within rows; prevalence is the same there."""
DISTANCES = ("psi", "psi_null", "wasserstein", "wasserstein_null")
"""What is measured of the scores of one version against those of the other."""
_LABELLED = 0.8


def flagged_by(policy: Policy, by_slice: Mapping[str, Reading]) -> int:
    """Return how many rows a policy flags, exactly: its cuts are edges of the grid. `by_slice` has `all` and other slices.

    What is flagged in a slice with a threshold of its own stands for what the threshold of all would flag there.
    """
    flags = policy.flags()
    found = int(by_slice["all"].n[flags[by_slice["all"].bin]].sum())
    for name in policy.bands.keys() & by_slice.keys() - {"all"}:
        r = by_slice[name]
        found += int(r.n[policy.flags(name)[r.bin]].sum() - r.n[flags[r.bin]].sum())
    return found


def counted(policy: Policy, by_slice: Mapping[str, Reading]) -> tuple[float, float, float, float]:
    """Return the true and false positives and the false and true negatives that a policy would have had on mature rows.

    Outcomes are taken to be what they were: a decision that changes them is not known to counts.
    """
    (fp, tp), (neg, pos) = _decided(policy, by_slice)[:, :2].tolist()
    return tp, fp, pos - tp, neg - fp


def _decided(policy: Policy, by_slice: Mapping[str, Reading]) -> Floats:
    """Return of the rows that a policy flags and of all rows the negatives, the positives and the variances of both, (2, 4)."""
    found = _sums(policy.flags(), by_slice["all"])
    for name in policy.bands.keys() & by_slice.keys() - {"all"}:
        found += _sums(policy.flags(name), by_slice[name]) - _sums(policy.flags(), by_slice[name])
    return found


def _sums(flags: Bools, reading: Reading) -> Floats:
    outcomes = np.stack((reading.neg, reading.pos))
    rows = np.concatenate((outcomes, outcomes if reading.spread is None else reading.spread[:2]))
    return np.stack((rows[:, flags[reading.bin]].sum(axis=1), rows.sum(axis=1)))


def under(policy: Policy, mature: Mapping[str, Reading], scored: Mapping[str, Reading]) -> dict[str, Measured | str]:
    """Return which share of all rows a policy would have flagged, its recall and its precision on mature ones, with intervals.

    Where rows share clusters there is no interval: the sums by cluster know only what was decided then.
    """
    (fp, tp, fp2, tp2), (_, pos, _, pos2) = _decided(policy, mature).tolist()
    unknown = np.full(GROUPS, np.nan)

    def of(reading: Reading, k: float, n: float, spread: Spread | None, undefined: str) -> Measured | str:
        if reading.reason or not n:
            return reading.reason or undefined
        return share(k, n, spread, None if reading.groups is None else (unknown, unknown))

    rows, every = scored["all"], mature["all"]
    return {
        "flagged_share": of(rows, float(flagged_by(policy, scored)), float(rows.n.sum()), None, "no_events"),
        "recall": of(every, tp, pos, (tp2, pos2 - tp2, 0.0), "no_positives"),
        "precision": of(every, tp, tp + fp, (tp2, fp2, 0.0), "no_flagged"),
    }


def policy_volume(by_slice: Mapping[str, Reading], current: Policy, previous: Policy) -> Measured | str:
    """Return flagged by the current policy over flagged by the previous one on the same scores, by slice.

    It has no sampling error: both counts are of the same rows. Where the previous policy flags nothing, one is put in
    its place, so that a new policy that flags a lot is not undefined.
    """
    if not len(by_slice["all"].n):
        return "no_events"
    now, before = flagged_by(current, by_slice), flagged_by(previous, by_slice)
    ratio = 1.0 if now == before else now / max(before, 1)
    return Measured(ratio, ratio, ratio, int(by_slice["all"].n.sum()))


class Side(NamedTuple):
    """A version on some days and a slice: all of its scores, and the outcomes of its mature days."""

    scored: Reading
    mature: Reading


def difference(a: Measured, b: Measured) -> Measured:
    """Return a - b of independent samples, with the interval that theirs imply.

    For d = a - b the lower end is d - sqrt((a - low_a)**2 + (high_b - b)**2) and the upper one likewise, so variances add and
    lopsided intervals stay so. Newcombe, Statistics in Medicine 17 (1998), 873-890, method 10, there of Wilson's.

    >>> d = difference(Measured(0.7, 0.6, 0.78, 100), Measured(0.5, 0.4, 0.6, 100))
    >>> round(d.value, 3), round(d.low, 3), round(d.high, 3)
    (0.2, 0.059, 0.328)
    """
    value, n = a.value - b.value, a.n + b.n
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return Measured(value, None, None, n, a.interval_reason or b.interval_reason)
    low = value - ((a.value - a.low) ** 2 + (b.high - b.value) ** 2) ** 0.5
    return Measured(value, low, value + ((a.high - a.value) ** 2 + (b.value - b.low) ** 2) ** 0.5, n)


def differences(a: Side, b: Side, key: Key, window: str, edges: Ints | None) -> tuple[Estimate, ...]:
    """Return how version `a` (that of `key`) differs from version `b` on the same days: a less b, and distances of scores.

    Rows are taken as independent; shocks that a day brings to both versions are in neither.
    """
    distances = measure(a.scored, key, window, edges, b.scored, DISTANCES)
    both = (_measured(side, key, window) for side in (a, b))
    found = (_estimate(e.metric, key, window, _subtract(e, f)) for e, f in zip(*both, strict=True))
    return *found, *(replace(e, basis="difference") for e in distances)


def _measured(side: Side, key: Key, window: str) -> tuple[Estimate, ...]:
    """Return what a version shows, its mean score with the interval of a mean."""
    shown = *measure(side.scored, key, window, names=_SCORED), *measure(side.mature, key, window, names=_OUTCOMES)
    return tuple(_mean_score(e, side.scored) if e.metric == "mean_score" else e for e in shown)


def _mean_score(e: Estimate, reading: Reading) -> Estimate:
    if e.interval_reason or e.value is None:
        return e
    n = float(reading.n.sum())
    low, high = normal(e.value, float(reading.n @ (reading.score - e.value) ** 2) / (n * n))
    return replace(e, low=low, high=high)


def _subtract(a: Estimate, b: Estimate) -> Measured | str:
    if a.value is None or b.value is None:
        return a.reason or b.reason
    left = Measured(a.value, a.low, a.high, a.n, a.interval_reason)
    return difference(left, Measured(b.value, b.low, b.high, b.n, b.interval_reason))


def _estimate(name: str, key: Key, window: str, found: Measured | str) -> Estimate:
    if isinstance(found, str):
        return Estimate(name, key, window, "difference", None, None, None, 0, found)
    return Estimate(name, key, window, "difference", *found[:4], "", found.interval_reason)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rows of two versions with the same ids: scores and verdicts, shape (2, n), and outcomes (1, 0, or -1: unknown), shape (n,).

    `clustered`: rows share clusters. `reason`: why pairs say nothing, a code of `reasons.UNDEFINED`, else empty.
    """

    score: Floats
    verdict: NDArray[np.uint8]
    outcome: NDArray[np.int8]
    clustered: bool = False
    reason: str = ""

    @classmethod
    def concat(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """Return the pairs of all parts."""
        score, verdict = (np.concatenate([getattr(p, name) for p in parts], axis=1) for name in ("score", "verdict"))
        outcome = np.concatenate([p.outcome for p in parts])
        clustered, reason = any(p.clustered for p in parts), next((p.reason for p in parts if p.reason), "")
        return cls(score, verdict, outcome, clustered, reason)


def paired(pairs: Pairs, key: Key, window: str) -> tuple[Estimate, ...]:
    """Return how the first version (that of `key`) differs from the second on rows that both have scored: first less second.

    What the rows share cancels, so intervals are those of differences within rows. Outcomes must be known of .8 of the rows.
    """
    if not len(pairs.outcome):
        return tuple(_estimate(name, key, window, pairs.reason or "no_events") for name in PAIRED)
    known, positive = pairs.outcome >= 0, pairs.outcome == 1
    flagged, decided = FLAGGED[pairs.verdict], (pairs.verdict != NONE).all(axis=0)
    unknown = "" if known.mean() >= _LABELLED else "unidentified" if known.any() else "no_labels"
    gap = pairs.score[0] - pairs.score[1]
    found = (
        _paired_share(flagged[:, decided], "no_threshold"),
        _paired_mean(gap),
        unknown or _paired_mean(gap[known]),
        unknown or _paired_share(flagged[:, decided & positive], "no_positives"),
        unknown or _paired_precision(flagged[:, decided & known], positive[decided & known]),
        unknown or _paired_auc(pairs.score[:, known], positive[known]),
    )
    return tuple(_estimate(name, key, window, pairs.reason or _seen(m, pairs)) for name, m in zip(PAIRED, found, strict=True))


def _seen(found: Measured | str, pairs: Pairs) -> Measured | str:
    """Return a difference, none of which is outside [-1, 1], without its interval where rows share clusters: how these agree
    is not in the pairs.
    """
    if isinstance(found, str):
        return found
    if pairs.clustered:
        return found._replace(low=None, high=None, interval_reason="clustered")
    assert found.low is not None
    assert found.high is not None
    return found._replace(low=max(found.low, -1.0), high=min(found.high, 1.0))


def _paired_share(flagged: Bools, undefined: str) -> Measured | str:
    """Return the difference of two shares of the same rows, flagged (2, n), from the rows on which the versions disagree.

    (b - c) / n for b rows that only the first flags and c that only the second does; interval: normal with half a row more in
    each of the four cells (Agresti and Min, Statistics in Medicine 24 (2005), 729-740).
    """
    n = flagged.shape[1]
    if not n:
        return undefined
    b, c = int((flagged[0] & ~flagged[1]).sum()), int((flagged[1] & ~flagged[0]).sum())
    low, high = normal((b - c) / (n + 2), (b + c + 1 - (b - c) ** 2 / (n + 2)) / (n + 2) ** 2)
    return Measured((b - c) / n, min(low, (b - c) / n), max(high, (b - c) / n), n)


def _paired_mean(gap: Floats) -> Measured | str:
    """Return the mean of differences within rows with its normal interval."""
    n = len(gap)
    if n < 2:
        return "low_n"
    return Measured(float(gap.mean()), *normal(float(gap.mean()), float(gap.var(ddof=1)) / n), n)


def _paired_precision(flagged: Bools, positive: Bools) -> Measured | str:
    """Return the difference of precisions; its variance is the sum of the squares of what each row adds to it.

    A row adds f (y - precision) / (flagged rows) for each version, the linearised residual of a ratio. Where no row adds
    anything (all flagged rows were positive) it is the difference of independent Wilson intervals.
    """
    rows, hits = flagged.sum(axis=1).astype(np.float64), (flagged & positive).sum(axis=1)
    if not rows.all():
        return "no_flagged"
    share = hits / rows
    added = flagged * (positive - share[:, None]) / rows[:, None]
    variance = float(((added[0] - added[1]) ** 2).sum())
    if not variance:
        return difference(
            *(Measured(float(p), *wilson(float(k), float(m)), int(m)) for p, k, m in zip(share, hits, rows, strict=True))
        )
    value = float(share[0] - share[1])
    return Measured(value, *normal(value, variance), int(flagged.any(axis=0).sum()))


def _paired_auc(score: Floats, positive: Bools) -> Measured | str:
    """Return the difference of the areas under two ROC curves of the same rows with DeLong's covariance (1988), on the grid."""
    p, n = int(positive.sum()), int((~positive).sum())
    if min(p, n) < 2:
        return "low_n" if min(p, n) else "one_class"
    above, below = np.zeros(p), np.zeros(n)
    for sign, row in zip((1, -1), score, strict=True):
        bins = grid_bin(row)
        neg, pos = (np.bincount(bins[mask], minlength=BINS) for mask in (~positive, positive))
        above += sign * ((neg.cumsum() - 0.5 * neg) / n)[bins[positive]]
        below -= sign * ((pos.cumsum() - 0.5 * pos) / p)[bins[~positive]]
    value = float(above.mean())
    return Measured(value, *normal(value, float(above.var(ddof=1) / p + below.var(ddof=1) / n)), p + n)


def losses(score: Floats) -> Floats:
    """Return the logarithmic and the Brier loss of a negative and of a positive with each score, shape (2, 2, len(score))."""
    yes = np.ones(len(score), bool)
    return np.array(((log_losses(score, ~yes), log_losses(score, yes)), (score**2, (1.0 - score) ** 2)))


def log_ratio(reading: Reading, of: Calibrator, against: Calibrator) -> float:
    """Return sum_i ln p_of(y_i) - ln p_against(y_i), the logarithm of how much likelier a calibrator makes the outcomes.

    exp of it is an e-value against the hypothesis that the scores of `against` are the probabilities. Weighted rows count as
    the effective number of them: raw weights would be evidence that nobody has seen.
    """
    gap = losses(apply(against, reading.score))[0] - losses(apply(of, reading.score))[0]
    total = float(np.vdot(classes(reading), gap))
    return total if reading.spread is None else total * size(reading) / rows(reading)


def undo_step(log_e: float, log_ratio: float) -> float:
    """Return ln(max(e, 1) e_day), the evidence that another policy serves better after one more day's ln e_day.

    Days on which it served worse are forgotten once they outweigh the rest, so that a change of the world is seen soon. It is a
    CUSUM of likelihood ratios (Page, Biometrika 41 (1954), 100-115): where the scores that serve are right, a given day is one
    from which on e ever passes 20 with a probability of at most 1/20.

    >>> undo_step(-3.0, 2.0), undo_step(1.0, 2.0)
    (2.0, 3.0)
    """
    return max(log_e, 0.0) + log_ratio
