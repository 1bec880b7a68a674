"""Who may change what, and who signs it: tokens, their owners, and every route that changes something."""

import contextlib
import json
import os
import re
import stat
import tempfile
from getpass import getuser
from pathlib import Path

import pytest

from conftest import Agent
from monitor.config import ConfigError, Tokens, describe, load, parse
from monitor.server import api_app
from monitor.store.log import Log
from test_http import command, labelled, port, scored, until

ANN, BOB, SENDER = "Aq7-ann.token", "Bq7-bob.token", "Sq7-sender.token"
CONFIG = """\
state: state
api: 127.0.0.1:{port}
metrics: 127.0.0.1:0
tick: {tick}
tokens: {{ingest: file:ingest, decide: file:decide}}
models: {{m: {{}}, n: {{}}}}
"""
DEAD = ("msg_1", "msg_2")
"""Messages that were given up."""
__all__ = ["port"]


def secured(folder, port):
    """Return an agent with tokens that has two policies and a proposal of each model and dead messages, and ticks no more."""
    folder.mkdir()
    (folder / "ingest").write_text(f"# who sends\n{SENDER}\n")
    (folder / "decide").write_text(f"ann: {ANN}\n\nbob {BOB}  # since June\n")
    for name in ("ingest", "decide"):
        (folder / name).chmod(0o640)
    a = Agent(folder, CONFIG.format(port=port, tick="100ms")).start()
    assert a.ask("/v1/predictions", [scored(m, model=m) for m in "mn"], bearer(SENDER))[0] == 200
    first = {}
    for model in "mn":
        for threshold in (0.5, 0.25):
            body = {"threshold": threshold, "reason": "set up"}
            first.setdefault(model, a.ask(f"/v1/models/{model}/activate", body, bearer(ANN))[1])
    until(lambda: len(a.state()["versions"]) == 2)
    assert a.stop() == 0
    a.config.write_text(CONFIG.format(port=port, tick="1h"))
    log = Log(folder / "state" / "log.db")
    with log.transaction():
        asked = {model: {"rule": "calibration", "action": "rollback", "policy": first[model]["policy"]} for model in "mn"}
        for ident in DEAD:
            row = (ident, 1, "gone", 0, "m", "v1", "alert.fired", "{}", 1, 1, 9, 1, "timeout", "")
            log.db.execute("insert into outbox values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        added = log.add_entries(first["n"]["at"] + 1000, "agent", [("proposal", m, "v1", body) for m, body in asked.items()])
    log.close()
    a.proposals = {e.model: e.seq for e in added}
    return a.start()


@pytest.fixture
def guarded(tmp_path, port):
    """Return such an agent, which must have stopped cleanly at the end."""
    a = secured(tmp_path / "guarded", port)
    yield a
    assert a.stop() == 0
    assert not re.search(f"Traceback|{ANN}|{BOB}|{SENDER}", a.log.read_text()), a.log.read_text()


def bearer(token):
    """Return the header that a token is sent in."""
    return {"Authorization": f"Bearer {token}"}


def routes(a):
    """Return by route (path in the application) whose token it needs, where to send what, and whether it is journalled."""
    why = {"reason": "because"}
    return {
        "/v1/predictions": (SENDER, "/v1/predictions", [scored("x")], False),
        "/v1/labels": (SENDER, "/v1/labels", [labelled("m", model="m")], False),
        "/v1/verify": (ANN, "/v1/verify", {}, False),
        "/v1/proposals/{id:int}": (BOB, f"/v1/proposals/{a.proposals['n']}", {"approve": True, **why}, True),
        "/v1/models/{model}/activate": (ANN, "/v1/models/m/activate", {"threshold": 0.75, **why}, True),
        "/v1/models/{model}/rollback": (BOB, "/v1/models/m/rollback", why, True),
        "/v1/models/{model}/calibrate": (ANN, "/v1/models/m/calibrate", why, True),
        "/v1/outbox/{id}/retry": (BOB, "/v1/outbox/msg_1/retry", why, True),
        "/v1/outbox/{id}/discard": (ANN, "/v1/outbox/msg_2/discard", why, True),
        "/-/reload": (ANN, "/-/reload", why, True),
    }


def everything(a):
    """Return what a request could have changed: journal, pointers, proposals, messages, rows and labels."""
    state, folder = a.state(), a.folder / "state" / "policies"
    rows = [(v["model"], v["waiting"], v["known_so_far"], v["policy"], v["following"]) for v in state["versions"]]
    pointers = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}
    counted = [c for c in state["counters"] if c["name"].startswith(("scorewatch_events", "scorewatch_config"))]
    return state["journal"], rows, pointers, counted, a.ask("/v1/proposals")[1], a.ask("/v1/outbox")[1]


