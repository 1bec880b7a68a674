"""Whole replays of streams whose truth is known: how often a detector alarms for nothing, and what it finds."""

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from monitor.config import load
from monitor.core import baseline as baselines
from monitor.core.events import DAY
from monitor.core.tables import LABEL, ROW
from monitor.run import replay
from monitor.watched import baseline_checksum

LONG = "SCOREWATCH_LONG" in os.environ
"""200 replays of every world instead of 20 of one."""
DAY0 = 19_800
DAYS, A_DAY, BASELINE = 100, 100, 60
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def _gauss(rng, n):
    """Return the calibrated scores of two normal classes, 4 % positive."""
    x = rng.normal(2.0 * (rng.random(n) < 0.04), 1.0)
    return 1 / (1 + np.exp(-(2.0 * x - 2.0 + np.log(0.04 / 0.96))))


WORLDS = {
    "unif": lambda rng, n: rng.random(n),
    "fraud": lambda rng, n: rng.beta(0.3, 9, n),
    "conf": lambda rng, n: rng.beta(6, 1, n),
    "gauss": _gauss,
}

CONFIG = """\
state: state
clock: events
tick: 1d
sources:
  - file: {path: events.ndjson, follow: false}
models:
  m:
    baseline: baseline.json
    labels: {horizon: 0s, corrections: 0s}
    false_alarms_per_year: {warning: 0.1825}  # 1 in 20 in 100 days: A = 2,000
    rules: {%s}
"""
ALONE = ", ".join(f"{name}: off" for name in ("calibration", "recall", "precision", "fpr", "high_confidence_errors", "roc_auc"))
ALONE += ", prevalence: off, flagged_share: off, score_drift: off, policy_volume: off, data_loss: off, label_coverage: off"


