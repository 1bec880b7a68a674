"""What the samplers cost: processor time a row of storing predictions, idle, when a sample waits, and with reviews.

`python benchmarks/waiting.py [--rows 1M]` prints a line for each kind and batch size: all of storing in memory (nothing is
flushed), and of that the draw, the count of the volume and the question whether there is anything to do.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from monitor.core.events import DAY, HOUR, Predictions
from monitor.sampler import Sampler
from traffic import DAY0, Program, Source

CONFIG = """\
state: state
clock: events
waiting: {{rows: {waiting}}}
models: {{a: {{labels: {{horizon: 60d}}, threshold: 0.2, review: {review}}}}}
"""
KINDS = {"all wait, idle": ("60M", "off"), "1 in 60 waits": ("100k", "off"), "all wait, reviews": ("60M", "{per_day: 200}")}


def timed(spent: dict[str, float], name: str) -> None:
    """Make a method of the sampler add its processor time to `spent`."""
    method: Callable[..., Any] = getattr(Sampler, name)

    def wrapped(*args: Any) -> Any:
        begun = time.thread_time()
        out = method(*args)
        spent[name] += time.thread_time() - begun
        return out

    setattr(Sampler, name, wrapped)


def store(kind: str, batch: int, p: Predictions, spent: dict[str, float]) -> float:
    """Store the predictions and return the seconds of processor time."""
    waiting, review = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), CONFIG.format(waiting=waiting, review=review))
        agent = program.agent
        parts = [agent.served.verdicts(p.take(slice(i, i + batch)))[0] for i in range(0, len(p), batch)]
        spent.update(dict.fromkeys(spent, 0.0))
        begun = time.thread_time()
        for part in parts:
            agent._store(part, {})
        took = time.thread_time() - begun
        program.loop.close()
    return took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    n = parser.parse_args().rows
    p, _ = Source("a", n / 6 / 3_600, float(DAY), None, 0.2, 1).step(DAY0 * DAY, 6 * HOUR)
    assert p is not None
    p = replace(p, sent=np.array([b"%d" % i for i in range(len(p))], object))
    spent = dict.fromkeys(("draw", "count", "idle"), 0.0)
    for name in spent:
        timed(spent, name)
    print(f"{'ns a row':24}{'batch':>8}{'all':>8}" + "".join(f"{name:>8}" for name in spent))
    for kind in KINDS:
        for batch in (1_000, 10_000):
            took = store(kind, batch, p, spent)
            numbers = [took, *spent.values()]
            print(f"{kind:24}{batch:8}" + "".join(f"{x / len(p) * 1e9:8.0f}" for x in numbers))


if __name__ == "__main__":
    main()
