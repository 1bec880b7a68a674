"""`scorewatch export data` and `merge`: what several agents counted, added up, is what one agent would have counted."""

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from monitor import cli
from monitor.core.events import DAY
from monitor.core.tables import to_dict
from monitor.data import Merged

START = 1_740_528_000_000
"""2025-02-26 in ms."""
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h, missing: negative}, threshold: 0.5, segments: [country]}
"""
N, DAYS = 10_000, 4


@pytest.fixture(scope="module")
def stream():
    """Return 10,000 predictions of four days in two months, two versions, and labels of nine in ten of them."""
    rng = np.random.default_rng(8)
    score = rng.beta(0.6, 3, N)
    ts = np.sort(rng.integers(START, START + DAYS * DAY, N))
    predictions = [
        {"id": f"id-{i}", "model": "m", "version": "v1" if i % 2 else "v2", "ts": int(t), "score": float(s)}
        | {"segments": {"country": "DE" if i % 4 < 2 else "FR"}}
        for i, (s, t) in enumerate(zip(score, ts, strict=True))
    ]
    outcome, there = rng.random(N) < score, rng.random(N) < 0.9
    return predictions, [
        {"id": e["id"], "model": "m", "ts": e["ts"] + 60_000, "label": int(y)}
        for e, y, k in zip(predictions, outcome, there, strict=True)
        if k
    ]


@pytest.fixture(scope="module")
def parts(module_agent, stream):
    """Return agents that got all of the stream, and two random halves of its ids; every day is mature."""
    first = np.random.default_rng(0).random(N) < 0.5
    halves = {f"id-{i}" for i in np.flatnonzero(first)}, {f"id-{i}" for i in np.flatnonzero(~first)}
    made = []
    for name, ids in (("one", halves[0] | halves[1]), ("a", halves[0]), ("b", halves[1])):
        made.append(module_agent(CONFIG, name))
        for kind, events in zip(("predictions", "labels"), stream, strict=True):
            made[-1].post(kind, [e for e in events if e["id"] in ids])
        made[-1].now(START + (DAYS + 2) * DAY)
    return made


@pytest.fixture(scope="module")
def files(parts):
    """Return the file that each of the agents exported."""
    for a in parts:
        (a.folder / "data.ndjson").write_text(a.ask("/v1/data")[1])
    return [str(a.folder / "data.ndjson") for a in parts]


def merge(capsys, *args):
    """Return the exit code, the items and the messages of `merge --json`."""
    code = cli.main(["merge", "--json", *args])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def test_d08_two_halves_add_up_to_the_whole(parts, files, capsys):
    """D08: a stream split over two agents and merged has every estimate, interval and count of the single agent."""
    expected = sorted(parts[0].ask("/v1/models/m/days?by=month")[1], key=lambda i: (i["version"], i["month"]))
    code, merged, said = merge(capsys, *files[1:])
    assert code == 0
    assert [(i["month"], i["version"], i["n"]) for i in merged] == [(i["month"], i["version"], i["n"]) for i in expected]
    assert sum(i["rows"] for i in merged) == N
    for got, whole in zip(merged, expected, strict=True):
        # Frozen bins are each agent's own.
        known = {name: e for name, e in whole["estimates"].items() if name != "ece"}
        assert {name: e for name, e in got["estimates"].items() if name != "ece"} == {
            name: {k: v if isinstance(v, str) else pytest.approx(v, abs=1e-9) for k, v in e.items()} for name, e in known.items()
        }
        assert {"ece_width10", "brier", "log_loss", "roc_auc", "recall", "precision"} <= known.keys()
        assert all("reason" not in e for e in known.values())
        assert got["estimates"]["ece"]["reason"] == "no_baseline"
    rows = [int(word.replace(",", "")) for line in said.splitlines() for word in [line.split(": ")[1].split()[0]]]
    assert (len(rows), sum(rows)) == (2, N)


def test_counts_add_up_cell_by_cell(files):
    """The sum of the halves has the cells and totals of the whole, day by day and slice by slice."""
    for name in ("all", "country=DE"):
        whole, halves = (Merged([*map(Path, some)], name) for some in (files[:1], files[1:]))
        assert whole.days.keys() == halves.days.keys()
        for version, days in whole.days.items():
            assert days.keys() == halves.days[version].keys()
            for day, table in days.items():
                same(to_dict(halves.days[version][day]), to_dict(table))


def same(a, b):
    """Compare tables as dicts: counts are equal, sums to 1e-9."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(np.array(a[name], float), np.array(b[name], float), rtol=0, atol=1e-9, err_msg=name)


def test_the_whole_merged_alone_is_itself(parts, files, capsys):
    """One file gives its own estimates, by day as well; files in any order give the same."""
    days = merge(capsys, "--by", "day", files[0])[1]
    assert [i["day"][5:] for i in days if i["version"] == "v1"] == ["02-26", "02-27", "02-28", "03-01"]
    assert merge(capsys, files[1], files[2])[1] == merge(capsys, files[2], files[1])[1]
    assert sum(i["rows"] for i in merge(capsys, "--slice", "country=DE", files[0])[1]) < N
    assert [i["n"] for i in merge(capsys, files[0], files[0])[1]] == [2 * i["n"] for i in merge(capsys, files[0])[1]]


