"""A trial of calibrators in a process of its own: it may take long or fail, and the agent goes on meanwhile."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

    What it is asked and says is in `folder`. It ends by itself after `limit` ms.
    """

    def __init__(self, folder: Path, days: Days, rules: tuple[LabelRule, ...], current: Calibrator, limit: int) -> None:
        asked = {
            "days": {str(day): blob(tables) for day, tables in days.items()},
            "rules": [[rule.missing, rule.never] for rule in rules],
            "current": dict(current),
            "limit": limit / 1000,
        }
        make_folder(folder)
        self._folder, self._until = folder, time.monotonic() + limit / 1000
        (folder / "asked").write_bytes(msgspec.msgpack.encode(asked))
        command = [sys.executable, "-c", "from monitor.actions.recalibrate import main; main()"]
        with (
            (folder / "asked").open("rb") as given,
            (folder / "said").open("wb") as said,
            (folder / "errors").open("wb") as errors,
        ):
            # A session of its own: Ctrl-C at the agent's terminal is for the agent, which ends the trial.
            # One thread: small products gain nothing by more, and the model server needs the cores.
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, stdin=given, stdout=said, stderr=errors, env=environment, start_new_session=True
            )

    def outcome(self, wait: bool) -> dict[str, Any] | None:
        """Return the report as JSON, `{"reason": timeout or trial_failed}` where there is none, or None while it runs."""
        left = self._until - time.monotonic()
        try:
            code = self._process.wait(max(left, 0.0)) if wait else self._process.poll()
        except subprocess.TimeoutExpired:
            code = None
        if code is None and (wait or left <= 0):
            self._process.kill()
            code = self._process.wait()
            return {"reason": "timeout"}
        if code is None:
            return None
        if code == -signal.SIGALRM:
            return {"reason": "timeout"}
        if code:
            errors = (self._folder / "errors").read_text(errors="replace")[-2_000:].strip()
            log.error("the trial of a recalibration ended with exit code %d: %s", code, errors)
            return {"reason": "trial_failed"}
        try:
            found: dict[str, Any] = json.loads((self._folder / "said").read_bytes())
        except (OSError, ValueError) as e:
            log.error("what the trial of a recalibration said cannot be read: %s", e)
            return {"reason": "trial_failed"}
        return found

    def end(self) -> None:
        """Stop it, whatever it was about to say."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Run the trial that standard input describes and write its report as JSON to standard output."""
    os.nice(10)
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read())
    # Should the agent be killed, nobody else would end it; the default action of the signal needs no Python to run.
    signal.setitimer(signal.ITIMER_REAL, asked["limit"])
    days = {int(day): unblob(packed) for day, packed in asked["days"].items()}
    rules = tuple(LabelRule(missing, never) for missing, never in asked["rules"])
    json.dump(trial(days, rules, asked["current"]).to_dict(), sys.stdout)
