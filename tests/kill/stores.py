"""A store that works through a stream of operations and is killed, again and again; and what it must hold in the end.

`python -m kill.stores FOLDER SEED OPERATIONS KILLS POWER BROKEN` lives and dies; POWER is 1 when each death is a loss of power,
BROKEN names a mistake that `check` must find.
"""

import json
import os
import random
import signal
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

import monitor.store
from kill import points
from kill.oracle import (
    Row,
    Said,
    alike,
    assert_same_table,
    best,
    fields_of,
    keys_of,
    seconds,
    stored,
    table_of,
    table_of_scores,
)
from monitor.core.events import DAY, HOUR, Coded, Labels, Predictions, prob_code
from monitor.core.tables import EMPTY, NAMED, NO_AUDIT, PASSED_OVER, PICKED, not_waiting, tables
from monitor.store import Drawn, Store, index, passing, ring
from monitor.store.log import Log

T0 = 1_700_006_400_000 // DAY * DAY
HORIZON, CORRECTIONS = 1, 1
NAMES = tuple(("m", v) for v in "xyz")
NOBODY = np.zeros((1, 4), np.int32)
PROBS = [int(code) for code in prob_code(np.array([0.25, 0.5, 0.8]))]
BETWEEN_TICKS = 40
"""More rows that do not wait than come from one tick to the next: so many may follow an operation that is done again."""


KNOWN = 4_096
"""Rows that do not wait that an agent knows, more than may be on the way when it dies."""


def small(put=setattr, known=64):
    """Let blocks, files and tables be small, so that they grow and are used again soon, and checkpoints frequent.

    Of rows that do not wait the last `known` are known by their ids.
    """
    for module, values in {
        monitor.store: {"BLOCK": 32, "_HITS_PER_CHECKPOINT": 200, "_CHECKPOINT_PARTS": 3},
        ring: {"_FEWEST": 2, "_FLUSHED_AT_ONCE": 512},
        passing: {"CAPACITY": known},
        index: {"_SMALLEST": 6, "_AT_LEAST": 16},
    }.items():
        for name, value in values.items():
            assert hasattr(module, name)
            put(module, name, value)


def oldest_kept(now):
    """Return the oldest day that may still change."""
    return (now - (HORIZON + CORRECTIONS) * DAY) // DAY


class Label(NamedTuple):
    """A label as it is sent; version None is all of them."""

    ident: str
    version: int | None
    ts: int
    outcome: int
    revision: int
    label_prob: int = 0


class Held(NamedTuple):
    """A label that waits for its prediction; `used` says that one took it, others may follow."""

    ts: int
    until: int
    outcome: int
    revision: int
    label_prob: int
    used: bool


# The stream.