def journal(a):
    """Return the newest entries of both models and the reloads, newest first, as (kind, who, reason)."""
    found = [e for m in "mn" for e in a.ask(f"/v1/models/{m}/decisions")[1]]
    return [(e["kind"], e["who"], e.get("reason")) for e in sorted(found, key=lambda e: -e["entry"])]


def test_every_changing_route_needs_its_token(guarded):
    """No, a wrong, the other role's, a cut, an empty token and one of another case get 401 or 403, and nothing is changed."""
    a = guarded
    cases = routes(a)
    posts = {r.path for r in api_app(None).routes if r.methods - {"GET", "HEAD"}}
    assert cases.keys() == posts, "a route that changes something is not tested here"
    before = everything(a)
    for right, path, body, _ in cases.values():
        other = {SENDER: ANN, ANN: SENDER, BOB: SENDER}[right]
        wrong = [other, right[:-1], right[1:], right + "x", right.swapcase(), f" {right}", f"{right} {right}", "", "é", "null"]
        headers = [bearer(token) for token in wrong] + [
            {"Authorization": text} for text in (right, f"Basic {right}", f"Token {right}", "Bearer", "")
        ]
        for header in [{}, {"X-Token": right}, *headers]:
            status, answer, got = a.ask(path, body, header)
            assert status == (403 if header.get("Authorization", "").startswith("Bearer ") else 401), (path, header, answer)
            assert status == 403 or got["WWW-Authenticate"] == "Bearer"
        assert a.ask(f"{path}?token={right}", body)[0] == 401
    assert everything(a) == before


def test_decisions_are_signed_by_the_owner_of_the_token(guarded):
    """With the right token each route does what it is for, and the journal, the pointer and the page name the token's owner."""
    a = guarded
    for right, path, body, signed in routes(a).values():
        if signed:
            before, owner = everything(a), {ANN: "ann", BOB: "bob"}[right]
            for who in ("eve", "ANN", "decide", 7, ["ann"]):
                status, answer, _ = a.ask(path, {**body, "who": who}, bearer(right))
                assert (status, answer) == (400, {"error": f'"who" is said by the token, which is that of {owner}'}), (path, who)
            for reason in ("", " ", None, 7):
                assert a.ask(path, {**body, "reason": reason}, bearer(right))[0] == 400
            assert everything(a) == before
        status, answer, _ = a.ask(path, body, bearer(right))
        # No day is mature, so there is nothing to calibrate with.
        assert status == (409 if path.endswith("calibrate") else 200), (path, answer)
    approved = f"proposal {a.proposals['n']} approved: because"
    assert journal(a)[:6] == [
        ("delivery", "ann", "because"),
        ("delivery", "bob", "because"),
        ("rolled_back", "bob", "because"),
        ("activated", "ann", "because"),
        ("rolled_back", "bob", approved),
        ("answer", "bob", "because"),
    ]
    assert ("activated", "ann", "set up") in journal(a)
    pointers = [json.loads((a.folder / f"state/policies/{m}/v1/current.json").read_text()) for m in "mn"]
    assert [(p["who"], p["reason"]) for p in pointers] == [("bob", "because"), ("bob", approved)]
    assert "<td>bob</td><td>because</td>" in a.ask("/")[1]
    assert a.ask("/v1/timeline")[1][-1] | {"who": "ann", "reason": "because", "kind": "reload"} == a.ask("/v1/timeline")[1][-1]
    assert command(a.config, "activate", "m", "--threshold", "0.9", "--reason", "by command")[0] == 0
    assert journal(a)[0] == ("activated", "ann", "by command")


