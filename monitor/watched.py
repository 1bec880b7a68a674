"""One version of a model in memory: its hours, its days, its baseline, and what they say."""

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.config import Model
from monitor.core import baseline as baselines
from monitor.core import detectors, readings
from monitor.core.baseline import Baseline
from monitor.core.before_labels import Error, before_labels, errors, off, worth
from monitor.core.canary import CONTRASTS
from monitor.core.days import (
    MATURE,
    RECENT,
    WINDOWS,
    Key,
    iso,
    mature_window,
    matures_at,
    month_end,
    month_of,
    newest_mature,
    oldest_kept,
    recent_hours,
)
from monitor.core.delays import SuggestedHorizon, delay_curves, share_in, suggested_horizon
from monitor.core.events import DAY, HOUR, MINUTE, OTHER, VERDICTS, Floats, Ints
from monitor.core.features import Feature, to_dict
from monitor.core.intervals import Measured, wilson
from monitor.core.metrics import METRICS, PROBABILITY, Estimate, measure, of_margins, spread
from monitor.core.metrics.daily import NOTHING, Days, day_ranks, day_sums, days_of
from monitor.core.metrics.inputs import Inputs, Shift, feature_shifts, slice_mix
from monitor.core.policy import Policy, recalibrated, served_bins
from monitor.core.quantify import Classes
from monitor.core.readings import LabelRule, Reading
from monitor.core.rules import Rule, detecting
from monitor.core.snapshot import Detection, Version
from monitor.core.tables import EMPTY, Table, count_pieces, not_waiting, tables, total
from monitor.formats.classes import Scores
from monitor.looks import Beside, Looks, Promise
from monitor.series import CALIBRATED, NOWCAST, SLICE_CALIBRATED, SLICE_ESTIMATES
from monitor.store import Store
from monitor.store.files import write_whole

log = logging.getLogger("scorewatch")

SCORED = tuple(name for name, m in METRICS.items() if not m.outcomes)
OUTCOMES = tuple(name for name, m in METRICS.items() if m.outcomes)
_SLICE_SCORED = tuple(name for name in (*SLICE_ESTIMATES, "mean_score") if not METRICS[name].outcomes)
_SLICE_OUTCOMES = tuple(name for name in SLICE_ESTIMATES if METRICS[name].outcomes)
_SUMMARY = (
    "prevalence",
    "mean_score",
    "bias",
    "brier",
    "log_loss",
    "ece_width10",
    "ece",
    "roc_auc",
    "recall",
    "precision",
    "flagged_share",
)
_LEARNING = 28
"""From so many mature days the day-to-day spread is learned where the baseline has too few."""
_STEPS = np.arange(1, 20) / 20
"""Upper bounds of the score histogram; Prometheus counts a score equal to a bound below it."""


def baseline_checksum(baseline: Baseline) -> str:
    """Return the SHA-256 of a baseline without its checksum."""
    return "sha256:" + hashlib.sha256(baselines.to_json(replace(baseline, checksum="")).encode()).hexdigest()


def scores_of(model: Model) -> Scores:
    """Return what the scores are that events of the model hold."""
    names = tuple(target.name for target in model.targets.values())
    return Scores(model.score != "probability", model.classes, model.labels_mode == "multi", model.sum_tolerance, names)


