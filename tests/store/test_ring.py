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


def held(ring, first, last):
    """Return what rows first to last - 1 hold."""
    return [n for _, part in ring.pieces(first, last) for n in ring.rows[part]["ts"].tolist()]


def said(ring, first, last):
    """Return the outcomes of rows first to last - 1."""
    return ring.labels["outcome"][ring.slots(first, last)].tolist()


def put(ring, first, n):
    """Write n rows as first, first + 1, ... and return the blocks that were new."""
    new = ring.reserve(first, first + n)
    ring.write(first, some(first, n))
    return new


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Map 16 blocks at first, so that mapping anew is tested."""
    monkeypatch.setattr("monitor.store.ring._FEWEST", 16)


def open_files(folder):
    """Return which files below a folder this process has open."""
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return [to for link in links if os.path.islink(link) and (to := os.readlink(link)).startswith(str(folder))]


def test_rows_by_number(tmp_path):
    """Rows are read back by number from whatever blocks they are in, and slots tell the numbers."""
    ring = Ring(tmp_path, 4, {2: 5, 0: 6})
    assert put(ring, 21, 11) == {1: 7}
    assert held(ring, 21, 32) == list(range(21, 32))
    assert list(ring.pieces(22, 31)) == [(22, slice(10, 12)), (24, slice(0, 4)), (28, slice(4, 7))]
    assert ring.slots(22, 27).tolist() == [10, 11, 0, 1, 2]
    assert ring.slots_of(np.array([31, 23, 24])).tolist() == [7, 11, 0]
    assert ring.numbers(np.array([7, 11, 0], np.uint32)).tolist() == [31, 23, 24]
    assert (ring.numbers(np.arange(12, 64)) < 0).all()
    ring.close()


def test_blocks_are_used_again(tmp_path):
    """The first free place of the files is used, a block is free when all its rows left, and nothing of it shows again."""
    ring = Ring(tmp_path, 4, {})
    assert put(ring, 0, 9) == {0: 0, 1: 1, 2: 2}
    ring.labels["outcome"][ring.slots(0, 9)] = 1
    ring.free(7)
    assert (ring.numbers(np.arange(12)) < 0).tolist() == [True] * 4 + [False] * 8
    assert put(ring, 9, 6) == {0: 3}
    assert (held(ring, 7, 15), said(ring, 7, 15)) == (list(range(7, 15)), [1, 1] + [-1] * 6)
    assert ring.slots(11, 14).tolist() == [11, 0, 1]
    assert put(ring, 15, 1) == {}
    ring.free(16)
    assert put(ring, 16, 4) == {0: 4}
    assert (held(ring, 16, 20), said(ring, 16, 20)) == ([16, 17, 18, 19], [-1] * 4)
    ring.close()


def test_short_writes(tmp_path, monkeypatch):
    """A write that the kernel cuts short is continued."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: real(fd, view[:50], at))
    ring = Ring(tmp_path, 8, {})
    put(ring, 0, 15)
    assert held(ring, 0, 15) == list(range(15))
    ring.close()


def test_every_block_in_use_has_its_disk(tmp_path):
    """The files are longer than what they take on the disk, yet no record in use is without, also where a copy left it out."""
    size = 4096
    ring = Ring(tmp_path, size, {})
    for blocks in (1, 3, 17):
        ring.reserve(0, blocks * size)
        for name, record in (("rows.bin", ROW.itemsize), ("labels.bin", LABEL.itemsize)):
            stat = os.stat(tmp_path / name)
            assert stat.st_size > blocks * size * record
            assert blocks * size * record <= stat.st_blocks * 512 < stat.st_size
    ring.close()
    for name in ("rows.bin", "labels.bin"):
        length = os.stat(tmp_path / name).st_size
        os.truncate(tmp_path / name, 0)
        os.truncate(tmp_path / name, length)
    Ring(tmp_path, size, {0: 0, 1: 1}).close()
    assert os.stat(tmp_path / "labels.bin").st_blocks * 512 >= 2 * size * LABEL.itemsize


