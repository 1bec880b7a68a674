"""The outbox: messages that wait in the log, what sends them, and the agent from outside, killed at its worst moments."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from monitor import cli
from monitor.actions import outbox as module
from monitor.actions.command import Command
from monitor.actions.outbox import MOST, STEPS, Outbox, Sender
from monitor.actions.webhook import Webhook
from monitor.clock import wall
from monitor.config import parse
from monitor.core.events import HOUR
from monitor.core.policy import policy
from monitor.core.reasons import DELIVERED
from monitor.store.log import Log
from receivers import SECRET, receiving, until, verify


@pytest.fixture
def receiver():
    with receiving() as made:
        yield made


class Box:
    """A log with an outbox, and a lock in the place of the store's thread."""

    def __init__(self, path, actions=None, deliver=()):
        self.lock, self.counts, self.path = threading.Lock(), Counter(), path
        self.actions, self.targets = actions or {}, tuple(deliver)
        self.policies = {}
        self.open()

    def open(self):
        self.log = Log(self.path)
        self.outbox = Outbox(self.log, self.actions, lambda name: self.targets, self.policy, self.count)
        self.outbox.begin()

    def policy(self, model, version, ident):
        return self.policies.get(ident, policy(ident, model, version, {"all": 0.5}))

    def count(self, name, by, **labels):
        assert name == "scorewatch_deliveries_total"
        self.counts[labels["action"], labels["reason"]] += by

    def ask(self, call):
        with self.lock:
            return call()

    def say(self, *entries):
        """Append entries to the journal as the agent does and return them."""
        with self.lock, self.log.transaction():
            return self.log.add_entries(1_700_000_000_000, "ann", entries)

    def sender(self):
        return Sender(self.ask, lambda: self.outbox, tuple)

    def counted(self):
        return {key: n for key, n in self.counts.items() if n}

    def items(self, dead=None):
        return self.ask(lambda: self.outbox.items(dead))


@pytest.fixture
def box(tmp_path):
    """Return a function that makes an outbox and closes its log in the end."""
    with contextlib.ExitStack() as stack:

        def make(actions=None, deliver=()):
            made = Box(tmp_path / "log.db", actions, deliver)
            stack.callback(lambda: made.log.close())
            return made

        yield make


@contextlib.contextmanager
def sending(box):
    sender = box.sender()
    sender.start()
    try:
        yield sender
    finally:
        sender.stop()


def activated(ident="p2", version="v1", kind="activated", before="p1"):
    pointer = {"policy": ident, "who": "ann", "reason": "better", "at": 5}
    return kind, "m", version, {**pointer, "before": before and {**pointer, "policy": before}}


def fired(rule="calibration", **more):
    body = {"rule": rule, "severity": "warning", "state": "firing", "since": 1_700_000_000_000, "reason": "", **more}
    return "alert", "m", "v1", body


def decided(rule="calibration", action="retrain", allowed=True):
    return "decision", "m", "v1", {"rule": rule, "action": action, "allowed": allowed, "reason": "sent", "policy": None}


def quick(monkeypatch, *steps):
    """Make the waits between tries short."""
    monkeypatch.setattr(module, "STEPS", steps)


# What is written.


def test_messages_are_written_with_the_entries_or_not_at_all(box):
    """A transaction that fails leaves neither entry nor message, one that commits both; other entries cause none."""
    b = box({"retrain": Command(("x",))}, [Command(("y",)), Command(("z",))])

    def fail():
        with b.log.transaction():
            b.log.add_entries(1, "ann", [activated(), fired(), decided()])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (b.log.journal(), b.items(), b.outbox.counts) == ([], [], (0, 0))
    b.say(fired(), activated(), decided(), decided(allowed=False), decided(action="rollback"), ("answer", "m", "v1", {}))
    found = [(i.entry, i.action, i.place, i.type) for i in b.items()]
    assert found == [
        (2, "deliver", 0, "policy.activated"),
        (2, "deliver", 1, "policy.activated"),
        (3, "retrain", 0, "alert.fired"),
    ]
    assert b.outbox.counts == (3, 0)
    assert len({i.id for i in b.items()}) == 3


