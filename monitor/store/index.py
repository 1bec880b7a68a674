"""Where the row of an id is: one open-addressing hash index in memory, all operations on whole arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import U64x2

SLOT_BITS = 26
MAX_SLOTS = (1 << SLOT_BITS) - 2
_SLOT = np.uint32((1 << SLOT_BITS) - 1)


class Index:
    """uint32 entries: 26 bits slot + 1 and 6 bits fingerprint, linear probing, 0 is empty.

    A match of fingerprints is only a candidate; the caller's `keys` and `live` decide, so entries of rows that left are
    harmless. They are swept by building the index anew.
    """

    def __init__(self, rows: int) -> None:
        self.bits = max(12, int(np.ceil(np.log2(max(rows, 1) * 2))))
        self.entries = np.zeros(1 << self.bits, np.uint32)
        self.used = 0

    def _place(self, h1: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        place = (h1 >> np.uint64(64 - self.bits)).astype(np.int64)
        return place, ((h1 & np.uint64(63)).astype(np.uint32) << np.uint32(SLOT_BITS))

    def find(
        self,
        key: U64x2,
        keys: Callable[[NDArray[np.uint32]], NDArray[Any]],
        live: Callable[[NDArray[np.uint32]], NDArray[np.bool_]],
    ) -> NDArray[np.int64]:
        """Return the slot of each key, shape (n,), or -1. `keys(slots)` are stored rows, `live(slots)` whether they count."""
        found = np.full(len(key), -1, np.int64)
        query = np.arange(len(key))
        h1 = np.ascontiguousarray(key[:, 0])
        place, mark = self._place(h1)
        mask = len(self.entries) - 1
        while len(query):
            entry = self.entries.take(place)
            going = entry != 0
            candidate = np.flatnonzero(going & ((entry ^ mark) <= _SLOT))
            if len(candidate):
                slots = (entry[candidate] & _SLOT) - np.uint32(1)
                asked = query[candidate]
                rows = keys(slots)
                same = (rows["h1"] == h1[asked]) & (rows["h2"] == key[asked, 1]) & live(slots)
                found[asked[same]] = slots[same]
                going[candidate[same]] = False
            rest = np.flatnonzero(going)
            query, mark = query[rest], mark[rest]
            place = (place[rest] + 1) & mask
        return found

    def insert(self, h1: NDArray[np.uint64], slots: NDArray[np.int64]) -> None:
        """Add rows whose keys are distinct and not in the index yet."""
        place, mark = self._place(h1)
        value = (slots + 1).astype(np.uint32) | mark
        mask = len(self.entries) - 1
        self.used += len(value)
        while len(value):
            free = np.flatnonzero(self.entries.take(place) == 0)
            self.entries[place[free]] = value[free]
            # Of several rows that chose the same free entry the last one won; the others go on.
            rest = np.flatnonzero(self.entries.take(place) != value)
            place = (place[rest] + 1) & mask
            value = value[rest]
