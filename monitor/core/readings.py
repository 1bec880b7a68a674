"""A table as one way of counting sees it. A metric never sees a table, only a reading of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.delays import Completeness
from monitor.core.events import FLAGGED, NONE, VERDICTS, Bools, Floats, Ints
from monitor.core.policy import Policy, decide, expit, logit
from monitor.core.quantify import Classes, Quantified, classes, corrected
from monitor.core.tables import EDGES, EMPTY, GROUP_COLUMNS, GROUPS, TINY, Table, log_losses, weights_of

ACTING = ("scored", "mature")
"""The only bases that a rule which acts may read."""

_ENOUGH = 0.8
_COMPLETE = 0.3
_EFFECTIVE = 50
_HALF = 0.5
_ROLE = np.where(np.arange(len(VERDICTS)) == NONE, 2, FLAGGED)
"""Per verdict the position of its column in Table.groups: not flagged, flagged, nobody decided."""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """What no label at the horizon means under one verdict: `missing` is negative or unknown.

    With `never` the verdict itself prevents the outcome (a blocked payment): whatever label comes for such a row, it has none.
    """

    missing: str
    never: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Rows per cell and their outcomes under one way of counting.

    All arrays have one entry per cell, sorted by bin: `n` rows, `score` their mean score, `neg` and `pos` their outcomes
    (both zero in the basis `scored`). `losses` are the exact sums of the Brier and the logarithmic loss over the n rows.
    `reason` says why outcomes mean nothing here, else it is empty; `flagged_reason` why those of the flagged rows do. It is
    `prevented` only where nothing else is wrong: the outcomes that are there are then right given the score and the verdict.

    Where outcomes are weighted, `n`, `neg` and `pos` are estimates: `spread` (3, cells) then holds the variances of `neg` and
    of `pos` and their covariance, and `seen` how many positives the estimate rests on; None where they are counts of rows.
    `groups` (64, 2, 6) are the sums of GROUP_COLUMNS by cluster group, of the negatives and the positives read (in the basis
    `scored` of all rows and of none), NaN where they cannot be told; None where no row has a cluster.
    """

    basis: str
    bin: NDArray[np.int64]
    verdict: NDArray[np.uint8]
    n: Floats
    score: Floats
    neg: Floats
    pos: Floats
    losses: tuple[float, float]
    clipped: float
    reason: str = ""
    flagged_reason: str = ""
    spread: Floats | None = None
    seen: Floats | None = None
    groups: Floats | None = None

    @property
    def flagged(self) -> Bools:
        """Return which cells were flagged."""
        mask: Bools = FLAGGED[self.verdict]
        return mask

    @property
    def decided(self) -> bool:
        """Return whether anybody decided about the rows at all."""
        return bool((self.verdict != NONE).any())


def _reading(
    basis: str, table: Table, n: Floats, score: Floats, neg: Floats, pos: Floats, sums: Floats, reason: str, groups: Floats | None
) -> Reading:
    """Return the cells with rows; `score` are sums, `sums` those of TOTALS over the rows read."""
    keep = n > 0
    return Reading(
        basis,
        table.cells["bin"][keep].astype(np.int64),
        table.cells["verdict"][keep],
        n[keep],
        score[keep] / n[keep],
        neg[keep],
        pos[keep],
        (float(sums[2]), float(sums[3])),
        float(sums[4]),
        reason,
        reason,
        groups=groups,
    )


def scored(table: Table) -> Reading:
    """Return all rows, no outcomes."""
    c = table.cells
    n, score = c["n_none"].astype(np.float64) + c["n_neg"] + c["n_pos"], c["p_none"] + c["p_lab"]
    if table.weights is not None:
        n, score = n + table.weights["out"], score + table.weights["p_out"]
    zero = np.zeros(len(n))
    groups = None
    if table.groups is not None:
        # The groups do not know the rows that did not wait.
        every = table.groups.sum(axis=1) * (np.nan if table.out else 1.0)
        groups = np.stack((every, np.zeros_like(every)), axis=1)
    return _reading("scored", table, n, score, zero, zero, table.totals.sum(axis=0), "" if len(n) else "no_events", groups)


