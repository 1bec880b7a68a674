"""Bodies that senders POST. The answer comes after the commit, and says what became of every event."""

import zlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from monitor.core.events import Batch, Receipt
from monitor.formats import Decoder, decode


class Answer(NamedTuple):
    """Status and JSON body; `refused` names why nothing of the request was taken."""

    status: int
    body: bytes
    refused: str = ""


class Busy(Exception):
    """The queue or the store has no room; nothing of the request was taken."""


class Failed(RuntimeError):
    """The store could not commit; nothing of the request is known to be taken."""


class Stale(Exception):
    """The batch was decoded for a configuration that is not in use any more; nothing of it was taken."""


class TooLarge(Exception):
    """The body is larger than `max_body`."""


def refuse(status: int, reason: str, detail: str) -> Answer:
    """Return an answer that takes nothing."""
    return Answer(status, msgspec.json.encode({"error": reason, "detail": detail}), reason)


def inflate(body: bytes, limit: int) -> bytes:
    """Return the uncompressed gzip body; raise TooLarge past the limit and ValueError when it is not gzip."""
    stream = zlib.decompressobj(wbits=31)
    try:
        out = stream.decompress(body, limit + 1)
    except zlib.error as e:
        raise ValueError(f"not gzip: {e}") from None
    if len(out) > limit:
        raise TooLarge
    if not stream.eof:
        raise ValueError("not gzip: the body ends too early")
    return out


class HttpReceiver:
    """`offer` takes a batch to the agent and returns its receipt after the commit; it raises Busy, Failed or Stale.

    `decoder` is replaced when the configuration is; bodies on their way are then decoded again.
    """

    name = "http"

    def __init__(self, decoder: Decoder, offer: Callable[[Batch, Decoder], Awaitable[Receipt]], max_body: int) -> None:
        self.decoder, self.offer, self.max_body = decoder, offer, max_body

    async def receive(self, kind: str, content_type: str, encoding: str, body: bytes | None) -> Answer:
        """Return the answer to a POST of predictions or labels."""
        try:
            if body is None:
                raise TooLarge
            if encoding == "gzip":
                body = inflate(body, self.max_body)
            elif encoding not in ("", "identity"):
                return refuse(415, "encoding", f"found Content-Encoding {encoding!r}; send gzip or none")
            receipt = await self._offered(kind, content_type, body)
        except TooLarge:
            return refuse(413, "too_large", f"the body is larger than {self.max_body} bytes; send smaller batches")
        except ValueError as e:
            return refuse(400, "unreadable", str(e))
        except Busy as e:
            return refuse(429, "busy", str(e))
        except Failed as e:
            return refuse(503, "store", str(e))
        return Answer(200, msgspec.json.encode(_json_of(receipt)))

    async def _offered(self, kind: str, content_type: str, body: bytes) -> Receipt:
        while True:
            decoder = self.decoder
            try:
                return await self.offer(decode(decoder, body, kind, content_type), decoder)
            except Stale:
                if self.decoder is decoder:
                    raise Failed("the configuration has no http source any more") from None


def _json_of(receipt: Receipt) -> dict[str, Any]:
    rejected = [{"index": r.index, "reason": r.reason, "detail": r.detail} for r in receipt.rejected]
    answer: dict[str, Any] = {"accepted": receipt.accepted, "duplicates": receipt.duplicates, "rejected": rejected}
    if receipt.held:
        answer["held"] = receipt.held
    if receipt.review:
        answer["review"] = receipt.review
    return answer
