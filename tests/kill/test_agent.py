"""The real agent, killed at named steps and at any moment while events stream in over HTTP and from files.

Every acknowledged event is there exactly once, nothing else is, and nothing is counted twice.
"""

import contextlib
import http.client
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kill import points
from kill.oracle import Row, Said, assert_same_table, best, fields_of, keys_of, seconds, stored, table_of
from kill.stores import KNOWN, small
from monitor import cli
from monitor.core.days import iso
from monitor.core.events import DAY, HOUR, VERDICTS, prob_code
from monitor.core.tables import NAMED, weights_of
from monitor.store import Store
from rows import next_edge

LONG = "SCOREWATCH_LONG" in os.environ
KILLS, STEPS = (160, 70) if LONG else (22, 48)
SCARCE = 3_000
"""So many rows may wait where not all can."""
T0 = 1_700_006_400_000 // DAY * DAY
STEP, AHEAD, LATE = 3 * HOUR, 4, 2 * DAY
HORIZON, CORRECTIONS = DAY, 2 * DAY
DEADLINE = 120
GONE = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
sources:
  - http: {{}}
  - file: {{path: {folder}/predictions.ndjson, kind: predictions}}
  - file: {{path: {folder}/labels.ndjson, kind: labels}}
defaults: {{mode: "off"}}
waiting: {{rows: {rows}}}
models:
  m: {{labels: {{horizon: 24h, corrections: 2d}}, segments: [country], policies: {folder}/policies}}
