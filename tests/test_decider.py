"""What alerts lead to: trials, proposals, answers, policies and ways back, by the program with real trials."""

import json
import signal
import socket
from dataclasses import replace

import numpy as np
import pytest

from monitor import cli
from monitor.actions.recalibrate import Trial
from monitor.config import Labels
from monitor.core import baseline as baselines
from monitor.core.events import DAY, HOUR
from monitor.core.guards import OPEN
from monitor.core.policy import IDENTITY, apply, expit, logit, with_calibrator
from monitor.core.reasons import REASONS
from monitor.core.tables import LABEL, ROW, tables
from monitor.decider import Decider
from monitor.store.policies import Pointer, PolicyError, checksum
from monitor.watched import baseline_checksum
from test_agent import CONFIG, DAY0, Program
from test_http import command, now, until

ONLY = "calibration_drift: off, recall: off, precision: off, fpr: off, high_confidence_errors: off, roc_auc: off, prevalence: off"
RULES = f"{ONLY}, flagged_share: off, score_drift: off, canary: off, data_loss: off, label_coverage: off"


def draw(rng, n, offset=0.0, slope=1.0):
    """Return scores of three decimals and outcomes whose logit is offset + slope logit(score)."""
    p = rng.beta(1.2, 2.5, n).clip(0.02, 0.98).round(3)
    return p, (rng.random(n) < expit(offset + slope * logit(p))).astype(int)


def write_baseline(path, first):
    """Write a baseline of 20 days from day `first` on, with scores that were right."""
    rng, n = np.random.default_rng(99), 20 * 400
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["ts"] = first * DAY + np.sort(rng.integers(0, 20 * DAY, n))
    rows["score"], labels["outcome"] = draw(rng, n)
    made = baselines.build("m", "v1", (), rows, labels, [()], {"kind": "validation"})
    path.write_text(baselines.to_json(replace(made, checksum=baseline_checksum(made))))


class World(Program):
    """A model with a validated baseline of 20 days before DAY0."""

    def __init__(self, folder, mode="auto", more="", rules=RULES, threshold="threshold: 0.5"):
        write_baseline(folder / "b.json", DAY0 - 20)
        text = CONFIG.replace(
            "threshold: 0.5", f"baseline: b.json\n    mode: {mode}\n    {threshold}\n    rules: {{{{{rules}}}}}"
        )
        self.path = folder / "config.yaml"
        self.path.write_text(text.format(more=more))
        self.open()

    def days(self, first, last, offset=0.0, slope=1.0, n=400):
        """Send the days from first on up to but not with last, and let all but the newest mature."""
        for day in range(first, last):
            rng = np.random.default_rng([7, day])
            p, y = draw(rng, n, offset, slope)
            ts = (DAY0 + day) * DAY + np.sort(rng.integers(0, DAY - 2 * HOUR, n))
            named = {"model": "m", "version": "v1"}
            rows = list(zip([f"{day}-{i}" for i in range(n)], ts.tolist(), p.tolist(), y.tolist(), strict=True))
            self.send("predictions", [{"id": i, "ts": t, "score": s, **named} for i, t, s, _ in rows])
            self.send("labels", [{"id": i, "ts": t + HOUR, "label": k, **named} for i, t, _, k in rows])
        self.now(last)

    def said(self, *kinds):
        """Return kind and reason, or policy, of the journal's entries of these kinds."""
        return [
            (e.kind, e.body.get("reason") if e.kind != "alert" else e.body["state"]) for e in self.journal() if e.kind in kinds
        ]

    def current(self):
        """Return the policy that serves."""
        return self.agent.served.current("m", "v1")

    def serve(self, calibrator, at, ident):
        """Make a policy with a calibrator current, as a person would."""
        self.now(at)
        made = with_calibrator(self.current(), ident, calibrator, {"who": "ann"})
        body = json.loads(replace(made, checksum=checksum(made)).to_json())
        return self.agent.command("activate", "m", "v1", "ann", "try", policy=body)


@pytest.fixture
def world(tmp_path):
    """Return a function that makes the world; its files are closed at the end."""
    made = []

    def make(**kw):
        made.append(World(tmp_path, **kw))
        return made[-1]

    yield make
    for w in made:
        w.loop.close()


