"""What is not taken is named: one rejection per event with its reason, or a message for a body that cannot be read."""

import base64
import json

import numpy as np
import pytest

from monitor.core.events import MIN_PROB, Rejection, prob_code
from monitor.core.features import Feature, placed
from monitor.core.reasons import REJECTED
from monitor.core.tables import FEATURE_MISSING
from monitor.formats import Decoder, Hasher, decode

HASHER = Hasher("xxh3", b"0123456789abcdef")
PLACED = {"m": placed({"amount": Feature((0.0,)), "channel": Feature(None, ("web",))}, ("amount", "channel"))}
DECODER = Decoder(HASHER, {"m": ("country",), "n": ()}, features=PLACED)
GOOD = {"id": "a", "ts": 1_772_366_400_000, "model": "m", "version": "1", "score": 0.5}
KNOWN = {"id": "a", "ts": 1_772_366_400_000, "model": "m", "label": 1}

OUTCOME = KNOWN | {"prediction": {"ts": 1_772_362_800_000, "version": "1", "score": 0.5}}

PROBS = [
    ({"label_prob": 0}, "label_prob"),
    ({"label_prob": 9.9e-7}, "label_prob"),
    ({"label_prob": 1.001}, "label_prob"),
    ({"label_prob": -0.5}, "label_prob"),
    ({"label_prob": 10**299}, "label_prob"),
    ({"label_prob": float("nan")}, "not_finite"),
    ({"label_prob": float("inf")}, "not_finite"),
    ({"label_prob": "0.5"}, "type"),
    ({"label_prob": ""}, "type"),
    ({"label_prob": True}, "type"),
    ({"label_prob": [0.5]}, "type"),
    ({"label_prob": {}}, "type"),
]
PREDICTIONS = [
    *PROBS,
    ({"cluster": ""}, "type"),
    ({"cluster": "x" * 257}, "type"),
    ({"cluster": 10**256}, "type"),
    ({"cluster": 1.0}, "type"),
    ({"cluster": True}, "type"),
    ({"cluster": ["u"]}, "type"),
    ({"cluster": {"u": 1}}, "type"),
    ({"cluster": float("nan")}, "not_finite"),
    ({"cluster": "\ud800"}, "malformed"),
    ({"score": None}, "type"),
    ({"score": "0.5"}, "type"),
    ({"score": True}, "type"),
    ({"score": 1.1}, "out_of_range"),
    ({"score": -2e-9}, "out_of_range"),
    ({"score": float("nan")}, "not_finite"),
    ({"score": float("inf")}, "not_finite"),
    ({"ts": "yesterday"}, "timestamp"),
    ({"ts": None}, "missing_field"),
    ({"ts": float("nan")}, "timestamp"),
    ({"id": ""}, "id"),
    ({"id": "x" * 257}, "id"),
    ({"id": None}, "missing_field"),
    ({"id": 1.5}, "type"),
    ({"id": "\ud800"}, "malformed"),
    ({"model": "x"}, "unknown_model"),
    ({"model": None}, "missing_field"),
    ({"version": None}, "missing_field"),
    ({"version": ""}, "type"),
    ({"version": "v" * 129}, "type"),
    ({"version": 7}, "type"),
    ({"version": "\udfff"}, "malformed"),
    ({"segments": {"country": 1}}, "type"),
    ({"segments": {"country": "\ud800"}}, "malformed"),
    ({"segments": "DE"}, "type"),
    ({"verdict": "maybe"}, "type"),
    ({"verdict": ["pass"]}, "type"),
    ({"verdict": "pass", "flagged": True}, "type"),
    ({"flagged": "true"}, "type"),
    ({"policy": 5}, "type"),
    ({"policy": "\ud800"}, "malformed"),
    ({"features": "web"}, "type"),
    ({"features": [1]}, "type"),
    ({"features": {"amount": [1]}}, "type"),
    ({"features": {"channel": {"web": 1}}}, "type"),
    ({"features": {"amount": float("nan")}}, "not_finite"),
    ({"features": {"channel": float("inf")}}, "not_finite"),
    ({"features": {"amount": 10**400}}, "not_finite"),
    ({"weight": 2.0}, "unsupported"),
    ({"scores": [0.1, 0.9]}, "scores"),
    ({"label": 1}, "unsupported"),
]
LABELS = [
    ({"label": None}, "null_label"),
    ({"label": "1"}, "type"),
    ({"label": 2}, "label_class"),
    ({"label": 0.5}, "label_class"),
    ({"label": float("nan")}, "not_finite"),
    ({"revision": -1}, "type"),
    ({"revision": 256}, "type"),
    ({"revision": "1"}, "type"),
    ({"model": "x"}, "unknown_model"),
    ({"model": None}, "no_model"),
    ({"model": 3}, "type"),
    ({"version": 3}, "type"),
    ({"id": "x" * 257}, "id"),
    ({"ts": "soon"}, "timestamp"),
    ({"weight": 2.0}, "unsupported"),
    *PROBS,
]
CARRIED = [
    *((change, reason) for change, reason in PREDICTIONS if not change.keys() & {"id", "model", "version"}),
    ({"id": "z"}, "type"),
    ({"id": 1}, "type"),
    ({"model": "n"}, "type"),
    ({"version": None}, "missing_field"),
    ({"version": ""}, "type"),
    ({"score": ...}, "missing_field"),
]
"""What may be wrong with the prediction that a label carries."""


