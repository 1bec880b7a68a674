"""What Prometheus sees of a real agent, from its first moment to a firing alert; and the shipped rules and dashboard over it."""

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from itertools import chain
from pathlib import Path

import numpy as np
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from monitor.core import baseline as baselines
from monitor.core.before_labels import ESTIMATED
from monitor.core.features import encode, freeze, placed
from monitor.core.metrics import METRICS
from monitor.core.policy import from_json, with_calibrator
from monitor.core.reasons import REJECTED
from monitor.core.rules import SHIPPED
from monitor.core.tables import LABEL, ROW
from monitor.series import CALIBRATED, NOWCAST, SERIES

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
SCRAPE = ROOT / "deploy" / "prometheus" / "prometheus.yml"
UNIT_TESTS = sorted((ROOT / "tests" / "prometheus").glob("*.yml"))
DASHBOARD = ROOT / "grafana" / "dashboards" / "model.json"

DAY = 86_400_000
START = 1_748_736_000_000
"""2025-06-01 in ms; the baseline is of the ten days before."""
BIASED, CARELESS, END, ROWS = 12, 34, 40, 1_200
COUNTRIES = ("DE", "FR")
INPUTS = ("feature_psi_max", "slice_psi_max")
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
tick: 6h
models:
  m:
    baseline: baseline.json
    segments: [country]
    features: [amount]
    labels: {horizon: 24h, missing: unknown}
    mode: auto
"""
WALL = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
tick: 1s
models:
  w: {}
"""


def scores(rng, n):
    return np.round(rng.beta(1.2, 2.0, n), 6)


