"""`scorewatch threshold` from outside: what it chooses on the flights of March, and that what it prints is what is served."""

import json
import re
import socket
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from monitor import choose, cli
from monitor.core import baseline as baselines
from monitor.core.events import DAY, SECOND, VERDICTS
from monitor.core.guards import UNDO_LIMIT, VOLUME_LIMIT
from monitor.core.policy import IDENTITY, apply, from_json, policy
from monitor.core.readings import LabelRule, known, scored
from monitor.core.reasons import REASONS
from monitor.core.tables import EMPTY, LABEL, ROW
from monitor.core.thresholds import Objective
from monitor.demo import script
from monitor.demo.flights import LIVE, MODEL, VERSION, flights
from monitor.store.policies import checksum
from rows import table_of

PAGE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text()
DAYS = DAY // SECOND
PLATT = {"kind": "platt", "a": -0.2, "b": 1.3}


CONFIG = """\
state: {folder}/state
api: 127.0.0.1:{port}
metrics: 127.0.0.1:0
clock: events
models:
  flights:
    baseline: {folder}/baseline.json
    policies: {folder}/policies
    segments: [origin, carrier]
    labels: {{horizon: 24h}}
    threshold: 0.23863889487701515
  margins: {{labels: {{horizon: 24h}}, score: margin, rules: {{canary: off}}}}
  bare: {{labels: {{horizon: 24h}}}}
"""


def configured(folder):
    """Return a configuration whose files are in a folder and whose port nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return CONFIG.format(folder=folder, port=free.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the flights as files, a configuration, and the state of an agent that has seen ten days."""
    made = tmp_path_factory.mktemp("choose")
    script.write_files(made)
    (made / "c.yaml").write_text(configured(made))
    names = [made / "predictions.csv", made / "labels.csv"]
    for path in names:
        head, *lines = path.read_text().splitlines()
        seen = (line for line in lines if -6 * DAYS <= int(line.split(",")[1]) - LIVE < 4 * DAYS)
        path.write_text("\n".join([head, *seen]) + "\n")
    args = ["--config", str(made / "c.yaml"), "--state", str(made / "state"), "--json"]
    assert cli.main(["replay", *args, *map(str, names)]) == 0
    return made


@pytest.fixture(scope="module")
def march():
    """Return the flights that the baseline is made of and whose outcome is known: score, origin, late; and all scores."""
    all_of = [f for f in flights() if f.scheduled < LIVE]
    known = [f for f in all_of if f.late is not None]
    score, origin, late = (np.array([f[i] for f in known]) for i in (5, 3, 6))
    return score.astype(float), origin, late.astype(int), np.array([float(f.score) for f in all_of])


