"""Configuration: what a file means, and what each mistake in it is answered with."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor import config
from monitor.actions.command import Command
from monitor.actions.webhook import Webhook
from monitor.config import (
    NAME,
    Address,
    Config,
    ConfigError,
    FileSource,
    HttpSource,
    Labels,
    Model,
    Tokens,
    VerdictLabels,
    describe,
    load,
    parse,
)
from monitor.core.events import DAY, HOUR, MINUTE, SECOND
from monitor.core.metrics import METRICS
from monitor.core.policy import Limit
from monitor.core.readings import LabelRule
from monitor.core.rules import FALSE_ALARMS, SHIPPED, SHOWN, Rule, budgeted
from monitor.core.thresholds import Objective, cost

BASE = Path("/base")
SHIPPED_FILE = Path(__file__).parents[1] / "configs" / "monitor.yaml"
NAMES = ", ".join(METRICS) + ", policy_volume, unfollowed_share, volume_ratio or coverage_ratio"
RULE_KEYS = "detector, metric, basis, window, fires, resolves, min_n, hold, severity or action"
MODEL_KEYS = (
    "versions, baseline, policies, segments, features, threshold, per_day, classes, labels_mode, score, sum_tolerance, "
    "mode, recalibrate, follow_within, labels, review, deliver, idle_after, false_alarms_per_year or rules"
)
SOME = "write how many false alarms a year are acceptable, from 0.001 to 365"
BUDGET = "write a mapping such as {critical: 0.25, warning: 4}"
DETECTOR_NAMES = ", ".join(list(SHOWN)[:-1]) + f" or {list(SHOWN)[-1]}"
TOGETHER = "found limits that fire and resolve at the same value; write fires and resolves that no value passes together"
LONG = "write a duration such as 15s, 12h or 7d, at most 3650d"
COUNT = "write a whole number such as 500 or 20k, from 1 to 1000000000"
A_NAME = 'write a name of 1 to 128 characters without control characters, " and \\'
ADDRESS = "write host:port such as 127.0.0.1:8480 or [::1]:8480"
RECALL = "metric: recall, fires: {below: 0.7}, resolves: {above: 0.75}"


def read(text: str) -> Config:
    """Return the configuration of a text."""
    return parse(text, "f.yaml", BASE)


def model(body: str) -> Model:
    """Return the model that the body of a flow mapping describes."""
    return read(f"models: {{m: {{{body}}}}}").models["m"]


def rule(body: str) -> Rule:
    """Return the rule of one model that a text such as `name: {…}` describes."""
    (found,) = [r for r in model(f"rules: {{{body}}}").rules if r.name == body.split(":")[0]]
    return found


def errors(text: str) -> str:
    """Return the message that a text is refused with."""
    with pytest.raises(ConfigError) as e:
        read(text)
    return str(e.value)


TOP = [
    ("", "models: found nothing; write at least one model such as fraud: {}"),
    ("[]", "found a list; write a mapping such as models: {fraud: {}}"),
    ("models:", "models: found no model; write at least one model such as fraud: {}"),
    ("models: [a]", "models: found a list; write at least one model such as fraud: {}"),
    ("modles: {a: }\nmodels: {a: }", "modles: found an unknown key; did you mean models?"),
    (
        "zzz: 1\nmodels: {a: }",
        "zzz: found an unknown key; write state, api, metrics, clock, tick, sources, tokens, actions, defaults, models, hash or "
        "waiting",
    ),
    ("3: 1\nmodels: {a: }", "3: found 3 as a key; put it in quotes"),
    ("~: 1\nmodels: {a: }", "null: found nothing as a key; put it in quotes"),
    (
        "features: []\nmodels: {a: }",
        "features: found an unknown key; write state, api, metrics, clock, tick, sources, tokens, actions, defaults, models, "
        "hash or waiting",
    ),
    ("inherit: 1\nmodels: {a: }", "inherit: found 1; not available in this version, leave it out"),
    ("<<: {clock: wall}\nmodels: {a: }", ("'<<': found an unknown key; write state, api, metrics, clock, tick, sources, tokens, "
     "actions, defaults, models, hash or waiting")),
    ("models: {404: }", "models.404: found 404 as a key; put it in quotes"),
    ('models: {"a\\tb": }', f"models.'a\\tb': found 'a\\tb'; {A_NAME}"),
    ("models: {a: 5}", f"models.a: found 5; write {{}} or a mapping with the keys {MODEL_KEYS}"),
]  # fmt: skip

SETTINGS = [
    ("state: 5", "state: found 5; write a path"),
    ("state: ''", "state: found ''; write a path"),
    ('state: "a\\0"', "state: found 'a\\x00'; write a path"),
    ("api: 8480", f"api: found 8480; {ADDRESS}"),
    ("api: :8480", f"api: found ':8480'; {ADDRESS}"),
    ("api: localhost:65536", f"api: found 'localhost:65536'; {ADDRESS}"),
    ("api: '[::g]:1'", f"api: found '[::g]:1'; {ADDRESS}"),
    ("api: '[::1:2:3:4:5:6:7:8]:1'", f"api: found '[::1:2:3:4:5:6:7:8]:1'; {ADDRESS}"),
    ("metrics: 256.0.0.1:9480", f"metrics: found '256.0.0.1:9480'; {ADDRESS}"),
    (
        "api: 0.0.0.0:8480",
        (
            "api: found '0.0.0.0:8480', which other machines reach, without tokens.ingest and tokens.decide; "
            "set tokens.ingest and tokens.decide or listen on 127.0.0.1"
        ),
    ),
    (
        "api: host:8480\ntokens: {ingest: a}",
        (
            "api: found 'host:8480', which other machines reach, without tokens.decide; "
            "set tokens.ingest and tokens.decide or listen on 127.0.0.1"
        ),
    ),
    (
        "api: host:8480\ntokens: {ingest: '', decide: a}",
        "tokens.ingest: found an unusable token; write a token of printable ASCII characters "
        "without spaces, env:NAME or file:PATH",
    ),
    ("clock: utc", "clock: found 'utc'; write wall or events"),
    ("tick: 15", "tick: found 15; write 15s if seconds are meant, else a duration such as 12h or 7d"),
    ("tick: soon", f"tick: found 'soon'; {LONG}"),
    ("tick: true", f"tick: found true; {LONG}"),
    ("tick: 0s", "tick: found '0s'; write a duration longer than 0s"),
    ("tick: 3651d", f"tick: found '3651d'; {LONG}"),
    ("clock: events\ntick: 7h", "tick: found '7h', which does not divide a day; write one that does, such as 1h"),
    ("hash: md5", "hash: found 'md5'; write xxh3 or blake2b"),
    ("waiting: 20M", "waiting: found '20M'; write a mapping with the keys rows"),
    ("waiting: {rows: 61M}", "waiting.rows: found '61M'; write a whole number such as 20M, from 1 to 60000000"),
    ("waiting: {rows: 0}", "waiting.rows: found 0; write a whole number such as 20M, from 1 to 60000000"),
    ("waiting: {rows: 1.5}", "waiting.rows: found 1.5; write a whole number such as 20M, from 1 to 60000000"),
    ("waiting: {rows: true}", "waiting.rows: found true; write a whole number such as 20M, from 1 to 60000000"),
    ("sources: []", "sources: found a list; write a list with at least one source, such as - http: {}"),
    ("sources: [http]", "sources[0]: found 'http'; write one source such as http: {} or file: {path: events.ndjson}"),
    ("sources: [{kafka: {}}]", "sources[0]: found the source kafka; not available in this version, write http or file"),
    ("sources: [{htpp: {}}]", "sources[0]: found the unknown source 'htpp'; did you mean http?"),
    ("sources: [{http: }, {http: }]", "sources: found the source http more than once; write it once, there is one api"),
    ("sources: [{http: 5}]", "sources[0].http: found 5; write a mapping with the keys max_body or queue"),
    (
        "sources: [{http: {max_body: 2GiB}}]",
        "sources[0].http.max_body: found '2GiB'; write a whole number such as 1048576 or 32MB, from 1 to 1073741824",
    ),
    (
        "sources: [{http: {queue: lots}}]",
        "sources[0].http.queue: found 'lots'; write a whole number such as 500 or 20k, from 1 to 1000000000",
    ),
    ("sources: [{file: }]", "sources[0].file: found no path; write at least {path: FILE}"),
    ("sources: [{file: {path: 1}}]", "sources[0].file.path: found 1; write a path"),
    (
        "sources: [{file: {path: a.txt.gz}}]",
        "sources[0].file: found a path whose suffix says no format, '/base/a.txt.gz'; write format: ndjson or csv",
    ),
    ("sources: [{file: {path: a.csv, format: xml}}]", "sources[0].file.format: found 'xml'; write ndjson or csv"),
    ("sources: [{file: {path: a.csv, kind: score}}]", "sources[0].file.kind: found 'score'; write events, predictions or labels"),
    ("sources: [{file: {path: a.csv, follow: no}}]", "sources[0].file.follow: found 'no'; write true or false"),
    (
        "sources: [{file: {path: a.csv, follow: false}}]",
        "sources[0].file.path: found '/base/a.csv', which is no file; write the path of a file or follow: true to wait for it",
    ),
    ("tokens: secret", "tokens: found a value that is no mapping; write a mapping with the keys ingest or decide"),
    ("tokens: {ingest: 12}", "tokens.ingest: found a value that is no string; write the token in quotes, env:NAME or file:PATH"),
    ("tokens: {ingst: a}", "tokens.ingst: found an unknown key; did you mean ingest?"),
    (
        "tokens: {ingest: 'se cret'}",
        "tokens.ingest: found an unusable token; write a token of printable ASCII characters "
        "without spaces, env:NAME or file:PATH",
    ),
    (
        "tokens: {ingest: 'env:'}",
        "tokens.ingest: found an unusable token; write a token of printable ASCII characters "
        "without spaces, env:NAME or file:PATH",
    ),
    (
        "tokens: {ingest: '***'}",
        "tokens.ingest: found '***', which only hides a token; write the token itself, env:NAME or file:PATH",
    ),
    (
        "tokens: {decide: env:NOT_SET}",
        "tokens.decide: found 'env:NOT_SET', which is not set; set the environment variable NOT_SET",
    ),
    (
        "defaults: {recalibrate: {rows: 0}}",
        "defaults.recalibrate.rows: found 0; write a whole number such as 500 or 20k, from 1 to 1000000000",
    ),
    ("defaults: {recalibrate: {undo: off}}", "defaults.recalibrate.undo: found 'off'; write true or false"),
    ("defaults: {mode: false}", "defaults.mode: found false; write off, propose or auto"),
    (
        "defaults: {segments: [a]}",
        (
            "defaults.segments: found an unknown key; write mode, recalibrate, follow_within, labels, review, deliver, "
            "idle_after, false_alarms_per_year or rules"
        ),
    ),
    ("defaults: {false_alarms_per_year: {critical: 0}}", f"defaults.false_alarms_per_year.critical: found 0; {SOME}"),
]

MODELS = [
    ("baselin: x", "baselin: found an unknown key; did you mean baseline?"),
    ("review: 200", "review: found 200; write off or a mapping such as {per_day: 200}"),
    ("review: {per_day: 0}", f"review.per_day: found 0; {COUNT}"),
    ("review: {per_days: 5}", "review.per_days: found an unknown key; did you mean per_day?"),
    ("per_day: lots", "per_day: found 'lots'; write a whole number such as 20k or 2M, from 1 to 100000000000"),
    ("inherit: v7", "inherit: found 'v7'; not available in this version, leave it out"),
    ("features: {}", "features: found a mapping; write a list such as [amount, channel]"),
    ("features: [a, b, a]", "features: found 'a' more than once; write each feature once"),
    (f"features: {[f'f{i}' for i in range(15)]}", "features: found 15 names; write at most 14 names"),
    ("waiting: {rows: 1M}", "waiting: found a mapping; write waiting at the top of the file, it is for all models together"),
    ("versions: [v8]", "versions: found a list; write a mapping such as {v8: shadow}"),
    ("versions: {v8: shade}", "versions.v8: found 'shade'; write live, canary or shadow"),
    ("versions: {8: shadow}", "versions.8: found 8 as a key; put it in quotes"),
    (
        "versions: {'': shadow}",
        f"versions.'': found ''; {A_NAME}",
    ),
    (
        "baseline: b.json",
        ("baseline: found '/base/b.json', which is no file; write the path of a baseline, build it there, or leave it out"),
    ),
    ("policies: 1", "policies: found 1; write a path"),
    ("segments: country", "segments: found 'country'; write a list such as [country, channel]"),
    ("segments: [a, 1]", "segments[1]: found 1; write a name; put it in quotes if it looks like a number"),
    ("segments: [a, b, a]", "segments: found 'a' more than once; write each segment once"),
    ("labels: 30d", "labels: found '30d'; write a mapping with the keys horizon, missing, corrections or verdicts"),
    (
        "labels: {horizon: never}",
        "labels.horizon: found 'never'; write a duration such as 12h or 90d, and never for a verdict: "
        "verdicts: {block: {horizon: never}}",
    ),
    ("labels: {horizon: soon}", f"labels.horizon: found 'soon'; {LONG}"),
    ("labels: {missing: positive}", "labels.missing: found 'positive'; write negative or unknown"),
    ("labels: {verdicts: never}", "labels.verdicts: found 'never'; write a mapping such as {block: {horizon: never}}"),
    ("labels: {verdicts: {blok: {}}}", "labels.verdicts.blok: found an unknown key; did you mean block?"),
    (
        "labels: {verdicts: {none: {}}}",
        "labels.verdicts.none: found an unknown key; write pass, flag, review, abstain or block",
    ),
    ("labels: {verdicts: {flag: 2d}}", "labels.verdicts.flag: found '2d'; write a mapping with the keys horizon or missing"),
    ("labels: {verdicts: {flag: {horizon: nevr}}}", f"labels.verdicts.flag.horizon: found 'nevr'; {LONG}, or never"),
    (
        "labels: {verdicts: {flag: {missing: positive}}}",
        "labels.verdicts.flag.missing: found 'positive'; write negative or unknown",
    ),
    (
        "labels: {verdicts: {flag: {corrections: 2d}}}",
        "labels.verdicts.flag.corrections: found an unknown key; write horizon or missing",
    ),
    ("threshold: 1.5", "threshold: found 1.5; write a number from 0 to 1"),
    ("threshold: .nan", "threshold: found nan; write a number"),
    ("threshold: half", "threshold: found 'half'; write a number"),
    (
        "threshold: {cost: {missed: 10, false_alarm: 1}, min_recall: 0.9}",
        "threshold: found cost and min_recall; write exactly one of cost, utility, capacity, "
        "min_recall, precision_floor or fpr_cap",
    ),
    ("threshold: {min_recall: 1}", "threshold.min_recall: found 1; write a number between 0 and 1"),
    ("threshold: {capacity: {}}", "threshold.capacity: found no per_day; write a mapping such as {per_day: 200}"),
    (
        "threshold: {fpr_cap: 0.1, by: country}",
        "threshold.by: found 'country', which is none of the segments; write segments, too",
    ),
    ("threshold: {cost: {missed: 10}}", "threshold.cost: found no false_alarm; write false_alarm, too"),
    ("threshold: {cost: {missed: -10, false_alarm: 1}}", "threshold.cost.missed: found -10; write a number above 0"),
    ("false_alarms_per_year: 4", f"false_alarms_per_year: found 4; {BUDGET}"),
    ("false_alarms_per_year: [1, 2]", f"false_alarms_per_year: found a list; {BUDGET}"),
    ("false_alarms_per_year: {critcal: 1}", "false_alarms_per_year.critcal: found an unknown key; did you mean critical?"),
    ("false_alarms_per_year: {warning: 0.0009}", f"false_alarms_per_year.warning: found 0.0009; {SOME}"),
    ("false_alarms_per_year: {warning: 366}", f"false_alarms_per_year.warning: found 366; {SOME}"),
    ("false_alarms_per_year: {info: -1}", f"false_alarms_per_year.info: found -1; {SOME}"),
    ("false_alarms_per_year: {info: off}", "false_alarms_per_year.info: found 'off'; write a number"),
    ("false_alarms_per_year: {info: true}", "false_alarms_per_year.info: found true; write a number"),
    ("false_alarms_per_year: {info: .nan}", "false_alarms_per_year.info: found nan; write a number"),
    ("mode: on", "mode: found 'on'; write off, propose or auto"),
    ("idle_after: 0h", "idle_after: found '0h'; write a duration longer than 0s"),
]

DETECTORS = [
    ("rules: {x: {detector: recal}}", f"rules.x.detector: found 'recal'; write {DETECTOR_NAMES}"),
    ("rules: {x: {detector: [recall]}}", f"rules.x.detector: found a list; write {DETECTOR_NAMES}"),
    ("rules: {x: {detector: }}", f"rules.x.detector: found nothing; write {DETECTOR_NAMES}"),
    (
        "rules: {recall: {detector: fpr}}",
        "rules.recall.detector: found 'fpr'; leave it out here and write a rule of another name",
    ),
    (
        "rules: {calibration: {detector: calibration}}",
        "rules.calibration.detector: found 'calibration'; leave it out here and write a rule of another name",
    ),
    (
        "rules: {recall: {min_n: 2k, window: 7d, metric: recall, basis: mature}}",
        "\n".join(
            f"rules.recall.{key}: found {value} in a rule with a detector, which looks at whole days by itself; leave it out"
            for key, value in (("metric", "'recall'"), ("basis", "'mature'"), ("window", "'7d'"), ("min_n", "2000"))
        ),
    ),
    (
        "rules: {x: {detector: recall, action: rollback, metric: ece}}",
        "rules.x.metric: found 'ece' in a rule with a detector, which looks at whole days by itself; leave it out",
    ),
    ("rules: {recall: {severity: fatal}}", "rules.recall.severity: found 'fatal'; write critical, warning or info"),
    ("rules: {recall: {fires: {belw: -0.3}}}", "rules.recall.fires.belw: found an unknown key; did you mean below?"),
    ("rules: {recall: {fires: {below: -0.1}}}", f"rules.recall: {TOGETHER}"),
    ("rules: {x: {detector: score_drift, resolves: {below: 0.03}}}", f"rules.x: {TOGETHER}"),
    (
        "rules: {recal: off}",
        "rules.recal: found 'off' for an unknown rule; did you mean recall?",
    ),
    (
        "rules: {x: {detector: canary}}",
        "rules.x: found a second rule with the detector canary; change that one, or write off for it",
    ),
]

RULES = [
    ("rules: off", "rules: found 'off'; write a mapping such as {calibration: off}"),
    ("rules: {calibratoin: off}", "rules.calibratoin: found 'off' for an unknown rule; did you mean calibration?"),
    ("rules: {calibration: false}", f"rules.calibration: found false; write off or a mapping with the keys {RULE_KEYS}"),
    (
        "rules: {x: {}}",
        "rules.x: found a new rule without metric, fires and resolves; write them, too",
    ),
    (
        "rules: {calibratoin: {fires: {above: 1}}}",
        "rules.calibratoin: found a new rule without metric and resolves; write them, too (or did you mean calibration?)",
    ),
    (
        "rules: {calibration: {metric: brier, fires: {above: 1}}}",
        "rules.calibration: found a new metric without resolves; write them, too",
    ),
    ("rules: {calibration: {fire: 1}}", "rules.calibration.fire: found an unknown key; did you mean fires?"),
    ("rules: {calibration: {metric: ecee}}", "rules.calibration.metric: found 'ecee'; did you mean ece?"),
    ("rules: {calibration: {metric: 5}}", f"rules.calibration.metric: found 5; write {NAMES}"),
    ("rules: {calibration: {basis: known}}", "rules.calibration.basis: found 'known'; write scored or mature"),
    ("rules: {calibration: {window: 30d}}", "rules.calibration.window: found '30d'; write 1h, 24h, 7d or 28d"),
    ("rules: {calibration: {window: 24h}}", "rules.calibration.window: found '24h' with the basis mature; write 7d or 28d"),
    (
        "rules: {x: {metric: flagged_share, basis: scored, window: 7d, fires: {above: 0.5}, resolves: {below: 0.4}}}",
        "rules.x.window: found '7d' with the basis scored; write 1h or 24h",
    ),
    (
        "rules: {calibration: {basis: scored}}",
        "rules.calibration.basis: found 'scored' with the metric ece, which needs outcomes; write mature",
    ),
    (
        "rules: {policy_volume: {basis: mature, window: 28d}}",
        (
            "rules.policy_volume.basis: found 'mature'; write scored or leave it out, policy_volume has no other\n"
            "rules.policy_volume.window: found '28d'; write 24h or leave it out, policy_volume has no other"
        ),
    ),
    (
        "rules: {policy_volume: {basis: mature}}",
        "rules.policy_volume.basis: found 'mature'; write scored or leave it out, policy_volume has no other",
    ),
    (
        "rules: {policy_volume: {window: 1h}}",
        "rules.policy_volume.window: found '1h'; write 24h or leave it out, policy_volume has no other",
    ),
    (
        "rules: {policy_volume: {metric: ece, fires: {above: 1}, resolves: {below: 1}}}",
        "rules.policy_volume.metric: found 'ece'; leave it out here and write a rule of another name",
    ),
    (
        "rules: {calibration: {min_n: 0}}",
        "rules.calibration.min_n: found 0; write a whole number such as 500 or 20k, from 1 to 1000000000",
    ),
    (
        "rules: {calibration: {hold: 5}}",
        "rules.calibration.hold: found 5; write 5s if seconds are meant, else a duration such as 12h or 7d",
    ),
    ("rules: {calibration: {severity: fatal}}", "rules.calibration.severity: found 'fatal'; write critical, warning or info"),
    ("rules: {calibration: {action: retrain}}", "rules.calibration.action: found 'retrain'; write none, rollback or recalibrate"),
    (
        "rules: {calibration: {fires: 0.08}}",
        "rules.calibration.fires: found 0.08; write a mapping with one of above, below, outside or inside, such as {above: 0.05}",
    ),
    (
        "rules: {calibration: {fires: {end: low}}}",
        "rules.calibration.fires: found no limit; write exactly one of above, below, outside or inside",
    ),
    (
        "rules: {calibration: {fires: {above: 1, below: 2}}}",
        "rules.calibration.fires: found above and below; write exactly one of above, below, outside or inside",
    ),
    ("rules: {calibration: {fires: {abov: 1}}}", "rules.calibration.fires.abov: found an unknown key; did you mean above?"),
    ("rules: {calibration: {fires: {above: big}}}", "rules.calibration.fires.above: found 'big'; write a number"),
    ("rules: {calibration: {fires: {above: .inf}}}", "rules.calibration.fires.above: found inf; write a number"),
    (
        "rules: {calibration: {fires: {above: 1, end: near}}}",
        "rules.calibration.fires.end: found 'near'; write value, low or high",
    ),
    (
        "rules: {calibration: {fires: {outside: 1}}}",
        "rules.calibration.fires.outside: found 1; write two numbers such as [0.8, 1.2]",
    ),
    ("rules: {calibration: {fires: {outside: [1, x]}}}", "rules.calibration.fires.outside[1]: found 'x'; write a number"),
    (
        "rules: {calibration: {fires: {inside: [2, 1]}}}",
        "rules.calibration.fires.inside: found [2, 1]; write the smaller number first",
    ),
    (
        "rules: {calibration: {fires: {above: 0.02}}}",
        (
            "rules.calibration: found limits that fire and resolve at the same value; "
            "write fires and resolves that no value passes together"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), TOP + [(f"{t}\nmodels: {{a: }}", m) for t, m in SETTINGS])
def test_top_errors(text: str, message: str) -> None:
    """Each mistake outside the models is answered with file, key, what was found and what to write, and with nothing else."""
    assert errors(text) == f"f.yaml: {message}"


@pytest.mark.parametrize(("body", "message"), MODELS + RULES + DETECTORS)
def test_model_errors(body: str, message: str) -> None:
    """Each mistake in a model is answered with file, key, what was found and what to write, and with nothing else."""
    assert errors(f"models: {{m: {{{body}}}}}") == "\n".join(f"f.yaml: models.m.{line}" for line in message.split("\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {a", "line 1, column 11: expected ',' or '}', but got '<stream end>'; correct the YAML there"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here; correct the YAML there"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'; correct the YAML there"),
        ("a: 1\n--- \nb: 2", "line 2, column 1: but found another document; correct the YAML there"),
        ("a: !!int x", "line 1, column 4: found 'x' with the tag tag:yaml.org,2002:int; correct the YAML there"),
        (
            "a: !!int [1]",
            "line 1, column 4: found a mapping or list with the tag tag:yaml.org,2002:int; correct the YAML there",
        ),
        (
            "a: !!timestamp 2024-01-01",
            (
                "line 1, column 4: could not determine a constructor for the tag 'tag:yaml.org,2002:timestamp'; "
                "correct the YAML there"
            ),
        ),
        ("? [a]\n: 1", "line 1, column 3: found unhashable key; correct the YAML there"),
        ("a: 1\nb: \x01", "line 2: found the character '\\x01'; remove it, YAML does not allow it"),
        ("[" * 3000, "found mappings or lists nested too deeply; flatten them"),
        (
            "a: " + "9" * 5000,
            f"line 1, column 4: found '{'9' * 195}...' with the tag tag:yaml.org,2002:int; correct the YAML there",
        ),
    ],
    ids=range(11),
)
def test_yaml_errors(text: str, message: str) -> None:
    """What is not YAML, or YAML beyond the core schema, is answered with line and column."""
    assert errors(text) == f"f.yaml: {message}"


def test_duplicate_keys() -> None:
    """A key given twice is an error wherever it stands, also beside other errors."""
    assert errors("models: {a: {mode: off, mode: auto}}\nmodels:\n  b:\nsources: [{http: , http: }]\ntick: 5") == (
        "f.yaml: models.a.mode: found the key a second time (line 1); write it once\n"
        "f.yaml: models: found the key a second time (line 2); write it once\n"
        "f.yaml: sources[0].http: found the key a second time (line 4); write it once\n"
        "f.yaml: tick: found 5; write 5s if seconds are meant, else a duration such as 12h or 7d"
    )


def test_all_errors_together() -> None:
    """Every error of a file is raised at once, one line each, and none of them causes a further one."""
    assert errors(
        "clock: x\ntick: y\nmodels:\n  a: {mode: 1, rules: {calibration: {basis: x, window: 24h}}}\n  b: {segments: 1}"
    ) == (
        "f.yaml: clock: found 'x'; write wall or events\n"
        f"f.yaml: tick: found 'y'; {LONG}\n"
        "f.yaml: models.a.mode: found 1; write off, propose or auto\n"
        "f.yaml: models.a.rules.calibration.basis: found 'x'; write scored or mature\n"
        "f.yaml: models.b.segments: found 1; write a list such as [country, channel]"
    )


def test_any_model_has_no_folder_of_its_own() -> None:
    """The entry that stands for any model has neither policies nor a baseline, which only one model can have."""
    assert errors("models: {'*': {policies: /p/x}}") == (
        "f.yaml: models.*.policies: found '/p/x'; write it at a model of its own, '*' stands for any number of models"
    )


def test_policies_shared() -> None:
    """Two models never share a policies folder, however it is written."""
    assert errors("models: {a: {policies: /p/x}, b: {policies: /p/y}, c: {policies: /p/./y/../x/}}") == (
        "f.yaml: models.c.policies: found '/p/y/../x', the folder of models.a, too; write a folder for each model"
    )


def test_action_needs_an_acting_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that acts reads only bases that may act."""
    monkeypatch.setattr(config, "ACTING", ("scored",))
    assert errors("models: {m: {rules: {calibration: {action: rollback}}}}") == (
        "f.yaml: models.m.rules.calibration.action: found 'rollback' with the basis mature; write a basis that may act: scored"
    )