def known(table: Table) -> Reading:
    """Return the rows whose label is in, whatever the age of their day, as they are."""
    c = table.cells
    neg, pos = c["n_neg"].astype(np.float64), c["n_pos"].astype(np.float64)
    reason = "no_events" if not len(c) else "" if table.labelled else "no_labels"
    groups = None if table.groups is None else table.groups[:, 1:]
    return _reading("known", table, neg + pos, c["p_lab"].copy(), neg, pos, table.totals[1:].sum(axis=0), reason, groups)


def mature(table: Table, rules: tuple[LabelRule, ...]) -> Reading:
    """Return the outcomes of mature days; `rules` say by verdict what no label at the horizon means.

    Where not every row waits or not every label is looked for, a row counts 1 / P(its label is seen) (Horvitz and Thompson,
    JASA 47 (1952), 663-685), with the variance sum w**2: that of the population the rows come from. (sum w**2 - w would be
    that of the rows around the outcomes they really had.) Losses are then read off the mean scores of the cells.
    """
    c = table.cells
    if not len(c):
        zero = np.zeros(0)
        return _reading("mature", table, zero, zero, zero, zero, np.zeros(5), "no_mature_days", None)
    verdict = c["verdict"]
    counts = ~_never(rules)[verdict]
    use = np.stack((counts & _negative(table, rules)[verdict], counts, counts))
    rows = _kinds(c, "n_")
    none, neg, pos = used = rows * use
    taken = [_taken(*pair) for pair in zip(used.sum(axis=1), (rows[0].sum() + table.out, *rows[1:].sum(axis=1)), strict=True)]
    sums = (np.array(taken)[:, None] * table.totals).sum(axis=0)
    groups = None if table.groups is None else _outcome_groups(table.groups, used, rows, _ROLE[verdict])
    score = c["p_none"] * use[0] + c["p_lab"] * use[1]
    flagged_reason, reason = _reasons(table, rules)
    reading = _reading("mature", table, none + neg + pos, score, none + neg, pos, sums, reason, groups)
    reading = replace(reading, flagged_reason=flagged_reason)
    if table.weights is not None:
        w, w2 = _kinds(table.weights, "w_") * use, _kinds(table.weights, "w2_") * use
        if (w != used).any() or (w2 != w).any():
            return _weighted(reading, w[:, used.any(axis=0)], w2[:, used.any(axis=0)])
    return reading if np.isfinite(sums).all() else with_losses(reading)


def judged(table: Table, rules: tuple[LabelRule, ...]) -> Reading:
    """Return a mature reading for what asks only how right scores are.

    Where outcomes are prevented, those that are there are right given the score, which is enough for that.
    """
    found = mature(table, rules)
    return replace(found, reason="") if found.reason == "prevented" else found


def _kinds(records: NDArray[Any], name: str) -> Floats:
    """Return a column of rows without label, negatives and positives, shape (3, cells)."""
    return np.stack([records[name + kind] for kind in ("none", "neg", "pos")]).astype(np.float64)


def _taken(used: float, there: float) -> float:
    """Return 1 where all rows were used, 0 where none was, and NaN where some were: then a sum over all says nothing."""
    return 1.0 if used == there else 0.0 if used == 0 else np.nan


def _outcome_groups(groups: Floats, used: Floats, rows: Floats, role: NDArray[np.int64]) -> Floats:
    """Return the sums by cluster group of the negatives and positives read, shape (64, 2, 6).

    The groups do not know verdicts, only whether they flag: a column is NaN when its rows do not all count alike. `rows` are
    those of each kind and cell, `used` those of them that count.
    """
    factor = np.empty((3, 6))
    for kind in range(3):
        for r in range(3):
            factor[kind, r] = _taken(used[kind, role == r].sum(), rows[kind, role == r].sum())
        factor[kind, 3:] = _taken(used[kind].sum(), rows[kind].sum())
    none, neg, pos = np.moveaxis(groups * factor, 1, 0)
    return np.stack((none + neg, pos), axis=1)


