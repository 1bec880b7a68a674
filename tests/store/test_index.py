"""The hash index against a dict."""

import numpy as np
import pytest

from monitor.core.tables import ROW
from monitor.store.index import Index


def keys(n, seed=0):
    """Return n random 128-bit keys."""
    return np.random.default_rng(seed).integers(0, 2**64, (n, 2), np.uint64)


def rows_of(key):
    """Return rows with these keys."""
    rows = np.zeros(len(key), ROW)
    rows["h1"], rows["h2"] = key[:, 0], key[:, 1]
    return rows


def find(index, asked, rows, live=None):
    """Look keys up in an index over these rows."""
    return index.find(asked, lambda slots: rows[slots], lambda slots: np.ones(len(slots), bool) if live is None else live[slots])


@pytest.mark.parametrize(("n", "size"), [(1, 1), (2_000, 2_000), (2_400, 1), (4_095, 1), (50_000, 50_000)])
def test_finds_what_was_inserted_and_nothing_else(n, size):
    """Every key is found at its slot, others are not, also where the table is all but full."""
    key, index = keys(n), Index(size)
    index.insert(key[: n // 2, 0].copy(), np.arange(n // 2))
    index.insert(key[n // 2 :, 0].copy(), np.arange(n // 2, n))
    np.testing.assert_array_equal(find(index, key, rows_of(key)), np.arange(n))
    np.testing.assert_array_equal(find(index, keys(500, seed=1), rows_of(key)), np.full(500, -1))
    assert index.used == n


def test_one_place_and_one_fingerprint():
    """Keys that share place and fingerprint, even their whole first half, are told apart by all 128 bits."""
    key = np.zeros((300, 2), np.uint64)
    key[:, 0] = 7
    key[:, 1] = np.arange(300)
    index = Index(300)
    index.insert(key[:, 0].copy(), np.arange(300))
    np.testing.assert_array_equal(find(index, key[::-1], rows_of(key)), np.arange(300)[::-1])
    other = key.copy()
    other[:, 1] += np.uint64(300)
    np.testing.assert_array_equal(find(index, other, rows_of(key)), np.full(300, -1))


def test_wraps_around_its_end():
    """Keys whose place is the last entry go on at the first."""
    key = np.zeros((50, 2), np.uint64)
    key[:, 0] = np.uint64(2**64 - 1)
    key[:, 1] = np.arange(50)
    index = Index(1)
    index.insert(key[:, 0].copy(), np.arange(50))
    np.testing.assert_array_equal(find(index, key, rows_of(key)), np.arange(50))
    assert np.flatnonzero(index.entries).tolist() == [*range(49), len(index.entries) - 1]


def test_the_dead_are_not_found_but_passed_by():
    """An entry whose row left is skipped, and the same key inserted again is found at its new slot."""
    key = keys(100)
    index = Index(100)
    index.insert(key[:, 0].copy(), np.arange(100))
    live = np.arange(200) >= 40
    both = np.concatenate([key, key])
    np.testing.assert_array_equal(find(index, key, rows_of(both), live), [-1] * 40 + list(range(40, 100)))
    index.insert(key[:40, 0].copy(), np.arange(100, 140))
    np.testing.assert_array_equal(find(index, key, rows_of(both), live), [*range(100, 140), *range(40, 100)])


def test_no_keys():
    """Looking up nothing finds nothing; inserting nothing changes nothing."""
    index = Index(0)
    index.insert(np.empty(0, np.uint64), np.empty(0, np.int64))
    assert (find(index, keys(0), rows_of(keys(0))).tolist(), index.used) == ([], 0)
