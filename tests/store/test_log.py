"""The transaction log."""

import sqlite3

import numpy as np
import pytest

from monitor.core.tables import LABEL, ROW, tables
from monitor.store.log import Log, StateError


def test_meta_positions_and_codes(tmp_path):
    """What was committed is read back after reopening, names as they were: tuples stay tuples."""
    log = Log(tmp_path / "log.db")
    with log.transaction():
        log.set_meta({"a": 1, "b": b"\0\1"})
        log.set_positions({"file:x": "3:0"})
        log.add_codes("version", 0, [("m", "1"), ("m", "ü")])
    with log.transaction():
        log.set_meta({"a": 2})
        log.set_positions({"file:x": "9:4", "file:y": "1:0"})
        log.add_codes("version", 2, [("n", "1")])
        log.add_codes("combo", 0, [(), (("country", "DE"),)])
    log.close()
    log = Log(tmp_path / "log.db")
    assert log.meta() == {"a": 2, "b": b"\0\1"}
    assert log.positions() == {"file:x": "9:4", "file:y": "1:0"}
    assert log.codes("version") == [("m", "1"), ("m", "ü"), ("n", "1")]
    assert log.codes("combo") == [(), (("country", "DE"),)]
    assert log.codes("policy") == []
    log.close()


def test_a_failed_transaction_leaves_nothing(tmp_path):
    """An error inside a transaction undoes all of it, the end of the journal included, and the next one works."""
    log = Log(tmp_path / "log.db")
    with log.transaction():
        log.add_entries(1, "agent", [("a", "m", "1", {})])
    last = log.head

    def fail():
        with log.transaction():
            log.set_meta({"a": 1})
            log.add_entries(2, "agent", [("b", "m", "1", {})])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (log.meta().keys(), log.head, [e.kind for e in log.journal()]) == ({"journal_head"}, last, ["a"])
    with log.transaction():
        log.add_entries(3, "agent", [("c", "m", "1", {})])
    assert ([(e.seq, e.kind) for e in log.journal()], log.broken_link()) == ([(1, "a"), (2, "c")], None)
    log.close()


def _journal(path, n=5):
    log = Log(path)
    for i in range(n):
        with log.transaction():
            log.add_entries(i, "agent", [("alert", "m", "1", {"x": i / 3, "nested": {"b": None, "a": [1, "é"]}})])
    return log


def test_journal_goes_on_after_reopening(tmp_path):
    """Entries keep their order, numbers and links over restarts, and several of one transaction are linked one by one."""
    _journal(tmp_path / "log.db").close()
    log = Log(tmp_path / "log.db")
    with log.transaction():
        added = log.add_entries(9, "ann", [("activated", "m", "1", {"n": 1}), ("activated", "m", "2", {"n": 2})])
    assert log.journal()[5:] == added
    assert [e.seq for e in log.journal()] == list(range(1, 8))
    assert log.broken_link() is None
    log.close()


NEXT = "entry {} does not follow from the one before".format


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ("update journal set body = '{}' where seq = 2", NEXT(3)),
        ("update journal set body = '{' where seq = 2", "entry 2 is not as it was written: its body is no JSON"),
        ("update journal set who = 'nobody' where seq = 4", NEXT(5)),
        ("update journal set at = at + 1 where seq = 1", NEXT(2)),
        ("delete from journal where seq = 3", NEXT(4)),
        ("delete from journal where seq = 1", NEXT(2)),
        ("update journal set previous = '' where seq = 3", NEXT(3)),
        ("update journal set who = 'nobody' where seq = 5", "entry 5 is not as it was written"),
        ("update journal set version = 2 where seq = 5", "entry 5 is not as it was written"),
        ("delete from journal where seq = 5", "entry 5 was taken out: there were 5"),
        ("delete from journal where seq > 2", "entry 3 was taken out: there were 5"),
        ("delete from journal", "entry 1 was taken out: there were 5"),
        ("insert into journal select 6, at, who, kind, model, version, body, previous from journal where seq = 5", NEXT(6)),
    ],
)
def test_a_changed_journal_is_found(tmp_path, change, broken):
    """One entry that was changed, taken out or added is found wherever it is, also after more entries were written."""
    log = _journal(tmp_path / "log.db")
    log.db.execute(change)
    assert log.broken_link() == broken
    log.close()
    log = Log(tmp_path / "log.db")
    assert log.broken_link() == broken
    if "seq = 6" not in change and "6, at" not in change:
        with log.transaction():
            log.add_entries(9, "agent", [("alert", "m", "1", {})])
        assert log.broken_link() is not None
    log.close()