def bodies(events):
    """Yield (body, content type) of the events in every JSON form."""
    text = [json.dumps(e) for e in events]
    yield "\n".join(text).encode(), "application/x-ndjson"
    yield f"[{','.join(text)}]".encode(), "application/json"
    names = list(dict.fromkeys(name for e in events for name in e))
    fill = {"segments": {}, "revision": 0}
    yield json.dumps({name: [e.get(name, fill.get(name)) for e in events] for name in names}).encode(), "application/json"


def reasons(body, content_type, kind):
    """Return ({position: reason}, positions taken)."""
    batch = decode(DECODER, body, kind, content_type)
    assert batch.size == len(batch.rejected) + len(batch.index())
    return {r.index: r.reason for r in batch.rejected}, batch.index().tolist()


@pytest.mark.parametrize(("change", "reason"), PREDICTIONS)
def test_predictions(change, reason):
    """One bad prediction among good ones is rejected by the same reason in every form, and the others are taken."""
    assert reason in REJECTED
    for body, content_type in bodies([GOOD, GOOD | {"id": "b"} | change, GOOD | {"id": "c"}]):
        if change == {"label": 1} and body[:2] == b'{"' and content_type == "application/json":
            continue  # the column is one of all rows
        assert reasons(body, content_type, "predictions") == ({1: reason}, [0, 2])


@pytest.mark.parametrize(("change", "reason"), LABELS)
def test_labels(change, reason):
    """One bad label among good ones is rejected by the same reason in every form, and the others are taken."""
    assert reason in REJECTED
    for body, content_type in bodies([KNOWN, KNOWN | {"id": "b"} | change, KNOWN | {"id": "c"}]):
        assert reasons(body, content_type, "labels") == ({1: reason}, [0, 2])


@pytest.mark.parametrize("kind", ["labels", "events"])
@pytest.mark.parametrize(("change", "reason"), CARRIED)
def test_carried_predictions(change, reason, kind):
    """A label whose prediction is wrong is rejected with it, by the reason of the prediction; labels beside it are taken."""
    prediction = {k: v for k, v in (OUTCOME["prediction"] | change).items() if v is not ...}
    for body, content_type in bodies([OUTCOME, OUTCOME | {"id": "b", "prediction": prediction}, KNOWN | {"id": "c"}]):
        batch = decode(DECODER, body, kind, content_type)
        assert [(r.index, r.reason) for r in batch.rejected] == [(1, reason)]
        assert batch.rejected[0].detail.startswith("prediction: ")
        assert (batch.predictions.index.tolist(), batch.labels.index.tolist(), batch.size) == ([0], [0, 2], 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [*LABELS, ({"prediction": 0.5}, "type"), ({"prediction": []}, "type"), ({"prediction": {}}, "missing_field")],
)
def test_labels_with_a_prediction(change, reason):
    """A wrong label takes its prediction with it."""
    for body, content_type in bodies([OUTCOME, OUTCOME | {"id": "b"} | change, OUTCOME | {"id": "c"}]):
        batch = decode(DECODER, body, "labels", content_type)
        assert [(r.index, r.reason) for r in batch.rejected] == [(1, reason)]
        assert (batch.predictions.index.tolist(), batch.labels.index.tolist(), batch.size) == ([0, 2], [0, 2], 3)


