"""`scorewatch demo`: the real agent in a process of its own, and this process as the model server that streams to it."""

import http.client
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monitor import timeline
from monitor.core import baseline as baselines
from monitor.demo.flights import LIVE, MODEL, SEGMENTS, VERSION, Flight, baseline, flights, hours, threshold

CARELESS_AT, CARELESS = int(datetime(2013, 6, 15, tzinfo=UTC).timestamp()), 0.05
_DAY = 86_400


def _config() -> Path:
    here = Path(__file__).parent
    inside = here / "demo.yaml"
    return inside if inside.exists() else here.parent.parent / "configs" / "demo.yaml"


def write_files(folder: Path) -> None:
    """Write the flights of March to December as files for `scorewatch replay`, with baseline and configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = flights()
    promised = baseline([f for f in everything if f.scheduled < LIVE])
    (folder / "baseline.json").write_text(baselines.to_json(promised))
    text = _config().read_text()
    (folder / "demo.yaml").write_text(f"{text}    threshold: {threshold(promised)!r}\n")
    predictions, labels = ["id,ts,model,version,score,origin,carrier"], ["id,ts,model,label"]
    predictions += [f"{f.id},{f.scheduled},{MODEL},{VERSION},{f.score},{f.origin},{f.carrier}" for f in everything]
    arrived = sorted((f for f in everything if f.arrived is not None), key=lambda f: f.arrived or 0)
    labels += [f"{f.id},{f.arrived},{MODEL},{f.late}" for f in arrived]
    for name, lines in (("predictions.csv", predictions), ("labels.csv", labels)):
        (folder / name).write_text("\n".join(lines) + "\n")
    print(f"scorewatch replay --config {folder}/demo.yaml {folder}/predictions.csv {folder}/labels.csv")


class Client:
    """A model server's side of the agent's api, over one connection."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self.tag = ""
        self.policy: dict[str, Any] = {}

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, str]:
        """Return status, decoded body and ETag; raise RuntimeError for an answer that is not 2xx or 304."""
        self.connection.request(method, path, body, headers or {})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
        return answer.status, json.loads(text) if text else None, answer.getheader("ETag", "")

    def follow(self) -> None:
        """Ask for the policy; it comes only when it changed."""
        status, body, tag = self.call("GET", f"/v1/models/{MODEL}/versions/{VERSION}/policy", headers={"If-None-Match": self.tag})
        if status == 200:
            self.tag, self.policy = tag, body

    def send(self, kind: str, events: list[dict[str, Any]]) -> None:
        """Post events; every one of them must be taken."""
        body = b"\n".join(json.dumps(e, separators=(",", ":")).encode() for e in events)
        receipt = self.call("POST", f"/v1/{kind}", body, {"Content-Type": "application/x-ndjson"})[1]
        if receipt["accepted"] != len([e for e in events if "id" in e]):
            raise RuntimeError(f"{kind}: {receipt}")

    def activate(self, at: int, value: float, reason: str) -> None:
        """Move the agent's clock to `at` and make a policy with this threshold current."""
        self.send("predictions", [{"now": at}])
        body = {"version": VERSION, "threshold": value, "reason": reason, "who": "demo"}
        self.call("POST", f"/v1/models/{MODEL}/activate", json.dumps(body).encode())

    def prediction(self, f: Flight) -> dict[str, Any]:
        """Return the event of a flight under the policy that is followed now."""
        score = float(f.score)
        return {
            "id": f.id,
            "ts": f.scheduled,
            "model": MODEL,
            "version": VERSION,
            "score": score,
            "segments": {name: getattr(f, name) for name in SEGMENTS},
            "verdict": next(verdict for cut, verdict in reversed(self.policy["bands"]["all"]) if score >= cut),
            "policy": self.policy["id"],
        }


class Screen:
    """Prints the timeline; on a terminal with a progress bar under it."""

    def __init__(self) -> None:
        self.tty = sys.stdout.isatty()
        self.seen = 0

    def show(self, items: list[dict[str, Any]]) -> None:
        """Print new timeline items."""
        self.seen += len(items)
        for item in items:
            print(("\r\033[K" if self.tty else "") + timeline.line(item, self.tty), flush=True)

    def progress(self, share: float, at: int, sent: int) -> None:
        """Draw the bar."""
        if self.tty:
            width = max(10, min(40, shutil.get_terminal_size().columns - 45))
            done = round(share * width)
            day = datetime.fromtimestamp(at, UTC).strftime("%d %b %Y")
            print(f"\r\033[K{'█' * done}{'░' * (width - done)} {share:4.0%}  {day}  {sent:,} events", end="", flush=True)

    def clear(self) -> None:
        """Take the bar away."""
        if self.tty:
            print("\r\033[K", end="")


