"""The main job on real flights: the same right numbers whichever way the events come in."""

import calendar
import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from monitor import run
from monitor.config import load
from monitor.core import baseline as baselines
from monitor.core import detectors
from monitor.core.metrics import METRICS
from monitor.core.rules import SHIPPED
from monitor.demo import script
from monitor.demo.flights import LIVE, MODEL, VERSION, flights
from monitor.demo.script import Client
from monitor.formats import decode
from monitor.sources import file
from rows import at
from traffic import Program

COLUMNS = ("prevalence", "mean_score", "brier", "log_loss", "ece_width10")
FACTS = {
    "2013-03": (27800, 0.2281, 0.2143, 0.1569, 0.4855, 0.014, 0.71),
    "2013-04": (27587, 0.2802, 0.1846, 0.1981, 0.6005, 0.0956, 0.636),
    "2013-05": (28119, 0.2193, 0.228, 0.1519, 0.4734, 0.0128, 0.7128),
    "2013-06": (27075, 0.306, 0.2662, 0.1954, 0.5783, 0.0403, 0.6807),
    "2013-07": (28280, 0.3166, 0.2581, 0.1999, 0.5894, 0.0587, 0.6809),
    "2013-08": (28810, 0.2384, 0.2514, 0.1708, 0.5198, 0.0295, 0.6665),
    "2013-09": (26966, 0.1324, 0.223, 0.1254, 0.4119, 0.0906, 0.6372),
    "2013-10": (28635, 0.1671, 0.2217, 0.1429, 0.4541, 0.0593, 0.6355),
    "2013-11": (26901, 0.1743, 0.1994, 0.1403, 0.4491, 0.0341, 0.6504),
    "2013-12": (27080, 0.3251, 0.2362, 0.2047, 0.6036, 0.089, 0.689),
    "2014-01": (84, 0.2262, 0.2516, 0.1704, 0.5188, 0.0358, 0.6296),
}
"""Of all flights of a month whose outcome is known: n, prevalence, mean score, Brier, log loss, ECE of ten equal bins, AUC, as
scikit-learn and numpy say from the rows."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with the flights as files, the baseline and the configuration."""
    folder = tmp_path_factory.mktemp("flights")
    script.write_files(folder)
    head = "id,ts,model,version,score,origin,carrier,label\n"
    predictions = (folder / "predictions.csv").read_text().splitlines()[1:]
    labels = (folder / "labels.csv").read_text().splitlines()[1:]
    rows = [(int(line.split(",")[1]), 0, line + ",") for line in predictions]
    for line in labels:
        ident, ts, model, label = line.split(",")
        rows.append((int(ts), 1, f"{ident},{ts},{model},,,,,{label}"))
    rows.sort(key=lambda row: row[:2])
    (folder / "merged.csv").write_text(head + "\n".join(row[2] for row in rows) + "\n")
    return folder


def replay(folder, *names, options=("--json",)):
    """Return the output of `scorewatch replay` over files of the folder."""
    command = [
        sys.executable,
        "-m",
        "monitor",
        "replay",
        "--config",
        folder / "demo.yaml",
        *options,
        *(folder / n for n in names),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def timeline(files):
    """Return the timeline of a replay of separate files, as text."""
    return replay(files, "predictions.csv", "labels.csv")


def items(text):
    """Return the timeline items of a JSON replay."""
    return [json.loads(line) for line in text.splitlines()]


def months_of(found):
    """Return {month: {name: value}} of timeline items."""
    return {
        i["month"]: {"n": i["n"]} | {k: e.get("value") for k, e in i["estimates"].items()} for i in found if i["kind"] == "month"
    }


def test_months_are_the_known_facts(timeline):
    """Each month has the n, prevalence, mean score, Brier, log loss and ECE that scikit-learn and numpy found, and their AUC."""
    found = months_of(items(timeline))
    assert list(found) == list(FACTS)
    for month, (n, *values, auc) in FACTS.items():
        have = found[month]
        assert have["n"] == n, month
        for name, value in zip(COLUMNS, values, strict=True):
            assert have[name] == pytest.approx(value, abs=1e-4), (month, name)
        assert have["roc_auc"] == pytest.approx(auc, abs=6e-3 if month == "2014-01" else 2.5e-4), month


def test_the_known_facts_are_those_of_the_data(shared):
    """The table in this file is the one that was published with the data."""
    text = (shared / "data/flights2013/README.md").read_text()
    table = text.split("### flights2013/late15 by month")[1].split("###")[0]
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]
    cells = {c[0]: list(map(float, c[1:9])) for c in lines if re.fullmatch(r"\d{4}-\d\d", c[0])}
    assert {
        m: (n, base, score, brier, loss, ece, auc) for m, (n, base, score, _, auc, brier, loss, ece) in cells.items()
    } == FACTS


