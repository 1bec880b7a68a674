"""Rules of whole days over restarts: the agent says the same, and remembers the same, as one that never stopped."""

import json
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from monitor.agent import Agent
from monitor.config import load
from monitor.core.baseline import build, to_json
from monitor.core.events import DAY, HOUR
from monitor.core.tables import LABEL, ROW
from monitor.formats import decode
from monitor.watched import baseline_checksum, read_baseline

DAY0, DAYS = 19_000, 36
OFF = [0.0] * 4 + [1.5] * 5 + [-1.5] * 6 + [0.8, -0.8] * 20
"""By how much true logits are above those of the scores of the live version."""
CONFIG = """\
state: state
clock: events
tick: 1d
models:
  m:
    threshold: 0.5
    segments: [country]
    baseline: baseline.json
    labels: {horizon: 24h, corrections: 10d}
    false_alarms_per_year: {warning: 100}
    versions: {v2: canary}
"""


@pytest.fixture(scope="module", params=[20, 5])
def begun(tmp_path_factory, request):
    """Return a folder with a configuration, a baseline of 20 days, or of 5 so that how days differ is learnt from live ones."""
    folder, rng, n = tmp_path_factory.mktemp("begun"), np.random.default_rng(1), 200 * request.param
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["ts"], rows["score"] = (DAY0 - request.param) * DAY + np.arange(n) * (DAY // 200), rng.random(n)
    rows["combo"] = np.arange(n) % 2
    labels["outcome"] = rng.random(n) < rows["score"]
    combos = [(("country", "DE"),), (("country", "FR"),)]
    made = build("m", "v1", ("country",), rows, labels, combos, {"kind": "validation"})
    (folder / "baseline.json").write_text(to_json(replace(made, checksum=baseline_checksum(made))))
    (folder / "config.yaml").write_text(CONFIG)
    opened(folder).store.close()  # draws the key for hashes
    return folder


@pytest.fixture(scope="module")
def batches():
    """Return the events that come on each day: some labels come late and are corrected, logits are off for both versions."""
    rng = np.random.default_rng(2)
    out = [[] for _ in range(DAYS + 12)]
    for day in range(DAYS):
        for i in range(160):
            version, p = "v1" if i % 2 else "v2", rng.random()
            off = OFF[day] if version == "v1" else -1.0 * (day >= 8)
            ts = (DAY0 + day) * DAY + i * (DAY // 200)
            common = {"id": f"{day}-{i}", "model": "m"}
            segments = {"country": "DE" if rng.random() < 0.5 else "FR"}
            out[day].append({**common, "ts": ts, "version": version, "score": p, "segments": segments})
            label = int(rng.random() < 1 / (1 + (1 - p) / p * np.exp(-off)))
            late = 2 + int(rng.integers(6)) if rng.random() < 0.1 else 0
            out[day + late].append({**common, "ts": ts + HOUR, "label": label})
    return out[:DAYS]


def opened(folder):
    """Return an agent whose clock begins before all events."""
    agent = Agent(load(folder / "config.yaml"), "test", durable=False)
    agent.clock.begin(DAY0 * DAY)
    return agent


def told(begun, folder, batches, restarts):
    """Return the journal and what looks remember; a restart (day, True) is between its events and its tick, else after it."""
    shutil.copytree(begun, folder)
    agent = opened(folder)
    for day, batch in enumerate(batches):
        if batch:
            body = "\n".join(map(json.dumps, batch)).encode()
            agent.ingest([decode(agent.decoder(), body, "events", "application/x-ndjson")])
        for before in (True, False):
            if (day, before) in restarts:
                agent.store.close()
                agent = opened(folder)
            if before:
                agent.clock.last = (DAY0 + day + 1) * DAY
                agent.tick(agent.clock.last)
    said = [(e.at, e.kind, e.version, e.body) for e in agent.store.log.journal()]
    looks = {w.version: msgspec.msgpack.decode(w.looks.dump(), strict=False) for w in agent.watched.values()}
    agent.store.close()
    shutil.rmtree(folder)
    return said, looks


@pytest.fixture(scope="module")
def expected(begun, batches, tmp_path_factory):
    """Return what an agent says that never stops; alerts of both versions fire, and where nothing is learnt some resolve."""
    said, looks = told(begun, tmp_path_factory.mktemp("expected") / "agent", batches, set())
    alerts = {(version, body["rule"], body["state"]) for _, kind, version, body in said if kind == "alert"}
    assert ("v2", "canary", "firing") in alerts
    if len(read_baseline(begun / "baseline.json").days["all"]) == 20:
        assert alerts >= {("v1", "calibration_drift", "firing"), ("v1", "calibration_drift", "resolved")}
    assert {"calibration_drift", "score_drift"} <= looks["v1"]["evidence"].keys()
    return said, looks


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_restarts_change_nothing(begun, batches, expected, tmp_path, share):
    """With few or many restarts, before and after ticks, alerts come at the same time in the same words, on equal evidence."""
    rng = np.random.default_rng(3)
    restarts = {(day, before) for day in range(DAYS) for before in (True, False) if rng.random() < share}
    assert told(begun, tmp_path / "agent", batches, restarts) == expected


def test_evidence_ends_with_the_alert_of_a_version_that_goes_away(begun, batches, tmp_path):
    """A version that is back after weeks is not blamed for what was found before them."""
    some = [batch if day < 9 or day >= 27 else [] for day, batch in enumerate(batches)]
    said, looks = told(begun, tmp_path / "agent", some[:30], set())
    gone = {(version, body["rule"]) for _, kind, version, body in said if kind == "alert" and body["reason"] == "version_gone"}
    assert ("v2", "canary") in gone
    evidence = [(e, version, name) for version, at in looks.items() for name, e in at["evidence"].items()]
    since = [e["since"] for e, *found in evidence if tuple(found) in gone or (found[0], "canary") in gone]
    assert len(since) > 0
    assert min(since) >= DAY0 + 27


def test_evidence_that_cannot_be_read_is_made_anew(begun, batches, tmp_path, caplog):
    """An agent whose evidence is damaged starts, says so, and has it again from the tables of the days."""
    shutil.copytree(begun, tmp_path / "agent")
    agent = opened(tmp_path / "agent")
    for day, batch in enumerate(batches[:8]):
        if day == 6:
            with agent.store.log.transaction():
                agent.store.log.set_meta({"looks:0": b"damaged"})
            agent.store.close()
            agent = opened(tmp_path / "agent")
            assert "the evidence cannot be read" in caplog.text
        agent.ingest([decode(agent.decoder(), "\n".join(map(json.dumps, batch)).encode(), "events", "application/x-ndjson")])
        agent.clock.last = (DAY0 + day + 1) * DAY
        agent.tick(agent.clock.last)
    assert {w.version: (w.looks.mature, w.looks.ended) for w in agent.watched.values()} == dict.fromkeys(
        ("v1", "v2"), (DAY0 + 6, DAY0 + 7)
    )
    agent.store.close()


def test_a_clock_that_was_ahead_for_a_while_blinds_no_detector(begun, batches, tmp_path):
    """Days that ended only by a clock a year ahead are looked at when they really end."""
    shutil.copytree(begun, tmp_path / "agent")
    agent = opened(tmp_path / "agent")
    for day, batch in enumerate(batches[:6]):
        agent.ingest([decode(agent.decoder(), "\n".join(map(json.dumps, batch)).encode(), "events", "application/x-ndjson")])
        agent.clock.last = (DAY0 + day + 1) * DAY
        agent.tick(agent.clock.last)
        assert {w.looks.ended for w in agent.watched.values()} == {DAY0 + day}
        if day == 3:
            for w in agent.watched.values():
                w.looks.ended += 365
    agent.store.close()
