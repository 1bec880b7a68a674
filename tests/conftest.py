"""The real agent as a process, for tests from outside."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

SHARED = Path(__file__).parent.parent.parent / "shared"
REQUIRED = os.environ.get("SCOREWATCH_REQUIRE", "").split(",")

CONFIG = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m: {labels: {horizon: 24h}, segments: [country]}
"""


def pytest_runtest_setup(item):
    """Skip a test that needs a program which is missing, or fail it where SCOREWATCH_REQUIRE says the program must be there."""
    for mark in item.iter_markers("needs"):
        missing = [p for p in mark.args if shutil.which(p) is None]
        if missing and "prometheus" in REQUIRED:
            pytest.fail(f"SCOREWATCH_REQUIRE=prometheus, but {', '.join(missing)} is not installed")
        if missing:
            pytest.skip(f"{', '.join(missing)} is not installed (Debian: prometheus, prometheus-alertmanager)")


@pytest.fixture(scope="session")
def shared():
    """Return the folder of shared test data; skip where it is absent."""
    if not SHARED.exists():
        pytest.skip("the shared data set is not beside the project")
    return SHARED


class Agent:
    """`scorewatch run` in a folder of its own, talked to over HTTP."""

    def __init__(self, folder, config=CONFIG, prefix=()):
        self.folder, self.config, self.prefix = folder, folder / "config.yaml", prefix
        self.config.write_text(config)
        self.log = folder / "log.txt"
        self.process = None

    def start(self):
        """Start the process and wait until it listens."""
        with self.log.open("ab") as err:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "monitor", "run", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        first = self.process.stdout.readline()
        assert first, self.log.read_text()
        self.api, self.metrics_url = [w.rstrip(",") for w in first.split() if w.startswith("http")]
        return self

    def stop(self, number=signal.SIGTERM):
        """Send a signal, wait, and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code

    def ask(self, path, body=None, headers=None, method=None):
        """Return (status, decoded JSON or text, headers) of a request to the api, or to an absolute URL."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        url = path if path.startswith("http") else self.api + path
        request = urllib.request.Request(url, data, headers or {}, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as e:
            answer = e
        with answer:
            text = answer.read().decode()
            is_json = answer.headers.get("content-type", "").startswith("application/json") and text
            return answer.status, json.loads(text) if is_json else text, answer.headers

    def post(self, kind, events):
        """Post events as a JSON list (or bytes as they are) and return the receipt; the request must succeed."""
        status, body, _ = self.ask(f"/v1/{kind}", events)
        assert status == 200, body
        return body

    def now(self, when):
        """Move a clock of events."""
        self.post("predictions", {"now": when})

    def metrics(self, refresh=True):
        """Return {series with labels as text: value}; asking for the state first makes them those of this moment."""
        if refresh:
            self.ask("/v1/state")
        text = self.ask(self.metrics_url)[1]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line and line[0] != "#"}

    def gauge(self, name, **labels):
        """Return the value of the one series of that name with these labels, None when it is absent."""
        found = [
            v for k, v in self.metrics().items() if k.split("{")[0] == name and all(f'{a}="{b}"' in k for a, b in labels.items())
        ]
        assert len(found) < 2, (name, labels, found)
        return found[0] if found else None

    def state(self):
        """Return /v1/state."""
        return self.ask("/v1/state")[1]


@contextlib.contextmanager
def agents(root):
    """Give a function that starts agents; at the end each must have stopped cleanly, with no traceback in its log."""
    started = []

    def start(config=CONFIG, folder="agent", prefix=()):
        (root / folder).mkdir(exist_ok=True)
        started.append(Agent(root / folder, config, prefix).start())
        return started[-1]

    yield start
    for a in started:
        if a.process.poll() is None:
            assert a.stop() == 0, a.log.read_text()
        assert "Traceback" not in a.log.read_text(), a.log.read_text()


@pytest.fixture
def agent(tmp_path):
    """Return a function that starts agents; at the end each must have stopped cleanly, with no traceback in its log."""
    with agents(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_agent(tmp_path_factory):
    """Return the same for agents that live as long as the tests of a module."""
    with agents(tmp_path_factory.mktemp("agents")) as start:
        yield start
