"""Models with classes, logits and margins from outside."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, log_loss, roc_auc_score

from monitor import timeline
from monitor.agent import Agent
from monitor.config import ConfigError, parse
from monitor.core.tables import EMPTY
from monitor.data import Merged
from monitor.formats import decode

DAY = 86_400_000
T = 1_740_960_000_000
"""2025-03-03 in ms."""
NAMES = ["cat", "dog", "other"]
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
defaults: {idle_after: 30d}
models:
  animals: {classes: [cat, dog, other], labels: {horizon: 24h}, threshold: {cat: 0.6}, segments: [country]}
  tags: {classes: [red, big], labels_mode: multi, score: logit, threshold: 0.5, labels: {horizon: 24h, missing: negative}}
  rank: {score: margin, labels: {horizon: 24h}}
  plain: {labels: {horizon: 24h}, threshold: 0.5}
"""


def drawn(rng, n, sharp=1.5):
    """Return scores of a calibrated model and what happened."""
    e = np.exp(sharp * rng.normal(size=(n, 3)))
    p = e / e.sum(axis=1, keepdims=True)
    return p, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def predictions(p, day=0, **more):
    """Return predictions of scores on a day."""
    common = {"model": "animals", "version": "v1", **more}
    return [{"id": f"{day}-{i}", "ts": T + day * DAY + i, "scores": row, **common} for i, row in enumerate(p.tolist())]