def _weighted(reading: Reading, w: Floats, w2: Floats) -> Reading:
    """Return the reading with the sums of the weights of its kinds of rows, (3, cells), and of their squares for counts."""
    keep = w.sum(axis=0) > 0
    none, neg, pos = w[:, keep]
    neg2, pos2 = w2[0, keep] + w2[1, keep], w2[2, keep]
    # Scores of a cell are alike and so are its weights: this is the number of its positives that have one.
    seen = pos * pos / np.maximum(pos2, pos + (pos == 0))
    cells = {name: getattr(reading, name)[keep] for name in ("bin", "verdict", "score")}
    spread = np.stack((neg2, pos2, np.zeros(len(pos))))
    return with_losses(replace(reading, **cells, n=none + neg + pos, neg=none + neg, pos=pos, spread=spread, seen=seen))


def with_losses(reading: Reading) -> Reading:
    """Return the reading with losses from the mean scores of its cells."""
    p, q = reading.score, 1.0 - reading.score
    yes = np.ones(len(p), bool)
    brier = reading.pos @ (q * q) + reading.neg @ (p * p)
    log_loss = reading.pos @ log_losses(p, yes) + reading.neg @ log_losses(p, ~yes)
    return replace(reading, losses=(float(brier), float(log_loss)), clipped=float(reading.n[(p < TINY) | (q < TINY)].sum()))


def coverage(table: Table, rules: tuple[LabelRule, ...]) -> float | None:
    """Return the share of the labels to be expected that came, above 1 when more did; None where none is expected.

    Only a row that waits and whose missing label means nothing must get one: where `missing` is negative most labels never
    come, and a prevented outcome has none.
    """
    asked = ~_negative(table, rules) & ~_never(rules)
    weights = weights_of(table)[asked[table.cells["verdict"]]]
    expected = float(weights["expected"].sum())
    return float(weights["covered"].sum()) / expected if expected else None


def _reasons(table: Table, rules: tuple[LabelRule, ...]) -> tuple[str, str]:
    """Return why outcomes of the flagged rows and those of all rows mean nothing: no_labels, unidentified or prevented.

    The flagged rows and the rest are judged apart, because their labels come in different ways; the worse reason is that of
    all rows. A part is identified when .8 of the labels came that were to be expected, or when they did of all rows and it
    misses that by chance, at most three standard deviations.
    """
    verdict, weights = table.cells["verdict"], weights_of(table)
    there = np.bincount(verdict, minlength=len(rules)) > 0
    covered, expected = (np.bincount(verdict, weights[name], len(rules)) for name in ("covered", "expected"))
    labelled = np.bincount(verdict, table.cells["n_neg"].astype(np.float64) + table.cells["n_pos"], len(rules))
    never = there & _never(rules)
    negative = there & ~never & _negative(table, rules)
    unknown = there & ~never & ~negative
    nothing = not negative.any() and not labelled[unknown].any()
    enough = covered[unknown].sum() >= _ENOUGH * expected[unknown].sum()
    parts = []
    for part in (FLAGGED, ~FLAGGED):
        came, asked = covered[part & unknown].sum(), expected[part & unknown].sum()
        chance = 3 * math.sqrt(_ENOUGH * (1 - _ENOUGH) * asked) if enough else 0.0
        if (part & unknown).any() and (came == 0 or came < _ENOUGH * asked - chance):
            parts.append("no_labels" if nothing else "unidentified")
        else:
            parts.append("prevented" if (part & never).any() else "")
    return parts[0], next((r for r in ("no_labels", "unidentified", "prevented") if r in parts), "")


def _never(rules: Sequence[LabelRule]) -> Bools:
    """Return which verdicts prevent the outcome."""
    return np.array([rule.never for rule in rules])


