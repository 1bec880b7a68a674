"""Keyed hashes of ids, versions and clusters."""

import numpy as np
import pytest

from monitor.formats import HASHES, Hasher

KEY = b"0123456789abcdef"


@pytest.mark.parametrize("name", HASHES)
def test_clusters(name):
    """A cluster's hash is the same for the same key, model and text and for no other of many."""
    texts = [f"user-{i}".encode() for i in range(1_000)]
    found = Hasher(name, KEY).clusters("m", texts)
    assert (found.dtype, found.shape) == (np.uint32, (1_000,))
    assert found[::-1].tolist() == Hasher(name, KEY).clusters("m", texts[::-1]).tolist()
    others = Hasher(name, KEY).clusters("n", texts), Hasher(name, KEY[::-1]).clusters("m", texts)
    first = Hasher(name, KEY).ids("m", texts).view(np.uint32)[:, 0]
    assert len(set(np.concatenate([found, *others, first]).tolist())) == 4_000
    assert Hasher(name, KEY).clusters("m", []).tolist() == []


def test_no_cluster_is_zero():
    """0 means that a row has no cluster, so a hash that is 0 becomes 1."""
    hasher = Hasher("xxh3", KEY)
    hasher._digests = lambda texts: bytes(16 * len(texts))
    assert hasher.clusters("m", [b"a", b"b"]).tolist() == [1, 1]
