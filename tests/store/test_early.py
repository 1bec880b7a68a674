"""Labels before their predictions, labels of several versions, and predictions that do not wait for a label."""

import numpy as np
import pytest

from monitor.core.events import DAY, HOUR, prob_code
from monitor.core.tables import NAMED, NO_AUDIT, PASSED_OVER, PICKED, ROW, not_waiting, tables
from monitor.store import HELD, NEWS, NOT_SAMPLED, OLD_NEWS, TOO_OLD, UNKNOWN, UNLIKE, Drawn, Store, early, passing
from stores import T0, append, close, crash, labels, outcomes, predictions


@pytest.fixture
def reopen(tmp_path):
    """Give a function that opens the store of this test, after leaving the one before as a killed process would."""
    stores = []

    def again():
        if stores:
            crash(stores.pop())
        stores.append(Store(tmp_path / "state"))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


def label(store, *given, until=T0 + 60 * DAY, now=T0, prob=None):
    """Store labels (id, outcome, ts, revision, version) and return what became of each."""
    said = labels(store, *given)
    object.__setattr__(said, "label_prob", None if prob is None else np.full(len(said), prob_code(np.array(prob)), np.uint16))
    return store.label(said, {}, np.full(len(said), until, np.int64), now).tolist()


def test_held_label_waits_for_its_prediction(reopen):
    """A label before its prediction is held over a kill, and counts once the prediction is there, with its own delay."""
    store = reopen()
    assert label(store, ("a", 1, T0 + 5_000), ("a", 1, T0 + 5_000)) == [OLD_NEWS, HELD]
    assert label(store, ("a", 1, T0 + 5_000)) == [OLD_NEWS]
    store = reopen()
    assert (len(store.early), append(store, ["a", "b"], score=[0.25, 0.5])) == (1, [True, True])
    store = reopen()
    rows, said = store.rows_of(0, 19_700)
    assert said[["outcome", "delta"]].tolist() == [(1, 5), (-1, 0)]
    assert (store.spans[0, 19_700].labelled, label(store, ("a", 1, T0 + 5_000))) == (1, [OLD_NEWS])
    assert rows["score"].tolist() == [0.25, 0.5]


@pytest.mark.parametrize("first", ["predictions", "labels"])
def test_order_of_labels_and_predictions_does_not_matter(reopen, first):
    """Corrections, revisions and labels for one or all versions end the same whether they come before or after."""
    store = reopen()
    said = [
        ("a", 0, T0 + 9_000, 0, None),
        ("a", 1, T0 + 1_000, 2, None),
        ("a", 0, T0 + 2_000, 1, "2"),
        ("b", 1, T0 + 3_000, 0, "1"),
    ]

    def predict():
        append(store, ["a", "b"], score=[0.1, 0.2])
        append(store, ["a", "b"], score=[0.3, 0.4], version=("m", "2"))

    if first == "predictions":
        predict()
    for one in said:
        label(store, one)
        if first == "labels":
            store = reopen()
    if first == "labels":
        predict()
    found = [store.rows_of(v, 19_700)[1] for v in (0, 1)]
    assert [f[["outcome", "revision", "delta"]].tolist() for f in found] == [[(1, 2, 1), (1, 0, 3)], [(1, 2, 1), (-1, 0, 0)]]
    assert [(f["label_prob"] & NAMED > 0).tolist() for f in found] == [[False, True], [False, False]]


