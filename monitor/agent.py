"""The program: events in, ticks, snapshots out. It wires everything and decides nothing."""

import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from monitor.actions.rollback import Change, Policies, PolicyError, activate, carry_out, checksum, rollback
from monitor.clock import EventClock, WallClock, wall
from monitor.config import Config, FileSource, HttpSource, Model
from monitor.core import baseline as baselines
from monitor.core import guards, readings, rules
from monitor.core.baseline import Baseline
from monitor.core.compare import policy_volume
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
from monitor.core.events import (
    DAY,
    FUTURE,
    HOUR,
    NONE,
    UNDECIDED,
    Batch,
    Entry,
    Ints,
    Labels,
    Predictions,
    Receipt,
    Rejection,
)
from monitor.core.guards import Decision, Standing
from monitor.core.metrics import METRICS, Estimate, measure
from monitor.core.policy import Policy, decide, from_json
from monitor.core.readings import Reading
from monitor.core.rules import Alert, Rule
from monitor.core.snapshot import Snapshot, Version
from monitor.core.tables import EMPTY, Table, next_edge, tables, total
from monitor.exporter import Exporter
from monitor.formats import Decoder
from monitor.series import SLICE_ESTIMATES
from monitor.sources.file import FileSource as FileReader
from monitor.store import NEWS, TOO_OLD, UNKNOWN, StateError, Store

log = logging.getLogger("scorewatch")

