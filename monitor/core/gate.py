"""The gate: whether another calibrator does better on whole days that it was not fitted to."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from monitor.core.calibrators import CANDIDATES, fit
from monitor.core.compare import losses
from monitor.core.days import iso
from monitor.core.events import DAY, Bools, Floats, Ints
from monitor.core.intervals import LEVEL, Measured, bartlett, chi_square_tail, delong, quantile, student, whole
from monitor.core.metrics import calibration
from monitor.core.metrics.calibration import calibration_edges, design_effect
from monitor.core.metrics.confusion import errors, high_confidence_error_share
from monitor.core.metrics.counts import mean_of, rows, size
from monitor.core.metrics.fit import offset
from monitor.core.metrics.multiclass import benjamini_hochberg
from monitor.core.policy import IDENTITY, Calibrator, apply
from monitor.core.readings import LabelRule, Reading, judged, mature, with_losses
from monitor.core.reasons import REASONS
from monitor.core.tables import GROUP_COLUMNS, GROUPS, Table, grid_bin, total

BLOCKS = 5
DISPERSION, BY_CHANCE = 1.5, 0.01
"""Days that differ by more than so many times what chance makes them differ by, and not by chance, are drawn, and not rows."""
SLICE_POSITIVES, SLICE_LEVEL = 30, 0.05
"""A slice with fewer positives is not asked; of those that are called worse at most a share of SLICE_LEVEL are not."""
AUC_LOST, AUC_LOST_BY_TIES = 1e-3, 5e-3
TIES = ("histogram", "isotonic")
"""Kinds that serve one score for many, and so may lose a little of the ranking."""

CHECKS = {
    "log_loss": "no_improvement",
    "newest_block": "newest_worse",
    "brier": "brier_worse",
    "squared_calibration_error": "calibration_not_better",
    "slices": "slice_worse",
    "roc_auc": "auc_changed",
    "high_confidence_error_share": "confidence_worse",
}
"""What a candidate is held to, and the reason when it fails; the first that fails is the reason of the report."""

Days = Mapping[int, Mapping[str, Table]]
Figures = Mapping[str, Measured | str]


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much a mean loss is higher with other scores, so below 0 where they are better, and its 95 % interval.

    `dispersion` is how much days differ over what chance makes them differ by; None where nothing differs.
    """

    value: float
    low: float
    high: float
    dispersion: float | None

    @property
    def error(self) -> float:
        """Return the standard error, of few days a little more, so that the normal quantile gives the interval."""
        return (self.high - self.value) / quantile(LEVEL)


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate: its difference in log loss to the current calibrator on held-out days, or the reason why it was not tried."""

    kind: str
    reason: str
    log_loss: Difference | None


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: what was found under the current and the tested calibrator, and the `reason` where it does not hold.

    `difference` is after less before, `low` and `high` its interval where the condition is about one, `limit` what was compared
    with and `about` the slice that it is about.
    """

    name: str
    reason: str
    before: float | None
    after: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    about: str = "all"


@dataclass(frozen=True, slots=True)
class Slice:
    """The log loss of a slice with enough positives before and after, and the adjusted p-value that it is not worse."""

    positives: int
    before: float
    after: float
    difference: Difference
    p: float


@dataclass(frozen=True, slots=True)
class Block:
    """Whole days that are held out together."""

    first_day: str
    last_day: str
    days: int
    rows: int
    positives: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a trial found. `reason` is `accepted` or why the current calibrator stays, a code of `reasons`.

    `calibrator` is the candidate that the checks are about, fitted to all days, accepted or not; None where no fit was found.
    `before` and `after` are metrics on the held-out days, of what the current calibrator serves and of what the candidate does
    that was fitted to the other days. Of weighted rows, rows and positives are the effective numbers.
    """

    reason: str
    current: Calibrator
    rows: int
    positives: int
    calibrator: Calibrator | None = None
    blocks: tuple[Block, ...] = ()
    candidates: tuple[Tried, ...] = ()
    checks: tuple[Check, ...] = ()
    slices: Mapping[str, Slice] = field(default_factory=dict)
    before: Figures = field(default_factory=dict)
    after: Figures = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON, with the sentence of its reason."""
        sides = {name: {k: _figure(m) for k, m in getattr(self, name).items()} for name in ("before", "after")}
        return asdict(self) | sides | {"sentence": REASONS[self.reason]}


