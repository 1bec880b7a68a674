"""The store: rows once, labels by precedence, days by transaction."""

import errno
import os
import sqlite3

import numpy as np
import pytest

import monitor.store
from monitor.core.events import DAY
from monitor.core.tables import LABEL, NO_AUDIT
from monitor.store import NEWS, OLD_NEWS, TOO_OLD, UNKNOWN, Drawn, Span, StateError, Store
from monitor.store.ring import Ring
from stores import T0, append, close, crash, label, outcomes, predictions


@pytest.fixture
def small(monkeypatch):
    """Make blocks of 16 rows."""
    monkeypatch.setattr(monitor.store, "BLOCK", 16)
    monkeypatch.setattr("monitor.store.ring._FEWEST", 16)


@pytest.fixture
def reopen(tmp_path):
    """Give a function that opens the store of this test, and before that closes it, or leaves it as a killed process would."""
    stores = []

    def again(clean=True, **options):
        if stores:
            stores.pop().close() if clean else crash(stores.pop())
        stores.append(Store(tmp_path / "state", **options))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


# Predictions.


def test_first_wins(reopen):
    """Of several predictions with one id and version the first is kept, within a batch, over batches and over restarts."""
    store = reopen()
    assert append(store, ["a", "b", "a", "c", "b"], score=[0.1, 0.2, 0.3, 0.4, 0.2]) == [True, True, False, True, False]
    assert append(store, ["d", "c"], score=[0.5, 0.6]) == [True, False]
    assert append(store, ["a"], version=("m", "2"), score=0.9) == [True]
    assert store.conflicts == 2
    for again in (False, True):
        store = reopen() if again else store
        assert outcomes(store, 19_700) == {0.1: -1, 0.2: -1, 0.4: -1, 0.5: -1}
        assert outcomes(store, 19_700, version=1) == {0.9: -1}
        assert append(store, ["a", "b", "c", "d"], score=[0.1, 0.2, 0.4, 0.5]) == [False] * 4


def test_a_row_in_full(reopen):
    """A row holds what was sent, in codes of the books."""
    store = reopen()
    append(store, ["a", "b"], ts=[T0, T0 + 7], score=[0.25, 1.0], combo=[(("c", "x"),), ()], policy=["", "1-1"])
    columns = ["ts", "score", "version", "combo", "policy", "verdict", "label_prob", "wait_prob", "cluster"]
    assert store.rows_of(0, 19_700)[0][columns].tolist() == [(T0, 0.25, 0, 0, 0, 0, 0, 0, 0), (T0 + 7, 1.0, 0, 1, 1, 0, 0, 0, 0)]
    assert (store.versions.names, store.combos.names, store.policies.names) == ([("m", "1")], [(("c", "x"),), ()], ["", "1-1"])


@pytest.mark.parametrize("n", [65_536, 70_000, 200_000])
def test_one_large_batch(reopen, n):
    """A batch of any size goes in, as the first one or behind others, and everything is found again."""
    store = reopen(durable=False)
    ids = [str(i) for i in range(n)]
    assert sum(append(store, ids[:100])) == 100
    assert sum(append(store, ids)) == n - 100
    assert sum(append(store, ids)) == 0
    assert label(store, (str(n - 1), 1)) == [NEWS]


def test_wrap_and_retention(small, reopen):
    """Rows leave once their day is closed and past corrections, their blocks are used again, and the index follows."""
    store = reopen()
    for i in range(40):
        day = 19_700 + i
        append(store, [f"{i}-{j}" for j in range(20)], ts=day * DAY, score=[i / 100 + j / 10_000 for j in range(20)])
        label(store, *[(f"{i}-{j}", j % 2, day * DAY) for j in range(20)])
        close(store, day * DAY, [day - 1] if i else [], day - 1)
        if i % 7 == 3:
            store = reopen(clean=False)
        store.keep_from = {0: day - 1}
    assert (store.head, store.tail) == (38 * 20, 40 * 20)
    blocks = store.log.blocks()
    assert (sorted(blocks.values()), max(blocks) <= 5) == ([47, 48, 49], True)
    assert store.spans.keys() == {(0, 19_738), (0, 19_739)}
    assert outcomes(store, 19_739) == {0.39 + j / 10_000: j % 2 for j in range(20)}
    assert label(store, ("0-0", 1), ("39-0", 0, T0 + 39 * DAY)) == [UNKNOWN, OLD_NEWS]
    assert {d: n for (_, d), (n, _) in store.closed.items()} == {19_700 + i: 20 for i in range(39)}