SCORED = tuple(name for name, m in METRICS.items() if not m.outcomes)
OUTCOMES = tuple(name for name, m in METRICS.items() if m.outcomes)
_SLICE_SCORED = tuple(name for name in (*SLICE_ESTIMATES, "mean_score") if not METRICS[name].outcomes)
_SLICE_OUTCOMES = tuple(name for name in SLICE_ESTIMATES if METRICS[name].outcomes)
_MONTH = (
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
_STEPS = np.arange(1, 20) / 20
"""Upper bounds of the score histogram; Prometheus counts a score equal to a bound below it."""
TIMELINE = 20_000
"""So many of the newest timeline items are kept."""


@dataclass(slots=True)
class Measured:
    """What mature windows of one version said, and from which days; made anew only when those change."""

    days: tuple[Any, ...]
    estimates: tuple[Estimate, ...]
    readings: dict[tuple[Key, str], Reading]


@dataclass(slots=True)
class Watched:
    """What the agent keeps in memory for one version; all of it can be made again from the store and the files."""

    code: int
    model: Model
    name: str
    baseline: Baseline | None = None
    members: NDArray[np.int32] = field(default_factory=lambda: np.zeros((1, 1), np.int32))
    hours: dict[int, list[Table]] = field(default_factory=dict)
    following: dict[int, dict[int, int]] = field(default_factory=dict)
    days: dict[int, Mapping[str, Table]] = field(default_factory=dict)
    revision: int = 0
    measured: Measured | None = None
    promised: tuple[Any, tuple[Estimate, ...]] = (None, ())
    histogram: NDArray[np.float64] | None = None
    score_sum: float = 0.0
    seen: int = 0
    stale: bool = True
    open_months: set[str] = field(default_factory=set)

    @property
    def slices(self) -> tuple[str, ...]:
        """Return the names of the slices, `all` first."""
        return self.baseline.slices if self.baseline else ("all",)

    @property
    def edges(self) -> Ints | None:
        """Return the frozen calibration edges."""
        return self.baseline.edges if self.baseline else None


class Agent:
    """One state directory, its models and its clock. All methods are called from one thread.

    `snapshot` and `exporter.text` are replaced as wholes and may be read from any thread. Raises StateError when the
    state directory, a baseline or a policies folder cannot be used.
    """

    def __init__(self, config: Config, version: str, durable: bool = True) -> None:
        self.config = config
        self.store = Store(config.state, config.hash, config.waiting_rows, durable)
        self.clock: WallClock | EventClock
        last = self.store.meta.get("last_tick")
        self.clock = WallClock(last) if config.clock == "wall" else EventClock(config.tick, last)
        kinds = {"http" if isinstance(s, HttpSource) else "file" for s in config.sources}
        self.exporter = Exporter(version, kinds, config.tick / 1000 if config.clock == "wall" else None)
        self.counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.timeline: deque[dict[str, Any]] = deque(maxlen=TIMELINE)
        self.told = 0
        self.timeline_days = False
        self.newest_label: dict[str, int] = {}
        self.alerts: dict[tuple[str, str, str], Alert] = {}
        self.decided: dict[tuple[str, str, str], str] = {}
        self.snapshot = Snapshot(None)
        self._load()

    # Start: everything in memory is made from the store and the files.

    def _load(self) -> None:
        self.baselines = {name: self._read_baseline(m) for name, m in self.config.models.items() if m.baseline}
        self.policies: dict[str, Policies] = {}
        self.loaded: dict[tuple[str, str, str], Policy] = {}
        journal = self.store.log.journal()
        self.standings = guards.standings(journal)
        self.last_change = {(e.model, e.version): e for e in journal if e.kind in ("activated", "rolled_back")}
        for entry in journal:
            if entry.kind in ("alert", "decision"):
                self._fold(entry)
        self.watched: dict[int, Watched] = {}
        self.counted = self.store.tail
        now = self.clock.now
        for code in range(len(self.store.versions.names)):
            self._watch(code)
        seen = json.loads(self.store.meta.get("seen", "{}"))
        for w in self.watched.values():
            w.seen = seen.get(str(w.code), self.store.newest.get(w.code, 0))
        if now is not None:
            self.store.keep_from = self._keep_from(now)

    def _read_baseline(self, model: Model) -> Baseline:
        assert model.baseline is not None
        try:
            made = baselines.from_json(model.baseline.read_text())
        except (OSError, ValueError) as e:
            raise StateError(f"{model.baseline}: {e}; build it anew or take `models.{model.name}.baseline` out") from None
        if made.segments != model.segments:
            raise StateError(
                f"{model.baseline}: was built with segments {list(made.segments)}, models.{model.name}.segments is "
                f"{list(model.segments)}; make them the same"
            )
        return made

    def _fold(self, entry: Entry) -> None:
        key = entry.model, entry.version, entry.body["rule"]
        if entry.kind == "decision":
            self.decided[key] = entry.body["reason"]
        elif entry.body["state"] == "resolved":
            self.alerts.pop(key, None)
            self.decided.pop(key, None)
        else:
            self.alerts[key] = Alert(key[2], *key[:2], entry.body["severity"], entry.body["state"], entry.body["since"])

    def model(self, name: str) -> Model:
        """Return the configuration of a model; the entry "*" serves any other."""
        return self.config.models.get(name) or replace(self.config.models["*"], name=name)

    def _watch(self, code: int) -> Watched | None:
        """Begin to keep a version in memory; a version of a model that is no longer configured is not watched."""
        name, version = self.store.versions.names[code]
        if name not in self.config.models and "*" not in self.config.models:
            return None
        w = self.watched[code] = Watched(code, self.model(name), version)
        if name not in self.policies:
            self.policies[name] = Policies(w.model.policies or self._folder("policies", name), name)
        baseline = self.baselines.get(name)
        if baseline is None:
            path = self._folder("baselines", name, version).with_suffix(".json")
            if path.exists():
                baseline = baselines.from_json(path.read_text())
                baseline = baseline if baseline.segments == w.model.segments else None
        self._use(w, baseline)
        now = self.clock.now
        if now is not None:
            last = newest_mature(now, w.model.labels.horizon)
            for v, day in self.store.closed:
                if v == code and day > last - WINDOWS["28d"] // DAY:
                    w.days[day] = self.store.log.day(v, day)
                if v == code and month_end(month_of(day)) > last:
                    w.open_months.add(month_of(day))
        return w

    def _folder(self, *parts: str) -> Any:
        safe = ["".join(c if c.isalnum() or c in "-_" else f"%{ord(c):02X}" for c in part) for part in parts]
        return self.config.state.joinpath(*safe)

    def _use(self, w: Watched, baseline: Baseline | None) -> None:
        w.baseline, w.stale = baseline, True
        w.revision += 1
        self._members(w)

    def _members(self, w: Watched) -> None:
        if w.baseline:
            w.members = baselines.members(w.baseline.slices, self.store.combos.names, w.baseline.segments)
        else:
            w.members = np.zeros((1, max(len(self.store.combos.names), 1)), np.int32)

    def decoder(self) -> Decoder:
        """Return a decoder for the configured models; each thread needs its own."""
        return Decoder(self.store.hasher, {name: m.segments for name, m in self.config.models.items()})

    def file_sources(self) -> list[FileReader]:
        """Return the configured files at their stored positions, predictions before labels."""
        order = {"predictions": 0, "events": 1, "labels": 2}
        files = [s for s in self.config.sources if isinstance(s, FileSource)]
        return [
            FileReader(s.path, s.kind, s.format, s.follow, self.decoder(), self.store.positions.get(f"file:{s.path}"))
            for s in sorted(files, key=lambda s: order[s.kind])
        ]

    @property
    def http(self) -> HttpSource | None:
        """Return the configuration of the http source, None when there is none."""
        return next((s for s in self.config.sources if isinstance(s, HttpSource)), None)

    def add(self, name: str, value: float, **labels: str) -> None:
        """Count something that the exporter shows."""
        key = name, tuple(labels.items())
        self.counters[key] = self.counters.get(key, 0) + value

    # A prediction's and a label's way.

    def ingest(self, batches: Sequence[Batch]) -> list[Receipt]:
        """Store the events of the batches in one go and return a receipt for each, after the commit.

        Nothing is counted here but what was received. The position of a batch is committed with the last of its events.
        Raises Full when the store has no room; then nothing was taken.
        """
        rejected: list[list[Rejection]] = [list(b.rejected) for b in batches]
        offered = [self._admit_predictions(b.predictions, bad) for b, bad in zip(batches, rejected, strict=True)]
        labels = [self._admit_labels(b.labels, bad) for b, bad in zip(batches, rejected, strict=True)]
        positions = {b.source: b.position for b in batches if b.position}
        fresh: NDArray[np.bool_] = np.empty(0, bool)
        became: NDArray[np.int8] = np.empty(0, np.int8)
        if some := [p for p in offered if p is not None]:
            # A batch's position goes with its last part: labels sent twice do no harm, labels skipped would be lost.
            later = any(part is not None for part in labels)
            everything = Predictions.concat(some)
            fresh = self.store.append(everything, {} if later else positions)
            self._arrived(everything, fresh)
        if parts := [part for part in labels if part is not None]:
            became = self.store.label(Labels.concat(parts), positions)
            self._labels_arrived(parts)
        elif positions and not some:
            with self.store.log.transaction():
                self.store.log.set_positions(positions)
        return self._receipts(batches, offered, labels, fresh, became, rejected)

    def _admit_predictions(self, p: Predictions | None, bad: list[Rejection]) -> Predictions | None:
        """Return the predictions that may be stored, with their verdicts, and note why others may not."""
        if p is None:
            return None
        p = _in_time(p, bad)
        if len(p) and (refused := self.store.full_versions(p.version.used())):
            p = _reject(p, np.array([n in refused for n in p.version.names])[p.version.codes], bad, "too_many_versions")
        if len(p) and self.clock.now is not None:
            left = [self.store.left.get(self.store.versions.code.get(name, -1), 0) for name in p.version.names]
            kept = [
                max(day, self._oldest_kept(self.model(m), self.clock.now))
                for day, (m, _) in zip(left, p.version.names, strict=True)
            ]
            p = _reject(p, p.ts // DAY < np.array(kept)[p.version.codes], bad, "too_old")
        return self._verdicts(p, bad) if len(p) else None

    def _admit_labels(self, labels: Labels | None, bad: list[Rejection]) -> Labels | None:
        labels = None if labels is None else _in_time(labels, bad)
        return labels if labels is not None and len(labels) else None

    def _oldest_kept(self, model: Model, now: int) -> int:
        return oldest_kept(now, model.labels.horizon, model.labels.corrections)

    def _verdicts(self, p: Predictions, bad: list[Rejection]) -> Predictions | None:
        """Return the predictions with the verdict that the policy says where the event gave none."""
        verdict = p.verdict.copy()
        unknown = np.zeros(len(p), bool)
        for code, (name, version) in enumerate(p.version.names):
            mine = (p.version.codes == code) & (verdict == UNDECIDED)
            for named_code, named in enumerate(p.policy.names if mine.any() else ()):
                at = np.flatnonzero(mine & (p.policy.codes == named_code))
                if not len(at):
                    continue
                if named:
                    policy = self._policy(name, version, named)
                    unknown[at] = policy is None
                    verdict[at] = NONE if policy is None else decide(policy.threshold, p.score[at])
                else:
                    verdict[at] = self._current_verdicts(name, version, p.ts[at], p.score[at])
        decided = replace(p, verdict=verdict)
        if unknown.any():
            decided = _reject(decided, unknown, bad, "unknown_policy")
        return decided if len(decided) else None

    def _current_verdicts(self, name: str, version: str, ts: Ints, score: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return what the policy that was current at each event's time says; before the first one, the configured threshold."""
        served = self.standings.get((name, version), Standing()).served
        configured = self.model(name).threshold
        out = np.full(len(ts), NONE, np.uint8) if configured is None else decide(next_edge(configured), score)
        which = np.searchsorted(np.array([at for at, _ in served], np.int64), ts, side="right") - 1
        for i in np.unique(which).tolist():
            policy = self._policy(name, version, served[i][1]) if i >= 0 else None
            if policy is not None:
                at = which == i
                out[at] = decide(policy.threshold, score[at])
        return out

    def _policy(self, name: str, version: str, ident: str) -> Policy | None:
        """Return a policy from memory or its file, None when it cannot be used; policies never change, so one look is enough."""
        key = name, version, ident
        if key not in self.loaded:
            folder = self.policies.get(name) or Policies(self.model(name).policies or self._folder("policies", name), name)
            self.policies[name] = folder
            try:
                self.loaded[key] = folder.read(version, ident)
            except PolicyError as e:
                log.warning("%s", e)
                return None
        return self.loaded[key]

    def _arrived(self, p: Predictions, fresh: NDArray[np.bool_]) -> None:
        counts = np.bincount(p.version.codes[fresh], minlength=len(p.version.names)).tolist()
        for (name, version), n in zip(p.version.names, counts, strict=True):
            code = self.store.versions.code.get((name, version))
            if code is None:
                continue  # all of its events were rejected
            w = self.watched.get(code) or self._watch(code)
            if w is not None and n:
                now = int(p.ts.max()) if isinstance(self.clock, EventClock) else self.clock.now
                w.seen = max(w.seen, now)
                self.add("scorewatch_predictions_total", n, model=name, version=version, role=w.model.role(version))

    def _labels_arrived(self, parts: Iterable[Labels]) -> None:
        for part in parts:
            for code, (name, _) in enumerate(part.version.names):
                mine = part.ts[part.version.codes == code]
                if len(mine):
                    self.newest_label[name] = max(self.newest_label.get(name, 0), int(mine.max()))

    def _receipts(
        self,
        batches: Sequence[Batch],
        offered: Sequence[Predictions | None],
        labels: Sequence[Labels | None],
        fresh: NDArray[np.bool_],
        became: NDArray[np.int8],
        rejected: list[list[Rejection]],
    ) -> list[Receipt]:
        receipts, a, b = [], 0, 0
        for batch, p, part, bad in zip(batches, offered, labels, rejected, strict=True):
            accepted = duplicates = 0
            if p is not None:
                accepted = int(fresh[a : a + len(p)].sum())
                duplicates, a = len(p) - accepted, a + len(p)
            if part is not None:
                mine, b = became[b : b + len(part)], b + len(part)
                for code, reason in ((UNKNOWN, "unknown_id"), (TOO_OLD, "too_old")):
                    bad.extend(Rejection(i, reason, "") for i in part.index[mine == code].tolist())
                news = int((mine == NEWS).sum())
                accepted += news
                duplicates += int((mine > TOO_OLD).sum()) - news
            receipts.append(Receipt(accepted, duplicates, tuple(sorted(bad))))
            self._count_receipt(batch, receipts[-1])
        return receipts

    def _count_receipt(self, batch: Batch, receipt: Receipt) -> None:
        size = receipt.accepted + receipt.duplicates + len(receipt.rejected)
        self.add("scorewatch_events_total", size, source=_kind(batch.source))
        self.add("scorewatch_events_accepted_total", receipt.accepted, source=_kind(batch.source))
        self.add("scorewatch_events_duplicate_total", receipt.duplicates, source=_kind(batch.source))
        self.add("scorewatch_scores_clipped_total", batch.clipped, source=_kind(batch.source))
        for r in receipt.rejected:
            self.add("scorewatch_events_rejected_total", 1, source=_kind(batch.source), reason=r.reason)

    # A tick's way.

    def tick(self, now: int) -> None:
        """Close days, measure them, look at the rules, act, and record all of it at once."""
        begun = time.perf_counter()
        changes = self._sync_policies(now)
        closing = self._close(now)
        active = [w for w in self.watched.values() if self._active(w, now)]
        self._measure(active, now)
        alerts, ended = self._look(active, now)
        decisions = self._decide(alerts, active)
        changes += self._act(decisions, now)
        entries = self._record(now, closing, alerts, ended, decisions, changes)
        self._prune(now)
        self._note_timeline(now, closing, entries)
        self.counters["scorewatch_tick_duration_seconds", ()] = time.perf_counter() - begun

    def publish(self) -> None:
        """Make the snapshot of the last tick, and render it with the present counters for the next scrapes."""
        if (now := self.clock.last) is not None and self.watched:
            active = [w for w in self.watched.values() if self._active(w, now)]
            self._measure(active, now)
            self._count(now)
            self.snapshot = self._say(now, active)
        self.counters["scorewatch_store_rows", ()] = self.store.tail - self.store.head
        self.counters["scorewatch_store_rows_limit", ()] = self.store.max_rows
        self.counters["scorewatch_prediction_conflicts_total", ()] = self.store.conflicts
        self.counters["scorewatch_segment_overflow_total", ()] = self.store.overflown_combos
        for change, n in self.store.corrections.items():
            self.counters["scorewatch_label_corrections_total", (("reason", change),)] = n
        for name, ts in self.newest_label.items():
            self.counters["scorewatch_last_label_timestamp_seconds", (("model", name),)] = ts / 1000
        self.snapshot = replace(self.snapshot, counters=dict(self.counters))
        self.exporter.render(self.snapshot)

    def _count(self, now: int) -> None:
        """Bring the tables of the last hours forward by the rows since the last tick."""
        for rows in self.store.rows_since(self.counted):
            for code in np.unique(rows["version"]).tolist():
                if (w := self.watched.get(code)) is not None:
                    mine = rows[rows["version"] == code]
                    self._histogram(w, mine)
                    if not w.stale:
                        self._count_hours(w, mine, now)
        self.counted = self.store.tail
        for w in self.watched.values():
            if w.stale:
                self._recount_hours(w, now)

    def _recount_hours(self, w: Watched, now: int) -> None:
        """Count the last hours from the rows: at start, and when a new baseline changed the slices."""
        w.hours, w.following, w.stale = {}, {}, False
        for code, day in sorted(self.store.spans):
            if code == w.code and (day + 2) * DAY > now - WINDOWS["24h"]:
                for rows, _ in self.store.pieces_of(code, day):
                    self._count_hours(w, rows, now)

    def _count_hours(self, w: Watched, rows: NDArray[Any], now: int) -> None:
        hour = rows["ts"] // HOUR
        if len(rows) and w.members.shape[1] <= int(rows["combo"].max()):
            self._members(w)
        for h in np.unique(hour[hour >= recent_hours(now, "24h").start]).tolist():
            mine = rows[hour == h]
            fresh = tables(mine, None, w.members, len(w.slices))
            w.hours[h] = [a + b for a, b in zip(w.hours[h], fresh, strict=True)] if h in w.hours else fresh
            named = w.following.setdefault(h, {})
            for code, n in zip(*(a.tolist() for a in np.unique(mine["policy"], return_counts=True)), strict=True):
                named[code] = named.get(code, 0) + n

    def _histogram(self, w: Watched, rows: NDArray[Any]) -> None:
        counts = np.bincount(np.searchsorted(_STEPS, rows["score"]), minlength=len(_STEPS) + 1)
        seen = w.histogram if w.histogram is not None else np.zeros(len(_STEPS) + 1)
        w.histogram, w.score_sum = seen + counts, w.score_sum + float(rows["score"].sum())

    def _close(self, now: int) -> dict[tuple[int, int], dict[str, Table]]:
        """Return the final tables of the days that matured since the last tick or have to be counted again."""
        started = self.clock.started if isinstance(self.clock, WallClock) else 0
        closing = {}
        for (code, day), span in sorted(self.store.spans.items()):
            w = self.watched.get(code)
            if w is None or ((code, day) in self.store.closed and (code, day) not in self.store.recount):
                continue
            matures = matures_at(day, w.model.labels.horizon)
            # History that is being read in right now: its labels may be in the next request.
            arriving = matures < started and (code, day) in self.store.touched
            if matures > now or arriving or span.last <= self.store.head:
                continue
            if w.baseline is None or not w.baseline.promises:
                self._observe(w, day)
            self._members(w)
            counted = baselines.count_pieces(self.store.pieces_of(code, day), w.members, len(w.slices))
            closing[code, day] = {n: t for n, t in zip(w.slices, counted, strict=True) if t is not EMPTY or n == "all"}
            w.days[day] = closing[code, day]
            w.open_months.add(month_of(day))
            w.revision += 1
            if w.stale:
                self._recount_hours(w, now)
        return closing

    def _observe(self, w: Watched, day: int) -> None:
        """Write a baseline from what was served, where validation gave none: after the first full day and after 28."""
        earlier = sorted(d for v, d in self.store.closed if v == w.code and d < day)
        first = min(d for v, d in self.store.spans if v == w.code)
        if w.baseline is None:
            days = [day] if day > first or earlier else []
        else:
            kept = [d for d in earlier[-27:] if (w.code, d) in self.store.spans]
            days = [*kept, day] if w.baseline.provenance["days"] == 1 and len(kept) == 27 else []
        if not days:
            return
        provenance = {
            "kind": "observed",
            "days": len(days),
            "first_day": iso(days[0] * DAY)[:10],
            "last_day": iso(day * DAY)[:10],
        }
        pieces = partial(self.store.pieces_of, w.code)
        made = baselines.build_by_day(w.model.name, w.name, w.model.segments, days, pieces, self.store.combos.names, provenance)
        made = replace(made, checksum="sha256:" + hashlib.sha256(baselines.to_json(made).encode()).hexdigest())
        path = self._folder("baselines", w.model.name, w.name).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(baselines.to_json(made))
        fresh.replace(path)
        self._use(w, made)

    def _active(self, w: Watched, now: int) -> bool:
        """Return whether the version is still spoken of: it has events, days that wait, or a last day that just matured."""
        if any(v == w.code and (v, d) not in self.store.closed for v, d in self.store.spans):
            return True
        newest = max((d for v, d in self.store.closed if v == w.code), default=None)
        matured = 0 if newest is None else matures_at(newest, w.model.labels.horizon)
        return now - max(w.seen, min(matured, now)) <= w.model.idle_after

    def _measure(self, active: Iterable[Watched], now: int) -> None:
        """Measure the mature windows of every version; they are made anew only when their days changed."""
        for w in active:
            wanted = tuple(mature_window(w.days, now, w.model.labels.horizon, window) for window in MATURE)
            state = (wanted, w.revision, self._threshold(w))
            if w.measured is None or w.measured.days != state:
                w.measured = self._mature(w, now, wanted, state)

    def _hours(self, w: Watched, window: str, now: int) -> list[Table]:
        hours = [w.hours[h] for h in recent_hours(now, window) if h in w.hours]
        return [total([h[i] for h in hours]) for i in range(len(w.slices))]

    def _recent(self, w: Watched, window: str, now: int) -> list[Estimate]:
        out: list[Estimate] = []
        for i, table in enumerate(self._hours(w, window, now)):
            if i and window == "1h":
                break
            key = Key(w.model.name, w.name, w.slices[i], now // DAY)
            reference = readings.scored(w.baseline.table("all")) if w.baseline and not i else None
            names = _SLICE_SCORED if i else SCORED
            out += measure(readings.scored(table), key, window, w.edges, reference, names)
        return out

    def _mature(self, w: Watched, now: int, wanted: tuple[tuple[int, ...], ...], state: tuple[Any, ...]) -> Measured:
        estimates: list[Estimate] = []
        kept: dict[tuple[Key, str], Reading] = {}
        last = newest_mature(now, w.model.labels.horizon)
        for window, days in zip(MATURE, wanted, strict=True):
            for name in w.slices:
                if name != "all" and window != "28d":
                    continue
                table = total([w.days[d].get(name, EMPTY) for d in days])
                key = Key(w.model.name, w.name, name, last)
                reading = readings.mature(table, w.model.labels.missing)
                kept[key, window] = reading
                reference = readings.scored(w.baseline.table("all")) if w.baseline and name == "all" else None
                scored = readings.scored(table) if days else replace(readings.scored(table), reason="no_mature_days")
                estimates += measure(scored, key, window, w.edges, reference, SCORED if name == "all" else _SLICE_SCORED)
                estimates += measure(reading, key, window, w.edges, None, OUTCOMES if name == "all" else _SLICE_OUTCOMES)
        return Measured(state, tuple(estimates), kept)

    def _promised(self, w: Watched) -> tuple[Estimate, ...]:
        """Return what validation promised under the current policy."""
        if w.baseline is None or not w.baseline.promises:
            return ()
        threshold = self._threshold(w)
        if w.promised[0] != (threshold, w.revision and w.baseline.checksum):
            out: list[Estimate] = []
            for name in w.slices:
                key = Key(w.model.name, w.name, name, w.baseline.until // DAY - 1)
                reading = readings.baseline(w.baseline.table(name), threshold)
                names = (*OUTCOMES, "flagged_share") if name == "all" else SLICE_ESTIMATES
                out += [e for e in measure(reading, key, "", w.edges, None, names) if not e.reason]
            w.promised = ((threshold, w.revision and w.baseline.checksum), tuple(out))
        return w.promised[1]

    def _served(self, w: Watched) -> Policy | None:
        ident = self.standings.get((w.model.name, w.name), Standing()).current
        return self._policy(w.model.name, w.name, ident) if ident else None

    def _threshold(self, w: Watched) -> float | None:
        policy = self._served(w)
        if policy is not None:
            return policy.threshold
        return None if w.model.threshold is None else next_edge(w.model.threshold)

    # Rules, decisions, actions.

    def _look(self, active: Sequence[Watched], now: int) -> tuple[list[Alert], list[Alert]]:
        """Return the alerts that are pending or firing after this tick, and those that ended with it."""
        alerts: list[Alert] = []
        ended: list[Alert] = []
        spoken = {(w.model.name, w.name): w for w in active}
        for key, alert in list(self.alerts.items()):
            w = spoken.get(key[:2])
            reason = "version_gone" if w is None else "" if any(r.name == alert.rule for r in w.model.rules) else "switched_off"
            if reason:
                ended += [rules.resolved(alert, reason, now)] if alert.state == "firing" else []
                del self.alerts[key]
        for w in active:
            for rule in w.model.rules if w.model.role(w.name) == "live" else ():
                key = w.model.name, w.name, rule.name
                before = self.alerts.get(key)
                unwatched = self._unwatched(rule, w, now)
                if unwatched is not None:
                    ended += [rules.resolved(before, unwatched, now)] if before is not None and before.state == "firing" else []
                    self.alerts.pop(key, None)
                    continue
                after = rules.step(rule, *key[:2], before, self._evidence(rule, w, now), now)
                if after is None or after.state == "resolved":
                    self.alerts.pop(key, None)
                    ended += [after] if after is not None else []
                else:
                    promised = {e.metric: e for e in self._promised(w) if e.key.slice == "all"}
                    self.alerts[key] = replace(after, expected=promised.get(rule.fires[0].metric))
                    alerts.append(self.alerts[key])
        return alerts, ended

    def _unwatched(self, rule: Rule, w: Watched, now: int) -> str | None:
        """Return why the rule is not looked at now, None when it is."""
        if rule.fires[0].metric != "policy_volume":
            return None
        standing = self.standings.get((w.model.name, w.name), Standing())
        return None if standing.watched(now) else "established" if standing.forward else "rolled_back"

    def _evidence(self, rule: Rule, w: Watched, now: int) -> dict[str, Estimate]:
        """Return the estimates a rule looks at: slice `all`, days after the baseline only."""
        key = Key(w.model.name, w.name, "all", now // DAY)
        metrics = {limit.metric for limit in (*rule.fires, rule.resolves)}
        if rule.basis == "scored":
            self._count(now)
            reading = readings.scored(self._hours(w, rule.window, now)[0])
            if metrics == {"policy_volume"}:
                return {"policy_volume": self._policy_volume(w, reading, key)}
            return {e.metric: e for e in measure(reading, key, rule.window, w.edges, self._reference(w), metrics)}
        assert w.measured is not None
        days = mature_window(w.days, now, w.model.labels.horizon, rule.window)
        after = tuple(d for d in days if w.baseline is None or not w.baseline.promises or (d + 1) * DAY > w.baseline.until)
        if after == days:
            return {
                e.metric: e
                for e in w.measured.estimates
                if e.key.slice == "all" and e.window == rule.window and e.metric in metrics
            }
        reading = readings.mature(total([w.days[d]["all"] for d in after]), w.model.labels.missing)
        return {e.metric: e for e in measure(reading, key, rule.window, w.edges, None, metrics)}

    def _reference(self, w: Watched) -> Reading | None:
        return readings.scored(w.baseline.table("all")) if w.baseline else None

    def _policy_volume(self, w: Watched, reading: Reading, key: Key) -> Estimate:
        standing = self.standings[w.model.name, w.name]
        current = self._served(w)
        previous = self._policy(w.model.name, w.name, standing.good) if standing.good else None
        ratio = (
            "no_threshold"
            if current is None or previous is None
            else policy_volume(reading, current.threshold, previous.threshold)
        )
        if isinstance(ratio, str):
            return Estimate("policy_volume", key, "24h", "scored", None, None, None, 0, ratio)
        return Estimate("policy_volume", key, "24h", "scored", ratio.value, ratio.low, ratio.high, ratio.n)

    def _decide(self, alerts: Iterable[Alert], active: Sequence[Watched]) -> list[Decision]:
        """Return a decision for each alert that began to fire, or whose action failed before."""
        out = []
        spoken = {(w.model.name, w.name): w for w in active}
        for alert in alerts:
            if alert.state != "firing" or self.decided.get(alert.key) not in (None, "failed"):
                continue
            w = spoken[alert.key[:2]]
            rule = next(r for r in w.model.rules if r.name == alert.rule)
            if rule.action == "none":
                continue
            standing = self.standings.get(alert.key[:2], Standing())
            out.append(guards.decide(alert, rule, w.model.mode, w.model.role(w.name), standing))
            self.decided[alert.key] = out[-1].reason
        firing = {a.key for a in alerts if a.state == "firing"}
        self.decided = {k: v for k, v in self.decided.items() if k in firing}
        return out

    def _act(self, decisions: list[Decision], now: int) -> list[tuple[str, str, Change]]:
        """Return the changes that the allowed decisions make; a failed one becomes a decision that says so."""
        changes = []
        for i, d in enumerate(decisions):
            if not d.allowed or d.policy is None:
                continue
            name, version, rule = d.alert.key
            try:
                change = rollback(self.policies[name], version, d.policy, "agent", f"{rule} is firing", now)
                changes.append((name, version, change))
            except PolicyError as e:
                log.error("rollback of %s %s: %s", name, version, e)
                self.add("scorewatch_action_failures_total", 1, action="rollback")
                decisions[i] = replace(d, allowed=False, reason="failed")
                self.decided[d.alert.key] = "failed"
        return changes

    def _sync_policies(self, now: int) -> list[tuple[str, str, Change]]:
        """Return the changes of current.json that the journal does not have, and finish those that only the journal has."""
        changes = []
        for w in self.watched.values():
            key = w.model.name, w.name
            folder = self.policies[w.model.name]
            try:
                pointer = folder.current(w.name)
                standing = self.standings.get(key, Standing())
                if pointer is None or pointer.policy == standing.current:
                    continue
                last = self.last_change.get(key)
                before = {"policy": pointer.policy, "who": pointer.who, "reason": pointer.reason, "at": pointer.at}
                if last is not None and last.body["before"] == before:
                    carry_out(folder, Change(last.kind, w.name, type(pointer)(**{k: last.body[k] for k in before}), last.body))
                    continue
                folder.read(w.name, pointer.policy)
                back = pointer.policy in {p for _, p in standing.served}
                at = min(max(pointer.at, self.clock.last or pointer.at), now)
                body = {**before, "before": last and {k: last.body[k] for k in before}}
                changes.append(
                    (*key, Change("rolled_back" if back else "activated", w.name, replace(pointer, at=at), {**body, "at": at}))
                )
            except PolicyError as e:
                log.warning("%s", e)
                self.add("scorewatch_action_failures_total", 1, action="policy")
        return changes

    def _record(
        self,
        now: int,
        closing: Mapping[tuple[int, int], Mapping[str, Table]],
        alerts: Iterable[Alert],
        ended: Iterable[Alert],
        decisions: Iterable[Decision],
        changes: Sequence[tuple[str, str, Change]],
    ) -> list[Entry]:
        """Commit the tick, then let current.json follow the journal."""
        entries = [
            ("alert", a.model, a.version, _alert_body(a)) for a in (*ended, *alerts) if a.since == now and a.state != "pending"
        ]
        for d in decisions:
            self.add(
                "scorewatch_decisions_total",
                1,
                **dict(zip(("model", "version", "rule"), d.alert.key, strict=True)),
                action=d.action,
                reason=d.reason,
            )
            body = {"rule": d.alert.rule, "action": d.action, "allowed": d.allowed, "reason": d.reason, "policy": d.policy}
            entries.append(("decision", d.alert.model, d.alert.version, body))
        entries += [(c.kind, name, version, c.body) for name, version, c in changes]
        seen = json.dumps({str(w.code): w.seen for w in self.watched.values()}, sort_keys=True)
        done = self.store.record(now, closing, self._keep_from(now), entries, {"seen": seen})
        for entry in done:
            self._after(entry)
        for name, _, change in changes:
            self._point(name, change)
        return done

    def _after(self, entry: Entry) -> None:
        if entry.kind in ("activated", "rolled_back"):
            key = entry.model, entry.version
            self.standings[key] = self.standings.get(key, Standing()).after(entry)
            self.last_change[key] = entry

    def _point(self, name: str, change: Change) -> None:
        try:
            if self.policies[name].current(change.version) != change.pointer:
                carry_out(self.policies[name], change)
        except PolicyError as e:
            log.error("%s", e)  # the next tick finds that only the journal has the change, and tries again
            self.add("scorewatch_action_failures_total", 1, action="policy")

    def _keep_from(self, now: int) -> dict[int, int]:
        out = {}
        for code, (name, _) in enumerate(self.store.versions.names):
            if (w := self.watched.get(code)) is not None:
                out[code] = self._oldest_kept(w.model, now)
            elif self.store.newest.get(code, 0) // DAY >= self._oldest_kept(Model(name), now):
                out[code] = 0  # perhaps the model was taken out of the configuration by mistake: its rows wait a while
        return out

    def _prune(self, now: int) -> None:
        """Forget hours and days that no window reaches any more."""
        oldest = recent_hours(now, "24h").start
        for w in self.watched.values():
            last = newest_mature(now, w.model.labels.horizon)
            w.hours = {h: t for h, t in w.hours.items() if h >= oldest}
            w.following = {h: t for h, t in w.following.items() if h >= oldest}
            w.days = {d: t for d, t in w.days.items() if d > last - WINDOWS["28d"] // DAY}

    # A person's commands; `who` and `reason` go into the journal and into current.json.

    def command(self, kind: str, name: str, version: str | None, who: str, reason: str, **given: Any) -> dict[str, Any]:
        """Activate a policy (`threshold` or `policy`) or roll back to the last one in good standing, and return the change.

        Raises PolicyError with a message for the person.
        """
        if name not in self.config.models and "*" not in self.config.models:
            raise PolicyError(f"model {name!r} is not in the configuration; it has {', '.join(self.config.models)}")
        folder = self.policies.setdefault(name, Policies(self.model(name).policies or self._folder("policies", name), name))
        version = version or self._only_version(name)
        at = self.now()
        if kind == "activate":
            policy = given.get("policy")
            if policy is not None:
                policy = from_json(json.dumps(policy))
                policy = replace(policy, checksum=policy.checksum or checksum(policy))
            elif not 0.0 <= given["threshold"] <= 1.0:
                raise PolicyError(f"the threshold must be in [0, 1], found {given['threshold']}")
            change = activate(folder, version, given["threshold"] if policy is None else policy, who, reason, at)
        else:
            to = self.standings.get((name, version), Standing()).good
            if to is None:
                raise PolicyError(f"{name} {version} has no earlier policy in good standing to go back to")
            change = rollback(folder, version, to, who, reason, at)
        with self.store.log.transaction():
            entries = self.store.log.add_entries(at, who, [(change.kind, name, version, change.body)])
        self._after(entries[0])
        carry_out(folder, change)
        self._note(entries)
        return {
            "model": name,
            "version": version,
            **change.body,
            "threshold": folder.read(version, change.pointer.policy).threshold,
        }

    def policy_of(self, name: str, version: str | None) -> Policy:
        """Return the policy that the model server of a version should follow; raise PolicyError when there is none."""
        version = version or self._only_version(name)
        standing = self.standings.get((name, version), Standing())
        policy = self._policy(name, version, standing.current) if standing.current else None
        if policy is None:
            raise PolicyError(f"{name} {version} has no policy; activate one with `scorewatch activate`")
        return policy

    def settled(self) -> int:
        """Return a time after which ticks change nothing until new events come: every day closed, every version idle."""
        longest = max(m.labels.horizon + m.labels.corrections + m.idle_after for m in self.config.models.values())
        newest = max((w.seen for w in self.watched.values()), default=0)
        return newest + longest + WINDOWS["28d"] + 2 * DAY

    def now(self) -> int:
        """Return the present time by the agent's clock: that of the newest event where events are the clock."""
        if isinstance(self.clock, WallClock):
            return self.clock.now
        newest = max((w.seen for w in self.watched.values()), default=0)
        return max(newest, self.clock.now or 0) or wall()

    def _only_version(self, name: str) -> str:
        mine = [w for w in self.watched.values() if w.model.name == name and w.model.role(w.name) == "live"]
        live = [w.name for w in mine if self.clock.last is None or self._active(w, self.clock.last)] or [w.name for w in mine]
        if len(live) != 1:
            found = ", ".join(live) or "none yet"
            raise PolicyError(f"say which version of {name}: live versions are {found}")
        return live[0]

    # What is said.

    def _say(self, now: int, active: Sequence[Watched]) -> Snapshot:
        estimates: list[Estimate] = []
        for w in active:
            assert w.measured is not None
            estimates += [e for window in RECENT for e in self._recent(w, window, now)]
            estimates += (*w.measured.estimates, *self._promised(w))
        measured = {k: r for w in active if w.measured for k, r in w.measured.readings.items()}
        closed = tuple((*self.store.versions.names[v], d) for v, d in sorted(self.store.closed))
        return Snapshot(now, tuple(map(self._view, active)), tuple(estimates), measured, tuple(self.alerts.values()), {}, closed)

    def _view(self, w: Watched) -> Version:
        waiting = {d: s for (v, d), s in self.store.spans.items() if v == w.code and (v, d) not in self.store.closed}
        following: dict[str, int] = {}
        for hour in w.following.values():
            for code, n in hour.items():
                following[self.store.policies.names[code]] = following.get(self.store.policies.names[code], 0) + n
        tables_ = [t["all"] for t in w.days.values()]
        served = self.standings.get((w.model.name, w.name), Standing()).served
        histogram = (
            {} if w.histogram is None else dict(zip([*map(str, _STEPS), "+Inf"], w.histogram.cumsum().tolist(), strict=True))
        )
        return Version(
            w.model.name,
            w.name,
            w.model.role(w.name),
            w.slices,
            w.edges,
            "" if w.baseline is None else f"{w.baseline.provenance['kind']} until {iso(w.baseline.until)[:10]}",
            w.model.labels.horizon,
            self.store.newest.get(w.code, 0),
            sum(s.n for s in waiting.values()),
            sum(s.labelled for s in waiting.values()),
            tuple(sorted(waiting)),
            tuple(sorted(w.days)),
            sum(t.n for t in tables_),
            sum(t.n - t.labelled for t in tables_),
            self._served(w),
            served[-1][0] if served else None,
            self._threshold(w),
            following,
            w.model.rules,
            (histogram, w.score_sum),
        )

    def month(self, w: Watched, month: str) -> dict[str, Any]:
        """Return the mature estimates of a calendar month of predictions, slice `all`."""
        days = [d for v, d in sorted(self.store.closed) if v == w.code and month_of(d) == month]
        reading = readings.mature(total([self.store.log.day(w.code, d)["all"] for d in days]), w.model.labels.missing)
        key = Key(w.model.name, w.name, "all", days[-1])
        return _estimates_item("month", month, key, measure(reading, key, month, w.edges, None, _MONTH))

    def all_months(self, name: str) -> list[dict[str, Any]]:
        """Return the estimates of every month of a model that has closed days."""
        out = []
        for w in self.watched.values():
            if w.model.name == name:
                out += [self.month(w, m) for m in sorted({month_of(d) for v, d in self.store.closed if v == w.code})]
        return out

    def finish(self) -> None:
        """Note the months that are not over, at the end of a replay."""
        for w in self.watched.values():
            for month in sorted(w.open_months):
                self._item(self.month(w, month))
            w.open_months.clear()

    def _note_timeline(self, now: int, closing: Iterable[tuple[int, int]], entries: Iterable[Entry]) -> None:
        for code, day in sorted(closing) if self.timeline_days else ():
            w = self.watched[code]
            key = Key(w.model.name, w.name, "all", day)
            reading = readings.mature(w.days[day]["all"], w.model.labels.missing) if day in w.days else None
            if reading is not None:
                self._item(_estimates_item("day", iso(day * DAY)[:10], key, measure(reading, key, "day", w.edges, None, _MONTH)))
        for w in self.watched.values():
            over = [m for m in sorted(w.open_months) if month_end(m) <= newest_mature(now, w.model.labels.horizon)]
            for month in over:
                self._item(self.month(w, month))
                w.open_months.discard(month)
        self._note(entries)

    def _note(self, entries: Iterable[Entry]) -> None:
        for e in entries:
            body = {k: v for k, v in e.body.items() if k not in ("before", "at", "since")}
            self._item({"kind": e.kind, "at": iso(e.at), "model": e.model, "version": e.version, "who": e.who, **body})

    def _item(self, item: dict[str, Any]) -> None:
        self.timeline.append({"seq": self.told, **item})
        self.told += 1


def _kind(source: str) -> str:
    """Return the kind of a source, which is what its counters are labelled with."""
    return source.partition(":")[0]


C = TypeVar("C", Predictions, Labels)


def _reject(columns: C, which: NDArray[np.bool_], bad: list[Rejection], reason: str) -> C:
    """Return the other rows and note these as rejected."""
    if not which.any():
        return columns
    bad.extend(Rejection(i, reason, "") for i in columns.index[which].tolist())
    return columns.take(~which)


def _in_time(columns: C, bad: list[Rejection]) -> C:
    """Return the events that are at most five minutes ahead of the machine's clock."""
    return _reject(columns, columns.ts > wall() + FUTURE, bad, "future")


def _number(e: Estimate) -> dict[str, Any]:
    return {"value": e.value, "low": e.low, "high": e.high, "n": e.n, **({"reason": e.reason} if e.reason else {})}


def _alert_body(a: Alert) -> dict[str, Any]:
    body = {"rule": a.rule, "severity": a.severity, "state": a.state, "since": a.since, "reason": a.reason}
    return body | {k: None if e is None else _number(e) for k, e in (("observed", a.observed), ("expected", a.expected))}


def _estimates_item(kind: str, name: str, key: Key, estimates: Iterable[Estimate]) -> dict[str, Any]:
    made = tuple(estimates)
    n = next(e.n for e in made if e.metric == "prevalence")
    return {
        "kind": kind,
        kind: name,
        "model": key.model,
        "version": key.version,
        "n": n,
        "estimates": {e.metric: _number(e) for e in made},
    }
