"""What a dict says about a stream of events, and the comparison with what a store has."""

import numpy as np

from monitor.core.tables import LABEL, ROW, tables


def best(old, new):
    """Return the label that counts of two (revision, seconds, outcome), `new` having come later."""
    return new if old is None or new[:2] >= old[:2] else old


def table_of(rows, labels, horizon=(0, 0)):
    """Return the table of the slice `all` of rows [(score, verdict)] and labels (None: none), counted from scratch."""
    made, said = np.zeros(len(rows), ROW), np.zeros(len(rows), LABEL)
    made["score"], made["verdict"] = [r[0] for r in rows], [r[1] for r in rows]
    said["outcome"] = [-1 if k is None else k[2] for k in labels]
    said["delta"] = [0 if k is None else k[1] for k in labels]
    return tables(made, said, np.zeros((1, 1), np.int32), 1, horizon)[0]


def assert_same_table(a, b):
    """Counts are equal, sums are equal up to the order of addition."""
    for name in a.cells.dtype.names:
        np.testing.assert_allclose(a.cells[name], b.cells[name], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(a.totals, b.totals, rtol=1e-12, atol=1e-12)
    for part in ("weights", "delays", "groups"):
        assert (getattr(a, part) is None) == (getattr(b, part) is None), part
    if a.delays is not None:
        np.testing.assert_array_equal(a.delays, b.delays)


def keys_of(store, ids, versions):
    """Return the stored keys (h1, h2) of ids of model m and codes of versions."""
    masks = np.array([store.hasher.version(*name) for name in store.versions.names], np.uint64)
    keys = store.hasher.ids("m", [i.encode() for i in ids]) ^ masks[np.array(versions, np.int64)]
    return [tuple(k) for k in keys.tolist()]


def stored(store):
    """Return {key: (version, ts, score)} and {key: (revision, seconds, outcome)} of all rows of all days."""
    found, labels = {}, {}
    for version, day in store.spans:
        for r, k in zip(*(part.tolist() for part in store.rows_of(version, day)), strict=True):
            assert r[:2] not in found
            found[r[:2]] = (r[4], r[2], r[3])
            if k[0] >= 0:
                labels[r[:2]] = (k[1], k[3], k[0])
    return found, labels