def test_merged_lines_for_people(files, capsys):
    """Without --json files say what they gave, and each month of a version has a line that names it."""
    assert cli.main(["merge", *files[1:]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:2]] == files[1:]
    assert [line.split()[0] for line in lines[3:]] == ["2025-02", "2025-03"] * 2
    assert [line.split()[-2:] for line in lines[3:]] == [["m", version] for version in ("v1", "v1", "v2", "v2")]


def test_export_of_a_running_and_of_a_stopped_agent(parts, files, capfdbinary, tmp_path):
    """The command writes the same bytes from the api and from the state of a stopped agent."""
    a = parts[2]
    assert cli.main(["export", "data", "--url", a.api]) == 0
    running = capfdbinary.readouterr().out
    a.stop()
    try:
        assert cli.main(["export", "data", "--config", str(a.config)]) == 0
        assert capfdbinary.readouterr().out == running
    finally:
        a.start()
    assert running.decode() == (a.folder / "data.ndjson").read_text()
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
    assert cli.main(["export", "data", "--url", url]) == 1
    assert f"{url}: no agent listens there" in capfdbinary.readouterr().err.decode()


def test_slices_that_agents_cut_otherwise_are_refused(files, tmp_path, capsys):
    """An agent that counted a value as `other` has rows of it that nobody can tell, so there is no sum of that slice."""
    lines = [json.loads(line) for line in Path(files[1]).read_text().splitlines()]
    path = tmp_path / "b.ndjson"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line["slice"] != "country=FR"))
    code, merged, said = merge(capsys, "--slice", "country=DE", files[2], str(path))
    assert (code, merged) == (1, [])
    assert "m v1 has slices country=DE" in said
    assert merge(capsys, files[2], str(path))[0] == 0


def other_labels(line):
    return line | {"labels": line["labels"] | {"horizon": 1}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line | {"format": 2}, "line 1: format 2, this version reads 1"),
        (lambda line: line | {"grid": 7}, "line 1: grid 7, this version reads 1"),
        (other_labels, "they cannot be added"),
        (lambda line: line | {"margins": True}, "margins of m are True, in "),
        (lambda line: line | {"day": "soon"}, "line 1: "),
        (lambda line: line | {"bin": line["bin"][::-1]}, "the cells are not those of a table"),
        (lambda line: line | {"bin": [x + 5_000 for x in line["bin"]]}, "the cells are not those of a table"),
        (lambda line: line | {"n_pos": line["n_pos"][1:]}, "n_pos has "),
        (lambda line: line | {"n_neg": [-1] * len(line["bin"])}, "not written by `scorewatch export data`"),
        (lambda line: line | {"totals": [1, 2]}, "line 1: "),
        (lambda line: {"id": "1", "score": 0.5}, "not written by `scorewatch export data`"),
        (lambda line: [1], "not written by `scorewatch export data`"),
        (lambda line: line | {"slice": "country=IT"}, "has no day of slice all"),
    ],
)
def test_what_cannot_be_added_is_refused(files, tmp_path, capsys, change, message):
    """Another format, grid or way to read outcomes or scores, a damaged line or another file leave a message and no sum."""
    with open(files[0]) as f:
        line = json.loads(f.readline())
    assert line["slice"] == "all"
    path = tmp_path / "other.ndjson"
    path.write_text(json.dumps(change(line)) + "\n")
    code, merged, said = merge(capsys, files[1], str(path))
    assert (code, merged) == (1, [])
    assert str(path) in said
    assert message in said


@pytest.mark.parametrize("text", ["", "hello\n", '{"format": 1'])
def test_a_file_of_nothing_is_refused(tmp_path, capsys, text):
    """An empty file, and one that is no JSON, are named."""
    path = tmp_path / "other.ndjson"
    path.write_text(text)
    code, merged, said = merge(capsys, str(path))
    assert (code, merged) == (1, [])
    assert str(path) in said


def test_an_export_that_cannot_go_on_says_so(agent, stream, capfdbinary):
    """A day whose tables are damaged ends the command with its name and not with half a file that looks whole."""
    a = agent(CONFIG)
    a.post("predictions", stream[0][:1_000])
    a.now(START + 40 * DAY)
    a.stop()
    with closing(sqlite3.connect(a.folder / "state" / "log.db")) as db, db:
        db.execute("update days set tables = x'93' where day = (select min(day) from days)")
    a.start()
    for url in (["--url", a.api], ["--config", str(a.config)]):
        if url[0] == "--config":
            a.stop()
        assert cli.main(["export", "data", *url]) == 1
        assert f"day {START // DAY} are damaged" in capfdbinary.readouterr().err.decode()