def _negative(table: Table, rules: Sequence[LabelRule]) -> Bools:
    """Return for which verdicts no label means negative, so that every row that is not positive is negative.

    A `label_prob` says that a row without label was not looked at, whatever `missing` says: no label means nothing where all
    unlabelled rows have one, or where labels bring one of their own and so stand for unlabelled rows like theirs.
    """
    mask: Bools = np.array([rule.missing == "negative" for rule in rules])
    if table.weights is None:
        return mask
    c, w = table.cells, table.weights
    columns = c["n_none"], w["w_none"], c["n_neg"].astype(np.float64) + c["n_pos"], w["covered"]
    rows, counting, labels, covered = (np.bincount(c["verdict"], x, len(VERDICTS)) for x in columns)
    # A label covers one row, or 1 / label_prob of them when only it says so.
    mask &= ((counting > 0) | (rows == 0)) & (covered <= labels * (1 + 1e-9))
    return mask


def complete_enough(table: Table, completeness: Completeness, rules: Sequence[LabelRule]) -> bool:
    """Return whether a nowcast may read a day: .3 of the labels of each class and verdict that has labels are in.

    Not a day with labels of which no delay was counted, as with a horizon of 0: nobody knows how many are to come.
    """
    c = table.cells
    counts = np.zeros((2, len(VERDICTS)), bool)
    counts[:, c["verdict"]] = True
    counts[:, _never(rules)] = False
    counts[0, _negative(table, rules)] = False
    labels = np.stack([np.bincount(c["verdict"], c[name], len(VERDICTS)) for name in ("n_neg", "n_pos")])
    unknown = np.isnan(completeness.f) & (labels > 0)
    return not bool(((completeness.f < _COMPLETE) | unknown)[counts].any())


def nowcast(days: Sequence[tuple[Table, Completeness]], rules: Sequence[LabelRule]) -> Reading:
    """Return what the outcomes of days that are not mature will be: pairs of a table and its completeness, a rule per verdict.

    A label seen stands for 1 / F of them, F the completeness of its class and verdict. Where no label means negative, the
    negatives are the rows less the positives; in one cell that can be below 0, what counts is sums. Only days that are
    `complete_enough` are read, and only when their labels are worth 50 of weight one, (sum w)**2 / sum w**2.

    `spread` holds sums of w**2 and the error of F. Errors of one curve add up over days and cells before they are squared, so
    the variance of their sum is shared out among the cells by size. All of it is about what such days are expected to show,
    a little more than how far off these days will turn out. Höhle and an der Heiden, Biometrics 70 (2014), 993-1002.
    """
    shown = [(t, c) for t, c in days if len(t.cells) and complete_enough(t, c, rules)]
    if not shown:
        return _not_shown("incomplete" if any(len(t.cells) for t, _ in days) else "no_events")
    cells = np.concatenate([t.cells for t, _ in shown])
    w = np.concatenate([weights_of(t) for t, _ in shown])
    f, sd, curve = (
        np.concatenate([getattr(c, name)[:, t.cells["verdict"]] for t, c in shown], axis=1) for name in ("f", "sd", "curve")
    )
    never = _never(rules)[cells["verdict"]]
    negative = np.concatenate([_negative(t, rules)[t.cells["verdict"]] for t, _ in shown])
    rest = negative & ~never
    # Where no label of the kind was ever seen there is nothing to raise, and F is not a number.
    raise_by = np.where(never, 0.0, np.where(f > 0, 1.0 / np.where(f > 0, f, 1.0), 1.0))
    found = _raised(w, raise_by, rest, sd, curve)
    if found is None:
        return _not_shown("incomplete")
    flagged_reason, reason = _to_be_missed(cells["verdict"], w, found[0] + found[1], never, ~negative & ~never)
    rows = cells["n_none"].astype(np.float64) + cells["n_neg"] + cells["n_pos"]
    # Not n_pos: labels without a weight, of rows that the audit passed over, are not what the positives were raised from.
    positives = w["w_pos"] ** 2 / np.where(w["w2_pos"] > 0, w["w2_pos"], 1.0)
    columns = (*found, positives, rows, cells["p_none"] + cells["p_lab"])
    key, inverse = np.unique(cells["bin"].astype(np.int64) << 3 | cells["verdict"], return_inverse=True)
    sums = np.stack([np.bincount(inverse, column, len(key)) for column in columns])
    keep = sums[0] + sums[1] > 0
    key, (neg, pos, neg2, pos2, cov, seen, rows, p) = key[keep], sums[:, keep]
    clustered = any(t.groups is not None for t, _ in shown)
    reading = Reading(
        "nowcast",
        key >> 3,
        (key & 7).astype(np.uint8),
        neg + pos,
        p / rows,
        neg,
        pos,
        (0.0, 0.0),
        0.0,
        reason,
        flagged_reason,
        np.stack((neg2, pos2, cov)),
        seen,
        # Cluster groups do not know days, so nothing of them can be raised.
        np.full((GROUPS, 2, len(GROUP_COLUMNS)), np.nan) if clustered else None,
    )
    return with_losses(reading)


