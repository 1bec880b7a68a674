"""Features in the program: configured, coded at the door, kept over restarts, compared with the baseline, said over HTTP."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from monitor import verify
from monitor.agent import Agent
from monitor.config import load
from monitor.core.baseline import build, to_json
from monitor.core.events import DAY, HOUR
from monitor.core.features import encode, freeze, placed
from monitor.core.tables import FEATURE_MISSING, FEATURE_UNSEEN, LABEL, ROW
from monitor.server import inputs_of
from monitor.store import StateError
from monitor.watched import baseline_checksum
from test_agent import CONFIG, DAY0, Program

MORE = "baseline: baseline.json\n    features: [amount, channel]\n    segments: [country]\n    mode: auto"


def raw(rng, n):
    """Return n raw features."""
    amounts, channels = rng.lognormal(3, 1, n).tolist(), rng.choice(["web", "app"], n).tolist()
    return [{"amount": a, "channel": c, "unused": i} for i, (a, c) in enumerate(zip(amounts, channels, strict=True))]


def write_baseline(path, features=None, n=4_000):
    """Write a baseline of the ten days before DAY0, with the features it froze unless others are given."""
    rng = np.random.default_rng(5)
    said = raw(rng, n)
    features = features or {name: freeze([e[name] for e in said]) for name in ("unused", "channel", "amount")}
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["ts"], rows["score"] = (DAY0 - 10) * DAY + np.arange(n) * (10 * DAY // n), rng.random(n).round(3)
    rows["combo"], rows["features"] = np.arange(n) % 2, encode(placed(features, features), said)
    labels["outcome"] = rng.random(n) < rows["score"]
    combos = [(("country", "DE"),), (("country", "FR"),)]
    made = build("m", "v1", ("country",), rows, labels, combos, {"kind": "validation"}, features)
    path.write_text(to_json(replace(made, checksum=baseline_checksum(made))))


def events(day, n=400, change=lambda said: said, countries=("DE", "FR")):
    """Return n predictions of a day; `change` is what happens to their features on the way."""
    rng = np.random.default_rng(day)
    ts = ((DAY0 + day) * DAY + np.sort(rng.integers(0, DAY - 2 * HOUR, n))).tolist()
    common = {"model": "m", "version": "v1"}
    return [
        {**common, "id": f"{day}-{i}", "ts": t, "score": s, "segments": {"country": countries[i % 2]}, "features": change(f)}
        for i, (t, s, f) in enumerate(zip(ts, rng.random(n).round(3).tolist(), raw(rng, n), strict=True))
    ]


@pytest.fixture
def program(tmp_path):
    """Return a program whose model has a baseline with features; its files are closed at the end."""
    write_baseline(tmp_path / "baseline.json")
    p = Program(tmp_path, MORE)
    yield p
    p.loop.close()


def windows(p):
    """Return what is said of the inputs of v1 by window."""
    p.agent.publish()
    (v,) = p.agent.snapshot.versions
    return inputs_of(v)["windows"]


def lose(said):
    """Take the amount away and rename a channel."""
    return {"channel": {"web": "kiosk"}.get(said["channel"], said["channel"])}


def test_rows_hold_codes_at_the_place_in_the_baseline(program):
    """A row has the codes of the configured features where the baseline has them, and nothing of the others or of raw values."""
    sent = [*events(0, 3), {**events(1, 1)[0], "features": {"channel": "kiosk"}}, {**events(2, 1)[0], "features": None}]
    program.send("predictions", sent)
    (rows,) = program.agent.store.rows_since(0)
    features = program.agent.baselines["m"].features
    expected = encode(placed(features, ("amount", "channel")), [e["features"] for e in sent])
    np.testing.assert_array_equal(rows["features"], expected)
    assert (list(features), rows["features"][:, 0].any()) == (["unused", "channel", "amount"], False)
    assert rows["features"][3:, 1:3].tolist() == [[FEATURE_UNSEEN, FEATURE_MISSING], [0, 0]]


def test_what_changed_is_told_and_survives_a_restart(program):
    """Days as in the baseline show nothing; then a lost feature, a new value and a lost country show, after a restart as well."""
    for day in range(3):
        program.send("predictions", events(day))
    program.now(3)
    calm = windows(program)["24h"]
    assert all(f["psi"] < 2.5 * f["psi_null"] for f in calm["features"].values())
    assert calm["features"].keys() == {"amount", "channel"}
    assert all(f[what]["share"] == 0 for f in calm["features"].values() for what in ("missing", "unseen"))
    assert calm["segments"]["country"]["psi"] < 1e-4
    program.send("predictions", events(3, change=lose, countries=("DE", "DE")))
    program.now(5.1)
    found = windows(program)
    day = found["day"]
    assert (day["day"], found["24h"]["features"]["amount"]) == ("2013-10-25", {"n": 0, "reason": "no_events", "bins": []})
    assert day["features"]["amount"]["reason"] == "no_values"
    assert (day["features"]["amount"]["missing"]["share"], day["features"]["amount"]["missing"]["baseline"]) == (1.0, 0.0)
    assert day["features"]["channel"]["unseen"]["low"] > 0.4
    assert [s["share"] for s in day["segments"]["country"]["slices"]] == [1.0, 0.0, 0.0]
    assert found["28d"]["features"]["amount"]["missing"]["share"] == 0.25
    assert found["28d"]["segments"]["country"]["n"] == 1_600
    assert 'scorewatch_feature_missing_increase_max{model="m",role="live",slice="all",version="v1",window="28d"} 0.25' in (
        program.agent.exporter.text.decode()
    )
    program.again()
    program.agent.tick(program.agent.clock.last)
    assert windows(program) == found
    report = verify.report(map(asdict, program.agent.verify(live=True)))
    assert (report["equal"], report["versions"][0]["equal"]) == (True, 2)


def test_a_changed_count_is_found(program):
    """`verify` names the part of a table whose features are not what the rows say."""
    program.send("predictions", events(0))
    program.now(2.1)
    store = program.agent.store
    kept = store.log.day(0, DAY0)
    kept["all"].features[1, 1] += 1
    with store.log.transaction():
        store.log.put_day(0, DAY0, kept)
    report = verify.report(map(asdict, program.agent.verify(live=False)))
    assert [(d["part"], d["slice"], d["what"].split(":")[0]) for d in report["differences"]] == [
        ("2013-10-22", "all", "features")
    ]


def test_codes_of_another_baseline_are_not_compared(program):
    """After a baseline with other features only hours and days that came under it are read; a restart cuts nothing."""
    write = program.path.parent / "baseline.json"
    for day in range(3):
        program.send("predictions", events(day))
    program.now(3)
    before = windows(program)["24h"]["features"]
    write_baseline(write, n=3_999)
    program.again()
    program.now(3.05)
    cut = windows(program)
    assert all(f == {"n": 0, "reason": "no_events", "bins": []} for w in cut.values() for f in w["features"].values())
    assert cut["24h"]["segments"]["country"]["n"] > 300
    program.send("predictions", events(3))
    program.again()
    program.now(5.1)
    after = windows(program)
    assert after["28d"]["features"]["amount"]["n"] == 400 == before["amount"]["n"]
    assert after["28d"]["features"]["amount"]["psi"] < 2.5 * after["28d"]["features"]["amount"]["psi_null"]
    assert after["28d"]["segments"]["country"]["n"] == 1_600


def test_rows_that_do_not_wait_are_counted(tmp_path):
    """Features of predictions for which there is no room to wait are in the tables as those of all others."""
    write_baseline(tmp_path / "baseline.json")
    p = Program(tmp_path, MORE, models="waiting: {rows: 500}\n")
    for day in range(3):
        p.send("predictions", events(day))
    p.now(3)
    assert p.agent.store.tail - p.agent.store.head <= 500
    assert windows(p)["24h"]["features"]["amount"]["n"] == 400
    assert windows(p)["day"]["features"]["channel"]["n"] == 400
    assert verify.report(map(asdict, p.agent.verify(live=True)))["equal"]
    p.loop.close()


def test_without_a_baseline(tmp_path):
    """Without a baseline that froze them features are passed over, whatever they hold, and each says no_baseline."""
    p = Program(tmp_path, "features: [amount]")
    p.send("predictions", [e | {"features": {"amount": []}} for e in events(0)])
    p.now(0.99)
    assert windows(p)["24h"]["features"] == {"amount": {"n": 0, "reason": "no_baseline", "bins": []}}
    p.now(2.5)
    assert windows(p)["28d"]["features"]["amount"]["reason"] == "no_baseline"
    (rows,) = p.agent.store.rows_since(0)
    assert not rows["features"].any()
    p.loop.close()


def test_a_feature_that_the_baseline_has_not(tmp_path):
    """A configured feature that was not frozen is an error at start that names file, key and remedy."""
    write_baseline(tmp_path / "baseline.json")
    (tmp_path / "config.yaml").write_text(
        "state: state\nmodels: {m: {baseline: baseline.json, features: [amount, age], segments: [country]}}"
    )
    with pytest.raises(StateError) as e:
        Agent(load(tmp_path / "config.yaml"), "test", durable=False)
    assert str(e.value) == (
        f"{tmp_path / 'baseline.json'}: has no feature 'age' (it has unused, channel, amount); "
        "take it out of models.m.features or build the baseline with it"
    )


def test_over_http(agent, tmp_path):
    """A real agent takes features in its formats, rejects a list among them by index, and says what it saw of them."""
    (tmp_path / "agent").mkdir()
    write_baseline(tmp_path / "agent" / "baseline.json")
    listen = "api: 127.0.0.1:0\nmetrics: 127.0.0.1:0\n"
    a = agent(listen + CONFIG.format(more=MORE))
    sent = events(0)
    bad = {**sent[-1], "id": "bad", "features": {"amount": [1]}}
    receipt = a.post("predictions", [*sent[:200], bad])
    assert [(r["index"], r["reason"], r["detail"]) for r in receipt["rejected"]] == [(200, "type", "features.amount: [1]")]
    columns = {name: [e[name] for e in sent[200:]] for name in ("id", "ts", "score", "segments")}
    columns["features"] = {name: [e["features"][name] for e in sent[200:]] for name in ("amount", "channel")}
    assert a.post("predictions", columns | {"model": "m", "version": "v1"})["accepted"] == 200
    a.now((DAY0 + 1) * DAY)
    found = a.ask("/v1/models/m/features")[1]
    assert (found["model"], found["version"], found["role"]) == ("m", "v1", "live")
    amount = found["windows"]["24h"]["features"]["amount"]
    assert (amount["n"], amount["missing"]["share"], len(amount["bins"])) == (400, 0.0, 20)
    assert sum(b["share"] for b in amount["bins"]) == pytest.approx(1)
    worst = max(f["psi"] for f in found["windows"]["24h"]["features"].values())
    assert worst == pytest.approx(a.gauge("scorewatch_feature_psi_max", window="24h"), rel=1e-12)
    assert (a.ask("/v1/models/x/features")[0], a.ask("/v1/models/m/features?version=v2")[0]) == (404, 404)
