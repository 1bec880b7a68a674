"""How many rows wait under a configuration, and what they need of disk and memory, before any of them has come."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.core.events import DAY, Floats
from monitor.core.sampling import CLASSES, SCORE_BINS, plan
from monitor.core.tables import CELL, LABEL, ROW

ROW_BYTES = ROW.itemsize + LABEL.itemsize
INDEX_BYTES = (8, 16)
"""Bytes of the index per row: 4 for an entry, of which there are two to four times as many as rows."""
PROCESS_BYTES = 64_000_000
"""What the agent takes before it has a row."""
ENOUGH = 1_000
"""So many rows a day of each model should wait at least."""
_CELLS = 1_000
"""About how many cells the table of a day has."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is expected of a model: predictions a day (None: nobody said), and horizon and corrections in ms.

    A prediction of a model with classes is a row for each of its `targets`.
    """

    model: str
    per_day: int | None
    horizon: int
    corrections: int
    targets: int = 1

    @property
    def rows(self) -> int | None:
        """Return how many rows come a day, None where nobody said."""
        return None if self.per_day is None else self.per_day * self.targets


@dataclass(frozen=True, slots=True)
class Share:
    """What becomes of the predictions of a model: a row stays `days` at most, and the part `share` of the rows waits.

    `per_day` is how many rows come a day (None: nobody said, then `share` is None, too), `first` the time in ms from the end
    of a day to its outcomes, `targets` how many rows a prediction is.
    """

    model: str
    per_day: int | None
    share: float | None
    days: float
    first: int
    targets: int = 1

    @property
    def waiting_per_day(self) -> float:
        """Return how many rows of a day wait, 0 where nobody knows."""
        return (self.per_day or 0) * (self.share or 0.0)

    @property
    def rows(self) -> int:
        """Return how many rows wait when as many leave as come, 0 where nobody knows."""
        return round(self.waiting_per_day * self.days)

    @property
    def sampled(self) -> bool:
        """Return whether not every row waits."""
        return self.share is not None and self.share < 1

    @property
    def starved(self) -> bool:
        """Return whether fewer rows a day wait than estimates need although more come."""
        return self.sampled and self.waiting_per_day < ENOUGH


@dataclass(frozen=True, slots=True)
class Sizing:
    """What all models need together: rows, and bytes of disk and memory. `log` is what the final tables take in a year.

    `rows` is the limit when it is unknown how many predictions come; `sure` are the rows of the models that it is known of.
    """

    shares: tuple[Share, ...]
    limit: int
    rows: int
    sure: int
    log: int

    @property
    def disk(self) -> int:
        """Return the bytes of rows and labels."""
        return self.rows * ROW_BYTES

    @property
    def index(self) -> tuple[int, int]:
        """Return the bytes of the index in memory, at least and at most."""
        return self.rows * INDEX_BYTES[0], self.rows * INDEX_BYTES[1]

    @property
    def least_disk(self) -> int:
        """Return the bytes of disk that are needed for sure."""
        return self.sure * ROW_BYTES

    @property
    def least_memory(self) -> int:
        """Return the bytes of memory that are needed for sure."""
        return PROCESS_BYTES + self.sure * INDEX_BYTES[0]


def size(loads: Sequence[Load], limit: int) -> Sizing:
    """Return what models need when at most `limit` rows may wait.

    Nobody knows the scores yet, so rows are taken to be unflagged and spread evenly over the classes of sampling. Scores in
    fewer classes make the floors smaller and the share more even; flagged rows wait first.
    """
    days = np.array([(load.horizon + load.corrections) / DAY + 1 for load in loads])
    volume = np.zeros((len(loads), CLASSES))
    volume[:, :SCORE_BINS] = np.array([[load.rows or 0] for load in loads]) / SCORE_BINS
    waiting: Floats = (volume * plan(volume, days, limit)).sum(axis=1)
    shares = tuple(
        Share(load.model, load.rows, None if load.rows is None else part / whole, d, load.horizon, load.targets)
        for load, part, whole, d in zip(loads, waiting.tolist(), volume.sum(axis=1).tolist(), days.tolist(), strict=True)
    )
    sure = sum(s.rows for s in shares)
    unknown = any(load.per_day is None for load in loads)
    tables = sum(load.targets for load in loads)
    return Sizing(shares, limit, max(limit, sure) if unknown else sure, sure, tables * 365 * _CELLS * CELL.itemsize)