def test_growth(small, reopen):
    """Rows and labels stay where they are when files that are too short become longer."""
    store = reopen()
    append(store, [str(i) for i in range(200)], score=[i / 1000 for i in range(200)])
    label(store, *[(str(i), i % 2) for i in range(0, 60, 3)])
    length = len(store.ring.rows)
    append(store, [str(i) for i in range(200, 900)], score=[i / 1000 for i in range(200, 900)])
    assert len(store.ring.rows) > length
    expected = {i / 1000: i % 2 if i < 60 and i % 3 == 0 else -1 for i in range(900)}
    for again in (False, True):
        store = reopen(clean=False) if again else store
        assert outcomes(store, 19_700) == expected
        assert store.spans[0, 19_700] == Span(0, 900, 900, 20)
    assert sorted(p.name for p in store.folder.glob("*.bin")) == ["labels.bin", "rows.bin"]


def test_spans(small, reopen):
    """Where the rows of each version and day are is the same whether noted batch by batch or found at opening."""
    store, rng = reopen(), np.random.default_rng(4)
    days, versions = rng.integers(0, 5, 500), rng.integers(0, 3, 500)
    days[[70, 90]] = -9_000, 30_000  # too far apart to count all days between them
    ts = T0 + days * DAY + rng.integers(0, DAY, 500)
    ids = [str(i) for i in range(500)]
    for i in range(0, 500, 50):
        part = slice(i, i + 50)
        append(store, ids[part], ts=ts[part].tolist(), version=[("m", str(v)) for v in versions[part]])
    given = [(ids[i], 1, int(ts[i]), 0, str(versions[i])) for i in range(0, 500, 7)]
    assert label(store, *given) == [NEWS] * len(given)
    spans, newest, code = store.spans, store.newest, [store.versions.code["m", str(v)] for v in versions]
    expected = {}
    for i, key in enumerate(zip(code, (19_700 + days).tolist(), strict=True)):
        first, _, n, labelled = expected.get(key, (i, 0, 0, 0))
        expected[key] = (first, i + 1, n + 1, labelled + (i % 7 == 0))
    assert spans == {k: Span(*v) for k, v in expected.items()}
    assert newest == {v: max(t for t, c in zip(ts.tolist(), code, strict=True) if c == v) for v in range(3)}
    store = reopen(clean=False)
    assert (store.spans, store.newest) == (spans, newest)


def test_versions_are_bounded(reopen):
    """A model has at most sixteen versions with rows; names whose rows were all refused take no place in the books."""
    store = reopen()
    append(store, [str(i) for i in range(16)], version=[("m", str(i)) for i in range(16)])
    assert store.full_versions([("m", "3"), ("m", "new"), ("n", "new")]) == {("m", "new")}
    p = predictions(store, ["x", "y"], version=[("m", "3"), ("m", "new")], combo=[(), (("c", "z"),)], policy=["", "9-9"])
    assert store.append(p.take(np.array([True, False])), {}).tolist() == [True]
    assert (len(store.versions.names), store.combos.names, store.policies.names) == (16, [()], [""])


