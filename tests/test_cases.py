"""Acceptance cases from outside: faults that other tools were reported for, each re-made small. The numbers are the cases'."""

import base64
import json
import time

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, precision_recall_curve, roc_auc_score, roc_curve

from monitor.core import baseline as baselines
from monitor.core.intervals import delong
from monitor.core.policy import apply, policy
from monitor.core.tables import BINS, EDGES, LABEL, ROW, grid_bin
from test_http import command

DAY = 86_400_000
NOON = 1_740_916_800_000 + DAY // 2
"""Noon of 2025-03-02 in ms."""

# A version is spoken of for `idle_after` beyond its last event; a case looks at it when its last day is mature.
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h}, threshold: 0.5, idle_after: 7d}
"""


class Case:
    """One agent and how many events it was sent; every answer is waited for, never slept for."""

    def __init__(self, agent):
        self.agent, self.sent = agent, 0

    def send(self, kind, events, day=0):
        """Post events as a JSON list and return the receipt, whose parts must add up."""
        at = NOON + day * DAY
        receipt = self.agent.post(kind, [{"ts": at, **e} for e in events])
        assert receipt["accepted"] + receipt["duplicates"] + len(receipt["rejected"]) == len(events)
        self.sent += len(events)
        return receipt

    def scored(self, y, p, day=0, version="v1"):
        """Send predictions and their labels, all good, on one day."""
        taken = {"accepted": len(p), "duplicates": 0, "rejected": []}
        ids = [f"{version}-{day}-{i}" for i in range(len(p))]
        predictions = [{"id": i, "model": "m", "version": version, "score": s} for i, s in zip(ids, map(float, p), strict=True)]
        assert self.send("predictions", predictions, day) == taken
        assert self.send("labels", [{"id": i, "label": k} for i, k in zip(ids, map(int, y), strict=True)], day) == taken

    def mature(self, day=0):
        """Let the day mature and return all series of the rendering that holds it and every event sent."""
        now = (NOON + day * DAY) // DAY * DAY + 2 * DAY
        self.agent.now(now)
        self.agent.ask("/v1/state")  # which makes the rendering of this tick now instead of within a second
        return self.wait(now)

    def wait(self, now):
        """Return /metrics as soon as it is of the tick at `now`, with every event sent."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = self.agent.metrics(refresh=False)
            at, seen = found.get("scorewatch_last_tick_timestamp_seconds"), found.get('scorewatch_events_total{source="http"}')
            if at == now / 1000 and seen == self.sent:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no rendering of the tick at {now} with {self.sent} events:\n{self.agent.log.read_text()}")

    def reliability(self):
        """Return the diagram of ten equal widths."""
        status, body, _ = self.agent.ask("/v1/models/m/reliability?bins=width10")
        assert status == 200, body
        return body


@pytest.fixture
def case(agent):
    """Return a case on an agent of its own; at the end the agent is up and its counters add up to what was sent."""
    made = Case(agent(CONFIG))
    yield made
    found = made.agent.metrics(refresh=False)
    assert made.agent.process.poll() is None
    counted = {name: total(found, f"scorewatch_events_{name}total") for name in ("", "accepted_", "rejected_", "duplicate_")}
    assert counted[""] == made.sent
    assert counted["accepted_"] + counted["rejected_"] + counted["duplicate_"] == made.sent
    assert "Traceback" not in made.agent.log.read_text()


def total(found, name, **labels):
    """Return the sum of all series of a name with these labels."""
    return sum(v for k, v in found.items() if k.split("{")[0] == name and all(f'{a}="{b}"' in k for a, b in labels.items()))


def gauge(found, name, window="28d", version="v1"):
    """Return the value of slice `all` over a window, None when there is no such series."""
    where = f'model="m",role="live",slice="all",version="{version}",window="{window}"'
    values = [v for k, v in found.items() if k.split("{")[0] == f"scorewatch_{name}" and ordered(k) == where]
    assert len(values) < 2
    return values[0] if values else None