"""


class Victims:
    """Agents of one state directory, one after the other."""

    def __init__(self, folder, rows):
        self.config, self.log, self.points = (folder / name for name in ("config.yaml", "log.txt", "points"))
        self.config.write_text(CONFIG.format(folder=folder, rows=rows))
        self.api, self.alive, self.pid = "", threading.Event(), 0
        self.said = queue.Queue()
        with self.log.open("ab") as err:
            self.nursery = subprocess.Popen(
                [sys.executable, "-m", "kill.agents", str(self.config), str(self.points)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                cwd=Path(__file__).parents[1],
            )
        self.reader = threading.Thread(target=self.hear, daemon=True)
        self.reader.start()

    def hear(self):
        """Take down what the nursery and its agents say."""
        for line in self.nursery.stdout:
            if words := line.split():
                if words[0] == "died":
                    self.alive.clear()
                self.said.put(words)

    def start(self, where):
        """Start an agent that dies at a step of its own and return whether it came to listen."""
        print(json.dumps(where), file=self.nursery.stdin, flush=True)
        while True:
            words = self.said.get(timeout=DEADLINE)
            if words[0] == "born":
                self.pid = int(words[1])
            elif words[0] == "died":
                self.pid = 0
                assert int(words[1]) == signal.SIGKILL, self.log.read_text()
                return False
            elif "state)" in words:
                self.api = next(w for w in words if w.startswith("http"))
                self.alive.set()
                return True

    def end(self, patience, number=signal.SIGKILL):
        """Wait so many seconds for the end of the agent, then send the signal; return how it ended."""
        try:
            words = self.said.get(timeout=patience)
        except queue.Empty:
            with contextlib.suppress(ProcessLookupError):  # it just died by itself
                os.kill(self.pid, number)
            words = self.said.get(timeout=DEADLINE)
        self.pid = 0
        self.alive.clear()
        assert words[0] == "died"
        return int(words[1])

    def ask(self, path, body=None, content_type="application/json"):
        """Return the JSON answer of the agent that lives."""
        request = urllib.request.Request(self.api + path, body, {"content-type": content_type})
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)

    def ask_until(self, path, body=None, content_type="application/json"):
        """Return the answer and how often the question was sent, again and again until an agent answered."""
        sent = 0
        while True:
            assert self.alive.wait(DEADLINE)
            sent += 1
            try:
                return self.ask(path, body, content_type), sent
            except urllib.error.HTTPError as e:
                raise AssertionError(e.read()) from None
            except GONE:
                time.sleep(0.01)

    def close(self):
        """End the nursery and what it raised."""
        if self.pid:
            self.end(0)
        self.nursery.stdin.close()
        self.reader.join()
        self.nursery.stdout.close()
        self.nursery.wait()


class Pace:
    """Lets workers go on step by step, none more than AHEAD steps before another, until it is enough."""

    def __init__(self, workers):
        self.at = [-1] * workers
        self.changed = threading.Condition()
        self.enough = False

    def next(self, worker):
        """Return the next step of a worker, None at the end."""
        with self.changed:
            self.at[worker] += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.at[worker] <= min(self.at) + AHEAD, DEADLINE)
            if self.enough and self.at[worker] > STEPS:
                self.at[worker] = 10**9
                self.changed.notify_all()
                return None
            return self.at[worker]


class Worker:
    """Makes predictions and labels of its own ids and remembers what must become of them.

    `rows` are {(id, version): the first prediction}, `said` {id: its labels in order}.
    """

    def __init__(self, number, pace, victims, folder, scarce):
        self.number, self.pace, self.victims, self.folder, self.scarce = number, pace, victims, folder, scarce
        self.random = random.Random(number)
        self.rows, self.said, self.step_of, self.first = {}, {}, {}, {}
        self.sent, self.threshold, self.error, self.newest = 0, None, None, 0

    def run(self):
        """Work to the end."""
        try:
            while (step := self.pace.next(self.number)) is not None:
                self.newest = T0 + (step + 1) * STEP - 1
                self.work(step, T0 + step * STEP)
        except BaseException as e:  # told to the test by its thread
            self.error = e
            self.pace.at[self.number] = 10**9

    def predictions(self, step, t):
        """Return new predictions, late ones among them, some of two versions at once or one after the other, and old ones with
        other content.
        """
        r, events = self.random, []
        old = [] if self.scarce else self.recent(t)  # repeated ids of rows that did not wait are forgotten
        for i in range(r.choice([1, 7, 40, 300])):
            ident, version = f"{self.number}-{step}-{i}", r.choice("12")
            if again := bool(old) and r.random() < 0.1:
                ident, version = r.choice(old)[0], r.choice("12")
            ts = t + r.randrange(STEP) if r.random() < 0.9 else t - r.randrange(LATE)
            event = {"id": ident, "ts": ts, "model": "m", "version": version, "score": round(r.random(), 3)}
            event |= {"verdict": r.choice(VERDICTS[:5]), "segments": {"country": r.choice(["DE", "DE", "FR", "PT"])}}
            event |= prob_of_id(ident) | r.choice([{}, {"cluster": f"user-{r.randrange(50)}"}])
            events.append(event)
            if not again and r.random() < 0.15:
                events.append(event | {"version": "21"[int(version) - 1], "score": round(r.random(), 3)})
        return events

    def recent(self, t):
        """Return the keys of the predictions whose ids have none that is older than LATE."""
        return [key for key in self.rows if self.first[key[0]] >= t - LATE]

    def remember(self, events, step):
        """Note the predictions that are new and return how many."""
        before = len(self.rows)
        for e in events:
            self.rows.setdefault((e["id"], e["version"]), e)
            self.step_of.setdefault(e["id"], step)
            self.first[e["id"]] = min(e["ts"], self.first.get(e["id"], e["ts"]))
        return len(self.rows) - before

    def label(self, ident, version, t):
        """Return a label of an id: any revision, any time within the step, for one version or (None) all of them."""
        r = self.random
        event = {"id": ident, "ts": t + r.randrange(STEP // 1000) * 1000, "label": r.randrange(2), "model": "m"}
        event |= {} if version is None else {"version": version}
        return event | ({"revision": r.randrange(3)} if r.random() < 0.3 else {}) | r.choice([{}, prob_of_id(ident)])

    def note(self, labels):
        """Remember labels."""
        for event in labels:
            self.said.setdefault(event["id"], []).append(event)


def prob_of_id(ident):
    """Return how likely the label of an id is to be looked for."""
    return {"label_prob": 0.5} if zlib.crc32(ident.encode()) % 4 == 0 else {}


def code_of(event):
    """Return the code of the `label_prob` of an event."""
    return int(prob_code(np.array(event["label_prob"]))) if "label_prob" in event else 0


class Sender(Worker):
    """Sends over HTTP, each body again until it is acknowledged."""

    def work(self, step, t):
        """Send labels that come early, predictions, labels, and now and then a new threshold."""
        events = self.predictions(step, t)
        early = [self.label(e["id"], self.random.choice([e["version"], None]), t) for e in events if self.random.random() < 0.05]
        self.send_labels(early)
        receipt, sent = self.post("predictions", events)
        assert receipt["rejected"] == []
        new = self.remember(events, step)
        assert receipt["accepted"] == new if sent == 1 else receipt["accepted"] <= new
        several = self.random.choices(self.recent(t), k=self.random.choice([1, 5, 200]))
        self.send_labels([self.label(i, v if self.random.random() < 0.7 else None, t) for i, v in several])
        self.send_labels([self.label(f"nobody-{self.number}-{step}", None, t)])
        if step % 8 == self.number:
            self.threshold = self.random.randrange(1, 20) / 20
            body = {"version": str(self.number + 1), "threshold": self.threshold, "reason": "test"}
            self.ask("/v1/models/m/activate", json.dumps(body).encode())

    def send_labels(self, labels):
        """Send labels, of which only those of rows that do not wait may be refused, and remember them."""
        if labels:
            receipt, sent = self.post("labels", labels)
            assert {r["reason"] for r in receipt["rejected"]} <= ({"not_sampled"} if self.scarce else set())
            strangers = {e["id"] for e in labels} - self.step_of.keys()
            assert receipt.get("held", 0) >= len(strangers) or sent > 1
            self.note(labels)

    def post(self, kind, events):
        """Return the receipt and how often the body was sent."""
        receipt, sent = self.ask(f"/v1/{kind}", "\n".join(map(json.dumps, events)).encode())
        assert receipt["accepted"] + receipt["duplicates"] + len(receipt["rejected"]) == len(events)
        return receipt, sent

    def ask(self, path, body):
        """Return the answer and how often the body was sent."""
        answer, sent = self.victims.ask_until(path, body, "application/x-ndjson")
        self.sent += sent - 1
        return answer, sent


class Writer(Worker):
    """Writes to files that the agent follows."""

    def work(self, step, t):
        """Write predictions, and labels of those of a day ago."""
        events = self.predictions(step, t)
        self.remember(events, step)
        self.append("predictions", events)
        known = [key for key in self.recent(t) if self.step_of[key[0]] <= step - DAY // STEP]
        several = [self.random.choice(known) for _ in range(30)] if known else []
        labels = [self.label(i, v if self.random.random() < 0.7 else None, t) for i, v in several]
        self.note(labels)
        self.append("labels", labels)

    def append(self, kind, events):
        """Append to a file in two parts, which meet within a line."""
        text = "".join(json.dumps(e) + "\n" for e in events)
        with (self.folder / f"{kind}.ndjson").open("a") as f:
            f.write(text[: len(text) // 2])
            f.flush()
            f.write(text[len(text) // 2 :])


@pytest.fixture(autouse=True)
def small_here(monkeypatch):
    """Let the store be the same here as in the victims."""
    small(monkeypatch.setattr, KNOWN)


@pytest.mark.parametrize("scarce", [False, True], ids=["all wait", "few wait"])
def test_agent_survives(folder, scarce):
    """Killed at every named step and at any moment, the agent ends with the rows, labels, days and journal of an oracle."""
    victims = Victims(folder, SCARCE if scarce else 10**6)
    verify = ["verify", "--config", str(victims.config)]
    pace = Pace(3)
    workers = [kind(i, pace, victims, folder, scarce) for i, kind in enumerate((Sender, Sender, Writer))]
    threads = [threading.Thread(target=w.run, daemon=True) for w in workers]
    try:
        for thread in threads:
            thread.start()
        kill_again_and_again(victims, workers)
        pace.enough = True
        assert victims.start(NEVER)
        for thread, w in zip(threads, workers, strict=True):
            thread.join(DEADLINE)
            assert w.error is None, w.error
            assert not thread.is_alive()
        assert workers[0].sent + workers[1].sent > 0
        rows = {key: row_of(e) for w in workers for key, e in w.rows.items()}
        labels = {key: said for w in workers for key in w.rows if (said := said_of(w, key)) is not None}
        last = max(w.newest for w in workers)
        now = move(victims, last // HOUR * HOUR + HOUR)
        assert victims.end(0, signal.SIGTERM) == 0
        check_rows(folder, rows, labels, None if scarce else (now - HORIZON - CORRECTIONS) // DAY)
        assert victims.start(NEVER)
        move(victims, (last // DAY + 1) * DAY + HORIZON)
        alerts = victims.ask("/v1/state")["alerts"]
        policies = [victims.ask(f"/v1/models/m/versions/{v}/policy")["thresholds"]["all"] for v in "12"]
        assert policies == [next_edge(w.threshold) for w in workers[:2]]
        assert cli.main([*verify, "--url", victims.api]) == 0
        assert victims.end(0, signal.SIGTERM) == 0
        check_days(folder, rows, labels, scarce)
        check_journal(folder, alerts)
        assert cli.main(verify) == 0
    finally:
        victims.close()
    assert "Traceback" not in victims.log.read_text(), victims.log.read_text()
    passed, hit = points.steps(victims.points)
    assert passed.keys() == hit.keys() or not LONG, passed.keys() - hit.keys()


NEVER = ("", -1, -1)


def kill_again_and_again(victims, workers):
    """Let so many agents die, a third of them at a moment that nobody chose; in the long form until one died at each step."""
    moments = random.Random(7)
    for life in range(3 * KILLS):
        passed, hit = points.steps(victims.points)
        if life >= KILLS and (passed.keys() == hit.keys() or not LONG):
            break
        chosen = moments.random() < 0.67 or life >= KILLS
        listens = victims.start(points.choose(moments, victims.points, 300) if chosen else NEVER)
        if listens:
            assert victims.end(2.0 if chosen else moments.uniform(0.0, 0.3)) == signal.SIGKILL
        for w in workers:
            assert w.error is None, w.error
    print(f"{life} agents killed, at each of {len(hit)} steps of {len(passed)}")


def move(victims, now):
    """Move the clock, which the files let pass when they are read, and return the time."""
    victims.ask("/v1/predictions", json.dumps({"now": now}).encode())
    end = time.monotonic() + DEADLINE
    while victims.ask("/v1/state")["at"] != iso(now):
        assert time.monotonic() < end
        victims.ask("/v1/predictions", json.dumps({"now": now}).encode())
    return now


def row_of(event):
    """Return a prediction as a row whose cluster is not hashed yet."""
    fields = event["id"], event["version"], event["ts"], event["score"], VERDICTS.index(event["verdict"])
    return Row(*fields, event["segments"]["country"], code_of(event), event.get("cluster"))


def said_of(worker, key):
    """Return the label that a worker's prediction must have, None where it has none."""
    ident, version = key
    said = None
    for e in worker.said.get(ident, []):
        if e.get("version", version) == version:
            prob = code_of(e) | (NAMED if "version" in e else 0)
            said = best(said, Said(e.get("revision", 0), seconds(e["ts"], worker.rows[key]["ts"]), e["label"], prob))
    return said


