"""The configuration read anew while the agent runs: what changes, what goes on, and what is refused."""

import asyncio
import json
import os
import signal
import sqlite3
import threading

import numpy as np

from monitor.core.events import DAY, Receipt
from monitor.formats import Decoder, Hasher
from monitor.sources.http import HttpReceiver, Stale
from test_http import command, labelled, port, scored, until

__all__ = ["port"]
CONFIG = """\
state: state
api: 127.0.0.1:{port}
metrics: 127.0.0.1:0
tick: {tick}
{more}
models:
  m: {{{model}}}
"""


def written(port=0, tick="100ms", more="", model=""):
    """Return a configuration of one model `m`."""
    return CONFIG.format(port=port, tick=tick, more=more, model=model)


def reloaded(a, text=None, headers=None):
    """Reload, perhaps after another configuration was written, and return (status, answer)."""
    if text is not None:
        a.config.write_text(text)
    return a.ask("/-/reload", {"reason": "new rules", "who": "ann"}, headers)[:2]


def entries(a):
    """Return (kind, who, reason) of all journal entries of a stopped agent."""
    with sqlite3.connect(a.folder / "state" / "log.db") as db:
        found = db.execute("select kind, who, json_extract(body, '$.reason') from journal order by seq").fetchall()
    db.close()
    return found


def test_a_reload_changes_what_the_file_says_and_nothing_else(agent):
    """Models, segments, thresholds and the tick follow; counters, rows, policies and the timeline go on; the journal says who."""
    a = agent(written())
    a.post("predictions", [scored("a", 0.3), scored("b", 0.7)])
    a.ask("/v1/models/m/activate", {"threshold": 0.5, "reason": "first"})
    before, told = a.metrics(), a.ask("/v1/timeline")[1]
    assert a.post("predictions", [scored("x", model="n")])["rejected"][0]["reason"] == "unknown_model"
    status, answer = reloaded(a, written(tick="200ms", model="segments: [country]") + "  n: {threshold: 0.2}\n")
    assert (status, answer["path"], len(answer["digest"])) == (200, str(a.config), 64)
    assert a.post("predictions", [scored("x", 0.3, model="n"), scored("c", segments={"country": "DE"})])["accepted"] == 2
    assert a.post("predictions", [scored("a", 0.3)])["duplicates"] == 1
    assert a.post("labels", [labelled("a", model="m"), labelled("c", model="m")])["accepted"] == 2
    state = until(lambda: s if len((s := a.state())["versions"]) == 2 else None)
    assert [(v["model"], v["waiting"], v["known_so_far"], v["threshold"]) for v in state["versions"]] == [
        ("m", 3, 2, 0.5),
        ("n", 1, 0, 0.2),
    ]
    after, now_told = a.metrics(), a.ask("/v1/timeline")[1]
    rising = [k for k in before if "_total" in k and not k.startswith("process_")]
    assert {k: after[k] for k in rising if after[k] < before[k]} == {}
    assert after["scorewatch_tick_interval_seconds"] == 0.2
    assert now_told[: len(told)] == told
    assert [(i["seq"], i["kind"], i["who"], i["reason"]) for i in now_told[len(told) :]] == [
        (len(told), "reload", "ann", "new rules")
    ]
    ticked = after["scorewatch_last_tick_timestamp_seconds"]
    until(lambda: a.gauge("scorewatch_last_tick_timestamp_seconds") > ticked + 0.3)
    assert a.stop() == 0
    assert entries(a) == [("activated", "api", "first"), ("reload", "ann", "new rules")]
    assert command(a.config, "log", "--verify")[0] == 0


def test_a_wrong_configuration_changes_nothing(agent):
    """Every error is in the answer, or in the log after SIGHUP; the gauge says so until a reload succeeds."""
    a = agent(written(model="threshold: 0.5"))
    a.post("predictions", [scored("a")])
    at = a.gauge("scorewatch_config_reload_timestamp_seconds")
    assert a.gauge("scorewatch_config_reload_success") == 1
    journal = a.state()["journal"]
    wrong = written(model="labels: {horizn: 1d}, threshold: 2")
    errors = (
        f"{a.config}: models.m.labels.horizn: found an unknown key; did you mean horizon?\n"
        f"{a.config}: models.m.threshold: found 2; write a number from 0 to 1"
    )
    assert reloaded(a, wrong) == (409, {"error": errors})
    assert (a.gauge("scorewatch_config_reload_success"), a.state()["journal"]) == (0, journal)
    for body, status in (({}, 400), ({"reason": " "}, 400), ([], 400)):
        assert a.ask("/-/reload", body)[0] == status
    os.kill(a.process.pid, signal.SIGHUP)
    until(lambda: f"the configuration stays as it was: {errors}" in a.log.read_text())
    assert a.post("predictions", [scored("b")])["accepted"] == 1
    assert until(lambda: a.state()["versions"])[0]["threshold"] == 0.5
    assert a.gauge("scorewatch_config_reload_timestamp_seconds") == at
    a.config.write_text(written(model="threshold: 0.25"))
    os.kill(a.process.pid, signal.SIGHUP)
    until(lambda: a.state()["versions"][0]["threshold"] == 0.25)
    assert a.gauge("scorewatch_config_reload_success") == 1
    assert a.gauge("scorewatch_config_reload_timestamp_seconds") > at
    a.config.unlink()
    assert reloaded(a)[0] == 409
    a.config.write_text(written())
    assert a.stop() == 0
    assert entries(a) == [("reload", "SIGHUP", "SIGHUP")]