def test_errors_hide_tokens() -> None:
    """No error about tokens and no repr shows one."""
    found = errors("tokens: {ingest: 's e c r e t', decide: [secret], secrt: secret}\nmodels: {a: }") + errors("tokens: secret")
    assert "secret" not in found
    assert "s e c r e t" not in found
    assert "secret" not in repr(read("tokens: {ingest: secret}\nmodels: {a: }"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"), ("on", "on"), ("NO", "NO"), ("yes", "yes"), ("y", "y"), ("true", True), ("False", False),
        ("~", None), ("null", None), ("", None), ("1", 1), ("-1", -1), ("010", 10), ("0x1F", "0x1F"), ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("1e-3", 0.001), ("1E3", 1000.0), (".5", 0.5), ("5.", 5.0), ("-.5e+1", -5.0),
        (".inf", float("inf")), ("-.INF", -float("inf")),
        ("1:30", "1:30"), ("12:30:45", "12:30:45"), ("2024-01-01", "2024-01-01"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("'1'", "1"), ('"true"', "true"), ("=", "="), (".", "."), ("1.2.3", "1.2.3"), ("e3", "e3"),
        ("!!str 1", "1"), ("!!float 1", 1.0),
    ],
)  # fmt: skip
def test_yaml_scalars(text: str, value: object) -> None:
    """Scalars are those of the YAML 1.2 core schema with decimal integers; everything else is a string."""
    found = config._tree(f"a: {text}", config._At("f", BASE, []))["a"]
    assert (type(found), found) == (type(value), value)


def test_yaml_nan() -> None:
    """`.nan` is a float."""
    found = config._tree("a: .NaN", config._At("f", BASE, []))["a"]
    assert math.isnan(found)


def test_aliases() -> None:
    """Anchors may be used again, and a file that explodes or contains itself costs nothing."""
    assert read("models: {a: &a {mode: auto}, b: *a}").models["b"] == Model("b", mode="auto")
    bomb = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" if i else "a0: &a0 [x]" for i in range(30))
    assert len(errors(bomb).split("\n")) == 31
    assert errors("models: &m {x: *m}") == f"f.yaml: models.x.x: found an unknown key; write {MODEL_KEYS}"


def test_defaults() -> None:
    """A bare name is a whole configuration: the documented defaults."""
    labels = Labels(horizon=30 * DAY, missing="unknown", corrections=28 * DAY, verdicts={})
    alarms = {"critical": 0.25, "warning": 4.0, "info": 12.0}
    rules = budgeted(SHIPPED.values(), alarms)
    churn = Model("churn", {}, None, None, (), labels, None, "propose", alarms, rules, 24 * HOUR, 0, None)
    assert read("models: {churn: }") == read("models: {churn: {}}") == Config(
        path=None,
        state=Path("/var/lib/scorewatch"),
        api=Address("127.0.0.1", 8480),
        metrics=Address("0.0.0.0", 9480),
        clock="wall",
        tick=15 * SECOND,
        sources=(HttpSource(max_body=32 * 2**20, queue=1_000_000),),
        tokens=Tokens(None, None),
        models={"churn": churn},
        hash="xxh3",
        waiting_rows=20_000_000,
    )  # fmt: skip


def test_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key of the file arrives in its field, relative paths under the folder of the file."""
    (tmp_path / "b.json").touch()
    (tmp_path / "old.csv.gz").touch()
    monkeypatch.setenv("INGEST", "from-env")
    text = """
state: state
api: "[::]:0"
metrics: localhost:9481
clock: events
tick: 30m
sources:
  - http: {max_body: 1MB, queue: 10k}
  - file: {path: new.ndjson}
  - file: {path: old.csv.gz, kind: labels, follow: false}
  - file: {path: /data/odd.log, kind: predictions, format: csv}
tokens: {ingest: env:INGEST, decide: d}
models:
  fraud:
    versions: {v8: shadow, "9": canary}
    baseline: b.json
    policies: policies/fraud
    segments: [country, channel]
    features: [amount, channel]
    labels:
      horizon: 0s
      missing: negative
      corrections: 90m
      verdicts: {flag: {horizon: 2d, missing: unknown}, block: {horizon: never}, review: {missing: unknown}}
    threshold: 1
    mode: auto
    rules: {calibration: off}
    false_alarms_per_year: {critical: 1, warning: 0.5}
    idle_after: 5m
    review: {per_day: 200}
    per_day: 2M
  "*": {}
hash: blake2b
waiting: {rows: 60M}
"""
    (tmp_path / "c.yaml").write_text(text)
    fraud = Model(
        "fraud",
        {"v8": "shadow", "9": "canary"},
        tmp_path / "b.json",
        tmp_path / "policies/fraud",
        ("country", "channel"),
        Labels(
            0,
            "negative",
            90 * MINUTE,
            {
                "flag": VerdictLabels(2 * DAY, "unknown"),
                "block": VerdictLabels(None, "negative"),
                "review": VerdictLabels(0, "unknown"),
            },
        ),
        1.0,
        "auto",
        {"critical": 1.0, "warning": 0.5, "info": 12.0},
        budgeted((r for r in SHIPPED.values() if r.name != "calibration"), {**FALSE_ALARMS, "warning": 0.5}),
        5 * MINUTE,
        200,
        2_000_000,
        ("amount", "channel"),
    )
    assert load(tmp_path / "c.yaml") == Config(
        tmp_path / "c.yaml",
        tmp_path / "state",
        Address("::", 0),
        Address("localhost", 9481),
        "events",
        30 * MINUTE,
        (
            HttpSource(1_000_000, 10_000),
            FileSource(tmp_path / "new.ndjson", "events", True, "ndjson"),
            FileSource(tmp_path / "old.csv.gz", "labels", False, "csv"),
            FileSource(Path("/data/odd.log"), "predictions", True, "csv"),
        ),
        Tokens((("ingest", "from-env"),), (("decide", "d"),), {"ingest": "INGEST"}),
        {"fraud": fraud, "*": Model("*")},
        "blake2b",
        60_000_000,
    )
    assert [fraud.role(v) for v in ("v8", "9", "v7")] == ["shadow", "canary", "live"]


def test_events_tick() -> None:
    """The clock `events` ticks every hour unless the file says otherwise."""
    assert read("clock: events\nmodels: {a: }").tick == HOUR


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1500ms", 1500), ("15s", 15 * SECOND), ("5m", 5 * MINUTE), ("12h", 12 * HOUR), ("90d", 90 * DAY), ("3650d", 3650 * DAY)],
)
def test_durations(text: str, ms: int) -> None:
    """Durations have one unit from ms to d."""
    assert model(f"labels: {{horizon: {text}}}").labels == Labels(horizon=ms)


@pytest.mark.parametrize(
    ("text", "n"), [("1", 1), ("1000", 1000), ("64kB", 64_000), ("64KiB", 65_536), ("32MB", 32_000_000), ("1GiB", 2**30)]
)
def test_sizes(text: str, n: int) -> None:
    """Sizes are bytes, decimal with kB, MB, GB and binary with KiB, MiB, GiB."""
    assert read(f"sources: [{{http: {{max_body: {text}}}}}]\nmodels: {{a: }}").sources == (HttpSource(max_body=n),)


@pytest.mark.parametrize(("text", "n"), [("7", 7), ("5k", 5_000), ("20M", 20_000_000)])
def test_counts(text: str, n: int) -> None:
    """Counts take k, M and G."""
    assert read(f"waiting: {{rows: {text}}}\nmodels: {{a: }}").waiting_rows == n


@pytest.mark.parametrize(
    ("text", "loopback"),
    [("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True),
     ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False), ("localhost.example:1", False)],
)  # fmt: skip
def test_loopback(text: str, loopback: bool) -> None:
    """Only an address that no other machine reaches may be without tokens; an address is written as it was read."""
    found = read(f"api: '{text}'\ntokens: {{ingest: a, decide: b}}\nmodels: {{a: }}").api
    assert (str(found), found.loopback) == (text, loopback)


def test_defaults_are_overridden_field_by_field() -> None:
    """`defaults` changes every model, wherever it stands in the file; a model changes single fields of it."""
    found = read(
        "models: {a: , b: {mode: off, labels: {missing: negative}, idle_after: 1h, rules: {calibration: {}, floor: off},\n"
        "  false_alarms_per_year: {critical: 2}}}\n"
        f"defaults: {{mode: auto, labels: {{horizon: 60d}}, idle_after: 2h, rules: {{calibration: off, floor: {{{RECALL}}}}},\n"
        "  false_alarms_per_year: {warning: 1}}"
    )
    alarms = {"critical": 0.25, "warning": 1.0, "info": 12.0}
    floor = Rule("floor", "mature", "28d", (Limit("recall", low=0.7),), Limit("recall", high=0.75), 500)
    assert found.models == {
        "a": Model(
            "a",
            labels=Labels(60 * DAY),
            mode="auto",
            false_alarms=alarms,
            rules=budgeted([*(r for r in SHIPPED.values() if r.name != "calibration"), floor], alarms),
            idle_after=2 * HOUR,
        ),
        "b": Model(
            "b",
            mode="off",
            labels=Labels(60 * DAY, "negative"),
            false_alarms={**alarms, "critical": 2.0},
            rules=budgeted(SHIPPED.values(), alarms),
            idle_after=HOUR,
        ),
    }  # fmt: skip


def test_labels_by_verdict_follow_the_model() -> None:
    """What an entry by verdict leaves out is what its model says; a model changes entries of `defaults` field by field."""
    found = read(
        "defaults: {labels: {horizon: 10d, verdicts: {flag: {missing: negative}, block: {horizon: never}}},\n"
        "  review: {per_day: 9}}\n"
        "models: {a: , b: {labels: {horizon: 20d, verdicts: {flag: {horizon: 10d}, pass: {}}}, review: off}}"
    ).models
    block = VerdictLabels(None, "unknown")
    assert found["a"].labels.verdicts == {"flag": VerdictLabels(10 * DAY, "negative"), "block": block}
    assert found["b"].labels.verdicts == {
        "flag": VerdictLabels(10 * DAY, "negative"),
        "block": block,
        "pass": VerdictLabels(20 * DAY, "unknown"),
    }
    assert (found["a"].review, found["b"].review) == (9, 0)


def test_a_day_waits_for_the_longest_horizon() -> None:
    """A day is mature after the longest horizon of all verdicts; one that never comes does not count."""
    assert model("labels: {horizon: 3d}").labels.longest == 3 * DAY
    assert model("labels: {horizon: 3d, verdicts: {pass: {horizon: 90d}, block: {horizon: never}}}").labels.longest == 90 * DAY
    assert model("labels: {horizon: 3d, verdicts: {flag: {horizon: 1d}}}").labels.longest == 3 * DAY


def test_rules_of_labels_by_verdict_code() -> None:
    """Each verdict code has its rule, in the order of the codes; nobody's decision takes the model's."""
    labels = model("labels: {missing: negative, verdicts: {flag: {missing: unknown}, block: {horizon: never}}}").labels
    negative = LabelRule("negative")
    assert labels.rules == (negative, LabelRule("unknown"), negative, negative, LabelRule("negative", never=True), negative)


SECRET = "whsec_" + "MDEy" * 8
TARGET = "write webhook: {url: ..., secret: ...} or command: [...]"
ARGUMENTS = 'write a list of arguments such as [/usr/local/bin/retrain, --model, "{model}"]; there is no shell'
A_SECRET = "write file:PATH or env:NAME of whsec_ and 24 to 64 bytes in base64"
A_URL = "write a URL such as https://example.com/hook, without user and password"


def test_who_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions and deliver are webhooks and commands, a rule may name an action; describe hides a secret of the file itself."""
    (tmp_path / "hook").write_text(SECRET + "\n")
    monkeypatch.setenv("HOOK", SECRET)
    monkeypatch.setenv("DECIDE", "x")
    text = f"""
actions:
  retrain: {{webhook: {{url: "https://a.example/x?y=1", secret: [file:hook, env:HOOK, {SECRET}]}}}}
  page: {{command: [page, "--of={{model}}", '{{"a": 1}}', ""], limit: 5s}}
tokens: {{decide: env:DECIDE}}
defaults: {{deliver: [{{command: [a]}}]}}
models: {{m: , n: {{deliver: [{{webhook: {{url: "http://b:1", secret: env:HOOK}}}}, {{command: [b]}}],
         rules: {{x: {{metric: ece, fires: {{above: 1}}, resolves: {{below: 1}}, action: page}}}}}}, o: {{deliver: []}}}}
"""
    found = parse(text, "f.yaml", tmp_path)
    retrain = Webhook("https://a.example/x?y=1", (f"file:{tmp_path}/hook", "env:HOOK", SECRET))
    assert found.actions == {"retrain": retrain, "page": Command(("page", "--of={model}", '{"a": 1}', ""), 5_000)}
    assert [m.deliver for m in found.models.values()] == [
        (Command(("a",), 60_000),),
        (Webhook("http://b:1", ("env:HOOK",)), Command(("b",), 60_000)),
        (),
    ]
    assert [r.action for r in found.models["n"].rules if r.name == "x"] == ["page"]
    assert (found.delivers, found.hidden) == (True, {"HOOK", "DECIDE"})
    assert not replace(found, clock="events").delivers
    assert not read("models: {m: }").delivers
    assert parse(describe(found, secrets=True), "f.yaml", Path("/other")) == found
    assert SECRET not in describe(found) + repr(found)
    assert "- '***'\n" in describe(found)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("5", f": found 5; {TARGET}"),
        ("{}", f": found neither webhook nor command; {TARGET}"),
        (f"{{command: [a], webhook: {{url: 'http://a', secret: {SECRET}}}}}", f": found both of webhook and command; {TARGET}"),
        ("{comand: [a]}", ".comand: found an unknown key; did you mean command?"),
        ("{command: a b}", f".command: found 'a b'; {ARGUMENTS}"),
        ("{command: []}", f".command: found a list; {ARGUMENTS}"),
        ("{command: [a, 5]}", ".command[1]: found 5; write a text, in quotes if it looks like a number"),
        ("{command: ['']}", ".command[0]: found ''; write a text, in quotes if it looks like a number"),
        ("{command: [a, '{modle}']}", ".command[1]: found {modle}; did you mean model?"),
        ("{command: ['{model}']}", ".command[0]: found {model}; name a program"),
        ("{command: [a], limit: 0s}", ".limit: found '0s'; write a duration longer than 0s"),
        (
            f"{{webhook: {{url: 'http://a', secret: {SECRET}}}, limit: 1s}}",
            ".limit: found it with a webhook, which has 15 s; leave it out",
        ),
        ("{webhook: }", ".webhook: found no url and no secret; write {url: https://example.com/hook, secret: file:PATH}"),
        (f"{{webhook: {{url: 'ftp://a', secret: {SECRET}}}}}", f".webhook.url: found 'ftp://a'; {A_URL}"),
        (f"{{webhook: {{url: 'https://u:p@a', secret: {SECRET}}}}}", f".webhook.url: found an unusable URL; {A_URL}"),
        (f"{{webhook: {{url: 'https://a:x', secret: {SECRET}}}}}", f".webhook.url: found an unusable URL; {A_URL}"),
        ("{webhook: {url: 'http://a', secret: 5}}", f".webhook.secret: found a value that is no string; {A_SECRET}"),
        ("{webhook: {url: 'http://a', secret: []}}", ".webhook.secret: found a list; write at least one secret"),
        (
            "{webhook: {url: 'http://a', secret: [hush]}}",
            ".webhook.secret[0]: found an unusable secret (it holds no whsec_ and 24 to 64 bytes in base64); " + A_SECRET,
        ),
        (
            "{webhook: {url: 'http://a', secret: file:none}}",
            f".webhook.secret: found an unusable secret (/base/none cannot be read (No such file or directory)); {A_SECRET}",
        ),
    ],
)
def test_target_errors(body: str, message: str) -> None:
    """Whatever is wrong with a webhook or a command is named, at an action as at a delivery; a secret is not repeated."""
    assert errors(f"actions: {{retrain: {body}}}\nmodels: {{m: }}") == f"f.yaml: actions.retrain{message}"
    assert errors(f"models: {{m: {{deliver: [{body}]}}}}") == f"f.yaml: models.m.deliver[0]{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("actions: [a]", "actions: found a list; write a mapping such as {retrain: {command: [/usr/local/bin/retrain]}}"),
        (
            "actions: {rollback: {command: [a]}}",
            "actions.rollback: found 'rollback', which is the agent's own; write another name",
        ),
        ("actions: {deliver: {command: [a]}}", "actions.deliver: found 'deliver', which is the agent's own; write another name"),
        (
            "defaults: {deliver: 5}",
            "defaults.deliver: found 5; write a list such as [{command: [/usr/local/bin/publish]}], or []",
        ),
        (
            "actions: {retrain: {command: [a]}}\ndefaults: {rules: {policy_volume: {action: retrian}}}",
            "defaults.rules.policy_volume.action: found 'retrian'; did you mean retrain?",
        ),
        (
            "defaults: {rules: {policy_volume: {action: page}}}",
            "defaults.rules.policy_volume.action: found 'page'; write none, rollback or recalibrate",
        ),
        (
            "defaults: {rules: {policy_volume: {action: 5}}}",
            "defaults.rules.policy_volume.action: found 5; write none, rollback, recalibrate or the name of one of actions",
        ),
    ],
)
def test_who_is_told_errors(text: str, message: str) -> None:
    """An action has a name of its own, and a rule names one that exists."""
    assert errors(f"{text}\nmodels: {{m: }}") == f"f.yaml: {message}"