def test_books_are_bounded(reopen, monkeypatch):
    """Names past the bound of a book share code 0; overflown segment combinations are counted; codes stay for ever."""
    monkeypatch.setattr(monitor.store, "_MAX_CODES", 3)
    store = reopen()
    combos = [(("c", str(i)),) for i in range(5)]
    append(store, list("abcde"), combo=combos, policy=[f"1-{i}" for i in range(5)])
    for again in (False, True):
        store = reopen() if again else store
        assert store.rows_of(0, 19_700)[0][["combo", "policy"]].tolist() == [(0, 0), (1, 1), (2, 2), (0, 0), (0, 0)]
        assert (store.combos.names, store.policies.names) == (combos[:3], ["1-0", "1-1", "1-2"])
    store = reopen()
    append(store, ["f"], combo=combos[4], policy="1-1")
    assert store.rows_of(0, 19_700)[0][["combo", "policy"]].tolist()[-1] == (0, 1)
    assert store.overflown_combos == 1


def test_codes_are_append_only(reopen):
    """Each restart and each batch leaves the codes of earlier names alone."""
    names = [("m", "b"), ("m", "a"), ("n", "b"), ("m", "ü")]
    for i, name in enumerate(names):
        store = reopen()
        append(store, [str(i), "again"], version=[name, names[0]])
        assert store.versions.names == names[: i + 1]


# Labels.


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ([("a", 1, T0 + 5_000)], 1),
        ([("a", 1, T0 + 5_000), ("a", 0, T0 + 9_000)], 0),
        ([("a", 1, T0 + 9_000), ("a", 0, T0 + 5_000)], 1),
        ([("a", 1, T0 + 5_000), ("a", 0, T0 + 5_000)], 0),
        ([("a", 1, T0 + 5_000, 1), ("a", 0, T0 + 9_000)], 1),
        ([("a", 1, T0 + 9_000), ("a", 0, T0 + 5_000, 1)], 0),
        ([("a", 0, T0, 2), ("a", 1, T0, 255), ("a", 0, T0, 128)], 1),
        ([("a", 1, T0 - 40 * DAY), ("a", 0, T0 - 41 * DAY)], 1),
    ],
)
def test_precedence(tmp_path, given, outcome):
    """The highest revision wins, then the newest ts, then the later arrival, in one batch and in many, also sent twice."""
    for name, batches in (
        ("one", [given]),
        ("many", [[g] for g in given]),
        ("twice", [[g] for g in given] * 2),
        ("both", [given] * 2),
    ):
        store = Store(tmp_path / name)
        append(store, ["a"])
        for batch in batches:
            label(store, *batch)
        assert outcomes(store, 19_700) == {0.5: outcome}
        crash(store)
        store = Store(tmp_path / name)
        assert outcomes(store, 19_700) == {0.5: outcome}
        crash(store)


def test_what_becomes_of_labels(reopen):
    """A label is news, old news, or of nobody; corrections are counted by their direction."""
    store = reopen()
    append(store, ["a", "b"])
    assert label(store, ("a", 1), ("x", 1), ("a", 1), ("b", 0)) == [OLD_NEWS, UNKNOWN, NEWS, NEWS]
    assert label(store, ("a", 1), ("b", 1, T0 - 1_000), ("b", 0)) == [OLD_NEWS, OLD_NEWS, OLD_NEWS]
    assert label(store, ("a", 0, T0, 1), ("b", 1, T0 + 1_000)) == [NEWS, NEWS]
    assert (store.corrections, store.spans[0, 19_700].labelled) == ({"0_to_1": 1, "1_to_0": 1}, 2)


def test_versions_of_a_label(reopen):
    """A label without version goes to every version of its model that has the id, one with a version only there."""
    store = reopen()
    append(store, ["a", "a", "b", "a"], version=[("m", "1"), ("m", "2"), ("m", "2"), ("n", "1")], score=[0.1, 0.2, 0.3, 0.4])
    assert label(store, ("a", 1, T0, 0, None), ("b", 0, T0, 0, "1"), ("b", 0, T0, 0, "9")) == [NEWS, UNKNOWN, UNKNOWN]
    assert label(store, ("b", 1, T0, 0, None), ("a", 0, T0, 1, "2")) == [NEWS, NEWS]
    assert [outcomes(store, 19_700, v) for v in range(3)] == [{0.1: 1}, {0.2: 0, 0.3: 1}, {0.4: -1}]


