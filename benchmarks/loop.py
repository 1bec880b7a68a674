"""What the closed loop is worth on real flights: April to December 2013 with the mode auto, against doing nothing.

`python benchmarks/loop.py` prints it, `--write` also puts it into docs/closed-loop.md. `--undo off` is the negative control.
"""

import argparse
import json
import math
import tempfile
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from monitor import timeline
from monitor.config import FileSource, load
from monitor.core.policy import apply, from_json
from monitor.demo.flights import LIVE, MODEL, VERSION, flights
from monitor.demo.script import write_files
from monitor.run import replay
from monitor.store.files import safe_name

PAGE = Path(__file__).parent.parent / "docs" / "closed-loop.md"
BEGIN, END = "<!-- begin: benchmarks/loop.py -->", "<!-- end -->"


def run(folder, mode="auto", undo=True, action="recalibrate", rows=1_000, rules=""):
    """Replay the flights from March on and return what happened, and what was served instead of each flight's score."""
    import contextlib, io

    with contextlib.redirect_stdout(io.StringIO()):
        write_files(folder)
    text = (folder / "demo.yaml").read_text()
    text = text.replace("mode: auto", f"mode: {mode}\n    recalibrate: {{rows: {rows}, undo: {str(undo).lower()}}}")
    (folder / "loop.yaml").write_text(text)
    config = load(folder / "loop.yaml")
    files = tuple(FileSource(folder / f"{name}.csv", "events", False, "csv") for name in ("predictions", "labels"))
    items = []
    models = {name: replace(m, policies=None) for name, m in config.models.items()}
    replay(replace(config, sources=files, models=models), "bench", items.append, False, False)
    changes = [i for i in items if i["kind"] in ("activated", "rolled_back")]
    stored = config.state / "policies" / safe_name(MODEL) / safe_name(VERSION)
    served = [
        (datetime.fromisoformat(i["at"]).timestamp(), from_json((stored / f"{i['policy']}.json").read_text())) for i in changes
    ]
    live = [f for f in flights() if f.scheduled >= LIVE and f.late is not None]
    at, raw, late = (
        np.array([f.scheduled for f in live]),
        np.array([float(f.score) for f in live]),
        np.array([f.late for f in live]),
    )
    which = np.searchsorted([t for t, _ in served], at, side="right") - 1
    out = raw.copy()
    for k, (_, policy) in enumerate(served):
        out[which == k] = apply(policy.calibrator, raw[which == k])
    return items, at, raw, out, late


def loss(p, y):
    p = np.clip(p, 2.0**-52, 1 - 2.0**-52)
    return -np.log(np.where(y == 1, p, 1 - p))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--undo", choices=("on", "off"), default="on")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        items, at, raw, out, late = run(Path(name), args.mode, args.undo == "on")
    for i in items:
        if i["kind"] in ("alert", "decision", "activated", "rolled_back", "proposal", "answer"):
            print(timeline.line(i))
    a, b = loss(raw, late), loss(out, late)
    months = np.array([datetime.fromtimestamp(t, UTC).strftime("%Y-%m") for t in at])
    for m in np.unique(months):
        k = months == m
        print(m, k.sum(), f"{a[k].mean():.4f} {b[k].mean():.4f} {100 * (b[k].sum() / a[k].sum() - 1):+.2f} %")
    print("total", f"{100 * (b.sum() / a.sum() - 1):+.2f} %")


if __name__ == "__main__":
    main()