CALIBRATION, VOLUME = SHIPPED["calibration"], SHIPPED["policy_volume"]


def _detector(shipped: str, fires: Limit | None = None, **changed: Any) -> Rule:
    """Return a shipped rule with a detector, with another limit of its effect and other fields."""
    old = SHIPPED[shipped]
    return replace(old, fires=(fires or old.fires[0], old.fires[1]), **changed)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("calibration: {}", CALIBRATION),
        ("calibration: ", CALIBRATION),
        ("calibration: {fires: {above: 0.08}}", replace(CALIBRATION, fires=(Limit("ece", "low", high=0.08),))),
        ("calibration: {fires: {above: 0.08, end: value}}", replace(CALIBRATION, fires=(Limit("ece", "value", high=0.08),))),
        ("calibration: {resolves: {below: 1e-2}}", replace(CALIBRATION, resolves=Limit("ece", "low", low=0.01))),
        (
            "calibration: {min_n: 2k, hold: 1d, severity: info, action: rollback, window: 7d}",
            replace(CALIBRATION, min_n=2000, hold=DAY, severity="info", action="rollback", window="7d"),
        ),
        (
            "calibration: {metric: flagged_share, basis: scored, fires: {above: 0.2}, resolves: {below: 0.1}}",
            Rule("calibration", "scored", "24h", (Limit("flagged_share", high=0.2),), Limit("flagged_share", low=0.1), 500),
        ),
        (
            "policy_volume: {fires: {outside: [0.5, 2]}, action: none, basis: scored, window: 24h, metric: policy_volume}",
            replace(VOLUME, fires=(Limit("policy_volume", low=0.5, high=2.0),), action="none"),
        ),
        ("x: {" + RECALL + "}", Rule("x", "mature", "28d", (Limit("recall", low=0.7),), Limit("recall", high=0.75), 500)),
        (
            (
                "x: {metric: flagged_share, basis: scored, window: 1h, fires: {inside: [0.1, 0.2], end: high}, "
                "resolves: {outside: [0.1, 0.2]}}"
            ),
            Rule(
                "x",
                "scored",
                "1h",
                (Limit("flagged_share", "high", 0.1, 0.2, inside=True),),
                Limit("flagged_share", low=0.1, high=0.2),
                500,
            ),
        ),
        (
            "x: {metric: policy_volume, fires: {above: 1.2}, resolves: {below: 1.1}}",
            Rule("x", "scored", "24h", (Limit("policy_volume", high=1.2),), Limit("policy_volume", low=1.1), 500),
        ),
    ],
)
def test_rules(body: str, want: Rule) -> None:
    """A mapping changes fields of a shipped rule, each limit at its old end, or makes a whole new rule."""
    assert rule(body) == want


