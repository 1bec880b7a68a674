"""`scorewatch baseline build`: files of labelled rows become a baseline, a policy, and a report of one test."""

import csv
import gzip
import json
from collections import Counter

import numpy as np
import pytest

from monitor import cli
from monitor.config import load
from monitor.core.events import DAY
from monitor.core.policy import from_json
from monitor.core.tables import from_dict, total, unlike
from monitor.demo import flights
from monitor.watched import baseline_of, read_baseline

START = 1_740_528_000_000
"""2025-02-26 in ms."""
FIELDS = ("id", "ts", "country", "amount", "score", "label")
COST = "models: {m: {segments: [country], features: [amount], threshold: {cost: {missed: 4, false_alarm: 1}}}}\n"


def rows_of(n=4_000, days=20, seed=0, **more):
    """Return rows of a validation as they would be in NDJSON; columns of `more` are functions of the position."""
    rng = np.random.default_rng(seed)
    score = rng.beta(1, 3, n).round(4).tolist()
    label = (rng.random(n) < score).astype(int).tolist()
    return [
        {"id": f"id-{i}", "ts": START + i * (days * DAY // n), "country": "DE" if i % 3 else "FR", "amount": i % 50}
        | {"score": s, "label": None if i % 20 == 0 else y}
        | {name: made(i) for name, made in more.items()}
        for i, (s, y) in enumerate(zip(score, label, strict=True))
    ]


def write(path, rows):
    """Write rows as what the name of the file says, and return its path as text."""
    if path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pa.Table.from_pylist(rows)
        ts = table.column("ts").cast(pa.timestamp("ms"))
        pq.write_table(table.set_column(table.column_names.index("ts"), "ts", ts), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


@pytest.fixture
def build(tmp_path, capsys):
    """Return a function that builds from files with a configuration, and returns the exit code, the output and the errors."""
    (tmp_path / "c.yaml").write_text(COST)

    def run(*args, out="b.json"):
        head = ["baseline", "build", "--model", "m", "--version", "v7", "--config", str(tmp_path / "c.yaml")]
        code = cli.main([*head, "--out", str(tmp_path / out), *args])
        return code, *capsys.readouterr()

    return run


def equal(a, b):
    """Return whether two baselines have the same slices, edges, end and tables."""
    same = (a.slices, a.edges.tolist(), a.until, a.segments, a.features) == (
        b.slices,
        b.edges.tolist(),
        b.until,
        b.segments,
        b.features,
    )
    return same and all(
        not unlike({str(d): t for d, t in a.days[name].items()}, {str(d): t for d, t in b.days[name].items()})
        for name in a.slices
    )


def test_march_has_the_tables_of_the_demo(tmp_path, capsys):
    """The flights of March from a CSV give the tables, slices and edges that the demo builds from them."""
    march = [f for f in flights.flights() if f.scheduled < flights.LIVE]
    rows = [
        {"id": f.id, "ts": f.scheduled, "origin": f.origin, "carrier": f.carrier, "score": f.score, "label": f.late}
        for f in march
    ]
    args = ["--model", flights.MODEL, "--version", flights.VERSION, "--segments", ",".join(flights.SEGMENTS)]
    out = tmp_path / "b.json"
    assert cli.main(["baseline", "build", write(tmp_path / "march.csv", rows), *args, "--out", str(out), "--json"]) == 0
    made = read_baseline(out)
    assert equal(made, flights.baseline(march))
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == len(march) == sum(r["rows"] for r in said["provenance"]["roles"].values())
    assert said["report"]["policy"] is None
    assert said["report"]["selection"]["reason"] == "no_objective"


@pytest.mark.parametrize("name", ["rows.ndjson", "rows.ndjson.gz", "rows.parquet"])
def test_every_format_says_the_same(tmp_path, build, name):
    """The same rows as CSV, NDJSON, compressed or Parquet give equal tables, features and reports."""
    rows = rows_of()
    assert build(write(tmp_path / "rows.csv", rows), out="x/csv.json")[0] == 0
    assert build(write(tmp_path / name, rows), out="y/other.json")[0] == 0
    a, b = read_baseline(tmp_path / "x/csv.json"), read_baseline(tmp_path / "y/other.json")
    assert equal(a, b)
    assert a.report == b.report
    assert a.features["amount"].edges is not None


def test_baseline_policy_and_provenance(tmp_path, build):
    """The baseline says where it comes from and is what the configuration takes; the policy is one, and names the baseline."""
    config = tmp_path / "c.yaml"
    rows = [row | {"score": row["score"] ** 2 / (row["score"] ** 2 + (1 - row["score"]) ** 2)} for row in rows_of(8_000)]
    code, out, err = build(write(tmp_path / "rows.csv", rows), "--policy", str(tmp_path / "p.json"), "--data-slice", "EU 2025")
    assert (code, err) == (0, "")
    made = read_baseline(tmp_path / "b.json")
    assert made.promises
    p = made.provenance
    assert (p["data"], p["rows"], p["rejected"], p["split"], p["timed"], p["code"]) == (
        "EU 2025",
        8_000,
        0,
        "by time",
        True,
        cli.VERSION,
    )
    assert {name: r["rows"] for name, r in p["roles"].items()} == {"calibration": 3_200, "selection": 2_400, "test": 2_400}
    assert list(p["files"]) == ["rows.csv"]
    assert p["files"]["rows.csv"].startswith("sha256:")
    policy = from_json((tmp_path / "p.json").read_text())
    assert policy.provenance["baseline"] == made.checksum
    assert dict(policy.thresholds) == made.report["policy"]["thresholds"]
    assert policy.calibrates
    assert policy.calibrator == made.report["policy"]["calibrator"] == made.report["calibration"]["calibrator"]
    test = made.report["test"]
    assert test["served"]["estimates"]["log_loss"]["value"] < test["raw"]["estimates"]["log_loss"]["value"]
    assert sum(test["counts"].values()) == test["rows"] == 2_400
    config.write_text(COST.replace("segments", f"baseline: {tmp_path / 'b.json'}, segments"))
    assert baseline_of(load(config).models["m"]).checksum == made.checksum
    assert "  test: 2,400 rows that chose nothing" in out.splitlines()
    assert any(line.split() == ["raw", "served"] for line in out.splitlines())
    assert any(line.startswith("    ece  ") and line.count(" to ") == 2 for line in out.splitlines())
    assert f"  policy: {policy.calibrator['kind']} (" in out


def test_wrong_rows_refuse_the_build_by_line_and_reason(tmp_path, build):
    """Each wrong row is named with its line and reason; nothing is written unless so many may be left out, which is recorded."""
    rows = rows_of(400)
    wrong = {
        3: {"score": 1.5},
        5: {"label": 2},
        8: {"ts": "yesterday"},
        9: {"id": ""},
        11: {"score": ""},
        12: {"score": "nan"},
        14: {"score": 10**400},
        15: {"amount": "nan"},
        20: {"ts": None},
    }
    changed = [row | wrong.get(i, {}) for i, row in enumerate(rows)]
    changed[30] |= {"score": "high"}
    path = write(tmp_path / "rows.csv", changed)
    with open(path, "a") as file:
        file.write("one,two\n")
    code, _, err = build(path)
    assert code == 1
    lines = {int(line.split(" line ")[1].split(":")[0]): line.split(": ")[2] for line in err.splitlines()[:-1]}
    assert lines == {
        5: "out_of_range",
        7: "label_class",
        10: "timestamp",
        11: "missing_field",
        13: "missing_field",
        14: "not_finite",
        16: "not_finite",
        17: "not_finite",
        22: "missing_field",
        32: "type",
        402: "malformed",
    }
    assert list(lines) == sorted(lines)
    assert err.startswith(f"{path}: line 5: out_of_range: score: 1.5\n")
    assert "11 of 401 rows cannot be used (" in err
    assert "--allow-rejected 11" in err
    assert not (tmp_path / "b.json").exists()
    assert build(path, "--allow-rejected", "10")[0] == 1
    code, _, err = build(path, "--allow-rejected", "11")
    assert (code, len(err.splitlines())) == (0, 11)
    assert read_baseline(tmp_path / "b.json").provenance["rejected"] == 11
    many = write(tmp_path / "many.csv", [row | {"score": 7} for row in rows_of(50)])
    assert build(many)[2].splitlines()[20] == "and 30 more"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weight": lambda i: 2}, "column weight is not supported"),
        ({"label_prob": lambda i: 0.5}, "column label_prob is not supported"),
        ({"country": lambda i: None, "land": lambda i: "DE"}, "no row has country, which is to be a segment or a feature"),
        ({"role": lambda i: "train"}, "400 of 400 rows cannot be used (400 role)"),
        ({"version": lambda i: "v6" if i else "v7"}, "(399 other_version)"),
        ({"model": lambda i: "n"}, "(400 other_version)"),
        ({"amount": lambda i: 10**309 if i else 1}, "(399 not_finite)"),
        ({"score": lambda i: 10**400}, "400 of 400 rows cannot be used (400 "),
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.ndjson"])
def test_what_no_baseline_can_be_built_from(tmp_path, build, name, more, said):
    """What is not supported, a column that is missing, a role that is none, and rows of another version say so."""
    code, _, err = build(write(tmp_path / name, rows_of(400, **more)))
    assert code == 1
    assert said in err


def test_no_file_that_can_be_read(tmp_path, build):
    """A file that is empty, no CSV, no Parquet or missing is named with what is wrong."""
    files = {
        "empty.csv": b"",
        "twice.csv": b"id,id\n1,2\n",
        "quote.csv": b'id,score\n"a"b,1\n',
        "bytes.csv": b"id\n\xff\n",
        "no.parquet": b"x",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        code, _, err = build(str(tmp_path / name))
        assert code == 1
        assert f"{tmp_path / name}: " in err
    assert build(str(tmp_path / "none.csv"))[0] == 1


ROLE = {"role": lambda i: ("calibration", "selection", "test")[i * 3 // 400]}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"id": lambda i: f"id-{i % 390}"},
            ["duplicate_id: ", "20 rows: id-0 (calibration), id-1 (calibration)", ", and 10 more"],
        ),
        (
            ROLE | {"entity": lambda i: f"e{i % 399}"},
            ["entity_in_two_roles: ", "2 rows: id-0 (calibration, entity e0), id-399 (test, entity e0)"],
        ),
        (ROLE | {"ts": lambda i: START + (i if i != 399 else 200)}, ["time_order: ", "1 rows: id-399 (test, 2025-02-26"]),
    ],
)
def test_leakage_is_refused_with_the_ids(tmp_path, build, more, said):
    """Equal ids, an entity in two roles and times in the wrong order refuse the build and name the rows; nothing is written."""
    code, _, err = build(write(tmp_path / "rows.csv", rows_of(400, **more)))
    assert code == 1
    assert all(part in err for part in said)
    assert not (tmp_path / "b.json").exists()
    assert not (tmp_path / "test-looks.jsonl").exists()


def test_a_second_look_is_recorded(tmp_path, build, capsys):
    """Testing on the same rows again, in whatever order and with whatever scores, is said with the first time; others are new."""
    rows = rows_of(8_000, days=10)
    path = write(tmp_path / "rows.csv", rows)
    assert build(path)[0] == 0
    assert read_baseline(tmp_path / "b.json").report["test"]["look"]["number"] == 1
    (tmp_path / "c.yaml").write_text(COST.replace("missed: 4", "missed: 1"))
    moved = write(tmp_path / "moved.csv", [row | {"score": row["score"] / 2} for row in rows[::-1]])
    _, out, _ = build(moved, out="other.json")
    look = read_baseline(tmp_path / "other.json").report["test"]["look"]
    assert (look["number"], look["first"]["baseline"], look["first"]["policy"]["calibrator"]) == (2, "b.json", "identity")
    assert (
        f"    look 2 of the same 2,400 test rows; first on {look['first']['at'][:10]} with policy identity, thresholds all "
        in out
    )
    rows[-1]["label"] = 1 - rows[-1]["label"]
    assert build(write(tmp_path / "new.csv", rows))[0] == 0
    assert read_baseline(tmp_path / "b.json").report["test"]["look"]["number"] == 1
    ledger = tmp_path / "test-looks.jsonl"
    assert len(ledger.read_text().splitlines()) == 3
    ledger.write_text("{")
    assert "is no ledger of tests" in build(path)[2]


def test_few_positives(tmp_path, build):
    """Under 300 positives there are no roles but five folds, and what calibrators would do is no proposal."""
    code, out, _ = build(
        write(tmp_path / "rows.csv", rows_of(700, entity=lambda i: f"e{i % 350}" if i % 2 else None, role=lambda i: "test"))
    )
    assert code == 0
    report = read_baseline(tmp_path / "b.json").report
    assert (report["method"], report["test"]["rows"], report["policy"]["calibrator"]) == (
        "cross_fitted",
        700,
        {"kind": "identity"},
    )
    assert report["calibration"]["reason"] == "few_to_calibrate"
    assert "  test: 700 rows in 5 folds, each decided by the threshold that the others choose" in out
    assert "    platt, a diagnosis and not a proposal: log loss " in out


def test_without_times(tmp_path, build, capsys):
    """Rows without times are one day before all live ones, roles are by entity, and both are said."""
    rows = [{k: v for k, v in row.items() if k != "ts"} for row in rows_of(8_000, entity=lambda i: f"e{i // 2}")]
    code, out, _ = build(write(tmp_path / "rows.csv", rows))
    assert code == 0
    made = read_baseline(tmp_path / "b.json")
    assert (len(made.days["all"]), made.until < START, made.day_spread) == (1, True, None)
    assert made.provenance["split"] == "by entity or id"
    assert len(made.report["calibration"]["blocks"]) == 5
    assert "  days: unknown, the rows have no times; all of them are counted as one day" in out
    assert cli.main(["baseline", "show", str(tmp_path / "b.json")]) == 0
    assert "  unknown: the rows of the baseline have no times; write models.m.per_day" in capsys.readouterr().out


def test_margins(tmp_path, build):
    """Scores that only order rows get a baseline whose report ranks them, without calibrator, threshold or policy."""
    (tmp_path / "c.yaml").write_text("models: {m: {score: margin}}\n")
    rows = [row | {"score": 9 * row["score"] - 4} for row in rows_of(4_000)]
    code, out, _ = build(write(tmp_path / "rows.csv", rows), "--policy", str(tmp_path / "p.json"))
    report = read_baseline(tmp_path / "b.json").report
    found = report["test"]["raw"]["estimates"]
    assert (code, report["policy"], (tmp_path / "p.json").exists()) == (0, None, False)
    assert (found["brier"]["reason"], found["roc_auc"]["value"] > 0.6) == ("margin_scores", True)
    assert "  policy: none" in out


def test_a_role_may_be_left_out(tmp_path, build):
    """Where no row is to select or to test, there is no policy or no look, with a reason, and the baseline is there."""
    path = write(tmp_path / "rows.csv", rows_of(4_000))
    for split, calibration, selection, look in (
        ("calibration=.5,test=.5", 2_000, "no_events", 1),
        ("calibration=.6,selection=.4", 2_400, "few_rows", None),
        ("selection=1", 0, "few_rows", None),
    ):
        assert build(path, "--split", split)[0] == 0
        made = read_baseline(tmp_path / "b.json")
        assert made.provenance["roles"]["calibration"]["rows"] == calibration
        assert made.report["selection"]["reason"] == selection
        assert (made.report["test"]["look"] or {"number": None})["number"] == look


def test_no_label_can_mean_negative(tmp_path, build):
    """Where the configuration says that no label means negative, it does so here, and the baseline says that it did."""
    (tmp_path / "c.yaml").write_text("models: {m: {labels: {missing: negative}}}\n")
    assert build(write(tmp_path / "rows.csv", rows_of(400)))[0] == 0
    made = read_baseline(tmp_path / "b.json")
    assert made.table("all").labelled == 400
    assert "negative" in made.provenance["missing"]


@pytest.mark.parametrize("mode", ["single", "multi"])
def test_classes(tmp_path, build, mode):
    """A model with classes gets a baseline and a policy for each target, which its configuration takes."""
    rng = np.random.default_rng(2)
    names, n = ("cat", "dog", "eel"), 3_000
    p = rng.dirichlet((1, 1, 1), n)
    true = [names[int(rng.choice(3, p=row))] for row in p]
    rows = [
        {
            "id": f"{i}",
            "ts": START + i * 60_000,
            "scores": dict(zip(names, row, strict=True)),
            "label": [y] if mode == "multi" else y,
        }
        for i, (row, y) in enumerate(zip(p.tolist(), true, strict=True))
    ]
    text = f"models: {{m: {{classes: [cat, dog, eel], labels_mode: {mode}, threshold: f1, baseline: BASE}}}}\n"
    (tmp_path / "c.yaml").write_text(text.replace(", baseline: BASE", ""))
    code, _, err = build(write(tmp_path / "rows.ndjson", rows), "--policy", str(tmp_path / "p"), out="base")
    assert (code, err) == (0, "")
    (tmp_path / "c.yaml").write_text(text.replace("BASE", str(tmp_path / "base")))
    targets = load(tmp_path / "c.yaml").models
    assert len(targets) == 3 + (mode == "single")
    made = {name: baseline_of(m) for name, m in targets.items()}
    for name, k in Counter(true).items():
        table = made[f"m:{name}"].table("all")
        assert (table.n, int(table.totals[2, 0])) == (n, k)
        assert table.totals[:, 1].sum() == pytest.approx(p[:, names.index(name)].sum())
        assert from_json((tmp_path / "p" / f"{name}.json").read_text()).model == f"m:{name}"
    if mode == "single":
        right = sum(names[i] == y for i, y in zip(p.argmax(axis=1), true, strict=True))
        assert int(made["m:top"].table("all").totals[2, 0]) == right
        assert not (tmp_path / "p" / "top.json").exists()


DAYS = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h, missing: negative}, threshold: 0.5, segments: [country]}
"""


def test_from_days_of_a_running_and_of_a_stopped_agent(tmp_path, agent, capsys):
    """Mature days of an agent are the same baseline by its api and by its state, with its tables, and promise nothing."""
    a = agent(DAYS)
    rows = rows_of(2_000, days=4)
    common = ("id", "ts")
    a.post(
        "predictions",
        [
            {k: r[k] for k in (*common, "score")} | {"model": "m", "version": "v1", "segments": {"country": r["country"]}}
            for r in rows
        ],
    )
    a.post("labels", [{k: r[k] for k in common} | {"model": "m", "label": r["label"]} for r in rows if r["label"]])
    a.now(START + 7 * DAY)
    exported = [json.loads(line) for line in a.ask("/v1/data")[1].splitlines()]
    args = ["--from", "m", "--since", "2025-02-27", "--until", "2025-03-01"]
    assert cli.main(["baseline", "build", *args, "--url", a.api, "--out", str(tmp_path / "url.json")]) == 0
    out = capsys.readouterr().out
    a.stop()
    config = a.config
    assert cli.main(["baseline", "build", *args, "--config", str(config), "--out", str(tmp_path / "state.json")]) == 0
    made = [read_baseline(tmp_path / name) for name in ("url.json", "state.json")]
    assert equal(*made)
    for name in made[0].slices:
        lines = [line for line in exported if line["slice"] == name and line["day"] in ("2025-02-27", "2025-02-28")]
        assert not unlike({"": made[0].table(name)}, {"": total([from_dict(line) for line in lines])})
    assert not made[0].promises
    assert "  observed: freezes slices and bins, and promises nothing" in out
    late = [
        *args[:2],
        "--since",
        "2030-01-01",
        "--until",
        "2030-01-03",
        "--config",
        str(config),
        "--out",
        str(tmp_path / "no.json"),
    ]
    assert cli.main(["baseline", "build", *late]) == 1
    assert "m v1 has no mature day from 2030-01-01 to 2030-01-02" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "name files with labelled rows, or a model whose days are used with --from"),
        (["f.csv", "--from", "m"], "name files with labelled rows, or a model whose days are used with --from"),
        (["f.csv", "--version", "v"], "name the model and its version with --model and --version"),
        (
            ["f.csv", "--model", "m", "--version", "v", "--features", ",".join("abcdefghijklmno")],
            "--features: found 15 names; write at most 14",
        ),
        (["--from", "m", "--since", "2025-01-01"], "--from needs --since and --until, and --config or --url"),
    ],
)
def test_wrong_usage(capsys, args, said):
    """What is missing on the command line is said, with exit code 2."""
    assert cli.main(["baseline", "build", "--out", "b.json", *args]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--split", "test=1.5"], ["--split", "train=1"], ["--split", "x"], ["--since", "tomorrow"]])
def test_wrong_arguments(capsys, args):
    """Shares that do not add up to 1 or are of no role, and what is no date, are refused by the command line."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["baseline", "build", "f.csv", "--out", "b.json", *args])
    assert "invalid" in capsys.readouterr().err
