"""The program in one process: closing days, rules, decisions, actions, and what a restart finds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.agent import Agent
from monitor.config import load
from monitor.core.baseline import to_json
from monitor.core.events import DAY, HOUR
from monitor.formats import decode
from monitor.run import Inbox, Loop
from monitor.store import StateError
from monitor.store.policies import PolicyError
from monitor.watched import baseline_checksum

DAY0 = 16_000  # 2013-10-22
CONFIG = """\
state: state
clock: events
models:
  m:
    labels: {{horizon: 24h, corrections: 2d}}
    threshold: 0.5
    {more}
"""


class Program:
    """An agent without listeners, driven by events; `again()` closes it and opens it anew, as after a restart."""

    def __init__(self, folder, more="mode: auto", models=""):
        self.path = folder / "config.yaml"
        self.path.write_text(CONFIG.format(more=more) + models)
        self.open()

    def open(self):
        self.agent = Agent(load(self.path), "test", durable=False)
        self.loop = Loop(self.agent, lambda: None, Inbox(1))
        self.decoder = self.agent.decoder()
        return self

    def again(self, config=None):
        self.loop.close()
        if config is not None:
            self.path.write_text(config)
        return self.open()

    def send(self, kind, events):
        receipt = self.loop._by_events(decode(self.decoder, json.dumps(events).encode(), kind))
        return receipt.accepted

    def scores(self, day, n=300, version="v1", model="m", share=0.4, seed=0):
        """Send n scores of a day, whose labels (positive with probability `share`) come an hour later."""
        rng = np.random.default_rng([day, seed])
        ts = (DAY0 + day) * DAY + np.sort(rng.integers(0, DAY - 2 * HOUR, n))
        ids = [f"{version}-{day}-{i}" for i in range(n)]
        p = rng.random(n).round(3)
        named = {"model": model, "version": version}
        self.send(
            "predictions", [{"id": i, "ts": int(t), "score": s, **named} for i, t, s in zip(ids, ts, p.tolist(), strict=True)]
        )
        y = (rng.random(n) < share).astype(int).tolist()
        self.send("labels", [{"id": i, "ts": int(t) + HOUR, "label": k, **named} for i, t, k in zip(ids, ts, y, strict=True)])

    def now(self, day):
        self.send("predictions", {"now": int((DAY0 + day) * DAY)})

    def journal(self, kind=None):
        return [e for e in self.agent.store.log.journal() if kind in (None, e.kind)]


@pytest.fixture
def program(tmp_path):
    """Return a function that makes the program; its files are closed at the end."""
    made = []

    def make(*args, **kw):
        made.append(Program(tmp_path, *args, **kw))
        return made[-1]

    yield make
    for p in made:
        p.loop.close()


def test_rows_of_a_removed_model_leave(program):
    """A model that is taken out of the configuration holds rows back for a while only, and the others go on."""
    p = program(models="  gone: {labels: {horizon: 24h}}\n")
    p.scores(0, model="gone")
    p.scores(1)
    p.again(CONFIG.format(more="mode: auto"))
    p.now(10)
    assert p.agent.store.tail - p.agent.store.head == 600  # the rows of the removed model are first in the ring
    p.scores(70)
    p.now(80)
    assert p.agent.store.tail - p.agent.store.head == 0


def test_a_model_comes_back_after_a_part_of_its_rows_left(program):
    """A day that was never closed and of which rows left meanwhile is not closed with what is there, and holds nothing back."""
    both = CONFIG.format(more="").replace("24h", "90d") + "  gone: {labels: {horizon: 24h, corrections: 2d}}\n"
    p = program().again(both)
    p.scores(0, model="gone")
    p.scores(0)
    p.scores(0, model="gone", n=600)
    p.again(both.replace("gone", "other"))
    p.now(80)
    assert (p.agent.store.head, p.agent.store.left) == (300, {0: DAY0 + 1})
    p.again(both)
    p.scores(80, model="gone")
    p.now(83)
    assert sorted(p.agent.store.closed) == [(0, DAY0 + 80)]
    assert next(w for w in p.agent.watched.values() if w.model.name == "gone").waiting() == []
    p.agent.publish()
    p.now(95)
    assert p.agent.store.head == p.agent.store.tail


def test_a_day_waits_for_the_longest_horizon_of_its_verdicts(program):
    """A day is closed when the verdict whose outcomes come last is mature, and its rows stay for corrections after that."""
    p = program(
        models="  slow: {labels: {horizon: 24h, corrections: 0s, verdicts: {pass: {horizon: 3d}, block: {horizon: never}}}}\n"
    )
    p.scores(0, model="slow")
    p.now(3)
    (w,) = p.agent.watched.values()
    assert (w.waiting(), p.agent.store.tail - p.agent.store.head) == ([DAY0], 300)
    p.now(4)
    assert (w.waiting(), sorted(w.days)) == ([], [DAY0])
    p.now(5)
    assert p.agent.store.tail - p.agent.store.head == 0


def test_an_observed_baseline_freezes_slices(program):
    """Without validation the first full day freezes slices and edges; it promises nothing and survives a restart."""
    p = program()
    p.scores(0)
    p.now(2)
    (w,) = p.agent.watched.values()
    assert w.baseline is None
    p.scores(2)
    p.now(4)
    (w,) = p.agent.watched.values()
    assert (w.baseline.promises, w.baseline.provenance["days"], len(w.edges)) == (False, 1, 15)
    assert w.promise[1] == ()
    edges = w.edges.tolist()
    (w,) = p.again().agent.watched.values()
    assert w.edges.tolist() == edges


def test_an_observed_baseline_is_made_again_after_28_days(program):
    """After 28 mature days the observed baseline is made again, once, from all of them."""
    p = program("mode: off")
    p.path.write_text(p.path.read_text().replace("corrections: 2d", "corrections: 40d"))
    p.again()
    for day in range(33):
        p.scores(day, n=40)
    (w,) = p.agent.watched.values()
    assert w.baseline.provenance["days"] == 28


CALIBRATION = "calibration: {fires: {above: 0.05}, min_n: 200, action: rollback}"


def fire(p):
    """Activate two policies and break the calibration, so that a rule with a rollback fires."""
    p.now(0)
    p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)
    p.agent.command("activate", "m", "v1", "me", "second", threshold=0.55)
    for day in range(6):
        p.scores(day, share=0.05)


def test_an_alert_rolls_back_once(program):
    """In mode auto a firing rule goes back to the last policy in good standing, once; everything is journalled in order."""
    p = program(f"mode: auto\n    rules: {{{CALIBRATION}, policy_volume: off}}")
    fire(p)
    kinds = [e.kind for e in p.journal()]
    assert kinds == ["activated", "activated", "alert", "decision", "rolled_back"]
    first, second = (e.body["policy"] for e in p.journal("activated"))
    assert p.journal("rolled_back")[0].body["policy"] == first
    assert p.agent.served.folder("m").current("v1").policy == first
    p.again()
    p.scores(6, share=0.05)
    p.now(9)
    assert [e.kind for e in p.journal()] == kinds
    assert p.agent.served.standing("m", "v1").good is None  # the second policy was rolled back
    assert second in p.agent.served.standing("m", "v1").bad


def test_a_refusal_is_journalled_once(program):
    """In mode off the rule fires, the refusal has its reason, and neither ticks nor restarts repeat it."""
    p = program(f"mode: off\n    rules: {{{CALIBRATION}, policy_volume: off}}")
    fire(p)
    p.again()
    p.scores(6, share=0.05)
    p.now(9)
    assert [e.body["reason"] for e in p.journal("decision")] == ["mode_off"]
    assert [e.body["state"] for e in p.journal("alert")] == ["firing"]
    assert p.agent.served.folder("m").current("v1").policy == p.journal("activated")[1].body["policy"]


def killed_before(p, seq):
    """Make the store as it is when the agent was killed after it journalled entry `seq` and before current.json followed."""
    with p.agent.store.log.transaction():
        p.agent.store.log.set_meta({"carried": seq - 1})


def test_a_rollback_that_only_the_journal_has_is_finished(program):
    """Killed between the journal and current.json, the next tick finishes the change instead of journalling its reverse."""
    p = program(f"mode: auto\n    rules: {{{CALIBRATION}, policy_volume: off}}")
    fire(p)
    entry = p.journal("rolled_back")[0]
    path = p.agent.served.folder("m").of("v1") / "current.json"
    path.write_text(json.dumps(entry.body["before"]))
    killed_before(p, entry.seq)
    before = len(p.journal())
    p.again().scores(6)
    assert json.loads(path.read_text())["policy"] == entry.body["policy"]
    assert len(p.journal()) == before


def test_the_first_activation_is_finished(program):
    """Killed before the very first current.json, the next tick writes it; one that is deleted later is counted, not forgotten."""
    p = program()
    p.scores(0)
    p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)
    path = p.agent.served.folder("m").of("v1") / "current.json"
    path.unlink()
    killed_before(p, p.journal()[-1].seq)
    p.again().scores(1)
    assert json.loads(path.read_text())["policy"] == p.journal()[-1].body["policy"]
    path.unlink()
    p.scores(2)
    assert p.agent.served.failures > 0
    assert p.agent.policy_of("m", "v1").threshold == 0.5


def test_a_person_has_the_last_word(program):
    """Whoever writes current.json is believed, also when it says what it said before: each change is journalled as what it is."""
    p = program("rules: {calibration: off}")
    p.scores(0)
    first = p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)["policy"]
    path = p.agent.served.folder("m").of("v1") / "current.json"
    old = path.read_text()
    second = p.agent.command("activate", "m", "v1", "me", "second", threshold=0.55)["policy"]
    new = path.read_text()
    p.scores(1)
    path.write_text(old)
    p.scores(2)
    assert (p.journal()[-1].kind, p.journal()[-1].body["policy"]) == ("rolled_back", first)
    path.write_text(new)
    p.scores(3)
    assert (p.journal()[-1].kind, p.journal()[-1].body["policy"]) == ("activated", second)
    assert p.agent.served.standing("m", "v1").good == first
    for n, wrong in enumerate(({"policy": None}, {"at": "2026-01-01T00:00:00Z"}, {"who": 7})):
        path.write_text(json.dumps(json.loads(new) | wrong))
        before = p.agent.clock.last, p.agent.served.failures
        p.scores(4 + n)
        assert p.agent.clock.last > before[0]
        assert p.agent.served.failures > before[1]
    assert p.agent.policy_of("m", "v1").id == second


def test_a_held_rule_survives_restarts(program):
    """A rule that has to hold for six hours fires after six hours, however often the agent is restarted meanwhile."""
    rule = "low: {metric: mean_score, basis: scored, window: 24h, min_n: 1, hold: 6h, fires: {below: 2}, resolves: {above: 3}}"
    p = program(f"mode: off\n    rules: {{{rule}, calibration: off}}")
    p.scores(0)
    start = p.agent.clock.last
    for hour in range(1, 9):
        p.send("predictions", {"now": start + hour * HOUR})
        p.again()
    states = [(e.body["state"], (e.at - p.journal("alert")[0].at) // HOUR) for e in p.journal("alert")]
    assert states == [("pending", 0), ("firing", 6)]


def test_a_long_version_name_is_only_a_name(program):
    """A version of 128 characters that all need quoting, and one like another when quoted, have places of their own."""
    p = program()
    for day in range(3):
        p.scores(day, version="." * 128)
        p.scores(day, version="€")
        p.scores(day, version=" AC")
    p.now(5)
    assert [w.baseline.version for w in p.again().agent.watched.values()] == ["." * 128, "€", " AC"]


def test_an_unreadable_observed_baseline_is_made_again(program):
    """An empty file where an observed baseline was does not stop the agent; another one is observed."""
    p = program()
    for day in range(4):
        p.scores(day)
    (w,) = p.agent.watched.values()
    w._observed_path.write_text("")
    p.again()
    p.scores(5)
    p.now(8)
    (w,) = p.agent.watched.values()
    assert w.baseline is not None


def test_slices_of_one_window_are_counted_alike(program):
    """When an observed baseline is made again the days of the window are counted again under its slices."""
    p = program("mode: off\n    segments: [c]")
    p.path.write_text(p.path.read_text().replace("corrections: 2d", "corrections: 40d"))
    p.again()
    for day in range(32):
        rows = [
            {"id": f"{day}-{i}", "ts": (DAY0 + day) * DAY + i * 1000, "model": "m", "version": "v1", "score": 0.5}
            for i in range(40)
        ]
        p.send("predictions", [r | {"segments": {"c": "DE" if i < 10 else "FR"}} for i, r in enumerate(rows)])
        p.send("labels", [{"id": r["id"], "ts": r["ts"] + 1, "model": "m", "label": i % 2} for i, r in enumerate(rows)])
    p.now(33)
    p.agent.publish()
    (w,) = p.agent.watched.values()
    assert w.slices == ("all", "c=FR", "c=DE", "c=other")
    n = {e.key.slice: e.n for e in p.agent.snapshot.estimates if (e.metric, e.window) == ("prevalence", "28d")}
    assert n == {"all": 1120, "c=FR": 840, "c=DE": 280, "c=other": 0}


def test_a_failed_rollback_is_tried_again(program):
    """When the earlier policy cannot be read the decision says failed, and it is carried out once it can."""
    p = program(f"mode: auto\n    rules: {{{CALIBRATION}, policy_volume: off}}")
    p.now(0)
    first = p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)["policy"]
    p.agent.command("activate", "m", "v1", "me", "second", threshold=0.55)
    path = p.agent.served.folder("m").of("v1") / f"{first}.json"
    text = path.read_text()
    path.write_text(text.replace("first", "other"))
    for day in range(6):
        p.scores(day, share=0.05)
    assert {e.body["reason"] for e in p.journal("decision")} == {"failed"}
    assert p.journal("rolled_back") == []
    path.write_text(text)
    p.scores(6, share=0.05)
    assert [e.body["policy"] for e in p.journal("rolled_back")] == [first]


def test_a_shadow_never_fires(program):
    """A shadow version is measured, but no rule looks at it."""
    p = program(f"mode: auto\n    versions: {{v1: shadow}}\n    rules: {{{CALIBRATION}}}")
    fire(p)
    p.agent.publish()
    assert [e.kind for e in p.journal()] == ["activated", "activated"]
    assert {v.role for v in p.agent.snapshot.versions} == {"shadow"}
    assert any(e.metric == "ece" and e.value > 0.05 for e in p.agent.snapshot.estimates)


def test_a_rule_that_is_switched_off_resolves(program):
    """An alert whose rule the configuration no longer has ends with that reason."""
    p = program(f"mode: off\n    rules: {{{CALIBRATION}}}")
    fire(p)
    p.again(CONFIG.format(more="mode: off\n    rules: {calibration: off}"))
    p.scores(6)
    assert [(e.body["state"], e.body["reason"]) for e in p.journal("alert")] == [("firing", ""), ("resolved", "switched_off")]


def test_a_version_is_spoken_of_until_a_day_after_its_last_day_matured(program):
    """The last day of a version can be read for 24 hours after it matured; then its alert resolves as version_gone."""
    p = program(f"mode: off\n    rules: {{{CALIBRATION}}}")
    fire(p)
    said = []
    for hours in range(0, 80, 2):
        p.send("predictions", {"now": (DAY0 + 6) * DAY + hours * HOUR})
        p.agent.publish()
        said.append(len(p.agent.snapshot.versions))
    assert said == [1] * 25 + [0] * 15  # the last day, DAY0 + 5, matured at DAY0 + 7
    assert p.journal("alert")[-1].body["reason"] == "version_gone"


def test_policy_volume_ends_after_seven_days(program):
    """A policy that kept its volume for seven days is established: from then on it is not compared any more."""
    p = program("mode: auto")
    p.now(0)
    p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)
    p.agent.command("activate", "m", "v1", "me", "second", threshold=0.55)
    for day in range(9):
        p.scores(day)
    (w,) = p.agent.watched.values()
    rule = next(r for r in w.model.rules if r.name == "policy_volume")
    assert [p.agent._unwatched(rule, w, (DAY0 + d) * DAY) for d in (1, 7, 8)] == [None, None, "established"]
    assert [e for e in p.journal("alert") if e.body["rule"] == "policy_volume"] == []


def test_days_are_counted_again_when_a_label_changes(program):
    """A correction within its period changes the closed day; after it the label is too old."""
    p = program()
    p.scores(0, n=100)
    p.now(2)
    before = p.agent.store.log.day(0, DAY0)["all"]
    label = {"id": "v1-0-0", "ts": (DAY0 + 2) * DAY, "model": "m"}
    positive = int(before.totals[2, 0])
    value = 1 if p.agent.store.rows_of(0, DAY0)[1]["outcome"][0] == 0 else 0
    assert p.send("labels", [{**label, "label": value}]) == 1
    p.send("predictions", {"now": (DAY0 + 2) * DAY + HOUR})
    assert int(p.agent.store.log.day(0, DAY0)["all"].totals[2, 0]) == positive + (1 if value else -1)
    p.now(6)
    receipt = p.loop._by_events(decode(p.decoder, json.dumps([{**label, "label": 1 - value, "revision": 1}]).encode(), "labels"))
    assert [r.reason for r in receipt.rejected] in (["too_old"], ["unknown_id"])


def test_days_say_what_to_expect(program):
    """From seven mature days on estimates say what to expect, `all` exports it, and restart and recount change nothing of it."""
    p = program("segments: [c]")

    def expected(days):
        """Return what the windows expect, and the exported series that say it."""
        p.now(days)
        p.agent.publish()
        found = {(e.metric, e.key.slice, e.window): e for e in p.agent.snapshot.estimates if e.basis == "mature"}
        named = {line.split("{")[0] for line in p.agent.exporter.text.decode().splitlines() if line.startswith("scorewatch_")}
        return {k: (e.expect_low, e.expect_high, e.design_effect) for k, e in found.items()}, named

    for day in range(8):
        p.scores(day, share=0.3 + 0.4 * (day % 4 > 1))
        if day == 6:
            assert set(expected(6.5)[0].values()) == {(None, None, None)}
    made, named = expected(9)
    low, high, effect = made["bias", "all", "28d"]
    assert effect > 3  # days of 30 % take turns with days of 70 %
    assert low < 0 < high
    assert made["bias", "c=other", "28d"] == pytest.approx(made["bias", "all", "28d"])
    assert made["roc_auc", "all", "7d"][2] >= 1
    assert {"scorewatch_bias_expect_low", "scorewatch_recall_expect_high"} <= named
    design = [line for line in p.agent.exporter.text.decode().splitlines() if line.startswith("scorewatch_design_effect{")]
    assert design
    assert all('slice="all"' in line and 'window="28d"' in line for line in design)
    p.again()
    assert expected(9.01)[0] == made
    outcome = int(p.agent.store.rows_of(0, DAY0 + 7)[1]["outcome"][0])
    p.send("labels", [{"id": "v1-7-0", "ts": (DAY0 + 9) * DAY, "model": "m", "label": 1 - outcome}])
    changed, _ = expected(9.1)
    assert changed["prevalence", "all", "28d"] != made["prevalence", "all", "28d"]
    p.again()
    assert expected(9.11)[0] == changed


def test_two_rules_of_one_detector(program):
    """Both are said to look, each by its name, and no series comes twice."""
    p = program("rules: {page: {detector: recall, severity: critical}}")
    p.scores(0)
    p.agent.publish()
    lines = [x.rpartition(" ")[0] for x in p.agent.exporter.text.decode().splitlines() if x.startswith("scorewatch_")]
    assert len(lines) == len(set(lines))
    assert {name for name in ("recall", "page") if any(f'estimate="{name}_evidence"' in x for x in lines)} == {"recall", "page"}


def test_lost_rows_fire_until_they_are_back(program):
    """A day with a fraction of the rows of the days before fires when it ended, and the first whole day after it resolves."""
    p = program("mode: off")
    for day in range(15):
        p.scores(day, n=60 if day in (10, 11) else 300)
        now = [a.state for a in p.agent.alerts.values() if a.rule == "data_loss"]
        assert now == (["firing"] if day in (11, 12) else []), day
    told = [(e.body["state"], e.body["rule"]) for e in p.journal("alert") if e.body["rule"] == "data_loss"]
    assert told == [("firing", "data_loss"), ("resolved", "data_loss")]


def test_old_day_tables_are_dropped(program):
    """Final tables are kept for 400 days."""
    p = program()
    p.scores(0, n=20)
    p.now(390)
    assert list(p.agent.store.closed) == [(0, DAY0)]
    p.now(402)
    assert p.agent.store.closed == p.agent.store.log.closed() == {}


def test_a_baseline_promises_for_its_version_only(program, tmp_path):
    """Another version takes slices and bins from the validated one, nothing was promised for it; a changed file is refused."""
    p = program()
    p.scores(0)
    p.scores(1)
    p.now(3)
    (w,) = p.agent.watched.values()
    made = replace(w.baseline, provenance={"kind": "validation"}, checksum="")
    path = tmp_path / "baseline.json"
    path.write_text(to_json(replace(made, checksum=baseline_checksum(made))))
    p.again(CONFIG.format(more=f"baseline: {path}"))
    p.scores(4, version="v1")
    p.scores(4, version="v2")
    p.now(6)
    first, second = p.agent.watched.values()
    assert (first.edges.tolist(), first.slices) == (second.edges.tolist(), second.slices)
    assert [bool(w.promise[1]) for w in (first, second)] == [True, False]
    path.write_text(path.read_text().replace('"v1"', '"v3"'))
    p.loop.close()
    with pytest.raises(StateError, match="its checksum does not hold"):
        p.open()
    path.write_text(to_json(made))
    p.open()


def test_a_person_who_writes_while_the_agent_is_stopped_is_believed(program):
    """A current.json written between a command and the next tick, with the agent stopped, stays and is journalled."""
    p = program("rules: {calibration: off}")
    p.scores(0)
    p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)
    path = p.agent.served.folder("m").of("v1") / "current.json"
    mine = json.loads(path.read_text()) | {"who": "ann", "reason": "by hand"}
    p.agent.command("activate", "m", "v1", "me", "second", threshold=0.55)
    path.write_text(json.dumps(mine))
    p.again().scores(1)
    assert json.loads(path.read_text())["policy"] == mine["policy"]
    last = [e for e in p.journal() if e.kind in ("activated", "rolled_back")][-1]
    assert (last.body["policy"], last.body["who"]) == (mine["policy"], "ann")


def test_a_version_that_is_no_longer_live_has_no_alert(program):
    """An alert of a version that the configuration made a shadow ends."""
    p = program(f"mode: off\n    rules: {{{CALIBRATION}}}")
    fire(p)
    p.again(CONFIG.format(more=f"mode: off\n    versions: {{v1: shadow}}\n    rules: {{{CALIBRATION}}}"))
    p.scores(6)
    assert [(e.body["state"], e.body["reason"]) for e in p.journal("alert")][-1] == ("resolved", "switched_off")
    assert p.agent.alerts == {}


def test_a_command_whose_file_cannot_be_written_is_pending(program, monkeypatch):
    """What is journalled is in force: the command says that current.json lags, and the next tick writes it."""
    p = program("rules: {calibration: off}")
    p.scores(0)
    folder = p.agent.served.folder("m")

    def full(*_):
        raise PolicyError("no space left")

    with monkeypatch.context() as m:
        m.setattr(folder, "point", full)
        done = p.agent.command("activate", "m", "v1", "me", "first", threshold=0.5)
    assert done["pending"]
    assert folder.current("v1") is None
    p.scores(1)
    assert folder.current("v1").policy == done["policy"]
    assert len(p.journal("activated")) == 1


def test_a_served_policy_that_is_lost_is_counted_not_shouted(program, caplog):
    """Events go on to be stored when the policy's file is gone; the failure is counted each time and logged once."""
    p = program("rules: {calibration: off}")
    p.scores(0)
    ident = p.agent.command("activate", "m", "v1", "me", "first", threshold=0.25)["policy"]
    (p.agent.served.folder("m").of("v1") / f"{ident}.json").unlink()
    p.again()
    for day in range(1, 4):
        p.scores(day, n=20)
    assert p.agent.store.tail == 360
    assert p.agent.served.failures > 3
    assert sum("no such policy" in r.getMessage() for r in caplog.records) == 1
    assert (
        p.send("predictions", [{"id": "u", "ts": (DAY0 + 4) * DAY, "model": "m", "version": "v1", "score": 0.5, "policy": "x"}])
        == 0
    )
    assert sum("no such policy" in r.getMessage() for r in caplog.records) == 1