def labels(y, day=0, **more):
    """Return the labels of predictions on a day."""
    common = {"model": "animals", **more}
    return [{"id": f"{day}-{i}", "ts": T + day * DAY + DAY // 2, "label": NAMES[k], **common} for i, k in enumerate(y)]


def close(value):
    """Return what counts as equal."""
    return pytest.approx(value, abs=1e-9)


def estimates(agent, model, window="28d"):
    """Return the estimates of slice `all` of a model."""
    return next(v for v in agent.state()["versions"] if v["model"] == model)["estimates"]["all"][window]


def test_d16_vectors_that_do_not_sum_to_one(agent):
    """D16: of one batch .996 and 1.004 are scaled and counted, .8, 0, NaN, 2 and 4 entries rejected, each with its reason."""
    a = agent(CONFIG)
    rows = [[0.3, 0.3, 0.396], [0.3, 0.3, 0.404], [0.2, 0.3, 0.3], [0, 0, 0], [float("nan"), 0.5, 0.5], [0.5, 0.5], [0.25] * 4]
    events = [{"id": f"x{i}", "ts": T, "model": "animals", "version": "v1", "scores": row} for i, row in enumerate(rows)]
    found = a.post("predictions", events)
    reasons = [(r["index"], r["reason"]) for r in found["rejected"]]
    assert reasons == [(2, "sum"), (3, "sum"), (4, "not_finite"), (5, "scores"), (6, "scores")]
    assert (found["accepted"], found["duplicates"]) == (2, 0)
    assert a.gauge("scorewatch_scores_scaled_total") == 2
    assert (a.gauge("scorewatch_events_total"), a.gauge("scorewatch_events_accepted_total")) == (7, 2)
    wide = agent(
        CONFIG.replace("labels: {horizon: 24h}, threshold: {cat", "sum_tolerance: 0.25, labels: {}, threshold: {cat"), "wide"
    )
    assert wide.post("predictions", events)["accepted"] == 3


def test_receipts_count_events(agent):
    """An event and a label count once whatever their targets: accepted, duplicates, rejected and held ones add up."""
    a = agent(CONFIG)
    p, y = drawn(np.random.default_rng(0), 50)
    taken = {"accepted": 50, "duplicates": 0, "rejected": []}
    early = {"id": "late", "ts": T, "model": "animals", "label": "dog"}
    assert a.post("labels", [early]) == {"accepted": 1, "duplicates": 0, "rejected": [], "held": 1}
    assert a.gauge("scorewatch_labels_held") == 1
    assert a.post("predictions", predictions(p)) == taken
    assert a.post("predictions", predictions(p)) == {"accepted": 0, "duplicates": 50, "rejected": []}
    assert a.post("labels", labels(y)) == taken
    assert a.post("labels", labels(y)) == {"accepted": 0, "duplicates": 50, "rejected": []}
    assert a.post("predictions", predictions(p[:1], id="late")) == {"accepted": 1, "duplicates": 0, "rejected": []}
    assert a.gauge("scorewatch_labels_held") == 0
    future = {"id": "f", "ts": "2090-01-01", "model": "animals", "version": "v1", "scores": [0.2, 0.3, 0.5]}
    assert [(r["index"], r["reason"]) for r in a.post("predictions", [future])["rejected"]] == [(0, "future")]
    whole = {"id": "w", "ts": T + 5, "model": "animals", "label": "cat"}
    whole |= {"prediction": {"ts": T, "version": "v1", "scores": {"cat": 0.2, "dog": 0.3, "other": 0.5}}}
    assert a.post("labels", [whole]) == {"accepted": 1, "duplicates": 0, "rejected": []}
    counted = {name: a.gauge(f"scorewatch_events_{name}total") for name in ("", "accepted_", "duplicate_")}
    assert counted == {"": 204, "accepted_": 103, "duplicate_": 100}
    # A corrected label is one more 1 for its class, one less for the other, and the predicted class turns out wrong or right.
    right = int(p[0].argmax()) == y[0]
    other = next(k for k in range(3) if k not in (y[0], p[0].argmax()))
    a.post("labels", labels([other], revision=1))
    changes = {k.split('"')[1]: v for k, v in a.metrics().items() if "label_corrections" in k}
    assert changes == {"0_to_1": 1, "1_to_0": 1 + right}


def test_classes(agent):
    """All numbers of a model with classes are scikit-learn's, before and after a restart, and its days verify and export."""
    a = agent(CONFIG)
    rng = np.random.default_rng(1)
    days = [drawn(rng, 400) for _ in range(3)]
    for day, (p, y) in enumerate(days):
        a.post("predictions", predictions(p, day, segments={"country": "DE"}))
        a.post("labels", labels(y, day))
    unlabelled = predictions(drawn(rng, 100)[0], 2)
    a.post("predictions", [e | {"id": "u" + e["id"]} for e in unlabelled])
    a.now(T + 5 * DAY)
    p, y = (np.concatenate(parts) for parts in zip(*days, strict=True))
    found = a.ask("/v1/models/animals/classes")[1]
    assert (found["n"], found["labelled"], found["version"]) == (1_300, 1_200, "v1")
    assert found["log_loss"]["value"] == close(log_loss(y, p))
    assert found["brier"]["value"] == close(((p - np.eye(3)[y]) ** 2).sum(axis=1).mean())
    assert found["confusion"]["counts"] == confusion_matrix(y, p.argmax(axis=1)).tolist()
    assert found["roc_auc_ovo"]["value"] == pytest.approx(roc_auc_score(y, p, multi_class="ovo"), abs=2e-3)
    assert sum(found["margin"]["n"]) == 1_300
    assert a.ask("/v1/models/animals/classes?window=7d")[1] == found | {"window": "7d"}
    cat, top = estimates(a, "animals:cat"), estimates(a, "animals:top")
    assert cat["prevalence"]["value"] == close((y == 0).mean())
    assert cat["recall"]["value"] == close((p[y == 0, 0] >= 0.6).mean())
    assert top["prevalence"]["value"] == close((p.argmax(axis=1) == y).mean())
    assert (top["recall"]["reason"], estimates(a, "animals:dog")["recall"]["reason"]) == ("no_threshold", "no_threshold")
    assert a.ask("/v1/models/animals:cat/reliability?bins=width10")[1]["n"] == 1_200
    for path, status in (("plain/classes", 404), ("animals/classes?version=v9", 404), ("animals/classes?window=1h", 400)):
        assert a.ask(f"/v1/models/{path}")[0] == status
    steps = list(map(json.loads, a.ask("/v1/verify", b"{}", method="POST")[1].splitlines()))
    assert [s["differences"] for s in steps] == [[]] * len(steps)
    assert sum(s["rows"] for s in steps) == 4 * 1_300
    exported = [json.loads(line) for line in a.ask("/v1/data")[1].splitlines()]
    assert {(e["model"], e["slice"]) for e in exported} >= {("animals:top", "all"), ("animals:cat", "all")}
    assert a.stop() == 0
    assert a.start().ask("/v1/models/animals/classes")[1] == found


def test_d07_null_labels_are_no_class(agent):
    """D07: null labels are rejected and counted, and the rows stay unlabelled: shares are of those that have a class."""
    a = agent(CONFIG)
    p, y = drawn(np.random.default_rng(7), 500)
    a.post("predictions", predictions(p))
    events = labels(y)
    for event in events[::5]:
        event["label"] = None
    receipt = a.post("labels", events)
    assert (receipt["accepted"], [r["reason"] for r in receipt["rejected"]]) == (400, ["null_label"] * 100)
    a.now(T + 3 * DAY)
    found = a.ask("/v1/models/animals/classes")[1]
    kept = np.arange(500) % 5 > 0
    assert (found["labelled"], sum(found["confusion"]["true"])) == (400, 400)
    assert [c["base_rate"] for c in found["classes"]] == close(np.bincount(y[kept], minlength=3) / 400)
    assert a.gauge("scorewatch_events_rejected_total", reason="null_label") == 100


def test_several_labels_logits_and_margins(agent):
    """Labels that may all be right have no predicted class; margins rank and drift, and nothing calls them probabilities."""
    a = agent(CONFIG)
    rng = np.random.default_rng(2)
    z = rng.normal(size=(300, 2))
    y = rng.random((300, 2)) < 1 / (1 + np.exp(-z))
    common = {"ts": T, "model": "tags"}
    a.post("predictions", [{"id": f"t{i}", "version": "v1", "scores": row, **common} for i, row in enumerate(z.tolist())])
    said = [
        {"id": f"t{i}", "label": [n for n, k in zip(("red", "big"), row, strict=True) if k], **common} for i, row in enumerate(y)
    ]
    assert a.post("labels", said)["accepted"] == 300
    common = {"ts": T, "model": "rank"}
    a.post("predictions", [{"id": f"r{i}", "version": "v1", "score": s, **common} for i, s in enumerate(z[:, 0].tolist())])
    a.post("labels", [{"id": f"r{i}", "label": int(k), **common} for i, k in enumerate(y[:, 0])])
    a.now(T + 3 * DAY)
    found = a.ask("/v1/models/tags/classes")[1]
    assert "confusion" not in found
    assert a.ask("/v1/models/tags/curves")[1]["error"].endswith(" of model tags; there are tags:big, tags:red")
    areas = [roc_auc_score(y[:, i], z[:, i]) for i in (0, 1)]
    assert [c["roc_auc"] for c in found["classes"]] == pytest.approx(areas, abs=1e-3)
    assert [c["base_rate"] for c in found["classes"]] == close(y.mean(axis=0))
    assert estimates(a, "tags:big")["flagged_share"]["value"] == close((z[:, 1] >= 0).mean())
    rank = estimates(a, "rank")
    assert rank["roc_auc"]["value"] == pytest.approx(areas[0], abs=1e-3)
    refused = {name for name, e in rank.items() if e.get("reason") == "margin_scores"}
    assert refused >= {"ece", "ece_width10", "bias", "offset", "slope", "brier", "brier_calibration", "log_loss", "mean_score"}
    assert a.gauge("scorewatch_scored", model="rank", window="28d") == 300
    assert a.ask("/v1/models/rank/reliability?bins=width10")[1]["reason"] == "margin_scores"
    (a.folder / "data.ndjson").write_text(a.ask("/v1/data")[1])
    merged = {item["model"]: item["estimates"] for item in Merged([a.folder / "data.ndjson"]).items("month")}
    assert merged["rank"] == a.ask("/v1/models/rank/days?by=month")[1][0]["estimates"]
    assert merged["rank"]["brier"]["reason"] == "margin_scores"
    assert "reason" not in merged["tags:red"]["brier"]


def test_classes_keep_their_places(agent):
    """A class may be added at the end; another order is refused with what to do, because rows and labels hold places."""
    a = agent(CONFIG)
    p, y = drawn(np.random.default_rng(3), 40)
    a.post("predictions", predictions(p))
    a.post("labels", labels(y))
    assert a.stop() == 0
    a.config.write_text(CONFIG.replace("[cat, dog, other]", "[dog, cat, other]"))
    done = subprocess.run(
        [sys.executable, "-m", "monitor", "run", "--config", a.config], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "models.animals.classes" in done.stderr
    a.config.write_text(CONFIG.replace("[cat, dog, other]", "[cat, dog, other, elk]"))
    a.start()
    row = {"id": "n", "ts": T + 100, "model": "animals", "version": "v1", "scores": [0.1, 0.1, 0.1, 0.7]}
    assert a.post("predictions", [row])["accepted"] == 1
    a.now(T + 3 * DAY)
    found = a.ask("/v1/models/animals/classes")[1]
    assert found["confusion"]["true"] == [*np.bincount(y, minlength=3).tolist(), 0]
    assert found["classes"][3]["reason"] == "no_labels"


def test_tables_of_many_classes_are_small(tmp_path):
    """50 classes and 20 slices take at most 60 MB of tables at 4,000 events a day: 28 days and the hours of one."""
    names, n, days = [f"c{i}" for i in range(50)], 4_000, 2
    text = f"models: {{m: {{classes: [{', '.join(names)}], labels: {{horizon: 1h}}, segments: [s], threshold: 0.5}}}}"
    a = Agent(parse(f"state: state\nclock: events\n{text}", "f.yaml", tmp_path), "0", durable=False)
    rng = np.random.default_rng(0)
    for day in range(days):
        p = rng.dirichlet(np.full(50, 0.3), n)
        common = {
            "id": [f"{day}-{i}" for i in range(n)],
            "ts": np.linspace(T + day * DAY, T + day * DAY + DAY - 1, n).astype(int).tolist(),
        }
        columns = common | {
            "model": "m",
            "version": "v",
            "scores": p.tolist(),
            "segments": [{"s": f"v{i % 18}"} for i in range(n)],
        }
        a.ingest([decode(a.decoder(), json.dumps(columns).encode(), "predictions")])
        said = common | {"label": [names[k] for k in p.argmax(axis=1)]}
        a.ingest([decode(a.decoder(), json.dumps(said).encode(), "labels")])
        a.clock.last = T + (day + 1) * DAY + 3_600_000
        a.tick(a.clock.last)
        a.publish()
    assert {len(w.slices) for w in a.watched.values()} == {1 + 18 + 1}

    def size(table):
        arrays = [getattr(table, name) for name in table.__slots__ if getattr(table, name) is not None]
        return (
            0
            if table is EMPTY
            else sys.getsizeof(table) + sum(sys.getsizeof(x) + x.nbytes * (x.base is not None) for x in arrays)
        )

    hours = sum(size(t) for w in a.watched.values() for hour in w.hours.values() for t in hour)
    kept = sum(size(t) for w in a.watched.values() for day in w.days.values() for t in day.values())
    assert {len(w.hours) for w in a.watched.values()} == {23}
    assert hours + 28 / days * kept < 60e6
    of_slice = [e for e in a.snapshot.estimates if e.key.slice == "s=v3" and e.window == "28d" and e.metric == "prevalence"]
    assert [e.n > 0 for e in of_slice] == [True] * 51
    a.store.close()


def test_replay_of_classes(tmp_path):
    """`replay` takes files of a model with classes and prints the months of its targets, whose names stand in the lines."""
    p, y = drawn(np.random.default_rng(4), 200)
    (tmp_path / "c.yaml").write_text(CONFIG)
    for name, events in (("p", predictions(p)), ("l", labels(y))):
        (tmp_path / f"{name}.ndjson").write_text("\n".join(map(json.dumps, events)) + "\n")
    command = [sys.executable, "-m", "monitor", "replay", "--json", "--config", tmp_path / "c.yaml"]
    done = subprocess.run([*command, tmp_path / "p.ndjson", tmp_path / "l.ndjson"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    items = [json.loads(line) for line in done.stdout.splitlines()]
    assert {i["model"]: i["n"] for i in items if i["kind"] == "month"} == dict.fromkeys(
        [f"animals:{n}" for n in (*NAMES, "top")], 200
    )
    assert timeline.line(next(i for i in items if i["model"] == "animals:top")).endswith("  animals:top v1")


def test_targets_of_a_configuration(tmp_path):
    """Targets are binary models with the threshold of their class and folders of their own; the file shows the parent once."""
    (tmp_path / "b").mkdir()
    for name in ("cat", "dog", "top"):
        (tmp_path / "b" / f"{name}.json").touch()
    text = "models: {a: {classes: [cat, dog], threshold: {cat: 0.8}, policies: p, baseline: b}, t: {}}"
    found = parse(text, "f.yaml", tmp_path)
    assert list(found.models) == ["a:cat", "a:dog", "a:top", "t"]
    assert [m.threshold for m in found.models.values()] == [0.8, None, None, None]
    assert found.models["a:dog"].policies == tmp_path / "p" / "dog"
    assert found.models["a:dog"].baseline == tmp_path / "b" / "dog.json"
    assert list(found.named) == ["a", "t"]
    for severity, budget in found.parents["a"].false_alarms.items():
        assert sum(m.false_alarms[severity] for m in found.models.values() if m.parent) == pytest.approx(budget)


def test_margins_have_no_detector_of_probabilities(tmp_path):
    """With `score: margin` detectors that read a score as a probability are off, and the others keep the whole budget."""
    found = parse("models: {r: {score: margin}, p: {}}", "f.yaml", tmp_path).models
    names = [{r.detector for r in found[name].rules if r.detector} for name in ("p", "r")]
    assert names[0] - names[1] == {"calibration", "high_confidence_errors"}
    assert found["r"].false_alarms == found["p"].false_alarms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {classes: [x]}", "models.a.classes: found 1 classes; write 2 to 50 names"),
        ("a: {classes: [x, x]}", "models.a.classes: found 'x' more than once; write each class once"),
        ("a: {classes: x}", "models.a.classes: found 'x'; write a list such as [cat, dog, other]"),
        ("a: {classes: [x, top]}", "models.a.classes: found 'top', which names the target of the predicted class; "),
        ("a: {classes: [x, y], score: margin}", "models.a.score: found 'margin' with classes; write probability or logit"),
        ("a: {classes: [x, y], threshold: {z: 0.5}}", "models.a.threshold.z: found no such class; write x or y"),
        ("a: {classes: [x, y], threshold: {x: 2}}", "models.a.threshold.x: found 2; write a number from 0 to 1"),
        ("a: {classes: [x, y], labels: {missing: negative}}", "models.a.labels: found missing: negative with classes"),
        ("a: {classes: [x, y], review: {per_day: 5}}", "models.a.review: found a review of a model with classes"),
        ("a: {classes: [x, y], labels_mode: multi, sum_tolerance: 0.1}", "models.a.sum_tolerance: found it with labels_mode"),
        ("a: {classes: [x, y], sum_tolerance: 0.9}", "models.a.sum_tolerance: found 0.9; write how far from 1"),
        ("a: {classes: [x, y]}, 'a:x': {}", "models.a.classes: found 'x', whose target is called 'a:x' as another model is"),
        (
            "a: {classes: ['x:y', z]}, 'a:x': {classes: [y, w]}",
            "models.'a:x'.classes: found 'y', whose target is called 'a:x:y'",
        ),
        ("'*': {classes: [x, y]}", "models.*.classes: found classes at '*', which stands for any model"),
        ("a: {threshold: {x: 0.5}}", "models.a.threshold: found a mapping without classes; write a number from 0 to 1"),
        ("a: {labels_mode: multi}", "models.a.labels_mode: found it without classes; write classes, too, or leave it out"),
        ("a: {score: margin, threshold: 0.5}", "models.a.threshold: found a threshold with score margin"),
        ("a: {score: odds}", "models.a.score: found 'odds'; write probability, logit or margin"),
        ("a: {classes: [x, y], baseline: .}", "models.a.baseline: found no file '/base/x.json'"),
    ],
)
def test_errors_of_a_configuration(text, message):
    """What does not go together is named with its key and what to write."""
    with pytest.raises(ConfigError) as e:
        parse(f"models: {{{text}}}", "f.yaml", Path("/base") if "baseline" not in text else Path("/"))
    assert message.replace("/base/", "/") in str(e.value)
