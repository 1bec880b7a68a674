"""What is particular to CSV."""

import numpy as np
import pytest

from monitor.core.events import BLOCK, UNDECIDED, prob_code
from monitor.formats import Decoder, Hasher, decode

HASHER = Hasher("xxh3", b"0123456789abcdef")
DECODER = Decoder(HASHER, {"m": ("country",)})
TS = 1_772_366_400_000


def taken(text, kind="predictions"):
    """Return the batch of a CSV text."""
    return decode(DECODER, text.encode(), kind, "text/csv; charset=utf-8")


def ids(columns):
    """Return the id hashes as tuples."""
    return [tuple(i) for i in columns.ids.tolist()]


def hashed(*names):
    """Return the hashes of these ids of model m."""
    return [tuple(i) for i in HASHER.ids("m", [n.encode() for n in names]).tolist()]


def test_quotes():
    """Quoted fields may hold commas, quotes, line ends and line separators; a mark at the start and CRLF do no harm."""
    rest = "1772366400,m,1"
    text = f'\ufeffid,ts,model,version,score\r\n"a,""b",{rest},.5\r\n"c\nd",{rest},.5\r\ne\u2028f,{rest},1\r\n'
    batch = taken(text)
    assert (ids(batch.predictions), batch.rejected) == (hashed('a,"b', "c\nd", "e\u2028f"), ())
    assert batch.predictions.score.tolist() == [0.5, 0.5, 1.0]


def test_ragged_and_wrong_rows():
    """A row with too few fields or a bad number is rejected by its position; blank lines are nothing."""
    batch = taken(
        f"id,ts,model,version,score\na,{TS},m,1,.5\nb,{TS},m\n\nc,{TS},m,1,high\nd,{TS},m,1,nan\ne,{TS},m,1,0x1\nf,{TS},m,1,1\n"
    )
    assert [(r.index, r.reason) for r in batch.rejected] == [(1, "malformed"), (2, "type"), (3, "not_finite"), (4, "type")]
    assert (batch.size, batch.predictions.index.tolist()) == (6, [0, 5])
    assert batch.rejected[0].detail == "3 fields, the header has 5"


def test_mixed():
    """A file of both kinds tells them apart by their score; `flagged` and unknown columns are understood."""
    text = "id,ts,model,version,score,flagged,country,label,revision\n"
    text += f"a,{TS},m,1,.5,true,DE,,\na,{TS},m,,,,,1,2\nb,{TS},m,1,.25,0,,,\n"
    batch = taken(text, "events")
    p, k = batch.predictions, batch.labels
    assert (p.index.tolist(), p.verdict.tolist(), [p.combo.names[c] for c in p.combo.codes]) == (
        [0, 2],
        [1, 0],
        [(("country", "DE"),), ()],
    )
    assert (k.index.tolist(), k.label.tolist(), k.revision.tolist(), k.version.names) == ([1], [1], [2], (("m", None),))
    assert batch.rejected == ()


def test_probabilities_and_clusters():
    """`label_prob` and `cluster` are fields, on the fast and on the slow path, and never segments."""
    decoder = Decoder(HASHER, {"m": ("cluster", "label_prob")})
    expected = prob_code(np.array([0.25, 1.0])).tolist(), HASHER.clusters("m", [b"007", b"u,v"]).tolist()
    for flagged in ("", ",true"):
        text = f"id,ts,model,version,score,label_prob,cluster{',flagged' if flagged else ''}\n"
        text += f'a,{TS},m,1,.5,.25,007{flagged}\nb,{TS},m,1,.5,1,"u,v"{flagged}\n'
        p = decode(decoder, text.encode(), "predictions", "text/csv").predictions
        assert (p.label_prob.tolist(), p.cluster.tolist(), p.combo.names) == (*expected, ((),))
    labels = taken(f"id,ts,label,label_prob\na,{TS},1,.25\nb,{TS},0,1\n", "labels").labels
    assert labels.label_prob.tolist() == expected[0]