def test_rule_order() -> None:
    """Rules come in the shipped order, then new ones in the order of the file; `off` removes."""
    found = model(f"rules: {{z: {{{RECALL}}}, policy_volume: {{min_n: 1}}, a: {{{RECALL}}}, calibration: {{min_n: 1}}}}")
    assert [r.name for r in found.rules] == [*SHIPPED, "z", "a"]
    assert [r.name for r in model("rules: {policy_volume: off, calibration: off}").rules] == [
        name for name in SHIPPED if name not in ("policy_volume", "calibration")
    ]
    assert model(f"rules: {{{', '.join(f'{name}: off' for name in SHIPPED)}}}").rules == ()


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("recall: {}", SHIPPED["recall"]),
        ("recall: {detector: recall, action: none}", SHIPPED["recall"]),
        ("recall: {fires: {below: -0.4}}", _detector("recall", fires=Limit("recall_effect", low=-0.4))),
        (
            "calibration_drift: {fires: {outside: [-0.3, 0.4]}, resolves: {inside: [-0.1, 0.2]}, hold: 2d}",
            _detector(
                "calibration_drift",
                fires=Limit("calibration_effect", low=-0.3, high=0.4),
                resolves=Limit("calibration_effect", low=-0.1, high=0.2, inside=True),
                hold=2 * DAY,
            ),
        ),
        (
            "prevalence: {fires: {above: 0.3, end: low}}",
            _detector("prevalence", fires=Limit("prevalence_effect", "low", high=0.3)),
        ),
        ("score_drift: {severity: info}", _detector("score_drift", severity="info")),
        (
            "x: {detector: roc_auc, severity: critical, fires: {below: -0.05}}",
            _detector("roc_auc", fires=Limit("roc_auc_effect", low=-0.05), name="x", severity="critical"),
        ),
    ],
)
def test_detector_rules(body: str, want: Rule) -> None:
    """A mapping changes the limits of the effect, the severity and the hold of a detector, or makes another of the same kind."""
    found = rule(body)
    assert replace(found, fires=(found.fires[0], want.fires[1])) == want
    assert found.fires[1].metric == f"{want.detector}_evidence"


