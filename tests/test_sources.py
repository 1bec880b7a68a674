"""Files that are full of trouble: nothing is lost, nothing stands still, and HTTP goes on."""

import gzip
import json
import os
import threading
import time
from concurrent.futures import Future

import pytest

from monitor import clock
from monitor.agent import Agent
from monitor.config import load
from monitor.core.events import DAY, HOUR
from monitor.formats import decode
from monitor.run import Inbox, Job, Loop

DAY0 = 16_000
HEAD = "id,ts,model,version,score\n"


def rows(first, n, start=DAY0 * 86_400):
    """Return n CSV rows of one hour."""
    return "".join(f"{i},{start + i % 3_000},m,v1,.5\n" for i in range(first, first + n))


def configured(folder, path, clock="events", more=""):
    """Return the configuration of an agent that follows a file."""
    folder.mkdir(exist_ok=True)
    text = f"state: {folder}/state\nclock: {clock}\n{more}sources:\n- http: {{}}\n- file: {{path: {path}}}\n"
    (folder / "c.yaml").write_text(text + "models:\n  m: {labels: {horizon: 1h, corrections: 1h}}\n")
    return load(folder / "c.yaml")


@pytest.fixture
def loop(tmp_path):
    """Return a function that makes a loop over a file; everything is closed at the end."""
    made = []

    def make(path, **kw):
        config = configured(tmp_path / "a", path, **kw)
        made.append(Loop(Agent(config, "test"), lambda changed: Agent(changed, "test"), Inbox(10_000)))
        return made[-1]

    yield make
    for m in made:
        m.close()


def drain(loop, rounds=20):
    """Feed until nothing comes any more, without waiting for the pauses after a failure."""
    for _ in range(rounds):
        loop._wait = 0.0
        for f in loop.feeds:
            f._again = 0.0
        loop.feed()


def stored(loop):
    """Return how many rows were ever stored."""
    return loop.agent.store.tail


@pytest.mark.parametrize("broken", ["missing", "directory", "gzip"])
def test_a_file_that_cannot_be_read_stops_nothing_else(tmp_path, loop, broken):
    """It is counted and tried again, events by HTTP are stored meanwhile, and when it can be read it is."""
    path = tmp_path / ("p.csv.gz" if broken == "gzip" else "p.csv")
    whole = (HEAD + rows(0, 30)).encode()
    if broken == "directory":
        path.mkdir()
    elif broken == "gzip":
        path.write_bytes(gzip.compress(whole)[:-20])
    one = loop(path)
    drain(one, 3)
    one.publish()
    assert one.agent.counters["scorewatch_source_failures_total", (("source", "file"),)] >= 2
    body = json.dumps({"id": "x", "ts": DAY0 * DAY, "model": "m", "version": "v1", "score": 0.5}).encode()
    assert one._by_events(decode(one.agent.decoder(), body, "predictions")).accepted == 1
    if broken == "directory":
        path.rmdir()
    path.write_bytes(gzip.compress(whole) if broken == "gzip" else whole)
    drain(one)
    assert stored(one) == 31
    assert not one.failed


def test_a_stray_quote_costs_one_line(tmp_path, loop):
    """A quote that is never closed makes its own line malformed; the lines after it are read."""
    path = tmp_path / "p.csv"
    path.write_text(HEAD + rows(0, 10) + '"' + rows(10, 1) + rows(11, 500))
    one = loop(path)
    drain(one)
    assert stored(one) == 510
    key = "scorewatch_events_rejected_total", (("source", "file"), ("reason", "malformed"))
    assert one.agent.counters[key] == 1


def test_rotation_is_followed(tmp_path, loop):
    """A file that is renamed away and begun anew, or cut short in place, is read on from its start."""
    path = tmp_path / "p.csv"
    path.write_text(HEAD + rows(0, 20))
    one = loop(path)
    drain(one)
    path.rename(tmp_path / "p.csv.1")
    path.write_text(HEAD + rows(20, 40))
    drain(one)
    assert stored(one) == 60
    with path.open("r+") as f:
        f.truncate(0)
        f.write(HEAD + rows(60, 1))
    drain(one)
    assert stored(one) == 61


