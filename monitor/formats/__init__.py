"""Bytes to events. `decode` chooses the format of a request body by its content type and its first byte."""

from monitor.core.events import Batch
from monitor.formats import csv
from monitor.formats.ids import HASHES, Hasher
from monitor.formats.json import Decoder, parse_time

__all__ = ["HASHES", "Decoder", "Hasher", "decode", "parse_time"]


def decode(decoder: Decoder, body: bytes, kind: str, content_type: str = "") -> Batch:
    """Return the events of a body; raise ValueError when it is unreadable as a whole.

    `kind` is predictions, labels or events; bodies of NDJSON, JSON (event, list, list columns, packed columns) and CSV.
    """
    if content_type.startswith("text/csv"):
        first, _, rest = body.partition(b"\n")
        return csv.decode(decoder, csv.header(first.decode("utf-8", "replace").rstrip("\r")), rest, kind)
    start = body.lstrip()[:1]
    if not start:
        raise ValueError("the body is empty")
    if start == b"{" and ("ndjson" in content_type or "jsonl" in content_type or b"}\n{" in body.replace(b"\r", b"")[:65_536]):
        return decoder.ndjson(body, kind)
    if start in (b"{", b"["):
        return decoder.json(body, kind)
    if "ndjson" in content_type:
        return decoder.ndjson(body, kind)
    raise ValueError(f"expected a JSON object or list, NDJSON or CSV (Content-Type: text/csv), found {body[:40]!r}")
