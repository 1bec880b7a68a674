"""Labels that came before their prediction: held, at most so many, until no prediction of theirs could be taken any more."""

import sqlite3
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import Bools, Ints, U64x2
from monitor.core.tables import LABEL
from monitor.store.index import Index

CAPACITY = 1 << 18
"""So many labels are held; past that the oldest ones go."""

EARLY = np.dtype([("h1", "<u8"), ("h2", "<u8"), ("ts", "<i8"), ("until", "<i8"), ("label", LABEL), ("used", "?")])
"""A held label: hash of model and id (XOR the mask of the version that it names), its time, until when it is held, and
whether a prediction of it came already; others of the same id may follow. `label.delta` means nothing here."""


class Early:
    """The held labels in memory and in the table `early`; one per key, of several the one that wins.

    Slots are given in turn, so the oldest label makes room for the newest. Methods that take a connection write to it and
    change nothing in memory; `settle` and `drop` do that after the commit.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.held = np.zeros(64, EARLY)
        self.index = self._empty_index()
        self.live = np.zeros(len(self.held), bool)
        self.next = 0
        stored = db.execute("select h1, h2, ts, until, outcome, revision, label_prob, used from early order by rowid").fetchall()
        if stored:
            self.settle(_records(stored))

    def _empty_index(self) -> Index:
        return Index(len(self.held), lambda slots: self.held[slots], lambda slots: self.live[slots])

    def __len__(self) -> int:
        return int(self.live.sum())

    @property
    def waiting(self) -> int:
        """Return how many of the held labels no prediction took yet."""
        return int((self.live & ~self.held["used"]).sum())

    def find(self, keys: U64x2) -> Ints:
        """Return the slot of each key, or -1."""
        return self.index.find(keys)

    def hold(self, db: sqlite3.Connection, new: NDArray[Any]) -> NDArray[Any]:
        """Write the labels (EARLY, distinct keys) and delete those that have to make room; return the latter."""
        slots = self.find(np.stack((new["h1"], new["h2"]), axis=1))
        fresh = int((slots < 0).sum())
        victims = self._oldest(len(self) + fresh - CAPACITY)
        _delete(db, victims)
        db.executemany("insert or replace into early values (?, ?, ?, ?, ?, ?, ?, ?)", map(_values, new))
        return victims

    def use(self, db: sqlite3.Connection, slots: Ints) -> None:
        """Write that predictions of these labels came."""
        db.executemany("update early set used = 1 where h1 = ? and h2 = ?", _keys(self.held[slots]))

    def expired(self, db: sqlite3.Connection, now: int) -> NDArray[Any]:
        """Delete the labels whose time is over and return them."""
        gone = self.held[self.live & (self.held["until"] <= now)]
        _delete(db, gone)
        return gone

    def settle(self, new: NDArray[Any]) -> None:
        """Keep the labels that were written; a key that is held gets the new label."""
        slots = self.find(np.stack((new["h1"], new["h2"]), axis=1))
        self.held[slots[slots >= 0]] = new[slots >= 0]
        new = new[slots < 0]
        if not len(new):
            return
        if len(self) + len(new) > len(self.held) // 2:
            self._rebuild(len(new))
        free = np.flatnonzero(~np.roll(self.live, -self.next))[: len(new)]
        at = (free + self.next) % len(self.held)
        self.next = int(at[-1] + 1) % len(self.held)
        self.held[at], self.live[at] = new, True
        self.index.insert(np.ascontiguousarray(new["h1"]), at, len(self) - len(new))

    def drop(self, gone: NDArray[Any]) -> None:
        """Forget labels that were deleted."""
        slots = self.find(np.stack((gone["h1"], gone["h2"]), axis=1))
        self.live[slots[slots >= 0]] = False

    def by_key(self) -> NDArray[Any]:
        """Return the held labels (EARLY) in the order of their hashes."""
        held = self.held[self.live]
        return held[np.lexsort((held["h2"], held["h1"]))]

    def _in_order(self) -> Ints:
        """Return the slots of the held labels, oldest first."""
        return np.concatenate((np.flatnonzero(self.live[self.next :]) + self.next, np.flatnonzero(self.live[: self.next])))

    def _oldest(self, n: int) -> NDArray[Any]:
        return self.held[self._in_order()[:n]] if n > 0 else self.held[:0]

    def _rebuild(self, more: int) -> None:
        kept = self.held[self._in_order()]
        size = 1 << (2 * (len(kept) + more)).bit_length()
        self.held, self.live = np.zeros(size, EARLY), np.zeros(size, bool)
        self.held[: len(kept)], self.live[: len(kept)] = kept, True
        self.next = len(kept)
        self.index = self._empty_index()
        self.index.insert(np.ascontiguousarray(kept["h1"]), np.arange(len(kept)), 0)


def _values(record: Any) -> tuple[int, ...]:
    h1, h2, ts, until, (outcome, revision, label_prob, _), used = record.tolist()
    return *(_signed(h) for h in (h1, h2)), ts, until, outcome, revision, label_prob, int(used)


def _signed(h: int) -> int:
    """Return the number that SQLite can store."""
    return h - (1 << 64) if h >> 63 else h


def _keys(records: NDArray[Any]) -> list[tuple[int, int]]:
    return [(_signed(a), _signed(b)) for a, b in zip(records["h1"].tolist(), records["h2"].tolist(), strict=True)]


def _delete(db: sqlite3.Connection, records: NDArray[Any]) -> None:
    db.executemany("delete from early where h1 = ? and h2 = ?", _keys(records))


def _records(stored: Iterable[tuple[int, ...]]) -> NDArray[Any]:
    mask = (1 << 64) - 1
    return np.array([(a & mask, b & mask, ts, until, (o, r, q, 0), bool(u)) for a, b, ts, until, o, r, q, u in stored], EARLY)


def better(old: NDArray[Any], new: NDArray[Any]) -> Bools:
    """Return which of the new labels (EARLY) win over the old ones: the higher revision, else the newer time, else the later."""
    a, b = old["label"]["revision"], new["label"]["revision"]
    won: Bools = (b > a) | ((b == a) & (new["ts"] >= old["ts"]))
    return won