def test_auc_is_within_its_tolerance_of_scikit_learn(timeline):
    """AUC from the bins is within 2e-4 of the exact one in each month; of 2014-01 (84 rows) within a tenth of its error."""
    from sklearn.metrics import roc_auc_score

    found = months_of(items(timeline))
    rows = {}
    for f in flights():
        if f.late is not None:
            rows.setdefault(time.strftime("%Y-%m", time.gmtime(f.scheduled)), []).append((f.late, float(f.score)))
    for month, pairs in rows.items():
        late, score = zip(*pairs, strict=True)
        exact = roc_auc_score(late, score)
        estimate = next(i for i in items(timeline) if i.get("month") == month)["estimates"]["roc_auc"]
        error = (estimate["high"] - estimate["low"]) / (2 * 1.96)
        assert found[month]["roc_auc"] == pytest.approx(exact, abs=2e-4 if len(pairs) > 1000 else error / 10), month


def test_shipped_flights_are_the_original_ones(shared):
    """The compressed table in the package holds the rows of the original, value for value."""
    pandas = pytest.importorskip("pandas")
    original = pandas.read_parquet(shared / "data/flights2013/late15.parquet")
    ours = flights()
    assert len(ours) == len(original)
    seconds = original.pred_time.astype("datetime64[s]").astype("int64").tolist()
    assert [f.scheduled for f in ours] == seconds
    assert [float(f.score) for f in ours] == original.score.astype(str).astype(float).tolist()
    assert [f.late for f in ours] == [None if pandas.isna(v) else int(v) for v in original.label]
    assert [f"{f.origin}{f.carrier}" for f in ours] == (original.origin.astype(str) + original.carrier.astype(str)).tolist()


@pytest.mark.parametrize("names", [("labels.csv", "predictions.csv"), ("merged.csv",)])
def test_files_in_any_arrangement_give_the_same_timeline(files, timeline, names):
    """Predictions and labels apart in either order, or merged: the same timeline to the byte."""
    assert replay(files, *names) == timeline


@pytest.mark.parametrize("size", [3_000, 400_000])
def test_the_size_of_reads_changes_nothing(files, timeline, monkeypatch, capsys, size):
    """Reads of a few lines or of ten thousand give the same timeline to the byte."""
    from monitor import cli

    monkeypatch.setattr(file, "_CHUNK", size)
    code = cli.main(
        ["replay", "--config", str(files / "demo.yaml"), "--json", str(files / "predictions.csv"), str(files / "labels.csv")]
    )
    assert (code, capsys.readouterr().out) == (0, timeline)


def within(alerts, day):
    """Return whether the calibration alert was firing at the start of the day."""
    states = [a["state"] for a in alerts if a["at"][:10] <= day]
    return bool(states) and states[-1] == "firing"


def test_the_calibration_alert_fires_when_calibration_breaks(timeline):
    """It fires late in April, in July, from mid-September to October and from late December, and resolves in between."""
    alerts = [i for i in items(timeline) if i["kind"] == "alert" and i["rule"] == "calibration"]
    assert min(a["at"] for a in alerts) >= "2013-04-20"
    firing = [
        "2013-04-25",
        "2013-04-30",
        "2013-07-15",
        "2013-07-31",
        "2013-09-15",
        "2013-10-01",
        "2013-10-31",
        "2013-12-22",
        "2013-12-31",
    ]
    quiet = ["2013-04-20", "2013-05-26", "2013-06-15", "2013-08-15", "2013-09-01", "2013-11-15", "2013-12-10"]
    assert {d: within(alerts, d) for d in firing + quiet} == dict.fromkeys(firing, True) | dict.fromkeys(quiet, False)


