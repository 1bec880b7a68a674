"""kill -9 at any moment: every acknowledged event is there exactly once, nothing else is, and nothing is counted twice.

Run as a program (`test_kill.py FOLDER SEED`) this file is the victim of the second test: it works through a stream of
operations on a Store and kills itself before and after statements, writes and flushes, again and again.
"""

import http.client
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
from pathlib import Path

import numpy as np
import pytest

import monitor.store
from monitor.core.events import DAY, HOUR, Coded, Labels, Predictions
from monitor.core.tables import LABEL, ROW, tables
from monitor.store import Store
from monitor.store.ring import Ring

T0 = 1_700_006_400_000 // DAY * DAY
DEADLINE = 120
GONE = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


# The oracle: what a dict says about a stream of events.


def best(old, new):
    """Return the label that counts of two (revision, seconds, outcome), `new` having come later."""
    return new if old is None or new[:2] >= old[:2] else old


def table_of(rows, labels):
    """Return the table of the slice `all` of rows [(score, verdict)] and labels (None: none), counted from scratch."""
    made, said = np.zeros(len(rows), ROW), np.zeros(len(rows), LABEL)
    made["score"], made["verdict"] = [r[0] for r in rows], [r[1] for r in rows]
    said["outcome"] = [-1 if k is None else k[2] for k in labels]
    return tables(made, said, np.zeros((1, 1), np.int32), 1)[0]