def test_budget_of_detectors() -> None:
    """All detectors of a severity share its false alarms: one more, one off, or one of another severity changes the rest."""

    def enough(body: str) -> dict[str, float]:
        """Return for each rule with a detector the evidence it needs, as days per false alarm."""
        return {r.name: round(math.exp(r.fires[1].high or 0), 6) for r in model(body).rules if r.detector}

    count = len(SHOWN)
    assert set(enough("").values()) == {round(365 * count / 4, 6)}
    assert set(enough("false_alarms_per_year: {warning: 1}").values()) == {365 * count}
    assert set(enough("rules: {recall: off, fpr: off}").values()) == {round(365 * (count - 2) / 4, 6)}
    assert enough("rules: {recall: {severity: critical}, page: {detector: recall, severity: critical}}") == {
        **{r.name: round(365 * (count - 1) / 4, 6) for r in SHIPPED.values() if r.detector},
        **dict.fromkeys(("recall", "page"), 365 * 2 / 0.25),
    }
    inherited = read(
        "defaults: {false_alarms_per_year: {info: 3}, rules: {mine: {detector: fpr, severity: info}}}\n"
        "models: {a: , b: {false_alarms_per_year: {warning: 2}, rules: {recall: {severity: info}}}}"
    ).models
    assert inherited["a"].false_alarms == {"critical": 0.25, "warning": 4.0, "info": 3.0}
    assert inherited["b"].false_alarms == {"critical": 0.25, "warning": 2.0, "info": 3.0}
    limits = [{r.name: r.fires[1].high for r in inherited[name].rules if r.detector}["mine"] for name in ("a", "b")]
    assert limits == [pytest.approx(math.log(365 / 3)), pytest.approx(math.log(365 * 2 / 3))]