def _raised(w: NDArray[Any], raise_by: Floats, rest: Bools, sd: Floats, curve: Ints) -> Floats | None:
    """Return negatives, positives, their variances and covariance by cell, shape (5, cells); None when they rest on too little.

    `w` are weights (WEIGHT) by cell, `raise_by` 1 / F, `sd` the standard error of ln F and `curve` the curve it comes from,
    shape (2, cells) by class; `rest` says where negatives are the rows that are not positive.
    """
    outcomes = raise_by * (w["w_neg"], w["w_pos"])
    squares = raise_by**2 * (w["w2_neg"], w["w2_pos"])
    outcomes[0, rest] = squares[0, rest] = 0.0
    if not outcomes.any() or outcomes.sum() ** 2 < _EFFECTIVE * squares.sum():
        return None
    error = np.nan_to_num(sd) * outcomes
    curve = np.maximum(curve, 0)
    error *= np.bincount(curve.ravel(), error.ravel())[curve]
    (neg, pos), (neg2, pos2), (_, r) = outcomes, squares + error, raise_by
    # A positive seen adds r to the positives and takes r - 1 from the other rows of its cell.
    neg = np.where(rest, w["w_none"] + w["w_neg"] + w["w_pos"] - pos, neg)
    neg2 = np.where(rest, w["w2_none"] + w["w2_neg"] + w["w2_pos"] * (r - 1.0) ** 2 + error[1], neg2)
    cov = np.where(rest, -w["w2_pos"] * r * (r - 1.0) - error[1], 0.0)
    return np.stack((neg, pos, neg2, pos2, cov))


def _not_shown(reason: str) -> Reading:
    """Return a nowcast of nothing."""
    return replace(scored(EMPTY), basis="nowcast", reason=reason, flagged_reason=reason)


def _to_be_missed(verdict: NDArray[np.uint8], w: NDArray[Any], n: Floats, never: Bools, unknown: Bools) -> tuple[str, str]:
    """Return why outcomes of the flagged rows and those of all rows mean nothing: unidentified, prevented or an empty text.

    By cell: `w` are weights (WEIGHT), `n` the weights of all labels to come, `never` and `unknown` what no label means;
    coverage grows by as much as the labels do.
    """
    seen = w["w_neg"] + w["w_pos"]
    covered = w["covered"] * n / np.where(seen > 0, seen, 1.0)

    def reason(part: Bools) -> str:
        judged = part & unknown
        few = covered[judged].sum() < _ENOUGH * w["expected"][judged].sum()
        return "unidentified" if few else "prevented" if (part & never).any() else ""

    parts = reason(FLAGGED[verdict]), reason(~FLAGGED[verdict])
    return parts[0], next((r for r in ("unidentified", "prevented") if r in parts), "")


def promised(table: Table) -> Classes:
    """Return how the scores of both classes are spread in validation outcomes."""
    r = known(table)
    return classes(r.bin, r.neg, r.pos)


