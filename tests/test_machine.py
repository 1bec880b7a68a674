"""What the machine does to the agent: a full disk, a directory that cannot be written, a clock that jumps."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time

import pytest

from monitor import clock
from monitor.agent import Agent
from monitor.config import load
from monitor.core.events import DAY, HOUR
from monitor.formats import decode

DAY0 = 1_700_006_400_000 // DAY * DAY
DEADLINE = 60
CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h}}
"""
UNPRIVILEGED = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@contextlib.contextmanager
def small_disk(folder, size="16m", system="tmpfs"):
    """Mount a small file system there; skip where that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", system, "-o", f"size={size}", "none", str(folder)]
    if system != "tmpfs":
        image = folder.parent / "image"
        with image.open("wb") as f:
            f.truncate(int(size[:-1]) << 20)
        if shutil.which(f"mkfs.{system}") is None:
            pytest.skip(f"mkfs.{system} is missing")
        subprocess.run([f"mkfs.{system}", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(folder)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def take(folder, path, left):
    """Write a file so large that so much of the disk is left."""
    stat = os.statvfs(folder)
    with path.open("wb") as f:
        f.write(bytes(stat.f_bavail * stat.f_frsize - (int(left[:-1]) << 20)))
        os.fsync(f.fileno())


def fill(folder):
    """Write a file until the disk is full, and return it."""
    path = folder / "other"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as f:
        while True:
            f.write(bytes(4096))
    return path


def events(first, n, day=0):
    """Return n predictions of a day."""
    return [
        {"id": str(i), "ts": DAY0 + day * DAY + i, "model": "m", "version": "1", "score": 0.5} for i in range(first, first + n)
    ]


def until(condition):
    """Wait until it holds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ready(a):
    """Return the status of the probe."""
    return a.ask(a.metrics_url.replace("/metrics", "/-/ready"))[0]


def survives(a, spoil, mend):
    """Nothing can be stored while the cause is there, all that is known is answered, and everything goes on afterwards."""
    assert a.post("predictions", events(0, 1_000))["accepted"] == 1_000
    a.ask("/v1/models/m/activate", {"version": "1", "threshold": 0.5, "reason": "test"})
    assert (a.state()["problem"], a.gauge("scorewatch_store_failing")) == (None, 0)
    spoil()
    acknowledged = 1_000
    while True:  # what fits into blocks that are there already may still be taken
        status, body, headers = a.ask("/v1/predictions", events(acknowledged, 500))
        if status != 200:
            break
        acknowledged += body["accepted"]
    assert (status, body["error"], headers["Retry-After"]) == (503, "store", "1")
    for _ in range(3):
        assert a.ask("/v1/labels", [{"id": "1", "ts": DAY0 + HOUR, "label": 1, "model": "m"}])[0] == 503
        state = a.state()
        assert state["problem"].startswith("the store failed (")
        assert state["versions"][0]["waiting"] > 0
        assert a.ask("/v1/models/m/policy")[1]["thresholds"] == {"all": 0.5}
        assert a.metrics(refresh=False)["scorewatch_store_failing"] == 1
        assert ready(a) == 200
        time.sleep(0.3)
    mend()
    until(lambda: a.state()["problem"] is None)
    assert a.gauge("scorewatch_store_failing") == 0
    assert a.gauge("scorewatch_store_failures_total") >= 1
    again = a.post("predictions", events(0, acknowledged + 500))
    assert (again["accepted"], again["duplicates"]) == (500, acknowledged)
    assert ready(a) == 200


def test_a_full_disk(tmp_path, agent):
    """With the disk full nothing is acknowledged and nothing is lost; with room again the agent goes on by itself."""
    folder = tmp_path / "agent" / "state"
    with small_disk(folder):
        a = agent(CONFIG)
        survives(a, lambda: fill(folder), lambda: (folder / "other").unlink())
        assert a.stop() == 0


