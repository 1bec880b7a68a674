"""What a valid event is: the columns of predictions and labels, and the receipt a sender gets."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

VERDICTS = ("pass", "flag", "review", "abstain", "block", "none")
"""What the model server did with a score; the row stores the position. `none`: nobody decided."""
PASS, FLAG, REVIEW, ABSTAIN, BLOCK, NONE = range(6)
UNDECIDED = 255
"""The event gave no verdict; the policy says it at ingest, so a stored row never holds this value."""
FLAGGED = np.array([False, True, True, False, True, False])
OTHER = "other"
"""The slice of a segment that has every value without a slice of its own."""

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
"""Times are integer milliseconds since 1970 (UTC) everywhere inside the agent."""
EARLIEST, LATEST = 946_684_800_000, 4_102_444_800_000
FUTURE = 5 * MINUTE
CLIP = 1e-9

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
U64x2 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, order=True)
class Rejection:
    """One event that was not taken: its position in the request, a code of `reasons.REJECTED` and what was found."""

    index: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of few distinct values: `names[codes[i]]` is the value of row i."""

    names: tuple[Any, ...]
    codes: NDArray[np.int32]

    def take(self, keep: NDArray[Any] | slice) -> "Coded":
        """Return the rows selected by a mask, positions or a slice; the names stay."""
        return Coded(self.names, self.codes[keep])

    def used(self) -> list[Any]:
        """Return the names that some row has; others may be left of rows that were taken out."""
        return [self.names[code] for code in np.flatnonzero(np.bincount(self.codes)).tolist()]

    @classmethod
    def of(cls, values: list[Any]) -> "Coded":
        """Return the coding of a list, names in order of first appearance."""
        first = values[0] if values else None
        if values.count(first) == len(values):
            return cls((first,) if values else (), np.zeros(len(values), np.int32))
        code = {value: i for i, value in enumerate(dict.fromkeys(values))}
        return cls(tuple(code), np.fromiter(map(code.__getitem__, values), np.int32, len(values)))

    @classmethod
    def concat(cls, parts: list["Coded"]) -> "Coded":
        """Return the parts one after the other under one list of names."""
        if len(parts) == 1:
            return parts[0]
        code = {name: i for i, name in enumerate(dict.fromkeys(n for part in parts for n in part.names))}
        luts = [np.array([code[n] for n in part.names], np.int32) for part in parts]
        codes = [lut[part.codes] if len(lut) else part.codes for lut, part in zip(luts, parts, strict=True)]
        return cls(tuple(code), np.concatenate(codes))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of equal length; `index` is the position of each row in the request it came with, ascending."""

    index: Ints

    def __len__(self) -> int:
        return len(self.index)

    def take(self, keep: NDArray[Any] | slice) -> Self:
        """Return the rows selected by a mask, positions or a slice."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        taken: dict[str, Any] = {
            name: c.take(keep) if isinstance(c, Coded) else c[keep] for name, c in columns.items() if c is not None
        }
        return replace(self, **taken)

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """Return all rows of the parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        joined: dict[str, Any] = {}
        for f in fields(cls):
            columns = [getattr(part, f.name) for part in parts]
            joined[f.name] = Coded.concat(columns) if isinstance(columns[0], Coded) else _joined(columns, list(map(len, parts)))
        return cls(**joined)


def _joined(columns: list[NDArray[Any] | None], sizes: list[int]) -> NDArray[Any] | None:
    """Return columns one after the other; one that no part has is None, a part without it has zeros (None for objects)."""
    there = [c for c in columns if c is not None]
    if not there:
        return None
    dtype = there[0].dtype
    blank = np.empty if dtype.hasobject else np.zeros
    shape = there[0].shape[1:]
    return np.concatenate([blank((n, *shape), dtype) if c is None else c for c, n in zip(columns, sizes, strict=True)])


@dataclass(frozen=True, slots=True)
class Predictions(_Columns):
    """Scored events as columns of length n. `ids` (n, 2) is the keyed hash of model and id; `version` names (model, version).

    `label_prob` holds codes of `prob_code` (0: not given), `cluster` a hash of model and cluster (0: none), `sent` the id as
    sent, as bytes, for models whose predictions are picked for review. `target`, `margin` and `features` (n, 14) are what
    `tables.ROW` says of them. A column that no row has is None.
    """

    ids: U64x2
    ts: Ints
    version: Coded
    score: Floats
    verdict: NDArray[np.uint8]
    combo: Coded
    policy: Coded
    label_prob: NDArray[np.uint16] | None = None
    cluster: NDArray[np.uint32] | None = None
    sent: NDArray[Any] | None = None
    target: NDArray[np.uint8] | None = None
    margin: NDArray[np.uint8] | None = None
    features: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class Labels(_Columns):
    """Outcomes as columns of length n; `version` names (model, version), version None means every version of the model.

    `label_prob` holds codes of `prob_code` (0: not given), None when no row has one. A label that carries its prediction
    has the same index as that prediction in its batch.
    """

    ids: U64x2
    ts: Ints
    version: Coded
    label: NDArray[np.int8]
    revision: NDArray[np.uint8]
    label_prob: NDArray[np.uint16] | None = None


C = TypeVar("C", Predictions, Labels)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one request or one read of a source held, in its order; `size` counts every event sent, rejected ones too.

    An event of a model with classes is several rows with the same index. `clipped` and `scaled` count the events whose scores
    were brought into [0, 1] and to the sum 1.

    A source with positions read the bytes from `start` to `end` for it; `position` is where it goes on after this batch.
    `now` moves a clock of events without an event.
    """

    size: int
    predictions: Predictions | None = None
    labels: Labels | None = None
    rejected: tuple[Rejection, ...] = ()
    now: int | None = None
    clipped: int = 0
    scaled: int = 0
    source: str = "http"
    start: int = 0
    end: int = 0
    position: str = ""

    def ts(self) -> Ints:
        """Return the times of all accepted events in the order they were sent; of a label with its prediction the later one."""
        return self._events()[1]

    def index(self) -> Ints:
        """Return the positions in the request that `ts` belongs to, ascending; each is there once."""
        return self._events()[0]

    def _events(self) -> tuple[Ints, Ints]:
        parts = [p for p in (self.predictions, self.labels) if p is not None]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if len(parts) == 1 and not (np.diff(parts[0].index) == 0).any():
            return parts[0].index, parts[0].ts
        index = np.concatenate([p.index for p in parts])
        order = np.argsort(index, kind="stable")
        index, first = np.unique(index[order], return_index=True)
        ts: Ints = np.maximum.reduceat(np.concatenate([p.ts for p in parts])[order], first)
        return index, ts

    def between(self, first: int, last: int) -> "Batch":
        """Return the accepted events whose position in the request is in [first, last)."""
        return replace(
            self,
            predictions=_cut(self.predictions, first, last),
            labels=_cut(self.labels, first, last),
            rejected=(),
            clipped=0,
            scaled=0,
        )

    def after(self, skip: int) -> "Batch":
        """Return the batch without its first `skip` events."""
        part = self.between(skip, self.size)
        return replace(
            part, rejected=tuple(r for r in self.rejected if r.index >= skip), clipped=self.clipped, scaled=self.scaled
        )

    def apart(self) -> tuple["Batch", "Batch"]:
        """Return the batch in two: its labels, with the predictions that came inside them, and its other predictions."""
        p = self.predictions
        if p is None or self.labels is None:
            return replace(self, predictions=None), replace(self, labels=None)
        inside = np.isin(p.index, self.labels.index)
        parts = [p.take(keep) if keep.any() else None for keep in (inside, ~inside)]
        return replace(self, predictions=parts[0]), replace(self, predictions=parts[1], labels=None)

    def read_from(self, source: str, start: int, end: int) -> "Batch":
        """Return the batch as read from the bytes `start` to `end` of a source."""
        return replace(self, source=source, start=start, end=end)


