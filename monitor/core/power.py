"""What can be seen when: days drawn from a baseline, changed in known ways, and how long detectors take to find that."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from monitor.core import detectors
from monitor.core.detectors import DETECTORS, EFFECTS, Evidence, Nulls
from monitor.core.events import FLAG, PASS, Bools, Floats, Ints
from monitor.core.readings import LabelRule
from monitor.core.reasons import REASONS
from monitor.core.tables import CELL, EDGES, TINY, TOTALS, Table, grid_bin, log_losses, total

WINDOW, ENDED, ROWS = 28, 7, 2_000
"""An effect is that of the last 28 days; of label-free detectors of seven, or as many more as it takes to hold so many rows."""
QUARTER = 91
_SHRINK = 3
"""Cells are 2**3 logit bins wide, as those that detectors read."""


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """What rows are drawn from: by cell its grid bin, its score, and the shares of all rows that are negative and positive."""

    bin: Ints
    score: Floats
    neg: Floats
    pos: Floats
    threshold: float

    @property
    def flagged(self) -> Bools:
        """Return which cells are flagged."""
        found: Bools = EDGES[self.bin] >= self.threshold
        return found

    @property
    def flagged_share(self) -> float:
        """Return the share of the rows that is flagged."""
        return float((self.neg + self.pos)[self.flagged].sum())

    @property
    def prevalence(self) -> float:
        """Return the share of positives."""
        return float(self.pos.sum())

    @property
    def recall(self) -> float:
        """Return the share of the positives that is flagged."""
        return float(self.pos[self.flagged].sum()) / self.prevalence


def _cells(score: Floats, threshold: float) -> Ints:
    """Return the cell of each score, as wide as those that detectors read and not cut by the threshold."""
    found: Ints = (grid_bin(score).astype(np.int64) >> _SHRINK) * 2 + (score >= threshold)
    return found


def _population(score: Floats, neg: Floats, pos: Floats, threshold: float) -> Population:
    """Return the population of weighted scores, put together in cells that a threshold does not cut."""
    unique, inverse = np.unique(_cells(score, threshold), return_inverse=True)
    n, s, y = (np.bincount(inverse, w, len(unique)) for w in (neg + pos, (neg + pos) * score, pos))
    mean = s / n
    return Population(grid_bin(mean).astype(np.int64), mean, (n - y) / n.sum(), y / n.sum(), threshold)


def calibrated(score: Floats, threshold: float) -> Population:
    """Return the population of scores that are the probabilities of the positive outcome, all equally likely."""
    return _population(score, 1.0 - score, score, threshold)


def normal(prevalence: float, separation: float, threshold: float) -> Population:
    """Return calibrated scores of x ~ N(0, 1) for negatives and N(`separation`, 1) for positives."""
    grid = (np.arange(4_000) + 0.5) / 4_000
    x = np.array([NormalDist().inv_cdf(u) for u in grid.tolist()])
    x = np.concatenate((x, x + separation))
    neg, pos = (1 - prevalence) * np.exp(-x * x / 2), prevalence * np.exp(-((x - separation) ** 2) / 2)
    score, weight = pos / (neg + pos), np.repeat((1 - prevalence, prevalence), len(grid))
    # Both classes were drawn by their own quantiles; given x the score says which of them a row is.
    return _population(score, weight * (1 - score), weight * score, threshold)


def observed(table: Table, threshold: float) -> Population:
    """Return the population that a table is a sample of; rows without label are as positive as those like them with one.

    Each cell is shrunk by one row that is as positive as its score says.
    """
    c = table.cells
    n, labelled = (c["n_none"].astype(np.float64) + c["n_neg"] + c["n_pos"], c["n_neg"].astype(np.float64) + c["n_pos"])
    score = np.clip((c["p_none"] + c["p_lab"]) / n, 0.0, 1.0)
    whole = _population(score, n, np.zeros(len(n)), threshold)
    key, wanted = _cells(score, threshold), _cells(whole.score, threshold)
    at = np.searchsorted(wanted, key)
    seen, hits = (np.bincount(at, x, len(wanted)) for x in (labelled, c["n_pos"]))
    rate = (hits + whole.score) / (seen + 1.0)
    return replace(whole, neg=whole.neg * (1 - rate), pos=whole.neg * rate)


# Changes.


def shifted(population: Population, offset: float, slope: float = 1.0) -> Population:
    """Return the same scores with the logit z of the outcome made c + `offset` + `slope` (z - c), c that of the prevalence."""
    share = population.neg + population.pos
    q = np.clip(population.pos / share, 1e-9, 1 - 1e-9)
    c = math.log(population.prevalence / (1 - population.prevalence))
    q = 1.0 / (1.0 + np.exp(-(c + offset + slope * (np.log(q / (1 - q)) - c))))
    return replace(population, neg=share * (1 - q), pos=share * q)


def more_positives(population: Population, factor: float) -> Population:
    """Return `factor` times as many positives, each class with the scores it had."""
    pi = population.prevalence
    return replace(population, pos=population.pos * factor, neg=population.neg * ((1 - factor * pi) / (1 - pi)))


def missed(population: Population, points: float) -> Population:
    """Return recall lower by `points`: as many more of the positives get the scores of those that are not flagged."""
    flagged, r = population.flagged, population.recall
    return replace(population, pos=population.pos * np.where(flagged, (r - points) / r, (1 - r + points) / (1 - r)))


def more_flagged(population: Population, factor: float) -> Population:
    """Return `factor` times as many flagged rows; outcomes given the score are what they were."""
    share = population.neg + population.pos
    flagged = population.flagged
    f = float(share[flagged].sum())
    weight = np.where(flagged, factor, (1 - factor * f) / (1 - f))
    return replace(population, neg=population.neg * weight, pos=population.pos * weight)


# Days.


def wander(days: int, sd: float, rho: float, rng: np.random.Generator) -> Floats:
    """Return day effects of standard deviation `sd`, each `rho` times the one before and something new."""
    out = rng.standard_normal(days) * sd
    for i in range(1, days):
        out[i] = rho * out[i - 1] + math.sqrt(1 - rho * rho) * out[i]
    return out


def tilted(population: Population, volume: float) -> Population:
    """Return the population with scores moved smoothly up or down so that the logit of the flagged share moves by `volume`."""
    share, flagged = population.neg + population.pos, population.flagged
    p = np.clip(population.score, TINY, 1 - TINY)
    z = np.log(p / (1 - p))
    f = share[flagged].sum()
    # The derivative of the logit of the flagged share by the tilt is the distance between the means of the two parts.
    slope = (share * z)[flagged].sum() / f - (share * z)[~flagged].sum() / (1 - f)
    weight = np.exp(volume / slope * (z - share @ z))
    weight /= share @ weight
    return replace(population, neg=population.neg * weight, pos=population.pos * weight)


def draw(population: Population, rows: int, times: int, rng: np.random.Generator) -> Ints:
    """Return the counts of `times` independent draws of `rows` rows, shape (times, 2, cells): negatives and positives."""
    mass = np.maximum(np.concatenate((population.neg, population.pos)), 0.0)
    return rng.multinomial(rows, mass / mass.sum(), times).reshape(times, 2, -1)


def table_of(population: Population, counts: NDArray[np.integer]) -> Table:
    """Return the table of counts of negatives and positives by cell, shape (2, cells), every row with its label."""
    n = counts.sum(axis=0)
    at = np.flatnonzero(n)
    cells = np.zeros(len(at), CELL)
    cells["bin"], cells["verdict"] = population.bin[at], np.where(population.flagged[at], FLAG, PASS)
    cells["n_neg"], cells["n_pos"] = counts[:, at]
    p = population.score[at]
    cells["p_lab"] = n[at] * p
    totals = np.zeros((3, len(TOTALS)))
    for kind, (k, y) in enumerate(zip(counts[:, at], (0.0, 1.0), strict=True), 1):
        totals[kind, :4] = k.sum(), k @ p, k @ (p - y) ** 2, k @ log_losses(p, np.full(len(p), y > 0))
    return Table(cells, totals)


def day(populations: Sequence[Population], rows: int, effect: float, volume: float, rng: np.random.Generator) -> dict[str, Table]:
    """Return the tables of one day of `rows` rows by slice: `all`, and one slice for each population when there are several.

    `effect` is what the logits of all outcomes are off on that day, `volume` what the logit of the flagged share is.
    """
    k, counts = len(populations), []
    for population in dict.fromkeys(populations):
        p = tilted(population, volume) if volume else population
        counts.append(draw(shifted(p, effect) if effect else p, rows // k, populations.count(population), rng))
    by_slice = np.concatenate(counts)
    out = {"all": table_of(populations[0], by_slice.sum(axis=0))}
    if k > 1:
        out |= {f"slice={i}": table_of(populations[0], c) for i, c in enumerate(by_slice)}
    return out


# Looking.


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """One detector as it follows a version: its evidence, the days its effect is about, and the slice it fires for, if any."""

    name: str
    nulls: Nulls
    rules: tuple[LabelRule, ...]
    limit: float
    evidence: Evidence | None = None
    recent: tuple[Mapping[str, Table], ...] = ()
    firing: str = ""


def watched(watch: Watch, number: int, tables: Mapping[str, Table]) -> Watch:
    """Return the watch after one more whole day: it fires on evidence and effect, and starts anew when the effect is small.

    As long as there is evidence, the effect is the largest of the slices that it comes from.
    """
    evidence = detectors.look(watch.name, watch.evidence, number, tables, watch.nulls, watch.rules, watch.limit)
    after = replace(watch, evidence=evidence, recent=(*watch.recent, tables)[-WINDOW:])
    enough = detectors.log_evidence(evidence) > watch.limit
    if not watch.firing and not enough:
        return after
    parts = [part for part, _ in detectors.shares(evidence)] if enough else ["all"]
    sizes = {part: size for part in parts if (size := _size(after, part)) is not None}
    if not sizes:
        return after
    large, small, _ = EFFECTS[watch.name]
    part = max(sizes, key=lambda name: sizes[name])
    if watch.firing and sizes[part] < small:
        return replace(after, firing="", evidence=None)
    return replace(after, firing=part if watch.firing or sizes[part] > large else "")


def _size(watch: Watch, part: str) -> float | None:
    """Return how far the last days of a slice are off to the side that counts, None where nobody knows."""
    days = watch.recent
    if DETECTORS[watch.name].basis == "scored":
        rows = np.array([tables["all"].n for tables in days])[::-1].cumsum()
        days = days[-max(ENDED, int(np.searchsorted(rows, ROWS)) + 1) :]
    window = total([tables[part] for tables in days if part in tables])
    found = detectors.effect(watch.name, window, watch.nulls, watch.rules, part)
    if isinstance(found, str):
        return None
    return {"down": -found.value, "up": found.value, "both": abs(found.value)}[EFFECTS[watch.name][2]]


# The plan.


@dataclass(frozen=True, slots=True)
class Change:
    """What may happen to a model, the detector that is to find it, and the population after it (None: it cannot happen)."""

    text: str
    detector: str
    make: Callable[[Population], Population | None]


def _missed(points: float) -> Change:
    def make(p: Population) -> Population | None:
        return missed(p, points) if p.prevalence and points < p.recall < 1 else None

    return Change(f"recall -{points * 100:.0f} points", "recall", make)


def _biased(offset: float) -> Change:
    return Change(f"bias {offset:+g} logit", "calibration", lambda p: shifted(p, offset) if 0 < p.prevalence < 1 else None)


CHANGES = (
    _missed(0.1),
    _missed(0.2),
    *(_biased(offset) for offset in (0.3, -0.3, 0.5, -0.5)),
    Change("flagged volume x 2", "flagged_share", lambda p: more_flagged(p, 2.0) if 0 < p.flagged_share < 0.5 else None),
)


@dataclass(frozen=True, slots=True)
class Sight:
    """How long a change takes to be found: `days` from its first day on with the wait for labels, `looks` without it.

    Both are None when it takes longer than a quarter of looks in half of the runs, or is not found for a `reason` of
    reasons.REASONS. `helps` is what would bring it under a quarter.
    """

    change: str
    detector: str
    days: float | None
    looks: int | None
    reason: str = ""
    helps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The first day with an outcome number, counted from the first one, and when changes are found. `runs` were simulated."""

    per_day: int
    first: float
    sights: tuple[Sight, ...]
    runs: int