def test_files_that_may_not_grow(tmp_path, agent):
    """The same where a limit of the process is what stops its files from growing."""
    a = agent(CONFIG)
    limit = (tmp_path / "agent" / "state" / "log.db").stat().st_size
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def limited(size):
        resource.prlimit(a.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    survives(a, lambda: limited(limit), lambda: limited(hard))


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root can write everywhere; setpriv is missing")
def test_a_directory_that_cannot_be_written(tmp_path, agent):
    """Where no file can be made any more events are stored and days close all the same; the missing file is made later."""
    a = agent(CONFIG, prefix=UNPRIVILEGED)
    state = tmp_path / "agent" / "state"
    a.post("predictions", events(0, 500) + events(500, 500, day=1))
    state.chmod(0o555)
    assert a.post("predictions", events(1_000, 100, day=4))["accepted"] == 100
    said = a.state()
    assert said["problem"] == f"{state}/baselines/m/1.json: Permission denied; it is tried again at every tick"
    assert (said["versions"][0]["matured"], a.gauge("scorewatch_store_failing"), ready(a)) == (1_000, 1, 200)
    state.chmod(0o755)
    a.now(DAY0 + 4 * DAY + 2 * HOUR)
    assert (a.state()["problem"], a.gauge("scorewatch_store_failing")) == (None, 0)
    assert (state / "baselines" / "m" / "1.json").exists()


@pytest.mark.parametrize(("spoil", "said"), [("full", "disk is full; make room there"), ("read-only", "not writable")])
def test_a_start_where_nothing_can_be_written(tmp_path, spoil, said):
    """A state directory without room, or read-only, ends the start with a message and exit code 1."""
    folder = tmp_path / "state"
    with small_disk(folder, size="1m"):
        if spoil == "full":
            fill(folder)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        (tmp_path / "config.yaml").write_text(CONFIG)
        command = [sys.executable, "-m", "monitor", "run", "--config", str(tmp_path / "config.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(folder) in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("size", "config"),
    [("2m", CONFIG), ("9m", CONFIG + "waiting: {rows: 200}\n")],
    ids=["no block", "no room for rows that do not wait"],
)
@pytest.mark.parametrize("system", ["tmpfs", "ext4"])
def test_files_that_find_no_room(tmp_path, agent, system, size, config):
    """Where a file cannot get its disk nothing is acknowledged and the log goes on; with room again each score counts once."""
    folder = tmp_path / "agent" / "state"
    with small_disk(folder, "64m", system):
        ballast = folder / "other"
        take(folder, ballast, size)
        a = agent(config)
        for _ in range(3):
            status, body, headers = a.ask("/v1/predictions", events(0, 1_000))
            assert (status, body["error"], headers["Retry-After"]) == (503, "store", "1")
            assert a.state()["problem"].startswith("the store failed (No space left on device)")
            assert (a.metrics(refresh=False)["scorewatch_store_failing"], ready(a)) == (1, 200)
            until(lambda: a.ask("/v1/models/m/audit")[0] == 200)  # opened anew, for which the log had room
        ballast.unlink()
        again = a.post("predictions", events(0, 1_000))
        assert again["accepted"] + again["duplicates"] == 1_000
        assert a.post("predictions", events(0, 1_000))["duplicates"] == 1_000
        until(lambda: a.state()["problem"] is None)
        assert a.stop() == 0
        a.start()
        assert a.post("predictions", events(0, 1_000))["duplicates"] == 1_000
        a.now(DAY0 + 3 * DAY)
        assert a.state()["versions"][0]["matured"] == 1_000
        assert a.stop() == 0


def test_a_clock_that_jumps_back_and_forth(tmp_path, monkeypatch):
    """While the machine's time is wrong events of the right time are taken, no day closes, and no row leaves."""
    (tmp_path / "config.yaml").write_text(CONFIG.replace("clock: events\n", "").replace("24h", "24h, corrections: 0s"))
    right = clock.wall() // DAY * DAY + 12 * HOUR  # the same at any time of the day
    monkeypatch.setattr(clock, "wall", lambda: right)
    a = Agent(load(tmp_path / "config.yaml"), "test")
    for i, jump in enumerate((0, -DAY, 400 * DAY, 0, -400 * DAY, 3 * DAY, 0)):
        monkeypatch.setattr(clock, "wall", lambda jump=jump: right + jump)
        now = clock.wall() - jump
        body = [{"id": f"{i}-{j}", "ts": now - j * HOUR, "model": "m", "version": "1", "score": 0.5} for j in range(30)]
        receipt = a.ingest([decode(a.decoder(), json.dumps(body).encode(), "predictions")])[0]
        assert (receipt.accepted, receipt.rejected) == (30, ())
        a.tick(a.now())
        assert (len(a.store.closed), a.store.head, a.store.tail) == (0, 0, (i + 1) * 30)
        assert abs(a.store.meta["last_tick"] - right) < HOUR
    a.store.close()