def test_a_message_says_what_the_journal_says(box):
    """A policy comes whole, an alert with its diagnosis and at most 20 slices, also when it began to fire before."""
    b = box({"retrain": Command(("x",))}, [Command(("y",))])
    slices = {f"country={i}": 0.01 for i in range(30)}
    more = {"diagnosis": "calibration_drift", "advice": "recalibrate", "words": "Scores are too high.", "slices": slices}
    b.say(fired("recall"), fired(**more), activated(kind="rolled_back"))
    b.say(decided())
    handed, alert = (json.loads(i.body) for i in b.items())
    assert handed == {
        "type": "policy.rolled_back",
        "timestamp": "2023-11-14T22:13:20Z",
        "data": {
            "model": "m",
            "version": "v1",
            "decision": 3,
            "who": "ann",
            "reason": "better",
            "before": "p1",
            "policy": json.loads(policy("p2", "m", "v1", {"all": 0.5}).to_json()),
        },
    }
    assert alert == {
        "type": "alert.fired",
        "timestamp": "2023-11-14T22:13:20Z",
        "data": {
            "model": "m",
            "version": "v1",
            "decision": 4,
            "rule": "calibration",
            "action": "retrain",
            "severity": "warning",
            "since": "2023-11-14T22:13:20Z",
            "diagnosis": "calibration_drift",
            "advice": "recalibrate",
            "words": "Scores are too high.",
            "observed": None,
            "expected": None,
            "slices": dict(list(slices.items())[:20]),
        },
    }
    assert [i.values["rule"] + i.values["policy"] for i in b.items()] == ["p2", "calibration"]


def test_a_policy_that_is_too_large_for_a_webhook_is_named(box):
    """Past 20 kB a webhook gets id and checksum, a command all of it; one that cannot be read is named."""
    b = box({}, [Webhook("http://x", (SECRET,)), Command(("y",))])
    big = policy("big", "m", "v1", {"all": 0.5}, provenance={"x": "y" * 30_000})
    b.policies = {"big": replace(big, checksum="sha256:1"), "gone": None}
    b.say(activated("big"))
    named, whole = (json.loads(i.body)["data"]["policy"] for i in b.items())
    assert (named, len(whole["provenance"]["x"])) == ({"id": "big", "checksum": "sha256:1"}, 30_000)
    b.say(activated("gone"))
    assert [json.loads(i.body)["data"]["policy"] for i in b.items()] == [{"id": "gone"}] * 2


def test_a_newer_policy_takes_the_place_of_those_that_did_not_arrive(box):
    """Of one version only the newest waits, so that a late success never brings back an old policy; alerts all wait."""
    b = box({"retrain": Command(("x",))}, [Command(("y",))])
    b.say(activated("p1"), activated("p1", "v2"), decided())
    b.say(activated("p2"), decided())
    assert [(i.action, i.version, i.entry) for i in b.items()] == [
        ("deliver", "v2", 2),
        ("retrain", "v1", 3),
        ("deliver", "v1", 4),
        ("retrain", "v1", 5),
    ]
    assert b.counted() == {("deliver", "replaced"): 1}


def test_what_waits_and_what_is_dead_is_bounded(box):
    """Past 1,000 the oldest that wait are given up, and the oldest dead ones are forgotten; both are counted."""
    b = box({"retrain": Command(("x",))})
    b.say(*(decided() for _ in range(MOST + 3)))
    assert b.outbox.counts == (MOST, 3)
    assert {i.entry for i in b.items(dead=True)} == {1, 2, 3}
    b.say(*(decided() for _ in range(MOST)))
    assert b.outbox.counts == (MOST, MOST)
    assert {i.entry for i in b.items(dead=True)} == set(range(4, MOST + 4))
    assert b.counted() == {("retrain", "overflow"): MOST + 3, ("retrain", "forgotten"): 3}