def write_baseline(folder):
    """Write the validation baseline: the same scores, and outcomes that are as likely as the scores say."""
    rng = np.random.default_rng(1)
    rows, labels = np.zeros(10 * ROWS, ROW), np.zeros(10 * ROWS, LABEL)
    rows["ts"] = START - 10 * DAY + np.arange(10 * ROWS) * (DAY // ROWS)
    rows["score"] = scores(rng, len(rows))
    rows["combo"] = np.arange(len(rows)) % 2
    labels["outcome"] = rng.random(len(rows)) < rows["score"]
    features = {"amount": freeze(rows["score"].tolist())}
    rows["features"] = encode(placed(features, features), [{"amount": p} for p in rows["score"].tolist()])
    combos = [(("country", c),) for c in COUNTRIES]
    provenance = {"kind": "validation", "rows": len(rows)}
    made = baselines.build("m", "v1", ("country",), rows, labels, combos, provenance, features)
    (folder / "baseline.json").write_text(baselines.to_json(made))


CLASSES = WALL.replace("w: {}", "c: {classes: [cat, dog]}").replace("tick: 1s", "clock: events")
LOOKING = {r.name: r for r in SHIPPED.values() if r.detector and r.role == "live"}
"""The rules whose detectors look at a live version."""


class Stream:
    """An agent whose clock are the events sent to it, another with the machine's, and what /metrics said at each stage."""

    def __init__(self, agent, wall):
        self.agent, self.wall, self.sent, self.rng = agent, wall, 0, np.random.default_rng(2)
        self.stages = {}

    def send(self, kind, body):
        receipt = self.agent.post(kind, body)
        self.sent += receipt["accepted"] + receipt["duplicates"] + len(receipt["rejected"])
        return receipt

    def day(self, day, version="v1", n=ROWS):
        """Send a day of predictions, then its labels; 3 % are never labelled, from BIASED on scores are too high."""
        rng = self.rng
        ids = [f"{version}-{day}-{i}" for i in range(n)]
        ts = START + day * DAY + np.arange(n) * (DAY // n)
        p = scores(rng, n)
        y = (rng.random(n) < p * (0.6 if day >= BIASED else 1.0)).astype(int)
        common = {"model": "m", "version": version}
        columns = {"id": ids, "ts": ts.tolist(), "score": p.tolist(), "segments": [i % 2 for i in range(n)], **common}
        columns["features"] = {"amount": [None if i % 10 == 0 else x for i, x in enumerate(p.tolist())]}
        taken = self.send("predictions", {**columns, "combos": [{"country": c} for c in COUNTRIES]})
        assert taken == {"accepted": n, "duplicates": 0, "rejected": []}
        some = np.flatnonzero(rng.random(n) > 0.03).tolist()
        labels = {"id": [ids[i] for i in some], "ts": (ts[some] + 600_000).tolist(), "label": y[some].tolist()}
        assert self.send("labels", {**labels, **common}) == {"accepted": len(some), "duplicates": 0, "rejected": []}

    def activate(self, threshold):
        body = {"version": "v1", "threshold": threshold, "reason": "test", "who": "test"}
        status, found, _ = self.agent.ask("/v1/models/m/activate", body)
        assert status == 200, found

    def serve(self, calibrator):
        """Make a policy current that decides as the one before it and serves other scores."""
        _, now, _ = self.agent.ask("/v1/models/m/policy?version=v1")
        made = with_calibrator(from_json(json.dumps(now)), "1-000001", calibrator, {"who": "test"})
        body = {"version": "v1", "policy": json.loads(made.to_json()), "reason": "test", "who": "test"}
        status, found, _ = self.agent.ask("/v1/models/m/activate", body)
        assert status == 200, found

    def look(self, stage, day):
        """Move the clock to a day (from START) and keep what /metrics says of that moment, with every event sent."""
        now = START + round(day * DAY)
        self.agent.now(now)
        wanted = now / 1000, self.sent
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            text = self.agent.ask(self.agent.metrics_url)[1]
            found = values(text)
            seen = found.get("scorewatch_last_tick_timestamp_seconds"), found.get('scorewatch_events_total{source="http"}')
            if seen == wanted:
                self.stages[stage] = text
                return
            time.sleep(0.05)
        raise AssertionError(f"{stage}: /metrics never came to {wanted}, it is at {seen}")


def values(text):
    """Return {series with labels as text: value}."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line and line[0] != "#"}


def samples(text):
    """Return (name, labels, value) of every sample."""
    return [(s.name, s.labels, s.value) for f in text_string_to_metric_families(text) for s in f.samples]


def exported(text):
    """Return {name: (type, help, label names)} of everything the agent says of itself; a histogram without its `le`."""
    out = {}
    for f in text_string_to_metric_families(text):
        name = f.name + "_total" if f.type == "counter" else f.name
        labels = {frozenset(s.labels) - {"le"} for s in f.samples}
        assert len(labels) == 1, f"{name} has samples with different labels: {labels}"
        out[name] = f.type, f.documentation, *labels
    return out


@pytest.fixture(scope="module")
def stream(module_agent):
    """Return an agent that was taken through all stages: nothing, events only, days that matured, a firing alert."""
    wall = module_agent(WALL.replace("w: {}", "w: {deliver: [{command: ['true']}]}"), "wall")
    home = wall.folder.parent / "agent"
    home.mkdir()
    write_baseline(home)  # it must be there when the agent starts
    agent = module_agent(CONFIG, "agent")
    s = Stream(agent, wall)
    s.stages["nothing"] = agent.ask(agent.metrics_url)[1]
    agent.now(START)
    s.activate(0.5)
    s.day(0)
    s.day(0, "v0", 50)
    s.look("events", 1)
    for day in range(1, 6):
        s.day(day)
    s.look("matured", 6)
    for day in range(6, CARELESS):
        s.day(day)
    s.activate(0.1)
    for day in range(CARELESS, END + 1):
        s.day(day)
    # The world is not tidy: a correction, a conflict, a rejected event, a request that cannot be read.
    last, late = f"v1-{END}-{ROWS - 1}", START + (END + 1) * DAY + 3_600_000
    for label in (0, 1):
        s.send("labels", [{"id": last, "model": "m", "label": label, "ts": late + label}])
    s.send("predictions", [{"id": last, "ts": late, "model": "m", "version": "v1", "score": 0.123}])
    s.send("predictions", [{"id": "bad", "ts": late, "model": "m", "version": "v1", "score": 1.5}])
    assert agent.ask("/v1/predictions", b"\x00", {"Content-Encoding": "gzip"})[0] == 400
    s.look("firing", END + 1.25)
    s.serve({"kind": "offset", "a": -0.1})
    for day in range(END + 1, END + 4):
        s.day(day)
    s.look("served", END + 4.25)
    deadline = time.monotonic() + 60
    while "scorewatch_last_tick" not in s.stages.get("wall", "") and time.monotonic() < deadline:
        if "wall" not in s.stages:
            wall.post(
                "predictions", [{"id": "a", "ts": time.time_ns() // 1_000_000, "model": "w", "version": "v1", "score": 0.3}]
            )
        s.stages["wall"] = wall.ask(wall.metrics_url)[1]
        time.sleep(0.05)
    return s


STAGES = ("nothing", "events", "matured", "firing", "served", "wall")


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("stage", STAGES)
def test_promtool_has_nothing_to_say_about_the_metrics(stream, stage):
    """At every stage `promtool check metrics` accepts /metrics without a remark."""
    done = subprocess.run(["promtool", "check", "metrics"], input=stream.stages[stage], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_exported_is_in_the_contract(stream, stage):
    """Every exported name has the type, the help and the labels of the contract; the rest is the process's own."""
    found = exported(stream.stages[stage])
    own = {name: what for name, what in found.items() if name.startswith("scorewatch_")}
    assert own == {name: (SERIES[name].kind, SERIES[name].help, frozenset(SERIES[name].labels)) for name in own}
    assert all(name.startswith("process_") for name in found.keys() - own.keys())


def test_the_contract_promises_nothing_that_is_never_exported(stream, agent):
    """Every series of the contract was exported at some stage, what only models with classes have by one of those."""
    of_classes = agent(CLASSES)
    of_classes.post("predictions", [{"id": "a", "ts": START, "model": "c", "version": "v1", "scores": [0.5, 0.501]}])
    of_classes.state()
    texts = (*stream.stages.values(), of_classes.ask(of_classes.metrics_url)[1])
    assert set().union(*map(exported, texts)) >= SERIES.keys()


@pytest.mark.parametrize("stage", STAGES)
def test_no_sample_is_nan_or_infinite_and_none_comes_twice(stream, stage):
    """A number that does not exist is not exported, and a series has one value."""
    found = samples(stream.stages[stage])
    assert [s for s in found if not np.isfinite(s[2])] == []
    series = [(name, tuple(sorted(labels.items()))) for name, labels, _ in found]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("stage", STAGES)
def test_every_estimate_is_said_or_its_absence_explained(stream, stage):
    """An estimate is exported exactly when scorewatch_estimate_available says 1 with an empty reason; each is said once."""
    found = samples(stream.stages[stage])
    names = ("model", "version", "slice", "window")
    estimated = (f"estimated_{name}{what}" for name in ESTIMATED for what in ("", "_bias"))
    of_served = (f"calibrated_{name}" for name in CALIBRATED)
    wanted = {*METRICS, *INPUTS, *(f"nowcast_{name}" for name in NOWCAST), *estimated, *of_served}
    said = {(n.removeprefix("scorewatch_"), *map(s.get, names)) for n, s, _ in found if n.removeprefix("scorewatch_") in wanted}
    evidence = [s for n, s, _ in found if n == "scorewatch_evidence"]
    said |= {(f"{s['rule']}_evidence", s["model"], s["version"], "all", LOOKING[s["rule"]].window) for s in evidence}
    told = [(s["estimate"], *map(s.get, names), s["reason"], v) for n, s, v in found if n == "scorewatch_estimate_available"]
    assert {t[:5] for t in told if t[6] == 1} == said
    assert all((v == 1) == (reason == "") for *_, reason, v in told)
    assert len({t[:5] for t in told}) == len(told)


def test_before_a_day_has_matured_there_is_no_outcome_and_the_reason_is_told(stream):
    """With events and labels but no mature day no outcome series exists, and each says no_mature_days."""
    found = samples(stream.stages["events"])
    outcomes = {name for name, m in METRICS.items() if m.outcomes}
    series = {f"scorewatch_{name}{end}" for name in outcomes for end in ("", "_low", "_high")}
    series |= {n for n in SERIES if n.startswith("scorewatch_reliability_")} - {"scorewatch_reliability_scored"}
    series |= {"scorewatch_labelled", "scorewatch_matured", "scorewatch_never_labelled"}
    assert [(name, labels) for name, labels, _ in found if name in series] == []
    told = {
        (s["estimate"], s["window"]): (v, s["reason"])
        for n, s, v in found
        if n == "scorewatch_estimate_available" and s["version"] == "v1" and s["slice"] == "all"
    }
    scored = set(METRICS) - outcomes
    assert told == {
        **{(name, window): (0, "no_mature_days") for name in METRICS for window in ("7d", "28d")},
        **{(name, window): (1, "") for name in scored for window in ("1h", "24h")},
        **{(f"nowcast_{name}", "waiting"): (0, "incomplete") for name in NOWCAST},
        **{(f"estimated_{name}", "24h"): (1, "") for name in ESTIMATED},
        **{(f"estimated_{name}_bias", "28d"): (0, "few_compared_days") for name in ESTIMATED},
        **{(name, "24h"): (1, "") for name in INPUTS},
        **{(name, "28d"): (0, "no_mature_days") for name in INPUTS},
        # The baseline has ten days, too few to know how much days differ.
        **{(f"{name}_evidence", rule.window): (0, "learning") for name, rule in LOOKING.items()},
    }
    assert "scorewatch_estimate_available" not in exported(stream.stages["nothing"])


def test_a_version_that_is_gone_is_not_spoken_of(stream):
    """After a day without events and without waiting days no series of the version is left."""
    versions = {
        stage: {s["version"] for n, s, _ in samples(text) if "model" in s and "version" in s}
        for stage, text in stream.stages.items()
    }
    assert versions == {
        "nothing": set(),
        "events": {"v0", "v1"},
        "matured": {"v1"},
        "firing": {"v1"},
        "served": {"v1"},
        "wall": {"v1"},
    }


def test_what_is_counted_from_the_start_is_there_before_the_first_event(stream):
    """Failures and events by source and reason begin at 0, so that the first of them is an increase."""
    found = values(stream.stages["nothing"])
    began = {name for name, value in found.items() if name.startswith("scorewatch_") and "_total" in name and value == 0}
    assert {name.partition("{")[0] for name in began} >= {
        *(f"scorewatch_events_{what}total" for what in ("", "accepted_", "duplicate_", "rejected_")),
        *("scorewatch_store_failures_total", "scorewatch_action_failures_total"),
    }
    assert 'scorewatch_events_rejected_total{reason="too_old",source="http"}' in began


def test_the_calibration_alerts_fire_and_only_they(stream):
    """The miscalibrated stretch fires both rules of calibration with what was promised; the careless policy was rolled back.

    What the other detectors see moved in the days from which they learn how much days differ, so that they stay silent.
    """
    firing = {n: v for n, v in values(stream.stages["firing"]).items() if n.startswith("scorewatch_alert_")}
    for rule in ("calibration", "calibration_drift"):
        at = f'model="m",rule="{rule}",version="v1"'
        observed, expected = (firing.pop(f"scorewatch_alert_{what}{{{at}}}") for what in ("observed", "expected"))
        since = firing.pop(f"scorewatch_alert_since_timestamp_seconds{{{at}}}")
        assert observed > 0.1 > 0.05 > expected
        assert START + BIASED * DAY < since * 1000 < START + CARELESS * DAY
    active = {rule.name: rule.severity for rule in SHIPPED.values()}
    # A tenth of the values of the feature are missing, of which the baseline knows nothing.
    about = 'action="recalibrate",diagnosis="pipeline_fault",model="m",rule='
    assert firing == {
        **{
            f'scorewatch_alert_active{{model="m",rule="{name}",severity="{severity}",version="v1"}}': name.startswith(
                "calibration"
            )
            for name, severity in active.items()
        },
        f'scorewatch_alert_info{{{about}"calibration",severity="warning",version="v1"}}': 1,
        f'scorewatch_alert_info{{{about}"calibration_drift",severity="warning",version="v1"}}': 1,
    }
    decided = {n: v for n, v in values(stream.stages["firing"]).items() if n.startswith("scorewatch_decisions_total")}
    name = 'scorewatch_decisions_total{action="rollback",model="m",reason="allowed",rule="policy_volume",version="v1"}'
    assert decided.pop(name) == 1
    assert all('action="recalibrate"' in n and 'reason="other_fault"' in n for n in decided)


# The shipped files.


def rules():
    """Return all shipped alert rules."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_shipped_files():
    """Rules and configuration pass every check and lint of promtool."""
    for command in (["rules", RULES], ["config", SCRAPE]):
        done = subprocess.run(
            ["promtool", "check", command[0], "--lint=all", "--lint-fatal", command[1]], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("path", UNIT_TESTS, ids=[p.stem for p in UNIT_TESTS])
def test_the_rules_do_what_their_unit_tests_say(path):
    """The rules fire, stay, resolve and word their texts as the unit test says."""
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_unit_tested_and_has_all_its_parts():
    """Each alert has a severity, texts, a runbook that exists, both durations, and unit tests name it; no page is left over."""
    tested = "".join(p.read_text() for p in UNIT_TESTS)
    pages = set()
    for rule in rules():
        assert {"expr", "for", "keep_firing_for", "annotations"} <= rule.keys()
        assert {"summary", "description", "runbook_url"} <= rule["annotations"].keys()
        assert "severity" in rule.get("labels", {}) or "scorewatch_alert_active" in rule["expr"]
        assert f"alertname: {rule['alert']}\n" in tested
        pages.add(rule["annotations"]["runbook_url"].rpartition("/")[2])
        assert rule["annotations"]["runbook_url"].endswith(f"docs/runbooks/{rule['alert'].lower()}.md")
    assert pages == {p.name for p in (ROOT / "docs" / "runbooks").glob("*.md")}


def test_every_expression_of_the_rules_parses_and_reads_series_of_the_contract():
    """promql-parser takes the expressions, and every name in them and in the texts is in the contract with its labels."""
    for rule in rules():
        promql_parser.parse(rule["expr"])
        used = set(re.findall(r"scorewatch_\w+", rule["expr"] + " " + rule["annotations"]["description"]))
        assert used <= SERIES.keys()
        assert set(re.findall(r"reason!?=[\"'](\w+)", rule["expr"] + rule["annotations"]["description"])) <= REJECTED.keys()
        for label in re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values())):
            assert label in {"job", "instance"} | set(chain.from_iterable(SERIES[name].labels for name in used))


# A real Prometheus over the real agent.


class Prometheus:
    """A server in a folder of its own."""

    def __init__(self, folder, targets):
        config = yaml.safe_load(SCRAPE.read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        # As shipped, but the alert about the model does not wait before it fires.
        shipped = yaml.safe_load(RULES.read_text())
        shipped["groups"][0]["rules"][0]["for"] = "0s"
        (folder / "rules.yml").write_text(yaml.safe_dump(shipped))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path, **query):
        """Return the data of an answer of the API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expr):
        """Return the samples of an expression now."""
        return self.ask("query", query=expr)["result"]

    def wait(self, what, deadline=60):
        """Return the first true answer of a function, asking again and again; fail when none comes."""
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if found := what():
                    return found
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.1)
        raise AssertionError(f"nothing came; log: {self.log.read_text()}")


