"""The programs in docs/delivery.md, taken out of the document and run."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from monitor.config import parse
from monitor.core.events import DAY, VERDICTS
from monitor.core.policy import decide, policy
from monitor.store.policies import Pointer, Policies, checksum

PAGE = (Path(__file__).parents[1] / "docs" / "delivery.md").read_text()
PROGRAMS = {text.split()[1].rstrip(":"): text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)}
PLATT = {"kind": "platt", "a": 0.1, "b": 1.3}


def made(ident, threshold=0.5, **more):
    found = policy(ident, "fraud", "v7", {"all": threshold, "country=DE": 0.25}, PLATT, **more)
    return replace(found, checksum=checksum(found))


def message(p):
    return json.dumps(
        {"type": "policy.activated", "data": {"model": p.model, "version": p.version, "policy": json.loads(p.to_json())}}
    ).encode()


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a program of the document and runs it."""

    def run(name, p, *args, **env):
        path = tmp_path / name
        path.write_text(PROGRAMS[name])
        command = [sys.executable, str(path), *map(str, args)]
        return subprocess.run(command, input=message(p), capture_output=True, env={**os.environ, **env}, timeout=60)

    return run


@pytest.fixture
def reader():
    """Return the reader and the verdict function of the document."""
    names = {}
    exec(PROGRAMS["reader.py"], names)
    return names["PolicyReader"], names["verdict"]


class Api(BaseHTTPRequestHandler):
    """Answers as the server's `answers` say, by method and path; what was sent is in `sent`."""

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        self.server.sent.append((self.command, path, dict(self.headers.items()), body))
        status, answer = self.server.answers.get((self.command, path), (404, {}))
        said = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_PATCH = do_GET  # noqa: N815

    def log_message(self, *args):
        pass


@pytest.fixture
def api():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads, server.sent, server.answers = True, [], {}
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_configuration_of_the_document_is_one(tmp_path):
    """The example parses once its secrets exist."""
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "secret").write_text("whsec_" + "MDEy" * 8)
    found = parse(re.sub(r"file:/run/secrets/\w+", "file:secret", text), "f.yaml", tmp_path)
    assert (list(found.actions), len(found.models["fraud"].deliver)) == (["retrain", "page"], 2)


def test_reading_never_sees_half_a_policy(tmp_path, reader):
    """Of 10,000 reads beside a writer that activates and goes back each is one of the whole policies, and none fails."""
    PolicyReader, _ = reader
    folder = Policies(tmp_path, "fraud")
    both = [made("1-1", 0.5), made("1-2", 0.75, provenance={"x": "y" * 20_000})]
    with folder.lock():
        for p in both:
            folder.add(p)
        folder.point("v7", Pointer("1-1", "a", "b", DAY))
    whole = [json.loads(p.to_json()) for p in both]
    path, done, seen, errors = str(folder.of("v7") / "current.json"), threading.Event(), [0, 0], []

    def read():
        mine = PolicyReader(path, "fraud", "v7", every=0.0)
        for _ in range(2_500):
            mine._seen = None  # read whatever stat says
            found = mine.get()
            seen[whole.index(found)] += 1
            if mine.error:
                errors.append(mine.error)

    threads = [threading.Thread(target=read) for _ in range(4)]

    def write():
        turn = 0
        while not done.is_set():
            turn += 1
            with folder.lock():
                folder.point("v7", Pointer(both[turn % 2].id, "a", "b", DAY + turn))

    writer = threading.Thread(target=write)
    for t in (writer, *threads):
        t.start()
    for t in threads:
        t.join()
    done.set()
    writer.join()
    assert errors == []
    assert sum(seen) == 10_000
    assert min(seen) > 100, "the writer went on while they read"


