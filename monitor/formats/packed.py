"""Packed columns: ids joined by newline, the other columns base64 of little-endian arrays. The form for our own clients."""

import math
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from monitor.core.events import (
    MIN_PROB,
    UNDECIDED,
    VERDICTS,
    Batch,
    Coded,
    Predictions,
    Rejection,
    prob_code,
    valid_epochs,
)
from monitor.core.features import encode
from monitor.formats.classes import WRONG, probabilities
from monitor.formats.json import Decoder, Name, combo_of


class Packed(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """n predictions of one model and version.

    `ts` int64 ms and `score` float64; `segments` uint16 positions in `combos`, each {segment: value}; `verdict` uint8
    positions in pass, flag, review, abstain, block, or 255 where the policy says it; `label_prob` float64; `cluster` a line
    for each row, empty where it has none; `features` by name float64, NaN where one is missing, or a list of text and null.
    """

    n: int
    id: str
    ts: bytes
    score: bytes
    model: Name
    version: Name
    segments: bytes | None = None
    combos: list[dict[str, str]] = []
    verdict: bytes | None = None
    policy: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    label_prob: bytes | None = None
    cluster: str | None = None
    features: dict[str, bytes | list[str | None]] | None = None


_packed = msgspec.json.Decoder(Packed)


def _array(name: str, data: bytes, dtype: str, n: int) -> Any:
    array = np.frombuffer(data, dtype) if len(data) % np.dtype(dtype).itemsize == 0 else np.empty(0, dtype)
    if len(array) != n:
        raise ValueError(f"{name}: {len(data)} bytes are not {n} values of {dtype}")
    return array


def _values(name: str, given: bytes | list[str | None], n: int) -> NDArray[np.float64] | list[str | None]:
    """Return the values of a feature as an array of numbers or a list of text."""
    if isinstance(given, bytes):
        numbers: NDArray[np.float64] = _array(f"features.{name}", given, "<f8", n)
        return numbers
    if len(given) != n:
        raise ValueError(f"features.{name}: {len(given)} values, n is {n}")
    return given


def decode(decoder: Decoder, body: bytes) -> Batch:
    """Return the batch of a packed frame; raise ValueError when the frame as a whole is unreadable."""
    try:
        f = _packed.decode(body)
    except (msgspec.DecodeError, RecursionError) as e:
        raise ValueError(f"not a packed frame: {e}") from None
    ids = f.id.encode().split(b"\n") if f.n else []
    if len(ids) != f.n:
        raise ValueError(f"id: {len(ids)} lines, n is {f.n}")
    score, ts = _array("score", f.score, "<f8", f.n), _array("ts", f.ts, "<i8", f.n)
    index = np.arange(f.n, dtype=np.int64)
    if not decoder.known(f.model):
        return Batch(f.n, rejected=tuple(Rejection(i, "unknown_model", f.model) for i in range(f.n)))
    if (how := decoder.how(f.model)).classes:
        return Batch(f.n, rejected=tuple(Rejection(i, "scores", "packed columns have one score") for i in range(f.n)))
    names = decoder.segment_names(f.model)
    combos = [combo_of(c, names) for c in f.combos] or [()]
    codes = np.zeros(f.n, np.int32) if f.segments is None else _array("segments", f.segments, "<u2", f.n).astype(np.int32)
    verdict = np.full(f.n, UNDECIDED, np.uint8) if f.verdict is None else _array("verdict", f.verdict, "u1", f.n)
    if f.n and (codes.max() >= len(combos) or ((verdict > 4) & (verdict != UNDECIDED)).any()):
        raise ValueError(f"segments must be positions in combos, verdict one of {VERDICTS[:5]} by position")
    ms, in_time = valid_epochs(ts)
    p, wrong, clipped, _ = probabilities(how, score[:, None])
    sized = np.fromiter((0 < len(i) <= 256 or 0 < len(i.decode()) <= 256 for i in ids), bool, f.n)
    # A row is rejected for the first of these that it fails.
    checks: list[tuple[NDArray[np.bool_], str, str, Any]] = [
        (sized, "id", "id", ids),
        (in_time, "timestamp", "ts", ts),
        (wrong != WRONG.index("not_finite"), "not_finite", "score", score),
        (wrong != WRONG.index("out_of_range"), "out_of_range", "score", score),
    ]
    label_prob = cluster = None
    if f.label_prob is not None:
        prob = _array("label_prob", f.label_prob, "<f8", f.n)
        valid = (prob >= MIN_PROB) & (prob <= 1)
        checks += [(np.isfinite(prob), "not_finite", "label_prob", prob), (valid, "label_prob", "label_prob", prob)]
        label_prob = prob_code(np.where(valid, prob, 1.0))
    if f.cluster is not None and f.n:
        clusters = f.cluster.encode().split(b"\n")
        if len(clusters) != f.n:
            raise ValueError(f"cluster: {len(clusters)} lines, n is {f.n}")
        short = np.fromiter((len(c) <= 256 or len(c.decode()) <= 256 for c in clusters), bool, f.n)
        checks.append((short, "type", "cluster", clusters))
        there = np.fromiter(map(bool, clusters), bool, f.n)
        cluster = np.where(there, decoder.hasher.clusters(f.model, clusters), np.uint32(0)) if there.any() else None
    features = None
    if f.features is not None and (places := decoder.features.get(f.model)):
        columns = {name: _values(name, f.features[name], f.n) for name in places if name in f.features}
        checks += [(~np.isinf(c), "not_finite", name, c) for name, c in columns.items() if isinstance(c, np.ndarray)]
        lists = [
            [v if math.isfinite(v) else None for v in c.tolist()] if isinstance(c, np.ndarray) else c for c in columns.values()
        ]
        rows = zip(*lists, strict=True) if lists else [()] * f.n
        features = encode(places, [dict(zip(columns, row, strict=True)) for row in rows])
    good = np.logical_and.reduce([passed for passed, *_ in checks])
    rejected = []
    for i in np.flatnonzero(~good).tolist():
        reason, name, column = next(check for passed, *check in checks if not passed[i])
        rejected.append(Rejection(i, reason, f"{name}: {column[i]}"[:200]))
    made = Predictions(
        index,
        decoder.hasher.ids(f.model, ids),
        ms,
        Coded(((f.model, f.version),), np.zeros(f.n, np.int32)),
        p[:, 0],
        verdict,
        Coded(tuple(combos), codes),
        Coded((f.policy or "",), np.zeros(f.n, np.int32)),
        label_prob,
        cluster,
        np.array(ids, object) if decoder.reviewed(f.model) else None,
        features=features,
    )
    if rejected:
        made = made.take(good)
    return Batch(f.n, made if len(made) else None, None, tuple(rejected), None, int(clipped[good].sum()))