@pytest.fixture(scope="module")
def prometheus(stream, tmp_path_factory):
    """Return a Prometheus that scrapes both agents and has seen an event be rejected."""
    folder = tmp_path_factory.mktemp("prometheus")
    p = Prometheus(folder, [urllib.parse.urlsplit(a.metrics_url).netloc for a in (stream.agent, stream.wall)])
    try:
        p.wait(lambda: p.query('scorewatch_alert_active{rule="calibration"} == 1'))
        late = START + (END + 1) * DAY
        stream.send("predictions", [{"id": "bad", "ts": late, "model": "m", "version": "v1", "score": 2.0}])
        p.wait(lambda: p.query("increase(scorewatch_events_rejected_total[1m]) > 0"))
        p.wait(lambda: p.query('ALERTS{alertname="ScorewatchRuleFiring",alertstate="firing"}'))
        p.wait(lambda: len(p.query("up == 1")) == 2)
        yield p
        p.process.send_signal(signal.SIGTERM)
        assert p.process.wait(timeout=30) == 0
    finally:
        p.process.kill()
        p.process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def filled(expr):
    """Return an expression of the dashboard with its variables filled in."""
    return expr.replace("$model", "m").replace("$version", "v1").replace("$__rate_interval", "1m")


def queries():
    """Return (panel or annotation, expression) of everything the dashboard asks."""
    board = json.loads(DASHBOARD.read_text())
    asked = [(f"{panel['title']} {t['refId']}", t["expr"]) for panel in board["panels"] for t in panel["targets"]]
    return asked + [(a["name"], a["expr"]) for a in board["annotations"]["list"] if "expr" in a]


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize(("title", "expr"), queries(), ids=[title for title, _ in queries()])
def test_every_query_of_the_dashboard_returns_data(prometheus, title, expr):
    """No panel and no annotation is empty for a model that has everything."""
    assert prometheus.wait(lambda: prometheus.query(filled(expr)))