# How it is tried.


def test_tries_wait_longer_and_longer_and_end_after_two_days(box):
    """The n-th try waits its step, a fifth more or less; after nine, within 58 hours, the message is dead and stays."""
    b = box({"retrain": Command(("x",))})
    b.say(decided())
    (item,) = b.items()
    assert item.waits(wall()) <= 0
    for tries, step in enumerate(STEPS[1:], 1):
        b.outbox.tried(item.id, "bad_status", "500 no")
        (after,) = b.items()
        assert (after.tries, after.dead, after.reason, after.detail) == (tries, 0, "bad_status", "500 no")
        assert 0.79 * step < after.waits(wall()) < 1.21 * step
        assert after.waits(0) < 1.21 * step, "the machine's time was set back"
    b.outbox.tried(item.id, "too_slow", "")
    (last,) = b.items()
    assert (last.dead, last.id, b.outbox.counts) == (1, item.id, (0, 1))
    assert 40 * HOUR < sum(STEPS) < 48 * HOUR
    assert b.counted() == {("retrain", "bad_status"): 8, ("retrain", "too_slow"): 1}


@pytest.mark.parametrize("reason", ["gone", "argument", "not_configured"])
def test_some_answers_end_it_at_once(box, reason):
    """What no later try would change makes a dead letter of the first one."""
    b = box({"retrain": Command(("x",))})
    b.say(decided())
    b.outbox.tried(b.items()[0].id, reason, "d")
    assert [(i.dead, i.tries, i.reason) for i in b.items()] == [(1, 1, reason)]


def test_a_person_can_retry_or_discard_a_dead_message(box):
    """Retried it waits with its old id, discarded it is gone; one that waits or does not exist is neither."""
    b = box({"retrain": Command(("x",))})
    b.say(decided(), decided(), decided())
    first, second, third = (i.id for i in b.items())
    for ident in (first, second):
        b.outbox.tried(ident, "gone", "")
    for ident in (third, "nothing"):
        with pytest.raises(LookupError, match=ident):
            b.outbox.find(ident)
    with b.log.transaction():
        b.outbox.revive(b.outbox.find(first).id)
        b.outbox.discard(b.outbox.find(second).id)
    assert [(i.id, i.dead, i.tries) for i in b.items()] == [(first, 0, 0), (third, 0, 0)]
    assert b.outbox.counts == (2, 0)


def test_a_receiver_that_fails_gets_the_same_id_until_it_takes_it(box, receiver, monkeypatch):
    """Three failures, then success: four requests with one id and one body, each with a signature of its own time."""
    quick(monkeypatch, 0, 30, 60, 90, 120)
    receiver.answers = [500, 302, 429]
    b = box({}, [Webhook(receiver.url, (SECRET,))])
    with sending(b):
        b.say(activated())
        until(lambda: b.outbox.counts == (0, 0) and len(receiver.got) == 4)
    assert len({(headers["webhook-id"], body) for headers, body in receiver.got}) == 1
    assert verify(SECRET, *receiver.got[3])["type"] == "policy.activated"
    assert b.counted() == {("deliver", "bad_status"): 3, ("deliver", "delivered"): 1}


def test_what_is_gone_is_kept_for_a_person(box, receiver):
    """A receiver that answers 410 is asked once; the message stays, and is delivered when a person lets it be tried again."""
    receiver.answers = [410]
    b = box({"page": Webhook(receiver.url, (SECRET,))})
    with sending(b):
        b.say(decided(action="page"))
        until(lambda: b.ask(lambda: b.outbox.counts) == (0, 1))
        (item,) = b.items()
        assert (item.reason, item.detail[:15]) == ("gone", "410 no, thank y")
        with b.lock, b.log.transaction():
            b.outbox.revive(item.id)
        until(lambda: b.ask(lambda: b.outbox.counts) == (0, 0))
    assert [headers["webhook-id"] for headers, _ in receiver.got] == [item.id] * 2


