"""What is said of the scores that a calibrator serves: estimates, rules, detectors and the promise of thresholds by slice."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from monitor.core import baseline as baselines
from monitor.core.detectors import to_dict
from monitor.core.events import DAY
from monitor.core.policy import apply, policy, with_calibrator
from monitor.core.tables import EDGES, LABEL, ROW
from monitor.server import page_of, problem, reliability_of, state_of
from monitor.store.policies import checksum
from monitor.watched import baseline_checksum
from test_agent import DAY0, Program
from test_decider import RULES, World, draw

MENDS = {"kind": "offset", "a": -1.0}
BOTH = RULES.replace("calibration_drift: off, ", "")


class Days(World):
    """Days of 400 rows of which all logits are 1 below those of the scores; a day's labels are there an hour later."""

    def rows(self, first, last):
        """Return scores and outcomes of the days from first on up to but not with last."""
        drawn = [draw(np.random.default_rng([7, day]), 400, -1.0) for day in range(first, last)]
        return tuple(np.concatenate(part) for part in zip(*drawn, strict=True))

    def serve(self, calibrator, at, ident):
        """Make a policy with a calibrator current, as a person would, whether there was one before or only a threshold."""
        self.now(at)
        made = with_calibrator(self.agent.served.deciding("m", "v1"), ident, calibrator, {"who": "ann"})
        body = json.loads(replace(made, checksum=checksum(made)).to_json())
        self.agent.command("activate", "m", "v1", "ann", "try", policy=body)

    @property
    def watched(self):
        """Return the version."""
        (w,) = self.agent.watched.values()
        return w

    def shown(self, basis, name="all", window="28d"):
        """Return the estimates of a window by metric."""
        self.agent.publish()
        found = (e for e in self.agent.snapshot.estimates if (e.key.slice, e.window, e.basis) == (name, window, basis))
        return {e.metric: e for e in found}

    def alerts(self):
        """Return (day, rule, state) of what alerts did."""
        return [((e.at - DAY0 * DAY) / DAY, e.body["rule"], e.body["state"]) for e in self.journal("alert")]


@pytest.fixture
def world(tmp_path):
    """Return a function that makes the world; its files are closed at the end."""
    made = []

    def make(**kw):
        made.append(Days(tmp_path, mode="off", **kw))
        return made[-1]

    yield make
    for w in made:
        w.loop.close()


def test_both_scales_are_measured_apart(world):
    """Served scores are measured on whole days since the calibrator came, those of the model on all; without one only those."""
    w = world()
    w.days(0, 3, offset=-1.0)
    assert b"scorewatch_calibrated_" not in w.agent.exporter.text
    assert w.shown("calibrated") == {}
    w.serve(MENDS, 3.5, "1-000001")
    w.days(3, 5, offset=-1.0)
    assert {e.reason for e in w.shown("calibrated").values()} == {"no_days_since"}
    w.days(5, 8, offset=-1.0)
    p, y = w.rows(4, 7)
    q, found = apply(MENDS, p), w.shown("calibrated")
    wanted = {"brier": brier_score_loss(y, q), "log_loss": log_loss(y, q), "roc_auc": roc_auc_score(y, q)}
    wanted |= {"mean_score": q.mean(), "bias": q.mean() - y.mean()}
    assert {name: found[name].value for name in wanted} == pytest.approx(wanted, abs=5e-5)
    assert {e.n for e in found.values() if e.metric not in ("mce", "high_confidence_error_share")} == {1_200}
    assert w.shown("calibrated", window="7d")["bias"] == replace(found["bias"], window="7d")
    p, y = w.rows(0, 7)
    raw = w.shown("mature")
    assert raw["brier"].value == pytest.approx(brier_score_loss(y, p), rel=1e-9)
    assert (raw["bias"].n, raw["offset"].value < -0.8, abs(found["offset"].value) < 0.3) == (2_800, True, True)
    assert raw["roc_auc"].value == pytest.approx(roc_auc_score(y, p), abs=5e-5)
    text = w.agent.exporter.text.decode()
    assert (
        f'scorewatch_calibrated_brier{{model="m",role="live",slice="all",version="v1",window="28d"}} {found["brier"].value}'
        in text
    )
    state = state_of(w.agent.snapshot)["versions"][0]["estimates"]["all"]["28d"]
    assert (state["bias"]["value"], state["calibrated_bias"]["value"]) == (raw["bias"].value, found["bias"].value)
    assert f"{raw['bias'].value:.3f}" in page_of(w.agent.snapshot, [], [])


