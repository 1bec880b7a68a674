"""Webhooks and commands, each against the real thing."""

import json
import sys
import threading
import time

import pytest

from monitor.actions import webhook
from monitor.actions.command import Command
from monitor.actions.webhook import SecretError, Webhook, secret, signature
from receivers import OTHER, SECRET, receiving, until, verify

BODY = json.dumps({"type": "policy.activated", "data": {"model": "zürich"}}, ensure_ascii=False)


@pytest.fixture
def receiver():
    with receiving() as made:
        yield made


def now():
    return int(time.time())


def python(code, *args, limit=20_000):
    """Return a command that runs a program."""
    return Command((sys.executable, "-c", code, *args), limit)


# Webhooks.


def test_a_signature_is_that_of_the_specification():
    """A message of the specification has the signature that the reference package `standardwebhooks` 1.1 gives it."""
    key = secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_can_verify_each_secret_and_the_id(receiver):
    """While a secret changes both sign; the id is also the idempotency key; what was changed on the way is refused."""
    hook = Webhook(receiver.url + "/hook?x=1", (SECRET, OTHER))
    assert hook.send("msg_1", BODY, now()) == ("delivered", "")
    ((headers, body),) = receiver.got
    assert verify(SECRET, headers, body) == verify(OTHER, headers, body) == json.loads(BODY)
    assert headers["webhook-id"] == headers["idempotency-key"] == "msg_1"
    assert receiver.paths == ["/hook?x=1"]
    with pytest.raises(AssertionError):
        verify(SECRET, headers, body + b" ")
    with pytest.raises(AssertionError):
        verify(SECRET, {**headers, "webhook-id": "msg_2"}, body)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(200, "delivered"), (204, "delivered"), (302, "bad_status"), (308, "bad_status"), (400, "bad_status"),
     (410, "gone"), (500, "bad_status"), (503, "bad_status")],
)  # fmt: skip
def test_only_2xx_is_success_and_redirects_are_not_followed(receiver, status, reason):
    """Any other answer is none, 410 an end; the start of what was said is kept, on one line."""
    receiver.answers = [status]
    found, detail = Webhook(receiver.url + "/", (SECRET,)).send("msg_1", BODY, now())
    assert (found, receiver.paths) == (reason, ["/"])
    assert detail == "" if reason == "delivered" else detail.startswith(f"{status} no, thank you")
    assert len(detail) < 600


def test_a_receiver_that_is_silent_or_away_costs_no_more_than_the_limit(receiver):
    """Silence ends with the limit, and nobody there is said at once."""
    receiver.answers = [2.0]
    assert Webhook(receiver.url, (SECRET,)).send("m", BODY, now(), 0.3) == ("too_slow", "no answer within 0.3 s")
    assert Webhook("http://127.0.0.1:1", (SECRET,)).send("m", BODY, now())[0] == "unreachable"
    receiver.answers = [0.0]  # hangs up
    assert Webhook(receiver.url, (SECRET,)).send("m", BODY, now())[0] == "unreachable"


def test_an_https_receiver_without_a_trusted_certificate_gets_nothing(receiver):
    """What does not speak TLS, let alone with a certificate that can be verified, is not delivered to."""
    found, _ = Webhook(receiver.url.replace("http:", "https:"), (SECRET,)).send("m", BODY, now(), 5)
    assert (found, receiver.got) == ("unreachable", [])


def test_secrets_are_read_when_a_message_is_sent(receiver, tmp_path, monkeypatch):
    """A file that changes signs with the new secret, one that is gone signs nothing; no error and no repr shows a secret."""
    path = tmp_path / "hook"
    path.write_text(SECRET + "\n")
    monkeypatch.setenv("HOOK", OTHER)
    hook = Webhook(receiver.url, (f"file:{path}", "env:HOOK"))
    assert hook.send("m", BODY, now())[0] == "delivered"
    path.write_text(OTHER)
    assert hook.send("m", BODY, now())[0] == "delivered"
    (first, one), (second, two) = receiver.got
    assert verify(SECRET, first, one) == verify(OTHER, first, one) == verify(OTHER, second, two)
    with pytest.raises(AssertionError):
        verify(SECRET, second, two)
    path.unlink()
    assert hook.send("m", BODY, now()) == ("no_secret", f"{path} cannot be read (No such file or directory)")
    assert len(receiver.got) == 2
    assert SECRET not in repr(Webhook("u", (SECRET,)))


@pytest.mark.parametrize("given", ["", "x", "whsec_", "whsec_AAAA", "whsec_" + "A" * 88, SECRET[6:], SECRET + "!", "env:NONE"])
def test_what_is_no_secret(given):
    """A secret is whsec_ and 24 to 64 bytes in base64; the message does not repeat what was given."""
    with pytest.raises(SecretError) as e:
        secret(given)
    assert "whsec_ and 24 to 64 bytes" in str(e.value)
    assert len(given) < 6 or given in ("whsec_", "env:NONE") or given not in str(e.value)


