"""The program: events in, ticks, snapshots out. It wires everything and decides nothing."""

import bisect
import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from monitor import data, timeline
from monitor.actions.outbox import Outbox, Target
from monitor.actions.rollback import PolicyError
from monitor.beside import beside
from monitor.clock import EventClock, WallClock, wall
from monitor.config import Config, FileSource, HttpSource, Model
from monitor.core import readings, rules
from monitor.core.compare import policy_volume
from monitor.core.days import (
    WINDOWS,
    Key,
    iso,
    matures_at,
    month_end,
    oldest_kept,
)
from monitor.core.diagnosis import Diagnosis
from monitor.core.events import (
    DAY,
    FUTURE,
    Batch,
    Entry,
    Ints,
    Labels,
    Predictions,
    Receipt,
    Rejection,
)
from monitor.core.features import placed
from monitor.core.guards import Decision
from monitor.core.intervals import Measured
from monitor.core.metrics import Estimate, multiclass
from monitor.core.policy import Policy
from monitor.core.readings import Reading
from monitor.core.reasons import DECIDED
from monitor.core.rules import Alert, Rule
from monitor.core.snapshot import Snapshot
from monitor.core.tables import Table
from monitor.decider import Decider, Outcome, Testing
from monitor.explain import explain
from monitor.exporter import Exporter
from monitor.formats import Decoder
from monitor.sampler import Sampler
from monitor.served import Planned, Served
from monitor.sources.file import FileReader
from monitor.store import HELD, NEWS, OLD_NEWS, REFUSED, StateError, Store, passing
from monitor.verify import Step, verify
from monitor.watched import Watched, add_passed, baseline_of, features_digest, scores_of

log = logging.getLogger("scorewatch")

TIMELINE = 20_000
"""So many of the newest timeline items are kept."""
DECISIONS = ("decision", "proposal", "answer", "activated", "rolled_back", "delivery")
"""The kinds of journal entries that say what was decided, and by whom."""
_OPEN_ROWS = 500_000
"""So many rows of days that are not mature are counted again per tick; what is shown of such days may lag a little."""


