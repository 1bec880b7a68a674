"""`scorewatch baseline show`: what a baseline promises, and what is wrong with a file that is none."""

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor import cli
from monitor.core.baseline import build, to_json
from monitor.core.events import DAY
from monitor.core.features import encode, freeze, placed
from monitor.core.reasons import REASONS
from monitor.core.tables import LABEL, ROW
from monitor.watched import baseline_checksum


@pytest.fixture
def path(tmp_path):
    """Return the file of a baseline of 20 days with slices and features."""
    rng = np.random.default_rng(0)
    n = 6_000
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["ts"], rows["score"] = (16_000 + np.arange(n) % 20) * DAY, rng.beta(2, 5, n)
    rows["combo"] = np.arange(n) % 4 == 0
    labels["outcome"] = np.where(np.arange(n) % 10 == 0, -1, rng.random(n) < rows["score"])
    said = [{"amount": i % 100, "channel": None if i % 5 == 0 else "web"} for i in range(n)]
    features = {name: freeze([e[name] for e in said]) for name in ("amount", "channel")}
    rows["features"] = encode(placed(features, features), said)
    combos = [(("country", "DE"),), (("country", "F\nR"),)]
    made = build("fraud", "v7", ("country",), rows, labels, combos, {"kind": "validation", "by": "a test"}, features)
    found = tmp_path / "fraud.json"
    found.write_text(to_json(replace(made, checksum=baseline_checksum(made))))
    return found, made, rows, labels


def test_json(path, capsys):
    """As JSON it says all that is in the file: rows, outcomes, slices, edges, features, and how much days differ."""
    file, made, _, labels = path
    assert cli.main(["baseline", "show", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    positives = int((labels["outcome"] == 1).sum())
    assert (found["model"], found["version"], found["promises"], found["provenance"]) == (
        "fraud",
        "v7",
        True,
        {"kind": "validation", "by": "a test"},
    )
    assert (found["rows"], found["labelled"], found["positives"]) == (6_000, 5_400, positives)
    assert found["estimates"]["prevalence"]["value"] == pytest.approx(positives / 5_400)
    assert (found["days"], found["first_day"], found["last_day"]) == (20, "2013-10-22", "2013-11-10")
    assert found["day_spread"] == made.day_spread
    assert {name: s["rows"] for name, s in found["slices"].items()} == {
        "country=DE": 4_500,
        "country=F\nR": 1_500,
        "country=other": 0,
    }
    assert found["slices"]["country=other"]["estimates"]["prevalence"]["reason"] == "no_events"
    assert len(found["edges"]) == len(made.edges)
    amount, channel = found["features"].values()
    assert (amount["kind"], [b["rows"] for b in amount["bins"]]) == ("number", [300] * 20)
    assert channel == {"kind": "text", "bins": [{"name": "web", "rows": 4_800}], "missing": 1_200, "unseen": 0}
    assert found["checksum"] == baseline_checksum(made)


def test_text(path, capsys):
    """For a person it is lines, none of which a name can break."""
    assert cli.main(["baseline", "show", str(path[0])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["fraud v7", "  validation: a promise", "  by: a test"]
    assert lines[3].startswith("  checksum: holds, sha256:")
    assert "  rows: 6,000, 5,400 with outcome, " in "\n".join(lines)
    assert any(line.startswith("    country=F\\nR: 1,500 rows") for line in lines)
    assert "  feature channel: text, 1,200 missing, 0 unseen; web" in lines


def test_an_observed_baseline_with_few_days(path, tmp_path, capsys):
    """A baseline that was only observed promises nothing, and 13 days do not show how much days differ."""
    _, _, rows, labels = path
    some = rows["ts"] < 16_013 * DAY
    few = build("fraud", "v7", (), rows[some], labels[some], [(), ()], {"kind": "observed"})
    (tmp_path / "few.json").write_text(to_json(few))
    assert cli.main(["baseline", "show", str(tmp_path / "few.json")]) == 0
    said = capsys.readouterr().out
    assert "  observed: freezes slices and bins, and promises nothing\n  checksum: none\n  days: 13 from" in said
    assert "  days differ: unknown, that takes 14 days with outcomes\n" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "No such file or directory"),
        (lambda text: "{", "Expecting property name"),
        (lambda text: "{}", "not a baseline: KeyError('grid')"),
        (lambda text: text.replace('"v7"', '"v8"'), "its checksum does not hold, so it was changed"),
        (lambda text: text.replace('"grid":1', '"grid":9'), "made on grid 9, this version counts on grid 1"),
    ],
)
def test_no_baseline(path, capsys, change, said):
    """A file that is missing, none, changed or of another grid gives exit code 1 and a message that names it."""
    file = path[0].with_name("other.json")
    if change:
        file.write_text(change(path[0].read_text()))
    assert cli.main(["baseline", "show", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"scorewatch: {file}: {said}")


def test_what_can_be_seen_when(path, tmp_path, capsys):
    """It ends with what can be seen when at the volume of the baseline, or as a configuration says."""
    file, *_ = path
    assert cli.main(["baseline", "show", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("What can be seen when")
    assert lines[at + 1] == "fraud"
    assert lines[at + 2].startswith("  with 300 predictions a day, ")
    assert sum(line.endswith(REASONS["no_threshold"]) for line in lines[at:]) == 3
    config = tmp_path / "c.yaml"
    config.write_text("models: {fraud: {per_day: 1000, threshold: 0.3, labels: {horizon: 2d}}}\n")
    assert cli.main(["baseline", "show", str(file), "--config", str(config), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)["seen"]
    assert (seen["per_day"], seen["first"]) == (1_000, 3.0)
    assert {s["reason"] for s in seen["sights"]} == {""}