def _figure(found: Measured | str) -> dict[str, Any]:
    return {"value": None, "reason": found} if isinstance(found, str) else found._asdict()


def lines(report: Mapping[str, Any]) -> list[str]:
    """Return for people what `Report.to_dict` says: candidates, then every check with both figures and whether it holds."""
    out = [report["sentence"], f"{report['rows']:,} rows with an outcome, {report['positives']:,} positive"]
    if report["blocks"]:
        out[1] += (
            f", in {BLOCKS} blocks of whole days from {report['blocks'][0]['first_day']} to {report['blocks'][-1]['last_day']}"
        )
    for t in report["candidates"]:
        out.append(f"  {t['kind']:<12} " + (REASONS[t["reason"]] if t["reason"] else f"log loss {_gap(t['log_loss'], 'value')}"))
    if report["checks"]:
        out.append(
            f"On held-out days, the current calibrator ({report['current']['kind']}) and the simplest that is as good as any:"
        )
    for c in report["checks"]:
        name = c["name"] + ("" if c["about"] == "all" else f" of {c['about']}")
        sides = " -> ".join("–" if c[side] is None else f"{c[side]:.5f}" for side in ("before", "after"))
        # More errors than before are no failure where the tested scores say so themselves.
        claimed = f" ({c['limit']:.5f} claimed)" if c["name"] == "high_confidence_error_share" and c["limit"] is not None else ""
        out.append(f"  {'fails' if c['reason'] else 'holds'} {name:<30} {sides} {_gap(c, 'difference')}".rstrip() + claimed)
    if report["calibrator"] is not None:
        out.append(f"Fitted to all days: {json.dumps(report['calibrator'])}")
    return out


def _gap(found: Mapping[str, Any], name: str) -> str:
    """Return a difference and its interval, where it has one."""
    if found[name] is None:
        return ""
    return f"{found[name]:+.5f}" + ("" if found["low"] is None else f" [{found['low']:+.5f}, {found['high']:+.5f}]")


class Cells(NamedTuple):
    """The cells of many days as one reading that is not sorted, and the day and the block of each of them."""

    reading: Reading
    day: Ints
    block: Ints

    def served(self, maps: Sequence[Calibrator]) -> Floats:
        """Return what is served for each cell, by the map of its block."""
        out = self.reading.score.copy()
        for k, calibrator in enumerate(maps):
            mine = self.block == k
            out[mine] = apply(calibrator, out[mine])
        return out

    def by_day(self, values: Floats) -> Floats:
        """Return the sum of each day."""
        found: Floats = np.bincount(self.day, values).astype(np.float64)
        return found

    def part(self, mask: Bools) -> "Cells":
        """Return some of the cells."""
        return Cells(_take(self.reading, mask), self.day[mask], self.block[mask])


def _take(reading: Reading, which: Bools | Ints) -> Reading:
    """Return the reading of some cells or of all of them in another order."""
    arrays = {name: getattr(reading, name)[which] for name in ("bin", "verdict", "n", "score", "neg", "pos", "seen")}
    return replace(reading, spread=None if reading.spread is None else reading.spread[:, which], **arrays)


def _spread(reading: Reading) -> Floats:
    """Return the variances of outcomes, which are the counts where rows are not weighted."""
    return np.stack((reading.neg, reading.pos, np.zeros(len(reading.n)))) if reading.spread is None else reading.spread