def test_what_label_and_prediction_say_twice():
    """Id, model, version and label_prob may stand in both when they agree; label_prob agrees when its codes do."""

    def said(label, prediction):
        event = OUTCOME | label | {"prediction": OUTCOME["prediction"] | prediction}
        batch = decode(DECODER, json.dumps(event).encode(), "labels")
        if batch.rejected:
            assert (batch.predictions, batch.labels, batch.size) == (None, None, 1)
            return [(r.reason, r.detail) for r in batch.rejected]
        assert batch.predictions.version.names == batch.labels.version.names
        probs = [None if c.label_prob is None else c.label_prob.tolist() for c in (batch.predictions, batch.labels)]
        return batch.labels.version.names[0], *probs

    half = prob_code(np.array([0.5])).tolist()
    assert said({}, {}) == (("m", "1"), None, None)
    assert said({"version": "1"}, {"id": "a", "model": "m"}) == (("m", "1"), None, None)
    assert said({"version": "2"}, {"version": None}) == (("m", "2"), None, None)
    assert said({"version": "2"}, {}) == [("type", "prediction: version: '1', the label has '2'")]
    assert said({"label_prob": 0.5}, {}) == (("m", "1"), None, half)
    assert said({}, {"label_prob": 0.5}) == (("m", "1"), half, None)
    assert said({"label_prob": 0.5}, {"label_prob": 0.50001}) == (("m", "1"), half, half)
    assert said({"label_prob": 0.5}, {"label_prob": 0.501}) == [("label_prob", "prediction: 0.501, the label has 0.5")]


def test_nothing_clipped_of_a_rejected_event():
    """A score that is clipped is counted only when its event is taken."""
    events = [OUTCOME | {"prediction": OUTCOME["prediction"] | {"score": 1 + 1e-10} | change} for change in ({}, {"cluster": ""})]
    assert decode(DECODER, json.dumps(events).encode(), "labels").clipped == 1
    assert decode(DECODER, json.dumps([e | {"label": 2} for e in events]).encode(), "labels").clipped == 0


def test_label_inside_a_prediction():
    """A prediction takes no label, not even with a prediction inside; an event of either kind does then."""
    both = GOOD | {"label": 1}
    for kind, event in (("predictions", both), ("events", both), ("predictions", OUTCOME), ("predictions", both | OUTCOME)):
        assert reasons(json.dumps(event).encode(), "", kind) == ({0: "unsupported"}, [])
    assert reasons(json.dumps(both | OUTCOME).encode(), "", "events") == ({}, [0])


def test_null_is_absent():
    """A field that is null is one that was not sent."""
    for body, content_type in bodies([GOOD | {"label_prob": None, "cluster": None}] * 2):
        p = decode(DECODER, body, "predictions", content_type).predictions
        assert (len(p), p.label_prob, p.cluster, p.sent) == (2, None, None, None)
    for body, content_type in bodies([KNOWN | {"label_prob": None, "prediction": None}] * 2):
        batch = decode(DECODER, body, "labels", content_type)
        assert (len(batch.labels), batch.labels.label_prob, batch.predictions) == (2, None, None)


