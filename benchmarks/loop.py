"""What the closed loop is worth on real flights: April to December 2013, against doing nothing.

`python benchmarks/loop.py` prints it, with `--write` into docs/closed-loop.md. It replays the demo's flights from March on three
times: with the mode auto, with the mode auto and undo switched off (the negative control), and with the mode propose.
"""

import argparse
import contextlib
import io
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from monitor import timeline
from monitor.config import FileSource, load
from monitor.core.policy import apply, from_json
from monitor.core.tables import log_losses
from monitor.demo.flights import LIVE, MODEL, VERSION, flights
from monitor.demo.script import write_files
from monitor.run import replay
from monitor.store.files import safe_name

PAGE = Path(__file__).parent.parent / "docs" / "closed-loop.md"
BEGIN, END = "<!-- from here: benchmarks/loop.py -->\n", "<!-- to here -->"
_CHANGES = ("activated", "rolled_back")


@dataclass(frozen=True)
class Run:
    """What happened (timeline items), and of each flight with an outcome its month, score, what was served, and the outcome."""

    items: list
    month: np.ndarray
    score: np.ndarray
    served: np.ndarray
    late: np.ndarray

    @property
    def changes(self):
        """Return how often another policy was served, the first one not counted: it is what the configuration says."""
        return max(sum(i["kind"] in _CHANGES for i in self.items) - 1, 0)

    def losses(self):
        """Return by month, and in total, n, log loss of the scores, and by how many percent that of what was served differs."""
        without, with_ = log_losses(self.score, self.late), log_losses(self.served, self.late)
        masks = {str(m): self.month == m for m in np.unique(self.month)} | {"total": np.ones(len(self.late), bool)}
        return {
            m: (int(k.sum()), float(without[k].mean()), 100 * float(with_[k].sum() / without[k].sum() - 1))
            for m, k in masks.items()
        }


def run(folder, mode, undo=True):
    """Replay the flights with this mode and return the run."""
    with contextlib.redirect_stdout(io.StringIO()):
        write_files(folder)
    path = folder / "loop.yaml"
    text = (folder / "demo.yaml").read_text().replace("calibration: {action: none}", "calibration: {action: recalibrate}")
    path.write_text(text.replace("mode: auto", f"mode: {mode}\n    recalibrate: {{undo: {str(undo).lower()}}}"))
    config = load(path)
    files = tuple(FileSource(folder / f"{name}.csv", "events", False, "csv") for name in ("predictions", "labels"))
    items = []
    models = {name: replace(m, policies=None) for name, m in config.models.items()}
    replay(replace(config, sources=files, models=models), "benchmark", items.append, False, False)
    stored = config.state / "policies" / safe_name(MODEL) / safe_name(VERSION)
    changes = [i for i in items if i["kind"] in _CHANGES]
    policies = [from_json((stored / f"{i['policy']}.json").read_text()) for i in changes]
    live = [f for f in flights() if f.scheduled >= LIVE and f.late is not None]
    at, score, late = (np.array([getattr(f, name) for f in live], float) for name in ("scheduled", "score", "late"))
    begun = [datetime.fromisoformat(i["at"]).timestamp() for i in changes]
    served, which = score.copy(), np.searchsorted(begun, at, side="right") - 1
    for k, policy in enumerate(policies):
        served[which == k] = apply(policy.calibrator, score[which == k])
    month = np.array([datetime.fromtimestamp(t, UTC).strftime("%Y-%m") for t in at])
    # The last hours of the year are New Year's Day in UTC.
    month[month == "2014-01"] = "2013-12"
    return Run(items, month, score, served, late == 1)


def page(auto, control, proposed):
    """Return what the document shows, as Markdown."""
    runs = [r.losses() for r in (auto, control, proposed)]
    lines = ["| month | flights | log loss, nothing done | auto | auto, undo off | propose |", "|---|---|---|---|---|---|"]
    for m, (n, before, _) in runs[0].items():
        lines.append(f"| {m} | {n:,} | {before:.4f} | " + " | ".join(f"{r[m][2]:+.2f} %" for r in runs) + " |")
    lines.append(f"| changes of the policy | | | {auto.changes} | {control.changes} | {proposed.changes} |")
    kinds = ("alert", "decision", "proposal", "answer", *_CHANGES)
    told = [timeline.line(i) for i in auto.items if i["kind"] in kinds]
    return "\n".join([*lines, "", "What the journal of the mode auto says:", "", "```", *told, "```", ""])


def main():
    """Print or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    args = parser.parse_args()
    runs = []
    for mode, undo in (("auto", True), ("auto", False), ("propose", True)):
        with tempfile.TemporaryDirectory() as name:
            runs.append(run(Path(name), mode, undo))
    made = page(*runs)
    if args.write:
        text = PAGE.read_text()
        a, b = text.index(BEGIN) + len(BEGIN), text.index(END)
        PAGE.write_text(text[:a] + made + text[b:])
    else:
        print(made)


if __name__ == "__main__":
    main()