def cells_of(readings: Sequence[Reading], block: Ints) -> Cells:
    """Return the cells of the readings of days; `block` says in which one each day is."""
    names = ("bin", "verdict", "n", "score", "neg", "pos")
    columns: dict[str, Any] = {name: np.concatenate([getattr(r, name) for r in readings]) for name in names}
    weighted = any(r.spread is not None for r in readings)
    spread = np.concatenate([_spread(r) for r in readings], axis=1) if weighted else None
    seen = np.concatenate([r.pos if r.seen is None else r.seen for r in readings])
    # Groups know nothing of scores that were not served, so intervals of these cannot be told.
    clustered = any(r.groups is not None for r in readings)
    groups = np.full((GROUPS, 2, len(GROUP_COLUMNS)), np.nan) if clustered else None
    day = np.repeat(np.arange(len(readings)), [len(r.n) for r in readings])
    found = Reading("mature", losses=(0.0, 0.0), clipped=0.0, spread=spread, seen=seen, groups=groups, **columns)
    return Cells(found, day, block[day])


def blocks(weight: Floats) -> Ints:
    """Return the block of each of five days or more: contiguous days with about equal weight, one at least in each block.

    >>> blocks(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.0])).tolist()
    [0, 0, 1, 1, 2, 3, 4]
    """
    ends, cuts = np.cumsum(weight), np.arange(1, BLOCKS)
    at = np.abs(ends[:, None] - ends[-1] * cuts / BLOCKS).argmin(axis=0) + 1
    at = np.clip(np.maximum.accumulate(at - cuts), 0, len(weight) - BLOCKS) + cuts
    return np.searchsorted(at, np.arange(len(weight)), side="right").astype(np.int64)


def difference(cells: Cells, gap: Floats, effect: float = 1.0) -> Difference:
    """Return the mean over rows of what negatives and positives of a cell lose more, shape (2, cells), and its interval.

    D_d are the sums over the n_d rows of a day and V_d their variances within days, times the design `effect` of clusters; D, n
    and V the sums over days. Were rows all there is to chance, the mean D / n had the variance V / n**2. How much days disperse
    beyond that is sum_d (D_d - n_d D / n)**2 / V, times days / (days - 1). Where it is above DISPERSION, and above what chance
    gives in one of a hundred trials, the variance is the long-run one of the daily residuals, which a bootstrap of blocks of
    three days has in the limit (Kuensch, Annals of Statistics 17 (1989), 1217-1241), with the quantile of Student's t.
    """
    r = cells.reading
    n, sums = cells.by_day(r.n), cells.by_day(r.neg * gap[0] + r.pos * gap[1])
    b, a = gap - (sums / np.where(n > 0, n, 1.0))[cells.day]
    neg2, pos2, both = _spread(r)
    variance = effect * max(0.0, float(pos2 @ (a * a) + neg2 @ (b * b) + 2 * (both @ (a * b))))
    mean, days, times, dispersion = float(sums.sum() / n.sum()), int((n > 0).sum()), quantile(LEVEL), None
    rest = sums - n * mean
    if variance > 0 and days > 1:
        # Sums are compared: a day with few rows and no positive seems to have hardly any variance.
        dispersion = float(rest @ rest) / variance * days / (days - 1)
        if dispersion > DISPERSION and chi_square_tail((days - 1) * dispersion, days - 1) < BY_CHANCE:
            variance, times = max(variance, float(bartlett(rest)) * days / (days - 1)), student(days - 1)
    half = times * math.sqrt(variance) / float(n.sum())
    return Difference(mean, mean - half, mean + half, dispersion)


class _Held(NamedTuple):
    """A candidate with a fit for each block to the days outside of it: these maps, what they lose by cell, and the difference."""

    kind: str
    maps: Sequence[Calibrator]
    losses: Floats
    difference: Difference

    @property
    def parameters(self) -> int:
        """Return how many numbers are in a map."""
        return sum(np.size(x) for name, x in self.maps[0].items() if name != "kind")