@pytest.fixture
def threshold(folder, capsys):
    """Return a function that runs the command and returns (exit code, output, errors)."""

    def run(*args, model=MODEL):
        capsys.readouterr()
        try:
            code = cli.main(["threshold", model, "--config", str(folder / "c.yaml"), *map(str, args)])
        except SystemExit as e:  # argparse
            code = e.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def said(threshold):
    """Return a function that returns what the command says as JSON."""

    def run(*args):
        code, out, err = threshold(*args, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def counts(y, flag):
    """Return the counts as the command has them, by scikit-learn."""
    tn, fp, fn, tp = confusion_matrix(y, flag, labels=[0, 1]).ravel().tolist()
    return {"tp": tp, "fp": fp, "fn": fn, "tn": tn}


def of(row):
    """Return the counts of a row that the command says."""
    return {name: row[name] for name in ("tp", "fp", "fn", "tn")}


@pytest.mark.parametrize(
    ("option", "holds"),
    [
        (["--cost", "4:1"], lambda c, worth: worth == -4 * c["fn"] - c["fp"]),
        (["--utility", "5:-2:-6:0"], lambda c, worth: worth == 5 * c["tp"] - 2 * c["fp"] - 6 * c["fn"]),
        (["--capacity", "100"], lambda c, worth: c["tp"] + c["fp"] <= 3_100),
        (["--min-recall", "0.8"], lambda c, worth: c["tp"] / (c["tp"] + c["fn"]) > 0.8),
        (["--precision-floor", "0.5"], lambda c, worth: c["tp"] / (c["tp"] + c["fp"]) > 0.5),
        (["--fpr-cap", "0.1"], lambda c, worth: c["fp"] / (c["fp"] + c["tn"]) < 0.1),
        (["--f1"], lambda c, worth: True),
        (["--youden"], lambda c, worth: True),
        (["--fixed", "0.31"], lambda c, worth: True),
    ],
)
def test_every_objective(said, march, option, holds):
    """The counts of the chosen threshold are those of the rows, it is one of the candidates, and it keeps what it is for."""
    score, _, y, everyone = march
    found = said(*option)
    chosen = found["chosen"]
    assert of(chosen) == counts(y, score >= chosen["threshold"])
    assert holds(of(chosen), chosen.get("worth"))
    assert chosen in found["candidates"]
    assert all(of(c) == counts(y, score >= c["threshold"]) for c in found["candidates"])
    assert [c["threshold"] for c in found["candidates"]] == sorted({c["threshold"] for c in found["candidates"]})
    assert found["current"] in [c["threshold"] for c in found["candidates"]]
    assert (found["rows"], found["positives"], found["days"], found["automatic"]) == (len(y), y.sum(), 31, True)
    assert chosen["flagged_per_day"] == pytest.approx((everyone >= chosen["threshold"]).sum() / 31, rel=1e-12)
    if option[0] == "--capacity":
        assert chosen["flagged_per_day"] <= 100 < (everyone >= chosen["threshold"] * 0.995).sum() / 31


def test_prevalence(said):
    """Precision is said at multiples of the prevalence, and where the threshold belongs when there are more positives."""
    found = said("--f1", "--prevalence", "0.4")
    assert [p["prevalence"] / found["positives"] * found["rows"] for p in found["precisions"]] == pytest.approx(
        [0.25, 0.5, 1, 2, 4]
    )
    assert found["precisions"][2]["precision"] == pytest.approx(found["chosen"]["precision"])
    assert 0 < found["shifted"] < found["chosen"]["threshold"]


@pytest.fixture
def old(tmp_path):
    """Return the file of a policy whose calibrator serves other scores."""
    path = tmp_path / "old.json"
    path.write_text(policy("", MODEL, VERSION, {"all": 0.2}, PLATT, review=(0.1, 0.3)).to_json())
    return path


@pytest.mark.parametrize("calibrated", [False, True])
def test_what_is_printed_is_what_is_served(threshold, folder, march, agent, tmp_path, old, calibrated):
    """A policy with thresholds by slice, once activated, gives rows the verdicts that were counted, by slice and calibrator."""
    score, origin, y, _ = march
    out = tmp_path / "p.json"
    code, text, err = threshold("--f1", "--by", "origin", "--out", out, "--json", *(["--policy", old] if calibrated else []))
    found = json.loads(text)
    assert (code, err) == (0, f"{out}: review and abstain of {old} are not in it; add them by hand\n" if calibrated else "")
    assert found["calibrator"]["kind"] == ("platt" if calibrated else "identity")
    assert len(found["thresholds"]) > 1
    running = agent(configured(tmp_path).replace(f"{tmp_path}/baseline.json", str(folder / "baseline.json")))
    event = {"id": "1", "ts": LIVE, "model": MODEL, "version": VERSION, "score": 0.5}
    running.post("predictions", [event])
    assert cli.main(["activate", MODEL, "--config", str(running.config), "--policy", str(out), "--reason", "test"]) == 0
    served = running.ask(f"/v1/models/{MODEL}/policy")[1]
    assert served["thresholds"] == found["thresholds"]
    assert found["slices"].keys() == {f"origin={name}" for name in ("EWR", "JFK", "LGA")}
    for name, row in found["slices"].items():
        mine, bands = origin == name.removeprefix("origin="), served["bands"].get(name, served["bands"]["all"])
        cuts = [cut for cut, _ in bands]
        flag = [bands[bisect_right(cuts, s) - 1][1] == "flag" for s in score[mine]]
        assert of(row["own"]) == counts(y[mine], flag)
        scale = apply(served["calibrator"], score[mine])
        assert flag == (scale >= served["thresholds"].get(name, served["thresholds"]["all"])).tolist()


def test_live(threshold, folder, agent):
    """On the mature days of an agent, stopped or running, the counts are those of the flights of these days."""
    options = ["--live", "--cost", "4:1", "--by", "origin", "--json"]
    code, stopped, err = threshold(*options)
    assert (code, err) == (0, "")
    found = json.loads(stopped)
    assert (found["days"], found["source"], found["version"]) == (10, "the last 10 mature days", VERSION)
    assert (found["automatic"], found["reason"]) == (True, "")
    since, until = LIVE - 6 * DAYS, LIVE + 4 * DAYS
    known = [f for f in flights() if f.scheduled >= since and f.arrived is not None and since <= f.arrived < until]
    score, y = np.array([float(f.score) for f in known]), np.array([f.late for f in known])
    assert all(of(c) == counts(y, score >= c["threshold"]) for c in found["candidates"])
    running = agent((folder / "c.yaml").read_text())
    assert threshold(*options) == (0, stopped, "")
    code, out, _ = threshold("--live", "--f1", "--days", "3")
    assert out.splitlines()[0].endswith("of the last 3 mature days (3 days)")
    assert running.stop() == 0


def test_for_a_person(threshold, old, tmp_path):
    """The text marks the chosen threshold and the present one, says how sure the choice is, and how to activate it."""
    code, out, err = threshold("--min-recall", "0.8", "--prevalence", "0.4")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1] == "objective: min_recall 0.8; scores as identity serves them"
    chosen, now = ([line for line in lines if line.startswith(mark)] for mark in "▶·")
    assert (len(chosen), len(now)) == (1, 1)
    assert now[0].split()[1] == "0.2386"
    assert any(line.startswith("With a confidence of 95 % the recall is at least 0.80") for line in lines)
    assert any(line.startswith("Precision where the prevalence is 0.057: ") for line in lines)
    assert any(
        line.startswith("With the prevalence to expect, and nothing else changed, this threshold belongs at ") for line in lines
    )
    # Never `--threshold`: the policy that serves may have a calibrator, and this is no threshold of its scores.
    assert lines[-2].startswith(f"scorewatch activate {MODEL} --policy FILE --reason ")
    out = threshold("--f1", "--by", "origin")[1]
    assert (
        "By slice, with the threshold of all and, where it has 300 positives, with its own (▶):\norigin=EWR: 2,680 positive"
        in out
    )
    assert out.endswith("FILE is what --out FILE writes.\n")
    out = threshold("--cost", "4:1", "--policy", old, "--out", tmp_path / "p.json")[1]
    assert "objective: cost, missed 4, false alarm 1; scores as platt serves them" in out
    assert f"scorewatch activate {MODEL} --policy {tmp_path}/p.json --reason" in out


