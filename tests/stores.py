"""What tests of the store share: events as columns, days as a tick closes them."""

import numpy as np

from monitor.core.events import DAY, Coded, Labels, Predictions
from monitor.core.tables import tables

T0 = 19_700 * DAY


def crash(store):
    """Leave a store as a killed process would: nothing is flushed or checkpointed."""
    store.ring.close()
    store.log.close()


def predictions(store, ids, ts=T0, score=0.5, version=("m", "1"), combo=(), policy=""):
    """Return predictions; one value stands for all, a list has one for each."""
    n = len(ids)

    def column(value):
        return Coded.of(value if isinstance(value, list) else [value] * n)

    hashed = store.hasher.ids("m", [i.encode() for i in ids])
    times, scores = np.broadcast_to(np.array(ts, np.int64), n), np.broadcast_to(np.array(score, float), n)
    return Predictions(np.arange(n), hashed, times, column(version), scores, np.zeros(n, np.uint8), column(combo), column(policy))


def labels(store, *given):
    """Return labels (id, outcome, ts, revision, version), the last three optional."""
    full = [(*g, *(T0, 0, "1")[len(g) - 2 :]) for g in given]
    version = Coded.of([("m", g[4]) for g in full])
    hashed = store.hasher.ids("m", [g[0].encode() for g in full])
    ts, outcome, revision = (np.array([g[i] for g in full], t) for i, t in ((2, np.int64), (1, np.int8), (3, np.uint8)))
    return Labels(np.arange(len(full)), hashed, ts, version, outcome, revision)


def append(store, ids, positions=(), **columns):
    """Store predictions and return which were new."""
    return store.append(predictions(store, ids, **columns), dict(positions)).tolist()


def label(store, *given, positions=()):
    """Store labels and return what became of each."""
    said = labels(store, *given)
    return store.label(said, dict(positions), np.zeros(len(said), np.int64), 0).tolist()


def close(store, now, days, keep_from, entries=()):
    """Record a tick that closes these days of version 0."""
    made = {(0, d): {"all": tables(*store.rows_of(0, d), np.zeros((1, 8), np.int32), 1)[0]} for d in days}
    return store.record(now, made, dict.fromkeys(range(len(store.versions.names)), keep_from), list(entries), {})


def outcomes(store, day, version=0):
    """Return {score: outcome} of a day."""
    rows, said = store.rows_of(version, day)
    return dict(zip(rows["score"].tolist(), said["outcome"].tolist(), strict=True))
