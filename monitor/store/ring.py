"""rows.bin and labels.bin: fixed records in a ring addressed by row number, mapped for reading."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.tables import LABEL, ROW

UNLABELLED = np.zeros(1, LABEL)
UNLABELLED["outcome"] = -1


def _open(path: Path, dtype: np.dtype[Any], capacity: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        # Blocks are taken now: writing to a mapped page of a full disk would kill the process with SIGBUS.
        os.posix_fallocate(fd, 0, capacity * dtype.itemsize)
    except OSError:
        os.close(fd)
        raise
    return fd


def _flush_folder(folder: Path) -> None:
    """Bring the names of new files to the disk, before a commit speaks of them."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Ring:
    """Row r is at slot r % capacity. The files of each capacity have their own generation number in their names."""

    def __init__(self, folder: Path, generation: int, capacity: int, durable: bool = True) -> None:
        self.durable = durable
        self.folder, self.generation, self.capacity = folder, generation, capacity
        self.paths = (folder / f"rows.{generation}.bin", folder / f"labels.{generation}.bin")
        self._rows_fd = _open(self.paths[0], ROW, capacity)
        try:
            labels_fd = _open(self.paths[1], LABEL, capacity)
            os.close(labels_fd)
            self._rows_map = np.memmap(self.paths[0], ROW, "r", shape=(capacity,))
            self._labels_map = np.memmap(self.paths[1], LABEL, "r+", shape=(capacity,))
            if durable:
                _flush_folder(folder)
        except BaseException:
            self.close()
            raise
        self.rows: NDArray[Any] = self._rows_map.view(np.ndarray)
        self.labels: NDArray[Any] = self._labels_map.view(np.ndarray)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows as numbers first, first + 1, ... and flush them to the disk; they exist once the log says so."""
        at = first % self.capacity
        head = min(len(rows), self.capacity - at)
        for part, slot in ((rows[:head], at), (rows[head:], 0)):
            view = memoryview(part.tobytes())
            offset = slot * ROW.itemsize
            while view:
                written = os.pwrite(self._rows_fd, view, offset)
                view, offset = view[written:], offset + written
            self.labels[slot : slot + len(part)] = UNLABELLED
        if self.durable:
            os.fdatasync(self._rows_fd)

    def unlabel(self, first: int, last: int) -> None:
        """Forget the labels of rows first to last - 1: they may stand in the file from an earlier round of the ring."""
        self.labels[self.slots(first, last)] = UNLABELLED

    def slots(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the slots of the rows first to last - 1."""
        numbers = np.arange(first, last, dtype=np.int64)
        numbers %= self.capacity
        return numbers

    def pieces(self, first: int, last: int, size: int = 1 << 17) -> list[tuple[int, slice]]:
        """Return (first row number, slice of slots) pieces of at most `size` rows that cover rows first to last - 1."""
        out = []
        while first < last:
            at = first % self.capacity
            n = min(size, last - first, self.capacity - at)
            out.append((first, slice(at, at + n)))
            first += n
        return out

    def flush_labels(self) -> None:
        """Bring the labels to the disk."""
        if self.durable:
            self._labels_map.flush()

    def grown(self, first: int, last: int, capacity: int) -> "Ring":
        """Return a larger ring on new files that holds rows first to last - 1 and their labels, all on disk."""
        bigger = Ring(self.folder, self.generation + 1, capacity, self.durable)
        try:
            for number, part in self.pieces(first, last):
                rows, labels = self.rows[part], self.labels[part]
                bigger.write(number, rows)
                bigger.labels[bigger.slots(number, number + len(rows))] = labels
            bigger.flush_labels()
        except BaseException:
            bigger.remove()
            raise
        return bigger

    def close(self) -> None:
        """Close the files, once; the maps go with their last array."""
        fd, self._rows_fd = self._rows_fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Close and delete the files."""
        self.close()
        for path in self.paths:
            path.unlink(missing_ok=True)