def estimated(live: Reading, validation: Classes, found: Quantified | str) -> Reading:
    """Return scored rows with their probabilities for outcomes, once these are corrected for the prevalence that was `found`.

    It holds where scores were right in the validation and only prevalence changed since; where something else is seen to have
    changed the reason is `label_shift_rejected`. Of outcomes that
    scores imply calibration has no error, so only shares of decisions may be measured. `spread` is the variance of outcomes
    around their probabilities and the error of the prevalence, which all rows share: its square is shared out among the cells
    by size, as in `nowcast`.
    """
    reason = found if isinstance(found, str) else "" if found.fits else "label_shift_rejected"
    if isinstance(found, str) or reason:
        return replace(live, basis="estimated", reason=reason, flagged_reason=reason)
    # At the ends a logit is infinite; half a row more is within what is known of it.
    now = min(max(found.value, _HALF / found.n), 1 - _HALF / found.n)
    p = corrected(live.score, validation.prevalence, now)
    pos, variance = live.n * p, live.n * p * (1 - p)
    error = variance * math.sqrt(found.variance) / (now * (1 - now))
    spread = variance + error * error.sum()
    # Cluster groups do not know scores by cell, so nothing of them can be corrected.
    groups = None if live.groups is None else np.full_like(live.groups, np.nan)
    both = np.stack((spread, spread, -spread))
    return replace(live, basis="estimated", score=p, neg=live.n - pos, pos=pos, spread=both, groups=groups)


def baseline(tables: Mapping[str, Table], policy: Policy | None, name: str = "all") -> Reading:
    """Return the validation outcomes of a slice as the policy would have decided: a new one changes the promise, too."""
    return replace(decided(tables, policy, name, known), basis="baseline", groups=None)


def decided(tables: Mapping[str, Table], policy: Policy | None, name: str, read: Callable[[Table], Reading]) -> Reading:
    """Return a slice of tables by slice, which `read` makes a reading of, as the policy would have decided.

    In `all` the rows of a slice with a threshold of its own are moved from the verdicts of `all` to theirs. What rows of another
    segment than that of these slices would get cannot be told: nobody decided.
    """
    reading = read(tables[name])
    if policy is None:
        return replace(reading, verdict=np.full(len(reading.bin), NONE, np.uint8))
    own = [part for part in policy.bands if part != "all"]
    if name != "all" and own and name.partition("=")[0] != own[0].partition("=")[0]:
        return replace(reading, verdict=np.full(len(reading.bin), NONE, np.uint8))
    reading = _under(policy, name, reading)
    return _moved(reading, policy, {part: read(tables[part]) for part in own if part in tables}) if name == "all" else reading


def _under(policy: Policy, name: str, reading: Reading) -> Reading:
    """Return the reading with the verdicts of a slice."""
    return replace(reading, verdict=decide(policy.bands.get(name, policy.bands["all"]), EDGES[reading.bin]))


def _moved(whole: Reading, policy: Policy, parts: Mapping[str, Reading]) -> Reading:
    """Return all rows with those of some slices moved to the verdicts that these have."""
    cells = [(1.0, whole)]
    for name, part in parts.items():
        cells += [(-1.0, _under(policy, "all", part)), (1.0, _under(policy, name, part))]
    if len(cells) == 1:
        return whole
    key, at = np.unique(np.concatenate([r.bin << 3 | r.verdict for _, r in cells]), return_inverse=True)
    columns = np.concatenate([sign * np.stack((r.n, r.n * r.score, r.neg, r.pos)) for sign, r in cells], axis=1)
    sums = np.stack([np.bincount(at, column, len(key)) for column in columns])
    # Rows are counts, and what is left of a cell that was moved as a whole is how the last digits are rounded.
    keep = sums[0] > 0.5
    key, (n, score, neg, pos) = key[keep], sums[:, keep]
    bins, verdict = key >> 3, (key & 7).astype(np.uint8)
    return replace(whole, bin=bins, verdict=verdict, n=n, score=np.clip(score / n, 0.0, 1.0), neg=neg, pos=pos)


def honest(reading: Reading, intercept: float = 0.0, slope: float = 0.0) -> Reading:
    """Return the rows with the outcomes that their scores say, their logits z moved by intercept + slope z."""
    z = logit(reading.score)
    pos = reading.n * expit(z + intercept + slope * z)
    return replace(reading, neg=reading.n - pos, pos=pos)
