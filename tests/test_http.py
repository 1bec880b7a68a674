"""The listeners from outside: every format, every rejection, tokens, policies, signals, and what the process needs."""

import asyncio
import base64
import fcntl
import gzip
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path

import numpy as np
import pytest

from monitor.core.events import VERDICTS, Receipt, Rejection
from monitor.core.reasons import REJECTED
from monitor.formats import Decoder, Hasher
from monitor.sources.http import HttpReceiver

ROOT = Path(__file__).parents[1]
DAY = 86_400_000
MIDNIGHT = 1_740_916_800_000 - DAY // 2
MIDNIGHT -= MIDNIGHT % DAY
"""The beginning of 2025-03-02 in ms."""

# The wall is the clock and a tick is short, so that what was sent is soon on /metrics.
WALL = """\
state: state
api: 127.0.0.1:{port}
metrics: 127.0.0.1:0
tick: 100ms
{more}
models:
  m: {{{model}}}
"""
EVENTS = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h, corrections: 24h}}
  n: {}
"""
NDJSON, CSV, GZIP = {"Content-Type": "application/x-ndjson"}, {"Content-Type": "text/csv"}, {"Content-Encoding": "gzip"}


def wall(model="", more="", port=0):
    """Return the configuration of one model `m` with the wall as its clock."""
    return WALL.format(model=model, more=more, port=port)


def until(check, seconds=60):
    """Return the first true value of `check()`, which is asked again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError(f"still {found!r} after {seconds} s")


def now():
    """Return the present time in ms."""
    return time.time_ns() // 1_000_000


def scored(ident, score=0.5, **more):
    """Return a prediction of this moment."""
    return {"id": ident, "ts": now(), "model": "m", "version": "v1", "score": score, **more}


def labelled(ident, label=1, **more):
    """Return a label of this moment."""
    return {"id": ident, "ts": now(), "label": label, **more}


def counter(found, name, **labels):
    """Return the sum of the series of a name with these labels."""
    return sum(v for k, v in found.items() if k.split("{")[0] == name and all(f'{a}="{b}"' in k for a, b in labels.items()))


def metrics(agent, sent):
    """Return /metrics as soon as every event sent is on it; its counters must add up to them."""

    def all_counted():
        found = agent.metrics(refresh=False)
        return found if counter(found, "scorewatch_events_total") == sent else None

    found = until(all_counted)
    parts = [counter(found, f"scorewatch_events_{name}_total") for name in ("accepted", "rejected", "duplicate")]
    assert sum(parts) == sent
    return found


def receipt(accepted=0, duplicates=0, rejected=()):
    """Return a receipt without the details of its rejections."""
    return {"accepted": accepted, "duplicates": duplicates, "rejected": list(rejected)}


def brief(body):
    """Return a receipt with (index, reason) for each rejection."""
    assert all(set(r) == {"index", "reason", "detail"} for r in body["rejected"])
    return {**body, "rejected": [(r["index"], r["reason"]) for r in body["rejected"]]}


def command(config, *args):
    """Run `scorewatch` with a configuration and return (exit code, output, errors)."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", *args, "--config", str(config)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def port():
    """Return a port that was free a moment ago, for commands that have to find the agent."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# Formats.


def rows(model):
    """Return 480 predictions of a model over two days, with labels, as plain lists of columns."""
    rng = np.random.default_rng(480)
    n = 480
    p = rng.choice(np.arange(0.01, 1, 0.02), n)
    return {
        "id": [f"é{i}" for i in range(n)],
        "ts": [MIDNIGHT + DAY // 2 + i // 240 * DAY + i * 1000 for i in range(n)],
        "model": [model] * n,
        "version": ["v1"] * n,
        "score": p.tolist(),
        "country": ["DE" if i % 30 else "FR" for i in range(n)],
        "verdict": [VERDICTS[i % 5] for i in range(n)],
        "label": (rng.random(n) < p).astype(int).tolist(),
    }


def items(columns, *names):
    """Return columns as a list of events."""
    return [dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True)]