def ordered(series):
    """Return the labels of a series in the order of their names."""
    return ",".join(sorted(series.partition("{")[2].rstrip("}").split(",")))


def unavailable(found, window="28d", version="v1"):
    """Return {estimate: reason} of what has no value in slice `all` over a window."""
    wanted = f'slice="all",version="{version}",window="{window}"'
    out = {}
    for series, value in found.items():
        if series.startswith("scorewatch_estimate_available{") and value == 0 and ordered(series).endswith(wanted):
            labels = dict(part.split("=") for part in ordered(series).split(","))
            out[labels["estimate"].strip('"')] = labels["reason"].strip('"')
    return out


def ece(y, p):
    """Return the calibration error over ten equal-width bins, the last one closed, in four lines of NumPy."""
    which = np.minimum((p * 10 + 1e-9).astype(int), 9)
    gaps = np.abs(np.bincount(which, y - p, 10))
    return gaps.sum() / len(p)


def close(value):
    """Return what the cases call equal."""
    return pytest.approx(value, abs=1e-6)


def test_d01_a_score_of_one_belongs_to_the_last_bin(case):
    """D01: the last of exactly ten bins is closed, so ECE and MCE of 0.95 and 1.0 with outcomes 1 and 0 are 0.475."""
    case.scored([1, 0], [0.95, 1.0])
    found = case.mature()
    assert (gauge(found, "ece_width10"), gauge(found, "mce_width10")) == (close(0.475), close(0.475))
    assert [b["n"] for b in case.reliability()["bins"]] == [0] * 9 + [2]


def test_d02_calibration_error_is_that_of_the_positive_class(case):
    """D02: a model 20 points too low everywhere has ECE 0.2 and bias -0.2, and HELP says which definition that is."""
    case.scored([1, 1, 0, 0, 0] + [1] * 5, [0.2] * 5 + [0.8] * 5)
    found = case.mature()
    assert (gauge(found, "ece_width10"), gauge(found, "bias")) == (close(0.2), close(-0.2))
    diagram = case.reliability()
    assert diagram["ece_top_label"] == close(0.0)
    assert [(b["gap"], b["contribution"]) for b in diagram["bins"] if b["n"]] == [(close(0.2), close(0.1))] * 2
    text = case.agent.ask(case.agent.metrics_url)[1]
    helps = {line.split()[2]: line.split(maxsplit=3)[3] for line in text.splitlines() if line.startswith("# HELP")}
    assert "P(positive)" in helps["scorewatch_ece_width10"]
    assert "not of the top-label confidence" in helps["scorewatch_ece_width10"]
    assert helps["scorewatch_bias"].startswith("Mean P(positive) minus the share of positives")


def test_d04_scores_a_hair_outside_are_clipped_and_others_named(case):
    """D04: two of seven odd scores are clipped and taken, five named and rejected, and good neighbours kept, in any form."""
    odd = [1.0000000000000002, -1e-17, 1.2, -0.3, float("nan"), "0.7", None]
    reasons = ["out_of_range", "out_of_range", "not_finite", "type", "type"]
    forms = {
        "list": json.dumps,
        "ndjson": lambda events: "\n".join(map(json.dumps, events)),
        "columns": lambda events: json.dumps({name: [e[name] for e in events] for name in events[0]}),
    }
    for form, written in forms.items():
        scores = [0.25, *odd, 0.75]
        events = [{"id": f"{form}-{i}", "ts": NOON, "model": "m", "version": "v1", "score": s} for i, s in enumerate(scores)]
        receipt = case.agent.post("predictions", written(events).encode())
        case.sent += len(scores)
        rejected = [(r["index"], r["reason"]) for r in receipt["rejected"]]
        assert (receipt["accepted"], receipt["duplicates"], rejected) == (4, 0, list(zip(range(3, 8), reasons, strict=True)))
        assert all(str(value) in r["detail"] for value, r in zip(odd[2:], receipt["rejected"], strict=True))
        case.send("labels", [{"id": f"{form}-{i}", "label": k} for i, k in ((0, 0), (1, 1), (2, 0), (8, 1))])
    found = case.mature()
    assert total(found, "scorewatch_scores_clipped_total") == 6
    counted = {r: total(found, "scorewatch_events_rejected_total", reason=r) for r in reasons}
    assert counted == {"out_of_range": 6, "not_finite": 3, "type": 6}
    assert (gauge(found, "scored"), gauge(found, "mean_score"), gauge(found, "ece_width10")) == (12, close(0.5), close(0.125))