def test_a_file_replaced_while_the_agent_was_stopped(tmp_path, loop):
    """A longer file under the same name is another file: it is read from its start, not from the old position."""
    path = tmp_path / "p.csv"
    path.write_text(HEAD + rows(0, 20))
    one = loop(path)
    drain(one)
    one.close()
    fresh = tmp_path / "fresh"
    fresh.write_text(HEAD + rows(100, 90))
    os.replace(fresh, path)
    one.agent = Agent(one.agent.config, "test")
    one._rewind()
    drain(one)
    assert stored(one) == 110


def test_now_lines_of_a_file_move_the_clock(tmp_path, loop):
    """At the end of a file the clock goes to the newest `now` it held."""
    path = tmp_path / "p.ndjson"
    event = {"id": "a", "ts": DAY0 * DAY, "model": "m", "version": "v1", "score": 0.5}
    path.write_text("\n".join(map(json.dumps, (event, {"now": DAY0 * DAY + 9 * HOUR}, {"now": DAY0 * DAY + 5 * HOUR}))) + "\n")
    one = loop(path)
    drain(one)
    assert one.agent.clock.last == DAY0 * DAY + 9 * HOUR


def test_a_now_that_cannot_be_is_rejected(tmp_path, loop):
    """A `now` of the future is rejected as that, and one for a wall clock as unsupported; neither is silent."""
    one = loop(tmp_path / "none.csv")
    late = decode(one.agent.decoder(), b'{"now": 4000000000}', "predictions")
    assert [r.reason for r in one._by_events(late).rejected] == ["future"]
    assert one.agent.clock.last is None
    assert [r.reason for r in Loop._without_now(late).rejected] == ["unsupported"]


def test_a_full_store_goes_on(tmp_path, loop):
    """Of more predictions than may wait all are counted and some wait; labels of these and repeated predictions go through."""
    one = loop(tmp_path / "none.csv", clock="wall", more="waiting: {rows: 10}\n")
    decoder = one.agent.decoder()
    ts = clock.wall() - HOUR

    def job(kind, ids, **more):
        events = [{"id": str(i), "ts": ts, "model": "m", **more} for i in ids]
        return Job(Future(), decode(decoder, json.dumps(events).encode(), kind))

    scored = {"version": "v1", "score": 0.5}
    one.work([job("predictions", range(30), **scored)])
    waiting = stored(one)
    jobs = [job("labels", range(30), label=1), job("predictions", range(30), **scored)]
    one.work(jobs)
    labels, again = (j.future.result() for j in jobs)
    assert (labels.accepted, [r.reason for r in labels.rejected]) == (waiting, ["not_sampled"] * (30 - waiting))
    assert (again.accepted, again.duplicates, again.rejected) == (0, 30, ())
    one.tick()
    found = {e.metric: e for e in one.agent.snapshot.estimates if e.window == "24h"}
    assert (found["mean_score"].n, stored(one)) == (30, waiting)
    assert 2 <= waiting <= 10


def test_an_unforeseen_error_in_a_tick_is_recovered_from(tmp_path, loop, monkeypatch):
    """Whatever goes wrong in a tick, the state is read from the disk again and the next tick does what that one did not."""
    one = loop(tmp_path / "none.csv", clock="wall")
    body = [{"id": str(i), "ts": clock.wall() - HOUR, "model": "m", "version": "v1", "score": 0.5} for i in range(5)]
    one.agent.ingest([decode(one.agent.decoder(), json.dumps(body).encode(), "predictions")])

    before = one.agent

    def wrong(*_):
        raise KeyError("unforeseen")

    with monkeypatch.context() as m:
        m.setattr(Agent, "_record", wrong)
        one.due.set()
        thread = threading.Thread(target=one.run)
        thread.start()
        deadline = time.monotonic() + 30
        while one.agent is before and time.monotonic() < deadline:
            time.sleep(0.01)
    one.stopping.set()
    thread.join()
    assert one.agent is not before
    one.stopping.clear()
    one.failed = False
    one.due.set()
    one._round()
    assert one.agent.snapshot.versions[0].waiting == 5


