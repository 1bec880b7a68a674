"""The same events give the same outcome numbers, to the last bit, in whatever order, batches and number of restarts they come."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monitor.store
from monitor.agent import Agent
from monitor.config import load
from monitor.core.baseline import build, to_json
from monitor.core.events import DAY, HOUR
from monitor.core.features import encode, freeze, placed
from monitor.core.tables import LABEL, ROW
from monitor.formats import decode
from monitor.server import inputs_of, state_of
from monitor.watched import baseline_checksum

DAY0 = 19_000
DAYS = 5
END = (DAY0 + DAYS) * DAY + 25 * HOUR
CONFIG = """\
state: state
clock: events
defaults: {labels: {horizon: 24h, missing: negative}}
models:
  looked: {threshold: 0.5, segments: [country], baseline: looked.json, features: [amount]}
  grouped: {threshold: 0.5, segments: [country], baseline: grouped.json}
"""


def events():
    """Return predictions, some of one id by two versions, and their labels: unnamed, named, corrected, some repeated.

    Labels of the model `looked` are looked for with a probability, which comes with the predictions, with the labels or
    with both; predictions of `grouped` have a cluster.
    """
    r = random.Random(1)
    out = []
    for i in range(260):
        model = "looked" if i % 3 == 0 else "grouped"
        common = {"id": f"id-{i}", "model": model}
        versions = ["v1", "v2"] if r.random() < 0.6 else [r.choice(["v1", "v2"])]
        ts = DAY0 * DAY + r.randrange(DAYS * DAY)
        prob = {"label_prob": r.uniform(0.2, 0.9)}
        given, said = r.choice([(prob, prob), (prob, {}), ({}, prob), ({}, {})])
        if model == "grouped":
            given, said = {"cluster": f"user-{i // 2}"}, {}
        for version in versions:
            event = {**common, **given, "ts": ts + r.randrange(HOUR), "version": version, "score": r.random()}
            event["features"] = r.choice([{"amount": r.random()}, {"amount": None}, {"amount": "?"}, None])
            out.append(event | {"segments": {"country": r.choice(["DE", "DE", "FR", "PT"])}})
        for revision in r.sample(range(4), r.choice([0, 1, 1, 1, 2, 3])):
            named = {"version": r.choice(versions)} if r.random() < 0.3 else {}
            label = {**common, **named, **said, "ts": ts + r.randrange(HOUR, DAY), "label": r.randrange(2)}
            out.append(label | {"revision": revision})
    return out + r.choices(out, k=40)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Return a folder with a configuration, a baseline, and a state whose key for hashes is drawn already."""
    folder = tmp_path_factory.mktemp("fresh")
    rng = np.random.default_rng(1)
    rows, labels = np.zeros(1_200, ROW), np.zeros(1_200, LABEL)
    rows["ts"], rows["score"] = (DAY0 - 10) * DAY + np.arange(1_200) * HOUR // 10, rng.random(1_200)
    rows["verdict"], rows["combo"] = rows["score"] >= 0.5, rng.integers(0, 2, 1_200)
    labels["outcome"] = rng.random(1_200) < rows["score"]
    combos = [(("country", "DE"),), (("country", "FR"),)]
    features = {"amount": freeze(rows["score"].tolist())}
    rows["features"] = encode(placed(features, features), [{"amount": score} for score in rows["score"].tolist()])
    for name in ("looked", "grouped"):
        made = build(name, "v1", ("country",), rows, labels, combos, {"kind": "validation"}, features)
        (folder / f"{name}.json").write_text(to_json(replace(made, checksum=baseline_checksum(made))))
    (folder / "config.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(monitor.store, "BLOCK", 64)
        Agent(load(folder / "config.yaml"), "test", durable=False).store.close()
        yield folder


def opened(folder):
    """Return an agent whose clock begins before all events."""
    agent = Agent(load(folder / "config.yaml"), "test", durable=False)
    agent.clock.begin(DAY0 * DAY)
    return agent


def told(folder, batches, restarts, ticks):
    """Return what the state says of each version after these batches, with restarts and ticks in between, at the end."""
    agent = opened(folder)
    for i, batch in enumerate(batches):
        if i in restarts:
            agent.store.close()
            agent = opened(folder)
        for now in ticks.get(i, ()):
            tick(agent, now)
        read = decode(agent.decoder(), "\n".join(map(json.dumps, batch)).encode(), "events", "application/x-ndjson")
        (receipt,) = agent.ingest([read])
        assert receipt.rejected == ()
    tick(agent, END)
    agent.publish()
    inputs = [inputs_of(v) for v in agent.snapshot.versions]
    said = zip(state_of(agent.snapshot)["versions"], inputs, strict=True)
    versions = sorted((v | {"inputs": i} for v, i in said), key=lambda v: (v["model"], v["version"]))
    agent.store.close()
    return versions


def tick(agent, now):
    """Let it be `now`."""
    agent.clock.last = now
    agent.tick(now)


@pytest.fixture(scope="module")
def differs(fresh, tmp_path_factory):
    """Return a function: where what is told differs from what is told when everything comes at once, predictions first."""
    folder = tmp_path_factory.mktemp("expected") / "agent"
    shutil.copytree(fresh, folder)
    expected = told(folder, [sorted(events(), key=lambda e: "label" in e)], set(), {})
    assert [(v["model"], v["version"]) for v in expected] == [(m, v) for m in ("grouped", "looked") for v in ("v1", "v2")]
    assert [v["inputs"]["windows"]["28d"]["features"]["amount"]["n"] > 0 for v in expected[2:]] == [True, True]
    assert all(v["estimates"]["all"]["28d"][name]["low"] for v in expected for name in ("recall", "precision", "prevalence"))

    def differing(found):
        """Return the paths of all values whose text differs."""
        a, b = (dict(_values("", x)) for x in (expected, found))
        return sorted(path for path in a.keys() | b.keys() if a.get(path) != b.get(path))

    return differing


def _values(path, value):
    """Yield the paths of all values with their text."""
    if isinstance(value, dict | list):
        for key, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(f"{path}/{key}", v)
    else:
        yield path, json.dumps(value)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 10, 50, 400]), st.integers(0, 3), st.integers(0, 4))
def test_order_does_not_matter(fresh, differs, tmp_path_factory, seed, size, restarts, ticks):
    """Any order of the same events, any batches, restarts, and ticks before, between and after days mature: equal bytes."""
    r = random.Random(seed)
    mixed = events()
    r.shuffle(mixed)
    batches = [mixed[i : i + size] for i in range(0, len(mixed), size)]
    when = sorted(r.randrange(len(batches)) for _ in range(ticks))
    nows = sorted(r.randrange(DAY0 * 24, END // HOUR) * HOUR for _ in range(ticks))
    at = {}
    for i, now in zip(when, nows, strict=True):
        at.setdefault(i, []).append(now)
    folder = tmp_path_factory.mktemp("order") / "agent"
    shutil.copytree(fresh, folder)
    found = told(folder, batches, {r.randrange(len(batches)) for _ in range(restarts)}, at)
    shutil.rmtree(folder)
    assert differs(found) == []
