"""The hash index against a dict."""

import numpy as np
import pytest

from monitor.core.tables import ROW
from monitor.store.index import Index


def keys(n, seed=0):
    """Return n random 128-bit keys."""
    return np.random.default_rng(seed).integers(0, 2**64, (n, 2), np.uint64)


class Rows:
    """Rows with these keys at slots 0, 1, ..., all of which count unless told otherwise, and an index of none of them."""

    def __init__(self, key, expected=0):
        self.rows = np.zeros(len(key), ROW)
        self.rows["h1"], self.rows["h2"] = key[:, 0], key[:, 1]
        self.live = np.ones(len(key), bool)
        self.asked = 0
        self.index = Index(expected, self.at, lambda slots: self.live[slots])

    def at(self, slots):
        """Return rows and remember the most that were asked for at once."""
        self.asked = max(self.asked, len(slots))
        return self.rows[slots]

    def insert(self, first, last):
        """Put rows first to last - 1 into the index."""
        self.index.insert(self.rows["h1"][first:last].copy(), np.arange(first, last), int(self.live[:first].sum()))


@pytest.mark.parametrize(("n", "size"), [(1, 1), (2_000, 2_000), (2_400, 1), (4_095, 1), (50_000, 50_000), (50_000, 1)])
def test_finds_what_was_inserted_and_nothing_else(n, size):
    """Every key is found at its slot and others are not, whatever number of them was expected."""
    key = keys(n)
    r = Rows(key, size)
    r.insert(0, n // 2)
    r.insert(n // 2, n)
    np.testing.assert_array_equal(r.index.find(key), np.arange(n))
    np.testing.assert_array_equal(r.index.find(keys(500, seed=1)), np.full(500, -1))


def test_one_place_and_one_fingerprint():
    """Keys that share place and fingerprint, even their whole first half, are told apart by all 128 bits."""
    key = np.zeros((600, 2), np.uint64)
    key[:, 0] = 7
    key[:, 1] = np.arange(600)
    r = Rows(key)
    r.insert(0, 300)
    np.testing.assert_array_equal(r.index.find(key[::-1]), [-1] * 300 + list(range(299, -1, -1)))


def test_wraps_around_its_end():
    """Keys whose place is the last entry go on at the first, also when they are moved."""
    n = 3_000
    key = np.zeros((n, 2), np.uint64)
    key[:, 0] = np.uint64(2**64 - 1) - np.arange(n, dtype=np.uint64) % np.uint64(3)
    key[:, 1] = np.arange(n)
    r = Rows(key)
    r.insert(0, 50)
    assert np.flatnonzero(r.index.entries).tolist() == [*range(49), len(r.index.entries) - 1]
    r.insert(50, n)
    np.testing.assert_array_equal(r.index.find(key), np.arange(n))


def test_the_dead_are_not_found_but_passed_by():
    """An entry whose row left is skipped, and the same key inserted again is found at its new slot."""
    key = np.concatenate([keys(100), keys(100)])
    r = Rows(key)
    r.insert(0, 100)
    r.live[:40] = False
    np.testing.assert_array_equal(r.index.find(key[:100]), [-1] * 40 + list(range(40, 100)))
    r.insert(100, 140)
    np.testing.assert_array_equal(r.index.find(key[:100]), [*range(100, 140), *range(40, 100)])


@pytest.mark.parametrize("first", [2_000, 2_100, 2_400, 9_000])
def test_more_at_once_than_was_prepared_for(first):
    """A large batch finds room whenever it comes, also when a smaller next table was prepared already."""
    n = 300_000
    key = keys(n)
    r = Rows(key)
    for at in range(0, first, 100):
        r.insert(at, at + 100)
    r.insert(first, n)
    assert len(r.index.entries) > n
    np.testing.assert_array_equal(r.index.find(key), np.arange(n))


@pytest.mark.parametrize("batch", [1, 700, 20_000])
def test_grows_a_little_at_a_time(batch):
    """While a table is replaced each lookup finds all rows, and no insert moves more than it may."""
    n = 130_000
    key = keys(n)
    r = Rows(key, 50_000)
    r.insert(0, 75_000)
    at, moving, sizes = 75_000, 0, {len(r.index.entries)}
    while at < n:
        r.asked = 0
        r.insert(at, at := min(at + batch, n))
        assert r.asked <= max(4_096, 4 * batch)
        moving += r.index._old is not None
        sizes.add(len(r.index.entries))
        if batch > 1 or at % 1_000 == 0:
            np.testing.assert_array_equal(r.index.find(key[:at]), np.arange(at))
            assert (r.index.find(key[at:]) == -1).all()
        if batch == 1 and moving and r.index._old is None:
            break
    assert (moving > 0, sizes) == (True, {1 << 17, 1 << 18})
    assert r.index.used == at


def test_the_dead_are_left_behind():
    """With as many rows leaving as come the table keeps its size for ever; slots are used again by other keys meanwhile."""
    slots, batch = 6_000, 500
    r = Rows(np.zeros((slots, 2), np.uint64), 5_000)
    r.live[:] = False
    rng, tables = np.random.default_rng(3), []
    for step in range(200):
        at = np.arange(step * batch, (step + 1) * batch) % slots
        gone = (at + batch) % slots
        r.live[gone] = False
        new = keys(batch, seed=100 + step)
        assert (r.index.find(new) == -1).all()
        r.rows["h1"][at], r.rows["h2"][at] = new[:, 0], new[:, 1]
        r.index.insert(new[:, 0].copy(), at, int(r.live.sum()))
        r.live[at] = True
        if not any(r.index.entries is t for t in tables):
            assert r.index.used <= 1.05 * r.live.sum()  # by chance one of 64 is taken for the row that has its slot now
            tables.append(r.index.entries)
        there = rng.permutation(np.flatnonzero(r.live))
        np.testing.assert_array_equal(r.index.find(np.stack([r.rows["h1"], r.rows["h2"]], 1)[there]), there)
        assert (len(r.index.entries) <= 1 << 15, r.index.used <= 0.6 * len(r.index.entries)) == (True, True)
    assert len(tables) > 5


def test_no_keys():
    """Looking up nothing finds nothing; inserting nothing changes nothing."""
    r = Rows(keys(0))
    r.insert(0, 0)
    assert (r.index.find(keys(0)).tolist(), r.index.used) == ([], 0)