def test_one_that_hangs_holds_up_nobody_else(box, receiver, tmp_path):
    """While a command hangs others are delivered to; to one target goes one message at a time, in order."""
    out = tmp_path / "out"
    add = "import sys, time; open(sys.argv[1], 'a').write('<'); time.sleep(.15); open(sys.argv[1], 'a').write(sys.argv[2] + '>')"
    actions = {
        "hangs": Command((sys.executable, "-c", "import time; time.sleep(60)")),
        "page": Webhook(receiver.url, (SECRET,)),
        "adds": Command((sys.executable, "-c", add, str(out), "{rule}")),
    }
    b = box(actions)
    with sending(b):
        b.say(decided(action="hangs"))
        b.say(*(decided(action="page") for _ in range(20)), *(decided(f"r{i}", "adds") for i in range(3)))
        until(lambda: b.ask(lambda: b.outbox.counts) == (1, 0))
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == len(receiver.got) == 20
        assert out.read_text() == "<r0><r1><r2>"
        begun = time.monotonic()
    assert time.monotonic() - begun < 3
    assert [i.tries for i in b.items()] == [0], "what the stop cut short is no failure"


def test_a_store_that_fails_is_told_again_and_nothing_is_sent_twice(box, receiver):
    """While the store cannot note that a message arrived it is told again and again; the message is not sent again."""
    b = box({"page": Webhook(receiver.url, (SECRET,))})
    failing = threading.Event()

    def ask(call):
        if failing.is_set():
            raise RuntimeError("the store failed")
        return b.ask(call)

    sender = Sender(ask, lambda: b.outbox, tuple)
    sender.PATIENCE = 0.05
    receiver.answers = [0.3]  # silent for so long that the store fails meanwhile
    sender.start()
    b.say(decided(action="page"))
    until(lambda: receiver.got)
    failing.set()
    time.sleep(0.6)
    failing.clear()
    until(lambda: b.items()[0].tries == 1)
    sender.stop()
    assert len(receiver.got) == 1


def test_what_waited_is_sent_after_a_restart_and_what_is_not_configured_any_more_is_told(box, receiver):
    """A new process sends what the old one left with the same id; a message whose action is gone is dead with the reason."""
    b = box({"page": Webhook("http://127.0.0.1:1", (SECRET,)), "old": Command(("x",))})
    b.say(decided(action="page"), decided(action="old"))
    before = [i.id for i in b.items()]
    b.log.close()
    b.actions = {"page": Webhook(receiver.url, (SECRET,))}
    b.open()
    with sending(b):
        until(lambda: b.ask(lambda: b.outbox.counts) == (0, 1))
    assert [headers["webhook-id"] for headers, _ in receiver.got] == before[:1]
    assert [(i.id, i.reason) for i in b.items()] == [(before[1], "not_configured")]


# The agent from outside.

CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: {clock}
tick: {tick}
models:
  m: {{mode: auto, labels: {{horizon: 24h}}, policies: policies, deliver: [{{webhook: {{url: "{url}/hook", secret: {secret}}}}}]}}