def test_what_only_a_start_can_change_is_refused_by_name(agent, tmp_path):
    """State, addresses, clock and hash stay; one answer has all of them and what else is wrong, baselines included."""
    a = agent(written())
    (tmp_path / "agent" / "b.json").write_text("{}")
    moved = written(more="hash: blake2b\nclock: events", model="baseline: b.json").replace("state: state", "state: other")
    moved = moved.replace("metrics: 127.0.0.1:0", "metrics: 127.0.0.1:1").replace("100ms", "1h").replace("api: 127", "api: 0")
    status, answer = reloaded(a, moved.replace("api: 0.0.0.1", "api: 127.0.0.2"))
    assert status == 409
    assert [line.split(": ")[1] for line in answer["error"].splitlines()[:5]] == ["state", "api", "metrics", "clock", "hash"]
    assert answer["error"].splitlines()[3] == (
        f"{a.config}: clock: found 'events', and the agent runs with 'wall'; write that, or start it anew"
    )
    assert "b.json" in answer["error"].splitlines()[5]
    assert not (tmp_path / "agent" / "other").exists()
    assert reloaded(a, written())[0] == 200
    b = agent(written(tick="1h", more="clock: events"), "events")
    assert reloaded(b, written(tick="2h", more="clock: events"))[1]["error"].split(": ")[1] == "tick"


def test_what_shows_only_when_the_state_is_opened_leaves_the_configuration_before(agent):
    """Classes in another order are found by the store; the agent opens it again as it was and loses nothing."""
    a = agent(written(model="classes: [cat, dog]"))
    event = scored("a") | {"scores": {"cat": 0.5, "dog": 0.5}}
    del event["score"]
    assert a.post("predictions", [event])["accepted"] == 1
    status, answer = reloaded(a, written(model="classes: [dog, cat]"))
    assert (status, "rows of m were stored with" in answer["error"]) == (409, True)
    assert a.gauge("scorewatch_config_reload_success") == 0
    assert a.post("predictions", [event])["duplicates"] == 1
    assert reloaded(a, written(model="classes: [cat, dog, cow]"))[0] == 200
    assert a.post("labels", [labelled("a", "cat")])["accepted"] == 1
    until(lambda: {v["model"]: v["known_so_far"] for v in a.state()["versions"]} == {"m:cat": 1, "m:dog": 1, "m:top": 1})


