"""log.db: the transaction log in SQLite. What it says, is; bytes in other files count only when a commit here says so."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from monitor.core.events import VERDICTS, Entry
from monitor.core.tables import CELL, CLASS_SHAPES, FEATURES, GROUPS, TOTALS, WEIGHT, Table


class StateError(Exception):
    """The state directory cannot be used; the message says why and what to do."""


_SCHEMA = """
create table if not exists meta (k text primary key, v) without rowid;
create table if not exists source (name text primary key, position text not null) without rowid;
create table if not exists blocks (physical integer primary key, logical integer not null);
create table if not exists hits (seq integer primary key, data blob not null);
create table if not exists codes (kind text, code integer, name text not null, primary key (kind, code)) without rowid;
create table if not exists days (version integer, day integer, n integer, labelled integer, tables blob not null,
                                 primary key (version, day)) without rowid;
create table if not exists recount (version integer, day integer, primary key (version, day)) without rowid;
create table if not exists early (h1 integer, h2 integer, ts integer, until integer, outcome integer, revision integer,
                                  label_prob integer, used integer, primary key (h1, h2));
create table if not exists picks (h1 integer, h2 integer, model text, version text, id text, ts integer, score real,
                                  label_prob real, until integer, primary key (h1, h2));
create table if not exists passed (version integer, kind text, at integer, tables blob not null,
                                   primary key (version, kind, at)) without rowid;
create table if not exists journal (seq integer primary key, at integer, who text, kind text, model text, version text,
                                    body text, previous text);
create table if not exists outbox (id text primary key, entry integer, action text, place integer, model text, version text,
                                   type text, body text, at integer, due integer, tries integer, dead integer, reason text,
                                   detail text);
