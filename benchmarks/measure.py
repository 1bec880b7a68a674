"""What estimates cost: one slice with all metrics and both intervals, and a thousand slices as the tick of a new day has them.

`python benchmarks/measure.py [--rows 900]` prints the best of many repetitions, for days of so many rows: all estimates of a
slice over 28 days and each part of them, what a tick measures of `all`, the sums of one more day, and the
mature estimates of 1,000 slices.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from monitor.core import readings
from monitor.core.days import Key
from monitor.core.metrics import METRICS, measure
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.metrics.daily import Days, day_ranks, day_sums, variances
from monitor.core.policy import decide
from monitor.core.readings import LabelRule
from monitor.core.tables import LABEL, ROW, Table, tables, total
from monitor.series import SLICE_ESTIMATES

KEY = Key("model", "1", "all", 20_000)
RULES = (LabelRule("unknown"),) * 6
SLICES = 1_000


def day(rows: int, seed: int) -> Table:
    """Return a day of calibrated scores with all labels, flagged at .3."""
    rng = np.random.default_rng(seed)
    score = 1 / (1 + np.exp(2 - 0.75 * rng.standard_normal(rows)))
    made, labels = np.zeros(rows, ROW), np.zeros(rows, LABEL)
    made["score"], made["verdict"] = score, decide(0.3, score)
    labels["outcome"] = rng.random(rows) < score
    return tables(made, labels, np.zeros((1, 1), np.int32), 1)[0]


def best(call: Callable[[], object], times: int = 100, repeats: int = 30) -> float:
    """Return the microseconds of CPU that one call takes in the fastest of many repetitions."""
    took = []
    for _ in range(repeats):
        begun = time.process_time()
        for _ in range(times):
            call()
        took.append(time.process_time() - begun)
    return min(took) / times * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=900)
    by_day = [day(parser.parse_args().rows, seed) for seed in range(28)]
    table = total(by_day)
    reference = readings.scored(total([day(900, seed) for seed in range(100, 131)]))
    edges = calibration_edges(reference)
    mature, parts = readings.mature(table, RULES), [readings.mature(t, RULES) for t in by_day]
    days = Days(np.array([day_sums(r) for r in parts]), np.array([day_ranks(r) for r in parts]))
    parted = Days(days.sums)

    # A reading of its own for every call: what its metrics share is remembered by the reading.
    everything = best(lambda: measure(replace(mature), KEY, "28d", edges, reference, None, days))
    print(f"{len(METRICS)} metrics of one slice, {len(mature.n)} cells: {everything:.0f} us")
    scored, outcomes = readings.scored(table), [name for name, metric in METRICS.items() if metric.outcomes]

    def pair() -> None:
        measure(replace(scored), KEY, "28d", edges, reference, None, parted)
        measure(replace(mature), KEY, "28d", edges, None, outcomes, days)

    print(f"  as scores and as outcomes:      {best(pair):.0f} us")
    print(f"  without what is to be expected: {best(lambda: measure(replace(mature), KEY, '28d', edges, reference)):.0f} us")
    print(f"  variance between the days:      {best(lambda: variances(days)):.0f} us")
    print(f"  each metric alone, us: {' '.join(f'{name} {alone(mature, name, edges, reference):.0f}' for name in METRICS)}")
    print(f"sums of one more day: {best(lambda: (day_sums(replace(parts[0])), day_ranks(parts[0]))):.0f} us")

    def estimates() -> None:
        measure(replace(scored), KEY, "28d", edges, None, ("flagged_share", "mean_score"), parted)
        measure(replace(mature), KEY, "28d", edges, None, SLICE_ESTIMATES, parted)

    def read() -> None:
        found = total(by_day)
        readings.scored(found), readings.mature(found, RULES)
        day_sums(readings.scored(by_day[0])), day_sums(readings.mature(by_day[0], RULES))

    each, before = (best(call, SLICES, 3) * SLICES / 1_000 for call in (estimates, read))
    print(f"{SLICES:,} slices on the tick of a new day: {each:.0f} ms, and {before:.0f} ms to add up and read their days")


def alone(reading: readings.Reading, name: str, edges: np.ndarray, reference: readings.Reading) -> float:
    """Return what one metric takes when no other was asked for before."""
    return best(lambda: measure(replace(reading), KEY, "28d", edges, reference, (name,)), 5, 100)


if __name__ == "__main__":
    main()