# Commands.


def test_a_command_gets_the_message_and_its_places(tmp_path):
    """Places become values, whatever they hold, without a shell; JSON in braces is left alone; the body is on stdin."""
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'w').write('|'.join(sys.argv[2:]) + '|' + sys.stdin.buffer.read().decode())"
    command = python(code, str(out), "--of={model}", "{version}", '{"a": {"model": 1}}')
    assert command.run({"model": "a; rm -rf $(x) `y`", "version": "ü\n1"}, BODY) == ("delivered", "")
    assert out.read_text() == f'--of=a; rm -rf $(x) `y`|ü\n1|{{"a": {{"model": 1}}}}|{BODY}'


def test_a_name_does_not_become_an_option(tmp_path):
    """A version that some sender called --help is no option of the program; after an equals sign it may be."""
    command = python("pass", "{version}")
    assert command.run({"version": "--help"}, BODY) == ("argument", "{version} would become '--help'")
    assert command.run({"version": "-"}, BODY)[0] == "argument"
    assert python("pass", "--version={version}").run({"version": "--help"}, BODY) == ("delivered", "")


def test_how_a_command_ends_is_told():
    """An exit code, a signal and a missing program are told with the last words."""
    assert python("import sys; print('a' * 10**5); print('no\\nway', file=sys.stderr); sys.exit(3)").run({}, BODY) == (
        "exit_code",
        "exit code 3: " + "a" * (500 - len("\nno\nway\n")) + " no way",
    )
    assert python("import os; os.kill(os.getpid(), 9)").run({}, BODY) == ("exit_code", "signal 9")
    assert Command(("/nowhere/x",)).run({}, BODY) == ("unreachable", "/nowhere/x: No such file or directory")


def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path):
    """At the limit the program and its children die, also those that ignore signals and hold the pipe."""
    mark = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(mark)!r}).write_text(str(time.time())); time.sleep(.02)"
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    )
    assert python(code, limit=6_000).run({}, BODY) == ("too_slow", "it was killed after 6 s")
    assert mark.exists()
    time.sleep(0.1)
    last = mark.read_text()
    time.sleep(0.2)
    assert mark.read_text() == last


def test_a_command_that_floods_is_neither_blocked_nor_kept():
    """Output without end is read and thrown away; what is kept is small."""
    code = "import sys\nfor _ in range(300): sys.stdout.write('x' * 10**5)\nsys.exit(1)"
    reason, detail = python(code).run({}, BODY)
    assert (reason, len(detail)) == ("exit_code", len("exit code 1: ") + 500)
    assert python("import os\nwhile True: os.write(1, b'x' * 65536)", limit=500).run({}, BODY)[0] == "too_slow"


def test_a_command_may_leave_something_running(tmp_path):
    """A program that ends while what it started holds its output has ended; what it left is not killed."""
    go, mark = tmp_path / "go", tmp_path / "late"
    wait = f"go = pathlib.Path({str(go)!r})\nwhile not go.exists(): time.sleep(.02)"
    child = f"import time, pathlib\n{wait}\npathlib.Path({str(mark)!r}).touch()"
    assert python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])").run({}, BODY)[0] == "delivered"
    assert not mark.exists()
    go.touch()
    until(mark.exists)


def test_a_command_ends_when_the_agent_stops_and_sees_no_tokens(monkeypatch):
    """Stopping kills it at once; variables that hold the agent's secrets are not in its environment, others are."""
    stopping = threading.Event()
    threading.Timer(0.3, stopping.set).start()
    begun = time.monotonic()
    assert python("import time; time.sleep(60)").run({}, BODY, stopping)[0] == "too_slow"
    assert time.monotonic() - begun < 5
    monkeypatch.setenv("DECIDE", "secret")
    monkeypatch.setenv("OTHER", "plain")
    code = "import os, sys; sys.exit(os.environ.get('DECIDE', '') + os.environ['OTHER'])"
    assert python(code).run({}, BODY, None, {"DECIDE"}) == ("exit_code", "exit code 1: plain")


def test_a_large_message_blocks_nothing():
    """A message larger than a pipe reaches a program that reads late, and one that never reads does not block."""
    big = json.dumps({"x": "y" * 500_000})
    code = "import sys, time; time.sleep(.2); sys.exit(len(sys.stdin.read()) != int(sys.argv[1]))"
    assert python(code, str(len(big))).run({}, big) == ("delivered", "")
    assert python("pass").run({}, big) == ("delivered", "")


def test_doctests():
    """The examples in the docstrings hold."""
    import doctest

    from monitor.actions import command

    assert doctest.testmod(webhook).failed == doctest.testmod(command).failed == 0