@pytest.mark.parametrize(("prob", "reason"), [("0", "label_prob"), ("1.5", "label_prob"), ("nan", "not_finite"), ("x", "type")])
def test_wrong_probabilities(prob, reason):
    """A wrong label_prob costs its own row, of predictions and of labels; an empty one is none."""
    batch = taken(f"id,ts,model,version,score,label_prob\na,{TS},m,1,.5,{prob}\nb,{TS},m,1,.5,\nc,{TS},m,1,.5,1\n")
    assert [(r.index, r.reason) for r in batch.rejected] == [(0, reason)]
    assert batch.predictions.label_prob.tolist() == [0, 1]
    batch = taken(f"id,ts,label,label_prob\na,{TS},1,{prob}\nb,{TS},1,1\n", "labels")
    assert [(r.index, r.reason) for r in batch.rejected] == [(0, reason)]
    assert batch.labels.label_prob.tolist() == [1]


def test_outcomes_with_their_predictions():
    """A row with score, label and prediction_ts is a label with its prediction, in a file that may hold either alone."""
    head = "id,ts,model,version,score,label,prediction_ts,country,verdict,label_prob,cluster,revision"
    rows = [
        f"a,{TS},m,1,.5,1,2026-02-28,DE,block,.25,u,3",
        f"b,{TS},m,1,.75,,,,,,,",
        f"c,{TS},m,,,0,,,,,,",
        f"d,{TS},m,1,.5,1,,,,,,",
        f"e,{TS},m,1,1.5,1,{TS - 1},,,,,",
        f"f,{TS},m,1,.5,1,soon,,,,,",
    ]
    batch = taken("\n".join([head, *rows]) + "\n", "events")
    p, k = batch.predictions, batch.labels
    assert [(r.index, r.reason) for r in batch.rejected] == [(3, "unsupported"), (4, "out_of_range"), (5, "timestamp")]
    assert (p.index.tolist(), p.ts.tolist(), p.score.tolist()) == ([0, 1], [1_772_236_800_000, TS], [0.5, 0.75])
    assert ([p.combo.names[c] for c in p.combo.codes], p.verdict.tolist()) == ([(("country", "DE"),), ()], [BLOCK, UNDECIDED])
    assert (p.cluster.tolist(), p.label_prob) == ([HASHER.clusters("m", [b"u"])[0], 0], None)
    assert (k.index.tolist(), k.ts.tolist(), k.label.tolist(), k.revision.tolist()) == ([0, 2], [TS, TS], [1, 0], [3, 0])
    assert [k.version.names[c] for c in k.version.codes] == [("m", "1"), ("m", None)]
    assert k.label_prob.tolist() == [prob_code(np.array([0.25]))[0], 0]
    assert (ids(p), ids(k), batch.size) == (hashed("a", "b"), hashed("a", "c"), 6)


@pytest.mark.parametrize("revision", ["-1", "256", "1.5", "x"])
def test_revisions(revision):
    """A revision outside 0 to 255 is rejected."""
    batch = taken(f"id,ts,label,revision\na,{TS},1,{revision}\nb,{TS},0,255\n", "labels")
    assert [(r.index, r.reason) for r in batch.rejected] == [(0, "type")]
    assert (batch.labels.label.tolist(), batch.labels.revision.tolist()) == ([0], [255])


@pytest.mark.parametrize("label", ["2", "0.5", "yes", "nan"])
def test_outcomes(label):
    """A label is 0 or 1, also written 1.0."""
    batch = taken(f"id,ts,label\na,{TS},{label}\nb,{TS},1.0\nc,{TS},0\n", "labels")
    assert [r.index for r in batch.rejected] == [0]
    assert batch.labels.label.tolist() == [1, 0]


def test_no_rows():
    """A header alone is no event."""
    assert taken("id,ts,model,version,score\n").size == 0


def test_too_long():
    """A field that no CSV reader takes makes the body unreadable, with a message."""
    with pytest.raises(ValueError, match="not CSV: field larger than field limit"):
        taken(f"id,ts,model,version,score\n{'x' * 200_000},{TS},m,1,.5\n")
    with pytest.raises(ValueError, match="not CSV: field larger than field limit"):
        taken("x" * 200_000 + "\n")