"""


def config(url, clock="wall", tick="1s"):
    return CONFIG.format(url=url, secret=SECRET, clock=clock, tick=tick)


def activate(agent, threshold, version="v1"):
    status, body, _ = agent.ask("/v1/models/m/activate", {"threshold": threshold, "version": version, "reason": "test"})
    assert status == 200, body
    return body["policy"]


def test_a_policy_is_delivered_and_a_dead_letter_is_seen_and_retried(agent, receiver):
    """An activation arrives signed with the whole policy; one refused with 410 is in /v1/outbox and a gauge until retried."""
    a = agent(config(receiver.url))
    first = activate(a, 0.5)
    until(lambda: receiver.got)
    said = verify(SECRET, *receiver.got[0])
    assert (said["type"], said["data"]["policy"]["id"]) == ("policy.activated", first)
    assert said["data"]["policy"] == a.ask("/v1/models/m/versions/v1/policy")[1]
    receiver.answers = [410]
    second = activate(a, 0.25)
    (dead,) = until(lambda: [i for i in a.ask("/v1/outbox")[1] if i["state"] == "dead"])
    assert {k: dead[k] for k in ("action", "model", "version", "type", "tries", "next_try", "reason")} == {
        "action": "deliver",
        "model": "m",
        "version": "v1",
        "type": "policy.activated",
        "tries": 1,
        "next_try": None,
        "reason": "gone",
    }
    assert (a.gauge("scorewatch_outbox_dead"), a.gauge("scorewatch_outbox_waiting")) == (1, 0)
    path = f"/v1/outbox/{dead['id']}/retry"
    assert a.ask(path, {})[0] == 400
    assert a.ask("/v1/outbox/msg_none/retry", {"reason": "x"})[0] == 404
    assert a.ask(path, {"reason": "it is back", "who": "ann"})[1]["done"] == "retried"
    until(lambda: a.ask("/v1/outbox")[1] == [])
    assert verify(SECRET, *receiver.got[2])["data"]["policy"]["id"] == second
    assert receiver.got[2][0]["webhook-id"] == dead["id"]
    counted = {r: a.gauge("scorewatch_deliveries_total", action="deliver", reason=r) for r in DELIVERED}
    assert counted == {**dict.fromkeys(DELIVERED, 0), "delivered": 2, "gone": 1}
    done = a.ask("/v1/timeline")[1][-1]
    assert (done["kind"], done["who"], done["done"], done["reason"]) == ("delivery", "ann", "retried", "it is back")
    assert SECRET not in a.log.read_text() + json.dumps(a.state())


def test_deciding_about_dead_letters_needs_the_token(agent, receiver):
    """Without the decide token nothing is retried or discarded."""
    text = config(receiver.url) + "tokens: {ingest: in-1, decide: decide-1}\n"
    a = agent(text)
    head = {"Authorization": "Bearer decide-1"}
    receiver.answers = [410]
    assert a.ask("/v1/models/m/activate", {"threshold": 0.5, "version": "v1", "reason": "x"}, head)[0] == 200
    (dead,) = until(lambda: [i for i in a.ask("/v1/outbox")[1] if i["state"] == "dead"])
    for what in ("retry", "discard"):
        path, body = f"/v1/outbox/{dead['id']}/{what}", {"reason": "x"}
        assert [a.ask(path, body, h)[0] for h in ({}, {"Authorization": "Bearer in-1"})] == [401, 403]
    assert [i["id"] for i in a.ask("/v1/outbox")[1]] == [dead["id"]]
    assert a.ask(f"/v1/outbox/{dead['id']}/discard", {"reason": "x"}, head)[1]["done"] == "discarded"
    assert a.ask("/v1/outbox")[1] == []
    assert len(receiver.got) == 1


def test_an_agent_killed_while_it_delivers_delivers_again_with_the_same_id(agent, receiver):
    """A receiver that took a message whose sender then died gets it again, with the id by which it knows it."""
    receiver.answers = [3.0]
    a = agent(config(receiver.url))
    activate(a, 0.5)
    until(lambda: receiver.got)
    assert a.stop(signal.SIGKILL) == -signal.SIGKILL
    a.start()
    until(lambda: len(receiver.got) == 2)
    until(lambda: a.ask("/v1/outbox")[1] == [])
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert ids == ids[:1] * 2


@contextlib.contextmanager
def victims(folder, text):
    """Give two functions: to start an agent that dies at a step of its own, where it listens; and to wait for how it ended."""
    (folder / "config.yaml").write_text(text)
    said, alive = queue.Queue(), []
    nursery = subprocess.Popen(
        [sys.executable, "-m", "kill.agents", str(folder / "config.yaml"), str(folder / "points")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    reader = threading.Thread(target=lambda: [said.put(line.split()) for line in nursery.stdout if line.strip()])
    reader.start()

    def start(where):
        print(json.dumps(where), file=nursery.stdin, flush=True)
        alive.append(int(said.get(timeout=60)[1]))
        return next(w for w in said.get(timeout=60) if w.startswith("http"))

    def end(number=None):
        if number:
            os.kill(alive[-1], number)
        words = said.get(timeout=60)
        assert words[0] == "died"
        alive.clear()
        return int(words[1])

    try:
        yield start, end
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        nursery.stdin.close()
        nursery.wait(timeout=60)
        reader.join()
        nursery.stdout.close()


def ask(url, body=None):
    with urllib.request.urlopen(url, body and json.dumps(body).encode(), timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("where", "arrives"),
    [(("after-insert-outbox", 1, 10**9), 0), (("before-replace-file", 2, 10**9), 1)],
    ids=["within", "after"],
)
def test_an_agent_killed_around_the_commit_neither_loses_nor_invents(tmp_path, receiver, where, arrives):
    """Killed within the transaction nothing arrives; killed between the journal and current.json the message does, once."""
    body = {"threshold": 0.5, "version": "v1", "reason": "test"}
    with victims(tmp_path, config(receiver.url)) as (start, end):
        api = start(where)
        with pytest.raises(OSError):
            ask(api + "/v1/models/m/activate", body)
        assert end() == signal.SIGKILL
        assert receiver.got == []
        api = start(("", -1, -1))
        until(lambda: len(receiver.got) == arrives)
        ask(api + "/v1/models/m/activate", body)  # had the first one left anything, it would be sent before this
        until(lambda: len(receiver.got) == arrives + 1 and ask(api + "/v1/outbox") == [])
        assert end(signal.SIGTERM) == 0
    log = Log(tmp_path / "state" / "log.db")
    assert [e.kind for e in log.journal()] == ["activated"] * (arrives + 1)
    log.close()
    assert [verify(SECRET, *got)["data"]["decision"] for got in receiver.got] == list(range(1, arrives + 2))


def test_a_change_made_with_the_agent_stopped_is_delivered_at_its_next_start(agent, receiver, capsys):
    """`scorewatch activate` without an agent leaves a message; the agent sends it when it starts."""
    a = agent(config(receiver.url))
    assert a.stop() == 0
    assert cli.main(["activate", "--config", str(a.config), "m", "--version", "v1", "--threshold", ".5", "--reason", "x"]) == 0
    assert receiver.got == []
    a.start()
    until(lambda: len(receiver.got) == 1)
    assert capsys.readouterr().out.startswith("m v1: policy ")


def test_a_clock_of_events_tells_nobody(agent, receiver, tmp_path):
    """Where events are the clock what happens is of the past: nobody is told, and no message is left."""
    a = agent(config(receiver.url, "events", "1h"))
    activate(a, 0.5)
    assert (a.ask("/v1/outbox")[1], receiver.got) == ([], [])
    assert "scorewatch_deliveries_total" not in a.ask(a.metrics_url)[1]
    made = parse(config(receiver.url), "f.yaml", tmp_path)
    assert made.delivers
    assert not replace(made, clock="events").delivers


def test_stopping_does_not_wait_for_a_receiver(agent, receiver):
    """SIGTERM ends the agent within seconds though a receiver is silent; the message stays."""
    receiver.answers = [10.0]
    a = agent(config(receiver.url))
    activate(a, 0.5)
    until(lambda: receiver.got)
    begun = time.monotonic()
    assert a.stop() == 0
    assert time.monotonic() - begun < 5
    log = Log(a.folder / "state" / "log.db")
    assert log.db.execute("select count(*) from outbox").fetchone() == (1,)
    log.close()


def test_an_alert_is_handed_on_to_the_action_of_its_rule(agent, receiver, tmp_path):
    """An alert that begins to fire calls the configured action once, with what the journal says; with mode off nobody."""
    rule = "{metric: flagged_share, basis: scored, window: 1h, fires: {above: 0.5}, resolves: {below: 0.4}, min_n: 20"
    text = f"""\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
