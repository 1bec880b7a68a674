"""How long a store keeps its callers waiting: opening, growing and letting rows go, with millions of rows.

`python benchmarks/store.py [--rows 10M] [--folder FOLDER]` prints one line for each kind of call: how often, what a row
cost, the 99th percentile and the worst, as time on the clock and of the processor. Appends and labels are flushed to the disk of
FOLDER. Everything that is asked of the store is checked.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from monitor.core.events import DAY, Coded, Labels, Predictions
from monitor.core.tables import LABEL, ROW, tables
from monitor.store import NEWS, Store

BATCH = 10_000
DAYS = 30
T0 = 19_700 * DAY
NAME = ("m", "1")
FIRST_SHOWN = 1_000_000
NOT_HELD = np.zeros(BATCH, np.int64)


class Timer:
    """Collects the durations of calls by name."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, float, int]]] = {}

    @contextmanager
    def of(self, name: str, rows: int) -> Iterator[None]:
        """Time the block as one call that handles so many rows."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        took = time.perf_counter() - wall, time.process_time() - cpu, rows
        self.calls.setdefault(name, []).append(took)

    def show(self) -> None:
        """Print the table."""
        print(f"{'':34}{'calls':>7}{'ns/row':>9}{'p99 ms':>9}{'worst ms':>10}{'worst cpu ms':>14}")
        for name, calls in self.calls.items():
            wall, cpu, rows = (np.array(c) for c in zip(*calls, strict=True))
            per_row = f"{cpu.sum() / rows.sum() * 1e9:9.0f}" if rows.sum() else " " * 9
            times = f"{np.quantile(wall, 0.99) * 1e3:9.1f}{wall.max() * 1e3:10.1f}{cpu.max() * 1e3:14.1f}"
            print(f"{name:34}{len(calls):7}{per_row}{times}")


class Stream:
    """Predictions whose ids are random, so many a day; and labels of those that wait."""

    def __init__(self, per_day: int) -> None:
        self.rng, self.per_day, self.at = np.random.default_rng(1), per_day, 0

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        """Return the id hashes of predictions, which can be told again from their numbers."""
        x = (numbers.astype(np.uint64)[:, None] * np.uint64(2) + np.array([1, 2], np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    def next(self) -> Predictions:
        """Return the next batch."""
        n = np.arange(self.at, self.at + BATCH)
        self.at += BATCH
        one = np.zeros(BATCH, np.int64)
        names = (((),), ("",))
        columns = [Coded((NAME,), one), self.rng.random(BATCH), one.astype(np.uint8), *(Coded(c, one) for c in names)]
        return Predictions(np.arange(BATCH), self.ids(n), T0 + n * DAY // self.per_day, *columns)

    def labels(self, first: int) -> Labels:
        """Return labels of random predictions from number `first` on."""
        n = self.rng.choice(self.at - first, BATCH, replace=False) + first
        ts = T0 + n * DAY // self.per_day + self.at * 1_000
        outcome = self.rng.integers(0, 2, BATCH, np.int8)
        return Labels(
            np.arange(BATCH), self.ids(n), ts, Coded((NAME,), np.zeros(BATCH, np.int64)), outcome, np.zeros(BATCH, np.uint8)
        )


def write(store: Store, stream: Stream, timer: Timer, kind: str) -> None:
    """Append a batch, and label one for every fourth."""
    batch = stream.next()
    with timer.of(f"append, {kind}", BATCH):
        fresh = store.append(batch, {})
    assert fresh.all()
    if stream.at // BATCH % 4 == 0:
        labels = stream.labels(store.head)
        with timer.of(f"label, {kind}", BATCH):
            became = store.label(labels, {}, NOT_HELD, 0)
        assert (became == NEWS).all()


def expire(store: Store, timer: Timer, days: int) -> None:
    """Close the oldest days and let their rows go."""
    due = sorted(store.spans)[:days]
    gone = sum(store.spans[k].n for k in due)
    nothing = tables(np.empty(0, ROW), np.empty(0, LABEL), np.zeros((1, 1), np.int32), 1)[0]
    tail = store.tail
    with timer.of(f"record, {days} day{'s' * (days > 1)} leaving", gone):
        store.record(T0, {k: {"all": nothing} for k in due}, {0: due[-1][1] + 1}, [], {})
    assert (store.tail, gone > 0) == (tail, True)


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="10M", help="how many predictions wait, such as 10M")
    parser.add_argument("--folder", help="where to make the state, which is deleted afterwards; a temporary folder if not given")
    args = parser.parse_args()
    rows = int(float(args.rows.upper().removesuffix("M")) * (1e6 if args.rows.upper().endswith("M") else 1))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run(Path(folder) / "state", rows)


def run(folder: Path, rows: int) -> None:
    """Grow a store to so many rows, open it anew, then let rows go as fast as they come."""
    timer, stream = Timer(), Stream(rows // DAYS)
    store = Store(folder)
    while stream.at < rows:
        write(store, stream, timer, "growing" if stream.at >= FIRST_SHOWN else "first rows")
    index = store.index.entries.nbytes
    disk = [os.stat(folder / name).st_blocks * 512 for name in ("rows.bin", "labels.bin", "log.db", "log.db-wal")]
    store.close()
    for _ in range(3):
        with timer.of("opening", rows):
            store = Store(folder)
        assert (store.head, store.tail, sum(s.n for s in store.spans.values())) == (0, rows, rows)
        store.log.close()
        store.ring.close()
    store = Store(folder)
    while stream.at < 2 * rows:
        if stream.at % (rows // DAYS) < BATCH:
            expire(store, timer, 1)
        write(store, stream, timer, "expiring")
    expire(store, timer, DAYS // 2)
    while stream.at < 2 * rows + FIRST_SHOWN:
        write(store, stream, timer, "after half left")
    timer.show()
    print(
        f"\nbytes per row: {disk[0] / rows:.1f} rows.bin, {disk[1] / rows:.1f} labels.bin, {sum(disk[2:]) / rows:.1f} log.db, ",
        end="",
    )
    print(f"{index / rows:.1f} index in memory")
    store.close()


if __name__ == "__main__":
    main()