def test_the_same_calibrator_goes_on(world):
    """Another threshold begins nothing anew; another calibrator does, and the way back to the model's scores as well."""
    w = world()
    w.days(0, 2, offset=-1.0)
    assert w.watched.calibrated == 0
    w.serve(MENDS, 2, "1-000001")
    w.days(2, 4)
    assert w.watched.calibrated == DAY0 + 2
    w.agent.command("activate", "m", "v1", "ann", "lower", threshold=0.3)
    w.days(4, 5)
    assert (w.current().calibrator, w.watched.calibrated, w.watched.calibrates) == (MENDS, DAY0 + 2, True)
    w.serve({"kind": "offset", "a": -0.9}, 5.5, "1-000003")
    w.days(5, 6)
    assert w.watched.calibrated == DAY0 + 6
    w.agent.command("activate", "m", "v1", "ann", "undo", policy=json.loads(_plain("1-000004").to_json()))
    w.days(6, 7)
    assert (w.watched.calibrated, w.watched.calibrates) == (DAY0 + 6, False)


def _plain(ident):
    made = policy(ident, "m", "v1", {"all": 0.5})
    return replace(made, checksum=checksum(made))


def test_rules_look_at_the_scores_that_are_served(world):
    """An alert fires on until 500 rows since the calibrator are mature, resolves on them, and is promised nothing."""
    w = world(rules=BOTH)
    w.days(0, 6, offset=-1.0)
    fired = w.alerts()
    assert {(rule, state) for _, rule, state in fired} == {("calibration", "firing"), ("calibration_drift", "firing")}
    w.serve(MENDS, 6.5, "1-000001")
    w.days(6, 8, offset=-1.0)
    assert w.alerts() == fired
    assert {a.rule: (a.state, a.expected) for a in w.agent.alerts.values()} == dict.fromkeys(
        ("calibration", "calibration_drift"), ("firing", None)
    )
    w.days(8, 9, offset=-1.0)  # day 7 is mature: 400 rows, too few for the rule, and enough for the detector to see no effect
    assert w.alerts()[2:] == [(9.0, "calibration_drift", "resolved")]
    w.days(9, 10, offset=-1.0)
    assert w.alerts()[3:] == [(10.0, "calibration", "resolved")]
    w.days(10, 13, offset=-1.0)
    assert w.alerts()[4:] == []
    # On the scale that is served they are off again, twice as far as the model's own scores to the other side.
    w.days(13, 17, offset=1.0)
    assert {(rule, state) for _, rule, state in w.alerts()[4:]} == {("calibration", "firing"), ("calibration_drift", "firing")}
    assert w.shown("calibrated")["offset"].value > 0.3


def test_a_rule_about_decisions_stays_on_all_days(world):
    """What reads no probability is about the model's scores on all days, in the same rule as what does."""
    w = world(rules=f"{RULES}, calibration: off")
    w.days(0, 3, offset=-1.0)
    w.serve(MENDS, 3.5, "1-000001")
    w.days(3, 8, offset=-1.0)
    found = w.watched.evidence("mature", "28d", ["ece", "roc_auc", "recall"], w.agent.clock.last)
    assert {name: (e.basis, e.n) for name, e in found.items()} == {
        "ece": ("calibrated", 1_200),
        "roc_auc": ("mature", 2_800),
        "recall": ("mature", int(w.rows(0, 7)[1].sum())),
    }
    assert found["ece"].low == w.shown("calibrated")["ece"].low
    (hours,) = w.watched.evidence("scored", "24h", ["mean_score"], w.agent.clock.last).values()
    assert hours.value == pytest.approx(apply(MENDS, w.rows(7, 8)[0]).mean(), abs=1e-5)


def test_a_restart_knows_since_when(tmp_path):
    """Evidence, estimates and alerts are those of an agent that never stopped, also when evidence is made anew."""

    def run(folder, again=False, damaged=False):
        folder.mkdir()
        w = Days(folder, mode="off", rules=BOTH)
        w.days(0, 3, offset=-1.0)
        w.serve(MENDS, 3.5, "1-000001")
        w.days(3, 5, offset=-0.3)
        for day in range(5, 9):
            w.days(day, day + 1, offset=-0.3)
            if damaged and day == 7:
                with w.agent.store.log.transaction():
                    w.agent.store.log.set_meta({"looks:0": b"damaged"})
            if again:
                w.again()
        since = w.watched.looks.evidence["calibration_drift"].since
        evidence = {name: to_dict(e) for name, e in w.watched.looks.evidence.items()}
        said = evidence, w.shown("calibrated"), w.alerts(), since
        w.loop.close()
        return said

    once = run(tmp_path / "a")
    assert once == run(tmp_path / "b", again=True) == run(tmp_path / "c", again=True, damaged=True)
    assert once[3] == DAY0 + 4