HELPS = HORIZON, AUDIT, POOLED = "a shorter horizon for positives", "an audit sample", "pooled slices"
_RHO = 0.3
_LONG_RUN = 1 + 4 / 3 * _RHO + 2 / 3 * _RHO**2
"""Of day effects only the long-run variance is known; with the correlation _RHO it is the variance times this."""
_MOST_ROWS = 10**8
"""More rows a day than a cell can count in 28 days are as good as this many."""


def plan(
    population: Population,
    per_day: int,
    horizon: float,
    nulls: Nulls,
    rules: tuple[LabelRule, ...],
    limits: Mapping[str, float],
    rng: np.random.Generator,
    runs: int = 12,
) -> Plan:
    """Return when changes of the population are found, with `per_day` rows a day and outcomes after `horizon` days.

    `limits` are ln A by detector; one that is missing is switched off. Days are simulated for the slice `all`, with day
    effects of the long-run variance that `nulls` found.
    """
    effects = {name: math.sqrt(nulls.lr.get(name, 0.0) / _LONG_RUN) for name in ("calibration", "flagged_share")}
    sights = []
    for change in CHANGES:
        wait = horizon if DETECTORS[change.detector].basis == "mature" else 0.0
        reason = nulls.reasons.get(change.detector, "") or ("" if change.detector in limits else "rule_off")
        changed = change.make(population)
        if reason:
            sights.append(Sight(change.text, change.detector, None, None, reason))
        elif changed is not None:
            days = _Days((population, changed), min(per_day, _MOST_ROWS), effects["calibration"], effects["flagged_share"])
            watch = Watch(change.detector, nulls, rules, limits[change.detector])
            looks = _looks(watch, days, rng, runs)
            helps = () if looks and looks + wait <= QUARTER else tuple(_helps(watch, days, looks, wait, rng, runs))
            sights.append(Sight(change.text, change.detector, looks and looks + wait, looks, "", helps))
    return Plan(per_day, horizon + 1, tuple(sights), runs)


