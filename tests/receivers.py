"""A real receiver of webhooks, which answers as it is told and checks signatures by the words of the specification."""

import base64
import contextlib
import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(b"x" * 24).decode()


def verify(secret, headers, body):
    """Return the message; raise AssertionError where the specification Standard Webhooks asks a receiver to refuse it."""
    ident, at = headers["webhook-id"], headers["webhook-timestamp"]
    assert abs(int(at) - time.time()) < 300
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.digest(key, f"{ident}.{at}.".encode() + body, hashlib.sha256)).decode()
    given = [said.partition(",") for said in headers["webhook-signature"].split(" ")]
    assert any(version == "v1" and hmac.compare_digest(wanted, said) for version, _, said in given)
    return json.loads(body)


class Receiver:
    """`answers` are the statuses of the next requests (a float: so many seconds of silence), then 204; `got` (headers, body)."""

    def __init__(self):
        self.answers, self.got, self.paths = [], [], []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                answer = receiver.answers.pop(0) if receiver.answers else 204
                receiver.paths.append(self.path)
                receiver.got.append(({name.lower(): said for name, said in self.headers.items()}, body))
                if isinstance(answer, float):
                    time.sleep(answer)
                    return
                self.send_response(answer)
                self.send_header("Location", receiver.url + "/elsewhere")
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(b"" if answer == 204 else b"no,\nthank you" * 1000)

            do_GET = do_PATCH = do_POST  # noqa: N815

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self):
        """Listen no more."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextlib.contextmanager
def receiving():
    """Give a receiver."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


def until(check, seconds=30):
    """Return what the check returns as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found