@pytest.mark.needs("prometheus")
def test_the_variables_of_the_dashboard_offer_what_there_is(prometheus):
    """The model and its version can be chosen."""
    board = json.loads(DASHBOARD.read_text())
    offered = {}
    for v in board["templating"]["list"]:
        if v["type"] == "query":
            match, label = re.fullmatch(r"label_values\((.*), (\w+)\)", v["query"]["query"]).groups()
            offered[v["name"]] = prometheus.ask(f"label/{label}/values", **{"match[]": filled(match)})
    assert offered == {"model": ["m", "w"], "version": ["v1"]}


@pytest.mark.needs("prometheus")
def test_every_rule_is_healthy_and_says_what_it_should(prometheus):
    """All rules evaluate; the one about the model fires, with the numbers of the agent in its texts, and no other does.

    Validation promised nothing for the scores that a calibrator serves.
    """
    (group,) = prometheus.wait(
        lambda: [g for g in prometheus.ask("rules")["groups"] if all(r["lastEvaluation"][0] != "0" for r in g["rules"])]
    )
    assert {r["name"]: (r["health"], r.get("lastError", ""), r["state"]) for r in group["rules"]} == {
        "ScorewatchRuleFiring": ("ok", "", "firing"),
        "ScorewatchDown": ("ok", "", "inactive"),
        "ScorewatchTickStale": ("ok", "", "inactive"),
        "ScorewatchEventsRejected": ("ok", "", "inactive"),
        "ScorewatchStoreFailing": ("ok", "", "inactive"),
        "ScorewatchNotDelivered": ("ok", "", "inactive"),
        "ScorewatchReloadFailed": ("ok", "", "inactive"),
        "ScorewatchWaitingOverflow": ("ok", "", "inactive"),
        "ScorewatchLabelsDropped": ("ok", "", "inactive"),
        "ScorewatchLabelsEarly": ("ok", "", "inactive"),
        "ScorewatchLabelsLate": ("ok", "", "inactive"),
        "ScorewatchLabelsMissing": ("ok", "", "inactive"),
    }
    alerts = {alert["labels"]["rule"]: alert for alert in prometheus.ask("alerts")["alerts"]}
    assert len(alerts) == len(prometheus.ask("alerts")["alerts"])
    assert sorted(alerts) == ["calibration", "calibration_drift"]
    for rule, alert in alerts.items():
        about = {"model": "m", "version": "v1", "rule": rule, "severity": "warning"}
        assert alert["labels"] == {"alertname": "ScorewatchRuleFiring", "job": "scorewatch", **about}
        at = f'{{model="m",version="v1",rule="{rule}"}}'
        names = ("observed", "since_timestamp_seconds")
        observed, since = (float(prometheus.query(f"scorewatch_alert_{n}{at}")[0]["value"][1]) for n in names)
        day = time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(since))
        assert alert["annotations"]["description"] == (
            f"Rule {rule} of m v1 fires since {day}: observed {observed:.4g}, validation promised nothing for it. "
            "Diagnosis: pipeline_fault. Action of the rule: recalibrate."
        )


