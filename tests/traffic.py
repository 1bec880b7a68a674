"""Traffic of large models as columns, with what is true of all of it, and an agent in process that takes it with restarts.

Scores x are N(0, 1) for negatives and N(2, 1) for positives, 3 % of the rows are positive and P(positive | x) is the score.
"""

import heapq
import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.agent import Agent
from monitor.config import load
from monitor.core.events import DAY, HOUR, UNDECIDED, Batch, Coded, Labels, Predictions
from monitor.run import Inbox, Loop

DAY0 = 19_000
PREVALENCE = 0.03
LONGEST = 60 * DAY


def scores(rng, n):
    """Return n scores and outcomes."""
    positive = rng.random(n) < PREVALENCE
    x = rng.standard_normal(n) + 2.0 * positive
    return 1.0 / (1.0 + np.exp(-(np.log(PREVALENCE / (1 - PREVALENCE)) + 2.0 * x - 2.0))), positive


def delays(rng, mean, n):
    """Return n exponential delays in ms with this mean, conditioned on being at most LONGEST."""
    return (-mean * np.log1p(rng.random(n) * np.expm1(-LONGEST / mean))).astype(np.int64)


@dataclass
class Source:
    """A model that serves `rate` rows a second, and the mean delays of its labels in ms (None: such labels never come).

    `truth` has by day number [n, sum of scores, positives, flagged, flagged positives] of every row sent. With `audited` only
    flagged rows are labelled, passed ones when they are reviewed, and every third positive among them by itself.
    """

    model: str
    rate: float
    positive: float
    negative: float | None
    threshold: float
    seed: int
    audited: bool = False
    version: str = "1"
    truth: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.late = []
        self.order = itertools.count()
        self.outcomes = {}

    def step(self, start, length, factor=1.0):
        """Return the predictions and the labels (either may be None) of `length` ms from `start` on."""
        rng = self.rng
        n = rng.poisson(self.rate * factor * length / 1_000)
        score, positive = scores(rng, n)
        ts = start + np.sort(rng.integers(0, length, n))
        ids = rng.integers(0, 2**64, (n, 2), np.uint64)
        flagged = score >= self.threshold
        day = start // DAY
        sums = [n, score.sum(), positive.sum(), flagged.sum(), (flagged & positive).sum()]
        self.truth[day] = self.truth.get(day, np.zeros(5)) + sums
        named = Coded(((self.model, self.version),), np.zeros(n, np.int32))
        p = Predictions(
            np.arange(n),
            ids,
            ts,
            named,
            score,
            np.full(n, UNDECIDED, np.uint8),
            Coded(((),), np.zeros(n, np.int32)),
            Coded(("",), np.zeros(n, np.int32)),
        )
        told = np.ones(n, bool)
        if self.audited:
            told = flagged | (positive & (rng.random(n) < 1 / 3))
            p = replace(p, sent=np.array([b"%d" % i for i in ids[:, 0].tolist()], object))
            self.outcomes = dict(zip((str(i) for i in ids[:, 0].tolist()), zip(ids, ts, positive, strict=True), strict=True))
        for mean, which in ((self.positive, told & positive), (self.negative, told & ~positive)):
            at = np.flatnonzero(which) if mean is not None else []
            if len(at):
                due = ts[at] + delays(rng, mean, len(at))
                step = due // length
                for s in np.unique(step).tolist():
                    mine = at[step == s]
                    part = ids[mine], due[step == s], positive[mine]
                    heapq.heappush(self.late, (s, next(self.order), part))
        return (p if n else None), self._labels(start // length)

    def reviewed(self, sent):
        """Return the labels of predictions of the last step that a person looked at an hour later."""
        ids, ts, positive = (np.array(column) for column in zip(*(self.outcomes[i] for i in sent), strict=True))
        named = Coded(((self.model, None),), np.zeros(len(ids), np.int32))
        return Labels(np.arange(len(ids)), ids, ts + HOUR, named, positive.astype(np.int8), np.zeros(len(ids), np.uint8))

    def _labels(self, step):
        parts = []
        while self.late and self.late[0][0] <= step:
            parts.append(heapq.heappop(self.late)[2])
        if not parts:
            return None
        ids, ts, label = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(ts, kind="stable")
        n = len(ts)
        named = Coded(((self.model, None),), np.zeros(n, np.int32))
        return Labels(np.arange(n), ids[order], ts[order], named, label[order].astype(np.int8), np.zeros(n, np.uint8))

    def true(self, days):
        """Return recall, precision and bias of all rows of these days."""
        n, score, positive, flagged, hits = np.sum([self.truth[d] for d in days], axis=0)
        return {"recall": hits / positive, "precision": hits / flagged, "bias": (score - positive) / n}


class Program:
    """An agent without listeners, driven by the times of its events."""

    def __init__(self, folder, config):
        self.path = folder / "config.yaml"
        self.path.write_text(config)
        self.rejected = []
        self.open()

    def open(self):
        """Open the agent, as after a restart when it was closed before."""
        self.agent = Agent(load(self.path), "test", durable=False)
        self.loop = Loop(self.agent, lambda: None, Inbox(1))
        return self

    def again(self):
        """Stop the agent and start it again."""
        self.loop.close()
        return self.open()

    def send(self, *columns):
        """Send predictions or labels, each as one request, and return the receipts."""
        out = []
        for c in columns:
            if c is not None:
                kind = {"predictions" if isinstance(c, Predictions) else "labels": c}
                out.append(self.loop._by_events(Batch(len(c), **kind)))
        return out

    def now(self, ts):
        """Move the clock."""
        self.loop._by_events(Batch(0, now=ts))

    @property
    def waiting(self):
        """Return how many rows wait."""
        return self.agent.store.tail - self.agent.store.head

    def watched(self, model, version="1"):
        """Return a version as the agent keeps it in memory."""
        return next(w for w in self.agent.watched.values() if w.name == (model, version))

    def estimates(self, model, window):
        """Return {metric: estimate} of the slice `all` in a window."""
        self.agent.publish()
        wanted = model, "all", window, _BASIS[window]
        found = self.agent.snapshot.estimates
        return {e.metric: e for e in found if (e.key.model, e.key.slice, e.window, e.basis) == wanted}


_BASIS = {"1h": "scored", "24h": "scored", "7d": "mature", "28d": "mature"}
