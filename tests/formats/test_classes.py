"""Scores of several classes in every form, and the events of binary targets that they become."""

import json

import numpy as np
import pytest

from monitor.core.events import FLAG, UNDECIDED, Predictions
from monitor.formats import Decoder, Hasher, decode
from monitor.formats.classes import Scores, sigmoid, softmax
from monitor.formats.json import Maker

T = 1_741_000_000_000
NAMES = ("cat", "dog", "other")
ANIMALS = Scores(False, NAMES, False, 0.005, tuple(f"animals:{c}" for c in (*NAMES, "top")))
TAGS = Scores(True, ("a", "b"), True, 0.0, ("tags:a", "tags:b"))
LOGITS = Scores(True, NAMES, False, 0.005, tuple(f"logits:{c}" for c in (*NAMES, "top")))
KINDS = {"animals": ANIMALS, "tags": TAGS, "logits": LOGITS, "rank": Scores(True)}
DECODER = Decoder(Hasher("xxh3", bytes(16)), {**dict.fromkeys(KINDS, ()), "m": ()}, scores=KINDS)
ROWS = [[0.2, 0.5, 0.3], [0.7, 0.2, 0.1], [0.25, 0.25, 0.5]]


def event(i, scores, model="animals", **more):
    """Return a prediction."""
    return {"id": f"i{i}", "ts": T + i, "model": model, "version": "v1", "scores": scores, **more}


def read(events, kind="predictions"):
    """Return the batch of a JSON list."""
    return decode(DECODER, json.dumps(events).encode(), kind)


def same(a, b):
    """Return whether two Predictions or Labels say the same of every row."""
    if type(a) is not type(b) or len(a) != len(b):
        return False
    plain = [n for n in a.__dataclass_fields__ if n not in ("version", "combo", "policy")]
    pairs = [(getattr(a, n), getattr(b, n)) for n in plain]
    coded = [[c.names[k] for k in c.codes] for c in (a.version, b.version)]
    return coded[0] == coded[1] and all((x is None and y is None) or np.array_equal(x, y) for x, y in pairs)


def test_an_event_becomes_its_targets():
    """A row for each class and one for the predicted class, with their scores, outcomes, margin, verdict and index."""
    p = read([event(0, ROWS[0]), event(1, ROWS[1], verdict="flag")]).predictions
    assert isinstance(p, Predictions)
    assert p.index.tolist() == [0] * 4 + [1] * 4
    assert [p.version.names[c] for c in p.version.codes] == [(t, "v1") for t in ANIMALS.targets] * 2
    assert p.score.tolist() == [0.2, 0.5, 0.3, 0.5, 0.7, 0.2, 0.1, 0.7]
    assert p.target.tolist() == [1, 2, 3, 2, 1, 2, 3, 1]
    assert p.margin.tolist() == [0, 0, 0, 51, 0, 0, 0, 127]
    assert p.verdict.tolist() == [UNDECIDED] * 7 + [FLAG]
    assert (p.ids[:4] == p.ids[0]).all()
    tied = read([event(0, [1 / 3, 1 / 3, 1 / 3])]).predictions
    assert (tied.target[3], tied.margin[3]) == (1, 1)


def test_every_form_says_the_same():
    """JSON by name and by order, NDJSON, list columns and CSV give equal rows; so do labels."""
    want = read([event(i, row) for i, row in enumerate(ROWS)]).predictions
    by_name = [event(i, dict(reversed(list(zip(NAMES, row, strict=True))))) for i, row in enumerate(ROWS)]
    columns = {name: [e[name] for e in by_name] for name in by_name[0]}
    csv = "id,ts,model,version,scores.dog,scores.cat,scores.other\n" + "\n".join(
        f"i{i},{T + i},animals,v1,{b},{a},{c}" for i, (a, b, c) in enumerate(ROWS)
    )
    forms = [
        (json.dumps(by_name), ""),
        ("\n".join(map(json.dumps, by_name)), "application/x-ndjson"),
        ("\n".join(map(json.dumps, [event(i, row) for i, row in enumerate(ROWS)])), "application/x-ndjson"),
        (json.dumps(columns), ""),
        (json.dumps(columns | {"scores": ROWS, "model": "animals"}), ""),
        (csv, "text/csv"),
    ]
    for body, content_type in forms:
        batch = decode(DECODER, body.encode(), "predictions", content_type)
        assert (batch.size, batch.rejected) == (3, ()), body
        assert same(batch.predictions, want), body
    labels = [{"id": f"i{i}", "ts": T, "model": "animals", "label": name} for i, name in enumerate(("dog", "cat", "other"))]
    first = read(labels, "labels").labels
    assert first.label.tolist() == [1] * 4 + [0] * 4 + [2] * 4
    for body, content_type in (
        ("\n".join(map(json.dumps, labels)), "application/x-ndjson"),
        ("id,ts,model,label\n" + "\n".join(f"{e['id']},{T},animals,{e['label']}" for e in labels), "text/csv"),
        (json.dumps({name: [e[name] for e in labels] for name in labels[0]}), ""),
    ):
        assert same(decode(DECODER, body.encode(), "labels", content_type).labels, first), body