@pytest.mark.needs("prometheus")
def test_every_alert_condition_has_what_it_compares(stream, prometheus):
    """Each condition evaluates, each series in it has data, and what is joined in it has the same labels."""
    for rule in rules():
        prometheus.query(rule["expr"])
        for series in re.findall(r"scorewatch_\w+", rule["expr"]):
            assert prometheus.wait(lambda series=series: prometheus.query(series))
    left = "time() - scorewatch_last_tick_timestamp_seconds - 10 * scorewatch_tick_interval_seconds"
    (age,) = prometheus.query(left)
    assert age["metric"] == {"job": "scorewatch", "instance": urllib.parse.urlsplit(stream.wall.metrics_url).netloc}
    share = 'sum without (reason) (increase(scorewatch_events_rejected_total{reason!="not_sampled"}[1h])) / sum without (reason) '
    assert prometheus.wait(lambda: len(prometheus.query(share + "(increase(scorewatch_events_total[1h]))")) == 2)
    dropped = (
        'sum without (reason) (increase(scorewatch_labels_dropped_total{reason!="not_sampled"}[1h])) and sum without (source) '
    )
    assert prometheus.wait(lambda: len(prometheus.query(dropped + "(increase(scorewatch_events_accepted_total[1h]))")) == 2)
    (missing,) = prometheus.query("scorewatch_label_coverage > 0.9 and scorewatch_matured >= 100")
    assert (missing["metric"]["model"], missing["metric"]["version"]) == ("m", "v1")
    assert [s["value"][1] for s in prometheus.query('up{job="scorewatch"}')] == ["1", "1"]


@pytest.mark.needs("prometheus")
def test_prometheus_and_the_agent_agree_on_what_is_there(prometheus):
    """Prometheus stores the types and helps of the contract for every series it scraped."""
    known = prometheus.wait(lambda: prometheus.ask("metadata"))
    found = {name: (what[0]["type"], what[0]["help"]) for name, what in known.items() if name.startswith("scorewatch_")}
    assert found == {name: (SERIES[name].kind, SERIES[name].help) for name in found}
    assert found.keys() >= {name for name in SERIES if name.startswith("scorewatch_alert_")} - {"scorewatch_alert_expected"}