def coded(store, row):
    """Return a row with the codes and hashes of a store."""
    cluster = 0 if row.cluster is None else int(store.hasher.clusters("m", [row.cluster.encode()])[0])
    version, combo = store.versions.code["m", row.version], store.combos.code[(("country", row.combo),)]
    return row._replace(version=version, combo=combo, cluster=cluster)


def check_rows(folder, rows, labels, kept):
    """The rows of days from `kept` on are there with their labels, once, and none that was not sent; of kept None some of them.

    Where not all wait, an id of two versions may have one row that does not, which then takes no label for the other.
    """
    store = Store(folder / "state")
    for kind in ("predictions", "labels"):
        path = folder / f"{kind}.ndjson"
        assert int(store.positions[f"file:{path}"].split(":")[0]) == path.stat().st_size
    key_of = dict(zip(rows, keys_of(store, rows), strict=True))
    policy = store.policies.code[""]
    found, found_labels = stored(store)
    there = {k: found[key] for k, key in key_of.items() if key in found}
    assert len(there) == len(found)
    for k, fields in there.items():
        row = coded(store, rows[k])
        assert fields == fields_of(row._replace(wait_prob=fields[-4]), row.version, row.combo, policy)
    if kept is None:
        one = {k for k in there if not {(k[0], v) for v in "12" if v != k[1]} & rows.keys()}
        assert store.passing.tail > 2 * KNOWN  # the ring went round
    else:
        one = there.keys()
        assert {k for k, row in rows.items() if row.ts // DAY >= kept} <= there.keys()
    assert {k: found_labels.get(key_of[k]) for k in one} == {k: labels.get(k) for k in one}
    assert (store.head > 0, store.log.broken_link()) == (True, None)
    assert len(store.early) > 0
    assert store.early.by_key()["until"].min() > store.meta["last_tick"]
    store.close()


def check_days(folder, rows, labels, scarce):
    """Every day is closed and its tables count just its rows; where not all wait each score is counted once all the same."""
    store = Store(folder / "state")
    days = {}
    for key, r in rows.items():
        row = coded(store, r)
        days.setdefault((row.version, row.ts // DAY), []).append((key, row))
    assert store.closed.keys() == days.keys()
    assert store.recount == set()
    sliced = 0
    for day, mine in days.items():
        tables = store.log.day(*day)
        named = {name.partition("=")[2] for name in tables} - {"other"}
        for name, table in tables.items():
            value = name.partition("=")[2]
            country = {k: rows[k].combo for k, _ in mine}
            among = [(k, row) for k, row in mine if value in ("", country[k]) or (value == "other" and country[k] not in named)]
            expected = table_of([row for _, row in among], [labels.get(k) for k, _ in among], (HORIZON, CORRECTIONS))
            if scarce and name == "all":  # rows that do not wait are in no slice that came after them
                assert_same_scores(table, expected)
            elif not scarce:
                assert_same_table(table, expected if name == "all" else replace(expected, delays=None, groups=None))
            sliced += name != "all"
    assert sliced > 0
    store.close()


def assert_same_scores(a, b):
    """Tables have the same scores, whichever of them wait for a label."""
    n, other = (t.cells["n_none"] + t.cells["n_neg"] + t.cells["n_pos"] + weights_of(t)["out"] for t in (a, b))
    np.testing.assert_array_equal(a.cells[["bin", "verdict"]], b.cells[["bin", "verdict"]])
    np.testing.assert_array_equal(n, other)
    np.testing.assert_allclose(*(t.cells["p_none"] + t.cells["p_lab"] + weights_of(t)["p_out"] for t in (a, b)), rtol=1e-12)


def check_journal(folder, alerts):
    """The journal is whole and tells of the alerts that are on."""
    store = Store(folder / "state")
    assert store.log.broken_link() is None
    on = {}
    for e in store.log.journal():
        if e.kind == "alert":
            on[e.version, e.body["rule"]] = e.body["state"]
    assert {k: v for k, v in on.items() if v != "resolved"} == {(a["version"], a["rule"]): a["state"] for a in alerts}
    store.close()