def test_rows_without_times(threshold, tmp_path, capsys):
    """Of a baseline whose rows have no times nothing is known about a day, and few rows say that a person should look."""
    rows = [f"{i},{(i % 97) / 97},{int(i % 97 > 60 or i % 7 == 0)}" for i in range(900)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,score,label", *rows]) + "\n")
    args = ["baseline", "build", str(tmp_path / "rows.csv"), "--model", "bare", "--version", "1"]
    assert cli.main([*args, "--out", str(tmp_path / "b.json")]) == 0
    code, out, _ = threshold("--baseline", tmp_path / "b.json", "--cost", "4:1", model="bare")
    assert (code, out.splitlines()[0].endswith("(without times)")) == (0, True)
    assert "Not without a person: Fewer than 5,000 rows" in out
    code, _, err = threshold("--baseline", tmp_path / "b.json", "--capacity", "10", model="bare")
    assert (code, err) == (
        1,
        f"scorewatch: capacity of {tmp_path}/b.json: The rows have no times, so cases a day are not known.\n",
    )


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--cost", "4"], 2, "--cost: found '4'; write MISSED:FALSE_ALARM, such as 10:1"),
        (["--cost", "4:x"], 2, "--cost: found '4:x'; write MISSED:FALSE_ALARM, such as 10:1"),
        (["--cost=-4:1"], 2, "--cost: missed: found -4.0; write a number above 0"),
        (["--cost", "4:nan"], 2, "--cost: false_alarm: found nan; write a number"),
        (["--utility", "1:2:3"], 2, "--utility: found '1:2:3'; write TP:FP:FN:TN, such as 5:-2:-6:0"),
        (["--capacity", "0"], 2, "argument --capacity: found '0'; write a whole number above 0"),
        (["--min-recall", "1.5"], 2, "--min-recall: found 1.5; write a number between 0 and 1"),
        (["--precision-floor", "0"], 2, "--precision-floor: found 0.0; write a number between 0 and 1"),
        (["--fpr-cap=-1"], 2, "--fpr-cap: found -1.0; write a number between 0 and 1"),
        (["--fixed", "2"], 2, "argument --fixed: found '2'; write a number from 0 to 1"),
        (["--f1", "--prevalence", "40 %"], 2, "argument --prevalence: found '40 %'; write a number from 0 to 1"),
        (["--live", "--f1", "--days", "0"], 2, "argument --days: found '0'; write a whole number above 0"),
        (["--f1", "--youden"], 2, "argument --youden: not allowed with argument --f1"),
        ([], 2, "models.flights.threshold: found no objective; write one, or give --cost or another"),
        (["--precision-floor", "0.999"], 1, "No threshold keeps the target with a confidence of 95 %."),
        (["--f1", "--by", "county"], 1, "baseline.json has no slices of 'county'; it has those of origin, carrier"),
        (["--f1", "--version", "v9"], 1, "baseline.json is of flights gb-2013-02"),
        (["--live", "--f1", "--version", "v9"], 1, "flights has no mature day yet"),
        (["--f1", "--policy", "{folder}/c.yaml"], 1, "{folder}/c.yaml: "),
        (["--f1", "--policy", "{folder}/none.json"], 1, "No such file"),
        (
            ["--f1", "--policy", "{folder}/another.json"],
            1,
            "another.json is a policy of flights v9, the outcomes are of flights gb-",
        ),
        (["--f1", "--baseline", "{folder}/labels.csv"], 1, "labels.csv"),
    ],
)
def test_errors(threshold, folder, options, code, message):
    """What cannot be done is said with what to write instead, and no threshold is printed."""
    (folder / "another.json").write_text(policy("", MODEL, "v9", {"all": 0.2}).to_json())
    found, out, err = threshold(*(option.format(folder=folder) for option in options))
    assert (found, out) == (code, "")
    assert message.format(folder=folder) in err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("fligths", "models has no 'fligths'; it has flights, margins, bare"),
        ("margins", "models.margins.score: found margin, which is no probability to have a threshold"),
        ("bare", "models.bare.baseline: found nothing; write a baseline, or give --live"),
    ],
)
def test_models_that_cannot(threshold, model, message):
    """A model that is unknown, of margins or without a baseline is named with its key."""
    code, out, err = threshold("--f1", model=model)
    assert (code, out, message in err) == (2, "", True)