def test_a_proposal_is_answered_once(guarded):
    """It is shown with the command that answers it; an answer needs true or false, counts once, and works when stopped, too."""
    a = guarded
    mine, other = a.proposals["m"], a.proposals["n"]
    assert [p["proposal"] for p in a.ask("/v1/proposals")[1]] == [mine, other]
    assert f"<code>scorewatch approve {mine} --reason TEXT</code>" in a.ask("/")[1]
    for approve in (None, 1, "true"):
        assert a.ask(f"/v1/proposals/{mine}", {"approve": approve, "reason": "x"}, bearer(ANN))[0] == 400
    assert a.ask("/v1/proposals/x", {"approve": True, "reason": "x"}, bearer(ANN))[0] == 404
    gone = {"error": f"there is no open proposal 99; open are {mine}, {other}"}
    assert a.ask("/v1/proposals/99", {"approve": True, "reason": "x"}, bearer(ANN))[:2] == (409, gone)
    rejected = f"m v1: proposal {mine} is rejected\n"
    assert command(a.config, "approve", str(mine), "--reject", "--reason", "no") == (0, rejected, "")
    again = f"scorewatch: there is no open proposal {mine}; open are {other}\n"
    assert command(a.config, "approve", str(mine), "--reason", "yes") == (1, "", again)
    assert journal(a)[0] == ("answer", "ann", "no")
    assert a.stop() == 0
    code, out, _ = command(a.config, "approve", str(other), "--reason", "stopped")
    assert (code, bool(re.fullmatch(r"n v1: policy \d+-1 \(threshold 0\.5\) is current\n", out))) == (0, True), out
    a.start()
    assert a.ask("/v1/proposals")[1] == []
    assert journal(a)[:2] == [
        ("rolled_back", getuser(), f"proposal {other} approved: stopped"),
        ("answer", getuser(), "stopped"),
    ]
    assert command(a.config, "log", "--verify")[0] == 1  # the agent has the state
    shown = a.ask("/v1/models/n/decisions?limit=2")[1]
    assert [(e["kind"], e["words"]) for e in shown] == [
        ("rolled_back", f"proposal {other} approved: stopped"),
        ("answer", "stopped"),
    ]
    assert [e["entry"] for e in a.ask(f"/v1/models/n/decisions?since={shown[1]['entry']}")[1]] == [e["entry"] for e in shown]
    wrong = ("limit=0", "limit=1001", "limit=x", "since=-1", "limit=%C2%B2")
    assert [a.ask(f"/v1/models/n/decisions?{q}")[0] for q in wrong] == [400] * 5
    assert a.ask("/v1/models/none/decisions")[0] == 404


def test_without_tokens_the_body_says_who(agent):
    """On a machine of one's own nobody needs a token, and `who` is taken as it is said, else it is `api`."""
    a = agent("state: state\napi: 127.0.0.1:0\nmetrics: 127.0.0.1:0\ntick: 100ms\nmodels: {m: {}}\n")
    a.post("predictions", [scored("a")])
    for who in ("eve", None, ""):
        assert a.ask("/v1/models/m/activate", {"threshold": 0.5, "reason": "x", "who": who})[0] == 200
    assert a.ask("/v1/models/m/activate", {"threshold": 0.5, "reason": "x", "who": 7})[:2] == (
        400,
        {"error": '"who" must be a text'},
    )
    assert [e["who"] for e in a.ask("/v1/models/m/decisions")[1]] == ["api", "api", "eve"]


# Files of tokens.


def tokens(folder, text, name="tokens"):
    """Return the tokens of a configuration whose decide tokens are in a file with this text."""
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return parse(f"tokens: {{decide: 'file:{name}'}}\nmodels: {{m: }}", "f.yaml", folder).tokens


def test_a_file_has_a_token_a_line(tmp_path):
    """Owners are optional, with or without colon; comments, empty lines, line ends of Windows and a byte order mark are none."""
    text = "\ufeff# ours\r\nann: t-1\r\n\r\n  bob\tt:2  # new\r\nann: t-3\nt#4\nzoë t=5"
    found = tokens(tmp_path, text)
    assert found.decide == (("ann", "t-1"), ("bob", "t:2"), ("ann", "t-3"), ("decide", "t#4"), ("zoë", "t=5"))
    assert (found.ingest, found.first("decide"), found.first("ingest")) == (None, "t-1", None)
    assert "t-1" not in repr(found)
    config = parse("tokens: {decide: file:tokens}\nmodels: {m: }", "f.yaml", tmp_path)
    assert f"decide: file:{tmp_path / 'tokens'}\n" in describe(config)
    assert parse(describe(config), "f.yaml", Path("/")) == config