def test_another_rule_of_the_canary() -> None:
    """The canary has one rule, which may go by another name."""
    found = model("rules: {canary: off, worse: {detector: canary, severity: critical}}")
    assert [(r.name, r.severity) for r in found.rules if r.detector == "canary"] == [("worse", "critical")]


def test_fires_and_resolves_may_touch() -> None:
    """Limits that meet at one number or look at different ends do not overlap."""
    assert rule("calibration: {fires: {above: 0.03}}").fires == (Limit("ece", "low", high=0.03),)
    assert rule("calibration: {fires: {above: 0.02, end: high}}").fires == (Limit("ece", "high", high=0.02),)


def test_missing_file(tmp_path: Path) -> None:
    """A file that cannot be read is a ConfigError that says why."""
    with pytest.raises(ConfigError) as e:
        load(tmp_path / "no.yaml")
    assert str(e.value) == (
        f"{tmp_path}/no.yaml: found no readable file (No such file or directory); write the path of a configuration file"
    )


def test_not_utf8(tmp_path: Path) -> None:
    """A file in another encoding is a ConfigError; a byte order mark is none."""
    (tmp_path / "c.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError) as e:
        load(tmp_path / "c.yaml")
    assert str(e.value) == f"{tmp_path}/c.yaml: found bytes that are not UTF-8 at position 3; save the file as UTF-8"
    (tmp_path / "c.yaml").write_bytes(b"\xef\xbb\xbfmodels: {a: }")
    assert list(load(tmp_path / "c.yaml").models) == ["a"]


def test_relative_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of a file named relatively do not depend on the folder the agent is in later."""
    (tmp_path / "c.yaml").write_text("state: s\nmodels: {a: }")
    monkeypatch.chdir(tmp_path)
    assert load(Path("c.yaml")).state == Path(os.getcwd()) / "s"


def test_shipped_file() -> None:
    """The shipped file is the defaults with the model `*`."""
    assert load(SHIPPED_FILE) == Config(path=SHIPPED_FILE, models={"*": Model("*")})


def test_shipped_examples(tmp_path: Path) -> None:
    """What the shipped file shows in comments is valid, and its defaults are the real ones."""
    lines = SHIPPED_FILE.read_text().split("\n")[3:]
    text = "\n".join(line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines)
    text = text.replace("  - http: {}", "  # - http: {}").replace("/data/", f"{tmp_path}/").replace("env:SCOREWATCH_", "")
    text = text.replace("file:/run/secrets/hook", SECRET)
    (tmp_path / "labels.csv.gz").touch()
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "fraud-v7.json").touch()
    found = parse(text, "f.yaml", tmp_path)
    assert [type(s) for s in found.sources] == [HttpSource, FileSource, FileSource]
    assert replace(found, sources=Config().sources, tokens=Tokens(), models={}, actions={}) == Config()
    assert found.actions == {
        "retrain": Webhook("https://ci.example/hook", (SECRET,)),
        "page": Command(("/usr/local/bin/page", "--model={model}")),
    }
    assert found.models["fraud"].deliver == (Command(("python3", "/opt/configmap.py", "fraud-policy", "serving")),)
    assert [found.models[name] for name in ("*", "churn")] == [Model("*"), Model("churn")]
    fraud = found.models["fraud"]
    off = ("policy_volume", "score_drift")
    assert [r.name for r in fraud.rules] == [*(name for name in SHIPPED if name not in off), "recall_page", "recall_floor"]
    assert fraud.false_alarms == {"critical": 0.25, "warning": 1.0, "info": 12.0}


def test_describe_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What describe writes is the same configuration, under any base."""
    (tmp_path / "b.json").touch()
    monkeypatch.setenv("DECIDE", "secret")
    text = f"""
api: "[::]:8480"
clock: events
sources: [{{file: {{path: a.csv, follow: true}}}}, {{http: {{max_body: 1000001, queue: 1500}}}}]
tokens: {{ingest: literal, decide: env:DECIDE}}
models:
  "off": {{versions: {{"1.10": canary}}, baseline: b.json, segments: ["null", zürich, "a: b", "1e3"], features: [amount, "5"],
         threshold: 1e-5}}
  b: {{rules: {{policy_volume: off, x: {{{RECALL}, hold: 90m, min_n: 1500}}, fpr: off, canary: off,
      prevalence: {{fires: {{above: 0.5, end: high}}, hold: 3d}}, y: {{detector: canary, severity: critical}},
      z: {{detector: fpr, fires: {{above: 1e-1}}, resolves: {{below: -1}}}}}}, mode: auto, per_day: 1500,
    false_alarms_per_year: {{critical: 365, info: 0.001}},
    labels: {{corrections: 0s, verdicts: {{pass: {{horizon: 90m}}, block: {{horizon: never, missing: negative}}}}}}}}
defaults: {{review: {{per_day: 1k}}}}
"""
    want = parse(text, "f.yaml", tmp_path)
    assert read(describe(want, secrets=True)) == want
    assert "mode: propose\n" in describe(want)
    assert "decide: env:DECIDE\n" in describe(want)
    assert "secret" not in describe(want, secrets=True)
    assert "literal" not in describe(want)
    assert errors(describe(want)) == (
        "f.yaml: tokens.ingest: found '***', which only hides a token; write the token itself, env:NAME or file:PATH"
    )


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("{cost: {missed: 10, false_alarm: 1}}", cost(10, 1)),
        ("{utility: {tp: 5, fp: -2, fn: -6, tn: 0}}", Objective("utility", utility=(5, -2, -6, 0))),
        ("{capacity: {per_day: 2k}}", Objective("capacity", 2_000)),
        ("{min_recall: 0.9, by: country}", Objective("min_recall", 0.9)),
        ("{precision_floor: 0.5}", Objective("precision_floor", 0.5)),
        ("{fpr_cap: 0.01}", Objective("fpr_cap", 0.01)),
        ("f1", Objective("f1")),
        ("youden", Objective("youden")),
    ],
)
def test_objectives(text: str, objective: Objective) -> None:
    """What a threshold is chosen for is read and written as it is; it is no threshold yet."""
    found = read(f"models: {{m: {{segments: [country], threshold: {text}}}}}")
    m = found.models["m"]
    assert (m.threshold, m.objective, m.by) == (None, objective, "country" if "by" in text else "")
    assert read(describe(found)) == found