def test_a_label_for_all_versions_serves_those_to_come(reopen):
    """A version that scores an id later takes the label of its sibling, but not one that named the sibling."""
    store = reopen()
    append(store, ["a", "b"], score=[0.1, 0.2])
    assert label(store, ("a", 1, T0 + 7_000, 3, None), ("b", 1, T0 + 7_000)) == [NEWS, NEWS]
    append(store, ["a", "b"], score=[0.3, 0.4], ts=T0 + 2_000, version=("m", "2"))
    assert store.rows_of(1, 19_700)[1][["outcome", "revision", "delta"]].tolist() == [(1, 3, 5), (-1, 0, 0)]
    assert store.rows_of(0, 19_700)[1]["outcome"].tolist() == [1, 1]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_label_for_all_versions_outlives_one_that_names_a_version(reopen, first):
    """Where a label that names a version wins, the one for all of them still serves the versions to come."""
    store = reopen()
    append(store, ["a"], ts=T0 + 900)
    said = [("a", 1, T0 + 5_000, 0, None), ("a", 0, T0 + 6_000, 1, "1")]
    became = [label(store, *said)] if first == 2 else [label(store, one) for one in (said if first == 0 else said[::-1])]
    assert became == [[[NEWS], [NEWS]], [[NEWS], [HELD]], [[HELD, NEWS]]][first]
    assert label(store, said[0]) == [OLD_NEWS]
    store = reopen()
    append(store, ["a"], ts=T0 + 100, version=("m", "2"))
    found = [store.rows_of(v, 19_700)[1][["outcome", "delta"]].tolist() for v in (0, 1)]
    assert found == [[(0, 6)], [(1, 5)]]
    close(store, T0 + 60 * DAY, [], 19_700)
    assert (len(store.early), store.refused["unknown_id"]) == (0, 0)


def test_a_label_is_of_one_time_for_all_versions(reopen):
    """A version that comes later sees the label at the same second as one that was there."""
    store = reopen()
    append(store, ["a"] * 2, ts=[T0 + 900, T0 + 950], version=[("m", "1"), ("m", "2")])
    label(store, ("a", 1, T0 + 5_930, 0, None))
    append(store, ["a"], ts=T0 + 950, version=("m", "3"))
    assert [store.rows_of(v, 19_700)[1]["delta"].tolist() for v in range(3)] == [[5]] * 3


def test_held_labels_expire_and_are_counted(reopen):
    """A held label that no prediction took is dropped and counted at its time; one that was taken is only dropped."""
    store = reopen()
    append(store, ["x"])
    assert label(store, ("a", 1), ("b", 1), until=T0 + DAY) == [HELD, HELD]
    assert label(store, ("c", 1), until=T0) == [UNKNOWN]
    append(store, ["a"])
    close(store, T0 + DAY - 1, [], 0)
    assert (len(store.early), store.early.waiting, store.refused["unknown_id"]) == (2, 1, 0)
    close(store, T0 + DAY, [], 0)
    assert (len(store.early), store.refused["unknown_id"]) == (0, 1)
    assert append(store, ["b"], score=0.75) == [True]
    assert outcomes(store, 19_700) == {0.5: 1, 0.75: -1}
    assert len(reopen().early) == 0


def test_held_labels_are_bounded(reopen, monkeypatch):
    """When there is no room, the oldest held labels go and are counted; a request with more than fit keeps its last ones."""
    monkeypatch.setattr(early, "CAPACITY", 100)
    store = reopen()
    assert label(store, *((f"a{i}", 1) for i in range(80))) == [HELD] * 80
    assert label(store, *((f"b{i}", 1) for i in range(50))) == [HELD] * 50
    assert (len(store.early), store.refused["unknown_id"]) == (100, 30)
    store = reopen()
    append(store, [f"a{i}" for i in range(80)])
    assert store.rows_of(0, 19_700)[1]["outcome"].tolist() == [-1] * 30 + [1] * 50
    assert label(store, *((f"c{i}", 1) for i in range(120))) == [UNKNOWN] * 20 + [HELD] * 100
    assert len(reopen().early) == 100


def test_many_held_labels(reopen):
    """Held labels are found while their number grows and shrinks."""
    store = reopen()
    for day in range(6):
        assert label(store, *((f"{day}-{i}", i % 2) for i in range(700)), until=T0 + (day + 2) * DAY) == [HELD] * 700
        close(store, T0 + day * DAY, [], 0)
    append(store, [f"{day}-{i}" for day in range(6) for i in range(700)])
    assert store.rows_of(0, 19_700)[1]["outcome"].reshape(6, -1)[:, :2].tolist() == [[-1, -1]] * 4 + [[0, 1]] * 2