class _Now(NamedTuple):
    """What the candidates are compared on: cells of all days, what the current calibrator loses there, the effect of clusters."""

    cells: Cells
    maps: Sequence[Calibrator]
    losses: Floats
    effect: float


def trial(days: Days, rules: tuple[LabelRule, ...], current: Calibrator, kinds: Sequence[str] = tuple(CANDIDATES)) -> Report:
    """Return whether a calibrator should take the place of the current one, with every figure that it rests on.

    `days` are tables of the model's scores of mature days by slice. Those with outcomes that mean something make five contiguous
    blocks with about equal rows, each of which is served by fits to the others. Of these `kinds` (and of identity, where that is
    not the current one) the simplest is taken that is within one standard error of the best pooled log loss, and held to all
    CHECKS.
    """
    tables = {d: t["all"] for d, t in sorted(days.items()) if "all" in t}
    daily = {d: r for d, t in tables.items() if not (r := judged(t, rules)).reason}
    used = [tables[d] for d in daily or tables]
    everything = judged(total(used), rules)
    report = Report("", dict(current), whole(size(everything)), _positives(everything))
    effect = _no_trial(everything, len(daily)) or design_effect(everything)
    if isinstance(effect, str):
        return replace(report, reason=effect)
    block = blocks(np.array([r.n.sum() for r in daily.values()]))
    cells = cells_of(list(daily.values()), block)
    now = _Now(cells, [current] * BLOCKS, losses(apply(current, cells.reading.score)), effect)
    fits = {kind: _fits(kind, rest) for rest in [_rests(used, block, rules)] for kind in kinds}
    if report.current != IDENTITY:
        fits = {"identity": [IDENTITY] * BLOCKS, **fits}
    held = [_held(now, kind, maps) for kind, maps in fits.items() if not isinstance(maps, str)]
    shown = {h.kind: Tried(h.kind, "", h.difference) for h in held}
    tried = tuple(Tried(kind, maps, None) if isinstance(maps, str) else shown[kind] for kind, maps in fits.items())
    report = replace(report, blocks=_described(daily, block), candidates=tried)
    if not held:
        return replace(report, reason=tried[0].reason)
    chosen = _simplest(now, held)
    made = IDENTITY if chosen.kind == "identity" else fit(chosen.kind, everything)
    slices = _slices(now, chosen, days, dict(zip(daily, block.tolist(), strict=True)), rules)
    before, after = _figures(cells, now.maps), _figures(cells, chosen.maps)
    checks = _checks(now, chosen, before, after, slices)
    report = replace(report, checks=checks, slices=slices, before=before, after=after)
    if isinstance(made, str):
        return replace(report, reason=made)
    return replace(report, calibrator=made, reason=next((c.reason for c in checks if c.reason), "accepted"))


def _positives(reading: Reading) -> int:
    """Return the number of positives, of weighted ones those that were seen."""
    return whole(float((reading.pos if reading.seen is None else reading.seen).sum()))


def _no_trial(reading: Reading, days: int) -> str:
    """Return why nothing can be tried on the reading of so many days, or an empty text."""
    if reading.reason:
        return reading.reason
    if reading.clipped >= rows(reading):
        return "degenerate"
    return "few_blocks" if days < BLOCKS else ""


def _described(daily: Mapping[int, Reading], block: Ints) -> tuple[Block, ...]:
    """Return the blocks for people."""
    out = []
    for k in range(BLOCKS):
        mine = [x for x, b in zip(daily.items(), block.tolist(), strict=True) if b == k]
        first, last = (iso(day * DAY)[:10] for day, _ in (mine[0], mine[-1]))
        out.append(Block(first, last, len(mine), whole(sum(size(r) for _, r in mine)), sum(_positives(r) for _, r in mine)))
    return tuple(out)


