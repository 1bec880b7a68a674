"""Columns of events: cutting, joining, and what is valid."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.core.events import EARLIEST, LATEST, Batch, Coded, Labels, Predictions, Rejection, valid_epochs, valid_scores

NAMES = st.lists(st.sampled_from(["a", "b", "c", "d", None, ("x", "y")]), max_size=20)


def values(coded):
    """Return the column as a list."""
    return [coded.names[c] for c in coded.codes]


def predictions(index, ts, names=None):
    """Return predictions at these positions."""
    n = len(index)
    column = Coded.of(names or [("m", "1")] * n)
    ids = np.stack([np.array(ts, np.uint64), np.array(index, np.uint64)], axis=1) if n else np.empty((0, 2), np.uint64)
    verdict = np.zeros(n, np.uint8)
    return Predictions(np.array(index, np.int64), ids, np.array(ts, np.int64), column, np.arange(n) / 10, verdict, column, column)


def labels(index, ts):
    """Return labels at these positions."""
    n = len(index)
    ids, zero = np.zeros((n, 2), np.uint64), np.zeros(n)
    version = Coded.of([("m", None)] * n)
    return Labels(np.array(index, np.int64), ids, np.array(ts, np.int64), version, zero.astype(np.int8), zero.astype(np.uint8))


@given(NAMES)
def test_coded_of(names):
    """A coded column holds the values it was made of, with names in order of first appearance."""
    coded = Coded.of(names)
    assert (values(coded), coded.names, coded.codes.dtype) == (names, tuple(dict.fromkeys(names)), np.int32)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_coded_concat(parts):
    """Joined columns hold all values in order under one list of distinct names."""
    joined = Coded.concat([Coded.of(p) for p in parts])
    assert values(joined) == [v for p in parts for v in p]
    assert len(set(joined.names)) == len(joined.names)


def test_coded_take():
    """Taking rows keeps the names, so codes of parts can be compared."""
    coded = Coded.of(["a", "b", "a", "c"])
    taken = coded.take(np.array([False, True, True, False]))
    assert (values(taken), taken.names) == (["b", "a"], ("a", "b", "c"))
    assert values(Coded.concat([taken, coded.take(slice(3, 4))])) == ["b", "a", "c"]


def test_columns():
    """Rows are taken and joined over all columns at once."""
    p = predictions([0, 1, 2], [30, 31, 32], [("m", "1"), ("m", "2"), ("m", "1")])
    q = Predictions.concat([p.take(np.array([2, 0])), p.take(slice(1, 2))])
    assert (q.index.tolist(), q.ts.tolist(), q.score.tolist()) == ([2, 0, 1], [32, 30, 31], [0.2, 0.0, 0.1])
    assert q.ids.tolist() == [[32, 2], [30, 0], [31, 1]]
    assert values(q.version) == values(q.policy) == [("m", "1"), ("m", "1"), ("m", "2")]
    assert (len(q), Predictions.concat([p])) == (3, p)


BATCH = Batch(
    7,
    predictions([0, 2, 5], [10, 12, 15]),
    labels([1, 6], [11, 16]),
    (Rejection(3, "type", ""), Rejection(4, "id", "")),
    clipped=2,
)


def positions(batch):
    """Return the positions of predictions and labels, and of the rejected."""
    parts = [None if c is None else c.index.tolist() for c in (batch.predictions, batch.labels)]
    return *parts, [r.index for r in batch.rejected]


def test_batch_order():
    """Times and positions come in the order the events were sent, over both kinds."""
    assert (BATCH.index().tolist(), BATCH.ts().tolist()) == ([0, 1, 2, 5, 6], [10, 11, 12, 15, 16])
    one = Batch(3, predictions([0, 2], [9, 4]))
    assert (one.index().tolist(), one.ts().tolist()) == ([0, 2], [9, 4])
    none = Batch(1, rejected=(Rejection(0, "type", ""),))
    assert (none.index().tolist(), none.ts().tolist()) == ([], [])


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        (0, 7, ([0, 2, 5], [1, 6], [])),
        (0, 2, ([0], [1], [])),
        (1, 2, (None, [1], [])),
        (2, 6, ([2, 5], None, [])),
        (3, 5, (None, None, [])),
        (6, 9, (None, [6], [])),
    ],
)
def test_between(first, last, found):
    """A part holds the accepted events of its positions; a kind it has none of is None."""
    assert positions(BATCH.between(first, last)) == found


@pytest.mark.parametrize(
    ("skip", "found"),
    [(0, ([0, 2, 5], [1, 6], [3, 4])), (2, ([2, 5], [6], [3, 4])), (4, ([5], [6], [4])), (7, (None, None, []))],
)
def test_after(skip, found):
    """The rest of a batch keeps its rejections and its positions."""
    assert positions(BATCH.after(skip)) == found


@given(st.lists(st.integers(0, 7), max_size=4))
def test_parts_are_the_whole(cuts):
    """Cut anywhere, the parts hold every event once, in order."""
    cuts = [0, *sorted(cuts), 7]
    parts = [BATCH.between(a, b) for a, b in pairwise(cuts)]
    assert [i for p in parts for i in p.index().tolist()] == BATCH.index().tolist()
    assert [t for p in parts for t in p.ts().tolist()] == BATCH.ts().tolist()


BOTH = Batch(6, predictions([0, 2, 3], [50, 12, 90]), labels([1, 2, 3, 5], [11, 72, 13, 15]), (Rejection(4, "type", ""),))
"""The events at 2 and 3 are labels that carry their predictions."""


def test_labels_with_predictions():
    """A label with its prediction is one event, as late as the later of the two, and is never cut in two."""
    assert (BOTH.index().tolist(), BOTH.ts().tolist()) == ([0, 1, 2, 3, 5], [50, 11, 72, 90, 15])
    assert positions(BOTH.between(2, 3)) == ([2], [2], [])
    assert positions(BOTH.between(0, 2)) == ([0], [1], [])
    assert positions(BOTH.after(3)) == ([3], [3, 5], [4])
    p = BOTH.predictions
    assert replace(BOTH, predictions=p.take(p.index != 2)).index().tolist() == [0, 1, 2, 3, 5]
    one = BOTH.between(3, 4)
    assert (one.index().tolist(), one.ts().tolist()) == ([3], [90])


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 99), st.integers(0, 99)), max_size=12), st.integers(0, 12))
def test_every_event_has_one_time(events, cut):
    """Whatever kinds the events are of, each has one position and one time, also after a cut."""
    p = [(i, at) for i, (scored, _, at, _) in enumerate(events) if scored]
    k = [(i, at) for i, (_, labelled, _, at) in enumerate(events) if labelled]
    batch = Batch(
        len(events),
        predictions(*map(list, zip(*p, strict=True))) if p else None,
        labels(*map(list, zip(*k, strict=True))) if k else None,
    )
    expected = [(i, max(at for at, has in ((a, s), (b, o)) if has)) for i, (s, o, a, b) in enumerate(events) if s or o]
    parts = [batch.between(0, cut), batch.after(cut)]
    for found in (
        list(zip(batch.index().tolist(), batch.ts().tolist(), strict=True)),
        [pair for part in parts for pair in zip(part.index().tolist(), part.ts().tolist(), strict=True)],
    ):
        assert found == expected


def test_read_from():
    """A batch of a file says which bytes it was."""
    batch = BATCH.read_from("file:x", 100, 250)
    assert (batch.source, batch.start, batch.end, batch.predictions) == ("file:x", 100, 250, BATCH.predictions)


def test_valid_scores():
    """Scores up to 1e-9 outside [0, 1] are clipped and told, others are not acceptable, NaN neither."""
    given_ = np.array([0.0, 1.0, 0.3, -1e-9, 1 + 1e-10, -2e-9, 1.1, np.nan, np.inf, -0.0])
    score, inside, clipped = valid_scores(given_)
    assert inside.tolist() == [True] * 5 + [False] * 4 + [True]
    assert clipped.tolist() == [False] * 3 + [True] * 2 + [False] * 5
    assert score[inside].tolist() == [0.0, 1.0, 0.3, 0.0, 1.0, 0.0]


@given(st.integers(EARLIEST, LATEST - 1), st.integers(0, 999), st.integers(0, 999))
@example(LATEST - 1, 999, 744)
@example(LATEST - 1, 999, 999)
@example(EARLIEST, 0, 0)
def test_valid_epochs(ms, us, ns):
    """Every moment from 2000 to 2100 is told apart in s, ms, us and ns, whole parts of a ms cut off."""
    units = np.array([ms // 1000, ms, ms * 1000 + us, (ms * 1000 + us) * 1000 + ns], np.int64)
    found, good = valid_epochs(units)
    assert (found.tolist(), good.all()) == ([ms // 1000 * 1000, ms, ms, ms], True)
    found, good = valid_epochs(np.array([ms / 1000]))
    assert (abs(int(found[0]) - ms) <= 1, good.all()) == (True, True)


@pytest.mark.parametrize("unit", [0.001, 1, 1_000, 1_000_000])
def test_epochs_outside(unit):
    """The first moment counts, the one before 2000 and the first of 2100 do not; nor do 0, negatives and NaN."""
    value = np.array(
        [EARLIEST * unit, EARLIEST * unit - max(unit, 1), LATEST * unit, LATEST * unit - max(unit, 1), 0, -1, np.nan]
    )
    assert valid_epochs(value)[1].tolist() == [True, False, False, True, False, False, False]