def demo(speed: float, end: bool) -> int:
    """Run the demo and return its exit code; `speed` is in days of flights a second, 0 as fast as it goes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the agent and the folder go with the demo
    with tempfile.TemporaryDirectory(prefix="scorewatch-demo-") as name:
        folder = Path(name)
        everything = flights()
        promised = baseline([f for f in everything if f.scheduled < LIVE])
        (folder / "baseline.json").write_text(baselines.to_json(promised))
        shutil.copy(_config(), folder / "demo.yaml")
        command = [sys.executable, "-m", "monitor", "run", "--config", str(folder / "demo.yaml")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as agent:
            try:
                assert agent.stdout is not None
                first = agent.stdout.readline()
                if not first:
                    print("the agent did not start; its message is above", file=sys.stderr)
                    return 1
                urls = [word.rstrip(",") for word in first.split() if word.startswith("http")]
                code = _stream(urls[0], urls[1], [f for f in everything if f.scheduled >= LIVE], threshold(promised), speed)
                if code == 0 and not end:
                    print("\nThe agent goes on serving; Ctrl-C ends it.")
                    agent.wait()
                return code
            except KeyboardInterrupt:
                print()
                return 0
            finally:
                agent.send_signal(signal.SIGTERM)
                if agent.wait(timeout=30) != 0:
                    print(f"the agent ended with exit code {agent.returncode}", file=sys.stderr)


def _stream(url: str, metrics: str, live: list[Flight], chosen: float, speed: float) -> int:
    print(f"page     {url}/\nmetrics  {metrics}\n")
    print(
        "A model says how likely each flight from New York is to be more than 15 minutes late. The answer is known hours later."
    )
    print(f"Validation: March 2013. A missed late flight costs 3, a false alarm 1, so the threshold is {chosen:.3f}.\n")
    print(timeline.HEADER)
    client, screen = Client(url), Screen()
    client.activate(LIVE, chosen, "least cost on March: missed 3, false alarm 1")
    begun, sent, careless = time.monotonic(), 0, False
    last = live[-1].scheduled
    for hour, scheduled, arriving in hours(live):
        at = hour * 3600
        if at >= CARELESS_AT and not careless:
            client.activate(CARELESS_AT, CARELESS, "catch more late flights (nobody looked at the volume)")
            careless = True
        client.follow()
        if scheduled:
            client.send("predictions", [client.prediction(f) for f in scheduled])
        if arriving:
            client.send("labels", [{"id": f.id, "model": MODEL, "label": f.late, "ts": f.arrived} for f in arriving])
        sent += len(scheduled) + len(arriving)
        if hour % 24 == 0:
            screen.show(client.call("GET", f"/v1/timeline?since={screen.seen}")[1])
            screen.progress((at - LIVE) / (last - LIVE), at, sent)
            if speed > 0 and (ahead := (at - LIVE) / _DAY / speed - (time.monotonic() - begun)) > 0:
                time.sleep(ahead)
    client.send("labels", [{"now": (last // _DAY + 1) * _DAY}])
    screen.clear()
    screen.show(client.call("GET", f"/v1/timeline?since={screen.seen}")[1])
    return _summary(client, sent, time.monotonic() - begun)


def _summary(client: Client, sent: int, seconds: float) -> int:
    items = client.call("GET", "/v1/timeline?since=0")[1]
    state = client.call("GET", "/v1/state")[1]
    fired = [i for i in items if i["kind"] == "alert" and i["state"] == "firing"]
    back = [i for i in items if i["kind"] == "rolled_back"]
    rejected = sum(c["value"] for c in state["counters"] if c["name"] == "scorewatch_events_rejected_total")
    (v,) = state["versions"]
    print(f"\n{sent:,} events in {seconds:.0f} s; {rejected:.0f} rejected.")
    calibration = ", ".join(i["at"][:10] for i in fired if i["rule"] == "calibration")
    still = " and still fires" if any(a["rule"] == "calibration" for a in state["alerts"]) else ""
    print(f"The calibration alert fired on {calibration}{still}.")
    for i in back:
        print(
            f"The careless threshold of {CARELESS} was rolled back to policy {i['policy']} at {i['at'][:16].replace('T', ' ')}."
        )
    print(f"Of the last {v['matured']:,} mature flights {v['never_labelled']:,} never arrived: neither late nor on time.")
    print(f"{v['waiting']:,} flights still wait for their labels.")
    return 0 if back and calibration and not rejected else 1
