"""rows.bin and labels.bin: fixed records in blocks that are used again when their rows have left, mapped for reading."""

import mmap
import os
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import Ints
from monitor.core.tables import LABEL, ROW
from monitor.store.files import flush_folder
from monitor.store.index import MAX_SLOTS

BLOCK = 1 << 16
"""Rows of a block, in states that are new."""

_FEWEST = 256
"""Places are mapped for so many blocks at least, 16 M rows: mapping anew makes each page that is used fault once more."""
_FLUSHED_AT_ONCE = 1 << 18
_NOWHERE = np.iinfo(np.int64).min // 2

UNLABELLED = np.zeros(1, LABEL)
UNLABELLED["outcome"] = -1


class Ring:
    """Row r is in the logical block r // size, which may be in any physical block of the files; a slot is a place there.

    `blocks`, {physical: logical}, are those in use as the log has them; logical blocks follow each other without a gap.
    `rows` (ROW) and `labels` (LABEL) are the mapped files. Slots of no block in use may be read, they hold anything.
    """

    def __init__(self, folder: Path, size: int, blocks: Mapping[int, int], durable: bool = True) -> None:
        self.size, self.durable = size, durable
        order = sorted(blocks, key=lambda physical: blocks[physical])
        self._first = blocks[order[0]] if order else 0
        self._physical = np.array(order, np.int64)
        self._fds: list[int] = []
        try:
            for path in (folder / "rows.bin", folder / "labels.bin"):
                self._fds.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o640))
            self._cut(max(order, default=-1) + 1)
            self._map(max(order, default=0) + 1)
            for physical in order:
                self._allocate(physical)
            if durable:
                flush_folder(folder)
        except BaseException:
            self.close()
            raise

    def _cut(self, blocks: int) -> None:
        """Give the disk of all but the first so many blocks back, that of one for which there was not enough, too."""
        for fd, dtype in zip(self._fds, (ROW, LABEL), strict=True):
            length = blocks * self.size * dtype.itemsize
            if os.fstat(fd).st_size > length:
                os.ftruncate(fd, length)

    def _map(self, blocks: int) -> None:
        """Map the files with places for so many blocks and more; the rest of them takes no disk yet."""
        blocks = min(max(_FEWEST, 1 << (blocks - 1).bit_length()), MAX_SLOTS // self.size)
        for fd, dtype in zip(self._fds, (ROW, LABEL), strict=True):
            length = blocks * self.size * dtype.itemsize
            if os.fstat(fd).st_size < length:
                os.ftruncate(fd, length)
        rows, labels = self._fds
        slots = blocks * self.size
        self.rows: NDArray[Any] = np.frombuffer(mmap.mmap(rows, slots * ROW.itemsize, prot=mmap.PROT_READ), ROW)
        self._labels_map = mmap.mmap(labels, slots * LABEL.itemsize)
        self.labels: NDArray[Any] = np.frombuffer(self._labels_map, LABEL)
        # What to add to a slot to get the number of its row.
        self._ahead = np.full(blocks, _NOWHERE)
        self._ahead[self._physical] = (self._first + np.arange(len(self._physical)) - self._physical) * self.size

    def _allocate(self, physical: int) -> None:
        # The disk is taken now: writing to a mapped page that has none would kill the process with SIGBUS.
        for fd, dtype in zip(self._fds, (ROW, LABEL), strict=True):
            length = self.size * dtype.itemsize
            os.posix_fallocate(fd, physical * length, length)

    def reserve(self, first: int, last: int) -> dict[int, int]:
        """Give places to the blocks of rows first to last - 1 that have none, and return these as {physical: logical}.

        They are the rows' once the log says so, in the transaction by which the rows exist.
        """
        start = self._first + len(self._physical) if len(self._physical) else first // self.size
        logical = range(start, -(-last // self.size))
        if not logical:
            return {}
        used = set(self._physical.tolist())
        new = list(islice((physical for physical in count() if physical not in used), len(logical)))
        self._first = start - len(self._physical)
        self._physical = np.append(self._physical, new)
        if new[-1] >= len(self._ahead):
            self._map(new[-1] + 1)
        self._ahead[new] = (np.array(logical) - new) * self.size
        for physical in new:
            self._allocate(physical)
        return dict(zip(new, logical, strict=True))

    def free(self, head: int) -> None:
        """Let the places of the blocks before row `head` be used again; after the log let them go."""
        n = min(max(head // self.size - self._first, 0), len(self._physical))
        self._ahead[self._physical[:n]] = _NOWHERE
        self._physical, self._first = self._physical[n:], self._first + n

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows as numbers first, first + 1, ... and flush them to the disk; they exist once the log says so."""
        for number, part in self.pieces(first, first + len(rows)):
            view = memoryview(rows[number - first :][: part.stop - part.start].tobytes())
            offset = part.start * ROW.itemsize
            while view:
                written = os.pwrite(self._fds[0], view, offset)
                view, offset = view[written:], offset + written
            self.labels[part] = UNLABELLED
        if self.durable:
            os.fdatasync(self._fds[0])

    def unlabel(self, first: int, last: int) -> None:
        """Forget the labels of rows first to last - 1: they may stand in the file from earlier rows of the block."""
        for _, part in self.pieces(first, last):
            self.labels[part] = UNLABELLED

    def slots(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the slots of the rows first to last - 1."""
        return self.slots_of(np.arange(first, last, dtype=np.int64))

    def slots_of(self, numbers: Ints) -> NDArray[np.int64]:
        """Return the slot of each row; all must be in blocks in use."""
        logical = numbers // self.size
        found: NDArray[np.int64] = numbers + (self._physical[logical - self._first] - logical) * self.size
        return found

    def numbers(self, slots: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of the row of each slot, negative where the block is not in use."""
        slots = slots.astype(np.int64)
        found: NDArray[np.int64] = slots + self._ahead[slots // self.size]
        return found

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, slice]]:
        """Yield (first row number, slice of slots) pieces of at most a block that cover rows first to last - 1."""
        while first < last:
            logical, at = divmod(first, self.size)
            n = min(last - first, self.size - at)
            start = int(self._physical[logical - self._first]) * self.size + at
            yield first, slice(start, start + n)
            first += n

    def flush_labels(self) -> Iterator[None]:
        """Bring the labels that are there now to the disk, a part of them at each step."""
        end = (int(self._physical.max(initial=-1)) + 1) * self.size * LABEL.itemsize
        for start in range(0, end if self.durable else 0, step := _FLUSHED_AT_ONCE * LABEL.itemsize):
            self._labels_map.flush(start, min(step, len(self._labels_map) - start))
            yield

    def close(self) -> None:
        """Close the files, once; the maps go with their last array."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
