"""What a model with 50 classes and 20 slices takes: memory of tables, ingest, ticks, in processor time.

`python benchmarks/classes.py [EVENTS]` sends that many events a day (500 unless given) and their labels for 31 days.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from monitor.agent import Agent
from monitor.config import parse
from monitor.core.events import DAY, HOUR
from monitor.core.tables import EMPTY, Table
from monitor.formats.classes import softmax

K, SLICES, DAYS = 50, 20, 31
START = 1_740_960_000_000


def size(table: Table) -> int:
    """Return the bytes of a table, its objects included."""
    if table is EMPTY:
        return 0
    arrays = [getattr(table, name) for name in table.__slots__]
    return sys.getsizeof(table) + sum(a.nbytes + 128 for a in arrays if a is not None)


def main(per_day: int) -> None:
    """Send 31 days of events and labels to an agent in this process and print what it takes."""
    rng = np.random.default_rng(4)
    names = [f"c{i}" for i in range(K)]
    with tempfile.TemporaryDirectory() as folder:
        text = f"models: {{m: {{classes: [{', '.join(names)}], labels: {{horizon: 1h}}, segments: [s], threshold: 0.5}}}}"
        agent = Agent(parse(f"state: state\nclock: events\ntick: 1h\n{text}", "f.yaml", Path(folder)), "0", durable=False)
        decoder, spent, ticks = agent.decoder(), 0.0, []
        for day in range(DAYS):
            p = softmax(2.0 * rng.normal(size=(per_day, K)))
            y = (p.cumsum(axis=1) > rng.random((per_day, 1))).argmax(axis=1)
            ids, ts = (
                [f"{day}-{i}" for i in range(per_day)],
                (START + day * DAY + np.sort(rng.integers(0, DAY, per_day))).tolist(),
            )
            for hour in range(24):
                at = [i for i in range(per_day) if ts[i] // HOUR % 24 == hour]
                begun = time.process_time()
                if at:
                    columns = {"id": [ids[i] for i in at], "ts": [ts[i] for i in at], "model": "m", "version": "v"}
                    columns |= {"scores": p[at].tolist(), "segments": [{"s": f"v{i % (SLICES - 2)}"} for i in at]}
                    agent.ingest([_batch(decoder, "predictions", columns)])
                    labels = {"id": columns["id"], "ts": columns["ts"], "label": [names[y[i]] for i in at]}
                    agent.ingest([_batch(decoder, "labels", labels)])
                spent += time.process_time() - begun
                begun, agent.clock.last = time.process_time(), START + day * DAY + (hour + 1) * HOUR
                agent.tick(agent.clock.last)
                ticks.append(time.process_time() - begun)
        begun = time.process_time()
        agent.publish()
        published, begun = time.process_time() - begun, time.process_time()
        agent.classes("m", "v", "28d")
        said = time.process_time() - begun
        seen = list(agent.watched.values())
        days = sum(size(t) for w in seen for tables in w.days.values() for t in tables.values())
        hours = sum(size(t) for w in seen for tables in w.hours.values() for t in tables)
        base = sum(size(t) for w in seen if w.baseline for tables in w.baseline.days.values() for t in tables.values())
        print(f"{per_day:,} events a day, {K} classes, {len(seen[0].slices)} slices, {max(len(w.days) for w in seen)} days")
        print(f"tables: days {days / 1e6:.1f} MB, hours {hours / 1e6:.1f} MB, observed baselines {base / 1e6:.1f} MB")
        print(f"process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB at most")
        print(f"ingest: {1e6 * spent / (2 * per_day * DAYS):.0f} µs an event or label, decoding included, without flushes")
        print(
            f"tick: median {1e3 * np.median(ticks):.0f} ms, at most {1e3 * max(ticks):.0f} ms; publish {1e3 * published:.0f} ms;"
        )
        print(f"classes: {1e3 * said:.1f} ms; series text {len(agent.exporter.text) / 1e6:.1f} MB")
        agent.store.close()


def _batch(decoder, kind, columns):
    import msgspec

    return decoder.json(msgspec.json.encode(columns), kind)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