tick: 1s
actions: {{page: {{webhook: {{url: "{receiver.url}", secret: {SECRET}}}}}}}
models:
  m: {{mode: auto, rules: {{many: {rule}, action: page}}}}}}
  silent: {{mode: "off", rules: {{many: {rule}, action: page}}}}}}
"""
    a = agent(text)
    events = [{"id": f"{i}", "ts": wall(), "model": m, "version": "v1", "score": 0.9, "verdict": "flag"} for i in range(50)
              for m in ("m", "silent")]  # fmt: skip
    a.post("predictions", events)
    until(lambda: receiver.got)
    said = verify(SECRET, *receiver.got[0])
    assert said["type"] == "alert.fired"
    about = {"model": "m", "version": "v1", "rule": "many", "action": "page", "severity": "warning"}
    assert {k: said["data"][k] for k in about} == about
    assert (said["data"]["observed"]["value"], said["data"]["observed"]["n"]) == (1.0, 50)
    told = until(lambda: [i for i in a.ask("/v1/timeline")[1] if i["kind"] == "decision"])
    assert {i["model"]: (i["allowed"], i["reason"]) for i in told} == {"m": (True, "sent"), "silent": (False, "mode_off")}
    time.sleep(2.2)  # two more ticks
    assert len(receiver.got) == 1
    assert a.ask("/v1/outbox")[1] == []


def test_a_replay_calls_nobody(tmp_path, receiver, capsys):
    """Alerts of a replay are decided about as ever, also with the clock wall in the file, but nobody hears of them."""
    rule = "{metric: flagged_share, basis: scored, window: 1h, fires: {above: 0.5}, resolves: {below: 0.4}, min_n: 20"
    (tmp_path / "config.yaml").write_text(f"""\