def test_two_probabilities_that_differ_are_refused(reopen):
    """A label whose `label_prob` is not that of its prediction is not taken, whichever comes first."""
    store = reopen()
    p = predictions(store, ["a", "b", "c"])
    object.__setattr__(p, "label_prob", prob_code(np.array([0.5, 0.5, 1.0])) * np.array([1, 1, 0], np.uint16))
    assert label(store, ("b", 1), prob=0.25) == [HELD]
    store.append(p, {})
    assert store.refused["label_prob"] == 1
    assert label(store, ("a", 1), prob=0.25) == [UNLIKE]
    assert label(store, ("a", 1), prob=0.5) == [NEWS]
    assert label(store, ("c", 0), prob=0.125) == [NEWS]
    rows, said = store.rows_of(0, 19_700)
    made = tables(rows, said, np.zeros((1, 1), np.int32), 1)[0].weights
    assert made["w_pos"].sum() == pytest.approx(2, rel=3e-4)
    assert made["w_neg"].sum() == pytest.approx(8, rel=3e-4)
    assert (made["expected"].sum(), made["covered"].sum()) == pytest.approx((2, 9), rel=3e-4)


# Predictions that do not wait.


def drawn(waits, audit=None, prob=0.0):
    """Return what the samplers drew: rows wait with probability 1/4."""
    n = len(waits)
    picked = np.full(n, NO_AUDIT, np.uint8) if audit is None else np.array(audit, np.uint8)
    code = prob_code(np.full(n, prob)) if prob else np.zeros(n, np.uint16)
    return Drawn(
        np.array(waits), prob_code(np.full(n, 0.25)), picked, code, picked == PICKED, np.full(n, T0 + 30 * DAY, np.int64)
    )


def test_rows_that_do_not_wait_are_counted_once(reopen):
    """They are known by their id, in no span, and stay to be counted until a commit says in which tables they are."""
    store = reopen()
    assert store.append(predictions(store, list("abcd"), score=[0.1, 0.2, 0.3, 0.4]), {}, drawn([True, False, False, True])).all()
    store = reopen()
    assert append(store, list("abcd"), score=[0.1, 0.2, 0.3, 0.5]) == [False] * 4
    assert store.conflicts == 1
    assert (store.tail, store.spans[0, 19_700].n) == (2, 2)
    assert [r["score"].tolist() for r in store.passing.since(store.passing.counted)] == [[0.2, 0.3]]
    assert label(store, ("a", 1), ("b", 1), ("nobody", 1)) == [NEWS, NOT_SAMPLED, HELD]
    table = not_waiting(tables(next(store.passing.since(store.passing.counted)), None, np.zeros((1, 1), np.int32), 1)[0])
    store.add_passed((0, "day", 19_700), {"all": table})
    store.passing.seen = store.passing.tail
    store.record(T0 + HOUR, {}, {0: 0}, [], {})
    store = reopen()
    assert list(store.passing.since(store.passing.counted)) == []
    assert (store.passed[0, "day", 19_700]["all"].n, store.passed[0, "day", 19_700]["all"].out) == (2, 2)
    assert append(store, ["b"]) == [False]
    close(store, T0 + 40 * DAY, [19_700], 19_730)
    assert (store.passed, store.log.passed()) == ({}, {})


def test_versions_of_which_no_row_waits_are_versions(reopen):
    """They count towards the bound on versions, over a kill, too, and a label for such a row is told that it did not wait."""
    store = reopen()
    for i in range(16):
        store.append(predictions(store, ["a"], version=("m", str(i))), {}, drawn([False]))
        store = reopen()
    assert store.full_versions([("m", "3"), ("m", "16")]) == {("m", "16")}
    assert label(store, ("a", 1, T0, 0, None), ("b", 1, T0, 0, None)) == [NOT_SAMPLED, HELD]
    store.passing.seen = store.passing.tail
    store.record(T0 + HOUR, {}, {}, [], {})
    assert store.full_versions([("m", "16")]) == set()