def iso(ms):
    """Return a time as ISO-8601."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def predictions_of(columns):
    """Return events with their segments inside."""
    found = items(columns, "id", "ts", "model", "version", "score", "verdict")
    return [{**e, "segments": {"country": c}} for e, c in zip(found, columns["country"], strict=True)]


def as_lines(events, scale=1, end="\n"):
    """Return NDJSON, with epoch times in ms times `scale`."""
    return end.join(json.dumps({**e, "ts": e["ts"] * scale}) for e in events).encode()


def as_csv(columns, *names):
    """Return CSV with ISO times."""
    written = {**columns, "ts": list(map(iso, columns["ts"]))}
    return "\n".join([",".join(names), *(",".join(map(str, e.values())) for e in items(written, *names))]).encode()


def as_packed(c):
    """Return a packed frame."""
    frame = {
        "n": len(c["id"]),
        "id": "\n".join(c["id"]),
        "ts": np.array(c["ts"], "<i8"),
        "score": np.array(c["score"], "<f8"),
        "model": c["model"][0],
        "version": "v1",
        "segments": np.array([("DE", "FR").index(x) for x in c["country"]], "<u2"),
        "combos": [{"country": "DE"}, {"country": "FR"}],
        "verdict": np.array([VERDICTS.index(v) for v in c["verdict"]], "u1"),
    }
    texts = {k: base64.b64encode(v.tobytes()).decode() if isinstance(v, np.ndarray) else v for k, v in frame.items()}
    return json.dumps(texts).encode()


def list_columns(columns, *names, **more):
    """Return list columns, ISO times, equal values once."""
    written = {**columns, "ts": list(map(iso, columns["ts"]))}
    once = {"model": columns["model"][0], "version": "v1"}
    return json.dumps({name: once.get(name, written[name]) for name in names} | more).encode()


FORMS = {
    "object": lambda c: [(json.dumps(e).encode(), {}) for e in predictions_of(c)],
    "list": lambda c: [(json.dumps([{**e, "ts": iso(e["ts"])} for e in predictions_of(c)]).encode(), {})],
    "ndjson": lambda c: [(as_lines(predictions_of(c)), {})],
    "ndjson_us": lambda c: [(as_lines(predictions_of(c), 1_000, "\r\n"), NDJSON)],
    "list_columns": lambda c: [
        (
            list_columns(c, "id", "ts", "model", "version", "score", "verdict", segments=[{"country": x} for x in c["country"]]),
            {},
        )
    ],
    "list_columns_combos": lambda c: [
        (
            list_columns(
                c,
                *("id", "ts", "model", "version", "score", "verdict"),
                segments=[int(x == "FR") for x in c["country"]],
                combos=[{"country": "DE"}, {"country": "FR"}],
            ),
            {},
        )
    ],
    "packed": lambda c: [(as_packed(c), {})],
    "packed_gzip": lambda c: [(gzip.compress(as_packed(c)), GZIP)],
    "csv": lambda c: [(as_csv(c, "id", "ts", "model", "version", "score", "verdict", "country"), CSV)],
    "ndjson_gzip": lambda c: [(gzip.compress(as_lines(predictions_of(c), 1_000_000)), {**NDJSON, **GZIP})],
}
LABELS = ("id", "ts", "model", "label")
LABEL_FORMS = {
    "object": lambda c: [(json.dumps(e).encode(), {}) for e in items(c, *LABELS)],
    "list": lambda c: [(json.dumps(items(c, *LABELS)).encode(), {})],
    "ndjson": lambda c: [(as_lines(items(c, *LABELS)), {})],
    "list_columns": lambda c: [(list_columns(c, *LABELS), {})],
    "csv": lambda c: [(as_csv(c, *LABELS), CSV)],
    "ndjson_gzip": lambda c: [(gzip.compress(as_lines(items(c, *LABELS))), GZIP)],
}


def test_every_format_gives_the_same_stored_result(agent):
    """The same events in any format, spelling of time or compression become the same days, slices, estimates and bins."""
    a = agent(EVENTS.partition("models:")[0] + 'models: {"*": {labels: {horizon: 24h}, segments: [country], idle_after: 7d}}')
    sent = 0
    for kind, forms in (("predictions", FORMS), ("labels", {**dict.fromkeys(FORMS, LABEL_FORMS["list"]), **LABEL_FORMS})):
        for name, form in forms.items():
            taken = 0
            for body, headers in form(rows(name)):
                status, answer, _ = a.ask(f"/v1/{kind}", body, headers)
                assert (status, answer["duplicates"], answer["rejected"]) == (200, 0, []), (kind, name, answer)
                taken += answer["accepted"]
            assert taken == 480, (kind, name)
            sent += taken
    a.now(MIDNIGHT + 3 * DAY)
    found = metrics(a, sent)
    assert counter(found, "scorewatch_matured") == 480 * len(FORMS)
    versions = {v.pop("model"): v for v in a.ask("/v1/state")[1]["versions"]}
    diagrams = {name: a.ask(f"/v1/models/{name}/reliability?bins=width10")[1] for name in FORMS}
    assert {name: d.pop("model") for name, d in diagrams.items()} == {name: name for name in FORMS}
    assert versions["list"]["estimates"].keys() == {"all", "country=DE", "country=other"}
    assert (versions["list"]["matured"], versions["list"]["never_labelled"]) == (480, 0)
    for name in FORMS:
        assert versions[name] == versions["list"], name
        assert diagrams[name] == diagrams["list"], name


# Rejections.


def test_every_bad_prediction_is_named_and_its_neighbours_are_kept(agent):
    """Each odd item of one list is rejected by index and reason, each good item beside it is stored, and reasons are counted."""
    a = agent(EVENTS)
    at = MIDNIGHT + 40 * DAY
    good = {"ts": at, "model": "m", "version": "v1", "score": 0.5}
    for i in range(15):
        a.post("predictions", [{**good, "id": "first", "version": f"w{i}"}])
    a.now(at)
    odd = [
        ("malformed", 17),
        ("malformed", "text"),
        ("missing_field", {"score": ...}),
        ("missing_field", {"id": ...}),
        ("missing_field", {"ts": None}),
        ("type", {"score": "0.7"}),
        ("type", {"score": True}),
        ("type", {"verdict": "maybe"}),
        ("type", {"verdict": "flag", "flagged": True}),
        ("type", {"segments": {"country": 1}}),
        ("not_finite", {"score": float("nan")}),
        ("not_finite", {"score": float("-inf")}),
        ("out_of_range", {"score": 1.1}),
        ("timestamp", {"ts": "yesterday"}),
        ("timestamp", {"ts": 12}),
        ("future", {"ts": now() + 400_000}),
        ("too_old", {"ts": at - 4 * DAY}),
        ("unknown_model", {"model": "x"}),
        ("unknown_policy", {"policy": "1-1"}),
        ("too_many_versions", {"version": "v2"}),
        ("id", {"id": ""}),
        ("id", {"id": "x" * 257}),
        ("unsupported", {"weight": 0.5}),
        ("scores", {"scores": [0.5, 0.5]}),
        ("label_prob", {"label_prob": 0}),
        ("type", {"cluster": 1.5}),
    ]
    events = [{**good, "id": "good-0"}]
    for i, (_, change) in enumerate(odd):
        item = {**good, "id": f"odd-{i}", **change} if isinstance(change, dict) else change
        events.append({k: v for k, v in item.items() if v is not ...} if isinstance(item, dict) else item)
        events.append({**good, "id": f"good-{i + 1}"})
    body = a.post("predictions", events)
    named = [(2 * i + 1, reason) for i, (reason, _) in enumerate(odd)]
    assert brief(body) == receipt(len(odd) + 1, 0, named)
    found = metrics(a, 15 + len(events))
    for reason in {reason for reason, _ in odd}:
        assert counter(found, "scorewatch_events_rejected_total", reason=reason) == sum(r == reason for r, _ in odd), reason
    assert {reason for reason, _ in odd} | LABEL_REASONS | CLASS_REASONS == set(REJECTED)


LABEL_REASONS = {"label_class", "null_label", "no_model", "unknown_id", "not_sampled"}
"""What only labels are rejected for."""
CLASS_REASONS = {"sum", "unknown_class"}
"""What only events of models with classes are rejected for."""


def test_every_bad_label_is_named_and_its_neighbours_are_kept(agent):
    """Each odd label is rejected by index and reason; one past its corrections is too_old, one nothing can take unknown_id."""
    a = agent(EVENTS)
    at = MIDNIGHT + 9 * DAY
    new, old = {"ts": at, "model": "m", "version": "v1"}, {"ts": at - DAY, "model": "m", "version": "v1"}
    # The older day's row came after the younger's, so it is still in the store when its corrections are over.
    assert a.post("predictions", [{**new, "id": str(i), "score": 0.5} for i in range(40)])["accepted"] == 40
    assert a.post("predictions", [{**old, "id": "old", "score": 0.5}])["accepted"] == 1
    a.now(at + 2 * DAY)
    odd = [
        ("malformed", ["list"]),
        ("missing_field", {"label": ...}),
        ("type", {"label": "1"}),
        ("type", {"revision": 256}),
        ("not_finite", {"label": float("nan")}),
        ("label_class", {"label": 2}),
        ("label_class", {"label": 0.5}),
        ("null_label", {"label": None}),
        ("timestamp", {"ts": "soon"}),
        ("future", {"ts": now() + 400_000}),
        ("too_old", {"id": "old"}),
        ("no_model", {"model": ...}),
        ("unknown_model", {"model": "x"}),
        ("unknown_id", {"id": "nobody", "ts": at - 60 * DAY}),
        ("unknown_id", {"version": "v9", "ts": at - 60 * DAY}),
        ("id", {"id": ""}),
        ("unsupported", {"weight": 0.5}),
        ("label_prob", {"label_prob": 2}),
        ("label_prob", {"label_prob": 0.5, "prediction": {"ts": at, "score": 0.5, "label_prob": 0.6}}),
        ("out_of_range", {"prediction": {"ts": at, "score": 2}}),
    ]
    events = [{**new, "id": "39", "label": 1}]
    for i, (_, change) in enumerate(odd):
        item = {**new, "id": "38", "label": 1, **change} if isinstance(change, dict) else change
        events.append({k: v for k, v in item.items() if v is not ...} if isinstance(item, dict) else item)
        events.append({**new, "id": str(i), "label": i % 2})
    body = a.post("labels", events)
    assert brief(body) == receipt(len(odd) + 1, 0, [(2 * i + 1, reason) for i, (reason, _) in enumerate(odd)])
    metrics(a, 41 + len(events))


def test_a_bare_nan_costs_only_its_own_item(agent):
    """NaN or a broken line rejects one item of a list, of NDJSON, of list columns and of CSV, and no other."""
    a = agent(wall())
    at = now()
    item = f'"ts":{at},"model":"m","version":"v1","score"'
    bodies = {
        "list": f'[{{"id":"1",{item}:0.5}},{{"id":"2",{item}:NaN}},{{"id":"3",{item}:0.5}}]',
        "ndjson": f'{{"id":"4",{item}:0.5}}\n{{"id":"5",{item}:NaN}}\n{{"id":"6",{item}:0.5}}\n{{"id":"7",\n',
        "columns": f'{{"id":["8","9","10"],"ts":[{at},{at},{at}],"model":"m","version":"v1","score":[0.5,NaN,0.5]}}',
        "csv": f"id,ts,model,version,score\n11,{at},m,v1,0.5\n12,{at},m,v1,nan\n13,{at},m,v1,0.5\n14,{at},m\n",
    }
    broken = {"ndjson": [(3, "malformed")], "csv": [(3, "malformed")]}
    for form, body in bodies.items():
        status, answer, _ = a.ask("/v1/predictions", body.encode(), CSV if form == "csv" else {})
        assert status == 200, (form, answer)
        assert brief(answer) == receipt(2, 0, [(1, "not_finite"), *broken.get(form, [])]), form
    metrics(a, 14)


def test_what_a_receipt_says():
    """Held labels and ids to review are in the answer when there are some, and not otherwise."""

    def answer(receipt):
        async def offer(batch, decoder):
            return receipt

        made = asyncio.run(
            HttpReceiver(Decoder(Hasher("xxh3", bytes(16)), {"m": ()}), offer, 100).receive("labels", "", "", b"[]")
        )
        assert made.status == 200
        return json.loads(made.body)

    assert answer(Receipt(2, 1, ())) == {"accepted": 2, "duplicates": 1, "rejected": []}
    body = answer(Receipt(2, 0, (Rejection(1, "type", "x"),), held=1, review=("b", "\u00fc")))
    assert body == {
        "accepted": 2,
        "duplicates": 0,
        "rejected": [{"index": 1, "reason": "type", "detail": "x"}],
        "held": 1,
        "review": ["b", "\u00fc"],
    }


NASTY = [
    *(None, True, "", "x" * 300, "\0", "\ud800", "9999-99-99", 0, -1, 1.5, 300, 2**63, 10**30, 10**400),
    *(float("nan"), float("inf"), 1e308, [], [1], {}, {"a": 1}, {"country": "\ud800"}, {"country": None}),
]


@pytest.mark.parametrize("form", ["list", "ndjson", "columns"])
def test_no_value_of_any_field_costs_more_than_its_item(agent, form):
    """Whatever a field holds, the answer is 200, the item is taken or rejected by its index, and its neighbours are stored."""
    a = agent(wall("segments: [country]"))
    prediction = scored("", segments={"country": "DE"}, verdict="pass", policy="1-1", label_prob=0.5, cluster="c")
    label = labelled("", revision=0, model="m", version="v1", label_prob=0.5, prediction=None)
    sent = 0
    for kind, event in (("predictions", prediction), ("labels", label)):
        for field in event:
            for i, value in enumerate(NASTY):
                ids = [f"{kind}-{field}-{i}-{k}" for k in "abc"]
                if kind == "labels":
                    assert a.post("predictions", [scored(ident) for ident in ids])["accepted"] == 3
                    sent += 3
                events = [{**event, "id": ident} for ident in ids]
                events[1] |= {field: value}
                if form == "list":
                    body = json.dumps(events)
                elif form == "ndjson":
                    body = "\n".join(map(json.dumps, events))
                else:
                    body = json.dumps({name: [e[name] for e in events] for name in event})
                status, answer, _ = a.ask(f"/v1/{kind}", body.encode())
                assert status == 200, (kind, field, str(value)[:40], answer)
                assert {r["index"] for r in answer["rejected"]} <= {1}, (kind, field, str(value)[:40], answer)
                assert answer["accepted"] + answer["duplicates"] + len(answer["rejected"]) == 3
                sent += 3
    metrics(a, sent)


def test_bodies_that_cannot_be_read_are_refused_whole(agent):
    """Malformed, empty, too large, wrongly compressed: 400, 413 or 415 with a reason, nothing taken, each one counted."""
    a = agent(wall(more="sources: [{http: {max_body: 4096}}]"))
    good = json.dumps([scored("a")]).encode()
    bomb = gzip.compress(b" " * 100_000)
    cases = [
        (b'{"id": "a", ', {}, 400, "unreadable"),
        (b"", {}, 400, "unreadable"),
        (b"hello", {}, 400, "unreadable"),
        (b'[{"id": "a"}', {}, 400, "unreadable"),
        (b'{"n":2,"id":"a","ts":"","score":"","model":"m","version":"v1"}', {}, 400, "unreadable"),
        (b'{"id":["a","b"],"ts":[1],"model":"m","version":"v1","score":[0.5,0.5]}', {}, 400, "unreadable"),
        (b'{"id":["a"],"segments":[0],"combos":7}', {}, 400, "unreadable"),
        (good, GZIP, 400, "unreadable"),
        (gzip.compress(good)[:-9], GZIP, 400, "unreadable"),
        (b" " * 4097, {}, 413, "too_large"),
        (bomb, GZIP, 413, "too_large"),
        (good, {"Content-Encoding": "br"}, 415, "encoding"),
    ]
    for body, headers, status, error in cases:
        for kind in ("predictions", "labels"):
            if kind == "labels" and b'"n"' in body:
                continue
            found = a.ask(f"/v1/{kind}", body, headers)
            assert (found[0], found[1]["error"]) == (status, error), (kind, body[:50], found)
            assert found[1].keys() == {"error", "detail"}
    connection = http.client.HTTPConnection(a.api.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/predictions", iter([b" " * 3000] * 3), encode_chunked=True)  # no Content-Length
    with connection.getresponse() as answer:
        assert answer.status == 413
    connection.close()
    assert a.ask("/v1/predictions", good)[0] == 200
    found = metrics(a, 1)
    refused = {r: counter(found, "scorewatch_requests_refused_total", reason=r) for r in ("unreadable", "too_large", "encoding")}
    assert refused == {"unreadable": 17, "too_large": 5, "encoding": 2}
    assert (a.ask("/v1/predictions")[0], a.ask("/v1/nothing", b"{}")[0]) == (405, 404)


def test_a_full_queue_answers_429_and_takes_nothing(agent):
    """With the store's thread held up and the queue full a request gets 429 with Retry-After; the metrics go on answering."""
    a = agent(wall(more="sources: [{http: {queue: 5}}]"))
    a.post("predictions", [scored("first")])
    folder = a.folder / "state" / "policies" / "m"
    folder.mkdir(parents=True, exist_ok=True)
    answers, threads = {}, []

    def ask(name, path, body):
        answers[name] = a.ask(path, body)

    def begin(*args):
        threads.append(threading.Thread(target=ask, args=args))
        threads[-1].start()

    batches = {}
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # Writing a policy waits for the lock in the store's thread, and so does every batch behind it.
        begin("activate", "/v1/models/m/activate", {"threshold": 0.5, "reason": "hold up"})
        deadline = time.monotonic() + 60
        while not any(found[0] == 429 for found in answers.values()) and time.monotonic() < deadline:
            name = f"b{len(batches)}"
            batches[name] = [scored(f"{name}-{i}") for i in range(3)]
            begin(name, "/v1/predictions", batches[name])
            time.sleep(0.05)
        assert a.ask(a.metrics_url)[0] == 200
        assert a.ask(a.metrics_url.replace("/metrics", "/-/ready"))[0] == 200
    for thread in threads:
        thread.join(timeout=60)
    assert answers.pop("activate")[0] == 200
    refused = {name for name, (status, _, _) in answers.items() if status == 429}
    assert refused
    for name, (status, body, headers) in answers.items():
        if name in refused:
            assert (body["error"], headers["Retry-After"]) == ("busy", "1")
        else:
            assert (status, body) == (200, receipt(3))
        assert a.post("predictions", batches[name]) == (receipt(3) if name in refused else receipt(0, 3))
    found = metrics(a, 1 + 6 * len(batches) - 3 * len(refused))
    assert counter(found, "scorewatch_requests_refused_total", reason="busy") == len(refused)