def test_labels_survive_without_a_checkpoint(reopen):
    """Labels are replayed from the log, those of before a checkpoint come from their file, and each counts once."""
    store = reopen()
    append(store, list("abc"), score=[0.1, 0.2, 0.3])
    label(store, ("a", 1))
    store.checkpoint()
    label(store, ("b", 1))
    append(store, ["d"], score=0.4)
    label(store, ("a", 0, T0, 1), ("d", 0))
    store = reopen(clean=False)
    assert outcomes(store, 19_700) == {0.1: 0, 0.2: 1, 0.3: -1, 0.4: 0}
    assert store.spans[0, 19_700].labelled == 3


def test_old_labels_of_a_slot(small, reopen):
    """A row in a used slot has no label, even where the file still holds that of an earlier row: so after a power cut."""
    store = reopen()
    append(store, ["a", "b"])
    label(store, ("a", 1), ("b", 1))
    store.checkpoint()
    close(store, T0 + DAY, [19_700], 19_701)
    append(store, [str(i) for i in range(64)], ts=T0 + DAY, score=[i / 100 for i in range(64)])
    assert set(outcomes(store, 19_701).values()) == {-1}
    store.ring.labels["outcome"] = 1
    store = reopen(clean=False)
    assert set(outcomes(store, 19_701).values()) == {-1}


def test_a_checkpoint_in_steps(small, reopen, monkeypatch):
    """While labels come, a checkpoint goes on a step a call; whenever the power fails, the last label of each row is there.

    What the disk has of the labels is what was flushed, and zeros elsewhere.
    """
    monkeypatch.setattr(monitor.store, "_HITS_PER_CHECKPOINT", 40)
    monkeypatch.setattr(monitor.store, "_CHECKPOINT_PARTS", 3)
    monkeypatch.setattr(monitor.store.ring, "_FLUSHED_AT_ONCE", 512)
    flush_labels, disk = Ring.flush_labels, np.zeros(1 << 16, LABEL)

    def flushed(ring):
        for i, _ in enumerate(flush_labels(ring)):
            part = ring.labels[i * 512 : (i + 1) * 512]
            disk[i * 512 :][: len(part)] = part
            yield

    monkeypatch.setattr(Ring, "flush_labels", flushed)
    rng, store, said, tails, steps = np.random.default_rng(6), reopen(), {}, set(), 0
    for step in range(250):
        if step % 5 == 0:
            new = range(len(said), len(said) + 70)
            append(store, [str(i) for i in new], score=[i / 10_000 for i in new])
            said |= dict.fromkeys(new, -1)
        which = rng.choice(len(said), 8, replace=False).tolist()
        outcome = rng.integers(0, 2, 8).tolist()
        assert label(store, *((str(i), k, T0 + step * 1000) for i, k in zip(which, outcome, strict=True))) == [NEWS] * 8
        said |= dict(zip(which, outcome, strict=True))
        steps += store._checkpointing is not None
        tails.add(store.log.meta()["labels_tail"])
        if rng.random() < 0.05:
            store.checkpoint()
        if rng.random() < 0.1:
            store.ring.labels[:] = disk[: len(store.ring.labels)]
            store = reopen(clean=False)
            assert outcomes(store, 19_700) == {i / 10_000: k for i, k in said.items()}
            assert store.spans[0, 19_700].labelled == sum(k >= 0 for k in said.values())
        assert store._hits < 300  # of 2,000 in all
    assert (steps > 50, len(tails) > 10) == (True, True)