def test_the_short_ring_goes_round(reopen, monkeypatch):
    """Rows that were counted make room; the newest are still known by their ids."""
    monkeypatch.setattr(passing, "CAPACITY", 64)
    store = reopen()
    for i in range(10):
        ids = [f"{i}-{j}" for j in range(40)]
        assert store.append(predictions(store, ids, score=i / 10), {}, drawn([False] * 40)).all()
        assert next(store.passing.since(store.passing.counted))["score"][0] == i / 10
        assert sum(len(r) for r in store.passing.since(store.passing.counted)) == 40
        store.passing.seen = store.passing.tail
        store.save_passed()
        store = reopen() if i % 3 == 0 else store
        assert append(store, ids) == [False] * 40
    assert store.passing.room == 64
    assert store.tail == 0


def test_rows_that_were_not_committed_are_not_known(reopen, monkeypatch):
    """Rows written before a kill but not committed are new when they are sent again, wherever in the short ring they are."""
    monkeypatch.setattr(passing, "CAPACITY", 64)
    store = reopen()
    for i in range(10):
        ids = [f"{i}-{j}" for j in range(40)]
        rows = np.zeros(40, ROW)
        rows["h1"], rows["h2"] = (predictions(store, ids).ids ^ store.hasher.version("m", "1")).T
        store.passing.write(rows)
        store = reopen()
        assert store.append(predictions(store, ids), {}, drawn([False] * 40)).all()
        assert append(store, ids + [f"{i - 1}-{j}" for j in range(20, 40)]) == [False] * 40 + [i == 0] * 20
        store.passing.seen = store.passing.tail
        store.save_passed()


def test_picks_keep_their_id(reopen):
    """A pick is listed with its id as sent until its label comes or its time is over."""
    store = reopen()
    p = predictions(store, ["a", "b", "c"], score=[0.1, 0.2, 0.3], ts=[T0, T0 + 1, T0 + 2])
    object.__setattr__(p, "sent", np.array([b"a", b"b", "\u00fc c".encode()], object))
    store.append(p, {}, drawn([True, True, True], [PICKED, PASSED_OVER, PICKED], 0.5))
    store = reopen()
    assert [(k["id"], k["score"], round(k["label_prob"], 3)) for k in store.picks("m")] == [
        ("\u00fc c", 0.3, 0.5),
        ("a", 0.1, 0.5),
    ]
    assert store.picks("other") == []
    assert label(store, ("a", 1), ("b", 1)) == [NEWS, NEWS]
    assert [k["id"] for k in store.picks("m")] == ["\u00fc c"]
    made = tables(*store.rows_of(0, 19_700), np.zeros((1, 1), np.int32), 1)[0].weights
    assert made["w_pos"].sum() == pytest.approx(2, rel=3e-4)
    close(store, T0 + 30 * DAY, [], 0)
    assert store.picks("m") == []


def test_too_old_is_not_held(reopen):
    """A label whose row is past its corrections is too old, not early."""
    store = reopen()
    append(store, ["a"])
    store.keep_from = {0: 19_701}
    assert label(store, ("a", 1)) == [TOO_OLD]


def test_unknown_ids_are_named_again_when_all_wait(reopen):
    """A dropped label may be of a row that did not wait only if such rows came in the time that it may be of."""
    store = reopen()
    store.append(predictions(store, ["a"]), {}, drawn([False]))
    store = reopen()
    later = T0 + 50 * DAY
    assert label(store, ("x", 1, T0 + DAY), until=T0 + 31 * DAY) == [HELD]
    assert label(store, ("y", 1, later), until=later + 30 * DAY) == [HELD]
    close(store, later + 30 * DAY, [], 0)
    assert (store.refused["not_sampled"], store.refused["unknown_id"]) == (1, 1)