class Agent:
    """One state directory, its models and its clock. All methods are called from one thread.

    `clock` is that of an agent before this one, which knows whether the machine's time jumped. `snapshot` and
    `exporter.text` are replaced as wholes and may be read from any thread. Raises StateError when the state directory, a
    baseline or a policies folder cannot be used.
    """

    def __init__(self, config: Config, version: str, durable: bool = True, clock: WallClock | None = None) -> None:
        self.config = config
        try:
            self.baselines = {name: baseline_of(m) for name, m in config.models.items() if m.baseline}
        except ValueError as e:
            raise StateError(str(e)) from None
        self.store = Store(config.state, config.hash, config.waiting_rows, durable)
        self._keep_classes()
        self.clock: WallClock | EventClock
        last = self.store.meta.get("last_tick")
        self.clock = EventClock(config.tick, last) if config.clock == "events" else clock or WallClock(last)
        self.clock.last = last
        kinds = {"http" if isinstance(s, HttpSource) else "file" for s in config.sources}
        self.exporter = Exporter(version, kinds, config.tick / 1000 if config.clock == "wall" else None)
        self.counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.timeline: deque[dict[str, Any]] = deque(maxlen=TIMELINE)
        self.told = 0
        self.problem = ""
        self.timeline_days = False
        self.newest_label: dict[str, int] = {}
        self.opened = (-1, -1)
        self.relearning: dict[str, bool] = {}
        self.alerts: dict[tuple[str, str, str], Alert] = {}
        self.diagnoses: dict[tuple[str, str, str], Diagnosis] = {}
        self.explained: dict[int, Any] = {}
        self.snapshot = Snapshot(None)
        try:
            self._load()
        except BaseException:
            self.store.close()
            raise

    # Start: everything in memory is made from the store and the files.

    def _keep_classes(self) -> None:
        """Note the classes of each model, whose places are the codes that rows and labels hold, and refuse others there."""
        before = json.loads(self.store.meta.get("classes", "{}"))
        now = {name: [m.labels_mode, *m.classes] for name, m in self.config.parents.items()}
        for name, known in before.items():
            if name in now and now[name][: len(known)] != known:
                self.store.abandon()
                raise StateError(
                    f"{self.config.state}: rows of {name} were stored with labels_mode {known[0]} and classes {known[1:]}; keep "
                    f"them in this order in models.{name}.classes, with new ones at the end, or give the model another name"
                )
        if now and before | now != before:
            self.store.meta["classes"] = json.dumps(before | now)
            with self.store.log.transaction():
                self.store.log.set_meta({"classes": self.store.meta["classes"]})

    def _load(self) -> None:
        journal = self.store.log.journal()
        self.served = Served(self.store, self.model, journal, int(self.store.meta.get("carried", 0)))
        self.decider = Decider(self.served, self.exporter.version, self.add)
        for entry in journal:
            self.decider.after(entry)
            if entry.kind == "alert":
                self._fold(entry)
        self.outbox = Outbox(self.store.log, self.config.actions, self._deliver, self.served.policy, self.add)
        if self.config.delivers:
            self.outbox.begin()
        self.sampler = Sampler(self.store.max_rows, self.model, self.served.cut, self._review)
        if (sampler := self.store.meta.get("sampler")) is not None:
            self.sampler.load(sampler, self._known)
        self.features = self._coded(json.loads(self.store.meta.get("features", "{}")))
        self.watched: dict[int, Watched] = {}
        self.counted = self.store.tail
        seen = json.loads(self.store.meta.get("seen", "{}"))
        for code in range(len(self.store.versions.names)):
            if (w := self._watch(code)) is not None:
                # Of what came after the last tick the rows tell.
                w.seen = max(seen.get(str(code), 0), self.store.newest.get(code, 0))
        if (now := self.clock.now) is not None:
            self.store.keep_from = self._keep_from(now)
        counted_by = json.loads(self.store.meta.get("counted_by", "{}"))
        self.store.mark(
            {(w.code, d) for w in self.watched.values() if counted_by.get(str(w.code)) != w.counted_by for d in w.whole()}
        )

    def _review(self, name: str) -> int:
        """Return how many predictions of a model are picked for review a day: twice the usual after a way back.

        So it is until `recalibrate.rows` outcomes of days since then have matured, which another calibrator can be fitted to.
        """
        model = self.model(name)
        if model.review and name not in self.relearning:
            self.relearning[name] = self._relearns(name, model.recalibrate.rows)
        return model.review * (2 if model.review and self.relearning[name] else 1)

    def _relearns(self, name: str, rows: int) -> bool:
        """Return whether fewer outcomes than these have matured of the days since a version of the model was rolled back."""
        every = self.model(name).labels.missing == "negative"  # then a row without a label has an outcome, too
        for (model, version), standing in self.served.standings.items():
            if model == name and standing.back is not None:
                code, first = self.store.versions.code.get((model, version)), standing.back // DAY
                days = [n for (v, day), n in self.store.closed.items() if v == code and day >= first]
                if sum(n if every else labelled for n, labelled in days) < rows:
                    return True
        return False

    def _coded(self, known: dict[str, Any]) -> dict[str, Any]:
        """Return by model [digest of the features of its baseline, time in ms from which rows have the codes of these].

        `known` is the same as of the last tick; rows that came under another baseline have codes that mean something else.
        """
        for name, b in self.baselines.items():
            digest = features_digest(b.features)
            if b.features and known.get(name, [digest])[0] != digest:
                codes = {c for c, (model, _) in enumerate(self.store.versions.names) if model == name}
                closed = [(day + 1) * DAY - 1 for code, day in self.store.closed if code in codes]
                newest = [self.store.newest.get(code, 0) for code in codes]
                known[name] = [digest, max([self.store.newest_passed, *newest, *closed]) + 1]
            elif b.features:
                known.setdefault(name, [digest, 0])
        return known

    def _fold(self, entry: Entry) -> None:
        key = entry.model, entry.version, entry.body["rule"]
        if entry.body["state"] == "resolved":
            self.alerts.pop(key, None)
        else:
            self.alerts[key] = Alert(key[2], *key[:2], entry.body["severity"], entry.body["state"], entry.body["since"])

    def model(self, name: str) -> Model:
        """Return the configuration of a model; the entry "*" serves any other."""
        return self.config.models.get(name) or replace(self.config.models["*"], name=name)

    def _deliver(self, name: str) -> Sequence[Target]:
        """Return what is called with policies of a model."""
        return self.model(name).deliver if self._known(name) else ()

    def _watch(self, code: int) -> Watched | None:
        """Begin to keep a version in memory; a version of a model that is no longer configured is not watched."""
        name, version = self.store.versions.names[code]
        if not self._known(name):
            return None
        self.watched[code] = Watched(self.store, code, self.model(name), version)
        baseline = self.baselines.get(name)
        if baseline is not None and baseline.version != version:
            # Slices and bins are those of the validated version; what was promised for it was not promised for this one.
            baseline = replace(baseline, version=version, provenance={"kind": "inherited", "from": baseline.version})
        self.watched[code].features_since = self.features.get(name, ["", 0])[1]
        self.watched[code].begin(baseline, self.clock.now)
        return self.watched[code]

    def _watching(self, code: int) -> Watched | None:
        return self.watched.get(code) or self._watch(code)

    def decoder(self) -> Decoder:
        """Return a decoder for the configured models; each thread needs its own."""
        models = self.config.named
        review = frozenset(name for name, m in models.items() if m.review)
        features = {name: placed(b.features, models[name].features) for name, b in self.baselines.items() if name in models}
        scores = {name: scores_of(m) for name, m in models.items() if m.classes or m.score != "probability"}
        return Decoder(self.store.hasher, {name: m.segments for name, m in models.items()}, review, features, scores)

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
        """
        rejected: list[list[Rejection]] = [list(b.rejected) for b in batches]
        # A label that carries its prediction is one event: it is taken with it or not at all.
        labels = [self._admit_labels(b.labels, bad) for b, bad in zip(batches, rejected, strict=True)]
        offered = [_paired(b.predictions, b.labels, part) for b, part in zip(batches, labels, strict=True)]
        offered = [self._admit_predictions(p, bad) for p, bad in zip(offered, rejected, strict=True)]
        labels = [_paired(part, b.predictions, p) for b, part, p in zip(batches, labels, offered, strict=True)]
        positions = {b.source: b.position for b in batches if b.position}
        fresh = picked = np.empty(0, bool)
        became: NDArray[np.int8] = np.empty(0, np.int8)
        if some := [p for p in offered if p is not None]:
            # A batch's position goes with its last part: labels sent twice do no harm, labels skipped would be lost.
            later = any(part is not None for part in labels)
            everything = Predictions.concat(some)
            fresh, picked = self._store(everything, {} if later else positions)
            self._arrived(everything, fresh)
        if parts := [part for part in labels if part is not None]:
            together = Labels.concat(parts)
            became = self.store.label(together, positions, self._held_until(together), self.now())
            self._labels_arrived(parts)
        elif positions and not some:
            with self.store.log.transaction():
                self.store.log.set_positions(positions)
            self.store.positions.update(positions)
        return self._receipts(batches, offered, labels, fresh, picked, became, rejected)

    def _store(self, p: Predictions, positions: Mapping[str, str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Store predictions, as many of them to wait as there is room for; return which are new and which of these picked."""
        store, none = self.store, np.zeros(len(p), bool)
        if self.sampler.idle(p, store.tail - store.head):
            return store.append(p, positions), none
        fresh, picked = none.copy(), none.copy()
        first = 0
        while first < len(p):
            rest = p.take(slice(first, None))
            drawn, of = self.sampler.draw(rest, store.tail - store.head)
            nth = np.cumsum(drawn.waits)
            room = nth <= store.max_rows - (store.tail - store.head)
            crowded, drawn = drawn.waits & ~room, replace(drawn, waits=drawn.waits & room, picked=drawn.picked & room)
            # So few at once that the next plan hears of a burst while it comes, before it takes the reviews of many days, and
            # that the passing ring holds them. Where they end must not depend on the draw of a row that is drawn again then.
            some_wait = 1 + int(np.searchsorted(nth, max(1, store.max_rows // 100)))
            some_picked = 1 + int(np.searchsorted(np.cumsum(drawn.picked), self.sampler.picks_at_once(p)))
            n = min(some_wait, some_picked, passing.CAPACITY, len(rest))
            some, drawn, part = rest.take(slice(n)), drawn.take(slice(n)), slice(first, first + n)
            if n - int(drawn.waits.sum()) > store.passing.room:
                self._count(self.clock.last or 0)
                store.save_passed()
            fresh[part] = store.append(some, positions if first + n == len(p) else {}, drawn)
            picked[part] = drawn.picked & fresh[part]
            self.add("scorewatch_not_waiting_total", int((fresh[part] & ~drawn.waits).sum()))
            self.add("scorewatch_waiting_overflow_total", int((fresh[part] & crowded[:n]).sum()))
            self.sampler.count(some, of[:n], fresh[part])
            first += n
        return fresh, picked

    def _admit_predictions(self, p: Predictions | None, bad: list[Rejection]) -> Predictions | None:
        """Return the predictions that may be stored, with their verdicts, and note why others may not."""
        if p is None:
            return None
        p = _reject(p, p.ts > self.latest(), bad, "future")
        if len(p) and (refused := self.store.full_versions(p.version.used())):
            p = _reject(p, np.array([n in refused for n in p.version.names])[p.version.codes], bad, "too_many_versions")
        if len(p) and self.clock.now is not None:
            left = [self.store.left.get(self.store.versions.code.get(name, -1), 0) for name in p.version.names]
            kept = [_oldest_kept(self.model(m), self.clock.now) for m, _ in p.version.names]
            p = _reject(p, p.ts // DAY < np.maximum(left, kept)[p.version.codes], bad, "too_old")
        if len(p):
            p = _reject(*self.served.verdicts(p), bad, "unknown_policy")
        return p if len(p) else None

    def _held_until(self, labels: Labels) -> Ints:
        """Return until when no prediction for a label could be taken any more that is older than the label."""
        wait = [m.labels.longest + m.labels.corrections + DAY for m in (self.model(name) for name, _ in labels.version.names)]
        until: Ints = labels.ts + np.array(wait, np.int64)[labels.version.codes]
        return until

    def _admit_labels(self, labels: Labels | None, bad: list[Rejection]) -> Labels | None:
        labels = None if labels is None else _reject(labels, labels.ts > self.latest(), bad, "future")
        return labels if labels is not None and len(labels) else None

    def _arrived(self, p: Predictions, fresh: NDArray[np.bool_]) -> None:
        counts = np.bincount(p.version.codes[fresh], minlength=len(p.version.names)).tolist()
        for index, ((name, version), n) in enumerate(zip(p.version.names, counts, strict=True)):
            code = self.store.versions.code.get((name, version))
            if code is None:
                continue  # all of its events were rejected
            w = self._watching(code)
            if w is not None and n:
                newest = int(p.ts[p.version.codes == index].max())
                w.seen = max(w.seen, newest if isinstance(self.clock, EventClock) else self.clock.now)
                self.add("scorewatch_predictions_total", n, model=name, version=version, role=w.role)

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
        picked: NDArray[np.bool_],
        became: NDArray[np.int8],
        rejected: list[list[Rejection]],
    ) -> list[Receipt]:
        receipts, a, b = [], 0, 0
        for batch, p, part, bad in zip(batches, offered, labels, rejected, strict=True):
            accepted = duplicates = held = 0
            review: list[str] = []
            if p is not None:
                mine, of_event = slice(a, a + len(p)), ~_carried(batch, p)  # a label with its prediction is one event
                new = _best(p.index[of_event], fresh[mine][of_event])
                accepted, a = int(new.sum()), a + len(p)
                duplicates = len(new) - accepted
                if p.sent is not None:
                    review = [sent.decode() for sent in p.sent[picked[mine]].tolist()]
            if part is not None:
                became_mine, b = _best(part.index, became[b : b + len(part)]), b + len(part)
                for code, reason in REFUSED.items():
                    bad.extend(Rejection(i, reason, "") for i in np.unique(part.index)[became_mine == code].tolist())
                held = int((became_mine == HELD).sum())
                accepted += int((became_mine == NEWS).sum()) + held
                duplicates += int((became_mine == OLD_NEWS).sum())
            receipts.append(Receipt(accepted, duplicates, tuple(sorted(bad)), held, tuple(review)))
            self._count_receipt(batch, receipts[-1])
            self.add("scorewatch_labels_early_total", held)
        return receipts

    def _count_receipt(self, batch: Batch, receipt: Receipt) -> None:
        size = receipt.accepted + receipt.duplicates + len(receipt.rejected)
        self.add("scorewatch_events_total", size, source=_kind(batch.source))
        self.add("scorewatch_events_accepted_total", receipt.accepted, source=_kind(batch.source))
        self.add("scorewatch_events_duplicate_total", receipt.duplicates, source=_kind(batch.source))
        self.add("scorewatch_scores_clipped_total", batch.clipped, source=_kind(batch.source))
        if batch.scaled:
            self.add("scorewatch_scores_scaled_total", batch.scaled, source=_kind(batch.source))
        for r in receipt.rejected:
            self.add("scorewatch_events_rejected_total", 1, source=_kind(batch.source), reason=r.reason)

    # A tick's way.

    def tick(self, now: int) -> None:
        """Close days, measure them, look at the rules, act, and record all of it at once."""
        begun = time.perf_counter()
        self.served.follow_journal(self._names())
        changes = self.served.found(self._names(), self.store.meta.get("last_tick"), now)
        if self.store.passing.tail > self.store.passing.seen:
            self._count(now)
        closing = self._close(now)
        active = self._active(now)
        for w in active:
            self._follow(w)
            w.measure(now)
        self._detect(active, closing, now)
        alerts, ended = self._look(active, now)
        self._explain(active, alerts, now)
        matured = {code for code, day in closing if (code, day) not in self.store.closed}
        out = self.decider.step(alerts, self.diagnoses, active, now, changes, matured, isinstance(self.clock, EventClock))
        entries = self._record(now, closing, alerts, ended, out)
        self._note_timeline(now, closing, entries)
        for w in self.watched.values():
            w.prune(now)
            w.keep_baseline()
        self.counters["scorewatch_tick_duration_seconds", ()] = time.perf_counter() - begun

    def publish(self) -> None:
        """Make the snapshot of the last tick, and render it with the present counters for the next scrapes."""
        if (now := self.clock.last) is not None and self.watched:
            self._count(now)
            self._count_open()
            self.snapshot = self._say(now)
        if self.served.failures:
            self.counters["scorewatch_action_failures_total", (("action", "policy"),)] = self.served.failures
        waiting, dead = self.outbox.counts
        self.counters["scorewatch_outbox_waiting", ()] = waiting
        self.counters["scorewatch_outbox_dead", ()] = dead
        self.counters["scorewatch_store_rows", ()] = self.store.tail - self.store.head
        self.counters["scorewatch_store_rows_limit", ()] = self.store.max_rows
        self.counters["scorewatch_prediction_conflicts_total", ()] = self.store.conflicts
        self.counters["scorewatch_segment_overflow_total", ()] = self.store.overflown_combos
        self.counters["scorewatch_labels_held", ()] = self.store.early.waiting
        for reason, n in self.store.refused.items():
            self.counters["scorewatch_labels_dropped_total", (("reason", reason),)] = n
        for change, n in self.store.corrections.items():
            self.counters["scorewatch_label_corrections_total", (("reason", change),)] = n
        for name, ts in self.newest_label.items():
            self.counters["scorewatch_last_label_timestamp_seconds", (("model", name),)] = ts / 1000
        self.show()

    def show(self) -> None:
        """Render the snapshot with the present counters and what is wrong with the state directory, if anything is."""
        problem = self.problem or next((w.problem for w in self.watched.values() if w.problem), "")
        head = self.store.log.head
        self.snapshot = replace(self.snapshot, counters=dict(self.counters), problem=problem, journal=head)
        self.exporter.render(self.snapshot)

    def _names(self) -> list[tuple[str, str]]:
        return [w.name for w in self.watched.values()]

    def _active(self, now: int) -> list[Watched]:
        return [w for w in self.watched.values() if w.active(now)]

    def _count(self, now: int) -> None:
        """Bring the tables of the last hours forward by the rows since the last time."""
        for rows in self.store.rows_since(self.counted):
            for code in np.unique(rows["version"]).tolist():
                if (w := self._watching(code)) is not None:
                    w.count(rows[rows["version"] == code], now)
        self.counted = self.store.tail
        for rows in self.store.passing.since(self.store.passing.seen):
            for code in np.unique(rows["version"]).tolist():
                mine = rows[rows["version"] == code]
                if (w := self._watching(code)) is not None:
                    w.count_passed(mine, now)
                else:  # its model was just taken out of the configuration, perhaps by mistake
                    every = np.zeros((1, len(self.store.combos.names)), np.int32)
                    add_passed(self.store, code, mine, ("all",), every)
        self.store.passing.seen = self.store.passing.tail
        for w in self.watched.values():
            w.recount(now)

    def _follow(self, w: Watched) -> None:
        """Let a version be measured under the policy that decides now."""
        w.follow(self.served.deciding(*w.name), self.served.calibrated_at(*w.name))

    def _close(self, now: int) -> dict[tuple[int, int], dict[str, Table]]:
        """Return the final tables of the days that matured since the last tick or have to be counted again."""
        started = self.clock.started if isinstance(self.clock, WallClock) else 0
        closing: dict[tuple[int, int], dict[str, Table]] = {}
        passed = {(code, day) for code, kind, day in self.store.passed if kind == "day"}
        for code, day in sorted(self.store.spans.keys() | passed):
            w, span = self.watched.get(code), self.store.spans.get((code, day))
            if w is None or ((code, day) in self.store.closed and (code, day) not in self.store.recount):
                continue
            if day < self.store.left.get(code, 0):
                continue  # rows left while its model was not in the configuration: what is there would be a false total
            matures = matures_at(day, w.model.labels.longest)
            # History that is being read in right now: its labels may be in the next request.
            arriving = matures < started and (code, day) in self.store.touched
            if matures <= now and not arriving and (span is None or span.last > self.store.head):
                closing |= {(code, d): tables for d, tables in w.close(day).items()}
        return closing

    def _count_open(self) -> None:
        """Count the days that are not mature and changed since they were counted, some at a time by the machine's clock."""
        changed = sorted(self.store.changed)
        first = bisect.bisect(changed, self.opened)
        rows = _OPEN_ROWS if isinstance(self.clock, WallClock) else None
        for code, day in changed[first:] + changed[:first]:
            if rows is not None and rows < 0:
                break
            self.store.changed.discard((code, day))
            if (w := self.watched.get(code)) is not None and (code, day) not in self.store.closed:
                w.count_open(day)
                self.opened = (code, day)
                span = self.store.spans.get((code, day))
                rows = None if rows is None or span is None else rows - (span.last - span.first)

    # Rules, decisions, actions.

    def _detect(self, active: Sequence[Watched], closing: Mapping[tuple[int, int], Any], now: int) -> None:
        """Let detectors look at the whole days that ended or matured: of live versions by their traffic, then of canaries."""
        live = [w for w in active if w.role == "live"]
        for w in (*live, *(w for w in active if w.role == "canary")):
            coming = self._coming(w.code, now)
            beside = self._beside(w, live) if w.role == "canary" else None
            # What the live version is on a day that was counted again is another thing to be beside.
            again = {d for v, d in closing if v == w.code or (beside is not None and v == beside.code)}
            if w.role == "live" or beside is not None:
                w.look(now, again, coming, beside)
        for w in live:
            together = sum(v.looks.volume.get(w.looks.ended, 0) for v in live if v.model.name == w.model.name)
            w.looks.weigh(together)

    def _coming(self, code: int, now: int) -> set[int]:
        """Return the days that have not ended for a version, whatever the clock says.

        By the machine's clock they are those that are being read in right now. Where events are the clock, no event after a day
        means that the data ends there, not that it was lost.
        """
        if isinstance(self.clock, WallClock):
            return {d for v, d in self.store.touched if v == code}
        newest = max((w.seen for w in self.watched.values()), default=0)
        return set(range(newest // DAY + 1, now // DAY))

    def _beside(self, canary: Watched, live: Iterable[Watched]) -> Watched | None:
        """Return the live version of the model with the most traffic, None when there is none.

        The one so far remains while no other has more than twice its traffic: with another one evidence begins anew.
        """
        others = [w for w in live if w.model.name == canary.model.name]

        def rank(w: Watched) -> tuple[int, str]:
            rows = w.looks.volume.get(w.looks.ended, 0)
            return 2 * rows if w.version == canary.looks.digest else rows, w.version

        return max(others, key=rank, default=None)

    def _look(self, active: Sequence[Watched], now: int) -> tuple[list[Alert], list[Alert]]:
        """Return the alerts that are pending or firing after this tick, and those that ended with it."""
        alerts: list[Alert] = []
        ended: list[Alert] = []
        spoken = {w.name: w for w in active}
        for key, alert in list(self.alerts.items()):
            w = spoken.get(key[:2])
            known = w is not None and any(r.name == alert.rule for r in w.rules)
            if not known:
                reason = "version_gone" if w is None else "switched_off"
                ended.append(rules.resolved(alert, reason, now))
                del self.alerts[key]
                # What was found before it went away says nothing of it when it is back.
                for away in (v for v in self.watched.values() if v.name == key[:2]):
                    away.looks.restart(alert.rule)
        for w in active:
            for rule in w.rules:
                key = *w.name, rule.name
                before = self.alerts.get(key)
                unwatched = self._unwatched(rule, w, now)
                if unwatched is not None:
                    ended += [rules.resolved(before, unwatched, now)] if before is not None else []
                    self.alerts.pop(key, None)
                    continue
                after = rules.step(rule, *key[:2], before, self._evidence(rule, w, now), now)
                if after is None:
                    self.alerts.pop(key, None)
                    ended += [rules.resolved(before, "dropped", now)] if before is not None else []
                    continue
                slices = next((d.slices for d in w.detections(now) if d.rule == rule.name), ())
                about = "all" if after.observed is None else after.observed.key.slice
                after = replace(after, expected=w.expected(rule.shown, about), slices=slices)
                if after.state == "resolved":
                    self.alerts.pop(key, None)
                    ended.append(after)
                    if rule.detector:
                        w.looks.restart(rule.name)
                else:
                    self.alerts[key] = after
                    alerts.append(after)
        return alerts, ended

    def _explain(self, active: Sequence[Watched], alerts: Iterable[Alert], now: int) -> None:
        """Diagnose the firing alerts anew when there are others, or when detectors looked at a day."""
        firing = [a for a in alerts if a.state == "firing"]
        for w in active:
            mine = [a for a in firing if a.key[:2] == w.name]
            state = w.looks.turn, [a.rule for a in mine]
            if self.explained.get(w.code) != state:
                served = self.served.standing(*w.name).served
                self.diagnoses |= explain(w, now, mine, served[-1][0] if served else None)
                self.explained[w.code] = state
        keys = {a.key for a in firing}
        self.diagnoses = {key: d for key, d in self.diagnoses.items() if key in keys}

    def _unwatched(self, rule: Rule, w: Watched, now: int) -> str | None:
        """Return why the rule is not looked at now, None when it is."""
        if rule.fires[0].metric != "policy_volume":
            return None
        standing = self.served.standing(*w.name)
        return None if standing.watched(now) else "established" if standing.forward else "rolled_back"

    def _evidence(self, rule: Rule, w: Watched, now: int) -> dict[str, Estimate]:
        """Return the estimates a rule looks at."""
        metrics = {limit.metric for limit in (*rule.fires, rule.resolves)}
        if rule.basis == "scored":
            self._count(now)
        if metrics == {"policy_volume"}:
            return {"policy_volume": self._policy_volume(w, rule.window, now)}
        if metrics == {"unfollowed_share"}:
            return {"unfollowed_share": self._unfollowed(w, rule.window, now)}
        if metrics & {"volume_ratio", "coverage_ratio"}:
            return {e.metric: e for e in w.looks.ratios(Key(*w.name, "all", now // DAY), self._volumes(w.model.name))}
        if rule.detector:
            return w.detection(rule, now)
        return w.evidence(rule.basis, rule.window, metrics, now)

    def _volumes(self, name: str) -> dict[int, float]:
        """Return the rows of all versions of a model by day that ended."""
        out: dict[int, float] = {}
        for w in self.watched.values():
            for day, n in w.looks.volume.items() if w.model.name == name and w.role != "shadow" else ():
                out[day] = out.get(day, 0.0) + n
        return out

    def _policy_volume(self, w: Watched, window: str, now: int) -> Estimate:
        """Return flagged by the current policy over flagged by the last one in good standing."""
        key = Key(*w.name, "all", now // DAY)
        current, previous = self.served.current(*w.name), self.served.policy(*w.name, self.served.standing(*w.name).good)
        if current is None or previous is None:
            return _estimate("policy_volume", key, window, "no_threshold")
        return _estimate("policy_volume", key, window, policy_volume(w.hours_readings(window, now), current, previous))

    def _unfollowed(self, w: Watched, window: str, now: int) -> Estimate:
        """Return which share of the predictions names another policy than the one that is to be followed for long enough."""
        key, served = Key(*w.name, "all", now // DAY), self.served.standing(*w.name).served
        found = w.unfollowed(served[-1][1], served[-1][0] + w.model.follow_within, now) if served else "no_threshold"
        return _estimate("unfollowed_share", key, window, found)

    def _record(
        self,
        now: int,
        closing: Mapping[tuple[int, int], Mapping[str, Table]],
        alerts: Iterable[Alert],
        ended: Iterable[Alert],
        out: Outcome,
    ) -> list[Entry]:
        """Commit the tick, then let current.json follow the journal."""
        said = [(a, self.diagnoses.get(a.key)) for a in (*ended, *alerts) if a.since == now]
        entries = [("alert", a.model, a.version, _alert_body(a, d)) for a, d in said]
        entries += [("decision", d.model, d.version, _decision_body(d)) for d in out.decisions]
        entries += [*out.entries, *((c.kind, name, c.version, c.body) for name, c in out.changes)]
        seen = json.dumps({str(w.code): w.seen for w in self.watched.values()}, sort_keys=True)
        # Of versions that are not watched now it stays what it was: their days stay, too.
        counted_by = json.loads(self.store.meta.get("counted_by", "{}")) | {
            str(w.code): w.counted_by for w in self.watched.values()
        }
        meta = {"seen": seen, "carried": self.served.carried, "sampler": self.sampler.dump()}
        meta["features"] = json.dumps(self.features, sort_keys=True)
        meta["counted_by"] = json.dumps(counted_by, sort_keys=True)
        meta |= {f"looks:{w.code}": w.looks.dump() for w in self.watched.values() if w.looks.unsaved}
        done = self.store.record(now, closing, self._keep_from(now), entries, meta)
        for entry in done:
            self.served.after(entry)
            self.decider.after(entry)
        self.relearning = {}
        self.served.follow_journal(self._names())
        return done

    def _keep_from(self, now: int) -> dict[int, int]:
        out = {}
        for code, (name, _) in enumerate(self.store.versions.names):
            if (w := self.watched.get(code)) is not None:
                out[code] = w.oldest_kept(now)
            elif self.store.newest.get(code, 0) // DAY >= _oldest_kept(Model(name), now):
                out[code] = 0  # perhaps the model was taken out of the configuration by mistake: its rows wait a while
        return out

    # A person's commands; `who` and `reason` go into the journal and into current.json.

    def command(self, kind: str, name: str, version: str | None, who: str, reason: str, **given: Any) -> dict[str, Any]:
        """Activate a policy (`threshold` or `policy`) or roll back to the last one in good standing, and return the change.

        Raises PolicyError with a message for the person.
        """
        if not self._known(name):
            raise PolicyError(self._unknown(name))
        policy = given.get("policy")
        named = policy.get("version") if isinstance(policy, Mapping) else None  # a whole policy says which it is for
        version, at = version or (named if isinstance(named, str) and named else self._only_version(name)), self.now()
        if kind == "activate":
            planned = self.served.activation(name, version, who, reason, at, policy, given.get("threshold"))
        else:
            planned = self.served.way_back(name, version, who, reason, at)
        return self._change([planned], who, at)

    def _change(self, planned: Sequence[Planned], who: str, at: int, *before: tuple[str, str, str, Any]) -> dict[str, Any]:
        """Journal what a person changed, after what led to it, and let current.json follow; return the last change."""
        name, change = planned[-1]
        self._journal(at, who, [*before, *((p.change.kind, name, p.change.version, p.change.body) for p in planned)])
        self.served.follow_journal([(name, change.version)])
        version = change.version
        done = {"model": name, "version": version, **change.body, "threshold": self.served.threshold(name, version)}
        return done | ({"pending": True} if self.served.lags(name, version) else {})

    def _journal(self, at: int, who: str, said: list[tuple[str, str, str, dict[str, Any]]]) -> list[Entry]:
        with self.store.log.transaction():
            entries = self.store.log.add_entries(at, who, said)
        for entry in entries:
            self.served.after(entry)
            self.decider.after(entry)
        self.relearning = {}
        self._note(entries)
        return entries

    def answer(self, proposal: int, approve: bool, who: str, reason: str) -> dict[str, Any]:
        """Approve or reject a proposal and return what became of it; raise PolicyError when it is not open."""
        at, of = self.now(), self.decider.proposals.get(proposal)
        if of is not None and not self._known(of.model):
            raise PolicyError(self._unknown(of.model))
        entry, planned = self.decider.answer(proposal, approve, who, reason, at)
        said = ("answer", entry.model, entry.version, {"proposal": proposal, "approved": approve, "reason": reason})
        if planned:
            return {"proposal": proposal, "approved": True, **self._change(planned, who, at, said)}
        self._journal(at, who, [said])
        return {"proposal": proposal, "approved": False, "model": entry.model, "version": entry.version}

    def calibrate(self, name: str, version: str | None, who: str, reason: str) -> Testing:
        """Begin a trial of calibrators on the mature days of a version; raise PolicyError when there is nothing to try."""
        if not self._known(name):
            raise PolicyError(self._unknown(name))
        version = version or self._only_version(name)
        w = self.watched.get(self.store.versions.code.get((name, version), -1))
        if w is None:
            raise PolicyError(f"no version {version} of model {name!r} is watched")
        return self.decider.ask(w, who, reason)

    def calibrated(self, testing: Testing, wait: bool) -> dict[str, Any] | None:
        """Return what a person's trial led to, None while it runs; a change that won it waits as a proposal."""
        at = self.now()
        out = self.decider.told(testing, at, wait)
        if out is None:
            return None
        (d,) = out.decisions
        entries = self._journal(at, testing.who, [("decision", d.model, d.version, _decision_body(d)), *out.entries])
        proposal = next((e.seq for e in entries if e.kind == "proposal"), None)
        found = {"model": d.model, "version": d.version, "reason": d.reason, "policy": d.policy, "proposal": proposal}
        return found | dict(d.about)

    def proposals(self) -> list[dict[str, Any]]:
        """Return the proposals that wait for a person, oldest first."""
        return self.decider.open()

    def decisions(self, name: str | None, limit: int, since: int) -> list[dict[str, Any]]:
        """Return what was decided, proposed, answered and changed, of all models or one, newest first, from entry `since` on."""
        if name is not None and not (self._known(name) or name in self.config.parents):
            raise PolicyError(self._unknown(name))
        parent = self.config.parents.get(name or "")
        models = None if name is None else [name] if parent is None else [t.name for t in parent.targets.values()]
        return [
            {
                **e.body,
                "entry": e.seq,
                "at": iso(e.at),
                "kind": e.kind,
                "model": e.model,
                "version": e.version,
                "who": e.who,
                "words": _in_words(e),
            }
            for e in self.store.log.entries(DECISIONS, models, since, limit)
        ]

    def reloaded(self, who: str, reason: str) -> None:
        """Journal that the configuration was read anew."""
        self._journal(self.now(), who, [("reload", "", "", {"reason": reason, "digest": self.config.digest})])

    def redeliver(self, ident: str, done: str, who: str, reason: str) -> dict[str, Any]:
        """Let a dead message be tried anew (`retried`) or forget it (`discarded`); raise LookupError when there is none."""
        item = self.outbox.find(ident)
        body = {"message": ident, "action": item.action, "done": done, "reason": reason}
        with self.store.log.transaction():
            entries = self.store.log.add_entries(self.now(), who, [("delivery", item.model, item.version, body)])
            (self.outbox.revive if done == "retried" else self.outbox.discard)(ident)
        self._note(entries)
        return {"model": item.model, "version": item.version, **body}

    def policy_of(self, name: str, version: str | None) -> Policy:
        """Return the policy that the model server of a version should follow; raise PolicyError when there is none."""
        version = version or self._only_version(name)
        policy = self.served.current(name, version)
        if policy is None:
            raise PolicyError(f"{name} {version} has no policy; activate one with `scorewatch activate`")
        return policy

    def audit(self, name: str) -> list[dict[str, Any]]:
        """Return the predictions of a model that wait for a review, newest first."""
        if not self._known(name):
            raise PolicyError(self._unknown(name))
        return [{**pick, "ts": iso(pick["ts"])} for pick in self.store.picks(name)]

    def delays(self, name: str) -> list[dict[str, Any]]:
        """Return by version, label and verdict which horizon labels suggest, and how many come after the configured one."""
        now = self.clock.last or 0
        mine = [w for w in self._active(now) if w.model.name == name]
        if not mine:
            raise PolicyError(f"no version of model {name!r} is watched")
        return [
            {
                "version": w.version,
                "label": label,
                "verdict": verdict,
                "n": found.n,
                "suggested_horizon_seconds": None if found.horizon is None else found.horizon / 1000,
                "late_labels_share": found.late,
                **({"reason": found.reason} if found.reason else {}),
            }
            for w in mine
            for label, verdict, found in w.delays(now)
        ]

    def compare(self, name: str, version: str | None, other: str | None) -> dict[str, Any]:
        """Return how two versions of a model differ on the same days; unless said a canary or shadow, and the live version."""
        now = self.clock.last or 0
        mine = {w.version: w for w in self._active(now) if w.model.name == name}
        live = [w for w in mine.values() if w.role == "live"]
        beside_live = [w.version for w in mine.values() if w.role != "live"]
        version = version or (beside_live[0] if len(beside_live) == 1 else None)
        if other is None and version in mine and (most := self._beside(mine[version], live)) is not None:
            other = most.version
        if version not in mine or other not in mine or version == other:
            raise PolicyError(f"say which two versions of {name} as ?version=A&with=B; watched are {', '.join(mine) or 'none'}")
        return beside(mine[version], mine[other], now)

    def classes(self, name: str, version: str | None, window: str) -> dict[str, Any]:
        """Return what a mature window says of all classes of a model together."""
        parent = self.config.parents.get(name)
        if parent is None:
            raise PolicyError(f"{name!r} is no model with classes; there are {', '.join(self.config.parents) or 'none'}")
        targets = list(parent.targets.values())
        version, now = version or self._only_version(targets[0].name), self.clock.last or 0
        codes = [self.store.versions.code.get((t.name, version), -1) for t in targets]
        if not all(code in self.watched for code in codes):
            raise PolicyError(f"{name} has no version {version}")
        seen = [self.watched[code] for code in codes]
        tables = [w.mature_table(window, now) for w in seen]
        read = [readings.mature(t, w.model.labels.rules) for t, w in zip(tables, seen, strict=True)]
        k, last = len(parent.classes), seen[-1]
        top = (tables[k], read[k]) if len(seen) > k else None
        before = last.baseline.table("all") if top and last.baseline else None
        said = multiclass.view(multiclass.Window(parent.classes, tables[:k], read[:k], top, before))
        return {"model": name, "version": version, "window": window, "n": tables[0].n, "labelled": tables[0].labelled, **said}

    def _known(self, name: str) -> bool:
        return name in self.config.models or ("*" in self.config.models and name not in self.config.parents)

    def _unknown(self, name: str) -> str:
        return f"model {name!r} is not in the configuration; it has {', '.join(self.config.models)}"

    def settled(self) -> int:
        """Return a time after which ticks change nothing until new events come: every day closed, every version idle."""
        longest = max(m.labels.longest + m.labels.corrections + m.idle_after for m in self.config.models.values())
        newest = max((w.seen for w in self.watched.values()), default=0)
        return newest + longest + WINDOWS["28d"] + 2 * DAY

    def now(self) -> int:
        """Return the present time by the agent's clock: that of the newest event where events are the clock."""
        if isinstance(self.clock, WallClock):
            return self.clock.now
        newest = max((w.seen for w in self.watched.values()), default=0)
        return max(newest, self.clock.now or 0) or wall()

    def latest(self) -> int:
        """Return the latest time an event may have: five minutes ahead of the machine's clock, as far as that is believed."""
        return (self.clock.now if isinstance(self.clock, WallClock) else wall()) + FUTURE

    def _only_version(self, name: str) -> str:
        mine = [w for w in self.watched.values() if w.model.name == name and w.role == "live"]
        live = [w.version for w in mine if self.clock.last is None or w.active(self.clock.last)] or [w.version for w in mine]
        if len(live) != 1:
            found = ", ".join(live) or "none yet"
            raise PolicyError(f"say which version of {name}: live versions are {found}")
        return live[0]

    # What is kept.

    def verify(self, live: bool) -> Iterator[Step]:
        """Compare every day that still has its rows with its tables, a step at a time; of a `live` agent its memory, too."""
        return verify(self.store, self.watched, self._count if live else None)

    def export(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the lines of `scorewatch export data`, a day at a time."""
        return data.export(list(self.watched.values()))

    # What is said.

    def _say(self, now: int) -> Snapshot:
        estimates: list[Estimate] = []
        measured: dict[tuple[Key, str], Reading] = {}
        calibrated: dict[tuple[Key, str], tuple[Reading, Ints | None]] = {}
        views = []
        for w in self._active(now):
            self._follow(w)
            w.measure(now)
            assert w.measured is not None
            recent = w.recent(now)
            estimates += (*recent, *w.measured.estimates, *w.measured.calibrated, *w.promise[1], *w.look_ahead(now).estimates)
            measured |= w.measured.readings
            calibrated |= w.measured.served
            served = self.served.standing(*w.name).served
            policy, threshold = self.served.current(*w.name), self.served.threshold(*w.name)
            view = w.view(now, policy, served[-1][0] if served else None, threshold, w.recent_inputs(now, recent))
            views.append(replace(view, **self.decider.shown(w.name)))
        closed = tuple((*self.store.versions.names[v], d) for v, d in sorted(self.store.closed))
        alerts = tuple(self.alerts.values())
        said = Snapshot(now, tuple(views), tuple(estimates), measured, alerts, self.diagnoses, {}, closed)
        return replace(said, calibrated=calibrated)

    def all_months(self, name: str) -> list[dict[str, Any]]:
        """Return the estimates of every month of a model that has closed days."""
        mine = [w for w in self.watched.values() if w.model.name == name]
        return [timeline.estimates("month", m, w.name, w.month(m)) for w in mine for m in w.months()]

    def finish(self) -> None:
        """Note the months that are not over, at the end of a replay."""
        for w in self.watched.values():
            self._note_months(w, sorted(w.open_months))

    def _note_timeline(self, now: int, closing: Mapping[tuple[int, int], Mapping[str, Table]], entries: Iterable[Entry]) -> None:
        for code, day in sorted(closing) if self.timeline_days else ():
            w, name = self.watched[code], iso(day * DAY)[:10]
            self._item(timeline.estimates("day", name, w.name, w.summary({day: closing[code, day]["all"]}, "day")))
        for w in self.watched.values():
            self._note_months(w, [m for m in sorted(w.open_months) if month_end(m) <= w.newest_mature(now)])
        self._note(entries)

    def _note_months(self, w: Watched, months: Iterable[str]) -> None:
        for month in months:
            self._item(timeline.estimates("month", month, w.name, w.month(month)))
            w.open_months.discard(month)

    def _note(self, entries: Iterable[Entry]) -> None:
        for e in entries:
            body = {
                k: v
                for k, v in e.body.items()
                if k not in ("before", "at", "since", "report", "preview", "days", "log_e", "limit")
            }
            body |= {"entry": e.seq} if e.kind == "proposal" else {}
            if e.kind == "alert" and (e.body["state"] == "pending" or e.body["reason"] == "dropped"):
                continue
            self._item({"kind": e.kind, "at": iso(e.at), "model": e.model, "version": e.version, "who": e.who, **body})

    def _item(self, item: dict[str, Any]) -> None:
        self.timeline.append({"seq": self.told, **item})
        self.told += 1


def _estimate(metric: str, key: Key, window: str, found: Measured | str) -> Estimate:
    """Return what was found of the scores of a window as an estimate."""
    if isinstance(found, str):
        return Estimate(metric, key, window, "scored", None, None, None, 0, found)
    return Estimate(metric, key, window, "scored", found.value, found.low, found.high, found.n)


def _in_words(entry: Entry) -> str:
    """Return why: the sentence of a code, or what a person said, which may be a code's name."""
    reason: str = entry.body.get("reason", "proposed")
    coded = entry.kind in ("decision", "proposal") or entry.who == "agent"
    return DECIDED.get(reason, reason) if coded else reason


def _kind(source: str) -> str:
    """Return the kind of a source, which is what its counters are labelled with."""
    return source.partition(":")[0]


C = TypeVar("C", Predictions, Labels)
_Other = Predictions | Labels | None


def _reject(columns: C, which: NDArray[np.bool_], bad: list[Rejection], reason: str) -> C:
    """Return the rows of the other events and note these events as rejected."""
    if not which.any():
        return columns
    events = np.unique(columns.index[which])
    bad.extend(Rejection(i, reason, "") for i in events.tolist())
    return columns.take(~np.isin(columns.index, events))


def _best(index: Ints, of_row: NDArray[Any]) -> NDArray[Any]:
    """Return for each event, in the order of the index, the best of what became of its rows."""
    first = np.flatnonzero(np.diff(index, prepend=-1))
    return of_row if len(first) == len(index) else np.maximum.reduceat(of_row, first)


def _carried(batch: Batch, p: Predictions) -> NDArray[np.bool_]:
    """Return which of the predictions came inside a label."""
    if batch.labels is None:
        return np.zeros(len(p), bool)
    return np.isin(p.index, batch.labels.index)


def _paired(columns: C | None, other: _Other, admitted: _Other) -> C | None:
    """Return the events without those whose other half was not admitted."""
    if columns is None or other is None:
        return columns
    kept = np.empty(0, np.int64) if admitted is None else admitted.index
    lost = np.isin(columns.index, other.index) & ~np.isin(columns.index, kept)
    columns = columns.take(~lost) if lost.any() else columns
    return columns if len(columns) else None


def _decision_body(d: Decision) -> dict[str, Any]:
    """Return a decision for the journal; what a proposal rests on is in that."""
    about = {} if d.reason == "proposed" else d.about
    return {"rule": d.rule, "action": d.action, "allowed": d.allowed, "reason": d.reason, "policy": d.policy, **about}


def _alert_body(a: Alert, d: Diagnosis | None) -> dict[str, Any]:
    body = {"rule": a.rule, "severity": a.severity, "state": a.state, "since": a.since, "reason": a.reason}
    body |= {"slices": dict(a.slices)} if a.slices else {}
    body |= {} if d is None else {"diagnosis": d.code, "advice": d.action, "words": d.words}
    return body | {k: None if e is None else timeline.number(e) for k, e in (("observed", a.observed), ("expected", a.expected))}


def _oldest_kept(model: Model, now: int) -> int:
    """Return the oldest day whose rows are kept for corrections."""
    return oldest_kept(now, model.labels.longest, model.labels.corrections)
