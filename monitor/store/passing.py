"""passing.bin: a short ring of the predictions that do not wait for a label, until they are counted and a while longer."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import Bools, Ints, U64x2
from monitor.core.tables import ROW
from monitor.store.files import flush_folder
from monitor.store.index import Index

CAPACITY = 1 << 18
"""So many of the newest rows are known by their ids, and so many may wait to be counted."""


class Passing:
    """Rows `counted` to `tail` - 1 are not in any stored table yet; older ones are kept to know a repeated id by.

    The log says how far `tail` and `counted` are; `seen` is how far tables in memory go. The file appears with the first row.
    It has twice the slots: what a write that is not committed yet puts there must not take the place of a row that is known,
    or after a crash in between it would be taken for that row and not be counted when it is sent again.
    """

    def __init__(self, folder: Path, counted: int, tail: int, durable: bool = True) -> None:
        self.path, self.durable = folder / "passing.bin", durable
        self.slots = self.file_size() // ROW.itemsize
        self.counted = self.seen = counted
        self.tail = tail
        self._fd = -1
        self.rows: NDArray[Any] = np.empty(0, ROW)
        self.index = self._empty_index()
        if tail:
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    @staticmethod
    def file_size() -> int:
        """Return how many bytes the file has once it is there."""
        return 2 * CAPACITY * ROW.itemsize

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o640)
        # Blocks are taken now: reading a mapped page that a full disk does not have would kill the process with SIGBUS.
        try:
            os.posix_fallocate(self._fd, 0, self.file_size())
        except OSError:
            if not self.tail:  # what there was of it is given back, or the log would have no room either
                os.ftruncate(self._fd, 0)
            raise
        if self.durable:
            os.fsync(self._fd)
            flush_folder(self.path.parent)
        self.rows = np.memmap(self.path, ROW, "r", shape=(self.slots,)).view(np.ndarray)
        self.index = self._empty_index()
        self._add(max(0, self.tail - CAPACITY), self.tail)

    def _empty_index(self) -> Index:
        rows = min(self.tail, CAPACITY)
        return Index(rows, lambda slots: self.rows[slots], self._live)

    def _live(self, slots: NDArray[np.uint32]) -> Bools:
        """Return which slots hold one of the newest CAPACITY rows."""
        live: Bools = (self.tail - 1 - slots.astype(np.int64)) % self.slots < CAPACITY
        return live

    def _add(self, first: int, last: int) -> None:
        """Put rows first to last - 1 into the index."""
        for number, slots in self._pieces(first, last):
            at = np.arange(slots.start, slots.stop, dtype=np.int64)
            waiting = min(number, CAPACITY)
            self.index.insert(np.ascontiguousarray(self.rows["h1"][slots]), at, waiting)

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, slice]]:
        while first < last:
            at = first % self.slots
            n = min(last - first, self.slots - at)
            yield first, slice(at, at + n)
            first += n

    @property
    def room(self) -> int:
        """Return how many rows may come before those that are there have to be counted."""
        return CAPACITY - (self.tail - self.counted)

    def write(self, rows: NDArray[Any]) -> None:
        """Write rows after the tail and flush them to the disk; they exist once the log says so. At most `room` rows."""
        assert len(rows) <= self.room
        if self._fd < 0:
            self._open()
        for number, slots in self._pieces(self.tail, self.tail + len(rows)):
            view = memoryview(rows[number - self.tail : number - self.tail + slots.stop - slots.start].tobytes())
            offset = slots.start * ROW.itemsize
            while view:
                written = os.pwrite(self._fd, view, offset)
                view, offset = view[written:], offset + written
        if self.durable:
            os.fdatasync(self._fd)

    def advance(self, n: int) -> None:
        """Take in n rows that were written and committed."""
        first, self.tail = self.tail, self.tail + n
        self._add(first, self.tail)

    def find(self, keys: U64x2) -> Ints:
        """Return the slot of each key among the rows that are there, or -1."""
        return self.index.find(keys)

    def has(self, keys: U64x2) -> Bools:
        """Return which keys are among the rows that are there."""
        there: Bools = self.find(keys) >= 0
        return there

    def since(self, first: int) -> Iterator[NDArray[Any]]:
        """Yield the rows from number `first` to the tail in pieces."""
        for _, slots in self._pieces(first, self.tail):
            yield self.rows[slots]

    def close(self) -> None:
        """Close the file, once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
