"""What a dict says about a stream of events, and the comparison with what a store has."""

from typing import NamedTuple

import numpy as np

from monitor.core.tables import LABEL, NO_AUDIT, ROW, not_waiting, tables, weights_of


class Row(NamedTuple):
    """A prediction; probabilities are codes of `prob_code`, and a row that does not wait is only counted."""

    ident: str
    version: int
    ts: int
    score: float
    verdict: int = 5
    combo: int = 0
    label_prob: int = 0
    cluster: int = 0
    waits: bool = True
    wait_prob: int = 0
    audit: int = NO_AUDIT
    picked: bool = False


class Said(NamedTuple):
    """The label of a row: `seconds` after its prediction, the probability with NAMED where the label named the version."""

    revision: int
    seconds: int
    outcome: int
    label_prob: int = 0


def best(old, new):
    """Return the label that counts of two, `new` having come later."""
    return new if old is None or new[:2] >= old[:2] else old


def alike(row, label_prob):
    """Return whether row and label do not give two different probabilities."""
    return row.label_prob == 0 or label_prob in (0, row.label_prob)


def seconds(label, prediction):
    """Return the seconds from prediction to label, both times cut to whole ones."""
    return label // 1000 - prediction // 1000


def table_of(rows, labels, horizon=(0, 0)):
    """Return the table of the slice `all` of rows and labels (None: none), counted from scratch."""
    waits = [i for i, row in enumerate(rows) if row.waits]
    passed = table_of_scores([row for row in rows if not row.waits])
    said = np.zeros(len(waits), LABEL)
    said["outcome"] = -1
    for i, k in enumerate(labels[i] for i in waits):
        if k is not None:
            said[i] = (k.outcome, k.revision, k.label_prob, k.seconds)
    nobody = np.zeros((1, 1), np.int32)
    return tables(_made([rows[i] for i in waits]), said, nobody, 1, horizon)[0] + passed


def table_of_scores(rows):
    """Return the table of the slice `all` of rows that do not wait."""
    return not_waiting(tables(_made(rows), None, np.zeros((1, 1), np.int32), 1)[0])


def _made(rows):
    made = np.zeros(len(rows), ROW)
    for name in ("score", "verdict", "audit", "label_prob", "wait_prob", "cluster"):
        made[name] = [getattr(row, name) for row in rows]
    return made


def assert_same_table(a, b):
    """Counts are equal, sums are equal up to the order of addition."""
    for name in a.cells.dtype.names:
        np.testing.assert_allclose(a.cells[name], b.cells[name], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(a.totals, b.totals, rtol=1e-12, atol=1e-12)
    one, other = weights_of(a), weights_of(b)
    for name in one.dtype.names:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=1e-12, err_msg=name)
    for part in ("delays", "groups"):
        assert (getattr(a, part) is None) == (getattr(b, part) is None), part
    if a.delays is not None:
        np.testing.assert_array_equal(a.delays, b.delays)
    if a.groups is not None:
        np.testing.assert_allclose(a.groups, b.groups, rtol=1e-12, atol=1e-12)


def keys_of(store, ids):
    """Return the stored keys (h1, h2) of (id, version) of model m; of version None those that are held for all of them."""
    masks = [(0, 0) if version is None else store.hasher.version("m", version) for _, version in ids]
    keys = store.hasher.ids("m", [ident.encode() for ident, _ in ids]) ^ np.array(masks, np.uint64).reshape(-1, 2)
    return [tuple(k) for k in keys.tolist()]


def stored(store):
    """Return {key: row as a tuple of its other fields but features} and {key: Said} of all rows of all days."""
    found, labels = {}, {}
    for version, day in store.spans:
        for row, label in zip(*(part.tolist() for part in store.rows_of(version, day)), strict=True):
            assert row[:2] not in found
            found[row[:2]] = row[2:14]
            if label[0] >= 0:
                outcome, revision, label_prob, delta = label
                labels[row[:2]] = Said(revision, delta, outcome, label_prob)
    return found, labels


def fields_of(row, version, combo, policy=0):
    """Return what `stored` has of a row under these codes."""
    _, _, ts, score, verdict, _, label_prob, cluster, _, wait_prob, audit, _ = row
    return ts, score, version, combo, policy, verdict, audit, label_prob, wait_prob, cluster, 0, 0
