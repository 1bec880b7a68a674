"""`scorewatch check`: the plan, what it refuses and how, and what it finds of the machine."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monitor import check
from monitor.agent import Agent
from monitor.check import Room
from monitor.cli import main
from monitor.config import describe, load, parse
from monitor.core import power
from monitor.core.baseline import Baseline, to_json
from monitor.core.events import DAY
from monitor.core.sizing import PROCESS_BYTES
from monitor.store import StateError

FRAUD = "models: {fraud: {per_day: 100k, labels: {horizon: 90d}}}\n"
PLENTY = Room(10**12, 0, 10**12)


def misfits(text, room=PLENTY):
    """Return what of a configuration cannot fit into a room."""
    config = parse(text, "f.yaml", Path("/base"))
    return check.misfits(config, check.size_of(config), room)


def lines(text, room=PLENTY):
    """Return the plan of a configuration."""
    config = parse(text, "f.yaml", Path("/base"))
    return check.lines(config, check.size_of(config), room)


def test_what_fits_is_not_refused():
    """A plan that just fits is none to refuse, and neither is one of unknown rows however small the machine."""
    need = 11_900_000
    assert misfits(FRAUD, Room(need * 72, 0, PROCESS_BYTES + need * 8)) == []
    assert misfits(FRAUD, Room(None, 0, None)) == []
    assert misfits("models: {a: }", Room(0, 0, PROCESS_BYTES)) == []


@pytest.mark.parametrize(
    ("text", "room", "want"),
    [
        (
            f"state: s\n{FRAUD}",
            Room(600_000_000, 0, None),
            "models.fraud.per_day: found 11.9M rows that wait and need 857MB of disk, where /base/s can have 600MB; write "
            "a smaller waiting.rows (then a sample waits) or a shorter labels.horizon or labels.corrections, "
            "give the state a larger disk, or run one agent per model, each with disk of its own",
        ),
        (
            f"waiting: {{rows: 10M}}\n{FRAUD}",
            Room(None, 0, 128_000_000),
            "waiting.rows: found 9M rows that wait and need 136MB of memory, where the container is allowed 128MB; write "
            "a smaller waiting.rows (then a sample waits) or a shorter labels.horizon or labels.corrections, allow more memory, "
            "or run one agent per model, each with memory of its own",
        ),
        (
            f"waiting: {{rows: 50k}}\n{FRAUD}",
            PLENTY,
            "models.fraud.per_day: found 100k, of which only 378 can wait 119 days within waiting.rows 50k, fewer than 1k; write "
            "a larger waiting.rows, a shorter labels.horizon or labels.corrections, or run one agent per model",
        ),
        (
            "waiting: {rows: 60M}\nmodels: {'a b': {per_day: 100G, labels: {horizon: 90d}}}",
            PLENTY,
            "waiting.rows: found 60M, fewer than the 119M that wait when 1e-05 of each kind of score does; write "
            "a shorter labels.horizon or labels.corrections, or run one agent per model",
        ),
        (
            "waiting: {rows: 50k}\nmodels: {'a b': {per_day: 100k, labels: {horizon: 90d, corrections: 0s}}}",
            PLENTY,
            "models.'a b'.per_day: found 100k, of which only 494 can wait 91 days within waiting.rows 50k, fewer than 1k; write "
            "a larger waiting.rows, a shorter labels.horizon or labels.corrections, or run one agent per model",
        ),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused(text, room, want):
    """The message names file, key path, what was found and the ways out."""
    (found,) = misfits(text, room)
    assert found.removeprefix("None: ") == want


def test_the_plan_of_a_sample():
    """The plan says how long rows stay, how many wait, how many of all that is, and when outcomes are seen first."""
    text = """\
waiting: {rows: 10M}
models:
  fraud: {per_day: 1M, labels: {horizon: 30d, verdicts: {pass: {horizon: 90d}, block: {horizon: never}}}}
  churn: {per_day: 500, labels: {horizon: 12h, corrections: 0s}}