LINE = "write OWNER: TOKEN on each line, the token of printable ASCII characters without spaces"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "{} without a token; " + LINE),
        ("# nobody\n", "{} without a token; " + LINE),
        ("ann:sesame", "line 1 of {}, which is no owner and token; " + LINE),
        ("ok\nann: open sesame", "line 2 of {}, which is no owner and token; " + LINE),
        (": sesame", "line 1 of {}, which is no owner and token; " + LINE),
        ("ann: sésame", "line 1 of {}, which is no owner and token; " + LINE),
        ('a"n: sesame', "line 1 of {}, which is no owner and token; " + LINE),
        ("ann: sesame\nbob: sesame", "line 2 of {} with a token that is there already; give each owner a token of their own"),
        (b"ann: \xff", "{} with bytes that are not UTF-8; save the file as UTF-8"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused(tmp_path, text, found):
    """The error names file, key, line and remedy, and never shows a token."""
    with pytest.raises(ConfigError) as e:
        tokens(tmp_path, text)
    shown = repr(f"file:{tmp_path / 'tokens'}")
    assert str(e.value) == f"f.yaml: tokens.decide: found {found.format(shown)}"
    assert "sesame" not in str(e.value)


def test_a_missing_file_of_tokens_is_refused(tmp_path):
    """A file that is not there, a folder and an empty path are errors, so that no typing error opens the api."""
    for path, found in (
        ("none", f"'file:{tmp_path}/none' (No such file or directory); write the path of a file with a token on each line"),
        (".", f"'file:{tmp_path}' (Is a directory); write the path of a file with a token on each line"),
        (
            "",
            "an unusable token; write a token of printable ASCII characters without spaces, env:NAME or file:PATH",
        ),
    ):
        with pytest.raises(ConfigError) as e:
            parse(f"api: 0.0.0.0:80\ntokens: {{ingest: i, decide: 'file:{path}'}}\nmodels: {{m: }}", "f.yaml", tmp_path)
        assert str(e.value) == f"f.yaml: tokens.decide: found {found}"


@contextlib.contextmanager
def somebody_else():
    """Be another user than root, whom file modes stop."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_who_may_not_read_tokens_goes_without_them():
    """A command of another user reads the configuration without tokens; nobody serves with it, and no token would be right."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "decide").write_text("ann: t-1\n")
        (folder / "decide").chmod(0)
        path = folder / "f.yaml"
        path.write_text("tokens: {decide: file:decide}\nmodels: {m: }\n")
        path.chmod(0o644)
        with somebody_else():
            found = load(path).tokens
            with pytest.raises(ConfigError) as e:
                load(path, serving=True)
        said = f"'file:{folder / 'decide'}', which cannot be read (Permission denied)"
        assert found == Tokens(None, (), files={"decide": folder / "decide"}, unread={"decide": said})
        assert (found.first("decide"), found.of("decide")) == (None, ())
        assert str(e.value) == f"{path}: tokens.decide: found {said}; let the agent's user read it"


def test_tokens_that_everybody_can_read_are_warned_of(tmp_path, port):
    """The agent starts with them, as Kubernetes mounts secrets that way, and its log says what to do."""
    for mode, exposed in ((0o640, ()), (0o644, ("decide",))):
        (tmp_path / "tokens").write_text("t")
        (tmp_path / "tokens").chmod(mode)
        assert parse("tokens: {decide: file:tokens}\nmodels: {m: }", "f.yaml", tmp_path).tokens.exposed == exposed
    a = secured(tmp_path / "open", port)
    assert a.stop() == 0
    assert "can read" not in a.log.read_text()
    path = a.folder / "decide"
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o004)
    a.start()
    until(lambda: f"tokens.decide: every user can read {path}; chmod o-r it" in a.log.read_text())
    assert a.stop() == 0


def test_a_token_of_both_roles_is_warned_of(tmp_path, port):
    """Whoever sends events with it also decides: the agent's log says so."""
    a = secured(tmp_path / "both", port)
    assert a.stop() == 0
    assert "also decides" not in a.log.read_text()
    (a.folder / "ingest").write_text(f"feeder: {ANN}")
    a.start()
    until(lambda: "tokens.decide: has a token of tokens.ingest" in a.log.read_text())
    assert a.stop() == 0