def test_sent():
    """Ids are kept as sent for the models under review only; "*" means those without an entry of their own."""
    events = [GOOD | {"id": f"\u00fc{m}", "model": m} for m in ("m", "n", "other")]
    full = [e | {"policy": "p"} for e in events]

    def kept(decoder, events, kind="predictions"):
        found = []
        for body, content_type in bodies(events):
            p = decode(decoder, body, kind, content_type).predictions
            found.append(None if p.sent is None else [s and s.decode() for s in p.sent])
        assert found[1:] == found[:-1]
        return found[0]

    segments = {"m": (), "n": (), "*": ()}
    for reviewed, ids in (
        (set(), None),
        ({"x"}, None),
        ({"m"}, ["\u00fcm", None, None]),
        ({"n", "*"}, [None, "\u00fcn", "\u00fcother"]),
    ):
        decoder = Decoder(HASHER, segments, frozenset(reviewed))
        assert kept(decoder, events) == kept(decoder, full) == kept(decoder, [e | {"cluster": 7} for e in events]) == ids
        outcomes = [OUTCOME | {"id": e["id"], "model": e["model"]} for e in events]
        assert kept(decoder, outcomes, "labels") == ids
    assert decode(DECODER, frame(), "predictions").predictions.sent is None
    assert decode(Decoder(HASHER, segments, frozenset("m")), frame(), "predictions").predictions.sent.tolist() == [b"a", b"b"]


def test_hashes_of_several_models():
    """Ids and clusters of a body with several models are hashed each under its own, wherever they stand."""
    events = [GOOD | {"id": f"i{i}", "model": m, "cluster": f"c{i}"} for i, m in enumerate("nmmnm")]
    texts = [(m, f"i{i}".encode(), f"c{i}".encode()) for i, m in enumerate("nmmnm")]
    for body, content_type in bodies(events):
        p = decode(DECODER, body, "predictions", content_type).predictions
        assert p.ids.tolist() == [HASHER.ids(m, [ident]).tolist()[0] for m, ident, _ in texts]
        assert p.cluster.tolist() == [HASHER.clusters(m, [cluster])[0] for m, _, cluster in texts]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "a"', "malformed"),
        ("[1, 2]", "malformed"),
        ("7", "malformed"),
        ('"text"', "malformed"),
        ("null", "malformed"),
        ("{}", "missing_field"),
        ("[" * 100_000, "malformed"),
        ('{"now": "whenever"}', "timestamp"),
        (json.dumps(GOOD)[:-1] + ', "segments": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}", "malformed"),
    ],
)
def test_lines(line, reason):
    """A line that is no event is rejected, and the lines beside it are taken; blank lines are nothing."""
    good = json.dumps(GOOD)
    body = f"{good}\n{line}\n\n  \r\n{good}\r\n".encode()
    assert reasons(body, "application/x-ndjson", "predictions") == ({1: reason}, [0, 2])


def test_invalid_utf8():
    """Bytes that are no text spoil their own line only, in NDJSON and in CSV."""
    good = json.dumps(GOOD).encode()
    body = good + b"\n" + good.replace(b'"a"', b'"\xff"') + b"\n" + good
    assert reasons(body, "application/x-ndjson", "predictions") == ({1: "malformed"}, [0, 2])
    rows = b"id,ts,model,version,score\na,1772366400,m,1,.5\n\xff,1772366400,m,1,.5\nb,1772366400,m,\xff,.5\nc,1772366400,m,1,.5"
    assert reasons(rows, "text/csv", "predictions") == ({1: "malformed", 2: "malformed"}, [0, 3])


def test_details():
    """A rejection says what was found, at most 200 characters of it, in the order the events were sent."""
    events = [GOOD | {"score": 3}, GOOD, GOOD | {"model": "x"}, GOOD | {"verdict": "y" * 500}]
    rejected = decode(DECODER, json.dumps(events).encode(), "predictions").rejected
    assert rejected[:2] == (Rejection(0, "out_of_range", "score: 3"), Rejection(2, "unknown_model", "x"))
    assert (rejected[2].index, rejected[2].reason, len(rejected[2].detail)) == (3, "type", 200)


def test_only_model():
    """With one model a label need not name it; with an entry for any model it must."""
    event = json.dumps({k: v for k, v in KNOWN.items() if k != "model"}).encode()
    assert decode(Decoder(HASHER, {"m": ()}), event, "labels").labels.version.names == (("m", None),)
    for segments in ({"m": (), "n": ()}, {"*": ()}):
        assert decode(Decoder(HASHER, segments), event, "labels").rejected == (
            Rejection(0, "no_model", "name the model of the label"),
        )