def test_logits():
    """Logits become probabilities at the door: by softmax where one class is right, by sigmoid each else, whatever their size."""
    z = np.array([[1.0, -2.0, 0.5], [800.0, -800.0, 0.0]])
    p = read([event(i, row, "logits") for i, row in enumerate(z.tolist())]).predictions
    assert p.score.reshape(2, 4)[:, :3] == pytest.approx(softmax(z))
    assert softmax(z)[1].tolist() == [1.0, 0.0, 0.0]
    tags = read([event(0, {"a": -3, "b": 3}, "tags")]).predictions
    assert tags.score == pytest.approx([1 / (1 + np.exp(3)), 1 / (1 + np.exp(-3))])
    assert (tags.target.tolist(), tags.margin.tolist()) == ([0, 0], [0, 0])
    assert len({tuple(i) for i in tags.ids.tolist()}) == 2
    rank = [{"id": "r", "ts": T, "model": "rank", "version": "v1", "score": s} for s in (-3.5, 2, 1e308)]
    for body in (json.dumps(rank), "\n".join(map(json.dumps, rank))):
        assert decode(DECODER, body.encode(), "predictions").predictions.score == pytest.approx(
            sigmoid(np.array([-3.5, 2, 1e308]))
        )


def test_labels_of_several_classes():
    """With labels_mode multi a label lists what is right, and all else is wrong; nothing may be right."""
    labels = [{"id": f"i{i}", "ts": T, "model": "tags", "label": names} for i, names in enumerate((["b"], [], ["a", "b"]))]
    for body in (json.dumps(labels), "\n".join(map(json.dumps, labels))):
        assert decode(DECODER, body.encode(), "labels").labels.label.tolist() == [0, 1, 0, 0, 1, 1]
    found = read(labels, "labels").labels
    assert (found.ids == read([event(i, [0, 0], "tags") for i in range(3)]).predictions.ids).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scores": [0.2, 0.3, 0.3]}, "sum"),
        ({"scores": [0, 0, 0]}, "sum"),
        ({"scores": [0.5, 0.5]}, "scores"),
        ({"scores": [0.25] * 4}, "scores"),
        ({"scores": {"cat": 0.5, "dog": 0.5}}, "scores"),
        ({"scores": {"cat": 0.5, "dog": 0.3, "elk": 0.2}}, "unknown_class"),
        ({"scores": [0.5, float("nan"), 0.5]}, "not_finite"),
        ({"scores": [0.5, float("inf"), 0.5]}, "not_finite"),
        ({"scores": [1.2, -0.1, -0.1]}, "out_of_range"),
        ({"scores": [0.5, "0.2", 0.3]}, "type"),
        ({"scores": [0.5, True, 0.3]}, "type"),
        ({"scores": 0.5}, "type"),
        ({"scores": None}, "type"),
        ({"scores": ...}, "missing_field"),
        ({"scores": ..., "score": 0.5}, "scores"),
        ({"score": 0.5}, "scores"),
        ({"model": "m"}, "scores"),
        ({"policy": "1-1"}, "unsupported"),
        ({"model": "tags", "scores": [0, 1], "flagged": True}, "unsupported"),
        ({"model": "logits", "scores": [0, 1, float("inf")]}, "not_finite"),
        ({"model": "rank", "scores": ..., "score": float("nan")}, "not_finite"),
    ],
)
def test_rejects(change, reason):
    """Each fault is named with its index in every form, and good neighbours are taken, all their targets."""
    bad = {k: v for k, v in (event(1, ROWS[0]) | change).items() if v is not ...}
    events = [event(0, ROWS[0]), bad, event(2, ROWS[2])]
    forms = [json.dumps(events), "\n".join(map(json.dumps, events))]
    if bad.keys() == events[0].keys():
        forms.append(json.dumps({name: [e[name] for e in events] for name in events[0]}))
    for body in forms:
        batch = decode(DECODER, body.encode(), "predictions")
        assert [(r.index, r.reason) for r in batch.rejected] == [(1, reason)], body
        assert batch.predictions.index.tolist() == [0] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"label": "elk"}, "unknown_class"),
        ({"label": ""}, "unknown_class"),
        ({"label": 1}, "unknown_class"),
        ({"label": None}, "null_label"),
        ({"label": float("nan")}, "not_finite"),
        ({"label": ["cat"]}, "type"),
        ({"label": True}, "type"),
        ({"model": "tags", "label": "a"}, "type"),
        ({"model": "tags", "label": ["a", "x"]}, "unknown_class"),
        ({"model": "tags", "label": None}, "null_label"),
        ({"model": "m", "label": "cat"}, "type"),
        ({"revision": 256}, "type"),
    ],
)
def test_rejected_labels(change, reason):
    """A label that names no class of its model is rejected with a reason, and its neighbours are taken."""
    good = {"id": "i", "ts": T, "model": "animals", "label": "cat"}
    events = [good, good | change, good]
    for body in (json.dumps(events), "\n".join(map(json.dumps, events))):
        batch = decode(DECODER, body.encode(), "labels")
        assert [(r.index, r.reason) for r in batch.rejected] == [(1, reason)], body
        assert batch.labels.index.tolist() == [0] * 4 + [2] * 4


