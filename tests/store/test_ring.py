"""The ring of rows and labels on real files."""

import errno
import os

import numpy as np
import pytest

from monitor.core.tables import LABEL, ROW
from monitor.store.ring import Ring


def some(first, n):
    """Return n rows that hold their numbers."""
    rows = np.zeros(n, ROW)
    rows["ts"] = np.arange(first, first + n)
    return rows


def numbers(ring, first, last):
    """Return what rows first to last - 1 hold."""
    return [n for _, part in ring.pieces(first, last, size=3) for n in ring.rows[part]["ts"].tolist()]


def open_files():
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_wrap(tmp_path):
    """Rows written past the end go on at the start, unlabelled, and are read back in order."""
    ring = Ring(tmp_path, 0, 8)
    ring.write(0, some(0, 6))
    ring.labels["outcome"] = 1
    ring.write(6, some(6, 5))
    assert numbers(ring, 3, 11) == list(range(3, 11))
    assert ring.labels["outcome"].tolist() == [-1, -1, -1, 1, 1, 1, -1, -1]
    assert ring.slots(6, 11).tolist() == [6, 7, 0, 1, 2]
    assert ring.pieces(6, 11) == [(6, slice(6, 8)), (8, slice(0, 3))]
    ring.close()


def test_short_writes(tmp_path, monkeypatch):
    """A write that the kernel cuts short is continued."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: real(fd, view[:50], at))
    ring = Ring(tmp_path, 0, 8)
    ring.write(5, some(5, 7))
    assert numbers(ring, 5, 12) == list(range(5, 12))
    ring.close()


def test_grown(tmp_path):
    """A larger ring holds the same rows under the same numbers with their labels, and its files are there after reopening."""
    ring = Ring(tmp_path, 0, 8)
    ring.write(5, some(5, 8))
    ring.labels["outcome"][ring.slots(5, 13)] = np.arange(8) % 2
    bigger = ring.grown(6, 13, 32)
    ring.remove()
    bigger.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.1.bin", "rows.1.bin"]
    bigger = Ring(tmp_path, 1, 32)
    assert numbers(bigger, 6, 13) == list(range(6, 13))
    assert bigger.labels["outcome"][bigger.slots(6, 13)].tolist() == [1, 0, 1, 0, 1, 0, 1]
    bigger.unlabel(7, 9)
    expected = np.zeros(7, LABEL)
    expected["outcome"] = [1, -1, -1, 0, 1, 0, 1]
    np.testing.assert_array_equal(bigger.labels[bigger.slots(6, 13)], expected)
    bigger.close()


@pytest.mark.parametrize(("call", "after"), [("posix_fallocate", 0), ("posix_fallocate", 1), ("pwrite", 0), ("fdatasync", 0)])
def test_a_growth_without_room_leaves_nothing(tmp_path, monkeypatch, call, after):
    """A growth that fails for a full disk keeps no file open and the old ring as it was."""
    ring = Ring(tmp_path, 0, 8)
    ring.write(0, some(0, 8))
    before = open_files()
    real, left = getattr(os, call), [after]

    def full(*args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        ring.grown(0, 8, 32)
    assert open_files() == before
    assert numbers(ring, 0, 8) == list(range(8))
    ring.close()


def test_closing_twice_closes_once(tmp_path):
    """A second close does not close a file that got the same number since."""
    ring = Ring(tmp_path, 0, 8)
    ring.close()
    with (tmp_path / "other").open("w") as other:
        ring.close()
        other.write("still open")
    assert (tmp_path / "other").read_text() == "still open"
