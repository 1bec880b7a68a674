"""A store that is killed, or loses power, at any step ends as if nothing had happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kill import points
from kill.stores import check, small, stream

LONG = "SCOREWATCH_LONG" in os.environ
SEEDS, OPERATIONS, KILLS = (range(1, 5), 600, 100) if LONG else (range(1, 3), 160, 20)


@pytest.fixture(autouse=True)
def small_here(monkeypatch):
    """Let the store be the same here as in the victims."""
    small(monkeypatch.setattr)


def live(folder, seed, power, broken=""):
    """Let a store die again and again over the stream of a seed, and end it; return the end of the process."""
    given = map(str, (folder, seed, OPERATIONS, KILLS, int(power), broken))
    command = [sys.executable, "-m", "kill.stores", *given]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=Path(__file__).parents[1])


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_store_survives(folder, power):
    """A store that dies at its statements, writes, flushes and deletions ends as the oracle: rows, labels, days, journal."""
    for seed in SEEDS:
        done = live(folder / str(seed), seed, power)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["kills"] == KILLS
        check(folder / str(seed), stream(seed, OPERATIONS))
    if LONG:
        passed, hit = points.steps(folder / "points")
        assert passed.keys() == hit.keys(), passed.keys() - hit.keys()
        print(f"{len(SEEDS) * KILLS} stores killed, at each of {len(hit)} steps")


@pytest.mark.parametrize(("broken", "power"), [("late_flush", True), ("rows_first", False), ("labels_unflushed", True)])
def test_mistakes_are_found(folder, broken, power):
    """Rows committed before they are flushed, rows that leave before their table is stored, and labels forgotten too early."""
    done = live(folder / "state", 1, power, broken)
    if done.returncode:  # the next life saw it by itself
        assert "missing or too short" in done.stderr
        return
    assert done.stderr == ""
    with pytest.raises(AssertionError):
        check(folder / "state", stream(1, OPERATIONS))