def test_without_outcomes():
    """A capacity is chosen where nothing is known of outcomes, and the text says that only what is flagged means something."""
    scores = {"all": scored(table_of([0.1, 0.2, 0.3, 0.4, 1.0, 1.0]))}
    outcomes = choose.Outcomes("m", "1", "two days", 2, {"all": known(EMPTY)}, scores)
    found = choose.found(outcomes, Objective("capacity", 1.0), IDENTITY, "", 0.3, None)
    assert (found["chosen"]["threshold"], found["chosen"]["flagged_per_day"], found["undefined"]) == (
        pytest.approx(0.4, abs=0.01),
        1.0,
        "no_events",
    )
    assert f"Only flagged/day says something here: {REASONS['no_events']}" in list(choose.lines(found))
    with pytest.raises(ValueError, match="f1 of two days: "):
        choose.found(outcomes, Objective("f1"), IDENTITY, "", None, None)


@pytest.mark.parametrize(("kind", "negatives"), [("observed", 30), ("validation", 10)])
def test_what_no_label_means(kind, negatives):
    """In observed days no label means what the configuration says; a validation says itself what its rows are."""
    rows, labels = np.zeros(40, ROW), np.zeros(40, LABEL)
    rows["score"], labels["outcome"] = np.repeat((0.8, 0.2), (10, 30)), np.repeat((1, 0, -1), (10, 10, 20))
    made = baselines.build("m", "1", (), rows, labels, [()], {"kind": kind})
    found = choose.of_baseline(made, "b.json", (LabelRule("negative"),) * len(VERDICTS))
    assert (found.outcomes["all"].pos.sum(), found.outcomes["all"].neg.sum()) == (10, negatives)


def test_the_page_shows_what_is_there(threshold, said, folder, old):
    """docs/policies.md has the output of the command and a policy as it would be served."""
    out = threshold("--cost", "4:1")[1].replace(f"{folder}/", "")
    assert f"$ scorewatch threshold flights --cost 4:1\n{out}```\n" in PAGE
    shown = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])
    found = from_json(json.dumps(shown))
    thresholds = said("--f1", "--by", "origin", "--policy", old)["thresholds"]
    made = policy(found.id, MODEL, VERSION, thresholds, PLATT, (VOLUME_LIMIT, UNDO_LIMIT), found.provenance, (0.5, 0.6))
    assert found.thresholds == pytest.approx(thresholds)
    assert replace(found, thresholds=made.thresholds, checksum="") == made
    assert (shown, checksum(found)) == (json.loads(found.to_json()), found.checksum)