def _cut(columns: C | None, first: int, last: int) -> C | None:
    if columns is None:
        return None
    a, b = np.searchsorted(columns.index, (first, last))
    return columns.take(slice(a, b)) if b > a else None


class Entry(NamedTuple):
    """One line of the journal: what happened, when, by whom; `previous` is the hash of the entry before."""

    seq: int
    at: int
    who: str
    kind: str
    model: str
    version: str
    body: dict[str, Any]
    previous: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request: accepted + duplicates + rejected is the number of events sent.

    `held` of the accepted ones are labels that wait for their prediction; `review` are the ids of passed predictions that a
    person should look at.
    """

    accepted: int
    duplicates: int
    rejected: tuple[Rejection, ...]
    held: int = 0
    review: tuple[str, ...] = ()


PROB_STEPS = 2_048
MIN_PROB = 1e-6
"""The smallest `label_prob` an event may give."""


def prob_code(p: Floats) -> NDArray[np.uint16]:
    """Return probabilities in [1e-6, 1] as 1 - 2048 ln p, rounded: 15 bits with a relative error of at most 2.5e-4.

    0 is free to mean "not given". Codes fall as probabilities rise, 1 is exact.
    """
    code: NDArray[np.uint16] = np.rint(1 - PROB_STEPS * np.log(p)).astype(np.uint16)
    return code


def prob_of(code: NDArray[np.uint16]) -> Floats:
    """Return the probabilities of codes; of 0 (not given) it is 1."""
    p: Floats = np.exp((1.0 - np.maximum(code, 1)) / PROB_STEPS)
    return p


def valid_scores(score: Floats) -> tuple[Floats, Bools, Bools]:
    """Return scores clipped to [0, 1], which of them are acceptable, and which were clipped (within 1e-9 outside)."""
    inside = (score >= -CLIP) & (score <= 1 + CLIP)
    clipped = inside & ((score < 0) | (score > 1))
    return np.clip(score, 0.0, 1.0), inside, clipped


def valid_epochs(value: Floats | Ints) -> tuple[Ints, Bools]:
    """Return milliseconds for epoch numbers in s, ms, us or ns, told apart by magnitude, and which lie in 2000-2100."""
    ms = np.zeros(len(value), np.int64)
    good = np.zeros(len(value), bool)
    for unit in (1, 1_000, 1_000_000, 1_000_000_000):  # s, ms, us, ns: their ranges for 2000-2100 do not overlap
        # Integer limits: a float one would round the last nanoseconds of 2099 out of the range.
        here = (value >= EARLIEST // SECOND * unit) & (value < LATEST // SECOND * unit)
        if here.any():
            part = value[here]
            ms[here] = np.floor(part * 1_000.0) if unit == 1 else part // (unit // 1_000)
            good |= here
    return ms, good