def test_d05_one_class_leaves_a_reason_and_no_number(case):
    """D05: with all labels 0 AUC and recall are absent with a reason, the rest is right, and the next window has them again."""
    rng = np.random.default_rng(5)
    p = rng.choice(np.arange(0.025, 1, 0.05), 500)
    case.scored(np.zeros(500), p)
    found = case.mature()
    for window in ("7d", "28d"):
        reasons = unavailable(found, window)
        assert (reasons["roc_auc"], reasons["recall"]) == ("one_class", "no_positives")
        assert {reasons[name] for name in ("partial_roc_auc", "offset", "slope", "intercept")} == {"one_class"}
        assert {reasons[name] for name in ("average_precision", "balanced_accuracy")} == {"no_positives"}
        for name in reasons:
            assert [gauge(found, f"{name}{end}", window) for end in ("", "_low", "_high")] == [None] * 3
        assert (gauge(found, "labelled", window), gauge(found, "prevalence", window)) == (500, 0)
        assert gauge(found, "ece_width10", window) == close(ece(np.zeros(500), p))
        assert gauge(found, "brier", window) == close((p**2).mean())
        assert gauge(found, "log_loss", window) == close(-np.log1p(-p).mean())
    y = rng.random(500) < p
    case.scored(y, p, day=30)
    found = case.mature(day=30)
    assert gauge(found, "roc_auc") == close(roc_auc_score(y, p))
    assert gauge(found, "recall") == close((y & (p >= 0.5)).sum() / y.sum())
    assert gauge(found, "ece_width10") == close(ece(y, p))
    assert gauge(found, "brier") == close(brier_score_loss(y, p))
    assert gauge(found, "log_loss") == close(log_loss(y, p))
    assert not {"roc_auc", "recall", "ece_width10", "brier", "log_loss"} & unavailable(found).keys()