def test_a_pinned_entry_is_checked(tmp_path):
    """A journal written anew from some entry on holds in itself and is found by a head that somebody wrote down before."""
    log = _journal(tmp_path / "log.db")
    pinned = log.head
    with log.transaction():
        log.add_entries(9, "agent", [("alert", "m", "1", {})])
    assert (log.broken_link(pinned), log.broken_link(log.head)) == (None, None)
    assert log.broken_link((9, "0" * 64)) == "there is no entry 9, only 6"
    log.close()
    forged = _journal(tmp_path / "forged.db", 4)
    with forged.transaction():
        forged.add_entries(4, "bob", [("alert", "m", "1", {})])
    assert forged.broken_link() is None
    assert forged.broken_link(pinned) == f"entry 5 or one before it is not the one whose hash is {pinned[1]}"
    forged.close()


def test_a_journal_without_a_head(tmp_path):
    """A journal of before heads were kept is no false alarm, goes on, and has a head from its next entry on."""
    log = _journal(tmp_path / "log.db")
    head = log.head
    log.db.execute("delete from meta")
    log.close()
    log = Log(tmp_path / "log.db")
    assert (log.kept_head(), log.head, log.broken_link()) == (None, head, None)
    with log.transaction():
        log.add_entries(9, "agent", [("alert", "m", "1", {})])
    assert (log.kept_head(), log.broken_link()) == (log.head, None)
    log.close()


def test_newest_entries(tmp_path):
    """Entries are found by kind, model and number, newest first and no more than were asked for."""
    log = Log(tmp_path / "log.db")
    with log.transaction():
        log.add_entries(1, "agent", [(kind, model, "1", {}) for kind in ("alert", "decision", "activated") for model in "mn"])

    def found(*asked):
        return [e.seq for e in log.entries(*asked)]

    assert found(("decision", "activated"), ("m",), 0, 9) == [5, 3]
    assert found(("decision", "activated"), ("m", "n"), 4, 9) == [6, 5, 4]
    assert found(("decision", "activated"), None, 0, 2) == [6, 5]
    assert found(("decision",), (), 0, 9) == []
    log.close()


def test_days(tmp_path):
    """A day's tables come back exactly, storing it again replaces it, and either ends its recount."""
    rng = np.random.default_rng(0)
    rows, labels = np.zeros(500, ROW), np.zeros(500, LABEL)
    rows["score"], rows["combo"] = rng.random(500), rng.integers(0, 2, 500)
    labels["outcome"] = rng.integers(-1, 2, 500)
    made = dict(zip(("all", "c=a"), tables(rows, labels, np.array([[0, 0], [1, 0]], np.int32), 2), strict=True))
    log = Log(tmp_path / "log.db")
    with log.transaction():
        log.put_day(0, 7, {"all": made["c=a"]})
        log.db.execute("insert into recount values (0, 7), (0, 8)")
    with log.transaction():
        log.put_day(0, 7, made)
    log.close()
    log = Log(tmp_path / "log.db")
    back = log.day(0, 7)
    assert back.keys() == made.keys()
    for name in made:
        np.testing.assert_array_equal(back[name].cells, made[name].cells)
        np.testing.assert_array_equal(back[name].totals, made[name].totals)
    assert (log.closed(), log.recounts()) == ({(0, 7): (500, int((labels["outcome"] >= 0).sum()))}, {(0, 8)})
    with pytest.raises(KeyError):
        log.day(0, 8)
    log.close()


def test_a_second_opener_is_told(tmp_path):
    """A state directory that is in use is refused with a message that says so."""
    log = Log(tmp_path / "log.db")
    with pytest.raises(StateError) as e:
        Log(tmp_path / "log.db")
    assert str(e.value) == f"{tmp_path}: another process uses this state directory; stop it or choose another `state`"
    log.close()
    Log(tmp_path / "log.db").close()


def test_another_file_is_refused(tmp_path):
    """A file that is no database is named and left alone."""
    path = tmp_path / "log.db"
    path.write_bytes(b"something else entirely " * 100)
    with pytest.raises(StateError) as e:
        Log(path)
    said = f"{path}: not a log of Scorewatch (file is not a database); move it away or choose another `state`"
    assert (str(e.value), path.read_bytes()) == (said, b"something else entirely " * 100)


def test_synchronous(tmp_path):
    """A durable log waits for the disk at each commit, one to be thrown away never does."""
    for durable, level in ((True, 2), (False, 0)):
        log = Log(tmp_path / f"{durable}.db", durable)
        assert log.db.execute("pragma synchronous").fetchone() == (level,)
        assert log.db.execute("pragma journal_mode").fetchone() == ("wal",)
        log.close()
    with pytest.raises(sqlite3.ProgrammingError):
        log.meta()