def test_an_alert_leads_to_a_policy_that_won_its_trial(world):
    """With the mode auto scores that are off are mended: the served ones are right, decisions stay, and it is told why."""
    w = world()
    w.days(0, 20, offset=-1.0)
    first, second = (e for e in w.journal("activated"))
    assert w.agent.served.policy("m", "v1", first.body["policy"]).calibrator == {"kind": "identity"}
    (applied,) = (e for e in w.journal("decision") if e.body["allowed"])
    assert (applied.body["action"], applied.body["reason"], applied.body["policy"]) == (
        "recalibrate",
        "applied",
        second.body["policy"],
    )
    p = np.linspace(0.1, 0.9, 9)
    served = w.current()
    assert np.abs(apply(served.calibrator, p) - expit(logit(p) - 1.0)).max() < 0.05
    assert (served.undo, served.provenance["before"]) == (w.agent.model("m").undo, first.body["policy"])
    assert served.bands == w.agent.served.policy("m", "v1", first.body["policy"]).bands
    assert {"rows", "positives", "first_day", "last_day"} == served.provenance["data"].keys()
    assert all(e.body["reason"] in REASONS for e in w.journal("decision"))


def test_a_proposal_changes_nothing_until_it_is_approved(world):
    """With the mode propose the policy waits, everything stays as it was, and approving it makes it current with who and why."""
    w = world(mode="propose")
    w.days(0, 20, offset=-1.0)
    assert w.journal("activated") == []
    (waiting,) = w.agent.proposals()
    assert (waiting["action"], waiting["rule"], w.current()) == ("recalibrate", "calibration", None)
    assert waiting["report"]["reason"] == "accepted"
    assert {k: v["value"] for k, v in waiting["preview"]["before"].items()} == {
        k: v["value"] for k, v in waiting["preview"]["after"].items()
    }
    w.again()
    assert w.agent.proposals() == [waiting]
    with pytest.raises(PolicyError, match=f"no open proposal 77; open are {waiting['proposal']}"):
        w.agent.answer(77, True, "ann", "looks right")
    done = w.agent.answer(waiting["proposal"], True, "ann", "looks right")
    assert done["policy"] == waiting["policy"] == w.current().id
    answer, _, last = w.journal()[-3:]
    assert (answer.kind, answer.who, answer.body) == (
        "answer",
        "ann",
        {"proposal": waiting["proposal"], "approved": True, "reason": "looks right"},
    )
    assert (last.kind, last.who) == ("activated", "ann")
    assert w.agent.proposals() == []