@pytest.mark.parametrize("by", ["labels", "predictions"])
def test_large_requests_do_not_outrun_the_checkpoint(small, reopen, monkeypatch, by):
    """The log does not grow with the labels of large requests, nor with those that new rows of a second version take over."""
    for name, value in (("_HITS_PER_CHECKPOINT", 200), ("_HITS_PER_STEP", 10)):
        monkeypatch.setattr(monitor.store, name, value)
    store = reopen()
    ids = [str(i) for i in range(100)]
    append(store, ids)
    label(store, *((i, 1, T0, 0, None) for i in ids))
    for step in range(1, 16):
        if by == "labels":
            label(store, *((i, step % 2, T0 + step * 1000, 0, None) for i in ids))
        else:
            append(store, ids, version=("m", str(step + 1)))
        (kept,) = store.log.db.execute("select coalesce(sum(length(data)), 0) / 16 from hits").fetchone()
        assert kept <= 600


# Days.


def test_recount(reopen):
    """A correction or a late prediction marks its closed day, once, over restarts, until the day is counted again."""
    store = reopen()
    append(store, ["a", "b"])
    label(store, ("a", 1))
    close(store, T0 + DAY, [19_700], 19_690)
    assert (store.recount, store.closed) == (set(), {(0, 19_700): (2, 1)})
    label(store, ("a", 1))
    assert store.recount == set()
    label(store, ("a", 1, T0 + 5_000))  # the same outcome, but its delay is counted, too
    assert store.recount == {(0, 19_700)}
    close(store, T0 + DAY, [19_700], 19_690)
    label(store, ("a", 0, T0, 1))
    assert store.recount == {(0, 19_700)}
    store = reopen()
    assert store.recount == {(0, 19_700)}
    close(store, T0 + 2 * DAY, [19_700], 19_690)
    append(store, ["c", "d"], ts=[T0 + 5, T0 + DAY])
    assert store.recount == {(0, 19_700)}
    store = reopen()
    close(store, T0 + 3 * DAY, store.recount and [19_700], 19_690)
    store = reopen()
    assert (store.recount, store.closed) == (set(), {(0, 19_700): (3, 1)})
    assert store.log.day(0, 19_700)["all"].n == 3


def test_too_old(reopen):
    """A label of a day past its corrections changes nothing, however new it is."""
    store = reopen()
    append(store, ["a", "b"], ts=[T0, T0 + DAY], score=[0.1, 0.2])
    append(store, ["a"], version=("m", "2"), ts=T0 + DAY)
    close(store, T0 + 3 * DAY, [], 19_701)
    assert label(store, ("a", 1), ("b", 1), ("a", 1, T0, 0, None), ("x", 0)) == [TOO_OLD, NEWS, NEWS, UNKNOWN]
    assert [outcomes(store, 19_700), outcomes(store, 19_701), outcomes(store, 19_701, 1)] == [{0.1: -1}, {0.2: 1}, {0.5: 1}]


def test_rows_stay_until_their_day_is_closed_and_past_corrections(reopen):
    """Neither alone lets rows leave, nor while their day waits to be counted again; one old day holds those behind it."""
    store = reopen()
    append(store, ["a", "b", "c"], ts=[T0, T0 + DAY, T0])
    close(store, T0 + 9 * DAY, [], 19_705)
    assert store.head == 0
    close(store, T0 + 9 * DAY, [19_701], 19_700)
    assert store.head == 0
    close(store, T0 + 9 * DAY, [19_700], 19_701)
    assert (store.head, store.spans.keys()) == (1, {(0, 19_700), (0, 19_701)})
    store.keep_from = {0: 19_701}
    label(store, ("b", 1, T0 + DAY))
    close(store, T0 + 10 * DAY, [], 19_705)
    assert (store.head, store.recount) == (1, {(0, 19_701)})
    close(store, T0 + 10 * DAY, [19_701], 19_705)
    assert (store.head, store.tail, store.spans) == (3, 3, {})
    assert store.log.day(0, 19_701)["all"].labelled == 1