def test_nothing_acknowledged_is_lost_while_reloading(agent):
    """Senders that go on through reloads of other segments and features get only receipts, and each event is counted once."""
    a = agent(written())
    answers, stop, forms = (
        [],
        threading.Event(),
        [written(), written(model="segments: [country]"), written(model="threshold: 0.5")],
    )

    def send(k):
        n = 0
        while not stop.is_set():
            batch = [scored(f"{k}-{n}-{i}", segments={"country": "DE"}) for i in range(20)]
            answers.append((a.ask("/v1/predictions", batch)[:2], len(batch)))
            n += 1

    threads = [threading.Thread(target=send, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for i in range(12):
        if i % 3:
            assert reloaded(a, forms[i % 3])[0] == 200
        else:
            os.kill(a.process.pid, signal.SIGHUP)
    stop.set()
    for t in threads:
        t.join()
    assert {status for (status, _), _ in answers} == {200}
    sent = sum(n for _, n in answers)
    assert sum(body["accepted"] for (_, body), _ in answers) == sent > 0
    assert a.state()["versions"][0]["waiting"] == sent
    assert a.gauge("scorewatch_events_accepted_total", source="http") == sent
    a.process.kill()
    a.process.wait()
    a.process.stdout.close()
    a.start()
    assert a.state()["versions"][0]["waiting"] == sent
    assert a.stop() == 0
    assert command(a.config, "verify")[0] == 0


def test_bodies_decoded_for_another_configuration_are_decoded_again():
    """A batch that the agent finds stale is made anew by the decoder of now; without one the sender is told to try again."""
    old, new = (Decoder(Hasher("xxh3", bytes(16)), {"m": segments}) for segments in ((), ("country",)))
    offered: list[Decoder] = []
    cases = [({old: new}, 200, [old, new]), ({}, 503, [old])]

    async def offer(batch, decoder):
        offered.append(decoder)
        receiver.decoder = renewed.get(decoder, decoder)
        if decoder is not new:
            raise Stale
        return Receipt(1, 0, ())

    while cases:
        renewed, status, made = cases.pop(0)
        offered.clear()
        receiver = HttpReceiver(old, offer, 100)
        answer = asyncio.run(receiver.receive("labels", "", "", b"[]"))
        assert (answer.status, offered) == (status, made)
    assert json.loads(answer.body)["detail"] == "the configuration has no http source any more"


def test_sources_come_and_go(agent):
    """Files are read on from where they were, a new one from its beginning, and without an http source events get 404."""
    first, second = "{{follow: true, path: {}.ndjson}}".format, "sources: [{{http: {{}}}}, {}]".format
    a = agent(written(more=second(f"{{file: {first('a')}}}")))
    for name in "ab":
        lines = [json.dumps(scored(f"{name}{i}")) for i in range(3)]
        (a.folder / f"{name}.ndjson").write_text("\n".join(lines) + "\n")
    until(lambda: a.gauge("scorewatch_events_accepted_total", source="file") == 3)
    both = f"sources: [{{file: {first('a')}}}, {{file: {first('b')}}}]"
    assert reloaded(a, written(more=both))[0] == 200
    until(lambda: a.gauge("scorewatch_events_accepted_total", source="file") == 6)
    with (a.folder / "a.ndjson").open("a") as f:
        f.write(json.dumps(scored("a9")) + "\n")
    until(lambda: a.gauge("scorewatch_events_accepted_total", source="file") == 7)
    assert a.gauge("scorewatch_events_duplicate_total", source="file") == 0
    assert a.ask("/v1/predictions", [scored("x")])[0] == 404
    assert reloaded(a, written(more="sources: [{http: {max_body: 1000}}]"))[0] == 200
    assert a.post("predictions", [scored("x")])["accepted"] == 1
    assert a.ask("/v1/predictions", [scored(f"y{i}") for i in range(50)])[0] == 413


def test_tokens_change_with_a_reload(agent, port):
    """A token counts from the reload on, one that was taken out does not any more; the command sends the first of the file."""
    a = agent(written(port))
    secret = a.folder / "decide"

    def ask(token, reason):
        return a.ask("/-/reload", {"reason": reason}, {"Authorization": f"Bearer {token}"})[0]

    secret.write_text("ann: one\n")
    assert reloaded(a, written(port, more="tokens: {decide: file:decide}"))[0] == 200
    assert (reloaded(a)[0], ask("two", "x")) == (401, 403)
    secret.write_text("bob: two\nann: one\n")
    assert command(a.config, "reload") == (1, "", "scorewatch: this is not the decide token\n")
    secret.write_text("ann: one\nbob: two\n")
    copy = a.config.with_name("copy.yaml")
    copy.write_text(a.config.read_text())
    # The agent reads its own file, whichever file told the command where it listens.
    assert command(copy, "reload", "--reason", "bob, too") == (0, f"the agent goes on with {a.config}\n", "")
    secret.write_text("bob: two\n")
    assert (ask("two", "without ann"), ask("one", "x")) == (200, 403)
    secret.write_text("")
    assert (ask("two", "x"), ask("one", "x"), ask("", "x")) == (409, 403, 403)
    secret.write_text("bob: two\n")
    assert a.stop() == 0
    stopped = f"scorewatch: no agent listens on 127.0.0.1:{port}; its start will read {a.config}\n"
    assert command(a.config, "reload") == (1, "", stopped)
    said = [("ann", "new rules"), ("ann", "bob, too"), ("bob", "without ann")]
    assert entries(a) == [("reload", *by) for by in said]


def test_a_replay_of_events_is_the_same_with_reloads(agent):
    """By the clock of events, too, days, labels and estimates are those of an agent that never reloaded."""
    first, config = 1_740_960_000_000, written(tick="1h", more="clock: events", model="labels: {horizon: 24h}")
    rng = np.random.default_rng(7)
    days = [
        [{"id": f"{d}-{i}", "model": "m", "version": "v1", "score": x} for i, x in enumerate(rng.random(30))] for d in range(5)
    ]
    seen = []
    for folder in ("plain", "reloading"):
        a = agent(config, folder)
        for d, batch in enumerate(days):
            ts = first + d * DAY
            a.post("predictions", [e | {"ts": ts + i * 60_000} for i, e in enumerate(batch)])
            if folder == "reloading":
                assert reloaded(a)[0] == 200
            a.post("labels", [{"id": e["id"], "label": int(e["score"] > 0.6), "ts": ts + 4 * 3_600_000} for e in batch])
        a.now(first + 5 * DAY)
        state = a.state()
        seen.append((state["versions"], state["at"], a.ask("/v1/models/m/days")[1], a.ask("/v1/models/m/days?by=month")[1]))
    assert len(seen[0][2]) > 2
    assert seen[0] == seen[1]
