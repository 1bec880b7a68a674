"""What the detectors of one version have seen: a fold over whole days, kept between ticks and starts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median, median_high
from typing import Any, NamedTuple

import msgspec

from monitor.core import canary, detectors, readings
from monitor.core.days import Key
from monitor.core.detectors import EFFECTS, NO_EVIDENCE, OF_PROBABILITIES, Evidence, Nulls
from monitor.core.intervals import Measured
from monitor.core.metrics import METRICS, Estimate
from monitor.core.readings import LabelRule
from monitor.core.rules import EFFECT, EVIDENCE, Rule
from monitor.core.snapshot import Detection
from monitor.core.tables import EMPTY, Table, all_rows, total
from monitor.store.log import blob, unblob

FEW = 0.05
"""A version with no more of the traffic of a model spends nothing of its budget."""
ENDED, ROWS = 7, 2_000
"""The effect of a label-free detector is that of the last days that ended: so many, and as many more, up to 28, as hold so many
rows; the scores of fewer differ by chance."""
_REMEMBERED = 28
_WEEK = 7
_ENOUGH = 0.8
"""A mature day with fewer labels than this part of the usual coverage says nothing yet."""
_HISTORY = 40
"""Evidence is remembered after each of the last so many days, to go on from there when an earlier day is counted again."""
_KEPT = 20
"""After one day in so many evidence is kept over a start as well, and remembered so much longer that one is before them all."""

Tables = Callable[[int], Mapping[str, Table]]
Window = Callable[[Rule, str], tuple[list[int], Table]]
"""The days that the effect of a rule is about, and the table of one slice on them."""


class Promise(NamedTuple):
    """What a live version is looked at beside: what its baseline promises."""

    nulls: Nulls
    labels: tuple[LabelRule, ...]

    def reason(self, detector: str) -> str:
        """Return why a detector cannot look, or nothing."""
        return self.nulls.reasons.get(detector, "")

    def look(self, rule: Rule, evidence: Evidence | None, day: int, tables: Mapping[str, Table]) -> Evidence | None:
        """Return the evidence after one look at a day."""
        return detectors.look(rule.detector, evidence, day, tables, self.nulls, self.labels, limit_of(rule))

    def effect(self, rule: Rule, days: Iterable[int], part: str, table: Table) -> Measured | str:
        """Return how far the days of a slice are off."""
        return detectors.effect(rule.detector, table, self.nulls, self.labels, part)

    def spread(self, detector: str) -> float | None:
        """Return the long-run variance from day to day."""
        return self.nulls.lr.get(detector)


class Beside(NamedTuple):
    """What a canary is looked at beside: the live version on the same days. `live(basis, day)` are its tables by slice."""

    live: Callable[[str, int], Mapping[str, Table]]
    labels: tuple[LabelRule, ...]

    def reason(self, detector: str) -> str:
        """Return nothing: every contrast can be looked for."""
        return ""

    def look(self, rule: Rule, evidence: Evidence | None, day: int, tables: Mapping[str, Table]) -> Evidence | None:
        """Return the evidence after one look at a day of both."""
        return canary.look(rule.detector, evidence, day, tables, self.live(rule.basis, day), self.labels, limit_of(rule))

    def effect(self, rule: Rule, days: Iterable[int], part: str, table: Table) -> Measured | str:
        """Return how far the canary is from the live version on the days."""
        live = total([self.live(rule.basis, d).get(part, EMPTY) for d in days])
        return canary.effect(rule.detector, table, live, self.labels)

    def spread(self, detector: str) -> float | None:
        """Return nothing: what a day brings to both is no difference."""
        return None


def limit_of(rule: Rule) -> float:
    """Return what the evidence of a rule with a detector has to pass."""
    limit = rule.fires[1].high
    assert limit is not None
    return limit


@dataclass(slots=True)
class Looks:
    """The evidence of the rules with a detector, by rule; all of it can be made again from the day tables.

    `since` is the first day that counts for a rule, `changed` the first whole day under what `decides` at present, and
    `calibrated` the first one on which scores were served as they are now. `mature` and
    `ended` are the newest days looked at. `history` holds the evidence after each of the last mature days, `dirty` the oldest
    day that was counted again since. `volume` are rows by day that ended, `recent` their scores, `coverage` by mature day the
    share of the labels that came of those expected and the rows, `skipped` why one was not looked at. `turn` counts changes. Of
    a canary there is a rule by contrast, and they speak together as the rule named `canary`.
    """

    rules: tuple[Rule, ...]
    labels: tuple[LabelRule, ...]
    canary: str = ""
    evidence: dict[str, Evidence] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    decides: str = ""
    changed: int = 0
    calibrated: int = 0
    first: int = 0
    weight: float = 1.0
    mature: int = -1
    ended: int = -1
    dirty: int | None = None
    history: dict[int, dict[str, Evidence]] = field(default_factory=dict)
    volume: dict[int, int] = field(default_factory=dict)
    recent: dict[int, dict[str, Table]] = field(default_factory=dict)
    coverage: dict[int, tuple[float, int]] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    test: Promise | Beside | None = None
    digest: str = ""
    unsaved: bool = False
    turn: int = 0

    # Where it starts.

    def expect(self, digest: str, test: Promise | Beside, decides: str, first: int, today: int, calibrated: int = 0) -> None:
        """Take what detectors expect from now on; `first` is the first day after the baseline, `today` the current one.

        Days under another rule than what `decides` say nothing about this one, and those before `calibrated` nothing about the
        scores that are served. After another baseline, of another `digest`, all mature days are looked at again; those that
        only ended are gone.
        """
        if self.calibrated != calibrated:
            self.calibrated = calibrated
            for rule in (r for r in self.rules if r.detector in OF_PROBABILITIES):
                self._anew(rule.name, calibrated)
        if self.decides != decides and self.digest:
            self.changed = today + 1
            for rule in (r for r in self.rules if METRICS[r.shown].decided):
                self._anew(rule.name, self.changed)
        if self.digest not in ("", digest):
            # A live version is weighed anew, a canary never is.
            self.evidence, self.history, self.dirty, self.weight = {}, {}, 0, 1.0 if self.canary else 0.0
            self._changed()
        self.digest, self.test, self.decides, self.first = digest, test, decides, first

    def learn(self) -> None:
        """Look at all mature days again together with the next new one, as what is expected of them was learnt anew."""
        self.history, self.dirty, self.unsaved = {}, 0, True

    def weigh(self, together: int) -> None:
        """Fix the part of the traffic of all live versions, `together` rows on the last day, while there is no evidence yet.

        Of the first two days the later one says it, as the first is rarely whole.
        """
        share = self.volume.get(self.ended, 0) / max(together, 1)
        early = not self.evidence or len(self.volume) <= 2
        if together and (early or self.weight <= FEW < share) and self.weight != share:
            self.weight = share
            self._changed()

    def restart(self, name: str) -> None:
        """Begin the evidence of a rule anew after the days that were looked at."""
        for rule in self.rules:
            if rule.name == name or self.canary == name:
                after = 1 + (self.mature if rule.basis == "mature" else self.ended)
                self._anew(rule.name, max(after, self._calibrated(rule)))

    def _changed(self) -> None:
        self.unsaved, self.turn = True, self.turn + 1

    def _anew(self, name: str, since: int) -> None:
        self.since[name] = since
        self._changed()
        for then in (self.evidence, *self.history.values()):
            then.pop(name, None)

    # Days.

    def see_mature(self, closed: Iterable[int], again: Iterable[int], tables: Tables) -> None:
        """Look at the mature days since the last time, and from the oldest one on that was counted `again`.

        A day that was counted again is only looked at together with the next new one: one look a day.
        """
        days = sorted(closed)
        dirty = min((d for d in (*again, *(() if self.dirty is None else (self.dirty,))) if d <= self.mature), default=None)
        self.unsaved, self.dirty = self.unsaved or dirty != self.dirty, dirty
        if not days or days[-1] <= self.mature or self.test is None:
            return
        learnt = self._learnt(self.test) if isinstance(self.test, Promise) else []
        self.dirty = min((d for d in (self.dirty, *learnt) if d is not None), default=None)
        first = self.mature + 1
        if self.dirty is not None:
            # Evidence after the day before; where that is not remembered, from the first day on.
            before = max((d for d in self.history if d < self.dirty), default=None)
            first, then = (self.first, {}) if before is None else (before + 1, self.history[before])
            label_free = {r.name: self.evidence[r.name] for r in self.rules if r.basis == "scored" and r.name in self.evidence}
            self.evidence = {**label_free, **then}
        for day in days:
            if day >= first:
                self._see("mature", day, tables(day))
        self.mature, self.dirty = days[-1], None
        self._changed()
        oldest = self.mature - _HISTORY
        self.history = {d: then for d, then in self.history.items() if d > oldest or (d % _KEPT == 0 and d > oldest - _KEPT)}
        # The oldest day that may be looked at again is compared with those before it.
        self.coverage = {d: c for d, c in self.coverage.items() if d > oldest - _REMEMBERED}
        self.skipped = {d: reason for d, reason in self.skipped.items() if d > oldest}

    def _learnt(self, test: Promise) -> list[int]:
        """Return the first day that counts for each rule that has seen none of those that were looked at: it was learning."""
        able = [r.name for r in self.rules if r.basis == "mature" and not test.reason(r.detector) and r.name not in self.evidence]
        return [since for name in able if (since := self.since.get(name, 0)) <= self.mature]

    def see_ended(self, day: int, tables: Mapping[str, Table]) -> None:
        """Look at the scores of a day that ended; of a day without events there are no tables."""
        self.volume[day] = tables["all"].n if tables else 0
        if tables:
            self.recent[day] = {name: replace(all_rows(t), features=None) for name, t in tables.items()}
            if self.test is not None:
                self._see("scored", day, tables)
        self.ended = day
        self._changed()
        self.volume = {d: n for d, n in self.volume.items() if d >= day - _REMEMBERED}
        self.recent = _newest(self.recent, day)

    def _see(self, basis: str, day: int, tables: Mapping[str, Table]) -> None:
        assert self.test is not None
        if day < self.first:
            return
        if basis == "mature":
            self.skipped.pop(day, None)
            if reason := self._uncovered(day, tables["all"]):
                self.skipped[day] = reason
        if basis == "scored" or day not in self.skipped:
            for rule in self.rules:
                if rule.basis == basis and day >= self.since.get(rule.name, 0) and not self.test.reason(rule.detector):
                    after = self.test.look(rule, self.evidence.get(rule.name), day, tables)
                    if after is not None:
                        self.evidence[rule.name] = after
        if basis == "mature":
            self.history[day] = {
                r.name: self.evidence[r.name] for r in self.rules if r.name in self.evidence and r.basis == basis
            }

    def _uncovered(self, day: int, table: Table) -> str:
        """Return `coverage` when far fewer labels than usual came for the day, else nothing."""
        covered = readings.coverage(table, self.labels)
        if covered is None:
            return ""
        earlier = [share for d, (share, _) in self.coverage.items() if day - _REMEMBERED <= d < day]
        self.coverage[day] = covered, table.n
        return "coverage" if len(earlier) >= 3 and covered < _ENOUGH * median(earlier) else ""

    # What they say.

    def detections(self, key: Key, days: Iterable[int], of: Callable[[Iterable[int], str], Table]) -> tuple[Detection, ...]:
        """Return what each rule with a detector sees; `of` gives the table of mature days and a slice, `days` are the newest."""
        mature = tuple(days)

        def window(rule: Rule, part: str) -> tuple[list[int], Table]:
            if rule.basis == "mature":
                chosen = self.days_of(rule, mature)
                return chosen, of(chosen, part)
            return [d for d in self.recent if d >= self._from(rule)], self.scores(rule, part)

        found = tuple(self._detection(rule, key, window) for rule in self.rules)
        return (_together(self.canary, found, key),) if self.canary and found else found

    def _detection(self, rule: Rule, key: Key, window: Window) -> Detection:
        nothing = Estimate(rule.detector + EVIDENCE, key, rule.window, rule.basis, None, None, None, 0, "no_baseline")
        limit = limit_of(rule)
        if self.test is None:
            return Detection(rule.name, rule.detector, nothing, replace(nothing, metric=rule.detector + EFFECT), limit)
        lr = self.test.spread(rule.detector)
        reason = self.test.reason(rule.detector) or ("low_traffic" if self.weight <= FEW else "")
        effect = replace(nothing, metric=rule.detector + EFFECT, reason=reason) if reason else self._effect(rule, key, window)
        evidence = None if reason else self.evidence.get(rule.name)
        if evidence is None:
            nothing = replace(nothing, reason=reason or self._not_yet(rule))
            return Detection(rule.name, rule.detector, nothing, effect, limit, lr=lr)
        value = detectors.log_evidence(evidence) + (math.log(self.weight) if self.weight < 1 else 0.0)
        seen = replace(nothing, value=value, n=evidence.rows, reason="")
        slices = detectors.shares(evidence)
        if value > limit:
            # Evidence of a slice is about that slice: where it is off, the whole may be hardly so.
            named = [self._effect(rule, key._replace(slice=name), window) for name, _ in slices]
            effect = max((e for e in named if e.value is not None), key=partial(_beyond, rule), default=effect)
        return Detection(rule.name, rule.detector, seen, effect, limit, evidence.looks, evidence.since, slices, lr)

    def _effect(self, rule: Rule, key: Key, window: Window) -> Estimate:
        assert self.test is not None
        days, table = window(rule, key.slice)
        found = self.test.effect(rule, days, key.slice, table) if table.n else self._not_yet(rule)
        nothing = Estimate(rule.detector + EFFECT, key, rule.window, rule.basis, None, None, None, table.n)
        return replace(nothing, **({"reason": found} if isinstance(found, str) else found._asdict()))

    def scores(self, rule: Rule, part: str) -> Table:
        """Return the rows of a slice of the last days that ended which the effect of a rule may be about."""
        return total([t.get(part, EMPTY) for d, t in self.recent.items() if d >= self._from(rule)])

    def _from(self, rule: Rule) -> int:
        """Return the first day that the effect of a rule may be about."""
        return max(self.first, self.changed if METRICS[rule.shown].decided else 0, self._calibrated(rule))

    def _calibrated(self, rule: Rule) -> int:
        """Return the first day with the scores that the rule is about."""
        return self.calibrated if rule.detector in OF_PROBABILITIES else 0

    def _not_yet(self, rule: Rule) -> str:
        """Return why no day was looked at."""
        return "no_days_since" if 0 < self._calibrated(rule) > self.mature else "no_mature_days"

    def days_of(self, rule: Rule, days: Iterable[int]) -> list[int]:
        """Return those of the mature days that the effect of a rule may be about."""
        return [d for d in days if d >= self._from(rule) and d not in self.skipped]

    def ratios(self, key: Key, volumes: Mapping[int, float]) -> tuple[Estimate, Estimate]:
        """Return how the rows of the last day that ended and the labels of the newest mature day compare with the days before.

        Rows are compared with the weekday that usually has the fewest, so that a weekend is no loss and a day that was lost is
        not what the next one is compared with; label coverage with the median day. `volumes` are rows of all versions by day.
        """
        rows, covered = volumes.get(self.ended, 0.0), {d: share for d, (share, _) in self.coverage.items()}
        labelled = self.coverage.get(self.mature, (0.0, 0))[1]
        return (
            _ratio("volume_ratio", key, "scored", volumes, self.ended, _fewest, max(int(rows), 1)),
            _ratio("coverage_ratio", key, "mature", covered, self.mature, _middle, labelled),
        )

    # Between two starts.

    def dump(self) -> bytes:
        """Return what `load` needs."""
        self.unsaved = False
        body = {
            "of": {r.name: r.detector for r in self.rules},
            "evidence": _to_dict(self.evidence),
            "history": {day: _to_dict(then) for day, then in self.history.items() if day % _KEPT == 0},
            "recent": {day: blob(tables) for day, tables in self.recent.items()},
            **{name: getattr(self, name) for name in _PLAIN},
        }
        return msgspec.msgpack.encode(body)

    def load(self, dumped: bytes) -> None:
        """Go on from what `dump` returned, but for rules with another detector now; raise ValueError when it is nothing such."""
        try:
            self._load(msgspec.msgpack.decode(dumped, strict=False))
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"the evidence cannot be read ({e!r})") from None

    def _load(self, body: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, body[name])
        known = {r.name for r in self.rules if body["of"].get(r.name) == r.detector}
        self.evidence, *then = (
            {name: detectors.from_dict(e) for name, e in said.items() if name in known}
            for said in (body["evidence"], *body["history"].values())
        )
        self.history = dict(zip(body["history"], then, strict=True))
        self.recent = {day: unblob(tables) for day, tables in body["recent"].items()}


_PLAIN = (
    "digest",
    "since",
    "decides",
    "changed",
    "calibrated",
    "first",
    "weight",
    "mature",
    "ended",
    "dirty",
    "volume",
    "coverage",
    "skipped",
)


def _to_dict(evidence: Mapping[str, Evidence]) -> dict[str, dict[str, Any]]:
    return {name: detectors.to_dict(e) for name, e in evidence.items()}


def _together(name: str, found: Sequence[Detection], key: Key) -> Detection:
    """Return what all contrasts of a canary say: evidence is the mean of theirs, the effect that of the one with most of it."""
    values = [NO_EVIDENCE if d.evidence.value is None else d.evidence.value for d in found]
    most = max(values)
    lead = found[values.index(most)]
    mean = most + math.log(sum(math.exp(v - most) for v in values) / len(values))
    evidence = replace(lead.evidence, metric="canary" + EVIDENCE, key=key)
    if evidence.value is not None:
        evidence = replace(evidence, value=mean)
    effect, large = replace(lead.effect, metric="canary" + EFFECT), EFFECTS[lead.detector][0]
    if effect.value is not None:
        effect = replace(effect, value=abs(effect.value) / large, low=None, high=None)
    return replace(lead, rule=name, detector=lead.detector, evidence=evidence, effect=effect)


def _newest(by_day: Mapping[int, dict[str, Table]], day: int) -> dict[int, dict[str, Table]]:
    """Return the tables of the last ENDED days before and at `day`, and of those before until there are ROWS rows."""
    out: dict[int, dict[str, Table]] = {}
    for d in sorted(by_day, reverse=True):
        if d <= day - _REMEMBERED or (d <= day - ENDED and sum(t["all"].n for t in out.values()) >= ROWS):
            break
        out[d] = by_day[d]
    return out


def _beyond(rule: Rule, effect: Estimate) -> float:
    """Return how far an effect goes to the side that the rule is about."""
    assert effect.value is not None
    fires = rule.fires[0]
    return effect.value if fires.low is None else -effect.value if fires.high is None else abs(effect.value)


def _fewest(by_day: Mapping[int, float]) -> float:
    """Return what is usual on the weekday with the least: the upper median, as one of two days may be the one that was lost."""
    weekdays = {d % _WEEK for d in by_day}
    return min(median_high(x for d, x in by_day.items() if d % _WEEK == weekday) for weekday in weekdays)


def _middle(by_day: Mapping[int, float]) -> float:
    return median(by_day.values())


def _ratio(
    metric: str,
    key: Key,
    basis: str,
    by_day: Mapping[int, float],
    day: int,
    usual: Callable[[Mapping[int, float]], float],
    n: int,
) -> Estimate:
    """Return the number of a day over what is usual in the 28 before, of which seven are needed."""
    before = {d: x for d, x in by_day.items() if day - _REMEMBERED <= d < day}
    said = Estimate(metric, key, "7d", basis, None, None, None, n)
    if day not in by_day or len(before) < _WEEK:
        return replace(said, reason="few_days")
    if not usual(before):
        return replace(said, reason="no_events")
    return replace(said, value=by_day[day] / usual(before))
