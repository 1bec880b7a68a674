"""A store that works through a stream of operations and is killed, again and again; and what it must hold in the end.

`python -m kill.stores FOLDER SEED OPERATIONS KILLS POWER BROKEN` lives and dies; POWER is 1 when each death is a loss of power,
BROKEN names a mistake that `check` must find.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

import monitor.store
from kill import points
from kill.oracle import assert_same_table, best, keys_of, stored, table_of
from monitor.core.events import DAY, HOUR, Coded, Labels, Predictions
from monitor.core.tables import ROW, tables
from monitor.store import Store
from monitor.store.log import Log

T0 = 1_700_006_400_000 // DAY * DAY
HORIZON, CORRECTIONS = 1, 1
NAMES = tuple(("m", v) for v in "xyz")


def small():
    """Let files be small, so that they grow and are used again soon, and checkpoints frequent."""
    for name, value in {"FIRST_CAPACITY": 32, "_HITS_PER_CHECKPOINT": 2_000}.items():
        assert hasattr(monitor.store, name)
        setattr(monitor.store, name, value)


def oldest_kept(now):
    """Return the oldest day that may still change."""
    return (now - (HORIZON + CORRECTIONS) * DAY) // DAY


def stream(seed, operations):
    """Return the operations: ("predict", rows), ("label", labels), ("tick", now) or ("checkpoint",).

    A row is (id, version, ts, score, combo), a label (id, version or None, ts, outcome, revision). Ids come again with
    other content, and labels are corrected, as long as the days of all their rows may change for another tick; only ids that
    have no label yet are scored by another version. Some labels are of ids that nobody ever scored.
    """
    r = random.Random(seed)
    out, scored, labelled, kept = [], {}, set(), 0
    for i in range(operations):
        now = T0 + i * 3 * HOUR
        scored = {ident: versions for ident, versions in scored.items() if min(versions.values()) // DAY > kept}
        rows = []
        for j in range(r.choice([1, 3, 20])):
            ident = r.choice(list(scored)) if scored and r.random() < 0.15 else f"{i}-{j}"
            version = r.choice(list(scored[ident])) if ident in labelled else r.randrange(min(i // 20, 2) + 1)
            ts = max(now - r.choice([0, 0, 0, DAY, 2 * DAY, 5 * DAY]), kept * DAY) + r.randrange(HOUR)
            rows.append((ident, version, ts, r.random(), r.randrange(4)))
            scored.setdefault(ident, {}).setdefault(version, ts)
        out.append(("predict", rows))
        labels = []
        for _ in range(r.choice([1, 10, 30])):
            ident = r.choice(list(scored)) if r.random() < 0.9 else "nobody"
            version = r.choice([*scored.get(ident, NAMES[:1]), None, None]) if ident != "nobody" else None
            labels.append((ident, version, now + r.randrange(3) * 1000, r.randrange(2), r.choice([0, 0, 1])))
            labelled.add(ident)
        out.append(("label", labels))
        if i % 4 == 3:
            out.append(("tick", now))
            kept = oldest_kept(now)
        if i % 11 == 5:
            out.append(("checkpoint",))
    return [*out, ("tick", T0 + operations * 3 * HOUR)]


def columns(store, rows):
    """Return rows as Predictions."""
    ids = store.hasher.ids("m", [row[0].encode() for row in rows])
    ts, score = np.array([row[2] for row in rows], np.int64), np.array([row[3] for row in rows])
    version = Coded.of([NAMES[row[1]] for row in rows])
    combo = Coded.of([(("c", str(row[4])),) for row in rows])
    verdict, policy = np.full(len(rows), 5, np.uint8), Coded.of([""] * len(rows))
    return Predictions(np.arange(len(rows)), ids, ts, version, score, verdict, combo, policy)


def label_columns(store, labels):
    """Return labels as Labels."""
    ids = store.hasher.ids("m", [k[0].encode() for k in labels])
    version = Coded.of([NAMES[k[1]] if k[1] is not None else ("m", None) for k in labels])
    ts, revision = np.array([k[2] for k in labels], np.int64), np.array([k[4] for k in labels], np.uint8)
    return Labels(np.arange(len(labels)), ids, ts, version, np.array([k[3] for k in labels], np.int8), revision)


# The victim.


def work(folder, operations, back):
    """Go on with the stream where the store says, the last `back` operations once more."""
    store = Store(folder)
    if "last_tick" in store.meta:
        store.keep_from = dict.fromkeys(range(len(NAMES)), oldest_kept(store.meta["last_tick"]))
    at = max(0, int(store.positions.get("stream", 0)) - back)
    for i, operation in enumerate(operations[at:], at):
        position = {"stream": str(i + 1)}
        if operation[0] == "predict":
            kept = oldest_kept(store.meta.get("last_tick", 0))
            if rows := [row for row in operation[1] if row[2] // DAY >= kept]:
                store.append(columns(store, rows), position)
        elif operation[0] == "label":
            store.label(label_columns(store, operation[1]), position)
        elif operation[0] == "checkpoint":
            store.checkpoint()
        elif store.meta.get("last_tick", 0) < operation[1]:
            tick(store, operation[1])
    store.close()


def tick(store, now):
    """Close and count again what there is to close and to count again."""
    due = [k for k in store.spans if k[1] < now // DAY - HORIZON and (k not in store.closed or k in store.recount)]
    nobody = np.zeros((1, 4), np.int32)
    days = {k: {"all": tables(*store.rows_of(*k), nobody, 1)[0]} for k in due}
    kept = dict.fromkeys(range(len(NAMES)), oldest_kept(now))
    store.record(now, days, kept, [("tick", "m", "", {"days": len(days) > 0})], {})


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


WHERE = {"late_flush": "after-commit", "rows_first": "before-insert-days"}
"""Where a mistake shows."""


def live(folder, operations, kills, power, broken):
    """Live and be killed so often, then until the stream is done; a life that fails by itself ends it all."""
    small()
    if broken == "rows_first":
        rows_first()
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

    def __init__(self, operations):
        self.rows, self.at, self.labels = [], {}, {}
        self.closed, self.head, self.ticks = set(), 0, []
        self.versions, self.combos = {}, {}
        self.kept = 0
        for operation in operations:
            if operation[0] == "predict":
                self.predict([row for row in operation[1] if row[2] // DAY >= self.kept])
            elif operation[0] == "label":
                self.label(operation[1])
            elif operation[0] == "tick":
                self.tick(operation[1])

    def predict(self, rows):
        for ident, version, ts, score, combo in rows:
            self.versions.setdefault(version, len(self.versions))
            self.combos.setdefault(combo, len(self.combos))
            if self.at.get((ident, version), -1) < self.head:
                self.at[ident, version] = len(self.rows)
                self.rows.append((ident, version, ts, score, combo))

    def label(self, labels):
        for ident, named, ts, outcome, revision in labels:
            for version in range(len(NAMES)) if named is None else (named,):
                i = self.at.get((ident, version), -1)
                if i >= self.head and self.rows[i][2] // DAY >= self.kept:
                    self.labels[i] = best(self.labels.get(i), (revision, (ts - self.rows[i][2]) // 1000, outcome))

    def tick(self, now):
        self.kept = oldest_kept(now)
        self.ticks.append(now)
        days = [(row[1], row[2] // DAY) for row in self.rows]
        self.closed |= {d for d in days if d[1] < now // DAY - HORIZON}
        staying = [i for i, d in enumerate(days) if d not in self.closed or d[1] >= self.kept]
        self.head = max(self.head, min(staying, default=len(days)))


def check(folder, operations):
    """Compare what the files hold with the oracle: rows, labels, days, code books, journal."""
    oracle, store = Oracle(operations), Store(folder)
    try:
        _compare(oracle, store)
    finally:
        store.close()


def _compare(oracle, store):
    assert (store.head, store.tail) == (oracle.head, len(oracle.rows))
    assert 0 < store.head < store.tail
    on_disk = sum(p.stat().st_size for p in store.folder.glob("rows*.bin"))
    assert on_disk < store.tail * ROW.itemsize  # places of rows that left were used again
    code = oracle.versions
    assert store.versions.names == [NAMES[v] for v in code]
    assert {c: store.combos.code[(("c", str(c)),)] for c in oracle.combos} == oracle.combos
    there = range(oracle.head, len(oracle.rows))
    keys = keys_of(store, [oracle.rows[i][0] for i in there], [code[oracle.rows[i][1]] for i in there])
    order = dict(zip(there, keys, strict=True))
    found, labels = stored(store)
    assert found == {order[i]: (code[oracle.rows[i][1]], *oracle.rows[i][2:4]) for i in there}
    assert labels == {order[i]: oracle.labels[i] for i in there if i in oracle.labels}
    assert store.closed.keys() == {(code[v], d) for v, d in oracle.closed}
    for version, day in oracle.closed:
        mine = [i for i, row in enumerate(oracle.rows) if (row[1], row[2] // DAY) == (version, day)]
        expected = table_of([(oracle.rows[i][3], 5) for i in mine], [oracle.labels.get(i) for i in mine])
        assert_same_table(store.log.day(code[version], day)["all"], expected)
    assert [(e.seq, e.at) for e in store.log.journal()] == list(enumerate(oracle.ticks, 1))
    assert store.log.broken_link() is None
    assert store.recount == set()
    assert not store.append(columns(store, [oracle.rows[i] for i in there]), {}).any()  # all of them are found again


if __name__ == "__main__":
    live(Path(sys.argv[1]), stream(*map(int, sys.argv[2:4])), int(sys.argv[4]), sys.argv[5] == "1", sys.argv[6])