def firing(found, rule):
    """Return [(first day, last day or None)] of the alerts of a rule."""
    states = [(i["state"], i["at"][:10]) for i in found if i["kind"] == "alert" and i["rule"] == rule]
    assert [state for state, _ in states] == (["firing", "resolved"] * len(states))[: len(states)]
    days = [day for _, day in states]
    return list(zip(days[::2], [*days[1::2], None], strict=False))


@pytest.fixture(scope="module")
def days_of(files, tmp_path_factory):
    """Return the final tables of all days, of March from the baseline, and the alerts of the calibration detector alone."""
    folder = tmp_path_factory.mktemp("detector")
    promised = baselines.from_json((files / "baseline.json").read_text())
    one = replace(promised, segments=(), slices=("all",), days={"all": promised.days["all"]}, checksum="")
    (folder / "baseline.json").write_text(baselines.to_json(one))
    text = (files / "demo.yaml").read_text().replace("segments: [origin, carrier]", "segments: []")
    tree = yaml.safe_load(text)
    (model,) = tree["models"].values()
    model |= {"baseline": str(folder / "baseline.json"), "false_alarms_per_year": {"warning": 1}}
    model["rules"] = dict.fromkeys((name for name in SHIPPED if name != "calibration_drift"), "off")
    tree["state"], tree["clock"] = str(folder / "state"), "events"
    kinds = ("predictions", "labels")
    tree["sources"] = [{"file": {"path": str(files / f"{kind}.csv"), "kind": kind, "follow": False}} for kind in kinds]
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    found = []
    config = load(folder / "config.yaml")
    run.replay(config, "test", found.append, False, False)
    return promised.days["all"], found, config


def test_the_calibration_detector_finds_spring_and_autumn(days_of):
    """At one false alarm a year it fires in late April and in September, and not in summer."""
    first, second, *_ = firing(days_of[1], "calibration_drift")
    assert "2013-04-20" <= first[0] <= "2013-05-05"
    assert first[1] <= "2013-06-05"
    assert "2013-09-05" <= second[0] <= "2013-10-05"
    assert second[1] <= "2013-11-25"


def test_years_of_the_days_of_march_stay_within_the_budget(days_of):
    """Of years whose days are drawn from March with replacement at most 63 % alarm, as one false alarm a year allows."""
    days, _, config = days_of
    (model,) = config.models.values()
    (rule,) = model.rules
    rules = model.labels.rules
    nulls = detectors.nulls({"all": days}, at(model.threshold), rules)
    rng, alarmed = np.random.default_rng(1), 0
    for _ in range(20):
        evidence = None
        for day, k in enumerate(rng.choice(sorted(days), 365).tolist()):
            evidence = detectors.look("calibration", evidence, day, {"all": days[k]}, nulls, rules, rule.fires[1].high)
            if detectors.log_evidence(evidence) > rule.fires[1].high:
                alarmed += 1
                break
    assert alarmed <= 12


def test_a_replay_for_people_has_a_line_per_month(files):
    """Without --json each month is one line, and alerts are lines between them."""
    text = replay(files, "predictions.csv", "labels.csv", options=())
    assert [line[:7] for line in text.splitlines() if re.match(r"\d{4}-\d\d ", line)] == [
        f"2013-{m:02d}" for m in range(3, 13)
    ] + ["2014-01"]
    assert text.count("calibration firing") == 4


def stream(agent, of, size):
    """Post flights in one time order, predictions and labels apart, `size` events at a time."""
    client = Client(agent.api)
    events = [(f.scheduled, 0, f) for f in of] + [(f.arrived, 1, f) for f in of if f.arrived is not None]
    events.sort(key=lambda e: e[:2])
    for i in range(0, len(events), size):
        part = events[i : i + size]
        predictions = [
            {"id": f.id, "ts": ts, "model": MODEL, "version": VERSION, "score": float(f.score)}
            for ts, kind, f in part
            if kind == 0
        ]
        labels = [{"id": f.id, "ts": ts, "model": MODEL, "label": f.late} for ts, kind, f in part if kind == 1]
        for kind, batch in (("predictions", predictions), ("labels", labels)):
            if batch:
                client.send(kind, batch)
    client.send("labels", [{"now": events[-1][0] + 3 * 86_400}])
    client.connection.close()


CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  flights: {labels: {horizon: 24h}}
"""


def of_months(agent):
    """Return the months that the agent reports, without what needs a baseline or a threshold."""
    status, found, _ = agent.ask("/v1/models/flights/days?by=month")
    assert status == 200
    return {m: {k: v for k, v in e.items() if k in (*COLUMNS, "n", "roc_auc")} for m, e in months_of(found).items()}


@pytest.mark.parametrize("size", [100, 10_000])
def test_http_gives_the_same_numbers(agent, timeline, size):
    """Streamed over HTTP in batches of any size, labels up to a batch late: the same months."""
    a = agent(CONFIG)
    cut = 1_372_636_800 if size == 100 else 2**40  # July for the small batches, which take long
    stream(a, [f for f in flights() if f.scheduled < cut], size)
    expected = {m: {k: e[k] for k in (*COLUMNS, "n", "roc_auc")} for m, e in months_of(items(timeline)).items()}
    found = of_months(a)
    assert found == {m: expected[m] for m in found}
    assert len(found) == (4 if size == 100 else 11)


def test_http_one_event_at_a_time_gives_the_same_days(agent, files, tmp_path):
    """Four days of flights, one event a request, are counted as from files."""
    some = [f for f in flights() if f.scheduled < 1_362_441_600]
    a = agent(CONFIG)
    stream(a, some, 1)
    head, *lines = (files / "predictions.csv").read_text().splitlines()
    ids = {f.id for f in some}
    (tmp_path / "p.csv").write_text("\n".join([head, *(line for line in lines if line.split(",")[0] in ids)]) + "\n")
    head, *lines = (files / "labels.csv").read_text().splitlines()
    (tmp_path / "l.csv").write_text("\n".join([head, *(line for line in lines if line.split(",")[0] in ids)]) + "\n")
    for name in ("demo.yaml", "baseline.json"):
        (tmp_path / name).write_text((files / name).read_text())
    expected = months_of(items(replay(tmp_path, "p.csv", "l.csv")))
    found = of_months(a)
    assert found == {m: {k: e[k] for k in found[m]} for m, e in expected.items()}
    assert found["2013-03"]["n"] == len([f for f in some if f.late is not None])


def test_killed_half_way_nothing_changes(agent, files, timeline):
    """Killed twice while it reads files and started again, the agent ends with the same months and the same alerts."""
    config = (files / "demo.yaml").read_text()
    config = config.replace("baseline: baseline.json", f"baseline: {files}/baseline.json").replace("mode: auto", "mode: off")
    config += f"sources:\n- http: {{}}\n- file: {{path: {files}/labels.csv}}\n- file: {{path: {files}/predictions.csv}}\n"
    a = agent(config)
    for month in ("2013-05", "2013-08"):
        wait_for_day(a, f"{month}-15")
        a.stop(signal.SIGKILL)
        a.start()
    wait_for_day(a, "2013-12-30")
    last = flights()[-1].scheduled
    deadline = time.monotonic() + 60
    while len(of_months(a)) < 11 and time.monotonic() < deadline:
        a.now(last + 3 * 86_400)
    expected = {m: {k: e[k] for k in (*COLUMNS, "n", "roc_auc")} for m, e in months_of(items(timeline)).items()}
    assert of_months(a) == expected
    assert a.stop() == 0
    log = subprocess.run(
        [sys.executable, "-m", "monitor", "log", "--json", "--config", a.config], check=True, capture_output=True, text=True
    )
    alerts = [(e["at"] // 1000, e["body"]["state"]) for e in map(json.loads, log.stdout.splitlines()) if e["kind"] == "alert"]
    said = [i for i in items(timeline) if i["kind"] == "alert" and i["reason"] != "version_gone"]
    assert alerts[: len(said)] == [
        (int(time.mktime(time.strptime(i["at"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone), i["state"]) for i in said
    ]


NOON = """\
state: state
clock: events
models:
  flights: {labels: {horizon: 24h}, threshold: 0.01}