def test_d06_auc_is_that_of_the_scores_that_were_sent(case):
    """D06: with an isotonic calibrator served, AUC is that of the scores sent, and the one of served scores differs by ties."""
    rng = np.random.default_rng(6)
    p = rng.beta(1.2, 2.5, 5_000)
    y = rng.random(5_000) < p**1.5
    steps = EDGES[grid_bin(np.linspace(0.1, 0.9, 9))]
    calibrator = {"kind": "isotonic", "edges": [0.0, *steps.tolist()], "values": (np.append(0.02, steps) ** 1.5).tolist()}
    served = policy("1-000001", "m", "v1", {"all": 0.5}, calibrator)
    case.agent.now(NOON // DAY * DAY)
    body = {"version": "v1", "who": "ann", "reason": "calibrated", "policy": json.loads(served.to_json())}
    status, done, _ = case.agent.ask("/v1/models/m/activate", body)
    assert status == 200, done
    case.scored(y, p)
    found = case.mature()
    auc = {name: gauge(found, f"{name}roc_auc") for name in ("", "calibrated_")}
    se = np.sqrt(delong(*(np.bincount(grid_bin(p[y == k]), minlength=BINS).astype(float) for k in (0, 1)))[1])
    assert auc[""] == pytest.approx(roc_auc_score(y, p), abs=max(5e-5, 0.05 * se))
    assert auc[""] == pytest.approx(roc_auc_score(y, grid_bin(p)), abs=1e-12)
    q = apply(calibrator, p)
    assert auc["calibrated_"] == pytest.approx(roc_auc_score(y, q), abs=1e-12)
    assert 0 < abs(auc["calibrated_"] - auc[""]) < 0.02
    for name, scores in (("brier", p), ("calibrated_brier", q)):
        assert gauge(found, name) == pytest.approx(brier_score_loss(y, scores), rel=1e-9)
    assert gauge(found, "calibrated_bias") == close(q.mean() - y.mean())
    assert gauge(found, "bias") == close(p.mean() - y.mean())


def test_d07_a_missing_label_is_neither_a_class_nor_a_negative(case):
    """D07: a fifth of the labels null, NaN or empty is rejected and counted; prevalence stays 0.5 of two classes."""
    rng = np.random.default_rng(7)
    p = rng.choice(np.arange(0.025, 1, 0.05), 50_000).tolist()
    missing = [None, float("nan"), ""]
    labels = [v for i in range(10_000) for v in (0, 0, 1, 1, missing[i % 3])]
    case.send("predictions", [{"id": str(i), "model": "m", "version": "v1", "score": s} for i, s in enumerate(p)])
    receipt = case.send("labels", [{"id": str(i), "label": k} for i, k in enumerate(labels)])
    named = ["null_label", "not_finite", "type"]
    assert [(r["index"], r["reason"]) for r in receipt["rejected"]] == [(5 * i + 4, named[i % 3]) for i in range(10_000)]
    found = case.mature()
    assert [total(found, "scorewatch_events_rejected_total", reason=r) for r in named] == [3334, 3333, 3333]
    assert (gauge(found, "prevalence"), gauge(found, "majority_share")) == (0.5, 0.5)
    assert (gauge(found, "scored"), gauge(found, "labelled")) == (50_000, 40_000)
    assert (total(found, "scorewatch_matured"), total(found, "scorewatch_never_labelled")) == (50_000, 10_000)
    bins = case.reliability()["bins"]
    assert sum(b["n"] for b in bins) == 40_000
    assert sum(b["n"] * b["observed"] for b in bins) == close(20_000)
    sure = np.array(labels[: len(p)], object)
    kept = np.array([k in (0, 1) and k != "" for k in sure])
    assert gauge(found, "ece_width10") == close(ece(sure[kept].astype(float), np.array(p)[kept]))


def test_d11_no_gauge_of_a_vanished_version_stays(case):
    """D11: once version a is idle and all its days are closed no gauge names it, while version b's are there."""
    rng = np.random.default_rng(11)
    p = rng.choice(np.arange(0.025, 1, 0.05), 300)
    y = rng.random(300) < p
    case.scored(y, p, version="a")
    found = case.mature()
    names_a = {k.split("{")[0] for k in found if 'version="a"' in k}
    assert gauge(found, "ece_width10", version="a") == close(ece(y, p))
    for day in range(3, 9):
        case.scored(y, p, day=day, version="b")
    found = case.mature(day=8)
    text = case.agent.ask(case.agent.metrics_url)[1]
    counters = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" counter")}
    assert {k.split("{")[0] for k in found if 'version="a"' in k} <= counters
    assert names_a - counters <= {k.split("{")[0] for k in found if 'version="b"' in k}
    assert gauge(found, "ece_width10", version="b") == close(ece(np.tile(y, 6), np.tile(p, 6)))
    assert [v["version"] for v in case.agent.ask("/v1/state")[1]["versions"]] == ["b"]


def asked(case, *args):
    """Return the output of a command that finds the agent by its configuration."""
    there = case.agent.folder / "there.yaml"
    there.write_text(CONFIG.replace("api: 127.0.0.1:0", f"api: {case.agent.api.removeprefix('http://')}"))
    code, out, err = command(there, *args)
    assert (code, err) == (0, "")
    return out