def test_an_event_of_the_future_does_not_move_the_clock(tmp_path):
    """An event that is rejected as `future` leaves the clock of a replayed file alone, so the days after it are there."""
    events = [scored(str(i)) | {"ts": MIDNIGHT + i * DAY // 4} for i in range(20)]
    events[0]["ts"] = events[9]["ts"] = MIDNIGHT + 20_000 * DAY
    (tmp_path / "events.ndjson").write_text("\n".join(map(json.dumps, events)))
    (tmp_path / "config.yaml").write_text("models: {m: {labels: {horizon: 24h}}}\n")
    code, out, err = command(tmp_path / "config.yaml", "replay", str(tmp_path / "events.ndjson"), "--by", "day", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [e["day"] for e in told if e["kind"] == "day"] == [f"2025-03-0{d}" for d in range(2, 7)]


# What events mean.


def test_repeated_ids_are_duplicates_and_other_content_is_a_conflict(agent):
    """The first prediction of an id wins; repeats are duplicates, those that differ conflicts, inside one body or across."""
    a = agent(wall())
    first = [scored("a", 0.25), scored("b", 0.75)]
    assert a.post("predictions", first) == receipt(2)
    assert a.post("predictions", first) == receipt(0, 2)
    assert a.post("predictions", [{**first[0], "score": 0.5}, first[1]]) == receipt(0, 2)
    third = scored("c")
    assert a.post("predictions", [third, third, {**third, "score": 0.1}]) == receipt(1, 2)
    label = labelled("a")
    assert a.post("labels", [label]) == receipt(1)
    assert a.post("labels", [label]) == receipt(0, 1)
    assert a.post("labels", [{**label, "label": 0, "revision": 1}]) == receipt(1)
    assert a.post("labels", [label]) == receipt(0, 1)
    found = metrics(a, 13)
    assert found["scorewatch_prediction_conflicts_total"] == 2
    assert counter(found, "scorewatch_label_corrections_total", reason="1_to_0") == 1
    assert counter(found, "scorewatch_label_corrections_total", reason="0_to_1") == 0
    assert counter(found, "scorewatch_events_duplicate_total") == 8


def test_one_request_id_may_be_scored_by_live_and_shadow(agent):
    """An id scored by two versions is two predictions, one label counts for both, and volume is told apart by role."""
    a = agent(wall("versions: {v2: shadow, v3: canary}"))
    assert a.post("predictions", [scored("a"), scored("a", 0.9, version="v2"), scored("b")]) == receipt(3)
    assert a.post("labels", [labelled("a")]) == receipt(1)
    assert a.post("labels", [labelled("b", version="v1")]) == receipt(1)
    assert a.post("labels", [labelled("b", version="v2")]) == {**receipt(1), "held": 1}
    found = metrics(a, 6)
    volume = [counter(found, "scorewatch_predictions_total", version=v, role=r) for v, r in (("v1", "live"), ("v2", "shadow"))]
    assert volume == [2, 1]
    seen = {v["version"]: (v["role"], v["waiting"], v["known_so_far"]) for v in a.ask("/v1/state")[1]["versions"]}
    assert seen == {"v1": ("live", 2, 2), "v2": ("shadow", 1, 1)}
    assert a.ask("/v1/models/m/policy")[1]["error"].startswith("m v1 has no policy")


def test_a_star_serves_models_that_are_not_named(agent):
    """A model that is not configured is rejected, unless there is an entry "*"; then labels have to name their model."""
    a = agent(wall().replace("m: {}", '"*": {threshold: 0.5}'))
    assert a.post("predictions", [scored("a"), scored("a", model="other")]) == receipt(2)
    body = a.post("labels", [labelled("a"), labelled("a", model="other"), labelled("a", model="third")])
    assert brief(body) == {**receipt(2, 0, [(0, "no_model")]), "held": 1}
    metrics(a, 5)
    assert {v["model"]: v["known_so_far"] for v in a.ask("/v1/state")[1]["versions"]} == {"m": 0, "other": 1}


def test_verdicts_come_from_the_event_its_policy_or_the_threshold(agent):
    """An event's verdict counts as sent; without one its policy decides, else the current policy, else the threshold."""
    a = agent(wall("threshold: 0.5"))
    flagged = [("flag", {}), ("review", {}), ("block", {}), (None, {"flagged": True})]
    passed = [("pass", {}), ("abstain", {}), (None, {"flagged": False})]
    events = [scored(f"f{i}", 0.1, **({"verdict": v} if v else {}), **more) for i, (v, more) in enumerate(flagged)]
    events += [scored(f"p{i}", 0.9, **({"verdict": v} if v else {}), **more) for i, (v, more) in enumerate(passed)]
    events += [scored("equal", 0.5), scored("below", 0.4999)]
    assert a.post("predictions", events) == receipt(9)
    version = until(lambda: next((v for v in a.ask("/v1/state")[1]["versions"] if v["waiting"] == 9), None))
    assert version["estimates"]["all"]["24h"]["flagged_share"]["value"] == pytest.approx(5 / 9, abs=1e-12)
    status, first, _ = a.ask("/v1/models/m/activate", {"threshold": 0.25, "reason": "lower"})
    assert status == 200, first
    named = scored("named", 0.3, policy=first["policy"])
    assert a.post("predictions", [named, scored("named-low", 0.2, policy=first["policy"])]) == receipt(2)
    # An event is decided by what was current at its time, so one of before the activation meets the old threshold.
    assert a.post("predictions", [scored("after", 0.3), scored("before", 0.3) | {"ts": first["at"] - 1}]) == receipt(2)
    unknown = a.post("predictions", [scored("u", policy="9-9"), scored("v", policy="9-9", verdict="pass")])
    assert brief(unknown) == receipt(1, 0, [(0, "unknown_policy")])
    version = until(lambda: next((v for v in a.ask("/v1/state")[1]["versions"] if v["waiting"] == 14), None))
    assert version["estimates"]["all"]["24h"]["flagged_share"]["value"] == pytest.approx(7 / 14, abs=1e-12)
    assert version["following"] == {"": 11, first["policy"]: 2, "9-9": 1}
    found = metrics(a, 15)
    assert counter(found, "scorewatch_policy_following", policy=first["policy"]) == 2
    assert counter(found, "scorewatch_threshold") == 0.25


# Policies.


def test_tokens_guard_events_and_decisions(agent, monkeypatch, port):
    """Without a token 401, with a wrong one 403; the decide token is another than the ingest token, and commands use it."""
    monkeypatch.setenv("SCOREWATCH_TEST_DECIDE", "decide-1")
    a = agent(wall(more='tokens: {ingest: "in-1", decide: "env:SCOREWATCH_TEST_DECIDE"}', port=port))
    routes = {
        "/v1/predictions": ("in-1", [scored("a")]),
        "/v1/labels": ("in-1", [labelled("a")]),
        "/v1/models/m/activate": ("decide-1", {"threshold": 0.5, "reason": "first"}),
        "/v1/models/m/rollback": ("decide-1", {"reason": "back"}),
    }
    for path, (token, body) in routes.items():
        status, _, headers = a.ask(path, body)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), path
        for wrong in ("x", {"in-1": "decide-1", "decide-1": "in-1"}[token], "é", ""):
            assert a.ask(path, body, {"Authorization": f"Bearer {wrong}"})[0] == 403, (path, wrong)
        status, answer, _ = a.ask(path, body, {"Authorization": f"Bearer {token}"})
        assert status == (409 if path.endswith("rollback") else 200), (path, answer)
    assert a.ask("/v1/state")[0] == a.ask("/v1/models/m/policy")[0] == 200
    code, out, err = command(a.config, "activate", "m", "--threshold", "0.6", "--reason", "second")
    assert (code, err) == (0, ""), err
    assert "(threshold 0.6) is current" in out
    metrics(a, 2)
    assert "in-1" not in a.log.read_text()


def test_the_policy_route_follows_what_is_served(agent):
    """404 with a reason while there is none, then the policy with an ETag, 304 for it, and a new tag after a change."""
    a = agent(wall())
    status, body, _ = a.ask("/v1/models/m/policy")
    assert (status, body) == (404, {"error": "say which version of m: live versions are none yet"})
    a.post("predictions", [scored("a")])
    none = {"error": "m v1 has no policy; activate one with `scorewatch activate`"}
    assert a.ask("/v1/models/m/policy")[:2] == (404, none)
    assert a.ask("/v1/models/m/versions/v1/policy")[:2] == (404, none)
    done = a.ask("/v1/models/m/activate", {"threshold": 0.5, "reason": "first"})[1]
    status, policy, headers = a.ask("/v1/models/m/policy")
    assert (status, policy["id"], policy["thresholds"]) == (200, done["policy"], {"all": 0.5})
    stored = a.folder / "state" / "policies" / "m" / "v1"
    assert json.loads((stored / f"{done['policy']}.json").read_text()) == policy
    assert json.loads((stored / "current.json").read_text())["policy"] == policy["id"]
    tag = {"If-None-Match": headers["ETag"]}
    status, body, headers = a.ask("/v1/models/m/versions/v1/policy", None, tag)
    assert (status, body, headers["ETag"]) == (304, "", tag["If-None-Match"])
    a.ask("/v1/models/m/activate", {"threshold": 0.75, "reason": "second"})
    status, changed, headers = a.ask("/v1/models/m/policy", None, tag)
    assert (status, changed["thresholds"]) == (200, {"all": 0.75})
    assert headers["ETag"] != tag["If-None-Match"]
    a.post("predictions", [scored("a", version="v2")])
    assert a.ask("/v1/models/m/policy")[:2] == (404, {"error": "say which version of m: live versions are v1, v2"})
    for path, wrong, status in (
        ("activate", {"threshold": 0.5}, 400),
        ("activate", {"reason": "x"}, 400),
        ("activate", {"threshold": "0.5", "reason": "x"}, 400),
        ("activate", {"threshold": 1.5, "reason": "x", "version": "v1"}, 409),
        ("activate", {"threshold": 0.5, "reason": "x"}, 409),
        ("activate", {"threshold": 0.5, "reason": "x", "version": 7}, 400),
        ("activate", {"policy": {"id": "1-1"}, "reason": "x", "version": "v1"}, 409),
        ("activate", {"policy": [], "reason": "x", "version": "v1"}, 409),
        ("activate", {"policy": {**policy, "id": 7}, "reason": "x", "version": "v1"}, 409),
        ("activate", {"policy": {**policy, "id": "new"}, "reason": "x", "version": "v1"}, 409),
        ("activate", {"policy": {**policy, "id": "new", "checksum": ""}, "reason": "x", "version": "v2"}, 409),
        ("activate", {"policy": {**policy, "calibrator": 5, "checksum": ""}, "reason": "x", "version": "v1"}, 409),
        ("activate", [1], 400),
        ("rollback", {"reason": "x", "version": "v2"}, 409),
        ("rollback", {"version": "v1"}, 400),
    ):
        found = a.ask(f"/v1/models/m/{path}", wrong)
        assert (found[0], list(found[1])) == (status, ["error"]), (path, wrong, found)
    assert a.ask("/v1/models/m/activate", b"{")[0] == 400
    assert a.ask("/v1/models/m/versions/v1/policy")[1] == changed
    # What was refused has not used up its id, and a whole policy can be activated.
    whole = {**policy, "id": "new", "thresholds": {"all": 0.25}, "checksum": ""}
    del whole["bands"]
    assert a.ask("/v1/models/m/activate", {"policy": whole, "reason": "x", "version": "v1"})[0] == 200
    served = a.ask("/v1/models/m/versions/v1/policy")[1]
    assert {**served, "checksum": ""} == {**whole, "bands": {"all": [[0.0, "pass"], [0.25, "flag"]]}}
    assert {p.name for p in stored.parent.glob("*/*.json")} == {
        *("current.json", "new.json", f"{policy['id']}.json", f"{changed['id']}.json")
    }


def test_policies_change_by_api_and_command_running_and_stopped(agent, port):
    """Activation and rollback work over the api and by command, agent running or not, and the journal has each of them."""
    a = agent(wall(port=port))
    a.post("predictions", [scored("a")])
    first = a.ask("/v1/models/m/activate", {"threshold": 0.5, "reason": "one", "who": "ann"})[1]
    number = first["policy"].partition("-")[0]
    code, out, err = command(a.config, "activate", "m", "--threshold", "0.7001", "--reason", "two")
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"m v1: policy {number}-2 \(threshold 0\.70\d+\) is current\n", out)
    assert a.ask("/v1/models/m/policy")[1]["thresholds"]["all"] >= 0.7001
    assert command(a.config, "rollback", "m") == (0, f"m v1: policy {number}-1 (threshold 0.5) is current\n", "")
    refused = "scorewatch: m v1 has no earlier policy in good standing to go back to\n"
    assert command(a.config, "rollback", "m") == (1, "", refused)
    code, out, err = command(a.config, "log")
    assert (code, out) == (1, "")
    assert err.endswith("state: another process uses this state directory; stop it or choose another `state`\n")
    pinned = a.state()["journal"]
    assert a.stop() == 0
    assert command(a.config, "log", "--expect", f"{pinned['seq']}:{pinned['hash']}")[0] == 0
    assert command(a.config, "rollback", "m") == (1, "", refused)
    code, out, err = command(a.config, "activate", "m", "--threshold", "0.25", "--reason", "three")
    assert (code, out, err) == (0, f"m v1: policy {number}-3 (threshold 0.25) is current\n", "")
    assert command(a.config, "rollback", "m", "--reason", "four")[:2] == (
        0,
        f"m v1: policy {number}-1 (threshold 0.5) is current\n",
    )
    code, out, err = command(a.config, "log", "--json")
    journal = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(e["seq"], e["kind"], e["who"], e["body"]["policy"], e["body"]["reason"]) for e in journal] == [
        (1, "activated", "ann", f"{number}-1", "one"),
        (2, "activated", getuser(), f"{number}-2", "two"),
        (3, "rolled_back", getuser(), f"{number}-1", "by hand"),
        (4, "activated", getuser(), f"{number}-3", "three"),
        (5, "rolled_back", getuser(), f"{number}-1", "four"),
    ]
    pointer = json.loads((a.folder / "state" / "policies" / "m" / "v1" / "current.json").read_text())
    assert pointer == {k: journal[-1]["body"][k] for k in ("policy", "who", "reason", "at")}
    code, out, err = command(a.config, "log", "--verify")
    head = re.fullmatch(r"every entry follows from the one before; the head is (5:[0-9a-f]{64})\n", out)[1]
    assert (code, err) == (0, "")
    assert command(a.config, "log", "--expect", head) == (0, out, "")
    other = head[:-1] + "01"[head[-1] == "0"]
    wrong = f"entry 5 or one before it is not the one whose hash is {other[2:]}\n"
    assert command(a.config, "log", "--expect", other) == (1, wrong, "")
    assert command(a.config, "log", "--expect", "5:abc")[0] == 2
    assert a.start().ask("/v1/models/m/policy")[1]["id"] == f"{number}-1"
    assert a.stop() == 0
    with sqlite3.connect(a.folder / "state" / "log.db") as db:
        db.execute("update journal set who = 'nobody' where seq = 2")
    db.close()
    assert command(a.config, "log", "--verify") == (1, "entry 3 does not follow from the one before\n", "")