def _rests(tables: Sequence[Table], block: Ints, rules: tuple[LabelRule, ...]) -> list[Reading]:
    """Return the reading of the days outside of each block."""
    parts = [total([t for t, b in zip(tables, block.tolist(), strict=True) if b == k]) for k in range(BLOCKS)]
    return [judged(total(parts[:k] + parts[k + 1 :]), rules) for k in range(BLOCKS)]


def _fits(kind: str, rests: Sequence[Reading]) -> list[Calibrator] | str:
    """Return the fit of a kind to each reading, or why one of them has none."""
    made = [fit(kind, rest) for rest in rests]
    return next((m for m in made if isinstance(m, str)), [m for m in made if not isinstance(m, str)])


def _held(now: _Now, kind: str, maps: Sequence[Calibrator]) -> _Held:
    lost = losses(now.cells.served(maps))
    return _Held(kind, maps, lost, difference(now.cells, lost[0] - now.losses[0], now.effect))


def _simplest(now: _Now, held: Sequence[_Held]) -> _Held:
    """Return the best of those with the fewest parameters that are within one standard error of the best log loss of all.

    The error is that of the difference of the two on the same rows.
    """
    best = min(held, key=lambda h: h.difference.value)
    for parameters in sorted({h.parameters for h in held}):
        first = min((h for h in held if h.parameters == parameters), key=lambda h: h.difference.value)
        behind = difference(now.cells, first.losses[0] - best.losses[0], now.effect)
        if behind.value <= behind.error:
            break
    return first


def _slices(now: _Now, chosen: _Held, days: Days, block: Mapping[int, int], rules: tuple[LabelRule, ...]) -> dict[str, Slice]:
    """Return what a candidate does to each slice with enough positives, p-values adjusted for their number."""
    found = {}
    for name in dict.fromkeys(name for d in block for name in days[d] if name != "all"):
        there = [(b, r) for d, b in block.items() if name in days[d] and len((r := mature(days[d][name], rules)).n)]
        positives = sum(_positives(r) for _, r in there)
        if positives < SLICE_POSITIVES:
            continue
        cells = cells_of([r for _, r in there], np.array([b for b, _ in there]))
        before, after = (losses(cells.served(maps))[0] for maps in (now.maps, chosen.maps))
        behind = difference(cells, after - before, now.effect)
        # P(N > z), where z is how many standard errors the slice is worse off.
        p = 0.5 * math.erfc(behind.value / behind.error / math.sqrt(2)) if behind.error else 1.0
        found[name] = Slice(positives, mean_of(cells.reading, before)[0], mean_of(cells.reading, after)[0], behind, p)
    adjusted = benjamini_hochberg([s.p for s in found.values()]) if found else []
    return {name: replace(s, p=p) for (name, s), p in zip(found.items(), adjusted, strict=True)}


def _figures(cells: Cells, maps: Sequence[Calibrator]) -> dict[str, Measured | str]:
    """Return metrics of what is served.

    Calibration errors are over at most 15 bins of equal mass of the model's scores, which hold the same rows whatever is served.
    """
    served = cells.served(maps)
    scored = replace(cells.reading, score=served)
    same_rows = _take(scored, np.argsort(scored.bin, kind="stable"))
    bins = grid_bin(served)
    reading = with_losses(_take(replace(scored, bin=bins.astype(np.int64)), np.argsort(bins, kind="stable")))
    edges = calibration_edges(same_rows)
    return {
        "log_loss": calibration.log_loss(reading),
        "brier": calibration.brier(reading),
        "ece": calibration.ece(same_rows, edges),
        "squared_calibration_error": calibration.squared_calibration_error(same_rows, edges),
        "offset": offset(reading),
        "roc_auc": _auc(cells, served),
        "high_confidence_error_share": high_confidence_error_share(reading),
        "high_confidence_errors_promised": _promised(reading),
    }