def calibrated(case):
    """Return what `scorewatch calibrate` says on five days, and which policy is served and what the journal has after it."""
    case.mature(day=4)
    found = json.loads(asked(case, "calibrate", "m", "--json"))
    return found, case.agent.ask("/v1/models/m/policy")[:2], case.agent.ask("/v1/models/m/decisions")[1]


def test_d14_a_fit_that_changes_nothing_is_no_calibration(case):
    """D14: scores that are right are tried and left alone, with the reason in the journal, and the policy is the one before."""
    rng = np.random.default_rng(14)
    served = policy("1-000001", "m", "v1", {"all": 0.5})
    case.agent.now(NOON // DAY * DAY)
    body = {"version": "v1", "who": "ann", "reason": "first", "policy": json.loads(served.to_json())}
    assert case.agent.ask("/v1/models/m/activate", body)[0] == 200
    for day in range(5):
        p = rng.beta(1.2, 2.5, 600)
        case.scored(rng.random(600) < p, p, day)
    before = case.agent.ask("/v1/models/m/policy")[:2]
    assert (before[0], before[1]["id"]) == (200, served.id)
    found, after, journal = calibrated(case)
    assert (found["reason"], found["policy"], found["proposal"]) == ("no_improvement", None, None)
    assert [t["reason"] for t in found["report"]["candidates"] if t["kind"] in ("temperature", "offset", "platt")] == [""] * 3
    assert after == before
    assert [e["kind"] for e in journal] == ["decision", "activated"]
    assert (journal[0]["reason"], journal[0]["allowed"]) == ("no_improvement", False)


def test_d15_no_trial_of_certain_scores(case):
    """D15: a trial of scores that are all 1 is refused as degenerate, and no logit of 1 is divided by anything."""
    for day in range(5):
        case.scored([1] * 140 + [0] * 60, [1.0] * 200, day)
    found, after, journal = calibrated(case)
    assert (found["reason"], found["policy"], after[0]) == ("degenerate", None, 404)
    assert (journal[0]["kind"], journal[0]["rule"], journal[0]["reason"]) == ("decision", "by hand", "degenerate")
    assert "activated" not in {e["kind"] for e in journal}


def test_d15_a_model_that_only_says_one_is_degenerate(case):
    """D15: p = 1 with 70 % positives has ECE 0.3, and the logarithm is refused with the reason degenerate."""
    case.scored([1] * 700 + [0] * 300, [1.0] * 1000)
    found = case.mature()
    assert (gauge(found, "ece_width10"), gauge(found, "mce_width10"), gauge(found, "brier")) == (close(0.3),) * 3
    assert gauge(found, "log_loss") is None
    assert {unavailable(found)[name] for name in ("log_loss", "log_loss_calibration", "offset", "slope")} == {"degenerate"}
    diagram = case.reliability()
    assert (diagram["limit"], diagram["survives"]) == (0.05, True)
    assert [e["value"] for e in diagram["ece_by_bins"].values()] == [close(0.3)] * len(diagram["ece_by_bins"])


def test_d17_the_reliability_diagram_keeps_its_empty_bins(case):
    """D17: the diagram always has ten bins with their edges; an empty one has count 0 and null means."""
    case.scored([1, 1, 0], [0.9, 0.8, 0.2])
    case.mature()
    bins = case.reliability()["bins"]
    assert [(b["lower"], b["upper"]) for b in bins] == [(close(i / 10), close((i + 1) / 10)) for i in range(10)]
    held = {2: (1, 0.2, 0.0), 8: (1, 0.8, 1.0), 9: (1, 0.9, 1.0)}
    assert [(b["n"], b["mean_score"], b["observed"]) for b in bins] == [held.get(i, (0, None, None)) for i in range(10)]
    assert all((b["low"], b["high"]) == (None, None) for b in bins if not b["n"])


def test_curves_are_those_of_the_outcomes(case):
    """The curves of a mature window are scikit-learn's of what was sent, with counts by threshold; one class has a reason."""
    rng = np.random.default_rng(18)
    p = rng.choice(np.arange(0.025, 1, 0.05), 400)
    y = rng.random(400) < p
    case.scored(y, p)
    case.mature()
    status, found, _ = case.agent.ask("/v1/models/m/curves")
    assert (status, found["n"], found["window"], found["slice"]) == (200, 400, "28d", "all")
    fpr, tpr, _ = roc_curve(y, p, drop_intermediate=False)
    assert (found["roc"]["fpr"], found["roc"]["tpr"]) == (pytest.approx(fpr), pytest.approx(tpr))
    assert found["roc"]["youden"] == close((tpr - fpr).max())
    precision, recall, _ = precision_recall_curve(y, p)
    assert found["precision_recall"]["precision"] == pytest.approx(precision[-2::-1])
    assert found["precision_recall"]["recall"] == pytest.approx(recall[-2::-1])
    assert [c["threshold"] for c in found["counts"]] == [k / 20 for k in range(1, 20)]
    for c in (*found["counts"], found["current"]):
        flagged = p >= c["threshold"]
        counts = [(flagged & y).sum(), (flagged & ~y).sum(), (~flagged & y).sum(), (~flagged & ~y).sum()]
        assert [c["tp"], c["fp"], c["fn"], c["tn"]] == counts
    assert found["current"]["threshold"] == 0.5
    wrong = np.where(p >= 0.5, ~y, y)
    errors = case.reliability()["errors_at_high_confidence"]
    assert (errors["value"], errors["n"]) == (close(wrong[np.maximum(p, 1 - p) >= 0.8].sum() / wrong.sum()), wrong.sum())
    assert case.agent.ask("/v1/models/m/curves?window=1h")[0] == 404
    case.scored(np.zeros(5), np.full(5, 0.1), day=30)
    case.mature(day=30)
    found = case.agent.ask("/v1/models/m/curves")[1]
    assert (found["roc"], found["precision_recall"]) == ({"reason": "one_class"}, {"reason": "no_positives"})
    assert case.reliability()["errors_at_high_confidence"] == {"reason": "no_errors"}
    case.mature(day=70)
    assert case.agent.ask("/v1/models/m/curves")[0] == 404


TINY_SCORES = [0.0, 5e-324, 1e-300, 1e-300 * (1 + 2e-16), 1 - 1.1e-16, 1.0]


def test_d03_scores_at_the_ends_of_what_a_float_can_hold(case):
    """D03: scores that differ by less than a float can say leave every number finite and in range."""
    p = np.array(TINY_SCORES * 100)
    case.scored(np.arange(len(p)) % 3 == 0, p)
    found = case.mature()
    ours = {k: v for k, v in found.items() if k.startswith("scorewatch_")}
    assert all(np.isfinite(v) for v in ours.values())
    assert 0 <= gauge(found, "ece_width10") <= 1
    assert 0 <= gauge(found, "roc_auc") <= 1


def test_d03_a_calibrator_of_such_scores_is_finite_and_rises(case):
    """D03: an isotonic calibrator that wins a trial on them serves finite scores in [0, 1] that rise; a worse one is refused."""
    rng = np.random.default_rng(3)
    for day in range(5):
        p = np.concatenate((np.repeat(TINY_SCORES, 40), rng.random(1_200)))
        case.scored(rng.random(len(p)) < np.select([p < 0.25, p < 0.65], [0.05, 0.5], 0.95), p, day)
    found, _, _ = calibrated(case)
    assert (found["reason"], found["report"]["calibrator"]["kind"]) == ("proposed", "isotonic")
    asked(case, "approve", str(found["proposal"]), "--reason", "it won")
    body = case.agent.ask("/v1/models/m/policy")[1]
    served = apply(body["calibrator"], np.sort(np.append(np.linspace(0, 1, 10_001), TINY_SCORES)))
    assert np.isfinite(served).all()
    assert (served.min() >= 0, served.max() <= 1, (np.diff(served) >= 0).all()) == (True, True, True)
    values = body["calibrator"]["values"]
    for wrong, code in ((float("inf"), 400), (float("nan"), 400), (0.0, 409)):
        worse = {**body["calibrator"], "values": [*values[:-1], wrong]}
        given = {**body, "id": "", "checksum": "", "bands": None, "calibrator": worse}
        status, said, _ = case.agent.ask(
            "/v1/models/m/activate", {"version": "v1", "who": "ann", "reason": "worse", "policy": given}
        )
        assert status == code, said
    assert case.agent.ask("/v1/models/m/policy")[1] == body


WATCHED = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {baseline: baseline.json, labels: {horizon: 24h}, threshold: 0.5, idle_after: 7d}
"""


@pytest.fixture
def against(agent, tmp_path):
    """Return a function that starts an agent with a baseline of these scores, spread over the 30 days before, and no outcomes."""

    def start(scores):
        rows, labels = np.zeros(len(scores), ROW), np.zeros(len(scores), LABEL)
        rows["score"], labels["outcome"] = scores, -1
        rows["ts"] = NOON // DAY * DAY - 30 * DAY + np.arange(len(scores)) * (30 * DAY) // len(scores)
        made = baselines.build("m", "v1", (), rows, labels, [()], {"kind": "validation"})
        (tmp_path / "agent").mkdir()
        (tmp_path / "agent" / "baseline.json").write_text(baselines.to_json(made))
        return agent(WATCHED)

    return start


def packed(a, scores, day):
    """Send predictions of one day as packed columns."""
    encode = lambda x: base64.b64encode(x.tobytes()).decode()  # noqa: E731
    for part in np.array_split(np.arange(len(scores)), max(1, len(scores) // 250_000)):
        ids = "\n".join(f"{day}-{i}" for i in part.tolist())
        ts = NOON // DAY * DAY + day * DAY + part * DAY // len(scores)
        body = {"n": len(part), "id": ids, "ts": encode(ts), "score": encode(scores[part]), "model": "m", "version": "v1"}
        status, receipt, _ = a.ask("/v1/predictions", json.dumps(body).encode())
        assert (status, receipt["accepted"]) == (200, len(part))


def test_d09_a_shift_that_only_a_million_rows_can_see_is_no_alert(against):
    """D09: scores .01 standard deviations off are seen by KS at n = 10**6 (p = 1e-10); psi says 1.5e-4, and nothing alerts."""
    rng = np.random.default_rng(9)
    base, live = (1 / (1 + np.exp(-rng.normal(m, 1, 1_000_000))) for m in (0.0, 0.01))
    a = against(base)
    for day in range(5):
        packed(a, live[day * 200_000 : (day + 1) * 200_000], day)
    a.now((NOON // DAY + 5) * DAY)
    assert 0 < a.gauge("scorewatch_psi", window="24h") < 1e-3
    assert a.gauge("scorewatch_evidence", rule="score_drift") < a.gauge("scorewatch_evidence_limit", rule="score_drift")
    assert a.gauge("scorewatch_alert_active", rule="score_drift") == 0
    assert a.state()["alerts"] == []


def test_d10_an_empty_bin_makes_no_absurd_psi(against):
    """D10: one score of .95 where the baseline has none above .5 leaves psi finite and small."""
    grid = (np.arange(1_000) + 0.5) / 2_000
    a = against(grid)
    packed(a, np.append(grid, 0.95), 0)
    a.now((NOON // DAY + 1) * DAY)
    assert 0 <= a.gauge("scorewatch_psi", window="24h") < 0.02