def test_days_that_lost_rows_stay_past_their_corrections(reopen):
    """A longer corrections period does not open a day again of which rows have left: counting it anew would lose them."""
    store = reopen()
    append(store, ["a", "b", "c"], ts=[T0, T0 + DAY, T0])
    close(store, T0 + 9 * DAY, [19_700], 19_701)
    store = reopen()
    store.keep_from = {0: 19_690}
    assert label(store, ("c", 1), ("b", 1, T0 + DAY)) == [TOO_OLD, NEWS]
    assert (store.left, store.recount, store.closed) == ({0: 19_701}, set(), {(0, 19_700): (2, 0)})


def test_record_is_one_transaction(reopen):
    """Days, journal, the tick and the leave of rows are committed together or not at all."""
    store = reopen()
    append(store, ["a"])
    with pytest.raises(TypeError):
        close(store, T0 + DAY, [19_700], 19_701, [("a", "m", "1", {}), ("b", "m", "1", {"x": object()})])
    store = reopen(clean=False)
    assert (store.closed, store.head, store.log.journal(), store.meta.get("last_tick")) == ({}, 0, [], None)
    added = close(store, T0 + DAY, [19_700], 19_701, [("a", "m", "1", {"x": 1})])
    store = reopen(clean=False)
    assert (store.closed, store.head, store.log.journal()) == ({(0, 19_700): (1, 0)}, 1, added)
    assert store.meta["last_tick"] == T0 + DAY


def test_positions(reopen):
    """Positions are committed with their rows and their labels."""
    store = reopen()
    append(store, ["a"], positions={"file:p": "10:0"})
    label(store, ("x", 1), positions={"file:l": "20:0"})
    append(store, ["a"], positions={"file:p": "11:0"})
    store = reopen(clean=False)
    assert store.positions == {"file:p": "11:0", "file:l": "20:0"}


# Faults.


def _fail_commit(store, monkeypatch):
    """Make the next commits of the store fail like those of a full disk."""

    class Db:
        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, sql, *args):
            if sql == "commit":
                raise sqlite3.OperationalError("database or disk is full")
            return real.execute(sql, *args)

    real = store.log.db
    monkeypatch.setattr(store.log, "db", Db())


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "commit"])
@pytest.mark.parametrize("grow", [False, True])
def test_a_failed_append_takes_nothing(small, tmp_path, monkeypatch, call, grow):
    """Where a write, flush or commit fails, nothing of the batch is there after reopening, and it can be sent again."""
    store = Store(tmp_path / "state")
    append(store, ["a", "b"], score=[0.1, 0.2], positions={"s": "1"})
    label(store, ("a", 1))
    if call == "commit":
        _fail_commit(store, monkeypatch)
    else:

        def full(*args):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, call, full)
    ids = [str(i) for i in range(100 if grow else 3)]
    with pytest.raises((OSError, sqlite3.OperationalError)):
        append(store, ids, positions={"s": "2"}, version=("m", "2"))
    monkeypatch.undo()
    crash(store)
    store = Store(tmp_path / "state")
    assert store.log.blocks() == {0: 0}
    assert (outcomes(store, 19_700), store.positions, store.versions.names) == ({0.1: 1, 0.2: -1}, {"s": "1"}, [("m", "1")])
    assert len(list(store.folder.glob("*.bin"))) == 2
    assert append(store, ["a", *ids], version=[("m", "1")] + [("m", "2")] * len(ids)) == [False] + [True] * len(ids)
    crash(store)


def test_a_failed_label_says_nothing(tmp_path, monkeypatch):
    """Where the commit of labels fails, none of them is there, neither before nor after reopening."""
    store = Store(tmp_path / "state")
    append(store, ["a"])
    close(store, T0 + DAY, [19_700], 19_690)
    _fail_commit(store, monkeypatch)
    with pytest.raises(sqlite3.OperationalError):
        label(store, ("a", 1), positions={"s": "1"})
    monkeypatch.undo()
    assert outcomes(store, 19_700) == {0.5: -1}
    crash(store)
    store = Store(tmp_path / "state")
    assert (outcomes(store, 19_700), store.positions, store.recount) == ({0.5: -1}, {}, set())
    assert label(store, ("a", 1)) == [NEWS]
    crash(store)