def test_any_model():
    """The entry "*" takes every model, with its segments."""
    decoder = Decoder(HASHER, {"*": ("country",), "n": ()})
    events = [GOOD | {"model": m, "segments": {"country": "DE"}} for m in ("whatever", "n")]
    for body, content_type in bodies(events):
        p = decode(decoder, body, "predictions", content_type).predictions
        assert [p.combo.names[c] for c in p.combo.codes] == [(("country", "DE"),), ()]


def test_now():
    """A line or a body of `now` moves the clock and is no event."""
    batch = decode(DECODER, b'{"now": 1772366400}', "predictions")
    assert (batch.size, batch.now, batch.rejected) == (0, 1_772_366_400_000, ())
    body = json.dumps(GOOD).encode() + b'\n{"now": "2026-03-02"}\n' + json.dumps(GOOD | {"id": "b"}).encode()
    batch = decode(DECODER, body, "predictions", "application/x-ndjson")
    assert (batch.size, batch.now, batch.index().tolist()) == (2, 1_772_409_600_000, [0, 1])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b" \n ", "the body is empty"),
        (b"hello", "expected a JSON object or list, NDJSON or CSV (Content-Type: text/csv), found b'hello'"),
        (b'{"id": "a",', "not JSON: "),
        (b"[1, 2", "not JSON: "),
        (b"[" * 200_000, "not JSON: "),
        (b'{"id": "a", "x": ' + b"[" * 200_000, "not JSON: "),
        (b'{"id": "a", "n": 1, "combos": ' + b"[" * 200_000, "not JSON: "),
        (b'{"id": ["a", "b"], "ts": [1]}', "column ts has 1 values, id has 2"),
        (b'{"id": ["a"], "combos": [{}]}', "segments must hold positions in combos"),
        (b'{"id": ["a"], "combos": {}, "segments": [0]}', "segments must hold positions in combos"),
        (b'{"id": ["a"], "combos": [{}], "segments": [1]}', "segments must hold positions in combos"),
        (b'{"id": ["a"], "combos": [{}], "segments": [-1]}', "segments must hold positions in combos"),
        (b'{"id": ["a"], "combos": [{}], "segments": [true]}', "segments must hold positions in combos"),
    ],
)
def test_unreadable(body, said):
    """A body that cannot be read as a whole is refused with a message."""
    with pytest.raises(ValueError) as e:
        decode(DECODER, body, "predictions")
    assert str(e.value).startswith(said)


def frame(**change):
    """Return a packed frame of two predictions with something changed; arrays are encoded."""
    body = {
        "n": 2,
        "id": "a\nb",
        "ts": np.array([GOOD["ts"]] * 2, "<i8"),
        "score": np.array([0.25, 0.75]),
        "model": "m",
        "version": "1",
    } | change
    return json.dumps(body, default=lambda array: base64.b64encode(array.tobytes()).decode()).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": 3}, "id: 2 lines, n is 3"),
        ({"n": -1}, "id: 2 lines, n is -1"),
        ({"score": np.zeros(3)}, "score: 24 bytes are not 2 values of <f8"),
        ({"ts": np.zeros(3, np.int32)}, "ts: 12 bytes are not 2 values of <i8"),
        ({"version": ""}, "not a packed frame: "),
        ({"model": "m" * 129}, "not a packed frame: "),
        ({"weight": 1}, "not a packed frame: "),
        ({"segments": np.array([0, 2], "<u2"), "combos": [{}, {}]}, "segments must be positions in combos"),
        ({"verdict": np.array([0, 5], "u1")}, "segments must be positions in combos, verdict one of"),
        ({"label_prob": np.ones(3)}, "label_prob: 24 bytes are not 2 values of <f8"),
        ({"cluster": "u"}, "cluster: 1 lines, n is 2"),
        ({"cluster": ""}, "cluster: 1 lines, n is 2"),
        ({"cluster": 7}, "not a packed frame: "),
        ({"features": {"amount": np.ones(3)}}, "features.amount: 24 bytes are not 2 values of <f8"),
        ({"features": {"channel": ["web"]}}, "features.channel: 1 values, n is 2"),
        ({"features": {"channel": [1, 2]}}, "not a packed frame: "),
    ],
)
def test_packed_frames(change, said):
    """A packed frame whose parts do not fit is refused as a whole."""
    with pytest.raises(ValueError) as e:
        decode(DECODER, frame(**change), "predictions")
    assert str(e.value).startswith(said)