def test_the_diagram_of_the_served_scores(world):
    """The bins of the diagram are those frozen in the baseline, where they are on the scale that is served."""
    w = world()
    w.days(0, 3, offset=-1.0)
    w.serve(
        {"kind": "histogram", "edges": [0.0, float(EDGES[900]), float(EDGES[1100])], "values": [0.1, 0.3, 0.6]}, 3, "1-000001"
    )
    w.days(3, 8, offset=-1.0)
    w.agent.publish()
    s = w.agent.snapshot
    (v,) = s.versions
    model, served = (reliability_of(s, v, {"scores": scores}) for scores in ("model", "served"))
    assert reliability_of(s, v, {}) == model
    assert (model["n"], served["n"], model["scores"], served["scores"]) == (2_800, 1_600, "model", "served")
    p, y = w.rows(3, 7)
    seen = [b for b in served["bins"] if b.n]
    edges = [0.0, float(EDGES[900]), float(EDGES[1100]), 2.0]
    there = [(p >= low) & (p < high) for low, high in itertools.pairwise(edges)]
    assert [(b.n, round(b.mean_score, 9), round(b.observed, 9)) for b in seen] == [
        (int(mine.sum()), value, round(y[mine].mean(), 9)) for mine, value in zip(there, (0.1, 0.3, 0.6), strict=True)
    ]
    assert served["bins"][0].lower == 0.0
    assert served["estimates"]["ece"] != model["estimates"]["ece"]
    with pytest.raises(type(problem(400, "")), match="scores must be model or served"):
        reliability_of(s, v, {"scores": "raw"})


class Sliced(Program):
    """A model with a validated baseline of two segments."""

    def __init__(self, folder):
        rng, n = np.random.default_rng(98), 30 * 300
        rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
        rows["ts"] = (DAY0 - 30) * DAY + np.sort(rng.integers(0, 30 * DAY, n))
        rows["score"], labels["outcome"] = draw(rng, n)
        rows["combo"] = rng.integers(4, size=n)
        combos = [(("c", c), ("d", d)) for c in "ab" for d in "xy"]
        made = baselines.build("m", "v1", ("c", "d"), rows, labels, combos, {"kind": "validation"})
        (folder / "b.json").write_text(baselines.to_json(replace(made, checksum=baseline_checksum(made))))
        self.c, self.p, self.y = rows["combo"] // 2, rows["score"].copy(), labels["outcome"].copy()
        super().__init__(folder, "baseline: b.json\n    segments: [c, d]\n    mode: off")


def test_what_is_promised_under_thresholds_by_slice(tmp_path):
    """Each row counts with the threshold of its own slice, in `all` too, for the detectors as well; other segments have none."""
    w = Sliced(tmp_path)
    w.scores(0)
    made = policy("1-000001", "m", "v1", {"all": 0.5, "c=a": 0.3})
    w.agent.command("activate", "m", "v1", "ann", "try", policy=json.loads(replace(made, checksum=checksum(made)).to_json()))
    w.now(2)
    w.agent.publish()
    (watched,) = w.agent.watched.values()
    flagged = w.p >= np.where(w.c == 0, made.thresholds["c=a"], 0.5)
    for name, mine in (("all", w.c >= 0), ("c=a", w.c == 0), ("c=b", w.c == 1)):
        share, hits = flagged[mine].mean(), (flagged & (w.y == 1))[mine]
        wanted = {"flagged_share": share, "recall": hits.sum() / w.y[mine].sum(), "precision": hits.sum() / flagged[mine].sum()}
        for metric, value in wanted.items():
            assert watched.expected(metric, name).value == pytest.approx(value, rel=1e-12)
            promise = watched.looks.test.nulls.by[metric][name].promise
            assert promise == pytest.approx(value, abs=1e-3)
    assert watched.expected("recall", "d=x") is None
    assert "d=x" not in watched.looks.test.nulls.by["recall"]
    assert watched.expected("bias", "d=x").value is not None
    w.loop.close()