@pytest.mark.parametrize(("key", "value", "ours"), [("schema", 1, 3), ("grid", 9, 1), ("hash", "blake2b", "xxh3")])
def test_written_by_another(tmp_path, key, value, ours):
    """A state of another schema, grid or hash is refused by name."""
    store = Store(tmp_path / "state")
    with store.log.transaction():
        store.log.set_meta({key: value})
    store.close()
    with pytest.raises(StateError) as e:
        Store(tmp_path / "state")
    assert str(e.value) == f"{tmp_path}/state: was written with {key} {value!r}, this agent uses {ours!r}; use a new `state`"


def test_hashes(tmp_path):
    """The key of an installation is made once; another hash finds ids as well; two installations hash differently."""
    store = Store(tmp_path / "a", "blake2b")
    key = store.meta["key"]
    append(store, ["a"])
    store.close()
    store = Store(tmp_path / "a", "blake2b")
    assert (store.meta["key"], append(store, ["a", "b"])) == (key, [False, True])
    other = Store(tmp_path / "b", "blake2b")
    assert other.hasher.ids("m", [b"a"]).tolist() != store.hasher.ids("m", [b"a"]).tolist()
    store.close()
    other.close()


def test_second_opener(reopen, tmp_path):
    """Opening a directory twice is refused; the first goes on."""
    store = reopen()
    with pytest.raises(StateError, match="another process uses this state directory"):
        Store(tmp_path / "state")
    assert append(store, ["a"]) == [True]


def test_network_file_systems_are_refused(tmp_path, monkeypatch):
    """A state on a network file system is refused before anything is written there."""
    monkeypatch.setattr(monitor.store, "_filesystem", lambda path: "nfs4")
    with pytest.raises(StateError) as e:
        Store(tmp_path / "state")
    said = f"{tmp_path}/state: nfs4 is a network file system, on which commits can be lost; choose a local disk for `state`"
    assert (str(e.value), list((tmp_path / "state").iterdir())) == (said, [])