def test_describe_shows_everything() -> None:
    """Every default is visible in what describe writes."""
    off = "".join(f"{name}: off, " for name in SHIPPED if name not in ("calibration", "calibration_drift", "recall"))
    assert describe(read(f"models: {{churn: {{rules: {{{off}}}}}}}")) == (
        """\
state: /var/lib/scorewatch
api: 127.0.0.1:8480
metrics: 0.0.0.0:9480
clock: wall
tick: 15s
sources:
- http:
    max_body: 32MiB
    queue: 1M
tokens:
  ingest: null
  decide: null
actions: {}
models:
  churn:
    versions: {}
    baseline: null
    policies: null
    segments: []
    features: []
    labels:
      horizon: 30d
      missing: unknown
      corrections: 28d
      verdicts: {}
    threshold: null
    score: probability
    per_day: null
    mode: propose
    recalibrate:
      rows: 1k
      limit: 1m
      undo: true
    follow_within: 15m
    review: off
    false_alarms_per_year:
      critical: 0.25
      warning: 4.0
      info: 12.0
    rules:
      calibration:
        metric: ece
        basis: mature
        window: 28d
        fires:
          above: 0.05
          end: low
        resolves:
          below: 0.03
          end: low
        min_n: 500
        hold: 0s
        severity: warning
        action: recalibrate
      calibration_drift:
        detector: calibration
        fires:
          outside:
          - -0.2
          - 0.2
          end: value
        resolves:
          inside:
          - -0.15
          - 0.15
          end: value
        hold: 0s
        severity: warning
        action: recalibrate
      recall:
        detector: recall
        fires:
          below: -0.2
          end: value
        resolves:
          above: -0.15
          end: value
        hold: 0s
        severity: warning
        action: none
      precision: off
      fpr: off
      high_confidence_errors: off
      roc_auc: off
      prevalence: off
      flagged_share: off
      score_drift: off
      canary: off
      policy_volume: off
      policy_not_followed: off
      data_loss: off
      label_coverage: off
    deliver: []
    idle_after: 1d
hash: xxh3
waiting:
  rows: 20M
"""
    )


@given(st.from_regex(NAME, fullmatch=True), st.from_regex(NAME, fullmatch=True), st.floats(0, 1), st.integers(0, 10**10))
@example("\x85", "\u2028", 0.5, 0)
def test_describe_any_name(name: str, segment: str, threshold: float, ms: int) -> None:
    """Any name, threshold and duration survives the round trip."""
    found = Config(models={name: Model(name, segments=(segment,), threshold=threshold, labels=Labels(horizon=ms))})
    assert read(describe(found)) == found