def test_the_log_tells_all_of_it(world, capsys):
    """`scorewatch log` has a line for each entry of an alert, a trial, a proposal, an answer and a change, with their numbers."""
    w = world(mode="propose")
    w.days(0, 12, offset=-1.0)
    (waiting,) = w.agent.proposals()
    w.agent.answer(waiting["proposal"], True, "ann", "looks right")
    kinds = [e.kind for e in w.journal()]
    w.loop.close()
    assert {"alert", "decision", "proposal", "answer", "activated"} <= {*kinds}
    assert cli.main(["log", "--config", str(w.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(kinds)
    assert any(f"policy {waiting['policy']} waits for approval as proposal {waiting['proposal']}" in line for line in lines)
    assert any(f"proposal {waiting['proposal']} approved by ann: looks right" in line for line in lines)


@pytest.mark.parametrize("reason", ["not now", "rejected", "expired"])
def test_a_rejected_proposal_is_left_alone_for_a_week(world, reason):
    """After a person said no, in whatever words, nothing is proposed for seven days, and the reason is in the journal."""
    w = world(mode="propose")
    w.days(0, 12, offset=-1.0)
    (waiting,) = w.agent.proposals()
    w.agent.answer(waiting["proposal"], False, "ann", reason)
    assert w.agent.decisions("m", 1, 0)[0]["words"] == reason
    w.days(12, 17, offset=-1.0)
    assert w.agent.proposals() == []
    assert w.said("decision")[-1] == ("decision", "rejected")
    w.days(17, 22, offset=-1.0)
    assert len(w.agent.proposals()) == 1


def test_a_proposal_gets_old(world):
    """What nobody answers in seven days is closed and tested again; another policy closes it at once."""
    w = world(mode="propose")
    w.days(0, 12, offset=-1.0)
    (first,) = w.agent.proposals()
    w.days(12, 20, offset=-1.0)
    (second,) = w.agent.proposals()
    assert second["proposal"] > first["proposal"]
    assert set(w.said("answer")) == {("answer", "expired")}
    w.agent.command("activate", "m", "v1", "ann", "by hand", threshold=0.4)
    w.days(20, 21, offset=-1.0)
    assert w.said("answer")[-1] == ("answer", "superseded")


def test_a_way_back_for_an_alert_is_proposed_again(world):
    """While the alert fires, a way back that nobody answered in seven days is proposed again, and not before."""
    w = world(mode="propose", rules=f"{RULES}, policy_volume: off, calibration: {{{{action: rollback}}}}")
    w.days(0, 2)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.agent.command("activate", "m", "v1", "ann", "a little less", threshold=0.45)
    w.days(2, 18, offset=-1.0)
    first, second = w.journal("proposal")
    assert second.at - first.at == OPEN + HOUR  # with the tick after the one that closed it
    assert {(e.body["rule"], e.body["action"]) for e in (first, second)} == {("calibration", "rollback")}


def test_an_alert_acts_once_it_may(world):
    """An alert that began with the mode off goes back when the mode is auto, once."""
    w = world(mode="off", rules=f"{RULES}, policy_volume: off, calibration: {{{{action: rollback}}}}")
    w.days(0, 2)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.agent.command("activate", "m", "v1", "ann", "a little less", threshold=0.45)
    w.days(2, 8, offset=-1.0)
    assert w.said("decision", "rolled_back") == [("decision", "mode_off")]
    w.again(w.path.read_text().replace("mode: off", "mode: auto"))
    w.days(8, 10, offset=-1.0)
    assert w.said("decision")[1:] == [("decision", "allowed")]
    assert len(w.journal("rolled_back")) == 1


def test_a_proposal_that_can_not_be_approved(world):
    """After another change, or without its model in the configuration, approving says why not and changes nothing."""
    w = world(mode="propose")
    w.days(0, 12, offset=-1.0)
    (waiting,) = w.agent.proposals()
    w.agent.command("activate", "m", "v1", "ann", "by hand", threshold=0.4)
    current = w.current().id
    with pytest.raises(PolicyError, match="was changed at"):
        w.agent.answer(waiting["proposal"], True, "ann", "too late")
    assert w.current().id == current
    w.again(w.path.read_text().replace("  m:\n", "  other:\n"))
    with pytest.raises(PolicyError, match="is not in the configuration"):
        w.agent.answer(waiting["proposal"], True, "ann", "of a model that is gone")


def test_a_proposal_is_of_the_threshold_it_was_tested_with(world):
    """After the configured threshold was changed, a policy that decides by the old one is not approved."""
    w = world(mode="propose")
    w.days(0, 12, offset=-1.0)
    (waiting,) = w.agent.proposals()
    w.again(w.path.read_text().replace("threshold: 0.5", "threshold: 0.3"))
    with pytest.raises(PolicyError, match="decides otherwise than when policy"):
        w.agent.answer(waiting["proposal"], True, "ann", "looks right")
    assert (w.journal("activated"), w.agent.served.threshold("m", "v1")) == ([], 0.3)


def test_off_changes_nothing_and_says_so(world):
    """With the mode off an alert is an alert."""
    w = world(mode="off")
    w.days(0, 12, offset=-1.0)
    assert w.said("decision", "proposal", "activated") == [("decision", "mode_off")]


def test_too_few_outcomes(world):
    """Fewer mature outcomes than are asked for are no trial."""
    w = world(more="recalibrate: {rows: 20k}")
    w.days(0, 12, offset=-1.0)
    assert w.said("decision") == [("decision", "few_outcomes_yet")]


def test_a_trial_that_takes_too_long(world):
    """A trial ends at its limit, the decision says so, and nothing changes."""
    w = world(more="recalibrate: {limit: 1ms}")
    w.days(0, 8, offset=-1.0)
    assert w.said("decision", "activated") == [("decision", "few_outcomes_yet"), ("decision", "timeout")]


def test_a_trial_that_fails(world, monkeypatch):
    """A trial that ends with an error is a decision, too, and the agent goes on."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    w = world()
    w.days(0, 8, offset=-1.0)
    assert w.said("decision", "activated") == [("decision", "few_outcomes_yet"), ("decision", "trial_failed")]


def test_a_trial_that_cannot_begin(world, monkeypatch):
    """Where no process can be started the store is not to blame: the decision says so, and a person is told."""
    monkeypatch.setattr("sys.executable", "/no/such/program")
    w = world()
    w.days(0, 8, offset=-1.0)
    assert w.said("decision", "activated") == [("decision", "few_outcomes_yet"), ("decision", "trial_failed")]
    with pytest.raises(PolicyError, match="the trial cannot begin"):
        w.agent.calibrate("m", "v1", "ann", "by hand")


def trial(folder, offset):
    """Return a trial that was begun in a folder, of scores that are off."""
    days = {}
    for day in range(6):
        rows, labels = np.zeros(500, ROW), np.zeros(500, LABEL)
        rows["ts"] = day * DAY
        rows["score"], labels["outcome"] = draw(np.random.default_rng(day), 500, offset)
        days[day] = {"all": tables(rows, labels, np.zeros((1, 1), np.int32), 1)[0]}
    return Trial(folder, days, Labels().rules, IDENTITY, 60_000)


def test_trials_do_not_read_each_other(tmp_path):
    """Of two trials in one folder, as two people's for two models, each says what was found for its own days."""
    first = trial(tmp_path, -1.0)
    first._process.wait()
    second = trial(tmp_path, 1.0)
    second._process.wait()
    found = [t.outcome(wait=True)["calibrator"] for t in (first, second)]
    middle = [apply(calibrator, np.array([0.5])).item() for calibrator in found]
    assert np.abs(np.array(middle) - expit(np.array([-1.0, 1.0]))).max() < 0.07


def test_a_trial_is_the_agents_own_program(tmp_path, monkeypatch):
    """What is called `monitor`, too, in the folder where the agent was started is not run."""
    (tmp_path / "monitor").mkdir()
    (tmp_path / "monitor" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert trial(tmp_path / "trial", -1.0).outcome(wait=True)["reason"] == "accepted"


def test_nothing_is_tried_against_a_policy_that_cannot_be_read(world):
    """Where nobody knows what is served, there is no trial against the configured threshold instead."""
    w = world()
    w.days(0, 2)
    ident = w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)["policy"]
    (w.agent.served.folder("m").of("v1") / f"{ident}.json").write_text("{")
    w.again()
    w.days(2, 12, offset=-1.0)
    assert w.said("decision")[-1] == ("decision", "no_policy")
    assert len(w.journal("activated")) == 1
    with pytest.raises(PolicyError, match="no policy that can be read"):
        w.agent.calibrate("m", "v1", "ann", "by hand")


def test_a_trial_that_ended_with_the_agent_is_begun_again(world):
    """An alert whose trial was lost with a restart gets another one at once, not after the next mature day, and only one."""
    w = world(more="recalibrate: {rows: 500}")
    step = Decider.step
    w.days(0, 6)
    with pytest.MonkeyPatch.context() as patch:
        # As by the machine's clock: a trial is not waited for.
        patch.setattr(Decider, "step", lambda self, *args: step(self, *args[:-1], False))
        day = 6
        while w.agent.decider.testing is None:
            w.days(day, day + 1, offset=-1.0)
            day += 1
        w.again()
        assert (w.agent.decider.testing, w.said("decision")) == (None, [])
        w.now(day + 0.05)
        w.agent.decider.testing.trial._process.wait()
        w.now(day + 0.1)
        said = w.said("decision")
        w.now(day + 0.9)
        assert (w.agent.decider.testing, len(said), w.said("decision")) == (None, 1, said)


WRONG = {"kind": "offset", "a": 1.0}


def test_a_calibrator_that_loses_is_undone(world):
    """Scores that were right and are served wrong: the policy before comes back by itself, byte for byte, and it is told why."""
    w = world()
    w.days(0, 5)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    before = w.current().to_json()
    w.serve(WRONG, 5, "wrong")
    w.days(5, 9)
    (back,) = w.journal("rolled_back")
    assert (back.who, back.body["policy"], w.current().to_json()) == ("agent", w.current().id, before)
    decision = next(e for e in w.journal("decision") if e.body["rule"] == "undo")
    assert (decision.body["allowed"], decision.body["reason"]) == (True, "outserved")
    assert decision.body["log_e"][w.current().id] >= np.log(20)
    w.again()
    w.days(9, 12)
    assert len(w.journal("rolled_back")) == 1
    w.agent.publish()
    assert b"scorewatch_undo_evidence{" not in w.agent.exporter.text


def test_another_threshold_hides_no_calibrator_that_loses(world):
    """A threshold that changes meanwhile leaves the evidence of the days before, and the policy that served other scores."""
    w = world(rules=f"{RULES}, calibration: off")
    w.days(0, 5, offset=-1.0)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.serve({"kind": "offset", "a": -1.0}, 5, "right")
    w.serve({"kind": "offset", "a": -0.6}, 5, "wrong")
    w.days(5, 8, offset=-1.0, n=100)
    w.agent.command("activate", "m", "v1", "ann", "lower", threshold=0.45)
    w.days(8, 9, offset=-1.0, n=100)
    assert [e.body["policy"] for e in w.journal("rolled_back")] == ["right"]
    decision = next(e for e in w.journal("decision") if e.body["rule"] == "undo")
    assert decision.body["days"][0] == "2013-10-26"


def test_what_is_prevented_does_not_hinder_the_way_back(world):
    """Where a verdict prevents the outcome the rest says how right scores are: so it brings a policy back."""
    w = world()
    w.again(w.path.read_text().replace("horizon: 24h", "horizon: 24h, verdicts: {flag: {horizon: never}}"))
    w.days(0, 5)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.serve(WRONG, 5, "wrong")
    w.days(5, 9)
    assert [e.who for e in w.journal("rolled_back")] == ["agent"]


def test_a_calibrator_that_wins_stays(world):
    """Where scores are off and served right, evidence speaks for what is served."""
    w = world()
    w.days(0, 5, offset=1.0)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    first = w.current().id
    w.serve(WRONG, 5, "right")
    w.days(5, 12, offset=1.0)
    assert w.journal("rolled_back") == []
    assert w.current().id == "right"
    assert w.agent.decider.evidence["m", "v1"][first] < 1


def test_the_evidence_counts_every_day_once(world):
    """It is the fold of the likelihood ratios of days, also where the policy before is the last one that left scores."""
    w = world(mode="propose")
    w.days(0, 5)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    first = w.current().id
    w.serve({"kind": "offset", "a": 0.3}, 5, "near")
    w.days(5, 9)
    log_e = 0.0
    for day in range(4, 8):  # the fourth was not mature when the calibrator came; the eighth is not mature yet
        p, y = draw(np.random.default_rng([7, day]), 400)
        served = apply(w.current().calibrator, p)
        log_e = max(log_e, 0.0) + float(np.log(np.where(y == 1, p / served, (1 - p) / (1 - served))).sum())
    assert log_e > 3
    assert w.agent.decider.evidence["m", "v1"] == {first: pytest.approx(log_e, rel=1e-2, abs=1e-2)}


def test_what_a_person_changed_with_the_agent_stopped_comes_first(world):
    """A way back by hand that the agent finds at its start is not made again, nor is the policy it leads to called bad for it."""
    w = world()
    w.days(0, 5)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    first = w.current().id
    w.serve(WRONG, 5, "wrong")
    w.now(5.99)
    assert w.agent.decider.evidence["m", "v1"] == {first: 0.0}
    w.loop.close()
    w.agent.served.folder("m").point("v1", Pointer(first, "ann", "wrong scores", w.agent.now()))
    w.open()
    w.now(6)  # with this tick the evidence against the wrong one is there
    w.days(6, 8)
    assert [(e.kind, e.body["who"]) for e in w.journal("rolled_back")] == [("rolled_back", "ann")]
    assert (w.current().id, first in w.agent.served.standing("m", "v1").bad) == (first, False)


def test_undo_waits_for_a_person_where_changes_do(world):
    """With the mode propose a policy that loses is proposed to be taken back, once, and approving it does that."""
    w = world(mode="propose")
    w.days(0, 5)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    first = w.current().id
    w.serve(WRONG, 5, "wrong")
    w.days(5, 10)
    (waiting,) = w.agent.proposals()
    assert (waiting["action"], waiting["rule"], waiting["policy"]) == ("rollback", "undo", first)
    w.days(10, 16)
    (again,) = w.agent.proposals()
    assert (again["rule"], again["proposal"] > waiting["proposal"]) == ("undo", True)
    waiting = again
    w.agent.answer(waiting["proposal"], True, "ann", "yes")
    assert w.current().id == first
    assert w.journal()[-1].kind == "rolled_back"


@pytest.mark.parametrize("answered", [False, True])
def test_a_way_back_waits_for_no_way_forward(world, answered):
    """A policy that loses is proposed to be taken back also while a recalibration waits, or after one was rejected."""
    w = world(mode="propose", rules=f"{RULES}, calibration: off")
    w.days(0, 8, offset=-1.0)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.serve(WRONG, 8, "wrong")
    found = w.agent.calibrated(w.agent.calibrate("m", "v1", "ann", "looks off"), wait=True)
    if answered:
        w.agent.answer(found["proposal"], False, "bob", "no")
    w.days(8, 11, offset=-1.0)
    assert [p["action"] for p in w.agent.proposals()] == [*([] if answered else ["recalibrate"]), "rollback"]


def test_without_undo_nothing_is_compared(world):
    """A policy without the limit that undoes it stays."""
    w = world(more="recalibrate: {undo: false}")
    w.days(0, 5)
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.serve(WRONG, 5, "wrong")
    w.days(5, 10)
    assert w.journal("rolled_back") == []


def test_after_a_way_back_more_is_reviewed(world):
    """The audit picks twice as many until a calibration set of days since then has matured."""
    w = world(more="review: {per_day: 20}\n    recalibrate: {rows: 1k}")
    w.days(0, 3)
    assert w.agent.sampler.review("m") == 20
    w.agent.command("activate", "m", "v1", "ann", "one half", threshold=0.5)
    w.agent.command("activate", "m", "v1", "ann", "one third", threshold=0.3)
    w.agent.command("rollback", "m", "v1", "ann", "no")
    assert w.agent.sampler.review("m") == 40
    w.days(3, 6)
    assert w.agent.sampler.review("m") == 40
    w.days(6, 9)
    assert w.agent.sampler.review("m") == 20


def test_rollback_gives_the_same_verdicts_whatever_the_newest_policy_is(world):
    """After a way back every score gets the verdict it got before, also when the newest policy is damaged, and after a
    restart.
    """
    w = world(mode="off")
    w.days(0, 2)
    scores = np.linspace(0, 1, 2_001).tolist()

    def verdicts(day):
        ts = (DAY0 + day) * DAY
        named = {"model": "m", "version": "v1"}
        w.send("predictions", [{"id": f"x{day}-{i}", "ts": ts, "score": s, **named} for i, s in enumerate(scores)])
        rows, _ = w.agent.store.rows_of(0, DAY0 + day)
        return rows[np.isin(rows["score"], scores)]["verdict"][-len(scores) :].tobytes()

    w.agent.command("activate", "m", "v1", "ann", "first", threshold=0.3)
    first, before = w.current().id, verdicts(3)
    w.serve({"kind": "platt", "a": 0.5, "b": 1.3}, 4, "second")
    w.agent.command("activate", "m", "v1", "ann", "third", threshold=0.6)
    assert w.current().calibrator["kind"] == "platt"
    changed = verdicts(5)
    path = w.agent.served.folder("m").of("v1") / f"{w.current().id}.json"
    path.write_text(path.read_text().replace("0.6", "0.5"))
    w.again()
    assert w.current() is None
    w.agent.command("rollback", "m", "v1", "ann", "back")
    assert w.current().id == "second"
    w.agent.command("rollback", "m", "v1", "ann", "farther back")
    assert w.current().id == first
    assert before == verdicts(6) != changed


IDENTICAL = {
    "model": "m",
    "version": "v1",
    "thresholds": {"all": 0.5},
    "calibrator": IDENTITY,
    "undo": [],
    "provenance": {"who": "ann"},
}


def test_a_trial_by_hand_waits_as_a_proposal(world):
    """What a person asks for is tried whatever the mode and whether an alert fires; winning it is a proposal, losing it is
    told.
    """
    w = world(mode="off", rules=f"{RULES}, calibration: off")
    w.days(0, 8, offset=-1.0)
    found = w.agent.calibrated(w.agent.calibrate("m", None, "ann", "looks off"), wait=True)
    assert (found["reason"], found["report"]["reason"]) == ("proposed", "accepted")
    (waiting,) = w.agent.proposals()
    assert (waiting["proposal"], waiting["policy"]) == (found["proposal"], found["policy"])
    w.agent.answer(found["proposal"], True, "bob", "so it does")
    assert w.current().id == found["policy"]
    again = w.agent.calibrated(w.agent.calibrate("m", "v1", "ann", "again"), wait=True)
    assert (again["reason"], again["proposal"]) == ("no_improvement", None)
    assert [(e.who, e.body["reason"]) for e in w.journal("decision")] == [("ann", "proposed"), ("ann", "no_improvement")]
    assert w.said("answer") == [("answer", "so it does")]
    w.agent.command("activate", "m", "v1", "ann", "as scored", policy=IDENTICAL)
    last = w.agent.calibrated(w.agent.calibrate("m", "v1", "ann", "at the same moment"), wait=True)
    assert w.agent.answer(last["proposal"], True, "bob", "yes")["policy"] == w.current().id == last["policy"]
    with pytest.raises(PolicyError, match="no version v7"):
        w.agent.calibrate("m", "v7", "ann", "")


def test_a_trial_that_is_overtaken(world):
    """A trial against a policy that serves no longer says nothing of the one that does: it is told, and nothing is proposed."""
    w = world(mode="off", rules=f"{RULES}, calibration: off")
    w.days(0, 8, offset=-1.0)
    trial = w.agent.calibrate("m", None, "ann", "looks off")
    w.agent.command("activate", "m", "v1", "bob", "meanwhile", threshold=0.4)
    found = w.agent.calibrated(trial, wait=True)
    assert (found["reason"], found["proposal"], found["report"]["reason"]) == ("overtaken", None, "accepted")
    assert w.agent.proposals() == []
    assert [(e.who, e.body["reason"]) for e in w.journal("decision")] == [("ann", "overtaken")]


def test_a_model_server_that_does_not_follow(world):
    """Predictions that name another policy for longer than they may are an alert, which ends when they name the current one."""
    w = world(mode="off", rules=RULES, more="follow_within: 20m")
    w.days(0, 1)
    first = w.agent.command("activate", "m", "v1", "ann", "one", threshold=0.5)["policy"]
    second = w.agent.command("activate", "m", "v1", "ann", "two", threshold=0.45)["policy"]
    at = w.agent.now()

    def predict(policy, minute, n=30):
        named = {"model": "m", "version": "v1", "policy": policy}
        ts = at + minute * 60_000
        w.send("predictions", [{"id": f"{policy}-{minute}-{i}", "ts": ts, "score": 0.4, **named} for i in range(n)])

    def state(hour):
        w.send("predictions", {"now": at + hour * HOUR})
        found = [e for e in w.journal("alert") if e.body["rule"] == "policy_not_followed"]
        return found[-1].body["state"] if found else None

    predict(first, 10)
    assert state(1) is None
    predict(first, 61)
    assert state(2) == "firing"
    diagnosis = w.agent.diagnoses["m", "v1", "policy_not_followed"]
    assert (diagnosis.code, diagnosis.action) == ("not_followed", "check_delivery")
    predict(second, 121)
    assert state(3) == "resolved"


def test_the_threshold_is_chosen_anew_for_what_it_is_for(world):
    """With an objective a policy gets its threshold on the served scale; one that would flag too much or too little is
    refused.
    """
    w = world(more="threshold: {cost: {missed: 1, false_alarm: 1}}", threshold="")
    w.days(0, 2)
    w.agent.command("activate", "m", "v1", "ann", "three fifths", threshold=0.6)
    w.days(2, 14, offset=-1.0)
    assert w.current().calibrator != {"kind": "identity"}
    assert 0.5 <= w.current().threshold < 0.51
    decision = next(e for e in w.journal("decision") if e.body["allowed"])
    before, after = decision.body["preview"]["before"], decision.body["preview"]["after"]
    assert after["worth_per_row"]["value"] > before["worth_per_row"]["value"]
    assert after["flagged_share"]["value"] < before["flagged_share"]["value"]


def test_a_policy_that_flags_too_little_is_refused(world):
    """The volume may change by half at most, whatever the objective says."""
    w = world(more="threshold: {cost: {missed: 1, false_alarm: 1}}", threshold="")
    w.days(0, 2)
    w.agent.command("activate", "m", "v1", "ann", "low", threshold=0.1)
    first = w.current().id
    w.days(2, 14, offset=-1.0)
    assert w.current().id == first
    assert ("decision", "volume") in w.said("decision")
    assert w.agent.served.folder("m").ids("v1") == [first]  # a trial every day leaves nothing behind


OUTSIDE = """\
state: state
api: 127.0.0.1:{port}
metrics: 127.0.0.1:0
tick: 500ms
models:
  m:
    baseline: b.json
    threshold: 0.5
    labels: {{horizon: 0s, corrections: 60d}}
    rules: {{{rules}}}
"""


def test_a_preview_of_a_class_counts_its_slices(tmp_path):
    """What a policy with thresholds by slice would flag of a class is counted by slice, also where memory has only sums."""
    labels = "labels: {{horizon: 24h, corrections: 2d}}"
    text = CONFIG.replace(labels, f"classes: [red, big]\n    labels_mode: multi\n    segments: [c]\n    {labels}")
    w = World.__new__(World)
    w.path = tmp_path / "config.yaml"
    w.path.write_text(text.format(more="mode: off"))
    w.open()
    flagged, cuts = 0, {"a": 0.2, "b": 0.5}
    for day in range(10):
        rng = np.random.default_rng(day)
        p, y = draw(rng, 400, offset=-1.0)
        ts, named = (DAY0 + day) * DAY, {"model": "m", "version": "v1"}
        ids = [f"{day}-{i}" for i in range(400)]
        segments = ["ab"[i % 2] for i in range(400)]
        rows = zip(ids, p.tolist(), segments, strict=True)
        w.send("predictions", [{"id": i, "ts": ts, "scores": [s, 0.5], "segments": {"c": c}, **named} for i, s, c in rows])
        w.send("labels", [{"id": i, "ts": ts + HOUR, "label": ["red"] * k, **named} for i, k in zip(ids, y, strict=True)])
        flagged += sum(s >= cuts[c] for s, c in zip(p, segments, strict=True))
    w.now(11)
    body = {"model": "m:red", "version": "v1", "thresholds": {"all": 0.5, "c=a": 0.2}, "calibrator": IDENTITY, "undo": []}
    w.agent.command("activate", "m:red", "v1", "ann", "by slice", policy=body | {"provenance": {"who": "ann"}})
    found = w.agent.calibrated(w.agent.calibrate("m:red", "v1", "ann", "looks off"), wait=True)
    assert found["reason"] == "proposed"
    before = found["preview"]["before"]["flagged_share"]
    assert (before["n"], before["value"]) == (4_000, flagged / 4_000)
    w.loop.close()


def test_trials_end_with_the_agent(world):
    """An agent that stops leaves no trial behind that somebody asked for, nor one that an alert led to."""
    w = world(mode="off", rules=f"{RULES}, calibration: off")
    w.days(0, 4)
    asked = [w.agent.calibrate("m", "v1", who, "looks off").trial for who in ("ann", "bob")]
    w.again()
    assert [t._process.poll() for t in asked] == [-signal.SIGKILL] * 2


def test_an_alert_is_tried_beside_the_ingest_and_approved_from_outside(agent, tmp_path):
    """By the machine's clock a trial runs in a process of its own while events are taken, and `approve` makes its policy
    current.
    """
    today = now() // DAY
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    (tmp_path / "agent").mkdir()
    write_baseline(tmp_path / "agent" / "b.json", today - 40)
    a = agent(OUTSIDE.format(rules=RULES, port=port))
    for day in range(10):
        p, y = draw(np.random.default_rng(day), 300, offset=-1.0)
        ts, named = (today - 20 + day) * DAY, {"model": "m", "version": "v1"}
        a.post("predictions", [{"id": f"{day}-{i}", "ts": ts, "score": s, **named} for i, s in enumerate(p.tolist())])
        a.post("labels", [{"id": f"{day}-{i}", "ts": ts + HOUR, "label": k, **named} for i, k in enumerate(y.tolist())])
    sent = 0

    def proposed():
        nonlocal sent
        sent += 1
        a.post("predictions", [{"id": f"now-{sent}", "ts": now(), "model": "m", "version": "v1", "score": 0.5}])
        return a.ask("/v1/proposals")[1]

    (waiting,) = until(proposed)
    assert waiting["report"]["reason"] == "accepted"
    code, out, err = command(a.config, "approve", str(waiting["proposal"]), "--reason", "looks right")
    assert (code, err) == (0, "")
    policy = a.ask("/v1/models/m/policy")[1]
    assert policy["id"] == waiting["policy"]
    assert policy["calibrator"]["kind"] == waiting["report"]["calibrator"]["kind"]
    kinds = [e["kind"] for e in a.ask("/v1/models/m/decisions")[1]]
    assert [k for k in kinds if k != "decision"] == ["activated", "activated", "answer", "proposal"]
    code, out, _ = command(a.config, "calibrate", "m", "--json")
    assert (code, json.loads(out)["reason"]) == (0, "no_improvement")


def test_every_verdict_is_counted(world):
    """A policy with a review band and an abstain margin gives each case its verdict, and all of them are counted."""
    w = world(mode="off")
    w.days(0, 1)
    body = {"model": "m", "version": "v1", "thresholds": {"all": 0.4}, "calibrator": {"kind": "identity"}, "undo": []}
    more = {"provenance": {"who": "ann"}, "review": [0.3, 0.45], "abstain": 0.05}
    w.agent.command("activate", "m", "v1", "ann", "bands", policy=body | more)
    at, named = w.agent.now() + 1, {"model": "m", "version": "v1"}
    scores = [0.1] * 5 + [0.3, 0.4] + [0.49, 0.5, 0.51] + [0.46, 0.9, 1.0, 1.0]
    w.send("predictions", [{"id": f"b{i}", "ts": at, "score": s, **named} for i, s in enumerate(scores)])
    w.send("predictions", {"now": at + DAY})
    w.agent.publish()
    (v,) = w.agent.snapshot.versions
    assert v.verdicts == {"pass": 5, "flag": 4, "review": 2, "abstain": 3}