def test_where_a_state_cannot_be(tmp_path):
    """A path below a file is refused with what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError) as e:
        Store(tmp_path / "file" / "state")
    assert str(e.value) == f"{tmp_path}/file/state: Not a directory; make it writable or choose another `state`"


def append_one_of_two(store):
    """Store two predictions, of which the second does not wait."""
    codes = np.zeros(2, np.uint16)
    drawn = Drawn(np.array([True, False]), codes, np.full(2, NO_AUDIT, np.uint8), codes, np.zeros(2, bool), np.zeros(2, np.int64))
    store.append(predictions(store, ["a", "b"]), {}, drawn)


@pytest.mark.parametrize("name", ["rows", "labels", "passing"])
@pytest.mark.parametrize("cut", [None, 100])
def test_lost_files(tmp_path, name, cut):
    """Rows that the log has and the files have not are never taken for zeros: the state is refused."""
    store = Store(tmp_path / "state")
    append_one_of_two(store)
    store.close()
    path = tmp_path / "state" / f"{name}.bin"
    if cut is None:
        path.unlink()
    else:
        os.truncate(path, cut)
    with pytest.raises(StateError) as e:
        Store(tmp_path / "state")
    assert str(e.value) == f"{path}: missing or too short; restore it together with log.db or use a new `state`"


def test_a_failed_opening_leaves_no_file_open(tmp_path):
    """A state that cannot be opened is tried again every half a second, which must not use up the descriptors."""
    store = Store(tmp_path / "state")
    append_one_of_two(store)
    crash(store)
    path = tmp_path / "state" / "labels.bin"
    path.unlink()
    path.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError):
        Store(tmp_path / "state")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failed_checkpoint_leaves_the_directory_free(tmp_path):
    """A store that cannot write its last checkpoint is closed all the same, and another can be opened while it is still there."""
    store = Store(tmp_path / "state")
    append(store, ["a"])
    store.log.db.execute("pragma query_only = 1")
    with pytest.raises(sqlite3.OperationalError):
        store.close()
    again = Store(tmp_path / "state")
    assert again.tail == 1
    again.close()


def test_random_streams_equal_a_dict(small, reopen):
    """Batches of any kind, with restarts between, end as a dict says."""
    rng = np.random.default_rng(5)
    store, rows, said = reopen(), {}, {}
    for step in range(60):
        ids = [str(i) for i in rng.integers(0, 400, rng.integers(1, 60))]
        score = rng.random(len(ids))
        fresh = append(store, ids, score=score)
        for ident, s, new in zip(ids, score.tolist(), fresh, strict=True):
            assert new is (ident not in rows)
            rows.setdefault(ident, s)
        given = [
            (str(i), int(rng.integers(2)), T0 + int(rng.integers(4)) * 1000, int(rng.integers(3)))
            for i in rng.integers(0, 450, 30)
        ]
        became = label(store, *given)
        for (ident, outcome, ts, revision), code in zip(given, became, strict=True):
            assert (code == UNKNOWN) is (ident not in rows)
            if ident in rows and ((revision, ts) >= said.get(ident, (-1,))[:2]):
                said[ident] = (revision, ts, outcome)
        if step % 10 == 9:
            store = reopen()
    assert outcomes(store, 19_700) == {s: said[i][2] if i in said else -1 for i, s in rows.items()}
    assert store.spans[0, 19_700].labelled == len(said)


@pytest.mark.parametrize("seed", range(4))
def test_random_days_equal_a_dict(small, reopen, seed):
    """With rows leaving as fast as they come, labels, corrections, crashes and blocks in any order, all is as a dict says."""
    rng, store, waiting, order, oldest, day, reused = np.random.default_rng(seed), reopen(), {}, [], 0, 0, 0
    for step in range(120):
        day += int(rng.random() < 0.3)
        ids = list(dict.fromkeys(str(i) for i in rng.integers(0, 2_000, rng.integers(1, 80))))
        days = rng.integers(max(oldest, day - 2), day + 1, len(ids))
        score = rng.random(len(ids))
        fresh = append(store, ids, ts=(T0 + days * DAY).tolist(), score=score)
        assert fresh == [i not in waiting for i in ids]
        for i, d, s, new in zip(ids, days.tolist(), score.tolist(), fresh, strict=True):
            if new:
                waiting[i] = [d, s, -1]
                order.append(i)
        asked = [str(i) for i in rng.integers(0, 2_000, 60)]
        given = [(i, int(rng.integers(2)), T0 + (1_000 + step) * DAY) for i in dict.fromkeys(asked)]
        for (i, k, _), became in zip(given, label(store, *given), strict=True):
            assert became == (UNKNOWN if i not in waiting else TOO_OLD if waiting[i][0] < oldest else NEWS)
            if became == NEWS:
                waiting[i][2] = k
        if rng.random() < 0.3:
            oldest = max(oldest, day - int(rng.integers(0, 4)))
            due = sorted(
                {d for _, d in store.spans if d < 19_700 + oldest and ((0, d) not in store.closed or (0, d) in store.recount)}
            )
            close(store, T0 + day * DAY, due, 19_700 + oldest)
            while order and waiting[order[0]][0] < oldest:
                del waiting[order.pop(0)]
        if rng.random() < 0.15:
            store = reopen(clean=rng.random() < 0.5)
            store.keep_from = {0: 19_700 + oldest}
            reused += list(store.log.blocks().values()) != sorted(store.log.blocks().values())
        assert store.tail - store.head == len(waiting)
        if step % 10 == 9:
            found = {}
            for version, d in store.spans:
                rows, said = store.rows_of(version, d)
                found |= {s: [d - 19_700, s, k] for s, k in zip(rows["score"].tolist(), said["outcome"].tolist(), strict=True)}
            assert found == {w[1]: w for w in waiting.values()}
    assert (reused > 0, store.head > 0) == (True, True)