@dataclass(frozen=True, slots=True)
class _Days:
    """What days are drawn from before and after a change, and the standard deviations of their effects."""

    populations: tuple[Population, Population]
    rows: int
    sd: float
    volume: float


def _looks(watch: Watch, days: _Days, rng: np.random.Generator, runs: int) -> int | None:
    """Return the median number of changed days until the detector fires, None when that is more than a quarter."""
    found = sorted(_first(watch, days, rng) for _ in range(runs))
    middle = found[runs // 2]
    return middle if middle <= QUARTER else None


def _first(watch: Watch, days: _Days, rng: np.random.Generator) -> int:
    """Return how many changed days one run looks at before it fires, at most a quarter and one.

    What the effect is about begins as days without change; evidence begins with the change.
    """
    before, after = days.populations
    effects, volumes = (wander(WINDOW + QUARTER, sd, _RHO, rng).tolist() for sd in (days.sd, days.volume))
    drawn = (
        day([before if i < WINDOW else after], days.rows, effect, volume, rng)
        for i, (effect, volume) in enumerate(zip(effects, volumes, strict=True))
    )
    watch = replace(watch, recent=tuple(itertools.islice(drawn, WINDOW)))
    for looks, tables in enumerate(drawn, 1):
        watch = watched(watch, looks, tables)
        if watch.firing:
            return looks
    return QUARTER + 1


def _helps(watch: Watch, days: _Days, looks: int | None, wait: float, rng: np.random.Generator, runs: int) -> Iterator[str]:
    """Return what brings a change under a quarter; an audit has its outcomes long before the horizon."""
    if looks is not None:
        yield from (HORIZON, AUDIT)
    elif watch.rules[PASS].never:
        yield AUDIT
    if looks is None and len(watch.nulls.by[watch.name]) > 1:
        # Without slices the whole budget is for `all`, which with them has half of it.
        pooled = _looks(replace(watch, limit=watch.limit - math.log(2)), days, rng, runs)
        if pooled is not None and pooled + wait <= QUARTER:
            yield POOLED


def lines(plan: Plan) -> list[str]:
    """Return the plan for a person."""
    first = f"day {math.ceil(plan.first)}, {plan.first - 1:g} days after the first one has ended"
    return [f"first day with an outcome number: {first}", *(_line(s) for s in plan.sights)]


def _line(s: Sight) -> str:
    if s.reason:
        return f"{s.change}: not looked for: {REASONS[s.reason]}"
    late = s.days is None or s.days > QUARTER
    helps = f"; {' or '.join(s.helps)} would help" if s.helps else f"; none of {', '.join(HELPS)} would help" if late else ""
    if s.days is None or s.looks is None:
        return f"{s.change}: not within a quarter of mature days{helps}"
    looks = f", {s.looks} of them until enough has been seen" if s.days > s.looks else ""
    return f"{s.change}: {s.days:g} days{looks}{', longer than a quarter' if late else ''}{helps}"