def test_longer_files(tmp_path):
    """Rows and labels stay where they are when the files become longer, and arrays from before still show them."""
    ring = Ring(tmp_path, 4, {})
    put(ring, 0, 60)
    ring.labels["outcome"][:60] = np.arange(60) % 2
    before = ring.rows, ring.labels
    put(ring, 60, 300)
    assert len(ring.rows) > len(before[0])
    ring.labels["outcome"][3] = 0
    assert (held(ring, 0, 360), said(ring, 0, 61)) == (list(range(360)), [0, 1, 0, 0, *[0, 1] * 28, -1])
    assert (before[0]["ts"][:60].tolist(), before[1]["outcome"][3]) == (list(range(60)), 0)
    ring.close()


def test_flushing_labels_by_parts(tmp_path):
    """Each step of a flush brings one part of the labels to the disk, the last one included."""
    ring = Ring(tmp_path, 1 << 16, {0: 0, 8: 1})
    assert len(list(ring.flush_labels())) == 3
    ring.close()
    assert list(Ring(tmp_path, 1 << 16, {0: 0, 8: 1}, durable=False).flush_labels()) == []


@pytest.mark.parametrize(("call", "after"), [("ftruncate", 0), ("ftruncate", 1), ("posix_fallocate", 0), ("posix_fallocate", 3)])
def test_a_reserve_without_room_changes_no_row(tmp_path, monkeypatch, call, after):
    """Where the disk is full, the rows that are there stay, and no file is left open."""
    (tmp_path / "other").mkdir()
    ring = Ring(tmp_path, 4, {})
    put(ring, 0, 60)
    real, left = getattr(os, call), [after]

    def full(*args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        ring.reserve(60, 90)
    assert held(ring, 0, 60) == list(range(60))
    with pytest.raises(OSError, match="No space left"):
        Ring(tmp_path / "other", 4, {0: 0, 1: 1})
    ring.close()
    del ring
    assert open_files(tmp_path) == []


def test_opening_gives_back_what_no_row_needs(tmp_path):
    """Of a block that the log does not have, nothing is left on the disk after the next opening."""
    size = 4096
    ring = Ring(tmp_path, size, {})
    put(ring, 0, 3 * size)
    ring.close()
    ring = Ring(tmp_path, size, {0: 0})
    for name, record in (("rows.bin", ROW.itemsize), ("labels.bin", LABEL.itemsize)):
        assert size * record <= os.stat(tmp_path / name).st_blocks * 512 < 2 * size * record
    assert held(ring, 0, size) == list(range(size))
    ring.close()


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_blocks(tmp_path, seed):
    """After many rounds, opened anew with blocks in any order, all rows between head and tail are there with their labels."""
    rng = np.random.default_rng(seed)
    ring, blocks, head, tail, labels, orders = Ring(tmp_path, 8, {}), {}, 0, 0, {}, set()
    for _ in range(150):
        n = int(rng.integers(0, 60))
        blocks |= put(ring, tail, n)
        labels |= dict.fromkeys(range(tail, tail + n), -1)
        tail += n
        for number in rng.integers(head, tail, 20).tolist() if tail > head else ():
            ring.labels["outcome"][ring.slots_of(np.array([number]))] = labels[number] = int(rng.integers(0, 2))
        head = int(rng.integers(max(head, tail - 200), tail + 1))
        ring.free(head)
        blocks = {p: k for p, k in blocks.items() if (k + 1) * 8 > head}
        if rng.random() < 0.2:
            ring.reserve(tail, tail + 30)  # of these the log never heard
            ring.close()
            ring = Ring(tmp_path, 8, dict(rng.permutation(list(blocks.items())).tolist()) if blocks else {})
            orders.add(tuple(sorted(blocks, key=blocks.get)))
        assert held(ring, head, tail) == list(range(head, tail))
        assert said(ring, head, tail) == [labels[number] for number in range(head, tail)]
        assert ring.numbers(ring.slots(head, tail)).tolist() == list(range(head, tail))
        assert len(set(ring.slots(head, tail).tolist())) == tail - head
    assert any(list(order) != sorted(order) for order in orders)
    assert max(blocks, default=0) <= (200 + 60) // 8 + 2
    ring.close()


def test_closing_twice_closes_once(tmp_path):
    """A second close does not close a file that got the same number since."""
    ring = Ring(tmp_path, 8, {})
    ring.close()
    with (tmp_path / "other").open("w") as other:
        ring.close()
        other.write("still open")
    assert (tmp_path / "other").read_text() == "still open"