def test_ticks_do_not_wait_for_a_clock_that_was_set_back(tmp_path, loop, monkeypatch):
    """When the timer is silent for twice its time the loop ticks by itself."""
    one = loop(tmp_path / "none.csv", clock="wall", more="tick: 1s\n")
    one._ticked = time.monotonic() - 3
    one._round()
    assert one.agent.clock.last is not None


@pytest.mark.parametrize("jump", [70 * DAY, -70 * DAY])
def test_a_jump_of_the_machines_time_is_believed_only_when_it_lasts(monkeypatch, jump):
    """For fifteen minutes after a jump the clock goes on as before; a jump back ends it, one that lasts is taken over."""
    at = [1_700_000_000_000, 0]
    monkeypatch.setattr(clock, "wall", lambda: at[0])
    monkeypatch.setattr(clock, "steady", lambda: at[1])
    c = clock.WallClock(None)
    start = c.now

    def after(minutes, moved=0):
        at[0] += minutes * 60_000 + moved
        at[1] += minutes * 60_000
        return c.now - start - at[1]

    assert [after(1), after(1, jump), after(10), after(1, -jump), after(60)] == [0, 0, 0, 0, 0]
    assert [after(1, jump), after(14), after(2), after(1)] == [0, 0, jump, jump]


def test_nothing_to_do_is_nothing_done(tmp_path, loop):
    """A file whose next event is past the boundary waits for HTTP without a busy loop."""
    path = tmp_path / "p.csv"
    path.write_text(HEAD + rows(0, 2, DAY0 * 86_400) + rows(2, 2, DAY0 * 86_400 + 9 * 3_600))
    one = loop(path)
    body = json.dumps({"id": "x", "ts": DAY0 * DAY, "model": "m", "version": "v1", "score": 0.5}).encode()
    one._by_events(decode(one.agent.decoder(), body, "predictions"))
    assert [one.feed() for _ in range(4)][1:] == [False] * 3
    assert stored(one) == 3
    one._by_events(decode(one.agent.decoder(), json.dumps({"now": (DAY0 * DAY + 10 * HOUR)}).encode(), "predictions"))
    drain(one)
    assert stored(one) == 5


def test_a_file_that_cannot_be_read_holds_the_clock(tmp_path, loop):
    """While a file is there and cannot be read the clock of events stands: what it holds is not too old afterwards."""
    path = tmp_path / "p.csv.gz"
    whole = gzip.compress((HEAD + rows(0, 5)).encode())
    path.write_bytes(whole[:-20])
    one = loop(path)
    one.feed()
    body = json.dumps({"id": "x", "ts": (DAY0 + 10) * DAY, "model": "m", "version": "v1", "score": 0.5}).encode()
    one._by_events(decode(one.agent.decoder(), body, "predictions"))
    path.write_bytes(whole)
    drain(one)
    assert stored(one) == 6


def test_an_interrupted_replay_goes_on_to_its_end(tmp_path, loop):
    """How far a file had brought the time is kept with its position, so that the days of its end mature after a restart, too."""
    path = tmp_path / "p.csv"
    path.write_text(HEAD + rows(0, 20))
    one = loop(path)
    drain(one)
    one.close()
    one.agent = Agent(one.agent.config, "test")
    one._rewind()
    drain(one)
    one.finish()
    assert [d for _, d in one.agent.store.closed] == [DAY0]