def test_packed_rows():
    """Rows of a packed frame are rejected one by one; a frame of an unknown model is rejected row by row; none is none."""
    many = {
        "n": 6,
        "id": "a\n\n" + "x" * 257 + "\nd\ne\nf",
        "ts": np.array([GOOD["ts"]] * 5 + [0]),
        "score": np.array([0.5, 0.5, 0.5, np.nan, 1.5, 0.5]),
    }
    rejected = {1: "id", 2: "id", 3: "not_finite", 4: "out_of_range", 5: "timestamp"}
    assert reasons(frame(**many), "", "predictions") == (rejected, [0])
    assert reasons(frame(model="x"), "", "predictions") == ({0: "unknown_model", 1: "unknown_model"}, [])
    assert reasons(frame(n=0, id="", ts="", score="", label_prob="", cluster=""), "", "predictions") == ({}, [])


def test_packed_features():
    """A row of a packed frame is rejected for an infinite feature; NaN and null are missing, and unknown models have none."""
    three = {"n": 3, "id": "a\nb\nc", "ts": np.array([GOOD["ts"]] * 3), "score": np.full(3, 0.5)}
    given = {"amount": np.array([np.nan, np.inf, 1.0]), "channel": ["web", "web", None], "other": ["x"]}
    body = frame(**three, features=given)
    assert reasons(body, "", "predictions") == ({1: "not_finite"}, [0, 2])
    found = decode(DECODER, body, "predictions").predictions.features
    assert found[:, :2].tolist() == [[FEATURE_MISSING, 1], [2, FEATURE_MISSING]]
    assert decode(DECODER, frame(**three, features={}), "predictions").predictions.features[:, :2].tolist() == [[22, 22]] * 3
    assert decode(DECODER, frame(**three, features=given, model="n"), "predictions").predictions.features is None


def test_features_of_a_model_without_any():
    """A model that keeps no features takes whatever the field holds."""
    events = [GOOD | {"model": "n", "features": f} for f in (7, [1], {"amount": [1]}, {"amount": float("nan")}, None)]
    for body, content_type in bodies(events):
        assert reasons(body, content_type, "predictions") == ({}, [0, 1, 2, 3, 4])
        assert decode(DECODER, body, "predictions", content_type).predictions.features is None


def test_packed_probabilities_and_clusters():
    """A row of a packed frame is rejected for its label_prob or its cluster; an empty line is no cluster."""
    five = {"n": 5, "id": "a\nb\nc\nd\ne", "ts": np.array([GOOD["ts"]] * 5), "score": np.full(5, 0.5)}
    body = frame(**five, label_prob=np.array([0.5, np.nan, 0.0, 1.5, MIN_PROB]))
    assert reasons(body, "", "predictions") == ({1: "not_finite", 2: "label_prob", 3: "label_prob"}, [0, 4])
    p = decode(DECODER, body, "predictions").predictions
    assert p.label_prob.tolist() == prob_code(np.array([0.5, MIN_PROB])).tolist()
    body = frame(**five, cluster="\n".join(["u", "", "\u00fc" * 256, "\u00fc" * 257, "u"]))
    assert reasons(body, "", "predictions") == ({3: "type"}, [0, 1, 2, 4])
    u, none, long, again = decode(DECODER, body, "predictions").predictions.cluster.tolist()
    assert (u, none, long) == (again, 0, HASHER.clusters("m", ["\u00fc".encode() * 256])[0])
    assert decode(DECODER, frame(cluster="\n"), "predictions").predictions.cluster is None
