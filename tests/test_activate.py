"""From the rows of a validation to a policy that is served, by the commands alone, and what they refuse on the way."""

import json

import numpy as np
import pytest

from monitor import cli

CONFIG = """\
state: state
api: 127.0.0.1:1
models:
  m: {baseline: b.json, segments: [country], labels: {horizon: 1d}, threshold: {cost: {missed: 5, false_alarm: 1}}}
"""


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a configuration, the baseline that it names, which is built with it, and the policy."""
    (tmp_path / "m.yaml").write_text(CONFIG)
    rng, n = np.random.default_rng(3), 3_000
    p = rng.beta(1.2, 2.5, n).round(3)
    y, day = (rng.random(n) < p).astype(int), np.arange(n) * 20 // n
    rows = (f"r{i},2025-03-{1 + day[i]:02}T12:00:00Z,{p[i]},{y[i]},{'DE' if i % 2 else 'FR'}" for i in range(n))
    (tmp_path / "rows.csv").write_text("\n".join(["id,ts,score,label,country", *rows]))
    out = ["--out", str(tmp_path / "b.json"), "--policy", str(tmp_path / "p.json"), "--config", str(tmp_path / "m.yaml")]
    assert cli.main(["baseline", "build", str(tmp_path / "rows.csv"), "--model", "m", "--version", "v1", *out]) == 0
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """Return a function that runs a command with the configuration and returns (exit code, output, errors)."""

    def command(*args):
        capsys.readouterr()
        return cli.main([*args, "--config", str(folder / "m.yaml")]), *capsys.readouterr()

    return command


def test_the_policy_of_a_baseline_is_served_before_events_come(folder, run):
    """A policy says which version it is for, so that none need be live; one of another version is refused and leaves no file."""
    activate = ["activate", "m", "--policy", str(folder / "p.json"), "--reason", "validation"]
    refused = "scorewatch: the policy is for m v1, not for m v2\n"
    assert run(*activate, "--version", "v2") == (1, "", refused)
    code, out, err = run(*activate)
    assert (code, err) == (0, "")
    assert out.startswith("m v1: policy ")
    assert run(*activate, "--version", "v2") == (1, "", refused)
    assert len([*(folder / "state" / "policies").rglob("*-*.json")]) == 1


def test_a_policy_that_was_edited_and_kept_its_id(folder, run):
    """Another policy under the id of one that exists is refused, not taken for the one that exists."""
    activate = ["activate", "m", "--reason", "x", "--policy"]
    assert run(*activate, str(folder / "p.json"))[0] == 0
    (path,) = (folder / "state" / "policies" / "m" / "v1").glob("*-*.json")
    (folder / "same.json").write_text(path.read_text())
    made = json.loads(path.read_text()) | {"thresholds": {"all": 1.0}, "checksum": ""}
    del made["bands"]
    (folder / "edited.json").write_text(json.dumps(made))
    assert run(*activate, str(folder / "same.json"))[0] == 0
    code, out, err = run(*activate, str(folder / "edited.json"))
    assert (code, out) == (1, "")
    assert err == f"scorewatch: there is another policy {made['id']}, and policies never change; leave out the id for a new one\n"


@pytest.mark.parametrize("command", [["threshold", "m"], ["activate", "m", "--reason", "x"]])
def test_files_that_are_no_policies(folder, run, command):
    """A file that is no policy is named."""
    (folder / "broken.json").write_text("{")
    for name, found in (("broken.json", "Expecting"), ("b.json", "not a policy: it has no 'undo'")):
        code, out, err = run(*command, "--policy", str(folder / name))
        assert (code, out) == (1, "")
        assert err.startswith(f"scorewatch: {folder / name}: {found}")


@pytest.mark.parametrize("args", [["--threshold", "1.5"], ["--threshold", "nan"], ["--threshold", ".5", "--reason", " "]])
def test_wrong_arguments(folder, run, capsys, args):
    """A threshold that is none and a reason that says nothing are refused, whether an agent runs or not."""
    with pytest.raises(SystemExit, match="2"):
        run("activate", "m", "--reason", "x", *args)
    assert f"argument {args[-2]}: " in capsys.readouterr().err


def test_models_that_are_not_configured(folder, run):
    """Any name of a model gets the same answer from `calibrate` as from `activate`."""
    assert run("activate", "m", "--policy", str(folder / "p.json"), "--reason", "x")[0] == 0
    refused = (1, "", "scorewatch: model 'a b/c' is not in the configuration; it has m\n")
    assert run("calibrate", "a b/c") == run("activate", "a b/c", "--threshold", ".5", "--reason", "x") == refused


@pytest.mark.parametrize(
    ("option", "args"),
    [
        ("--out", ["--out", "rows.csv"]),
        ("--out", ["--out", "m.yaml"]),
        ("--policy", ["--out", "new.json", "--policy", "./rows.csv"]),
        ("--policy", ["--out", "new.json", "--policy", "new.json"]),
    ],
)
def test_a_build_writes_over_nothing_it_reads(folder, run, monkeypatch, option, args):
    """Rows and configuration stay, and a policy does not take the place of the baseline that it was chosen with."""
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, out, err = run("baseline", "build", "rows.csv", "--model", "m", "--version", "v1", *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"scorewatch baseline build: {option}: found ")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_policy_that_is_not_written_is_said(folder, run):
    """Whoever asks for a policy where none can be chosen is told, and the baseline is there."""
    rows = (folder / "rows.csv").read_text().splitlines()
    (folder / "some.csv").write_text("\n".join([rows[0] + ",role", *(f"{row},test" for row in rows[1:])]))
    names = [str(folder / name) for name in ("some.csv", "new.json", "none.json")]
    code, _, err = run("baseline", "build", names[0], "--model", "m", "--version", "v1", "--out", names[1], "--policy", names[2])
    assert (code, err) == (0, f"no policy could be chosen, so {names[2]} is not written\n")
    assert (folder / "new.json").exists()
    assert not (folder / "none.json").exists()


def test_a_model_with_classes_is_not_any_other_model(folder, run):
    """Each class has a policy, the model has none: also where `*` takes models of any name, and with a version."""
    (folder / "m.yaml").write_text("models: {animals: {classes: [cat, dog]}, '*': }\nstate: state\napi: 127.0.0.1:1\n")
    code, out, err = run("activate", "animals", "--threshold", ".5", "--version", "v1", "--reason", "x")
    assert (code, out) == (1, "")
    assert err == "scorewatch: model 'animals' is not in the configuration; it has animals:cat, animals:dog, animals:top, *\n"
    assert run("activate", "other", "--threshold", ".5", "--version", "v1", "--reason", "x")[0] == 0