def test_scores_that_nearly_sum_to_one():
    """Within the tolerance scores are scaled to sum to 1 and counted; rounding alone is neither; packed columns are refused."""
    batch = read([event(0, [0.3, 0.3, 0.396]), event(1, [0.3, 0.3, 0.404]), event(2, [0.1, 0.2, 0.7])])
    assert (batch.scaled, batch.clipped, batch.rejected) == (2, 0, ())
    sums = batch.predictions.score.reshape(3, 4)[:, :3].sum(axis=1)
    assert sums == pytest.approx([1, 1, 1], abs=1e-15)
    assert batch.predictions.score[0] == pytest.approx(0.3 / 0.996)
    columns = {"id": ["a", "b"], "ts": T, "model": "animals", "version": "v", "scores": [[0.3, 0.3, 0.404], ROWS[0]]}
    assert read(columns | {"ts": [T, T]}).scaled == 1
    body = {"n": 1, "id": "a", "ts": "AAAAAAAAAAA=", "score": "AAAAAAAAAAA=", "model": "animals", "version": "v"}
    assert [r.reason for r in read(body).rejected] == ["scores"]


def test_mixed_batches_keep_their_order():
    """Binary events and events of several models with classes come out in the order they were sent."""
    plain = {"id": "p", "ts": T, "model": "m", "version": "v1", "score": 0.5}
    batch = read([plain, event(1, ROWS[0]), event(2, [0, 1], "tags"), plain, event(4, ROWS[1], "logits")])
    p = batch.predictions
    assert p.index.tolist() == [0, *[1] * 4, 2, 2, 3, *[4] * 4]
    assert p.target.tolist() == [0, 1, 2, 3, 2, 0, 0, 0, 1, 2, 3, 1]
    assert batch.index().tolist() == [0, 1, 2, 3, 4]
    assert len(batch.ts()) == 5
    carried = event(0, ROWS[0]) | {"label": "dog", "prediction": {"ts": T, "version": "v1", "scores": ROWS[0]}}
    del carried["scores"], carried["version"]
    both = read([carried], "labels")
    assert (both.predictions.index.tolist(), both.labels.label.tolist()) == ([0] * 4, [1] * 4)


@pytest.mark.parametrize("scores", [[-7.5, 0.25, 1e9], [0.25, 0.5, 1.0]])
def test_lines_of_unbounded_scores_are_read_at_once(scores):
    """NDJSON of logits and margins has typed lines like that of probabilities, with the same rows as one by one."""
    events = [{k: v for k, v in event(i, s, "rank").items() if k != "scores"} | {"score": s} for i, s in enumerate(scores)]
    made, lines = Maker(DECODER, "predictions"), "\n".join(map(json.dumps, events)).encode()
    assert DECODER._typed(made, memoryview(lines), "predictions")
    assert same(made.batch().predictions, read(events).predictions)
