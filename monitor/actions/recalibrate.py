"""A trial of calibrators in a process of its own: it may take long or fail, and the agent goes on meanwhile."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import msgspec

from monitor.core.gate import trial
from monitor.core.policy import Calibrator
from monitor.core.readings import LabelRule
from monitor.core.tables import Table
from monitor.store.files import make_folder
from monitor.store.log import blob, unblob

log = logging.getLogger("scorewatch")

Days = Mapping[int, Mapping[str, Table]]


class Trial:
    """A running trial of mature `days` (tables of the model's scores by slice) against the `current` calibrator.

    What it is asked and says is in `folder`, in files without a name: no other trial, not even one that was begun before the
    agent was killed, can write there. It ends by itself after `limit` ms.
    """

    def __init__(self, folder: Path, days: Days, rules: tuple[LabelRule, ...], current: Calibrator, limit: int) -> None:
        asked = {
            "days": {str(day): blob(tables) for day, tables in days.items()},
            "rules": [[rule.missing, rule.never] for rule in rules],
            "current": dict(current),
            "limit": limit / 1000,
        }
        make_folder(folder)
        self._until = time.monotonic() + limit / 1000
        # A session of its own: Ctrl-C at the agent's terminal is for the agent, which ends the trial.
        # One thread: small products gain nothing by more, and the model server needs the cores.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        # -P: not what is called `monitor` where the agent was started, but what the agent itself is.
        command = [sys.executable, "-P", "-c", "from monitor.actions.recalibrate import main; main()"]
        with ExitStack() as files:
            given, self._said, self._errors = (files.enter_context(TemporaryFile(dir=folder)) for _ in range(3))
            given.write(msgspec.msgpack.encode(asked))
            given.seek(0)
            self._process = subprocess.Popen(
                command, stdin=given, stdout=self._said, stderr=self._errors, env=environment, start_new_session=True
            )
            given.close()
            self._files = files.pop_all()

    def outcome(self, wait: bool) -> dict[str, Any] | None:
        """Return the report as JSON, `{"reason": timeout or trial_failed}` where there is none, or None while it runs."""
        left = self._until - time.monotonic()
        try:
            code = self._process.wait(max(left, 0.0)) if wait else self._process.poll()
        except subprocess.TimeoutExpired:
            code = None
        if code is None and not wait and left > 0:
            return None
        with self._files:
            if code is None:
                self._kill()
            return self._report(code)

    def _report(self, code: int | None) -> dict[str, Any]:
        """Return the report of the process that ended with a code, None when its time was over."""
        if code in (None, -signal.SIGALRM):
            return {"reason": "timeout"}
        if code:
            errors = _written(self._errors).decode(errors="replace")[-2_000:].strip()
            log.error("the trial of a recalibration ended with exit code %d: %s", code, errors)
            return {"reason": "trial_failed"}
        try:
            found: dict[str, Any] = json.loads(_written(self._said))
        except (OSError, ValueError) as e:
            log.error("what the trial of a recalibration said cannot be read: %s", e)
            return {"reason": "trial_failed"}
        return found

    def end(self) -> None:
        """Stop it, whatever it was about to say."""
        with self._files:
            self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _written(file: IO[bytes]) -> bytes:
    """Return all that the process has written."""
    file.seek(0)
    return file.read()


def main() -> None:
    """Run the trial that standard input describes and write its report as JSON to standard output."""
    os.nice(10)
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read())
    # Should the agent be killed, nobody else would end it; the default action of the signal needs no Python to run.
    signal.setitimer(signal.ITIMER_REAL, asked["limit"])
    days = {int(day): unblob(packed) for day, packed in asked["days"].items()}
    rules = tuple(LabelRule(missing, never) for missing, never in asked["rules"])
    json.dump(trial(days, rules, asked["current"]).to_dict(), sys.stdout)