def logit(p):
    """Return ln p / (1 - p) of scores kept off 0 and 1."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.log(p / (1 - p))


def write_world(folder, world, seed, shift=0.0, since=0):
    """Write baseline, events and configuration; from the day `since` on true logits are `shift` above the score's."""
    rng = np.random.default_rng([seed, list(WORLDS).index(world)])
    n = BASELINE * A_DAY
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["score"] = WORLDS[world](rng, n)
    rows["ts"] = ((DAY0 - BASELINE) * DAY + np.arange(n) * (DAY // A_DAY)).astype(np.int64)
    labels["outcome"] = rng.random(n) < rows["score"]
    provenance = {"kind": "validation", "data": world, "rows": n}
    made = baselines.build("m", "1", (), rows, labels, [()], provenance)
    (folder / "baseline.json").write_text(baselines.to_json(replace(made, checksum=baseline_checksum(made))))
    p = WORLDS[world](rng, DAYS * A_DAY)
    day = np.arange(len(p)) // A_DAY
    y = rng.random(len(p)) < 1 / (1 + np.exp(-logit(p) - shift * (day >= since)))
    ts = (DAY0 * DAY + np.arange(len(p)) * (DAY // A_DAY)) // 1000
    lines = []
    for i, (t, score, label) in enumerate(zip(ts.tolist(), p.tolist(), y.tolist(), strict=True)):
        lines.append(f'{{"id":"{i}","ts":{t},"model":"m","version":"1","score":{score!r}}}')
        lines.append(f'{{"id":"{i}","label":{label:d},"ts":{t},"model":"m"}}')
    (folder / "events.ndjson").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(CONFIG % ALONE)


def replayed(world, shift, since, seed):
    """Return the days after the beginning at which an alert fired, and every item of the timeline."""
    with TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        write_world(folder, world, seed, shift, since)
        items = []
        replay(load(folder / "config.yaml"), "test", items.append, False, False)
    fired = [i["at"] for i in items if i["kind"] == "alert" and i["state"] == "firing"]
    return [int((np.datetime64(at[:10]) - np.datetime64("1970-01-01", "D") - DAY0).astype(int)) for at in fired], items


def share_alarmed(world, n, shift=0.0, since=0):
    """Return in how many of n replays an alert fires (not before the shift)."""
    with ProcessPoolExecutor(2) as pool:
        found = pool.map(partial(replayed, world, shift, since), range(n), chunksize=5)
    return sum(any(day > since for day in fired) for fired, _ in found)


CASES = [(w, 200) for w in WORLDS] if LONG else [("fraud", 20)]


@pytest.mark.parametrize(("world", "n"), CASES)
def test_calibrated_streams_stay_silent(world, n):
    """Of stationary calibrated streams that are looked at for 100 days at most the 5 % of the budget alarm."""
    alarmed = share_alarmed(world, n)
    print(f"{world}: {alarmed} of {n} calibrated replays alarm")
    assert alarmed <= (19 if n == 200 else 3)


@pytest.mark.parametrize(("world", "n"), CASES)
def test_a_shift_is_found(world, n):
    """A shift of half a logit is found, from the first event on and from the middle."""
    first, middle = share_alarmed(world, n, 0.5), share_alarmed(world, n, 0.5, DAYS // 2)
    print(f"{world}: +.5 is found in {first} from the first event, in {middle} from the middle, of {n} replays")
    assert first >= (0.95 if n == 200 else 0.8) * n
    assert middle >= ((0.95 if world in ("unif", "conf") else 0.75) if n == 200 else 0.5) * n


def test_the_command_replays_the_same(tmp_path):
    """`scorewatch replay` prints what the function that it calls gives."""
    write_world(tmp_path, "fraud", 0, 0.5)
    command = [sys.executable, "-m", "monitor", "replay", "--config", str(tmp_path / "config.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    fired, items = replayed("fraud", 0.5, 0, 0)
    assert fired
    assert printed == json.loads(json.dumps(items))


CANARY = """\
state: state
clock: events
tick: 1d
sources:
  - file: {path: events.ndjson, follow: false}
models:
  m:
    versions: {"2": canary}
    baseline: baseline.json
    threshold: 0.5
    labels: {horizon: 24h, corrections: 0s}
"""


@pytest.mark.parametrize(("shift", "found"), [(1.0, {"canary"}), (0.0, set())])
def test_a_broken_canary_is_named_and_the_live_version_stays_silent(tmp_path, shift, found):
    """A canary of 5 % of 20,000 rows a day whose logits are 1 too high alarms within 5 days; nothing else does."""
    write_world(tmp_path, "unif", 3)
    (tmp_path / "config.yaml").write_text(CANARY)
    rng, days, n = np.random.default_rng(4), 8, 20_000
    lines = []
    for day in range(days):
        p, canary = rng.random(n), rng.random(n) < 0.05
        y = rng.random(n) < 1 / (1 + np.exp(-logit(p) - rng.normal(0, 0.2)))
        served = np.where(canary, 1 / (1 + np.exp(-logit(p) - shift)), p).tolist()
        for i, t in enumerate(((DAY0 + day) * 86_400 + np.arange(n) * 86_400 // n).tolist()):
            ident = f"{day}-{i}"
            lines.append(f'{{"id":"{ident}","ts":{t},"model":"m","version":"{1 + canary[i]}","score":{served[i]!r}}}')
            lines.append(f'{{"id":"{ident}","label":{y[i]:d},"ts":{t},"model":"m"}}')
    (tmp_path / "events.ndjson").write_text("\n".join(lines) + "\n")
    items = []
    replay(load(tmp_path / "config.yaml"), "test", items.append, False, False)
    fired = [i for i in items if i["kind"] == "alert" and i["state"] == "firing"]
    assert {i["rule"] for i in fired} == found
    for i in fired:
        assert (i["version"], i["diagnosis"], i["advice"]) == ("2", "canary_fault", "stop_canary")
        assert i["at"][:10] <= str(np.datetime64("1970-01-01") + DAY0 + 5)