def _auc(cells: Cells, score: Floats) -> Measured | str:
    """Return P(a positive scores higher than a negative of its block), as each block has a map of its own."""
    above = pairs = 0.0
    for k in range(BLOCKS):
        mine = cells.block == k
        _, at = np.unique(score[mine], return_inverse=True)
        neg, pos = (np.bincount(at, x[mine]).astype(np.float64) for x in (cells.reading.neg, cells.reading.pos))
        if both := float(neg.sum() * pos.sum()):
            above, pairs = above + both * delong(neg, pos)[0], pairs + both
    return Measured(above / pairs, None, None, whole(size(cells.reading))) if pairs else "one_class"


def _promised(reading: Reading) -> Measured | str:
    """Return the share of errors that scores with a high confidence claim: the mean of 1 - max(p, 1 - p)."""
    high = errors(reading)[1]
    n, p = reading.n[high], reading.score[high]
    if not n.sum():
        return "no_high_confidence"
    return Measured(float(n @ np.minimum(p, 1.0 - p) / n.sum()), None, None, whole(float(n.sum())))


def _checks(now: _Now, chosen: _Held, before: Figures, after: Figures, slices: Mapping[str, Slice]) -> tuple[Check, ...]:
    """Return what the candidate is held to, in the order of CHECKS; slices only where one has enough positives."""
    gap, newest = chosen.losses - now.losses, now.cells.block == BLOCKS - 1
    whole_loss, brier = chosen.difference, difference(now.cells, gap[1], now.effect)
    part = now.cells.part(newest)
    last = difference(part, gap[0][:, newest], now.effect)
    old, new = (mean_of(part.reading, x[0][:, newest])[0] for x in (now.losses, chosen.losses))
    figures = {name: (_value(before[name]), _value(after[name])) for name in before}
    error, auc = (_between(*figures[name]) for name in ("squared_calibration_error", "roc_auc"))
    lost = AUC_LOST_BY_TIES if chosen.kind in TIES else AUC_LOST
    name, worst = min(slices.items(), key=lambda item: item[1].p, default=("", None))
    return (
        _check("log_loss", whole_loss.high < 0, *figures["log_loss"], whole_loss),
        # A block is short: by chance alone a better map is often a little worse there.
        _check("newest_block", last.value <= last.error, old, new, last, last.error),
        _check("brier", brier.value <= 0, *figures["brier"], brier),
        _check("squared_calibration_error", error is not None and error < 0, *figures["squared_calibration_error"]),
        *([_check("slices", worst.p >= SLICE_LEVEL, worst.before, worst.after, worst.difference, about=name)] if worst else []),
        _check("roc_auc", auc is None or auc >= -lost, *figures["roc_auc"], limit=-lost),
        _confidence(before, after),
    )


def _confidence(before: Figures, after: Figures) -> Check:
    """Return whether scores with a high confidence are not wrong more often than before, or not more often than they claim.

    Where scores were not confident enough, more of them are once they are right, and these are wrong more often, as they say.
    """
    name = "high_confidence_error_share"
    was, found = before[name], after[name]
    claimed = _value(after["high_confidence_errors_promised"])
    if isinstance(found, str) or claimed is None:
        return _check(name, True, _value(was), None)
    least = found.value if found.low is None else found.low
    good = least <= claimed or (not isinstance(was, str) and found.value <= was.value)
    return _check(name, good, _value(was), found.value, limit=claimed)


def _check(
    name: str,
    good: bool,
    before: float | None,
    after: float | None,
    found: Difference | None = None,
    limit: float = 0.0,
    about: str = "all",
) -> Check:
    low, high = (None, None) if found is None else (found.low, found.high)
    return Check(name, "" if good else CHECKS[name], before, after, _between(before, after), low, high, limit, about)


def _between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _value(found: Measured | str) -> float | None:
    return None if isinstance(found, str) else found.value
