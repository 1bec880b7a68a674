"""The same events make the same columns, whatever the format they come in."""

import base64
import csv
import io
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.core.events import EARLIEST, LATEST, MIN_PROB, UNDECIDED, VERDICTS, Labels, Predictions
from monitor.core.features import Feature, encode, placed, text
from monitor.formats import Decoder, Hasher, decode

FEATURES = {"channel": Feature(None, ("web", "7", "true")), "passed over": Feature(()), "amount": Feature((-1.5, 0.0, 10.0))}
PLACED = {"m": placed(FEATURES, ("channel", "amount"))}
DECODER = Decoder(Hasher("xxh3", b"0123456789abcdef"), {"m": ("country", "channel"), "n": ()}, frozenset({"m"}), PLACED)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
IDS = st.one_of(TEXT, st.text("ü☃", min_size=200, max_size=256)).filter(lambda s: "\n" not in s)
TIMES = st.integers(EARLIEST, LATEST - 1)
SCORES = st.one_of(st.floats(0, 1), st.sampled_from([0, 1, 0.0, 1.0, -1e-10, 1 + 1e-10]))
SEGMENTS = st.dictionaries(st.sampled_from(["country", "channel", "other"]), TEXT, max_size=3)
PROBS = st.one_of(st.floats(MIN_PROB, 1), st.sampled_from([1, MIN_PROB]))
CLUSTERS = st.one_of(TEXT, st.integers()).filter(lambda c: "\n" not in str(c))
OPTIONAL = {"segments": SEGMENTS, "verdict": st.sampled_from(VERDICTS[:5]), "policy": TEXT, "cluster": CLUSTERS}
PREDICTION = st.fixed_dictionaries(
    {"id": IDS, "ts": TIMES, "model": st.sampled_from(["m", "n"]), "version": TEXT, "score": SCORES},
    optional=OPTIONAL | {"label_prob": PROBS},
)
LABEL = st.fixed_dictionaries(
    {"id": IDS, "label": st.integers(0, 1), "ts": TIMES, "model": st.sampled_from(["m", "n"])},
    optional={"version": TEXT, "revision": st.integers(0, 255), "label_prob": PROBS},
)
CARRIED = st.fixed_dictionaries({"ts": TIMES, "version": TEXT, "score": SCORES}, optional=OPTIONAL)


def rows(columns):
    """Return the columns as a list of tuples of plain values."""
    if columns is None:
        return []
    names = {Predictions: ("version", "combo", "policy"), Labels: ("version",)}[type(columns)]
    coded = [[getattr(columns, name).names[c] for c in getattr(columns, name).codes] for name in names]
    plain = ("ts", "score", "verdict") if type(columns) is Predictions else ("ts", "label", "revision")
    extra = ("label_prob", "cluster", "sent") if type(columns) is Predictions else ("label_prob",)
    arrays = [getattr(columns, name).tolist() for name in ("index", *plain)]
    optional = [["no column"] * len(columns) if (c := getattr(columns, name)) is None else c.tolist() for name in extra]
    return list(zip(*arrays, map(tuple, columns.ids.tolist()), *coded, *optional, strict=True))


def lines(events, **how):
    """Return NDJSON."""
    return "\n".join(json.dumps(e, **how) for e in events).encode()


def list_columns(events):
    """Return list columns; what an event leaves out is null."""
    names = list(dict.fromkeys(name for e in events for name in e))
    return json.dumps({name: [e.get(name, {} if name == "segments" else None) for e in events] for name in names}).encode()


def table(events):
    """Return CSV; what an event leaves out is empty."""
    flat = []
    for e in events:
        carried = {"prediction_ts" if k == "ts" else k: v for k, v in e.get("prediction", {}).items()}
        row = e | carried
        segments = row.pop("segments", {})
        flat.append({k: v for k, v in row.items() if k != "prediction"} | segments)
    out = io.StringIO()
    writer = csv.DictWriter(
        out, list(dict.fromkeys(name for e in flat for name in e)), lineterminator="\r\n", quoting=csv.QUOTE_ALL
    )
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue().encode()


def packed(events, codes=True):
    """Return packed columns of events of one model and version, without policies of their own; all or none have a label_prob."""
    frame = {"n": len(events), "id": "\n".join(e["id"] for e in events)}
    frame |= {name: events[0][name] for name in ("model", "version")}
    frame["combos"] = [e.get("segments", {}) for e in events]
    verdicts = [VERDICTS.index(e["verdict"]) if "verdict" in e else UNDECIDED for e in events]
    arrays = {
        "ts": np.array([e["ts"] for e in events], "<i8"),
        "score": np.array([e["score"] for e in events], "<f8"),
        "segments": np.arange(len(events), dtype="<u2"),
        "verdict": np.array(verdicts, "u1"),
    }
    if "label_prob" in events[0]:
        arrays["label_prob"] = np.array([e["label_prob"] for e in events], "<f8")
    if any("cluster" in e for e in events):
        frame["cluster"] = "\n".join(str(e.get("cluster", "")) for e in events)
    return json.dumps(frame | {name: base64.b64encode(a.tobytes()).decode() for name, a in arrays.items()}).encode()