"""
OUTCOMES = [name for name, metric in METRICS.items() if metric.outcomes]


def test_no_outcome_of_yesterday_or_today_is_shown(shared, tmp_path):
    """Of very late flights (1 in 80), looked at every noon for five weeks, only days whose horizon has passed are measured.

    On the first two days no outcome series exists. Later every one is that of the days up to the day before yesterday, with
    all of their labels: what is shown once stays.
    """
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(shared / "data/flights2013/late180_rare.parquet").to_pylist()
    first, days = 15_765, 35  # 2013-03-01
    events = {}
    final = {}
    for r in rows:
        at = calendar.timegm(r["pred_time"].timetuple())
        if at // 86_400 >= first + days:
            continue
        predicted = {"id": str(r["id"]), "ts": at, "model": MODEL, "version": VERSION, "score": r["score"]}
        events.setdefault(at // 3_600, []).append(("predictions", predicted))
        if r["label"] is not None:
            known = calendar.timegm(r["label_time"].timetuple())
            events.setdefault(known // 3_600, []).append(("labels", {"id": str(r["id"]), "ts": known, "label": r["label"]}))
            final.setdefault(at // 86_400, []).append(r["label"])
    p = Program(tmp_path, NOON)
    decoder = p.agent.decoder()
    measured = 0
    for hour in range(first * 24, (first + days) * 24):
        if hour % 24 == 12:
            p.now(hour * 3_600_000)
            p.agent.publish()
            text = p.agent.exporter.text.decode()
            last = hour // 24 - 2
            shown = {name: re.findall(rf'^scorewatch_{name}{{.*window="7d".*}} (.+)$', text, re.MULTILINE) for name in OUTCOMES}
            if last < first:
                assert shown == {name: [] for name in OUTCOMES}
            else:
                true = [y for day in range(max(first, last - 6), last + 1) for y in final[day]]
                assert [float(v) for v in shown["prevalence"]] == [pytest.approx(sum(true) / len(true), abs=1e-6)], hour
                measured += 1
        for kind in ("predictions", "labels"):
            if batch := [e for k, e in events.get(hour, []) if k == kind]:
                receipt = p.loop._by_events(decode(decoder, json.dumps(batch).encode(), kind))
                assert receipt.rejected == ()
    p.loop.close()
    assert measured == 33


def wait_for_day(a, day):
    """Wait until the agent's clock has reached a day."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        at = a.ask("/v1/state")[1]["at"]
        if at is not None and at[:10] >= day:
            return
        time.sleep(0.1)
    raise AssertionError(f"the agent did not reach {day}: {a.log.read_text()}")


def test_demo_tells_the_story(tmp_path, timeline):
    """The demo ends with 0; its alerts fire and resolve in their weeks, the careless threshold is rolled back within a day."""
    done = subprocess.run(
        [sys.executable, "-m", "monitor", "demo", "--exit", "--speed", "0"],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    alerts = [
        {"at": m[2], "rule": m[3], "state": m[4]}
        for line in lines
        if (m := re.match(r"  (▲|▽) (\S+ \S+)  flights \S+ (\S+) (firing|resolved)", line))
    ]
    calibration = [a for a in alerts if a["rule"] == "calibration"]
    firing = ["2013-04-25", "2013-04-30", "2013-07-20", "2013-09-16", "2013-10-31", "2013-12-22", "2013-12-31"]
    quiet = ["2013-05-26", "2013-08-15", "2013-11-15"]
    assert {d: within(calibration, d) for d in firing + quiet} == dict.fromkeys(firing, True) | dict.fromkeys(quiet, False)
    replayed = [i for i in items(timeline) if i["kind"] == "alert" and i["reason"] != "version_gone"]
    assert [(a["at"], a["state"]) for a in calibration] == [(i["at"][:16].replace("T", " "), i["state"]) for i in replayed]
    volume = [a["at"] for a in alerts if a["rule"] == "policy_volume" and a["state"] == "firing"]
    back = [line for line in lines if "rolled back to policy" in line and line.startswith("  ◆")]
    assert len(volume) == len(back) == 1
    assert "2013-06-15 00:00" < volume[0] < "2013-06-16 00:00"
    assert "; 0 rejected." in done.stdout
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert [line for line in lines[3:] if line and " events in " not in line and line not in readme] == []
    assert list(tmp_path.iterdir()) == []


def test_shipped_configurations_are_valid(files):
    """What the demo and replay run is a valid configuration of every default."""
    config = load(files / "demo.yaml")
    assert (config.clock, config.models[MODEL].threshold, LIVE) == ("events", pytest.approx(0.239, abs=1e-3), 1_364_774_400)
    assert csv.DictReader(io.StringIO((files / "predictions.csv").read_text())).fieldnames[:5] == [
        "id",
        "ts",
        "model",
        "version",
        "score",
    ]