def test_a_pointer_written_by_hand_is_journalled(agent):
    """The next tick journals a current.json that a person wrote; one that names no policy is counted and changes nothing."""
    a = agent(wall())
    a.post("predictions", [scored("a")])
    first, second = (a.ask("/v1/models/m/activate", {"threshold": t, "reason": "api"})[1] for t in (0.25, 0.5))
    path = a.folder / "state" / "policies" / "m" / "v1" / "current.json"

    def point(policy, reason):
        fresh = path.with_suffix(".mine")
        fresh.write_text(json.dumps({"policy": policy, "who": "ann", "reason": reason, "at": now()}))
        fresh.replace(path)

    point(first["policy"], "by hand")
    told = until(lambda: [e for e in a.ask("/v1/timeline")[1] if e["who"] == "ann"])
    assert [(e["kind"], e["policy"], e["reason"], e["version"]) for e in told] == [
        ("rolled_back", first["policy"], "by hand", "v1")
    ]
    assert a.ask("/v1/models/m/policy")[1]["id"] == first["policy"]
    point("1-99", "a slip")
    until(lambda: counter(a.metrics(refresh=False), "scorewatch_action_failures_total", action="policy"))
    assert a.ask("/v1/models/m/policy")[1]["id"] == first["policy"]
    point(second["policy"], "again")
    until(lambda: a.ask("/v1/models/m/policy")[1]["id"] == second["policy"])
    assert a.stop() == 0
    code, out, _ = command(a.config, "log", "--json")
    journal = [json.loads(line) for line in out.splitlines()]
    found = [(e["kind"], e["body"]["policy"], e["body"]["who"]) for e in journal]
    assert (code, found[:3]) == (
        0,
        [("activated", first["policy"], "api"), ("activated", second["policy"], "api"), ("rolled_back", first["policy"], "ann")],
    )
    assert [(policy, who) for _, policy, who in found[3:]] == [(second["policy"], "ann")]
    assert command(a.config, "log", "--verify")[0] == 0