def taken(body, kind, content_type=""):
    """Return everything a body said: rows, rejections, clipped and size."""
    batch = decode(DECODER, body, kind, content_type)
    return rows(batch.predictions), rows(batch.labels), batch.rejected, batch.clipped, batch.size


@given(st.lists(PREDICTION, min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_predictions(events):
    """Predictions are the same from NDJSON, a JSON list, list columns and CSV, on the fast and on the slow path."""
    expected = taken(lines(events), "predictions", "application/x-ndjson")
    assert expected[2:] == ((), sum(not 0 <= e["score"] <= 1 for e in events), len(events))
    assert [(r[0], r[1], r[5]) for r in expected[0]] == [(i, e["ts"], (e["model"], e["version"])) for i, e in enumerate(events)]
    assert taken(json.dumps(events).encode(), "predictions") == expected
    assert taken(lines(events, ensure_ascii=False), "events", "application/x-ndjson") == expected
    assert taken(list_columns(events), "predictions") == expected
    # In CSV an empty field is an absent one and an event has a segment by the name of any column.
    assert taken(table(events), "predictions", "text/csv") == expected
    assert taken(table(events), "events", "text/csv") == expected


NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20)
WORDS = st.none() | st.sampled_from(["web", "7", "true", "app"]) | st.sampled_from([7, 8, True, False, 7.0]) | TEXT
SAID = st.fixed_dictionaries({}, optional={"amount": NUMBERS, "channel": WORDS, "other": NUMBERS | WORDS})


@given(st.lists(st.tuples(PREDICTION.filter(lambda e: "policy" not in e), SAID), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_features(drawn):
    """Features become the same codes in every form, on the fast and on the slow path, and only those of their model."""
    events = [e | {"features": said} for e, said in drawn]
    codes = [encode(PLACED.get(e["model"], {}), [e["features"]]).tolist()[0] for e in events]

    def found(body, content_type=""):
        p = decode(DECODER, body, "predictions", content_type).predictions
        return np.zeros((len(events), 14), int).tolist() if p.features is None else p.features.tolist()

    assert found(lines(events), "application/x-ndjson") == codes
    assert found(json.dumps(events).encode()) == codes
    assert found(list_columns(events)) == codes
    if all(e["features"].keys() == events[0]["features"].keys() for e in events):
        columns = {name: [e["features"][name] for e in events] for name in events[0]["features"]}
        assert found(json.dumps(json.loads(list_columns(events)) | {"features": columns}).encode()) == codes
    flat = [{k: v for k, v in e.items() if k != "features"} for e in events]
    for row, event in zip(flat, events, strict=True):
        said = {n: str(v).lower() if isinstance(v, bool) else v for n, v in event["features"].items() if v is not None}
        row |= {f"features.{name}": said.get(name, "") for name in ("amount", "channel", "other")}
    assert found(table(flat), "text/csv") == codes
    if {e["model"] for e in events} == {"m"} and len({e["version"] for e in events}) == 1:
        arrays = {"amount": np.array([np.nan if (v := e["features"].get("amount")) is None else v for e in events], "<f8")}
        texts = {"channel": [None if (v := e["features"].get("channel")) is None else text(v) for e in events]}
        frame = json.loads(packed([{k: v for k, v in e.items() if k != "label_prob"} for e in events]))
        given = {name: base64.b64encode(a.tobytes()).decode() for name, a in arrays.items()} | texts
        assert found(json.dumps(frame | {"features": given}).encode()) == codes


@given(st.lists(PREDICTION.filter(lambda e: "policy" not in e), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_packed(events):
    """A packed frame is the same predictions."""
    same = {name: events[0][name] for name in ("model", "version", "label_prob") if name in events[0]}
    events = [{k: v for k, v in e.items() if k != "label_prob"} | same for e in events]
    assert taken(packed(events), "predictions") == taken(lines(events), "predictions", "application/x-ndjson")


@given(st.lists(LABEL, min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_labels(events):
    """Labels are the same from NDJSON, a JSON list, list columns and CSV."""
    expected = taken(lines(events), "labels", "application/x-ndjson")
    assert [(r[0], r[1], r[2], r[3]) for r in expected[1]] == [
        (i, e["ts"], e["label"], e.get("revision", 0)) for i, e in enumerate(events)
    ]
    assert expected[2:] == ((), 0, len(events))
    assert taken(json.dumps(events).encode(), "labels") == expected
    assert taken(lines(events), "events", "application/x-ndjson") == expected
    assert taken(list_columns([{"revision": 0, **e} for e in events]), "labels") == expected
    assert taken(table(events), "labels", "text/csv") == expected


@given(st.lists(st.tuples(LABEL, st.none() | CARRIED, st.sampled_from(["label", "prediction", "both"])), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_labels_with_their_predictions(drawn):
    """A label that carries its prediction is that prediction and that label at one position, in every form."""
    events, flat, predictions, labels = [], [], [], []
    for label, carried, where in drawn:
        if carried is None:
            events.append(label)
            labels.append(label)
            flat.append(label)
            continue
        prob = {"label_prob": label["label_prob"]} if "label_prob" in label else {}
        plain = {k: v for k, v in label.items() if k not in ("label_prob", "version")}
        label, carried = plain | (prob if where != "prediction" else {}), carried | (prob if where != "label" else {})
        events.append(label | {"prediction": carried})
        flat.append(plain | prob | {"prediction": {k: v for k, v in carried.items() if k != "label_prob"}})
        predictions.append((len(labels), carried | {"id": label["id"], "model": label["model"]}))
        labels.append(label | {"version": carried["version"]})
    found = taken(lines(events), "labels", "application/x-ndjson")
    alone = (
        taken(lines([p for _, p in predictions]), "predictions", "application/x-ndjson") if predictions else ([], [], (), 0, 0)
    )
    assert found[0] == [(at, *row[1:]) for (at, _), row in zip(predictions, alone[0], strict=True)]
    assert found[1:] == (taken(lines(labels), "labels", "application/x-ndjson")[1], (), alone[3], len(events))
    assert taken(json.dumps(events).encode(), "labels") == found
    assert taken(lines(events), "events", "application/x-ndjson") == found
    assert taken(list_columns([{"revision": 0, **e} for e in events]), "labels") == found
    in_csv = taken(lines(flat), "labels", "application/x-ndjson")
    assert taken(table(flat), "labels", "text/csv") == in_csv
    assert taken(table(flat), "events", "text/csv") == in_csv


@given(st.lists(st.one_of(PREDICTION, LABEL), max_size=12))
@settings(max_examples=50, deadline=None)
def test_events(events):
    """Predictions and labels in one body keep their positions."""
    if not events:
        return
    predictions, labels, rejected, _, size = taken(lines(events), "events", "application/x-ndjson")
    assert [r[0] for r in predictions] == [i for i, e in enumerate(events) if "score" in e]
    assert [r[0] for r in labels] == [i for i, e in enumerate(events) if "label" in e]
    assert (rejected, size) == ((), len(events))


@given(TIMES)
@settings(max_examples=200, deadline=None)
def test_times(ms):
    """One moment is the same ms as ISO text with and without zone and as an epoch number of any unit."""
    at = datetime.fromtimestamp(0, UTC).timestamp() * 0 + ms
    iso = np.datetime64(ms, "ms").item().isoformat(timespec="milliseconds")
    forms = [ms, ms * 1_000 + 7, ms * 1_000_000 + 13, iso, iso + "Z", iso + "+00:00", iso + "456", iso.replace("T", " ")]
    base = {"model": "m", "version": "1", "score": 0.5}
    events = [base | {"id": str(i), "ts": ts} for i, ts in enumerate(forms)]
    assert [r[1] for r in taken(json.dumps(events).encode(), "predictions")[0]] == [at] * len(forms)
    assert [r[1] for e in events for r in taken(lines([e]), "predictions")[0]] == [at] * len(forms)
    assert [r[1] for r in taken(table(events), "predictions", "text/csv")[0]] == [at] * len(forms)
    assert [r[1] for e in events for r in taken(table([e]), "predictions", "text/csv")[0]] == [at] * len(forms)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-03-01T12:00:00", 1_772_366_400_000),
        ("2026-03-01T14:00:00+02:00", 1_772_366_400_000),
        ("2026-03-01T14:00:00+0200", 1_772_366_400_000),
        ("2026-03-01T10:30:00-01:30", 1_772_366_400_000),
        ("20260301T120000Z", 1_772_366_400_000),
        ("2026-03-01", 1_772_323_200_000),
        ("2026-03-01T12:00:00.1239Z", 1_772_366_400_123),
        (1_772_366_400, 1_772_366_400_000),
        (1_772_366_400.5, 1_772_366_400_500),
        (LATEST * 1_000_000 - 1, LATEST - 1),
        ("1772366400", None),
        ("2026-03-01T12:00:00ZZ", None),
        ("2026-13-01T12:00:00Z", None),
        ("NaT", None),
        ("1999-12-31T23:59:59Z", None),
        ("2100-01-01T00:00:00Z", None),
        (EARLIEST - 1, None),
        (LATEST, None),
        (10**30, None),
        (-1, None),
        (True, None),
    ],
)
def test_time_texts(text, ms):
    """Each form of a time means the same on every path, alone and among others."""
    events = [{"id": "a", "ts": t, "model": "m", "version": "1", "score": 0.5} for t in (text, text)]
    for body, content_type in ((lines(events), "ndjson"), (json.dumps(events).encode(), ""), (list_columns(events), "")):
        found, _, rejected, _, _ = taken(body, "predictions", content_type)
        assert [r[1] for r in found] == ([] if ms is None else [ms, ms])
        assert [r.reason for r in rejected] == (["timestamp"] * 2 if ms is None else [])
