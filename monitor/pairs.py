"""Rows that two versions of a model scored under the same id."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.compare import Pairs
from monitor.core.events import U64x2
from monitor.core.readings import LabelRule
from monitor.core.tables import LABEL, NAMED, ROW, wanted
from monitor.store import Store

MAX_ROWS = 100_000
"""So many rows of either version are looked at; of more, those whose ids hash into a fair share."""

_BOTH = np.dtype([("row", ROW), ("label", LABEL)])


def pairs(store: Store, versions: tuple[int, int], day: int, rules: tuple[LabelRule, ...]) -> Pairs:
    """Return the rows of a day that both versions (codes) scored; `rules` say by verdict what no label at the horizon means.

    The stored key of a row is the hash of its id XOR the mask of its version, so taking the masks off brings equal ids together.
    """
    n = max(span.n if (span := store.spans.get((version, day))) else 0 for version in versions)
    (ids_a, a), (ids_b, b) = (_rows(store, version, day, max(-(-n // MAX_ROWS), 1)) for version in versions)
    _, at_a, at_b = np.intersect1d(ids_a[:, 0], ids_b[:, 0], return_indices=True)
    same = ids_a[at_a, 1] == ids_b[at_b, 1]
    both = np.stack((a[at_a[same]], b[at_b[same]]))
    rows, labels = both["row"], both["label"]
    given = rows["label_prob"] | (labels["label_prob"] & ~np.uint16(NAMED))
    sampled = bool(((rows["wait_prob"] > 1) | (given > 0)).any())
    reason = "sampled" if sampled else "other_target" if (rows["target"][0] != rows["target"][1]).any() else ""
    return Pairs(rows["score"], rows["verdict"], _outcomes(rows, labels, rules), bool(rows["cluster"].any()), reason)


def _outcomes(rows: NDArray[Any], labels: NDArray[Any], rules: tuple[LabelRule, ...]) -> NDArray[np.int8]:
    """Return 1, 0 or -1 (unknown) for pairs of rows and labels, shape (2, n): what a verdict prevents is not known of either."""
    # A label that names a version is only that version's; else both have the same.
    label = labels["outcome"].max(axis=0)
    positive = label == wanted(rows[0])
    negative = np.array([rule.missing == "negative" for rule in rules])[rows["verdict"]].all(axis=0)
    known = ((label >= 0) & ((label <= 1) | (rows["target"][0] > 0))) | negative
    never = np.array([rule.never for rule in rules])[rows["verdict"]].any(axis=0)
    outcome: NDArray[np.int8] = np.where(known & ~never, positive, -1).astype(np.int8)
    return outcome


def _rows(store: Store, version: int, day: int, share: int) -> tuple[U64x2, NDArray[Any]]:
    """Return id hashes, shape (n, 2), and rows with labels of a version and day, one id in `share` of them."""
    mask = store.hasher.version(*store.versions.names[version])
    ids, both = [np.empty((0, 2), np.uint64)], [np.empty(0, _BOTH)]
    for rows, labels in store.pieces_of(version, day):
        key = np.stack((rows["h1"], rows["h2"]), axis=1) ^ mask
        keep = key[:, 1] % np.uint64(share) == 0
        part = np.empty(int(keep.sum()), _BOTH)
        part["row"], part["label"] = rows[keep], labels[keep]
        ids.append(key[keep])
        both.append(part)
    return np.concatenate(ids), np.concatenate(both)