"""


_HEAD = "journal_head"


class Log:
    """One connection, used by one thread at a time, opened exclusively; not `durable` is for states that are thrown away.

    `head` is the number and the hash of the newest journal entry, 0 and empty before the first.
    `follow` is called with entries that are appended to the journal, in the same transaction.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        synchronous = "full" if durable else "off"
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.5)
        try:
            for pragma in ("locking_mode=exclusive", "journal_mode=wal", f"synchronous={synchronous}", "wal_autocheckpoint=1000"):
                self.db.execute(f"pragma {pragma}").fetchone()
            self.db.executescript(_SCHEMA)
        except sqlite3.OperationalError as e:
            self.db.close()
            if "locked" in str(e):
                raise StateError(
                    f"{path.parent}: another process uses this state directory; stop it or choose another `state`"
                ) from None
            raise StateError(f"{path}: {e}; make room there, make it writable, or choose another `state`") from None
        except sqlite3.DatabaseError as e:
            self.db.close()
            raise StateError(f"{path}: not a log of Scorewatch ({e}); move it away or choose another `state`") from None
        self.head = self.kept_head() or self._last()
        self.follow: Callable[[list[Entry]], None] = lambda entries: None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction: all of it is on the disk afterwards, or nothing."""
        head = self.head
        self.db.execute("begin immediate")
        try:
            yield self.db
            self.db.execute("commit")
        except BaseException:
            self.head = head
            if self.db.in_transaction:
                self.db.execute("rollback")
            raise

    def meta(self) -> dict[str, Any]:
        """Return every value of meta."""
        return dict(self.db.execute("select k, v from meta"))

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Set values of meta; inside a transaction."""
        self.db.executemany("insert into meta values (?, ?) on conflict (k) do update set v = excluded.v", values.items())

    def positions(self) -> dict[str, str]:
        """Return how far each source was read."""
        return dict(self.db.execute("select name, position from source"))

    def set_positions(self, positions: Mapping[str, str]) -> None:
        """Set positions of sources; inside a transaction."""
        self.db.executemany(
            "insert into source values (?, ?) on conflict (name) do update set position = excluded.position", positions.items()
        )

    def blocks(self) -> dict[int, int]:
        """Return {physical: logical} of the blocks of the ring in use."""
        return dict(self.db.execute("select physical, logical from blocks"))

    def add_blocks(self, blocks: Mapping[int, int]) -> None:
        """Note blocks that come into use; inside a transaction."""
        self.db.executemany("insert into blocks values (?, ?)", blocks.items())

    def remove_blocks(self, before: int) -> None:
        """Forget the logical blocks before this one; inside a transaction."""
        self.db.execute("delete from blocks where logical < ?", (before,))

    def hits_range(self) -> tuple[int, int]:
        """Return the numbers of the first and the last batch of label hits, 0 where there is none."""
        first, last = self.db.execute("select coalesce(min(seq), 0), coalesce(max(seq), 0) from hits").fetchone()
        return first, last

    def remove_hits(self, last: int) -> None:
        """Forget the label hits up to batch `last`; inside a transaction."""
        self.db.execute("delete from hits where seq <= ?", (last,))

    def codes(self, kind: str) -> list[Any]:
        """Return the code book: position is the code."""
        rows = self.db.execute("select code, name from codes where kind = ? order by code", (kind,)).fetchall()
        assert [code for code, _ in rows] == list(range(len(rows)))
        return [_tuples(json.loads(name)) for _, name in rows]

    def add_codes(self, kind: str, first: int, names: Iterable[Any]) -> None:
        """Append names to a code book; inside a transaction."""
        rows = [(kind, first + i, json.dumps(name)) for i, name in enumerate(names)]
        self.db.executemany("insert into codes values (?, ?, ?)", rows)

    def put_day(self, version: int, day: int, tables: Mapping[str, Table]) -> None:
        """Store the final tables of a day; inside a transaction."""
        packed = blob(tables)
        n, labelled = tables["all"].n, tables["all"].labelled
        self.db.execute("insert or replace into days values (?, ?, ?, ?, ?)", (version, day, n, labelled, packed))
        self.db.execute("delete from recount where version = ? and day = ?", (version, day))

    def day(self, version: int, day: int) -> dict[str, Table]:
        """Return the final tables of a day by slice; raise KeyError when it is not closed, StateError when they are damaged."""
        row = self.db.execute("select tables from days where version = ? and day = ?", (version, day)).fetchone()
        if row is None:
            raise KeyError((version, day))
        try:
            return unblob(row[0])
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError) as e:
            raise StateError(
                f"log.db: the tables of version {version}, day {day} are damaged ({e}); restore the state or use a new one"
            ) from None

    def put_passed(self, version: int, kind: str, at: int, tables: Mapping[str, Table]) -> None:
        """Store the tables of the rows of a day or an hour that did not wait; inside a transaction."""
        self.db.execute("insert or replace into passed values (?, ?, ?, ?)", (version, kind, at, blob(tables)))

    def passed(self) -> dict[tuple[int, str, int], dict[str, Table]]:
        """Return the tables of rows that did not wait by (version, day or hour, which)."""
        return {(v, kind, at): unblob(packed) for v, kind, at, packed in self.db.execute("select * from passed")}

    def closed(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return {(version, day): (rows, labelled)} of all closed days."""
        return {(v, d): (n, k) for v, d, n, k in self.db.execute("select version, day, n, labelled from days")}

    def recounts(self) -> set[tuple[int, int]]:
        """Return the closed days that have to be counted again."""
        return set(self.db.execute("select version, day from recount"))

    def kept_head(self) -> tuple[int, str] | None:
        """Return number and hash of the newest journal entry as they were when it was written, None where nobody kept them."""
        row = self.db.execute("select v from meta where k = ?", (_HEAD,)).fetchone()
        if row is None:
            return None
        seq, _, digest = str(row[0]).partition(":")
        return int(seq), digest

    def _last(self) -> tuple[int, str]:
        row = self.db.execute("select * from journal order by seq desc limit 1").fetchone()
        return (0, "") if row is None else (row[0], self._hash(*_entry(row)))

    @staticmethod
    def _hash(seq: int, at: int, who: str, kind: str, model: str, version: str, body: dict[str, Any], previous: str) -> str:
        text = json.dumps([seq, at, who, kind, model, version, body, previous], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def add_entries(self, at: int, who: str, entries: Iterable[tuple[str, str, str, dict[str, Any]]]) -> list[Entry]:
        """Append (kind, model, version, body) to the journal and return the entries; inside a transaction."""
        added = []
        for kind, model, version, body in entries:
            seq, previous = self.head
            entry = Entry(seq + 1, at, who, kind, model, version, body, previous)
            self.db.execute("insert into journal values (?, ?, ?, ?, ?, ?, ?, ?)", (*entry[:6], json.dumps(body), previous))
            self.head = entry.seq, self._hash(*entry)
            added.append(entry)
        if added:
            # No entry says what the newest one was; without this it could be changed or taken out and nobody would know.
            self.set_meta({_HEAD: "{}:{}".format(*self.head)})
        self.follow(added)
        return added

    def journal(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return [_entry(row) for row in self.db.execute("select * from journal order by seq")]

    def entries(self, kinds: Sequence[str], models: Sequence[str] | None, since: int, limit: int) -> list[Entry]:
        """Return the newest entries of some kinds, and of some models unless None, from number `since` on, newest first."""
        asked = [*kinds, *(models or ()), since, limit]
        where = f"kind in ({_marks(kinds)})" + ("" if models is None else f" and model in ({_marks(models)})")
        rows = self.db.execute(f"select * from journal where {where} and seq >= ? order by seq desc limit ?", asked)
        return [_entry(row) for row in rows]

    def broken_link(self, pinned: tuple[int, str] | None = None) -> str | None:
        """Return where the journal is not as it was written, None when it is.

        `pinned` is the number and the hash of an entry that somebody wrote down elsewhere: who can change the whole file can also
        make a chain of other entries that holds.
        """
        seq, previous, kept = 0, "", self.kept_head()
        wanted = dict([pinned] if pinned else [])
        for row in self.db.execute("select * from journal order by seq"):
            if row[7] != previous or row[0] != seq + 1:
                return f"entry {row[0]} does not follow from the one before"
            try:
                seq, previous = row[0], self._hash(*_entry(row))
            except ValueError:
                return f"entry {row[0]} is not as it was written: its body is no JSON"
            if wanted.get(seq, previous) != previous:
                return f"entry {seq} or one before it is not the one whose hash is {wanted[seq]}"
        if kept is not None and kept[0] > seq:
            return f"entry {seq + 1} was taken out: there were {kept[0]}"
        if kept is not None and kept != (seq, previous):
            return f"entry {seq} is not as it was written"
        if pinned is not None and pinned[0] > seq:
            return f"there is no entry {pinned[0]}, only {seq}"
        return None

    def problems(self) -> list[str]:
        """Return what SQLite finds wrong with the file."""
        said = [text for (text,) in self.db.execute("pragma integrity_check")]
        return [] if said == ["ok"] else said

    def close(self) -> None:
        """Close the database."""
        self.db.close()


def blob(tables: Mapping[str, Table]) -> bytes:
    """Return tables by name as bytes."""
    return msgspec.msgpack.encode({name: _packed(t) for name, t in tables.items()})


def unblob(packed: bytes) -> dict[str, Table]:
    """Return the tables that `blob` wrote."""
    return {name: _unpacked(parts) for name, parts in msgspec.msgpack.decode(packed).items()}


def _packed(t: Table) -> list[Any]:
    """Return the arrays of a table as bytes, those that it has not as None."""
    weights = None if t.weights is None else t.weights.tobytes()
    rest = (None if a is None else a.astype("<f8").tobytes() for a in (t.delays, t.groups, t.features))
    return [
        t.cells.tobytes(),
        t.totals.tobytes(),
        weights,
        *rest,
        None if t.classes is None else t.classes.astype("<u4").tobytes(),
    ]


def _unpacked(parts: list[Any]) -> Table:
    cells, totals, weights, delays, groups, features, counted = parts
    classes = None if counted is None else np.frombuffer(counted, "<u4").astype(np.int64)
    return Table(
        np.frombuffer(cells, CELL),
        np.frombuffer(totals, "<f8").reshape(3, len(TOTALS)),
        None if weights is None else np.frombuffer(weights, WEIGHT),
        None if delays is None else np.frombuffer(delays, "<f8").astype(np.int64).reshape(2, len(VERDICTS), -1),
        None if groups is None else np.frombuffer(groups, "<f8").reshape(GROUPS, 3, -1),
        None if features is None else np.frombuffer(features, "<f8").astype(np.int64).reshape(FEATURES, -1),
        None if classes is None else classes.reshape(next(s for s in CLASS_SHAPES if s[0] * s[1] == len(classes))),
    )


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _entry(row: Any) -> Entry:
    seq, at, who, kind, model, version, body, previous = row
    return Entry(seq, at, who, kind, model, version, json.loads(body), previous)


def _tuples(value: Any) -> Any:
    """Return JSON lists as tuples, which can be keys."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
