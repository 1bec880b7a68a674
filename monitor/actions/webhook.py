"""Messages by POST, signed as the specification Standard Webhooks says, so that a receiver knows who sent them and when."""

import base64
import binascii
import hashlib
import hmac
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT = 15.0
"""Seconds that a receiver may be silent."""
_PREFIX = "whsec_"
_SHOWN = 500
"""So many bytes of an answer are kept to say what is wrong."""


class SecretError(Exception):
    """A secret cannot be had; the message says why and never shows it."""


def secret(given: str) -> bytes:
    """Return the key of a secret: `whsec_` and 24 to 64 bytes in base64, or file:PATH or env:NAME of one.

    >>> secret("whsec_" + base64.b64encode(bytes(24)).decode()) == bytes(24)
    True
    """
    kind, _, where = given.partition(":")
    text, place = given, "it"
    if kind == "file":
        place = where
        try:
            text = Path(where).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as e:
            raise SecretError(f"{where} cannot be read ({getattr(e, 'strerror', None) or 'not ASCII'})") from None
    elif kind == "env":
        place = f"the environment variable {where}"
        text = os.environ.get(where, "")
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not text.startswith(_PREFIX) or not 24 <= len(key) <= 64:
        raise SecretError(f"{place} holds no {_PREFIX} and 24 to 64 bytes in base64")
    return key


def signature(key: bytes, ident: str, at: int, body: bytes) -> str:
    """Return what `webhook-signature` says for one secret: HMAC-SHA256 of id, time (s since 1970) and body."""
    made = hmac.new(key, f"{ident}.{at}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(made).decode()


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: where a signed message goes is said by the configuration alone."""

    def redirect_request(self, *args: Any) -> None:
        """Return nothing, so that the answer is an error like any other that is not 2xx."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where messages are posted to, and the secrets that sign them, named as in the configuration: several while one changes."""

    url: str
    secrets: tuple[str, ...] = field(repr=False)

    def send(self, ident: str, body: str, at: int, timeout: float = TIMEOUT) -> tuple[str, str]:
        """Post a message at a time (s since 1970); return a code of reasons.DELIVERED and what is wrong."""
        data = body.encode()
        try:
            signed = " ".join(signature(secret(given), ident, at, data) for given in self.secrets)
        except SecretError as e:
            return "no_secret", str(e)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "scorewatch",
            "Idempotency-Key": ident,
            "webhook-id": ident,
            "webhook-timestamp": str(at),
            "webhook-signature": signed,
        }
        request = urllib.request.Request(self.url, data, headers, method="POST")
        try:
            with urllib.request.build_opener(_Stay).open(request, timeout=timeout):
                return "delivered", ""
        except urllib.error.HTTPError as e:
            with e:
                return "gone" if e.code == 410 else "bad_status", f"{e.code} {_start(e)}".strip()
        except TimeoutError:
            return "too_slow", f"no answer within {timeout:g} s"
        except urllib.error.URLError as e:
            slow = isinstance(e.reason, TimeoutError)
            return ("too_slow", f"no answer within {timeout:g} s") if slow else ("unreachable", str(e.reason))
        except (OSError, http.client.HTTPException) as e:
            return "unreachable", str(e) or type(e).__name__


def _start(answer: urllib.error.HTTPError) -> str:
    """Return how an answer begins, as one line."""
    try:
        return " ".join(answer.read(_SHOWN).decode(errors="replace").split())
    except (OSError, http.client.HTTPException):
        return ""