def stream(seed, operations):
    """Return the operations: ("predict", rows), ("label", labels, now), ("tick", now), ("count",) or ("checkpoint",).

    Ids come again with other content and other versions, before and after their labels, and labels are corrected. Some
    labels come before their prediction, some too late, some are of ids that nobody ever scored. Whatever is done again
    before the next tick changes nothing.
    """
    r = random.Random(seed)
    oracle, out = Oracle(), []
    scored, past, said = {}, [], {}

    def do(*operation):
        out.append(operation)
        oracle.do(operation)

    for i in range(operations):
        now = T0 + i * 3 * HOUR
        past += [ident for ident, first in scored.items() if first // DAY <= oracle.kept]
        scored = {ident: first for ident, first in scored.items() if first // DAY > oracle.kept}
        known = [ident for ident in scored if oracle.is_certain(ident)]
        rows = []
        for j in range(r.choice([1, 3, 20])):
            again = bool(known) and r.random() < 0.2
            ident = r.choice(known) if again else f"{i}-{j}"
            ts = max(now - r.choice([0, 0, 0, DAY, 2 * DAY, 5 * DAY]), (oracle.kept + again) * DAY) + r.randrange(HOUR)
            rows.append(a_row(r, ident, r.randrange(min(i // 20, 2) + 1), ts))
            scored[ident] = min(ts, scored.get(ident, ts))
        if early := [row.ident for row in rows if r.random() < 0.1]:
            do("label", [a_label(r, ident, r.choice([None, 0, 1]), now, said) for ident in early], now)
        do("predict", rows)
        known = [ident for ident in scored if oracle.is_certain(ident)]
        gone = ["nobody", f"nobody-{i}", *filter(oracle.is_certain, past[-20:])]
        labels = []
        for _ in range(r.choice([1, 10, 30])):
            ident = r.choice(known if known and r.random() < 0.85 else gone)
            at = now - r.choice([0, 0, 0, 0, 3 * DAY, 4 * DAY])
            labels.append(a_label(r, ident, r.choice([None, None, 0, 1, 2]), at, said))
        do("label", labels, now)
        if i % 4 == 3:
            do("tick", now)
        if i % 11 == 5:
            do("checkpoint")
        if i % 9 == 2:
            do("count")
    do("tick", T0 + operations * 3 * HOUR)
    return out


def a_row(r, ident, version, ts):
    """Return a prediction; whether it waits and how likely its label is to be seen depend on the id alone."""
    h = zlib.crc32(ident.encode())
    audit = (NO_AUDIT, NO_AUDIT, NO_AUDIT, PICKED, PASSED_OVER)[h // 5 % 5]
    waits = h % 5 > 0 or audit == PICKED
    wait_prob = r.choice([0, PROBS[1]]) if waits else PROBS[1]
    cluster = r.choice([0, r.randrange(1, 1 << 32)])
    verdict, combo, score = r.randrange(6), r.randrange(4), r.random()
    return Row(ident, version, ts, score, verdict, combo, prob_of_id(ident), cluster, waits, wait_prob, audit, audit == PICKED)


def prob_of_id(ident):
    """Return the `label_prob` of the predictions of an id."""
    h = zlib.crc32(ident.encode())
    return (0, 0, *PROBS)[h // 25 % 5] if h // 5 % 5 < 3 else PROBS[h % 3]


def a_label(r, ident, version, at, said):
    """Return a label of an id; only labels for the same versions agree in revision and time, so what came later matters.

    All labels of some ids have another `label_prob` than their predictions.
    """
    revision, ts, prob = r.choice([0, 0, 1]), at + r.randrange(3) * 1000, prob_of_id(ident)
    while said.setdefault((ident, revision, ts), version) != version:
        ts += 1000
    if prob == 0:
        prob = r.choice([0, *PROBS])
    elif zlib.crc32(ident.encode()) // 125 % 8 == 0:
        prob += 1
    else:
        prob = r.choice([0, prob])
    return Label(ident, version, ts, r.randrange(2), revision, prob)


def columns(store, rows):
    """Return rows as Predictions, and what was drawn for them: None when all wait and none was asked for by an audit."""
    ids = store.hasher.ids("m", [row.ident.encode() for row in rows])
    ts, score = np.array([row.ts for row in rows], np.int64), np.array([row.score for row in rows])
    version, combo = Coded.of([NAMES[row.version] for row in rows]), Coded.of([(("c", str(row.combo)),) for row in rows])
    verdict, policy = np.array([row.verdict for row in rows], np.uint8), Coded.of([""] * len(rows))
    audit = np.array([row.audit for row in rows], np.uint8)
    prob, wait_prob = (np.array([getattr(row, name) for row in rows], np.uint16) for name in ("label_prob", "wait_prob"))
    cluster = np.array([row.cluster for row in rows], np.uint32)
    sent = np.array([row.ident.encode() for row in rows], object)
    given = np.where(audit == NO_AUDIT, prob, 0).astype(np.uint16)
    p = Predictions(np.arange(len(rows)), ids, ts, version, score, verdict, combo, policy, given, cluster, sent)
    waits, picked = (np.array([getattr(row, name) for row in rows]) for name in ("waits", "picked"))
    if waits.all() and not audit.any() and not wait_prob.any():
        return p, None
    return p, Drawn(waits, wait_prob, audit, prob, picked, np.array([listed_until(row.ts) for row in rows]))


def label_columns(store, labels):
    """Return labels as Labels."""
    ids = store.hasher.ids("m", [k.ident.encode() for k in labels])
    version = Coded.of([("m", None) if k.version is None else NAMES[k.version] for k in labels])
    kinds = (("ts", np.int64), ("outcome", np.int8), ("revision", np.uint8), ("label_prob", np.uint16))
    ts, outcome, revision, prob = (np.array([getattr(k, name) for k in labels], kind) for name, kind in kinds)
    return Labels(np.arange(len(labels)), ids, ts, version, outcome, revision, prob)


def held_until(ts):
    """Return until when a label waits for its prediction."""
    return ts + (HORIZON + CORRECTIONS + 1) * DAY


def listed_until(ts):
    """Return until when a prediction is listed for review."""
    return (ts // DAY + 1 + HORIZON + CORRECTIONS) * DAY


# The victim.


def work(folder, operations, back):
    """Go on with the stream where the store says, the last `back` operations once more, but not from before the last tick."""
    store = Store(folder)
    last = store.meta.get("last_tick", 0)
    if last:
        store.keep_from = dict.fromkeys(range(len(NAMES)), oldest_kept(last))
    done = [i for i, operation in enumerate(operations) if operation[0] == "tick" and operation[1] <= last]
    at = max(int(store.positions.get("stream", 0)) - back, max(done, default=-1) + 1)
    for i, (what, *given) in enumerate(operations[at:], at):
        position = {"stream": str(i + 1)}
        if what == "predict":
            predict(store, given[0], position)
        elif what == "label":
            labels, now = given
            until = np.array([held_until(k.ts) for k in labels])
            store.label(label_columns(store, labels), position, until, now)
        elif what == "checkpoint":
            store.checkpoint()
        elif what == "count":
            count(store)
            store.save_passed()
        else:
            tick(store, given[0])
    store.close()


def predict(store, rows, position):
    """Store predictions; rows that do not wait are counted before there is no room for them."""
    kept = oldest_kept(store.meta.get("last_tick", 0))
    if rows := [row for row in rows if row.ts // DAY >= kept]:
        if len(rows) > store.passing.room:
            count(store)
            store.save_passed()
        p, drawn = columns(store, rows)
        store.append(p, position, drawn)


def count(store):
    """Count the rows that do not wait since the last time."""
    for rows in store.passing.since(store.passing.seen):
        for kind, unit in (("day", DAY), ("hour", HOUR)):
            for version, at in {(int(row["version"]), int(row["ts"]) // unit) for row in rows}:
                mine = rows[(rows["version"] == version) & (rows["ts"] // unit == at)]
                store.add_passed((version, kind, at), {"all": not_waiting(tables(mine, None, NOBODY, 1)[0])})
    store.passing.seen = store.passing.tail


def tick(store, now):
    """Close and count again what there is to close and to count again."""
    count(store)
    there = store.spans.keys() | {(v, at) for v, kind, at in store.passed if kind == "day"}
    due = [k for k in there if k[1] < now // DAY - HORIZON and (k not in store.closed or k in store.recount)]
    days = {k: {"all": tables(*store.rows_of(*k), NOBODY, 1)[0] + passed_of(store, k)} for k in due}
    kept = dict.fromkeys(range(len(NAMES)), oldest_kept(now))
    store.record(now, days, kept, [("tick", "m", "", {"days": len(days) > 0})], {})


def passed_of(store, key):
    """Return the table of the rows of a (version, day) that do not wait."""
    version, day = key
    return store.passed.get((version, "day", day), {}).get("all", EMPTY)


def rows_first():
    """Let the store make the mistake of letting rows go before their tables are stored."""
    record, put = Store.record, Log.put_day

    def broken(store, *args):
        later = []
        Log.put_day = lambda log, *day: later.append(day)
        done = record(store, *args)
        Log.put_day = put
        with store.log.transaction():
            for day in later:
                store.log.put_day(*day)
        return done

    Store.record = broken


def labels_unflushed():
    """Let the store make the mistake of forgetting in the log labels that it did not flush."""
    ring.Ring.flush_labels = lambda ring: iter(())


BROKEN = {"late_flush": None, "rows_first": rows_first, "labels_unflushed": labels_unflushed}
WHERE = {"late_flush": "after-commit", "rows_first": "before-insert-days", "labels_unflushed": "after-commit"}
"""Mistakes, and where they show."""


def live(folder, operations, kills, power, broken):
    """Live and be killed so often, then until the stream is done; a life that fails by itself ends it all."""
    if (make := BROKEN.get(broken)) is not None:
        make()
    moments, log = random.Random(kills), folder.parent / "points"
    for life in range(kills + 1):
        if broken and life < kills:
            where = WHERE[broken], moments.randrange(1, 20), -1
        else:
            where = points.choose(moments, log, 100) if life < kills else ("", -1, -1)
        back = moments.randrange(3)
        if child := os.fork():
            status = os.waitpid(child, 0)[1]
            if status and os.WTERMSIG(status) != signal.SIGKILL:
                sys.exit(f"life {life} failed")
            if not status:
                break
            continue
        disk = points.Disk(folder, random.Random(life), broken == "late_flush") if power else None
        points.arm(log, where, disk)
        work(folder, operations, back)
        os._exit(0)
    print(json.dumps({"kills": life}))


# What must be there.


class Oracle:
    """The same stream in lists and dicts, without a kill."""

    def __init__(self):
        self.rows, self.at, self.labels = [], {}, {}
        self.passed_rows, self.passed_at, self.passed, self.uncounted = [], {}, {}, 0
        self.held, self.picks = {}, {}
        self.closed, self.head, self.kept, self.left, self.ticks = set(), 0, 0, {}, []
        self.versions, self.combos = {}, {}

    def do(self, operation):
        """Do an operation of the stream."""
        what, *given = operation
        if what in ("predict", "label", "tick"):
            getattr(self, what)(*given)

    def is_certain(self, ident):
        """Return whether the store will know the rows of an id that do not wait, or not know them, until the next tick."""
        oldest = len(self.passed_rows) - passing.CAPACITY
        at = [self.passed_at.get((ident, v), -1) for v in range(len(NAMES))]
        return all(n < max(oldest, 0) or n >= oldest + BETWEEN_TICKS for n in at)

    def has_passed(self, ident, version):
        """Return whether an id is among the last rows that do not wait."""
        return self.passed_at.get((ident, version), -1) >= max(0, len(self.passed_rows) - passing.CAPACITY)

    def row_of(self, ident, version):
        """Return the number of the row of an id that is there, or None."""
        i = self.at.get((ident, version), -1)
        return i if i >= self.head else None

    def predict(self, rows):
        for row in rows:
            if row.ts // DAY < self.kept:
                continue
            self.versions.setdefault(row.version, len(self.versions))
            self.combos.setdefault(row.combo, len(self.combos))
            key = row.ident, row.version
            if self.row_of(*key) is not None or self.has_passed(*key):
                continue
            if row.waits:
                self.take_label(row)
                self.at[key] = len(self.rows)
                self.rows.append(row)
                if row.picked:
                    self.picks.setdefault(key, row)
            else:
                self.passed_at[key] = len(self.passed_rows)
                self.passed_rows.append(row)
                self.uncounted += 1
                for kind, unit in (("day", DAY), ("hour", HOUR)):
                    self.passed.setdefault((row.version, kind, row.ts // unit), []).append(row)

    def take_label(self, row):
        """Give a new row the best label that waits for it or that another version of its id has."""
        found = []
        for version, named in ((None, 0), (row.version, NAMED)):
            if (k := self.held.get((row.ident, version))) is not None:
                self.held[row.ident, version] = k._replace(used=True)
                found.append(Said(k.revision, seconds(k.ts, row.ts), k.outcome, k.label_prob & ~NAMED | named))
        for other in range(len(NAMES)):
            i = self.row_of(row.ident, other)
            if i is not None and i in self.labels and self.labels[i].label_prob < NAMED:
                moved = self.labels[i].seconds + seconds(self.rows[i].ts, row.ts)
                found.append(self.labels[i]._replace(seconds=moved))
        for said in found:
            if alike(row, said.label_prob & ~NAMED):
                self.labels[len(self.rows)] = best(self.labels.get(len(self.rows)), said)

    def label(self, labels, now):
        before, to_hold, none_shown = {}, [], []
        live = {row.version for row in self.rows[self.head :]}
        for k in labels:
            versions = live if k.version is None else {k.version} & self.versions.keys()
            there = [i for v in versions if (i := self.row_of(k.ident, v)) is not None]
            passed = any(self.has_passed(k.ident, v) for v in versions)
            named = 0 if k.version is None else NAMED
            if not there and not passed:
                to_hold.append((k, False))
            fits = [i for i in there if self.rows[i].ts // DAY >= self.kept and alike(self.rows[i], k.label_prob)]
            for i in fits:
                before.setdefault(i, self.labels.get(i))
                said = Said(k.revision, seconds(k.ts, self.rows[i].ts), k.outcome, k.label_prob | named)
                self.labels[i] = best(self.labels.get(i), said)
            if fits and not named:
                none_shown.append((k, fits))
        to_hold += [(k, True) for k, fits in none_shown if all(self.labels[i].label_prob >= NAMED for i in fits)]
        displaced = [
            (
                Label(
                    self.rows[i].ident, None, self.rows[i].ts // 1000 * 1000 + old.seconds * 1000, *old[2:1:-1], old[0], old[3]
                ),
                True,
            )
            for i, old in before.items()
            if old is not None and old.label_prob < NAMED <= self.labels[i].label_prob
        ]
        new = {}
        for k, used in [*displaced, *sorted(to_hold, key=lambda one: labels.index(one[0]))]:
            held = Held(k.ts, held_until(k.ts), k.outcome, k.revision, k.label_prob | (0 if k.version is None else NAMED), used)
            was = new.get((k.ident, k.version))
            if held.until > now and (was is None or (k.revision, k.ts) >= (was.revision, was.ts)):
                new[k.ident, k.version] = held
        for key, held in new.items():
            was = self.held.get(key)
            if was is None or ((held.revision, held.ts) >= (was.revision, was.ts) and held[:5] != was[:5]):
                self.held[key] = held

    def tick(self, now):
        assert self.uncounted <= BETWEEN_TICKS
        self.kept, self.uncounted = oldest_kept(now), 0
        self.ticks.append(now)
        days = [(row.version, row.ts // DAY) for row in self.rows]
        there = set(days[self.head :])
        self.closed |= {d for d in there if d[1] < now // DAY - HORIZON}
        self.closed |= {(v, d) for v, kind, d in self.passed if kind == "day" and d < now // DAY - HORIZON}
        staying = [i for i, d in enumerate(days) if d not in self.closed or d[1] >= self.kept]
        head = max(self.head, min(staying, default=len(days)))
        for version, day in days[self.head : head]:
            self.left[version] = max(self.left.get(version, 0), day + 1)
        whole = {d for d in there if d[1] >= self.left.get(d[0], 0)}
        self.passed = {
            (v, kind, at): rows
            for (v, kind, at), rows in self.passed.items()
            if (at >= now // HOUR - 48 if kind == "hour" else at >= self.kept or (v, at) in whole)
        }
        self.head = head
        self.held = {key: k for key, k in self.held.items() if k.until > now}
        self.picks = {key: row for key, row in self.picks.items() if listed_until(row.ts) > now}


def check(folder, operations):
    """Compare all that the files hold with the oracle."""
    oracle = Oracle()
    for operation in operations:
        oracle.do(operation)
    store = Store(folder)
    try:
        _compare(oracle, store)
    finally:
        store.close()


def _compare(oracle, store):
    code, name = oracle.versions, {v: version for v, (_, version) in enumerate(NAMES)} | {None: None}

    def keyed(things):
        """Return {(id, version): anything} by the hashes that are stored."""
        return dict(zip(keys_of(store, [(i, name[v]) for i, v in things]), things.values(), strict=True))

    assert (store.head, store.tail, store.passing.tail) == (oracle.head, len(oracle.rows), len(oracle.passed_rows))
    assert 0 < store.head < store.tail
    size = store.ring.size
    blocks = store.log.blocks()
    assert sorted(blocks.values()) == list(range(store.head // size, -(-store.tail // size)))
    assert max(blocks) < store.tail // size // 2  # places of rows that left were used again
    assert store.versions.names == [NAMES[v] for v in code]
    assert {c: store.combos.code[(("c", str(c)),)] for c in oracle.combos} == oracle.combos
    there = {oracle.rows[i][:2]: i for i in range(oracle.head, len(oracle.rows))}
    rows = {key: oracle.rows[i] for key, i in there.items()}
    found, labels = stored(store)
    assert found == keyed({key: fields_of(row, code[row.version], oracle.combos[row.combo]) for key, row in rows.items()})
    assert labels == keyed({key: oracle.labels[i] for key, i in there.items() if i in oracle.labels})
    held = {(k["h1"], k["h2"]): k for k in store.early.by_key()}
    said = {key: Held(*k[["ts", "until"]].tolist(), *k["label"].tolist()[:3], bool(k["used"])) for key, k in held.items()}
    assert said == keyed(oracle.held)
    picks = {(p["id"], p["version"], p["ts"], p["score"]) for p in store.picks("m")}
    unlabelled = [row for key, row in oracle.picks.items() if key in there and there[key] not in oracle.labels]
    assert picks == {(row.ident, name[row.version], row.ts, row.score) for row in unlabelled}
    assert held
    assert picks
    last = store.passing.tail - passing.CAPACITY
    kept = [(row["ts"], row["score"]) for part in store.passing.since(last) for row in part]
    assert kept == [(row.ts, row.score) for row in oracle.passed_rows[last:]]
    assert store.passing.counted == store.passing.tail
    assert store.passed.keys() == {(code[v], kind, at) for v, kind, at in oracle.passed}
    for (v, kind, at), mine in oracle.passed.items():
        assert_same_table(store.passed[code[v], kind, at]["all"], table_of_scores(mine))
    assert store.unlike_log() == []
    assert store.closed.keys() == {(code[v], d) for v, d in oracle.closed}
    assert (store.recount, store.left) == (set(), {code[v]: day for v, day in oracle.left.items()})
    everything = [*enumerate(oracle.rows), *((None, row) for row in oracle.passed_rows)]
    for version, day in oracle.closed:
        mine = [(i, row) for i, row in everything if (row.version, row.ts // DAY) == (version, day)]
        expected = table_of([row for _, row in mine], [oracle.labels.get(i) for i, _ in mine])
        assert_same_table(store.log.day(code[version], day)["all"], expected)
    assert [(e.seq, e.at) for e in store.log.journal()] == list(enumerate(oracle.ticks, 1))
    assert store.log.broken_link() is None
    p, drawn = columns(store, [*rows.values(), *oracle.passed_rows[last:]])
    assert not store.append(p, {}, drawn).any()  # all of them are found again


if __name__ == "__main__":
    small()
    live(Path(sys.argv[1]), stream(*map(int, sys.argv[2:4])), int(sys.argv[4]), sys.argv[5] == "1", sys.argv[6])