# The process.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_agent_and_loses_nothing_acknowledged(agent, number):
    """While senders go on, SIGTERM and SIGINT end the agent with exit 0, and all it acknowledged is there after a restart."""
    a = agent(wall())
    acknowledged = []

    def send(name):
        for i in range(100_000):
            batch = [scored(f"{name}-{i}-{k}") for k in range(20)]
            try:
                status, body, _ = a.ask("/v1/predictions", batch)
            except (OSError, http.client.HTTPException):
                return
            if status != 200:
                return
            assert body == receipt(20)
            acknowledged.append(batch)

    threads = [threading.Thread(target=send, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    until(lambda: len(acknowledged) > 30)
    assert a.stop(number) == 0
    for thread in threads:
        thread.join(timeout=60)
    a.start()
    everything = [e for batch in acknowledged for e in batch]
    assert a.post("predictions", everything) == receipt(0, len(everything))
    metrics(a, len(everything))


def test_probes_and_the_page_answer(agent):
    """Both probes say ok as long as the process answers; the page is a table of versions with names escaped."""
    a = agent(wall())
    for path in ("/-/healthy", "/-/ready"):
        assert a.ask(a.metrics_url.replace("/metrics", path))[:2] == (200, "ok\n")
    assert a.ask(a.metrics_url)[2]["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "No events yet." in a.ask("/")[1]
    assert [a.ask(f"/v1/timeline?since={since}")[0] for since in ("0", "-1", "%C2%B2", "9" * 5000)] == [200, 400, 400, 400]
    a.post("predictions", [scored("a", version="<b>1</b>")])
    page = until(lambda: text if "&lt;b&gt;1&lt;/b&gt;" in (text := a.ask("/")[1]) else None)
    assert "<b>1</b>" not in page
    assert page.count("<table>") == page.count("</table>") == 3
    assert re.findall("<th>(model|waiting|threshold|prevalence|brier)</th>", page)[:3] == ["model", "waiting", "threshold"]


def test_a_wrong_configuration_stops_run_and_check(tmp_path):
    """Each mistake is one line with file, key path and remedy, and the exit code is 2; a right file is printed with defaults."""
    path = tmp_path / "wrong.yaml"
    path.write_text("models:\n  m: {labels: {horizn: 3d}, mode: manual}\n")
    said = (
        f"{path}: models.m.labels.horizn: found an unknown key; did you mean horizon?\n"
        f"{path}: models.m.mode: found 'manual'; write off, propose or auto\n"
    )
    assert command(path, "check") == command(path, "run") == (2, "", said)
    missing = tmp_path / "none.yaml"
    code, out, err = command(missing, "run")
    assert (code, out) == (2, "")
    assert err.startswith(f"{missing}: found no readable file")
    path.write_text("models: {m: {}}\n")
    code, out, err = command(path, "check")
    assert (code, err) == (0, "")
    assert "horizon: 30d" in out


def test_a_second_agent_on_one_state_is_told_so(agent):
    """A second process on the same state or address ends with exit 1 and one line that says why, and the first goes on."""
    a = agent(wall())
    said = f"scorewatch: {a.folder / 'state'}: another process uses this state directory; stop it or choose another `state`\n"
    assert command(a.config, "run") == (1, "", said)
    address = a.api.removeprefix("http://")
    other = a.folder / "other.yaml"
    other.write_text(wall().replace("state: state", "state: other").replace("api: 127.0.0.1:0", f"api: {address}"))
    taken = f"scorewatch: api: cannot listen on {address} (Address already in use); stop what uses it or write another address\n"
    assert command(other, "run") == (1, "", taken)
    assert a.post("predictions", [scored("a")]) == receipt(1)


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """Start the shipped configuration, its state and ports replaced, before the other tests; return process and start."""
    folder = tmp_path_factory.mktemp("idle")
    text = (ROOT / "configs" / "monitor.yaml").read_text()
    for old, new in (("/var/lib/scorewatch", "state"), ("127.0.0.1:8480", "127.0.0.1:0"), ("0.0.0.0:9480", "127.0.0.1:0")):
        assert old in text
        text = text.replace(old, new)
    (folder / "monitor.yaml").write_text(text)
    with (folder / "log.txt").open("w") as err:
        args = [sys.executable, "-m", "monitor", "run", "--config", str(folder / "monitor.yaml")]
        process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=err, text=True)
    assert process.stdout.readline(), (folder / "log.txt").read_text()
    yield process, time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=60)
    process.stdout.close()
    assert (code, (folder / "log.txt").read_text()) == (0, "")


@pytest.fixture(autouse=True)
def _started(idle):
    """Let the idle agent's ten seconds pass during the other tests."""


def test_an_idle_agent_is_small(idle):
    """Ten seconds after it is ready the agent stays below 72 MB, and neither pandas, scikit-learn nor evidently is in it."""
    process, ready = idle
    until(lambda: time.monotonic() - ready > 10)
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) < 72 * 1024
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    assert [name for name in ("pandas", "sklearn", "evidently") if f"/{name}/" in mapped] == []
    asked = "import sys, monitor.cli, monitor.run; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "'numpy'" in loaded
    assert [name for name in ("pandas", "sklearn", "evidently") if f"'{name}'" in loaded] == []


def test_evidently_and_the_pinned_pandas_go_together():
    """The pair that the extra `report` pins can be imported, in a child process that sends nothing home."""
    if importlib.util.find_spec("evidently") is None or importlib.util.find_spec("pandas") is None:
        pytest.skip("the extra `report` is not installed")
    asked = "import pandas, evidently; from evidently import Report; print(pandas.__version__)"
    env = {**os.environ, "DO_NOT_TRACK": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert (2, 2) <= tuple(map(int, done.stdout.split(".")[:2])) < (3, 1)