state: state
actions: {{page: {{webhook: {{url: "{receiver.url}", secret: {SECRET}}}}}}}
models:
  m: {{mode: auto, labels: {{horizon: 24h}}, rules: {{many: {rule}, action: page}}}}}}
""")
    event = {"model": "m", "version": "v1", "score": 0.9, "verdict": "flag"}
    lines = (json.dumps({"id": f"{i}", "ts": 1_700_000_000_000 + i * 100_000, **event}) for i in range(100))
    (tmp_path / "events.ndjson").write_text("\n".join(lines))
    args = ["--json", "--state", str(tmp_path / "kept"), str(tmp_path / "events.ndjson")]
    assert cli.main(["replay", "--config", str(tmp_path / "config.yaml"), *args]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(i["action"], i["reason"]) for i in said if i["kind"] == "decision"] == [("page", "sent")]
    log = Log(tmp_path / "kept" / "log.db")
    assert log.db.execute("select count(*) from outbox").fetchone() == (0,)
    log.close()
    assert receiver.got == []


def test_a_reload_may_configure_the_first_delivery(agent, receiver):
    """An agent that told nobody tells those that the configuration names when it is read anew."""
    text = config(receiver.url)
    a = agent(text.replace(text[text.index(", deliver:") : text.rindex("}")], ""))
    activate(a, 0.5)
    a.config.write_text(text)
    assert a.ask("/-/reload", {"reason": "tell"})[0] == 200
    activate(a, 0.25)
    until(lambda: receiver.got)
    assert verify(SECRET, *receiver.got[0])["data"]["policy"]["thresholds"]["all"] < 0.3
    assert len(receiver.got) == 1