"""
    assert lines(text, Room(10**9, 0, 2 * 10**8)) == [
        "Plan",
        "fraud",
        "  a row stays 119 days: the longest horizon, the corrections, and its own day",
        "  rows: 9M of 119M: of 1M a day 75.6k wait (7.56 %)",
        "    flagged ones and those near the threshold first; estimates weight them and stay unbiased",
        "  first outcomes: 90d after the first day has ended",
        "churn",
        "  a row stays 1.5 days: the longest horizon, the corrections, and its own day",
        "  rows: 750, all of 500 a day wait",
        "  first outcomes: 12h after the first day has ended",
        "all models",
        "  rows: 9M of waiting.rows 10M",
        "  disk: 648MB for rows and labels, about 22.6MB a year for the log, more with segments",
        "    /var/lib/scorewatch: 1GB free or taken by it",
        "  memory: 72MB to 144MB for the index, about 64MB for the process",
        "    200MB allowed, which may be too little; pages of the mapped files come on top, the system takes them back when it "
        "needs them",
    ]


def test_the_plan_of_unknown_rows():
    """Without per_day the plan is that of waiting.rows, says so, and says what is too small for it."""
    found = lines("models: {churn: }", Room(10**9, 0, None))
    assert "  rows: unknown; write per_day, how many predictions a day are expected" in found
    assert "  rows: 20M of waiting.rows 20M, the most that may wait" in found
    assert "    /var/lib/scorewatch: 1GB free or taken by it, too little for so many rows" in found
    assert found[-1].startswith("    no limit found; ")


def test_the_output_stays_a_configuration(tmp_path, capsys):
    """What check prints is the effective configuration with the plan as comments, whatever the names in it."""
    path = tmp_path / "c.yaml"
    path.write_text('state: "s\\u2028x: y"\nmodels: {"a\\u2028b: c": {per_day: 5}, "\\x85": }\n', encoding="utf-8")
    assert main(["check", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    want = load(path)
    assert out.startswith(describe(want))
    assert "\n# Plan\n# a\\u2028b: c\n" in out
    path.write_text(out, encoding="utf-8")
    assert load(path) == want


def test_refusals_from_outside(tmp_path, capsys):
    """A plan that cannot fit is printed, the messages go to stderr, and the exit code is 2; --json has all of it."""
    path = tmp_path / "c.yaml"
    path.write_text(f"state: s\nwaiting: {{rows: 50k}}\ntokens: {{ingest: secret}}\n{FRAUD}")
    assert main(["check", "--config", str(path)]) == 2
    out, err = capsys.readouterr()
    assert "# fraud\n" in out
    assert err.startswith(f"{path}: models.fraud.per_day: found 100k, of which only 378 can wait 119 days")
    assert main(["check", "--json", "--config", str(path)]) == 2
    out, again = capsys.readouterr()
    found = json.loads(out)
    assert found["configuration"]["models"]["fraud"]["per_day"] == "100k"
    assert found["configuration"]["tokens"]["ingest"] == "***"
    assert found["plan"]["models"][0]["rows"] == found["plan"]["rows"] == pytest.approx(45_000, rel=3e-4)
    assert [*found["misfits"], ""] == again.split("\n") == err.split("\n")


def test_the_room_of_a_state(tmp_path):
    """A state that is not there yet has the free disk of where it will be; its own files are room, too."""
    free = check.room_of(tmp_path / "not" / "yet")
    assert free.taken == 0
    assert free.disk == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    (tmp_path / "rows.bin").write_bytes(b"x" * 100_000)
    (tmp_path / "log.db").write_bytes(b"x" * 100_000)
    taken = check.room_of(tmp_path).taken
    assert 100_000 <= taken < 200_000


def test_the_memory_that_is_allowed(tmp_path):
    """The smallest limit of the process's group and those above it counts; `max`, other versions and no file are no limit."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("2000\n")
    (inner / "memory.max").write_text("max\n")
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/x\n0::/a/b\n")
    assert check.memory_limit(tmp_path, membership) == 2_000
    (inner / "memory.max").write_text("1000\n")
    assert check.memory_limit(tmp_path, membership) == 1_000
    membership.write_text("0::/\n")
    assert check.memory_limit(tmp_path, membership) is None
    (tmp_path / "memory.max").write_text("500\n")
    assert check.memory_limit(tmp_path, membership) == 500
    membership.write_text("4:memory:/x\n")
    assert check.memory_limit(tmp_path, membership) is None
    assert check.memory_limit(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0"), (45.94, "45.9"), (999, "999"), (999.6, "1k"), (12_345, "12.3k"), (2e6, "2M"), (1.1e10, "11G")]
)
def test_about(n, text):
    """Three digits and a unit say how much it is."""
    assert check.about(n) == text