def assert_same_table(a, b):
    """Counts are equal, sums are equal up to the order of addition."""
    for name in a.cells.dtype.names:
        np.testing.assert_allclose(a.cells[name], b.cells[name], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(a.totals, b.totals, rtol=1e-12, atol=1e-12)


# The agent under load.


class Sender:
    """Sends predictions and labels of its own ids, each body again until it is acknowledged."""

    def __init__(self, agent, name, seed, alive, enough):
        self.agent, self.name, self.alive, self.enough = agent, name, alive, enough
        self.random = random.Random(seed)
        self.rows, self.labels, self.acked = {}, {}, []
        self.resent, self.at = 0, 0
        self.error = None

    def run(self):
        """Send until it is enough."""
        try:
            while not self.enough.is_set() or self.at < 30:
                self.at += 1
                self.predict(self.random.choice([1, 7, 40, 2500]))
                self.label(self.random.choice([1, 5, 600]))
        except BaseException as e:  # told to the test by its thread
            self.error = e

    def post(self, kind, events):
        """Return the receipt and whether it is of the first attempt; the body is sent until an answer comes."""
        body = "\n".join(map(json.dumps, events)).encode()
        first = True
        while True:
            assert self.alive.wait(DEADLINE)
            try:
                status, receipt, _ = self.agent.ask(f"/v1/{kind}", body, {"content-type": "application/x-ndjson"})
            except GONE:
                self.resent += 1
                first = False
                continue
            assert status == 200, receipt
            assert receipt["accepted"] + receipt["duplicates"] + len(receipt["rejected"]) == len(events)
            return receipt, first

    def predict(self, n):
        """Send new predictions and, one in ten, an old id with other content; the first content counts."""
        events = []
        for i in range(n):
            old = self.rows and self.random.random() < 0.1
            ident = self.random.choice(self.acked) if old and self.acked else f"{self.name}-{self.at}-{i}"
            ts = T0 + min(self.at, 200) * HOUR // 2 + self.random.randrange(HOUR)
            events.append(
                {
                    "id": ident,
                    "ts": ts,
                    "model": "m",
                    "version": self.random.choice("12"),
                    "score": round(self.random.random(), 3),
                }
            )
        fresh = {}
        for e in events:
            if (e["id"], e["version"]) not in self.rows:
                fresh.setdefault((e["id"], e["version"]), (e["ts"], e["score"]))
        receipt, first = self.post("predictions", events)
        assert receipt["rejected"] == []
        assert receipt["accepted"] == len(fresh) if first else receipt["accepted"] <= len(fresh)
        self.rows |= fresh
        self.acked += [e["id"] for e in events]

    def label(self, n):
        """Send labels, corrections with and without revisions among them, and now and then one of an unknown id."""
        events, unknown = [], 0
        for _ in range(n):
            ident, version = self.random.choice(list(self.rows)) if self.random.random() < 0.95 else ("nobody", "1")
            unknown += ident == "nobody"
            ts = T0 + 20 * DAY + self.random.randrange(5) * 1000
            event = {"id": ident, "ts": ts, "version": version, "label": self.random.randrange(2)}
            events.append(event | ({"revision": self.random.randrange(3)} if self.random.random() < 0.3 else {}))
        receipt, _ = self.post("labels", events)
        assert [r["reason"] for r in receipt["rejected"]] == ["unknown_id"] * unknown
        for e in events:
            if (key := (e["id"], e["version"])) in self.rows:
                new = e.get("revision", 0), (e["ts"] - self.rows[key][0]) // 1000, e["label"]
                self.labels[key] = best(self.labels.get(key), new)


KILLS = 20
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h, corrections: 60d}}
"""


def test_agent_survives_kills(agent):
    """The agent killed twenty times under load keeps every acknowledged event once, and its closed days count just these."""
    a = agent(CONFIG)
    alive, enough = threading.Event(), threading.Event()
    alive.set()
    senders = [Sender(a, name, seed, alive, enough) for seed, name in enumerate(("a", "b"), 1)]
    threads = [threading.Thread(target=s.run) for s in senders]
    for t in threads:
        t.start()
    moments = random.Random(7)
    for _ in range(KILLS):
        enough.wait(moments.uniform(0.0, 0.2))  # never set here: this is when to kill, and any moment will do
        alive.clear()
        a.stop(signal.SIGKILL)
        a.start()
        for s in senders:
            again = [{"id": i, "version": v, "model": "m", "ts": T0, "score": 0.5} for i, v in list(s.rows)[-500:]]
            if again:
                assert a.post("predictions", again) == {"accepted": 0, "duplicates": len(again), "rejected": []}
        alive.set()
    enough.set()
    for t, s in zip(threads, senders, strict=True):
        t.join(DEADLINE)
        assert not t.is_alive()
        if s.error is not None:
            raise s.error
    assert sum(s.resent for s in senders) > 0
    a.now(T0 + 40 * DAY)
    assert a.stop() == 0
    rows, labels = senders[0].rows | senders[1].rows, senders[0].labels | senders[1].labels
    store = Store(a.folder / "state")
    assert store.log.broken_link() is None
    codes = {v: store.versions.code["m", v] for v in "12"}
    found, found_labels = stored(store)
    keys = list(rows)
    order = [tuple(k) for k in keys_of(store, [i for i, _ in keys], [codes[v] for _, v in keys]).tolist()]
    assert len(set(order)) == len(order) == store.tail
    assert found == {k: (codes[key[1]], *rows[key]) for k, key in zip(order, keys, strict=True)}
    assert found_labels == {k: labels[key] for k, key in zip(order, keys, strict=True) if key in labels}
    days = {(codes[v], ts // DAY) for (_, v), (ts, _) in rows.items()}
    assert store.closed.keys() == days
    for version, day in days:
        mine = [k for k in keys if (codes[k[1]], rows[k][0] // DAY) == (version, day)]
        expected = table_of([(rows[k][1], 5) for k in mine], [labels.get(k) for k in mine])
        assert_same_table(store.log.day(version, day)["all"], expected)
    store.close()


def keys_of(store, ids, versions):
    """Return the stored keys of ids of model m."""
    masks = np.array([store.hasher.version(*name) for name in store.versions.names], np.uint64)
    return store.hasher.ids("m", [i.encode() for i in ids]) ^ masks[versions]


def stored(store):
    """Return {key: (version, ts, score)} and {key: (revision, seconds, outcome)} of all rows."""
    found, labels = {}, {}
    for _, part in store.ring.pieces(store.head, store.tail):
        for r, k in zip(store.ring.rows[part].tolist(), store.ring.labels[part].tolist(), strict=True):
            assert r[:2] not in found
            found[r[:2]] = (r[4], r[2], r[3])
            if k[0] >= 0:
                labels[r[:2]] = (k[1], k[3], k[0])
    return found, labels


# The store alone, killed at every kind of step.

HORIZON, CORRECTIONS = 1, 1
OPERATIONS = 90
NAMES = tuple(("m", v) for v in "xyz")


def stream(seed):
    """Return the operations: ("predict", rows), ("label", labels), ("tick", now) or ("checkpoint",).

    A row is (id, version, ts, score, combo), a label (id, version or None, ts, outcome, revision).
    """
    r = random.Random(seed)
    out, seen = [], []
    for i in range(OPERATIONS):
        now = T0 + i * 3 * HOUR
        rows = []
        for j in range(r.choice([1, 3, 20])):
            ident = r.choice(seen) if seen and r.random() < 0.15 else f"{i}-{j}"
            late = r.choice([0, 0, 0, DAY, 2 * DAY, 5 * DAY])
            rows.append((ident, r.randrange(min(i // 20, 2) + 1), now - late + r.randrange(HOUR), r.random(), r.randrange(4)))
        seen += [row[0] for row in rows]
        seen = seen[-300:]
        out.append(("predict", rows))
        labels = []
        for _ in range(r.choice([1, 10, 30])):
            ident = r.choice(seen) if r.random() < 0.9 else "nobody"
            ts, revision = now + r.randrange(3) * 1000, r.choice([0, 0, 1])
            labels.append((ident, r.choice([0, 1, 2, None, None]), ts, r.randrange(2), revision))
        out.append(("label", labels))
        if i % 4 == 3:
            out.append(("tick", now))
        if i % 11 == 5:
            out.append(("checkpoint",))
    return [*out, ("tick", T0 + OPERATIONS * 3 * HOUR)]


def oldest_kept(now):
    """Return the oldest day that may still change."""
    return (now - (HORIZON + CORRECTIONS) * DAY) // DAY


def columns(store, rows):
    """Return rows as Predictions."""
    n = np.arange(len(rows))
    ids = store.hasher.ids("m", [row[0].encode() for row in rows])
    ts, score = np.array([row[2] for row in rows], np.int64), np.array([row[3] for row in rows])
    version = Coded.of([NAMES[row[1]] for row in rows])
    combo = Coded.of([(("c", str(row[4])),) for row in rows])
    return Predictions(n, ids, ts, version, score, np.full(len(rows), 5, np.uint8), combo, Coded.of([""] * len(rows)))


def label_columns(store, labels):
    """Return labels as Labels."""
    ids = store.hasher.ids("m", [k[0].encode() for k in labels])
    version = Coded.of([NAMES[k[1]] if k[1] is not None else ("m", None) for k in labels])
    ts, revision = np.array([k[2] for k in labels], np.int64), np.array([k[4] for k in labels], np.uint8)
    return Labels(np.arange(len(labels)), ids, ts, version, np.array([k[3] for k in labels], np.int8), revision)


def work(folder, seed, back):
    """Go on with the stream where the store says, the last `back` operations once more."""
    store = Store(folder)
    operations = stream(seed)
    if "last_tick" in store.meta:
        store.keep_from = dict.fromkeys(range(len(NAMES)), oldest_kept(store.meta["last_tick"]))
    at = max(0, int(store.positions.get("stream", 0)) - back)
    for i, operation in enumerate(operations[at:], at):
        position = {"stream": str(i + 1)}
        if operation[0] == "predict":
            kept = oldest_kept(store.meta.get("last_tick", 0))
            rows = [row for row in operation[1] if row[2] // DAY >= kept]
            if rows:
                store.append(columns(store, rows), position)
        elif operation[0] == "label":
            store.label(label_columns(store, operation[1]), position, np.zeros(len(operation[1]), np.int64), 0)
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


def live(folder, seed):
    """Live and be killed until the stream is done, then say how often and where."""
    moments = random.Random(seed)
    log = folder.parent / "points"
    lives = 0
    while True:
        lives += 1
        countdown, back = moments.randrange(1, 160), moments.randrange(3)
        if child := os.fork():
            if os.waitpid(child, 0)[1] == 0:
                break
            continue
        arm(countdown, log)
        work(folder, seed, back)
        os._exit(0)
    print(json.dumps({"kills": lives - 1, "points": sorted(set(log.read_text().split()))}))


def arm(countdown, log):
    """Make the `countdown`-th point the last one of this process."""
    left = [countdown]

    def point(name):
        left[0] -= 1
        if not left[0]:
            with log.open("a") as f:
                f.write(name + "\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def around(name, call):
        def wrapped(*args, **kwargs):
            point("before-" + name)
            result = call(*args, **kwargs)
            point("after-" + name)
            return result

        return wrapped

    class Connection(sqlite3.Connection):
        def execute(self, sql, *args):
            word = sql.split()[0]
            return around(word, super().execute)(sql, *args)

        def executemany(self, sql, *args):
            return around("many-" + sql.split()[2], super().executemany)(sql, *args)

        def executescript(self, sql):
            return around("script", super().executescript)(sql)

    connect, pwrite = sqlite3.connect, os.pwrite

    def torn(fd, view, offset):
        """Write in two halves, with a point between."""
        half = len(view) // 2
        pwrite(fd, view[:half], offset)
        point("within-pwrite")
        return half + pwrite(fd, view[half:], offset + half)

    sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Connection)
    os.pwrite = around("pwrite", torn)
    for name in ("fdatasync", "posix_fallocate", "ftruncate", "fsync"):
        setattr(os, name, around(name, getattr(os, name)))
    flush_labels = Ring.flush_labels

    def flushed(ring):
        point("before-msync")
        for _ in flush_labels(ring):
            point("after-msync")
            yield

    Ring.flush_labels = flushed
    Store._apply = around("apply", Store._apply)


class Oracle:
    """The same stream in lists and dicts, without a kill."""

    def __init__(self, operations):
        self.rows, self.at, self.labels = [], {}, {}
        self.closed, self.head, self.ticks = set(), 0, []
        self.versions, self.combos = {}, {}
        last = 0
        for operation in operations:
            kept = oldest_kept(last)
            if operation[0] == "predict":
                self.predict([row for row in operation[1] if row[2] // DAY >= kept])
            elif operation[0] == "label":
                self.label(operation[1], kept)
            elif operation[0] == "tick":
                last = operation[1]
                self.ticks.append(last)
                self.tick(last)

    def predict(self, rows):
        for ident, version, ts, score, combo in rows:
            self.versions.setdefault(version, len(self.versions))
            self.combos.setdefault(combo, len(self.combos))
            if self.at.get((ident, version), -1) < self.head:
                self.at[ident, version] = len(self.rows)
                self.rows.append((ident, version, ts, score, combo))

    def label(self, labels, kept):
        for ident, named, ts, outcome, revision in labels:
            for version in range(len(NAMES)) if named is None else (named,):
                i = self.at.get((ident, version), -1)
                if i >= self.head and self.rows[i][2] // DAY >= kept:
                    self.labels[i] = best(self.labels.get(i), (revision, (ts - self.rows[i][2]) // 1000, outcome))

    def tick(self, now):
        days = [(row[1], row[2] // DAY) for row in self.rows]
        self.closed |= {d for d in days if d[1] < now // DAY - HORIZON}
        staying = [i for i, d in enumerate(days) if d not in self.closed or d[1] >= oldest_kept(now)]
        self.head = max(self.head, min(staying, default=len(days)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_store_survives_kills(tmp_path, seed):
    """A store killed at random statements, writes, flushes and deletions ends as the oracle: rows, labels, days, journal."""
    folder = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(seed)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["kills"] >= 20
    operations = stream(seed)
    oracle = Oracle(operations)
    store = Store(folder)
    blocks = store.log.blocks()
    assert sorted(blocks.values()) == list(range(store.head // 32, (store.tail - 1) // 32 + 1))
    assert (max(blocks) < max(blocks.values()), 0 < store.head < store.tail) == (True, True)
    assert {p.name for p in folder.iterdir()} - {"log.db-wal", "log.db-shm"} == {"log.db", "rows.bin", "labels.bin"}
    assert (store.head, store.tail) == (oracle.head, len(oracle.rows))
    code = oracle.versions
    assert store.versions.names == [NAMES[v] for v in code]
    assert {c: store.combos.code[(("c", str(c)),)] for c in oracle.combos} == oracle.combos
    there = range(oracle.head, len(oracle.rows))
    keys = keys_of(store, [oracle.rows[i][0] for i in there], [code[oracle.rows[i][1]] for i in there])
    order = dict(zip(there, map(tuple, keys.tolist()), strict=True))
    found, labels = stored(store)
    assert found == {order[i]: (code[oracle.rows[i][1]], *oracle.rows[i][2:4]) for i in there}
    assert labels == {order[i]: oracle.labels[i] for i in there if i in oracle.labels}
    assert store.ring.numbers(store._find(keys)).tolist() == list(there)
    assert store.closed.keys() == {(code[v], d) for v, d in oracle.closed}
    for version, day in oracle.closed:
        mine = [i for i, row in enumerate(oracle.rows) if (row[1], row[2] // DAY) == (version, day)]
        expected = table_of([(oracle.rows[i][3], 5) for i in mine], [oracle.labels.get(i) for i in mine])
        assert_same_table(store.log.day(code[version], day)["all"], expected)
    assert [(e.seq, e.at) for e in store.log.journal()] == list(enumerate(oracle.ticks, 1))
    assert store.log.broken_link() is None
    assert store.recount == set()
    store.close()


if __name__ == "__main__":
    monitor.store.BLOCK, monitor.store._HITS_PER_CHECKPOINT = 32, 60
    live(Path(sys.argv[1]), int(sys.argv[2]))
