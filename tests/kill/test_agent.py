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
from pathlib import Path

from kill import points
from kill.oracle import assert_same_table, best, keys_of, stored, table_of
from monitor.core.days import iso
from monitor.core.events import DAY, HOUR, VERDICTS
from monitor.core.tables import next_edge
from monitor.store import Store

LONG = "SCOREWATCH_LONG" in os.environ
KILLS, STEPS = (240, 90) if LONG else (45, 56)
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
models:
  m: {{labels: {{horizon: 24h, corrections: 2d}}, segments: [country], policies: {folder}/policies}}
"""


class Victims:
    """Agents of one state directory, one after the other."""

    def __init__(self, folder):
        self.config, self.log, self.points = (folder / name for name in ("config.yaml", "log.txt", "points"))
        self.config.write_text(CONFIG.format(folder=folder))
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

    Rows are {(id, version): (ts, score, verdict, country)}, labels {(id, version): (revision, ts, outcome)}.
    """

    def __init__(self, number, pace, victims, folder):
        self.number, self.pace, self.victims, self.folder = number, pace, victims, folder
        self.random = random.Random(number)
        self.rows, self.labels, self.step_of = {}, {}, {}
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
        """Return new predictions, late ones among them, some of two versions, and old ones with other content."""
        r, events = self.random, []
        old = [key for key, row in self.rows.items() if row[0] >= t - LATE]
        for i in range(r.choice([1, 7, 40, 300])):
            ident, version = f"{self.number}-{step}-{i}", r.choice("12")
            if again := bool(old) and r.random() < 0.1:
                ident, version = r.choice(old)
            ts = t + r.randrange(STEP) if r.random() < 0.9 else t - r.randrange(LATE)
            event = {"id": ident, "ts": ts, "model": "m", "version": version, "score": round(r.random(), 3)}
            event |= {"verdict": r.choice(VERDICTS[:5]), "segments": {"country": r.choice(["DE", "DE", "FR", "PT"])}}
            events.append(event)
            if not again and r.random() < 0.15:
                events.append(event | {"version": "21"[int(version) - 1], "score": round(r.random(), 3)})
        return events

    def remember(self, events, step):
        """Note the predictions that are new and return how many."""
        before = len(self.rows)
        for e in events:
            row = e["ts"], e["score"], VERDICTS.index(e["verdict"]), e["segments"]["country"]
            self.rows.setdefault((e["id"], e["version"]), row)
            self.step_of.setdefault(e["id"], step)
        return len(self.rows) - before

    def label(self, ident, version, t):
        """Return a label of an id: any revision, any time within the step, for one version or (None) all of them."""
        r = self.random
        event = {"id": ident, "ts": t + r.randrange(STEP // 1000) * 1000, "label": r.randrange(2), "model": "m"}
        event |= {} if version is None else {"version": version}
        return event | ({"revision": r.randrange(3)} if r.random() < 0.3 else {})

    def note(self, event):
        """Remember a label for every version it is of."""
        for version in event.get("version", "12"):
            if (key := (event["id"], version)) in self.rows:
                self.labels[key] = best(self.labels.get(key), (event.get("revision", 0), event["ts"], event["label"]))


class Sender(Worker):
    """Sends over HTTP, each body again until it is acknowledged."""

    def work(self, step, t):
        """Send labels that come early, predictions, labels, and now and then a new threshold."""
        events = self.predictions(step, t)
        early = [self.label(e["id"], self.random.choice([e["version"], None]), t) for e in events if self.random.random() < 0.05]
        early = [e for e in early if not self.step_of.keys() & {e["id"]}]
        held = self.send_labels(early)
        receipt, sent = self.post("predictions", events)
        assert receipt["rejected"] == []
        new = self.remember(events, step)
        assert receipt["accepted"] == new if sent == 1 else receipt["accepted"] <= new
        for e in held:
            self.note(e)
        known = [key for key, row in self.rows.items() if row[0] >= t - LATE]
        several = [self.random.choice(known) for _ in range(self.random.choice([1, 5, 200]))]
        labels = [self.label(i, v if self.random.random() < 0.7 else None, t) for i, v in several]
        assert self.send_labels(labels) == labels
        for e in labels:
            self.note(e)
        self.send_labels([self.label("nobody", None, t)])
        if step % 8 == self.number:
            self.threshold = self.random.randrange(1, 20) / 20
            body = {"version": str(self.number + 1), "threshold": self.threshold, "reason": "test"}
            self.ask("/v1/models/m/activate", json.dumps(body).encode())

    def send_labels(self, events):
        """Send labels and return those that were taken; only of ids that nobody scored yet any may be refused."""
        if not events:
            return []
        receipt, _ = self.post("labels", events)
        refused = {r["index"] for r in receipt["rejected"]}
        assert {r["reason"] for r in receipt["rejected"]} <= {"unknown_id"}
        return [e for i, e in enumerate(events) if i not in refused]

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
        known = [k for k, row in self.rows.items() if row[0] >= t - LATE and self.step_of[k[0]] <= step - DAY // STEP]
        several = [self.random.choice(known) for _ in range(30)] if known else []
        labels = [self.label(i, v if self.random.random() < 0.7 else None, t) for i, v in several]
        for e in labels:
            self.note(e)
        self.append("labels", labels)

    def append(self, kind, events):
        """Append to a file in two parts, which meet within a line."""
        text = "".join(json.dumps(e) + "\n" for e in events)
        with (self.folder / f"{kind}.ndjson").open("a") as f:
            f.write(text[: len(text) // 2])
            f.flush()
            f.write(text[len(text) // 2 :])


def test_agent_survives(folder):
    """Killed at every named step and at any moment, the agent ends with the rows, labels, days and journal of an oracle."""
    victims = Victims(folder)
    pace = Pace(3)
    workers = [kind(i, pace, victims, folder) for i, kind in enumerate((Sender, Sender, Writer))]
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
        rows, labels = ({k: v for w in workers for k, v in getattr(w, part).items()} for part in ("rows", "labels"))
        last = max(w.newest for w in workers)
        now = move(victims, last // HOUR * HOUR + HOUR)
        assert victims.end(0, signal.SIGTERM) == 0
        check_rows(folder, rows, labels, now)
        assert victims.start(NEVER)
        move(victims, (last // DAY + 1) * DAY + HORIZON)
        alerts = victims.ask("/v1/state")["alerts"]
        policies = [victims.ask(f"/v1/models/m/versions/{v}/policy")["thresholds"]["all"] for v in "12"]
        assert policies == [next_edge(w.threshold) for w in workers[:2]]
        assert victims.end(0, signal.SIGTERM) == 0
        check_days(folder, rows, labels, alerts)
    finally:
        victims.close()
    assert "Traceback" not in victims.log.read_text(), victims.log.read_text()
    passed, hit = points.steps(victims.points)
    assert passed.keys() == hit.keys() or not LONG


NEVER = ("", -1, -1)


def kill_again_and_again(victims, workers):
    """Let so many agents die, a third of them at a moment that nobody chose."""
    moments = random.Random(7)
    for _ in range(KILLS):
        chosen = moments.random() < 0.67
        listens = victims.start(points.choose(moments, victims.points, 300) if chosen else NEVER)
        if listens:
            assert victims.end(2.0 if chosen else moments.uniform(0.0, 0.3)) == signal.SIGKILL
        for w in workers:
            assert w.error is None, w.error


def move(victims, now):
    """Move the clock, which the files let pass when they are read, and return the time."""
    victims.ask("/v1/predictions", json.dumps({"now": now}).encode())
    end = time.monotonic() + DEADLINE
    while victims.ask("/v1/state")["at"] != iso(now):
        assert time.monotonic() < end
        victims.ask("/v1/predictions", json.dumps({"now": now}).encode())
    return now


def check_rows(folder, rows, labels, now):
    """The rows that may not have left are there with their labels, once, and none that was not sent."""
    store = Store(folder / "state")
    for kind in ("predictions", "labels"):
        path = folder / f"{kind}.ndjson"
        assert int(store.positions[f"file:{path}"].split(":")[0]) == path.stat().st_size
    codes = {v: store.versions.code["m", v] for v in "12"}
    key_of = dict(zip(rows, keys_of(store, [i for i, _ in rows], [codes[v] for _, v in rows]), strict=True))
    found, found_labels = stored(store)
    expected = {key_of[k]: (codes[k[1]], *row[:2]) for k, row in rows.items()}
    assert found.items() <= expected.items()
    kept = (now - HORIZON - CORRECTIONS) // DAY
    assert {key_of[k] for k, row in rows.items() if row[0] // DAY >= kept} <= found.keys()
    said = {key_of[k]: (revision, (ts - rows[k][0]) // 1000, y) for k, (revision, ts, y) in labels.items()}
    assert found_labels == {k: v for k, v in said.items() if k in found}
    assert (store.head > 0, store.log.broken_link()) == (True, None)
    assert len(found) > 2_500  # more than the smallest index holds
    store.close()


def check_days(folder, rows, labels, alerts):
    """Every day is closed and its tables count just its rows; the journal is whole and tells of the alerts that are on."""
    store = Store(folder / "state")
    codes = {v: store.versions.code["m", v] for v in "12"}
    days = {}
    for (ident, version), row in rows.items():
        days.setdefault((codes[version], row[0] // DAY), []).append((ident, version))
    assert store.closed.keys() == days.keys()
    assert store.recount == set()
    sliced = 0
    for day, keys in days.items():
        tables = store.log.day(*day)
        named = {name.partition("=")[2] for name in tables} - {"other"}
        for name, table in tables.items():
            value = name.partition("=")[2]
            mine = [k for k in keys if value in ("", rows[k][3]) or (value == "other" and rows[k][3] not in named)]
            said = [labels.get(k) for k in mine]
            said = [s and (s[0], (s[1] - rows[k][0]) // 1000, s[2]) for k, s in zip(mine, said, strict=True)]
            expected = table_of([rows[k][1:3] for k in mine], said, (HORIZON, CORRECTIONS) if name == "all" else (0, 0))
            assert_same_table(table, expected)
            sliced += name != "all"
    assert sliced > 0
    assert store.log.broken_link() is None
    on = {}
    for e in store.log.journal():
        if e.kind == "alert":
            on[e.version, e.body["rule"]] = e.body["state"]
    assert {k: v for k, v in on.items() if v != "resolved"} == {(a["version"], a["rule"]): a["state"] for a in alerts}
    store.close()