def test_reading_follows_the_swap_of_a_config_map(tmp_path, reader):
    """The swap of ..data is seen; a damaged policy, one of another version and none leave the last good one, with the reason."""
    PolicyReader, _ = reader

    def publish(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.json").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(name)
        os.rename(tmp_path / "..data_tmp", tmp_path / "..data")

    mine = PolicyReader(str(tmp_path / "policy.json"), "fraud", "v7", every=0.0)
    assert mine.get() is None
    assert "FileNotFoundError" in mine.error
    (tmp_path / "policy.json").symlink_to("..data/policy.json")
    first, second = made("1-1"), made("1-2", 0.75)
    publish("..1", first.to_json())
    assert (mine.get()["id"], mine.error) == ("1-1", "")
    publish("..2", json.dumps(json.loads(second.to_json())))  # in whatever order and layout
    assert (mine.get()["id"], mine.error) == ("1-2", "")
    other = policy("1-3", "fraud", "v8", {"all": 0.5})
    wrong = {
        "..3": (second.to_json().replace('"1-2"', '"1-9"'), "checksum does not hold"),
        "..4": (replace(other, checksum=checksum(other)).to_json(), "it is for fraud v8"),
        "..5": (second.to_json()[:100], "JSONDecodeError"),
        "..6": ("[]", "TypeError"),
    }
    for name, (text, why) in wrong.items():
        publish(name, text)
        assert mine.get()["id"] == "1-2"
        assert why in mine.error
    publish("..7", first.to_json())
    assert (mine.get()["id"], mine.error) == ("1-1", "")


def test_the_reader_looks_once_a_second_and_decides_as_the_agent_does(tmp_path, reader):
    """Within a second the file is not looked at; verdicts are those of the agent, by slice, review band and abstain margin."""
    PolicyReader, verdict = reader
    path = tmp_path / "policy.json"
    first = made("1-1", review=(0.4, 0.6), abstain=0.05)
    path.write_text(first.to_json())
    mine = PolicyReader(str(path), "fraud", "v7")
    found = mine.get()
    path.unlink()
    assert (mine.get(), mine.error) == (found, "")
    scores = [i / 997 for i in range(998)]
    for segments, name in (({"country": "DE"}, "country=DE"), ({"country": "FR"}, "all"), ({}, "all")):
        wanted = [VERDICTS[code] for code in decide(first.bands[name], np.array(scores))]
        assert [verdict(found, s, segments) for s in scores] == wanted
        assert len(set(wanted)) == 4


def test_flagd_gets_variants_and_going_back_changes_one_word(tmp_path, program):
    """The file has flagd's form, a policy is a variant, the current one the default; going back changes only that."""
    path, first, second = tmp_path / "flags.json", made("1-1"), made("1-2", 0.75)
    for p in (first, second):
        assert program("flagd.py", p, path, "policy-v7").returncode == 0
    ahead = json.loads(path.read_text())
    assert ahead == {
        "$schema": "https://flagd.dev/schema/v0/flags.json",
        "flags": {
            "policy-v7": {
                "state": "ENABLED",
                "variants": {p.id: json.loads(p.to_json()) for p in (first, second)},
                "defaultVariant": "1-2",
            }
        },
    }
    assert program("flagd.py", first, path, "policy-v7").returncode == 0
    back = json.loads(path.read_text())
    assert back["flags"]["policy-v7"].pop("defaultVariant") == "1-1"
    assert back["flags"]["policy-v7"] == {k: v for k, v in ahead["flags"]["policy-v7"].items() if k != "defaultVariant"}
    for i in range(3, 30):
        assert program("flagd.py", made(f"1-{i}"), path, "policy-v7").returncode == 0
    kept = json.loads(path.read_text())["flags"]["policy-v7"]
    assert (len(kept["variants"]), kept["defaultVariant"] in kept["variants"]) == (20, True)


def test_a_tag_is_set_by_the_rest_call_of_mlflow(api, program):
    """The call is the documented one: POST model-versions/set-tag with name, version, key and value; an error is an exit code."""
    path = "/api/2.0/mlflow/model-versions/set-tag"
    api.answers["POST", path] = 200, {}
    p = made("1-1")
    assert program("mlflow_tag.py", p, api.url, MLFLOW_TRACKING_TOKEN="t").returncode == 0
    ((method, found, headers, body),) = api.sent
    sent = json.loads(body)
    assert (method, found, headers["Authorization"], headers["Content-Type"]) == ("POST", path, "Bearer t", "application/json")
    assert json.loads(sent.pop("value")) == json.loads(p.to_json())
    assert sent == {"name": "fraud", "version": "v7", "key": "scorewatch.policy"}
    api.answers["POST", path] = 403, {}
    assert program("mlflow_tag.py", p, api.url).returncode == 1


def test_a_run_of_airflow_is_started_once(api, program):
    """The run has the id of the message and the message as its configuration; that it exists already is success."""
    path, p = "/api/v2/dags/retrain/dagRuns", made("1-1")
    for status, code in ((200, 0), (409, 0), (401, 1)):
        api.answers["POST", path] = status, {}
        assert program("airflow.py", p, api.url, "retrain", "msg_1", AIRFLOW_TOKEN="t").returncode == code
    method, found, headers, body = api.sent[0]
    assert (method, found, headers["Authorization"]) == ("POST", path, "Bearer t")
    assert json.loads(body) == {"dag_run_id": "msg_1", "logical_date": None, "conf": json.loads(message(p))}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_config_map_is_patched_with_the_policy(api, program, tmp_path):
    """The real kubectl sends a merge patch whose policy.json the reader takes; its failure is that of the command."""
    api.answers = {
        ("GET", "/api"): (200, {"kind": "APIVersions", "versions": ["v1"]}),
        ("GET", "/apis"): (200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        ("GET", "/api/v1"): (
            200,
            {
                "kind": "APIResourceList",
                "groupVersion": "v1",
                "resources": [
                    {"name": "configmaps", "singularName": "", "namespaced": True, "kind": "ConfigMap", "verbs": ["patch"]}
                ],
            },
        ),
    }
    path = "/api/v1/namespaces/serving/configmaps/fraud-policy"
    whole = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "fraud-policy", "namespace": "serving"}, "data": {}}
    cluster = {"name": "c", "cluster": {"server": api.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    kube = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "c"}
    (tmp_path / "kube").write_text(json.dumps(kube | {"users": [{"name": "u", "user": {}}]}))
    env = {"KUBECONFIG": str(tmp_path / "kube"), "HOME": str(tmp_path)}
    p = made("1-1")
    assert program("configmap.py", p, "fraud-policy", "serving", **env).returncode == 1
    api.answers |= {("GET", path): (200, whole), ("PATCH", path): (200, whole)}
    assert program("configmap.py", p, "fraud-policy", "serving", **env).returncode == 0
    method, found, headers, body = api.sent[-1]
    assert (method, found, headers["Content-Type"]) == ("PATCH", path, "application/merge-patch+json")
    assert json.loads(json.loads(body)["data"]["policy.json"]) == json.loads(p.to_json())
