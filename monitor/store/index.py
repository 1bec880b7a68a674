"""Where the row of an id is: one open-addressing hash index in memory, all operations on whole arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import Bools, U64x2

SLOT_BITS = 26
MAX_SLOTS = (1 << SLOT_BITS) - 2
_SLOT = np.uint32((1 << SLOT_BITS) - 1)

_PREPARE, _FULL = 0.5, 0.6
_MOVED, _TOUCHED = 4, 32
_AT_LEAST = 1 << 12
_SMALLEST = 12


class Index:
    """uint32 entries: 26 bits slot + 1 and 6 bits fingerprint, linear probing, 0 is empty.

    A match of fingerprints is only a candidate; `rows(slots)`, the stored rows, and `live(slots)`, whether these slots
    hold rows that count, decide. So entries of rows that left are harmless; they are left behind when a table that is
    60 % full is replaced.

    No call waits for that: the next table's memory is taken bit by bit beforehand, since the first touch of a page costs
    more than all else; then new rows go there, each bringing at most 4 entries of the old table along (at least 4,096 a
    call), and lookups ask both tables until the old one is moved.
    """

    def __init__(
        self,
        expected: int,
        rows: Callable[[NDArray[np.uint32]], NDArray[Any]],
        live: Callable[[NDArray[np.uint32]], Bools],
    ) -> None:
        self._rows, self._live = rows, live
        self.used = 0
        self.entries = np.zeros(_size(expected / _PREPARE), np.uint32)
        self._next: NDArray[np.uint32] | None = None
        self._touched = 0
        self._old: NDArray[np.uint32] | None = None
        self._moved = 0

    def find(self, key: U64x2) -> NDArray[np.int64]:
        """Return the slot of each key, shape (n,), or -1."""
        found = np.full(len(key), -1, np.int64)
        self._find(self.entries, key, np.arange(len(key)), found)
        if self._old is not None:
            self._find(self._old, key, np.flatnonzero(found < 0), found)
        return found

    def _find(self, entries: NDArray[np.uint32], key: U64x2, query: NDArray[np.int64], found: NDArray[np.int64]) -> None:
        h1 = key[query, 0]
        place, mark = _place(entries, h1), _mark(h1)
        mask = len(entries) - 1
        while len(query):
            entry = entries.take(place)
            going = entry != 0
            candidate = np.flatnonzero(going & ((entry ^ mark) <= _SLOT))
            if len(candidate):
                slots = (entry[candidate] & _SLOT) - np.uint32(1)
                asked = query[candidate]
                rows = self._rows(slots)
                same = (rows["h1"] == key[asked, 0]) & (rows["h2"] == key[asked, 1]) & self._live(slots)
                found[asked[same]] = slots[same]
                going[candidate[same]] = False
            rest = np.flatnonzero(going)
            query, mark = query[rest], mark[rest]
            place = (place[rest] + 1) & mask

    def insert(self, h1: NDArray[np.uint64], slots: NDArray[np.int64], waiting: int) -> None:
        """Add rows whose keys are distinct and not in the index yet; `waiting` is how many rows count before them."""
        n = len(h1)
        self._prepare(n, waiting)
        if self._old is not None:
            self._move(max(_AT_LEAST, _MOVED * n))
        if self._next is not None and self.used + n > _FULL * len(self.entries):
            if self._old is not None:
                self._move(len(self._old))
            need = (waiting + n + len(self.entries) / _MOVED) / _FULL
            # More at once than was prepared for: they wait for a larger table rather than for a free entry that never comes.
            fresh = self._next if len(self._next) >= need else np.zeros(_size(need), np.uint32)
            self._old, self.entries, self._next = self.entries, fresh, None
            self.used = self._moved = 0
            self._move(max(_AT_LEAST, _MOVED * n))
        self._add(h1, slots)

    def _add(self, h1: NDArray[np.uint64], slots: NDArray[Any]) -> None:
        entries = self.entries
        place = _place(entries, h1)
        value = (slots + 1).astype(np.uint32) | _mark(h1)
        mask = len(entries) - 1
        self.used += len(value)
        while len(value):
            free = np.flatnonzero(entries.take(place) == 0)
            entries[place[free]] = value[free]
            # Of several rows that chose the same free entry the last one won; the others go on.
            rest = np.flatnonzero(entries.take(place) != value)
            place = (place[rest] + 1) & mask
            value = value[rest]

    def _prepare(self, n: int, waiting: int) -> None:
        """Take memory for the next table, large enough for the rows that will come before all of the old one is moved."""
        size = len(self.entries)
        if self._next is None and self.used + n > _PREPARE * size:
            coming = size * (_FULL - _PREPARE) + size / _MOVED
            self._next = np.zeros(_size((waiting + n + coming) / _FULL), np.uint32)
            self._touched = 0
        if self._next is not None:
            end = self._touched + max(_AT_LEAST, _TOUCHED * n)
            self._next[self._touched : end : 1024] = 0
            self._touched = end

    def _move(self, entries: int) -> None:
        """Take so many entries of the old table along, those of rows that count."""
        assert self._old is not None
        entry = self._old[self._moved : self._moved + entries]
        entry = entry[entry != 0]
        slots = (entry & _SLOT) - np.uint32(1)
        h1 = self._rows(slots)["h1"]
        # A slot may hold another row by now, which has an entry of its own.
        same = ((entry ^ _mark(h1)) <= _SLOT) & self._live(slots)
        self._add(h1[same], slots[same])
        self._moved += entries
        if self._moved >= len(self._old):
            self._old = None


def _size(entries: float) -> int:
    """Return the size of a table for so many entries, a power of two; beyond twice the slots there are none to come."""
    return 1 << min(max(int(np.ceil(np.log2(max(entries, 1)))), _SMALLEST), SLOT_BITS + 1)


def _mark(h1: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return (h1 & np.uint64(63)).astype(np.uint32) << np.uint32(SLOT_BITS)


def _place(entries: NDArray[np.uint32], h1: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return where in a table to begin: at the highest bits of the hash."""
    return (h1 >> np.uint64(65 - len(entries).bit_length())).astype(np.int64)