def with_baseline(folder, days=30, per_day=2_000):
    """Write a baseline of calibrated scores into the folder and return a configuration that names it."""
    rng = np.random.default_rng(0)
    population = power.normal(0.05, 2.0, 0.2)
    tables = {20_000 + i: power.day([population], per_day, 0.0, 0.0, rng)["all"] for i in range(days)}
    provenance = {"kind": "validation"}
    until = (20_000 + days) * DAY
    made = Baseline("fraud", "v1", (), ("all",), np.array([0]), {"all": tables}, until, provenance)
    (folder / "baseline.json").write_text(to_json(made))
    return "models: {fraud: {baseline: baseline.json, threshold: 0.2, labels: {horizon: 30d}}}\n"


def test_what_can_be_seen_when(tmp_path, capsys):
    """With a baseline check says when which change is found, in text and in JSON, and the same each time."""
    path = tmp_path / "c.yaml"
    path.write_text(with_baseline(tmp_path))
    assert main(["check", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    load_again = tmp_path / "again.yaml"
    load_again.write_text(out)
    assert load(load_again).models == load(path).models
    at = out.index("# What can be seen when\n# fraud\n#   with 2k predictions a day, from the first day of a change on ")
    lines = out[at:].splitlines()
    assert lines[3] == "#     first day with an outcome number: day 31, 30 days after the first one has ended"
    assert [line.split(":")[0].removeprefix("#     ") for line in lines[4:]] == [change.text for change in power.CHANGES]
    assert main(["check", "--json", "--config", str(path)]) == 0
    seen = json.loads(capsys.readouterr().out)["seen"]["fraud"]
    assert (seen["per_day"], seen["first"]) == (2_000, 31)
    found = {s["change"]: s["days"] for s in seen["sights"]}
    assert 31 <= found["recall -20 points"] <= found["recall -10 points"]
    assert all(f"# {line}" in lines for line in (f"    {c}: {d:g} days" for c, d in found.items() if c == "flagged volume x 2"))


def test_what_nobody_can_see(tmp_path):
    """Without a baseline check says what it needs, and of models without per_day nothing."""
    path = tmp_path / "c.yaml"
    path.write_text("models: {a: {per_day: 5}, c: }\n")
    assert check.seen_lines(check.sights(load(path), {}, lambda text: None)) == [
        "What can be seen when",
        "a",
        "  unknown: write `baseline`: what can be seen depends on the scores and outcomes of validation",
    ]


def test_a_baseline_that_the_agent_refuses(tmp_path, capsys):
    """Check refuses what the agent would not start with, a baseline of a target too, in the same words: file, key and remedy."""
    path = tmp_path / "c.yaml"
    text = with_baseline(tmp_path).replace("threshold", "features: [age], threshold")
    (tmp_path / "b").mkdir()
    for name in ("x", "y", "top"):
        (tmp_path / "b" / f"{name}.json").write_text("{" if name == "y" else (tmp_path / "baseline.json").read_text())
    path.write_text(text.replace("}}", "}}, a: {classes: [x, y], baseline: b}"))
    assert main(["check", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/baseline.json: has no feature 'age' (it has none); take it out of models.fraud.features" in said
    assert f"{tmp_path}/b/y.json: " in said
    assert "take `models.a.baseline` out" in said
    config = load(path)
    with pytest.raises(StateError) as e:
        Agent(replace(config, state=tmp_path / "state"), "test")
    assert str(e.value) in said