def read_baseline(path: Path) -> Baseline:
    """Return the baseline of a file; raise ValueError that names the file when it cannot be read, is none or was changed."""
    try:
        made = baselines.from_json(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
    if made.checksum and made.checksum != baseline_checksum(made):
        raise ValueError(f"{path}: its checksum does not hold, so it was changed")
    return made


def baseline_of(model: Model) -> Baseline:
    """Return the baseline of a model that has one; raise ValueError when it cannot be that, with what to do."""
    assert model.baseline is not None
    key = f"models.{model.parent or model.name}"
    try:
        made = read_baseline(model.baseline)
    except ValueError as e:
        raise ValueError(f"{e}; build it anew or take `{key}.baseline` out") from None
    if made.segments != model.segments:
        raise ValueError(
            f"{model.baseline}: was built with segments {list(made.segments)}, {key}.segments is {list(model.segments)}; "
            "make them the same"
        )
    if missing := [name for name in model.features if name not in made.features]:
        raise ValueError(
            f"{model.baseline}: has no feature {missing[0]!r} (it has {', '.join(made.features) or 'none'}); "
            f"take it out of {key}.features or build the baseline with it"
        )
    return made


def features_digest(features: Mapping[str, Feature]) -> str:
    """Return a digest of what the codes of features mean."""
    return hashlib.sha256(json.dumps(list(to_dict(features).items())).encode()).hexdigest()[:16]


def summary(table: Table, rules: tuple[LabelRule, ...], key: Key, window: str, edges: Ints | None) -> tuple[Estimate, ...]:
    """Return the mature estimates that the timeline shows; `rules` say by verdict what no label means."""
    return measure(readings.mature(table, rules), key, window, edges, None, _SUMMARY)


def summed(name: str, table: Table, rules: tuple[LabelRule, ...]) -> tuple[Floats, Floats, Floats | None]:
    """Return what a day of a slice is worth among others: its sums without and with outcomes, and for `all` the ranks."""
    reading = readings.mature(table, rules)
    return day_sums(readings.scored(table)), day_sums(reading), day_ranks(reading) if name == "all" else None


def _rows_by_slice(estimates: Iterable[Estimate], window: str) -> dict[str, int]:
    """Return how many rows each slice has in a window."""
    return {e.key.slice: e.n for e in estimates if (e.metric, e.window) == ("mean_score", window)}


def add_passed(store: Store, code: int, rows: NDArray[Any], slices: tuple[str, ...], members: NDArray[np.int32]) -> None:
    """Add rows of a version that do not wait to the tables of their days and hours; `members` says which slices have them."""
    for kind, unit in (("day", DAY), ("hour", HOUR)):
        at = rows["ts"] // unit
        for i in np.unique(at).tolist():
            made = tables(rows[at == i], None, members, len(slices))
            store.add_passed((code, kind, i), {name: not_waiting(t) for name, t in zip(slices, made, strict=True)})


@dataclass(slots=True)
class Mature:
    """What mature windows said, and from which days under which policy; made anew only when those change.

    `calibrated` and `served` are the estimates and the readings, with their edges, of the scores that a calibrator serves.
    """

    state: tuple[Any, ...]
    estimates: tuple[Estimate, ...]
    readings: dict[tuple[Key, str], Reading]
    inputs: tuple[Inputs, ...]
    calibrated: tuple[Estimate, ...]
    served: dict[tuple[Key, str], tuple[Reading, Ints | None]]


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is expected of days that are not mature: nowcast estimates, and how labels come.

    `completeness` is the share of the labels to come by the horizon that are in, None where it cannot be told.
    """

    state: tuple[Any, ...]
    estimates: tuple[Estimate, ...]
    completeness: float | None
    suggested: SuggestedHorizon


@dataclass(slots=True)
class Watched:
    """All of it can be made again from the store and the files; nothing here is stored anywhere else.

    `reference` are the scores of the baseline. `hours` holds a table per slice for each of the last hours, `following` how
    often each policy was named in each minute of them, `days` the tables of the last 28 mature days by slice (both only that of
    `all` for a target of a model with classes, which may have many), `sums` what `summed` makes of them (beside that of `all`),
    `open` those of the slice `all` of days that are not mature, `seen` when its last event came. `validation` are the scores of
    both classes where a baseline promises outcomes, `off` by how much estimates made with them missed each mature day, and
    `errors` what they were worth. `stale` hours are counted anew. `features_since` (ms) is when features began to be coded as
    they are in the baseline, `promised` the rows of its slices and those by feature and code. `policy` is the one that decides
    and `calibrated` the first whole day on which scores were served as they are now, 0 when they always were. `spread` is how
    much more the days of the baseline differ than independent rows would. `unwritten` is an observed baseline that could not be
    written yet, and `problem` why.
    """

    store: Store
    code: int
    model: Model
    version: str
    baseline: Baseline | None = None
    members: NDArray[np.int32] = field(default_factory=lambda: np.zeros((1, 1), np.int32))
    hours: dict[int, list[Table]] = field(default_factory=dict)
    following: dict[int, dict[int, int]] = field(default_factory=dict)
    days: dict[int, Mapping[str, Table]] = field(default_factory=dict)
    sums: dict[int, tuple[Table, dict[str, tuple[Floats, Floats, Floats | None]]]] = field(default_factory=dict)
    open: dict[int, Table] = field(default_factory=dict)
    revision: int = 0
    measured: Mature | None = None
    ahead: Ahead | None = None
    validation: Classes | None = None
    off: dict[int, tuple[Table, Mapping[str, float]]] = field(default_factory=dict)
    errors: Mapping[str, Error] = field(default_factory=dict)
    policy: Policy | None = None
    calibrated: int = 0
    promise: tuple[Any, tuple[Estimate, ...]] = (None, ())
    spread: Mapping[str, float] = field(default_factory=dict)
    histogram: NDArray[np.float64] | None = None
    score_sum: float = 0.0
    seen: int = 0
    features_since: int = 0
    promised: tuple[Mapping[str, int], Ints | None] = ({}, None)
    stale: bool = True
    open_months: set[str] = field(default_factory=set)
    looks: Looks = field(init=False)
    baseline_revision: int = 0
    expected_of: Any = None
    detected: tuple[Any, tuple[Detection, ...]] = (None, ())
    said: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    reference: Reading | None = None
    unwritten: str = ""
    problem: str = ""

    def __post_init__(self) -> None:
        """Begin without evidence."""
        looking = tuple(r for r in self.rules if r.detector)
        if self.role == "canary" and looking:
            limit = looking[0].fires[1]
            contrasts = (detecting(name, name) for name in CONTRASTS)
            rules = tuple(replace(r, fires=(r.fires[0], replace(limit, metric=r.fires[1].metric))) for r in contrasts)
            self.looks = Looks(rules, self.model.labels.rules, looking[0].name)
        else:
            self.looks = Looks(looking, self.model.labels.rules)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules that are looked at for a version of this role."""
        return tuple(r for r in self.model.rules if r.role == self.role)

    @property
    def name(self) -> tuple[str, str]:
        """Return (model, version)."""
        return self.model.name, self.version

    @property
    def role(self) -> str:
        """Return live, canary or shadow."""
        return self.model.role(self.version)

    @property
    def horizon(self) -> tuple[int, int]:
        """Return the horizon and the corrections period in ms."""
        return self.model.labels.longest, self.model.labels.corrections

    @property
    def slices(self) -> tuple[str, ...]:
        """Return the names of the slices, `all` first."""
        return self.baseline.slices if self.baseline else ("all",)

    @property
    def edges(self) -> Ints | None:
        """Return the frozen calibration edges."""
        return self.baseline.edges if self.baseline else None

    def begin(self, baseline: Baseline | None, now: int | None) -> None:
        """Take the baseline (else the observed one that was written before) and load the days that a window reaches."""
        if baseline is None and self._observed_path.exists():
            baseline = self._observed()
        self._use(baseline)
        if (looks := self.store.meta.get(f"looks:{self.code}")) is not None:
            try:
                self.looks.load(looks)
            except ValueError as e:
                log.warning("%s %s: %s; days are looked at anew", *self.name, e)
                self.__post_init__()
        for code, day in self.store.closed if now is not None else ():
            last = self.newest_mature(now or 0)
            if code == self.code and day > last - WINDOWS["28d"] // DAY:
                stored = self.store.log.day(code, day)
                # Of a day that was counted under other slices only `all` is comparable.
                same = stored.keys() <= set(self.slices) and not self.model.parent
                self.days[day] = stored if same else {"all": stored["all"]}
            if code == self.code and month_end(month_of(day)) > last:
                self.open_months.add(month_of(day))

    @property
    def _observed_path(self) -> Path:
        return self.store.place("baselines", self.model.name, f"{self.version}.json")

    def _observed(self) -> Baseline | None:
        """Return the baseline that was observed before, None when it cannot be read or has other segments."""
        try:
            observed = baselines.from_json(self._observed_path.read_text())
        except (OSError, ValueError) as e:
            log.warning("%s: %s; another one will be observed", self._observed_path, e)
            return None
        return observed if observed.segments == self.model.segments else None

    def newest_mature(self, now: int) -> int:
        """Return the newest day that is mature at `now`."""
        return newest_mature(now, self.model.labels.longest)

    def oldest_kept(self, now: int) -> int:
        """Return the oldest day whose rows are kept for corrections."""
        return oldest_kept(now, self.model.labels.longest, self.model.labels.corrections)

    @property
    def counted_by(self) -> str:
        """Return a digest of what days are counted by, beside their rows."""
        return hashlib.sha256(json.dumps([self.slices, self.horizon]).encode()).hexdigest()[:16]

    def whole(self) -> set[int]:
        """Return the closed days that can be counted again: all of their rows are there."""
        there = {d for v, d in self.store.spans if v == self.code} | {
            d for v, kind, d in self.store.passed if v == self.code and kind == "day"
        }
        return {d for d in there if d >= self.store.left.get(self.code, 0) and (self.code, d) in self.store.closed}

    def waiting(self) -> list[int]:
        """Return the days that are not closed and have all of their rows."""
        left = self.store.left.get(self.code, 0)
        return sorted(d for v, d in self.store.spans if v == self.code and d >= left and (v, d) not in self.store.closed)

    def active(self, now: int) -> bool:
        """Return whether the version is still spoken of: it has events, days that wait, or a last day that just matured."""
        newest = max((d for v, d in self.store.closed if v == self.code), default=None)
        matured = 0 if newest is None else min(matures_at(newest, self.model.labels.longest), now)
        return now - max(self.seen, matured) <= self.model.idle_after or bool(self.waiting())

    def _use(self, baseline: Baseline | None) -> None:
        self.baseline, self.stale = baseline, True
        self.reference = readings.scored(baseline.table("all")) if baseline else None
        self.validation, self.off = readings.promised(baseline.table("all")) if baseline and baseline.promises else None, {}
        self.promised = (baseline.rows(), baseline.table("all").features) if baseline else ({}, None)
        self.revision += 1
        self.baseline_revision += 1
        self._members()

    def _members(self) -> None:
        if self.baseline:
            self.members = baselines.members(self.baseline.slices, self.store.combos.names, self.baseline.segments)
        else:
            self.members = np.zeros((1, max(len(self.store.combos.names), 1)), np.int32)

    # Counting.

    def count(self, rows: NDArray[Any], now: int) -> None:
        """Count rows that are new since the last time."""
        counts = np.bincount(np.searchsorted(_STEPS, rows["score"]), minlength=len(_STEPS) + 1)
        seen = np.zeros(len(_STEPS) + 1) if self.histogram is None else self.histogram
        self.histogram, self.score_sum = seen + counts, self.score_sum + float(rows["score"].sum())
        if not self.stale:
            self._count_hours(rows, now)

    def count_passed(self, rows: NDArray[Any], now: int) -> None:
        """Count rows that do not wait for a label, which will not be there to be counted again."""
        self.count(rows, now)
        self._members()
        add_passed(self.store, self.code, rows, self.slices, self.members)

    def recount(self, now: int) -> None:
        """Count stale hours from the rows: at start, and when a new baseline changed the slices."""
        if not self.stale:
            return
        self.hours, self.following, self.stale = {}, {}, False
        for code, day in sorted(self.store.spans):
            if code == self.code and (day + 2) * DAY > now - WINDOWS["24h"]:
                for rows, _ in self.store.pieces_of(self.code, day):
                    self._count_hours(rows, now)
        for (code, kind, hour), passed in self.store.passed.items():
            if code == self.code and kind == "hour" and hour >= recent_hours(now, "24h").start:
                passed = {"all": passed["all"]} if self.model.parent else passed
                before = self.hours.get(hour, [EMPTY] * len(self.slices))
                self.hours[hour] = self._with_passed(before, passed)

    def _count_hours(self, rows: NDArray[Any], now: int) -> None:
        hour = rows["ts"] // HOUR
        if len(rows) and self.members.shape[1] <= int(rows["combo"].max()):
            self._members()
        oldest = recent_hours(now, "24h").start
        self._count_following(rows[hour >= oldest])
        for h in np.unique(hour[hour >= oldest]).tolist():
            mine = rows[hour == h]
            fresh = tables(mine, None, self.members, 1 if self.model.parent else len(self.slices))
            fresh += [EMPTY] * (len(self.slices) - len(fresh))
            self.hours[h] = [a + b for a, b in zip(self.hours[h], fresh, strict=True)] if h in self.hours else fresh

    def _count_following(self, rows: NDArray[Any]) -> None:
        """Count the rows of each minute by the policy they named."""
        named = (rows["ts"] // MINUTE) << 16 | rows["policy"]
        for key, n in zip(*(a.tolist() for a in np.unique(named, return_counts=True)), strict=True):
            minute = self.following.setdefault(key >> 16, {})
            minute[key & 0xFFFF] = minute.get(key & 0xFFFF, 0) + n

    def unfollowed(self, policy: str, since: int, now: int) -> Measured | str:
        """Return which share of the rows of the last hour that named a policy named another one, or why that is not known.

        Only rows of minutes that began at `since` (ms) or later count.
        """
        first = -(-max(since, now - HOUR) // MINUTE)
        counts = [n for minute, n in self.following.items() if minute >= first]
        names = self.store.policies.names
        of = sum(k for n in counts for code, k in n.items() if names[code])
        other = sum(k for n in counts for code, k in n.items() if names[code] not in ("", policy))
        if not of:
            return "no_policy_named" if counts else "no_events"
        share = other / of
        return Measured(share, *wilson(other, of), of)

    def close(self, day: int) -> dict[int, dict[str, Table]]:
        """Return the final tables of a day by slice, and with them those of earlier days whose slices changed."""
        slices = self.slices
        if self.baseline is None or self.baseline.provenance["kind"] == "observed":
            self._observe(day)
        days = [day] if self.slices == slices else sorted({*self.days, *self.whole(), day})
        final = {d: self._final(d) for d in days}
        self.days |= final
        self.open_months.add(month_of(day))
        self.revision += 1
        return final

    def _final(self, day: int) -> dict[str, Table]:
        """Return the tables of a day; of one whose rows have left, only that of `all`, which no slices change."""
        gone = (self.code, day) not in self.store.spans and (self.code, "day", day) not in self.store.passed
        if gone or day < self.store.left.get(self.code, 0):
            return {"all": self.days[day]["all"]}
        return self.counted(day)

    def counted(self, day: int) -> dict[str, Table]:
        """Return the tables of a day counted from its rows, and from the tables of those that did not wait."""
        passed = self.store.passed.get((self.code, "day", day), {})
        self._members()
        counted = count_pieces(self.store.pieces_of(self.code, day), self.members, len(self.slices), self.horizon)
        both = self._with_passed(counted, passed)
        return {name: t for name, t in zip(self.slices, both, strict=True) if t is not EMPTY or name == "all"}

    def _with_passed(self, counted: Sequence[Table], passed: Mapping[str, Table]) -> list[Table]:
        """Return the tables by slice with those of the rows that did not wait.

        Those rows were counted when they came. A slice that there was not then is empty: with its waiting rows alone it would
        be another mixture of scores.
        """
        same = not passed or passed.keys() == set(self.slices)
        known = [same or (name in passed and not name.endswith(f"={OTHER}")) for name in self.slices]
        out = zip(counted, self.slices, known, strict=True)
        return [t + passed.get(name, EMPTY) if there else EMPTY for t, name, there in out]

    def tables_of(self, day: int) -> Mapping[str, Table]:
        """Return the tables by slice of one of `days`, from the log where memory has only that of `all`."""
        kept = self.days[day]
        if not self.model.parent or len(kept) > 1 or (self.code, day) not in self.store.closed:
            return kept
        stored = self.store.log.day(self.code, day)
        return stored if stored.keys() <= set(self.slices) else kept

    def _observe(self, day: int) -> None:
        """Write a baseline from what was served, where validation gave none: after the first full day and after 28."""
        earlier = sorted(d for v, d in self.store.closed if v == self.code and d < day)
        first = min((d for v, d in self.store.spans if v == self.code), default=day)
        if self.baseline is None:
            days = [day] if day > first or earlier else []
        else:
            left = self.store.left.get(self.code, 0)
            kept = [d for d in earlier[-27:] if d >= left and (self.code, d) in self.store.spans]
            days = [*kept, day] if self.baseline.provenance["days"] == 1 and len(kept) == 27 else []
        if not days:
            return
        provenance = {
            "kind": "observed",
            "days": len(days),
            "first_day": iso(days[0] * DAY)[:10],
            "last_day": iso(day * DAY)[:10],
        }
        pieces = partial(self.store.pieces_of, self.code)
        passed = {d: t["all"] for d in days if (t := self.store.passed.get((self.code, "day", d)))}
        made = baselines.build_by_day(*self.name, self.model.segments, days, pieces, self.store.combos.names, provenance, passed)
        if self.model.parent:  # it promises nothing, and the tables of 51 targets by slice and day are some 100 MB
            summed_up = {name: {max(t): total(list(t.values()))} for name, t in made.days.items() if t and name != "all"}
            made = replace(made, days={"all": made.days["all"], **summed_up})
        made = replace(made, checksum=baseline_checksum(made))
        self.unwritten = baselines.to_json(made)
        self.keep_baseline()
        self._use(made)

    def keep_baseline(self) -> None:
        """Write the observed baseline that is not written yet; what fails is tried again at the next tick."""
        if not self.unwritten:
            return
        try:
            write_whole(self._observed_path, self.unwritten)
            self.unwritten = self.problem = ""
        except OSError as e:
            if not self.problem:
                log.error("%s: %s; it is tried again at every tick", self._observed_path, e.strerror)
            self.problem = f"{self._observed_path}: {e.strerror}; it is tried again at every tick"

    def prune(self, now: int) -> None:
        """Forget hours and days that no window reaches any more."""
        oldest = recent_hours(now, "24h").start
        first = self.newest_mature(now) - WINDOWS["28d"] // DAY
        self.hours = {h: t for h, t in self.hours.items() if h >= oldest}
        self.following = {m: n for m, n in self.following.items() if m >= oldest * HOUR // MINUTE}
        self.days = {
            d: {"all": t["all"]} if self.model.parent and (self.code, d) in self.store.closed else t
            for d, t in self.days.items()
            if d > first
        }
        self.sums = {d: s for d, s in self.sums.items() if d in self.days}

    def count_open(self, day: int) -> None:
        """Count a day that is not mature, with the labels it has so far."""
        pieces = self.store.pieces_of(self.code, day)
        every = np.zeros((1, max(len(self.store.combos.names), 1)), np.int32)
        passed = self.store.passed.get((self.code, "day", day), {}).get("all", EMPTY)
        self.open[day] = count_pieces(pieces, every, 1, self.horizon)[0] + passed
        self.ahead = None

    def look_ahead(self, now: int) -> Ahead:
        """Return what is expected of days that are not mature: the newest 28 whose labels are complete enough.

        Made anew once an hour, and when such a day was counted again. A reading to be shown, never one to act on.
        """
        waiting = set(self.waiting())
        self.open = {d: t for d, t in self.open.items() if d in waiting}
        state = (now // HOUR, self.revision, tuple(self.open))
        if self.ahead is not None and self.ahead.state == state:
            return self.ahead
        aged = [(t, now - (d + 1) * DAY) for d, t in sorted(self.open.items())]
        every = self._aged(now)
        curves = delay_curves(every, *self.horizon)
        rules = self.model.labels.rules
        days = [(t, curves.at(age)) for t, age in aged]
        shown = [d for d in days if readings.complete_enough(*d, rules)][-WINDOWS["28d"] // DAY :]
        reading = readings.nowcast(shown or days, rules)
        key = Key(*self.name, "all", max(self.open, default=now // DAY))
        estimates = self._estimates(reading, key, "waiting", self.edges, None, NOWCAST)
        suggested = suggested_horizon(every, *self.horizon)
        self.ahead = Ahead(state, estimates, share_in(days), suggested)
        return self.ahead

    def _aged(self, now: int) -> list[tuple[Table, int]]:
        """Return the tables of the slice `all` of the days in memory, and how long ago each ended."""
        days = {d: t["all"] for d, t in self.days.items()} | self.open
        return [(days[d], now - (d + 1) * DAY) for d in sorted(days)]

    def delays(self, now: int) -> list[tuple[int, str, SuggestedHorizon]]:
        """Return (label, verdict, the horizon they suggest) of each kind of label that was seen."""
        aged = self._aged(now)
        counts = sum((t.delays for t, _ in aged if t.delays is not None), np.zeros((2, len(VERDICTS), 1)))
        kinds = [(label, v) for label in (0, 1) for v in range(len(VERDICTS)) if counts[label, v].any()]
        return [(label, VERDICTS[v], suggested_horizon(aged, *self.horizon, label, v)) for label, v in kinds]

    # Measuring.

    def follow(self, policy: Policy | None, since: int | None) -> None:
        """Take the policy that decides, and since when (ms) scores have been served as they are now; None: they always were."""
        self.policy, self.calibrated = policy, 0 if since is None else -(-since // DAY)

    @property
    def calibrates(self) -> bool:
        """Return whether other scores are served than those of the model."""
        return self.policy is not None and self.policy.calibrates

    @property
    def decides(self) -> str:
        """Return what decides, as text."""
        return "" if self.policy is None else json.dumps(self.policy.bands, sort_keys=True)

    @property
    def serves(self) -> tuple[Any, ...]:
        """Return what makes the scores that are served, and from which day on."""
        return self.policy.calibrator if self.policy is not None and self.calibrates else None, self.calibrated

    def measure(self, now: int) -> None:
        """Measure the mature windows and the promise, each only when what it is made from changed."""
        windows = tuple(mature_window(self.days, now, self.model.labels.longest, window) for window in MATURE)
        state = (windows, self.revision, self.decides, self.serves)
        if self.promise[0] != (self.baseline_revision, self.decides):
            self.promise = ((self.baseline_revision, self.decides), self._promised())
        if self.measured is None or self.measured.state != state:
            self.measured = self._mature(now, windows, state)
            self.errors = self._errors(windows[-1])

    def _hours(self, window: str, now: int) -> list[Table]:
        hours = [self.hours[h] for h in recent_hours(now, window) if h in self.hours]
        return [total([h[i] for h in hours]) for i in range(len(self.slices))]

    def _estimates(self, reading: Reading, key: Key, window: str, *about: Any) -> tuple[Estimate, ...]:
        """Return what `measure` finds, as far as the scores of the model allow."""
        return self.allowed(measure(reading, key, window, *about))

    def allowed(self, found: tuple[Estimate, ...]) -> tuple[Estimate, ...]:
        """Return estimates as far as the scores of the model allow."""
        return of_margins(found) if self.model.score == "margin" else found

    def mature_table(self, window: str, now: int) -> Table:
        """Return the table of the slice `all` of a mature window."""
        days = mature_window(self.days, now, self.model.labels.longest, window)
        return total([self.days[d]["all"] for d in days])

    def hours_reading(self, window: str, now: int) -> Reading:
        """Return the scores of the slice `all` in the last hours."""
        return readings.scored(self.hours_table(window, now))

    def hours_readings(self, window: str, now: int) -> dict[str, Reading]:
        """Return the scores of each slice in the last hours."""
        return {name: readings.scored(t) for name, t in zip(self.slices, self._hours(window, now), strict=True)}

    def hours_table(self, window: str, now: int) -> Table:
        """Return the table of the slice `all` of the last hours."""
        return total([self.hours[h][0] for h in recent_hours(now, window) if h in self.hours])

    def recent(self, now: int) -> list[Estimate]:
        """Return what the last hours say, slices for the last 24 only, and what they let expect before their labels come."""
        out: list[Estimate] = []
        for window in RECENT:
            for i, table in enumerate(self._hours(window, now)):
                if i and (window == "1h" or self.model.parent):
                    break
                key = Key(*self.name, self.slices[i], now // DAY)
                reference, names = (None, _SLICE_SCORED) if i else (self.reference, SCORED)
                days = None if i else self._one_day(window)
                out += self._estimates(readings.scored(table), key, window, self.edges, reference, names, days)
                if not i and window == "24h":
                    out += self.allowed(before_labels(table, self.validation, key, window, self.errors))
        reason = "few_compared_days" if self.validation else "no_baseline"
        return [*out, *self.allowed(worth(self.errors, Key(*self.name, "all", self.newest_mature(now)), reason))]

    def _one_day(self, window: str) -> Days | None:
        """Return the last 24 hours as one day; a single hour has its place in the day, of which days say nothing."""
        return Days(NOTHING[None], None, self.spread) if window == "24h" else None

    def _by_day(self, days: Sequence[int], name: str) -> tuple[Days, Days]:
        """Return the days of a slice without and with outcomes."""
        found = []
        for day in days:
            if day not in self.sums or self.sums[day][0] is not self.days[day]["all"]:
                made = {n: summed(n, t, self.model.labels.rules) for n, t in self.tables_of(day).items()}
                self.sums[day] = self.days[day]["all"], made
            found.append(self.sums[day][1].get(name, (NOTHING, NOTHING, None)))
        scored, outcomes = (np.array([f[i] for f in found]).reshape(-1, len(NOTHING)) for i in range(2))
        ranks = np.array([f[2] for f in found]) if name == "all" and found else None
        spread = self.spread if name == "all" else {}
        return Days(scored, None, spread), Days(outcomes, ranks, spread)

    def _mature(self, now: int, windows: tuple[tuple[int, ...], ...], state: tuple[Any, ...]) -> Mature:
        estimates: list[Estimate] = []
        kept: dict[tuple[Key, str], Reading] = {}
        last = self.newest_mature(now)
        stored = {d: self.tables_of(d) for d in max(windows, key=len)}
        for window, days in zip(MATURE, windows, strict=True):
            for name in self.slices:
                if name != "all" and window != "28d":
                    continue
                table = total([stored[d].get(name, EMPTY) for d in days])
                key = Key(*self.name, name, last)
                reading = readings.mature(table, self.model.labels.rules)
                kept[key, window] = replace(reading, reason="margin_scores") if self.model.score == "margin" else reading
                reference = self.reference if name == "all" else None
                scored = readings.scored(table) if days else replace(readings.scored(table), reason="no_mature_days")
                before, after = self._by_day(days, name)
                names = (SCORED, OUTCOMES) if name == "all" else (_SLICE_SCORED, _SLICE_OUTCOMES)
                estimates += self._estimates(scored, key, window, self.edges, reference, names[0], before)
                estimates += self._estimates(reading, key, window, self.edges, None, names[1], after)
        calibrated = self._calibrated(windows, last)
        return Mature(state, tuple(estimates), kept, self._mature_inputs(windows[-1], estimates), *calibrated)

    def _calibrated(
        self, windows: tuple[tuple[int, ...], ...], last: int
    ) -> tuple[tuple[Estimate, ...], dict[tuple[Key, str], tuple[Reading, Ints | None]]]:
        """Return what the scores that a calibrator serves say on the days on which only it can have served, and the readings."""
        estimates: list[Estimate] = []
        kept: dict[tuple[Key, str], tuple[Reading, Ints | None]] = {}
        for window, days in zip(MATURE, windows, strict=True) if self.calibrates else ():
            since = [d for d in days if d >= self.calibrated]
            for name in self.slices if window == "28d" else self.slices[:1]:
                key, names = Key(*self.name, name, last), CALIBRATED if name == "all" else SLICE_CALIBRATED
                _, reading = both = self._served(self._of_days(since, name), "no_days_since")
                kept[key, window] = reading, self._served_edges()
                estimates += self._of_served(both, key, window, names)
        return tuple(estimates), kept

    def _served(self, table: Table, nothing: str) -> tuple[Reading, Reading]:
        """Return all rows and the outcomes of mature ones with the scores that are served, `nothing` being why there are none."""
        assert self.policy is not None
        made = recalibrated(table, self.policy.calibrator)
        both = readings.scored(made), readings.mature(made, self.model.labels.rules)
        if not table.n:
            both = replace(both[0], reason=nothing), replace(both[1], reason=nothing, flagged_reason=nothing)
        return replace(both[0], basis="calibrated"), replace(both[1], basis="calibrated")

    def _served_edges(self) -> Ints | None:
        """Return the frozen edges on the scale that is served."""
        assert self.policy is not None
        return None if self.edges is None else served_bins(self.edges, self.policy.calibrator)

    def _of_served(self, both: tuple[Reading, Reading], key: Key, window: str, names: Collection[str]) -> list[Estimate]:
        """Return the estimates of the scores that are served, those that need no outcomes of all rows."""
        edges = self._served_edges()
        found: list[Estimate] = []
        for reading, outcomes in zip(both, (False, True), strict=True):
            found += measure(reading, key, window, edges, None, [n for n in names if METRICS[n].outcomes == outcomes])
        return found

    def _mature_inputs(self, days: tuple[int, ...], estimates: Sequence[Estimate]) -> tuple[Inputs, ...]:
        """Return the features and the mix of slices on the newest and the last 28 mature days."""
        if not days:
            named = (self.model.features, self.model.segments)
            none = (tuple(Shift(name, 0, reason="no_mature_days") for name in names) for names in named)
            return (Inputs(MATURE[-1], 0, *none),)
        coded = {d: self.days[d]["all"] for d in days if d * DAY >= self.features_since}
        newest = {name: t.n for name, t in self.tables_of(days[-1]).items()}
        return (
            self._inputs("day", days[-1], [coded[d] for d in days[-1:] if d in coded], newest),
            self._inputs(MATURE[-1], days[-1], list(coded.values()), _rows_by_slice(estimates, MATURE[-1])),
        )

    def recent_inputs(self, now: int, estimates: Sequence[Estimate]) -> Inputs:
        """Return the features and the mix of slices in the last 24 hours, given the `recent` estimates."""
        hours = [h for h in recent_hours(now, "24h") if h in self.hours and h * HOUR >= self.features_since]
        rows = _rows_by_slice(estimates, "24h")
        return self._inputs("24h", now // DAY, [self.hours[h][0] for h in hours], rows)

    def _inputs(self, window: str, day: int, coded: Sequence[Table], rows: Mapping[str, int]) -> Inputs:
        counts = [t.features for t in coded if t.features is not None]
        frozen = self.baseline.features if self.baseline else {}
        live = sum(counts[1:], counts[0]) if counts else None
        features = feature_shifts(self.model.features, frozen, live, self.promised[1])
        return Inputs(window, day, features, slice_mix(self.model.segments, rows, self.promised[0]))

    def _errors(self, days: tuple[int, ...]) -> Mapping[str, Error]:
        """Return what estimates without labels were worth on mature days after the validation."""
        if self.baseline is None or self.validation is None:
            return {}
        after = {d: self.days[d]["all"] for d in days if (d + 1) * DAY > self.baseline.until}
        known, rules = self.off, self.model.labels.rules
        # A day that was counted again is another table.
        same = {d for d, t in after.items() if d in known and known[d][0] is t}
        self.off = {d: known[d] if d in same else (t, off(t, self.validation, rules)) for d, t in after.items()}
        return errors(of for _, of in self.off.values())

    def _promised(self) -> tuple[Estimate, ...]:
        """Return what validation promised under the policy, and see how much its days differ."""
        self.spread = {}
        if self.baseline is None or not self.baseline.promises:
            return ()
        out: list[Estimate] = []
        whole, frozen = {name: self.baseline.table(name) for name in self.slices}, self.baseline.days
        for name in self.slices:
            key = Key(*self.name, name, self.baseline.until // DAY - 1)
            reading = readings.baseline(whole, self.policy, name)
            names = (*OUTCOMES, "flagged_share") if name == "all" else SLICE_ESTIMATES
            by_day = (
                [{part: of[d] for part, of in frozen.items() if d in of} for d in sorted(frozen[name])] if name == "all" else []
            )
            days = days_of([readings.baseline(tables, self.policy) for tables in by_day]) if by_day else None
            found = [e for e in self._estimates(reading, key, "", self.edges, None, names, days) if not e.reason]
            if days is not None:
                self.spread = spread(found, len(days.sums))
            out += found
        return tuple(out)

    def expected(self, metric: str, name: str = "all") -> Estimate | None:
        """Return what validation promised for a metric on a slice; of scores that a calibrator serves it promised nothing."""
        if self.calibrates and metric in PROBABILITY:
            return None
        return next((e for e in self.promise[1] if e.key.slice == name and e.metric == metric), None)

    def evidence(self, basis: str, window: str, metrics: Collection[str], now: int) -> dict[str, Estimate]:
        """Return the estimates a rule looks at: slice `all`; mature days only those after the validation.

        What reads scores as probabilities is about those that are served.
        """
        key = Key(*self.name, "all", now // DAY)
        if self.calibrates and (of_served := [name for name in metrics if name in PROBABILITY]):
            rest = self.evidence(basis, window, [name for name in metrics if name not in PROBABILITY], now)
            return rest | {e.metric: e for e in self._served_evidence(basis, window, of_served, now)}
        if basis == "scored":
            reading, day = self.hours_reading(window, now), self._one_day(window)
            found = self._estimates(reading, key, window, self.edges, self.reference, metrics, day)
            return {e.metric: e for e in found}
        assert self.measured is not None
        days = mature_window(self.days, now, self.model.labels.longest, window)
        until = self.baseline.until if self.baseline and self.baseline.promises else 0
        after = tuple(d for d in days if (d + 1) * DAY > until)
        if after == days:
            same = [e for e in self.measured.estimates if e.key.slice == "all" and e.window == window]
            return {e.metric: e for e in same if e.metric in metrics}
        reading = readings.mature(total([self.days[d]["all"] for d in after]), self.model.labels.rules)
        found = self._estimates(reading, key, window, self.edges, None, metrics, self._by_day(after, "all")[1])
        return {e.metric: e for e in found}

    def _served_evidence(self, basis: str, window: str, metrics: Collection[str], now: int) -> list[Estimate]:
        """Return estimates of the scores that are served, on mature days only since they are."""
        key = Key(*self.name, "all", now // DAY)
        if basis == "scored":
            return self._of_served(self._served(self.hours_table(window, now), "no_events"), key, window, metrics)
        days = mature_window(self.days, now, self.model.labels.longest, window)
        table = self._of_days([d for d in days if d >= self.calibrated], "all")
        return self._of_served(self._served(table, "no_days_since"), key, window, metrics)

    # Looking at whole days.

    def look(self, now: int, counted: Collection[int], arriving: Collection[int], live: "Watched | None") -> None:
        """Look at the days that ended and those that matured since the last time; `counted` days have just been counted.

        A day in `arriving` has not ended yet, whatever the clock says: its events are being read in. A canary is looked at
        beside the `live` version.
        """
        state = self._state if live is None else live.name
        # A clock that was ahead for a while made days end that have not come yet.
        self.looks.ended = min(self.looks.ended, now // DAY - 1)
        if not counted and self.looks.ended >= now // DAY - 1 and self.expected_of == state:
            return
        closed = {d for v, d in self.store.closed if v == self.code} | (self.days.keys() & set(counted))
        there = self._there() | closed
        if live is None:
            self._expect(closed, counted, now)
        elif self.expected_of != state:
            self.expected_of = state
            self.looks.expect(live.version, Beside(live.tables_beside, self.model.labels.rules), "", 0, now // DAY)

        def tables_of(day: int) -> Mapping[str, Table]:
            return self.whole_day(day, day in closed)

        self.looks.see_mature(closed, counted, tables_of)
        first = self.looks.ended + 1 if self.looks.ended >= 0 else min(there, default=now // DAY)
        for day in range(first, now // DAY):
            if day in arriving:
                break
            self.looks.see_ended(day, tables_of(day) if day in there else {})

    def closed_since(self, day: int) -> list[int]:
        """Return the closed days from one on, with those that this tick closes."""
        return sorted(d for d in self.days.keys() | {d for v, d in self.store.closed if v == self.code} if d >= day)

    def _there(self) -> set[int]:
        """Return the days that have rows or tables of rows that did not wait."""
        return {d for v, d in self.store.spans if v == self.code} | {
            d for v, kind, d in self.store.passed if v == self.code and kind == "day"
        }

    def whole_day(self, day: int, closed: bool) -> Mapping[str, Table]:
        """Return the tables of a day by slice: the final ones of a closed day, else those of its rows now."""
        if not closed:
            return self.counted(day)
        return self.tables_of(day) if day in self.days else self.store.log.day(self.code, day)

    def tables_beside(self, basis: str, day: int) -> Mapping[str, Table]:
        """Return the tables of a day for a canary to be looked at beside: nothing where there are no rows or no outcomes yet."""
        closed = day in self.days or (self.code, day) in self.store.closed
        if basis == "scored" and day in self.looks.recent:
            return self.looks.recent[day]
        if closed:
            return self.whole_day(day, closed)
        return self.counted(day) if basis == "scored" and day in self._there() else {}

    @property
    def _state(self) -> tuple[Any, ...]:
        return self.baseline_revision, self.decides, self.serves

    def _expect(self, closed: Collection[int], counted: Collection[int], now: int) -> None:
        """Tell the detectors what the baseline makes them expect under the present policy.

        What was learnt from live days is learnt anew when one of them was counted again, as after a start.
        """
        baseline, state = self.baseline, self._state
        if baseline is None or baseline.provenance["kind"] == "observed":
            self.expected_of = state
            return
        first = -(-baseline.until // DAY)
        days = sorted(d for d in closed if d >= first)[:_LEARNING]
        learns = len(baseline.days.get("all", {})) < detectors.MIN_DAYS and not set(days).isdisjoint(counted)
        if self.expected_of == state and not learns:
            return
        self.expected_of = state
        live = {d: self.days[d]["all"] if d in self.days else self.store.log.day(self.code, d)["all"] for d in days}
        nulls = detectors.nulls(baseline.days, self.policy, self.model.labels.rules, baseline.promises, live)
        promise = Promise(nulls, self.model.labels.rules)
        self.looks.expect(f"{baseline.checksum} {self.counted_by}", promise, self.decides, first, now // DAY, self.calibrated)
        if learns:
            self.looks.learn()

    def detections(self, now: int) -> tuple[Detection, ...]:
        """Return what the detectors see, made anew only when they looked at a day or what they look at changed."""
        looks = self.looks
        state = (looks.turn, self.revision, self.expected_of, self.newest_mature(now))
        if self.detected[0] != state:
            days = mature_window(self.days, now, self.model.labels.longest, "28d")
            self.detected = (state, looks.detections(Key(*self.name, "all", now // DAY), days, self._of_days))
            self.said = {}
        return self.detected[1]

    def _of_days(self, days: Iterable[int], name: str) -> Table:
        return total([(self.days[d] if name == "all" else self.tables_of(d)).get(name, EMPTY) for d in days])

    def detection(self, rule: Rule, now: int) -> dict[str, Estimate]:
        """Return the estimates that the rule of a detector looks at and the one its alert shows, of the slice that is off."""
        seen = next(d for d in self.detections(now) if d.rule == rule.name)
        if rule.name not in self.said and rule.role == "canary":
            self.said[rule.name] = {e.metric: e for e in (seen.effect, seen.evidence)}
        if rule.name not in self.said:
            key, reference = seen.effect.key, self.reference if seen.effect.key.slice == "all" else None
            if rule.basis == "mature":
                days = mature_window(self.days, now, self.model.labels.longest, "28d")
                table = self._of_days(self.looks.days_of(rule, days), key.slice)
                reading = readings.mature(table, self.model.labels.rules)
            else:
                table = self.looks.scores(rule, key.slice)
                reading = readings.scored(table)
            if self.calibrates and rule.shown in PROBABILITY:
                shown = self._of_served(self._served(table, "no_days_since"), key, rule.window, {rule.shown})
            else:
                shown = [*self._estimates(reading, key, rule.window, self.edges, reference, {rule.shown})]
            self.said[rule.name] = {e.metric: e for e in (*shown, seen.effect, seen.evidence)}
        return self.said[rule.name]

    def summary(self, days: Mapping[int, Table], window: str) -> tuple[Estimate, ...]:
        """Return the mature estimates of closed days of the slice `all`, for the timeline."""
        key = Key(*self.name, "all", max(days))
        return self.allowed(summary(total(list(days.values())), self.model.labels.rules, key, window, self.edges))

    def month(self, month: str) -> tuple[Estimate, ...]:
        """Return the mature estimates of a calendar month of predictions."""
        days = [d for v, d in self.store.closed if v == self.code and month_of(d) == month]
        return self.summary({d: self.store.log.day(self.code, d)["all"] for d in sorted(days)}, month)

    def months(self) -> list[str]:
        """Return the months that have closed days."""
        return sorted({month_of(d) for v, d in self.store.closed if v == self.code})

    def view(self, now: int, policy: Policy | None, activated_at: int | None, threshold: float | None, inputs: Inputs) -> Version:
        """Return the version as the snapshot shows it."""
        spans = {d: self.store.spans[self.code, d] for d in self.waiting()}
        following: dict[str, int] = {}
        for minute in self.following.values():
            for code, n in minute.items():
                following[self.store.policies.names[code]] = following.get(self.store.policies.names[code], 0) + n
        mature = [t["all"] for t in self.days.values()]
        ahead = self.look_ahead(now)
        bounds = [*map(str, _STEPS), "+Inf"]
        histogram = {} if self.histogram is None else dict(zip(bounds, self.histogram.cumsum().tolist(), strict=True))
        kind = "" if self.baseline is None else f"{self.baseline.provenance['kind']} until {iso(self.baseline.until)[:10]}"
        return Version(
            *self.name,
            self.role,
            self.slices,
            self.edges,
            kind,
            self.model.labels.longest,
            self.store.newest.get(self.code, 0),
            sum(s.n for s in spans.values()),
            sum(s.labelled for s in spans.values()),
            tuple(spans),
            tuple(sorted(self.days)),
            sum(t.n for t in mature),
            sum(t.n - t.labelled - t.out for t in mature),
            readings.coverage(total(mature), self.model.labels.rules),
            ahead.completeness,
            ahead.suggested,
            policy,
            activated_at,
            threshold,
            following,
            self.model.rules,
            (inputs, *(self.measured.inputs if self.measured else ())),
            (histogram, self.score_sum),
            self.detections(now),
            self._verdicts(now),
        )

    def _verdicts(self, now: int) -> dict[str, int]:
        """Return the rows of the last 24 hours by what was decided."""
        reading = self.hours_reading("24h", now)
        counts = np.bincount(reading.verdict, reading.n, len(VERDICTS))
        return {name: int(n) for name, n in zip(VERDICTS, counts.tolist(), strict=True) if n}
