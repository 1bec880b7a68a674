"""JSON object or list, NDJSON and list columns to Predictions and Labels.

Three decoders, the leanest first: a strict struct of the usual fields, a struct with every optional field, and item by
item with a reason for each rejected one. Slices of about 190 kB keep the structs in the processor's cache.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import NoneType
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType
from numpy.typing import NDArray

from monitor.core.events import (
    EARLIEST,
    LATEST,
    MIN_PROB,
    NONE,
    UNDECIDED,
    VERDICTS,
    Batch,
    Coded,
    Floats,
    Ints,
    Labels,
    Predictions,
    Rejection,
    prob_code,
    valid_epochs,
)
from monitor.core.features import Placed, encode
from monitor.core.tables import FEATURES
from monitor.formats.classes import BINARY, WRONG, Scores, expand, expand_labels, probabilities
from monitor.formats.ids import Hasher

Id = Annotated[str, Meta(min_length=1, max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Unit = Annotated[float, Meta(ge=0, le=1)]
Prob = Annotated[float, Meta(ge=MIN_PROB, le=1)]
Combo = tuple[tuple[str, str], ...]

_SLICE = 190_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSUPPORTED = ("weight",)
_COLUMNS = {
    "id",
    "ts",
    "model",
    "version",
    "score",
    "scores",
    "segments",
    "combo",
    "verdict",
    "policy",
    "label_prob",
    "cluster",
    "features",
}
_EMPTY, _NULL = Raw(b"{}"), Raw(b"null")


class LeanPrediction(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The usual prediction."""

    id: Id
    ts: int
    model: Name
    version: Name
    score: Unit
    segments: Raw = _EMPTY


class _Prediction(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """All of a prediction but its scores."""

    id: Id
    ts: int | str
    model: Name
    version: Name
    segments: Raw = _EMPTY
    verdict: str | None = None
    flagged: bool | None = None
    policy: Annotated[str, Meta(max_length=128)] | None = None
    label_prob: Prob | None = None
    cluster: Id | int | None = None
    features: Raw = _NULL


class FullPrediction(_Prediction, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A prediction with every optional field."""

    score: Unit


class UnboundedPrediction(_Prediction, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A prediction of a model whose score is a logit or a margin."""

    score: float


class ClassPrediction(_Prediction, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A prediction of a model with classes."""

    scores: list[float] | dict[str, float]


class LeanLabel(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The usual label."""

    id: Id
    label: Annotated[int, Meta(ge=0, le=1)]
    ts: int | str
    model: str | None = None
    version: str | None = None
    revision: Annotated[int, Meta(ge=0, le=255)] = 0


class FullLabel(LeanLabel, gc=False, forbid_unknown_fields=True):
    """A label with every optional field but its prediction."""

    label_prob: Prob | None = None


class ClassLabel(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A label of a model with classes."""

    id: Id
    label: str | list[str]
    ts: int | str
    model: str | None = None
    version: str | None = None
    revision: Annotated[int, Meta(ge=0, le=255)] = 0
    label_prob: Prob | None = None


class Head(msgspec.Struct):
    """What tells a single event from columns."""

    id: Raw | UnsetType = UNSET
    n: int | UnsetType = UNSET
    now: int | str | UnsetType = UNSET


lean_prediction = msgspec.json.Decoder(LeanPrediction)
full_prediction = msgspec.json.Decoder(FullPrediction)
unbounded_prediction = msgspec.json.Decoder(UnboundedPrediction)
class_prediction = msgspec.json.Decoder(ClassPrediction)
lean_label = msgspec.json.Decoder(LeanLabel)
full_label = msgspec.json.Decoder(FullLabel)
class_label = msgspec.json.Decoder(ClassLabel)
_head = msgspec.json.Decoder(Head)
_raws = msgspec.json.Decoder(list[Raw])
_segments = msgspec.json.Decoder(dict[str, str])
_objects = msgspec.json.Decoder(list[dict[str, Any] | None])
_VERDICT = {name: code for code, name in enumerate(VERDICTS[:-1])}


class _Wrong(Exception):
    """One event that cannot be taken; args are (reason, detail)."""


def slices(body: bytes) -> Iterator[memoryview]:
    """Yield pieces of whole lines of about 190 kB without copying them."""
    at, view = 0, memoryview(body)
    while at < len(body):
        end = len(body) if at + _SLICE >= len(body) else (body.find(b"\n", at + _SLICE) + 1 or len(body))
        yield view[at:end]
        at = end


def parse_time(value: Any) -> int:
    """Return ms since 1970 for ISO-8601 text (zone, else UTC) or an epoch number in s, ms, us or ns; raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r}")
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
            value = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
        except (ValueError, OverflowError):
            raise ValueError(f"{value!r}") from None
    elif not -1e20 < value < 1e20:
        raise ValueError(f"{value!r}")
    if EARLIEST <= value < LATEST:
        return int(value)
    if EARLIEST <= value * 1_000 < LATEST:
        return int(value * 1_000)
    for scale in (1_000, 1_000_000):
        if EARLIEST <= value // scale < LATEST:
            return int(value // scale)
    raise ValueError(f"{value!r}")


def times(values: list[Any]) -> tuple[Ints, NDArray[np.bool_]]:
    """Return ms since 1970 for a column of times and which of them are valid."""
    try:
        if all(type(v) is int for v in values):
            return valid_epochs(np.array(values, np.int64))
        if all(
            type(v) is str and len(v) > 9 and "+" not in v and not {"-", "Z"} & {*v[10:-1]} and not v.isdigit() for v in values
        ):
            ms = np.array([v.removesuffix("Z") for v in values], "datetime64[ms]").astype(np.int64)
            return valid_epochs(ms)
    except (ValueError, OverflowError):
        pass
    out, good = np.zeros(len(values), np.int64), np.zeros(len(values), bool)
    for i, value in enumerate(values):
        try:
            out[i], good[i] = parse_time(value), True
        except ValueError:
            pass
    return out, good


class _SegmentCache(dict[bytes, Combo]):
    """Raw JSON of a segments object -> the values of the configured segments, parsed once per distinct text."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, raw: bytes) -> Combo:
        combo = combo_of(_segments.decode(raw), self.names)
        if len(self) >= 4_096:
            self.clear()
        self[raw] = combo
        return combo


def combo_of(segments: Mapping[str, str], names: tuple[str, ...]) -> Combo:
    """Return the (name, value) pairs of the configured segments that the event has."""
    return tuple((name, segments[name]) for name in names if name in segments)


class Decoder:
    """Bytes -> Batch for the configured models. `segments` maps a model (or "*") to the names of its segments.

    Predictions of the models in `review` (or "*", for the models without an entry) keep their ids as sent. `features` are by
    model those that become codes; the others that an event has are passed over. `scores` says what the scores of models are
    that have no probabilities of one class.
    """

    def __init__(
        self,
        hasher: Hasher,
        segments: Mapping[str, tuple[str, ...]],
        review: frozenset[str] = frozenset(),
        features: Mapping[str, Placed] | None = None,
        scores: Mapping[str, Scores] | None = None,
    ) -> None:
        self.hasher = hasher
        self.segments, self.review, self.features, self.scores = segments, review, features or {}, scores or {}
        self.only_model = next(iter(segments)) if len(segments) == 1 and "*" not in segments else None
        self._caches: dict[str, _SegmentCache] = {}
        classes = any(how.classes for how in self.scores.values())
        unbounded = any(how.unbounded and not how.classes for how in self.scores.values())
        self._lines: dict[str, list[Any]] = {
            "labels": [lean_label, full_label, *[class_label] * classes],
            "predictions": [lean_prediction, full_prediction, *[unbounded_prediction] * unbounded, *[class_prediction] * classes],
        }

    def known(self, model: str) -> bool:
        """Return whether the configuration has an entry for the model."""
        return model in self.segments or "*" in self.segments

    def segment_names(self, model: str) -> tuple[str, ...]:
        """Return the configured segments of the model."""
        return self.segments.get(model, self.segments.get("*", ()))

    def reviewed(self, model: str) -> bool:
        """Return whether predictions of the model keep their ids as sent."""
        return model in self.review or ("*" in self.review and model not in self.segments)

    def how(self, model: str) -> Scores:
        """Return what the scores of the model are."""
        return self.scores.get(model) or (BINARY if model in self.segments else self.scores.get("*", BINARY))

    def _cache(self, model: str) -> _SegmentCache:
        if model not in self._caches:
            self._caches[model] = _SegmentCache(self.segment_names(model))
        return self._caches[model]

    def ndjson(self, body: bytes, kind: str) -> Batch:
        """Return the batch of an NDJSON body; `kind` is predictions, labels or events (either, told apart by their fields)."""
        made = Maker(self, kind)
        for part in slices(body):
            if kind != "events" and self._typed(made, part, kind):
                continue
            for line in bytes(part).splitlines():
                if line.strip():
                    made.add(line)
        return made.batch()

    def _typed(self, made: "Maker", part: memoryview, kind: str) -> bool:
        """Decode a slice with the typed decoders; False when a line needs the slow path."""
        for decoder in self._lines[kind]:
            try:
                items: Any = decoder.decode_lines(part)
            except (msgspec.DecodeError, RecursionError):
                continue
            return made.typed(items, kind)
        return False

    def json(self, body: bytes, kind: str) -> Batch:
        """Return the batch of a JSON body: one event, a list of events, list columns, or packed columns."""
        made = Maker(self, kind)
        if body.lstrip()[:1] == b"[":
            try:
                items: list[Any] = list(_raws.decode(body))
            except (msgspec.DecodeError, RecursionError):
                items = _loads(body)  # bare NaN somewhere: only the items that hold it are rejected
            for item in items:
                made.add(item)
            return made.batch()
        try:
            head = _head.decode(body)
        except (msgspec.DecodeError, RecursionError):
            item = _loads(body)  # bare NaN somewhere: only the rows that hold it are rejected
            if isinstance(item, dict) and isinstance(item.get("id"), list):
                return self._list_columns(item, kind)
            made.add(item)
            return made.batch()
        first = b"" if isinstance(head.id, UnsetType) else bytes(head.id)[:1]
        if first == b'"' and not isinstance(head.n, UnsetType):
            from monitor.formats import packed

            return packed.decode(self, body)
        if first == b"[":
            return self._list_columns(_loads(body), kind)
        made.add(body)
        return made.batch()

    def _list_columns(self, columns: dict[str, Any], kind: str) -> Batch:
        made = Maker(self, kind)
        n = len(columns["id"])
        combos = columns.pop("combos", None)
        features = columns.get("features")
        if isinstance(features, dict):
            columns["features"] = [dict(zip(features, row, strict=True)) for row in _rows(features, n)]
        for name, column in columns.items():
            if isinstance(column, list) and len(column) != n:
                raise ValueError(f"column {name} has {len(column)} values, id has {n}")
        if combos is not None:
            codes: Any = columns.get("segments")
            valid = isinstance(combos, list) and isinstance(codes, list)
            if not valid or not all(type(c) is int and 0 <= c < len(combos) for c in codes):
                raise ValueError("segments must hold positions in combos")
            columns["segments"] = [combos[c] for c in codes]
        if kind == "predictions" and made.columns(columns, n):
            return made.batch()
        for i in range(n):
            made.add({name: column[i] if isinstance(column, list) else column for name, column in columns.items()})
        return made.batch()


def _loads(body: bytes) -> Any:
    """Return any JSON, bare NaN and Infinity included; raise ValueError when it is unreadable."""
    try:
        return json.loads(body, parse_int=_integer)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"not JSON: {e}") from None


def _integer(text: str) -> int | float:
    """Return the number; one past what a float can hold is infinite, so it is rejected and overflows nowhere."""
    return int(text) if len(text) < 300 else float(text)


class Maker:
    """Collects valid events as columns and the rejected ones with their reasons, in the order they were sent."""

    def __init__(self, decoder: Decoder, kind: str) -> None:
        self.decoder, self.kind = decoder, kind
        self.size = 0
        self.clipped = self.scaled = 0
        self.now: int | None = None
        self.rejected: list[Rejection] = []
        self._predictions: list[Predictions] = []
        self._labels: list[Labels] = []
        self._slow: dict[str, list[tuple[Any, ...]]] = {"predictions": [], "labels": []}

    def reject(self, index: int, reason: str, detail: str) -> None:
        """Note an event that is not taken; the detail may quote a lone surrogate, which no answer could hold."""
        self.rejected.append(Rejection(index, reason, detail[:200].encode("utf-8", "backslashreplace").decode()))

    # The fast paths: whole lists of typed structs, or whole columns.

    def typed(self, items: list[Any], kind: str) -> bool:
        """Take a list of structs of one kind; False when a row of it needs the slow path."""
        n = len(items)
        if not n:
            return True
        if kind == "labels":
            return self._typed_labels(items, n)
        columns: dict[str, Any] = {
            "id": [e.id for e in items],
            "ts": [e.ts for e in items],
            "model": [e.model for e in items],
            "version": [e.version for e in items],
            "segments": [bytes(e.segments) for e in items],
        }
        classes = type(items[0]) is ClassPrediction
        columns |= {"scores": [e.scores for e in items]} if classes else {"score": [e.score for e in items]}
        if type(items[0]) is not LeanPrediction:
            verdict = [
                "flag" if e.flagged else "pass" if e.verdict is None and e.flagged is not None else e.verdict for e in items
            ]
            if any(e.flagged is not None and e.verdict is not None for e in items):
                return False
            columns |= {"verdict": verdict, "policy": [e.policy for e in items]}
            columns |= {"label_prob": [e.label_prob for e in items], "cluster": [e.cluster for e in items]}
            if (features := [e.features for e in items]).count(_NULL) < n:
                columns["features"] = features
        return self.columns(columns, n)

    def columns(self, c: Mapping[str, Any], n: int) -> bool:
        """Take n predictions as columns (lists, or one value for all); False when a row needs the slow path.

        Segments come as `segments` (raw JSON or objects) or ready-made as `combo`.
        """
        if c.keys() - _COLUMNS or not n:
            return False
        try:
            model, version = c["model"], c["version"]
            ids = list(map(str.encode, c["id"]))
            if not all(0 < len(i) <= 256 for i in ids):
                return False
            segments = c.get("segments") or [b"{}"] * n
            verdict = c.get("verdict")
            policies = c.get("policy")
            codes = np.full(n, UNDECIDED, np.uint8)
            if verdict is not None:
                codes = np.array([UNDECIDED if v is None else _VERDICT[v] for v in _spread(verdict, n)], np.uint8)
            names = Coded.of(list(zip(_spread(model, n), _spread(version, n), strict=True)))
            if not all(_is_name(m) and _is_name(v) and self.decoder.known(m) for m, v in names.names):
                return False
            policy = Coded.of([p or "" for p in _spread(policies, n)])
            if not all(type(p) is str for p in policy.names):
                return False
            ts, good = times(c["ts"])
            how, scores = self._scores(names, c)
            p, wrong, clipped, scaled = probabilities(how, scores)
            if not good.all() or wrong.any() or (how.classes and (any(policy.names) or (how.multi and (codes < NONE).any()))):
                return False
            combo = self._combos(names, segments) if "combo" not in c else Coded.of(c["combo"])
            made = Predictions(
                self._index(n),
                self._ids(names, ids),
                ts,
                names,
                p[:, 0],
                codes,
                combo,
                policy,
                _prob_codes(_spread(c["label_prob"], n)) if "label_prob" in c else None,
                self._clusters(names, _spread(c["cluster"], n)) if "cluster" in c else None,
                self._sent(names, ids),
                features=self._features(names, _spread(c["features"], n)) if "features" in c else None,
            )
            _encode(names.names, policy.names, combo.names)
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError, RecursionError):
            return False
        self.clipped += int(clipped.sum())
        self.scaled += int(scaled.sum())
        self._predictions.append(expand(how, made, p) if how.classes else made)
        self.size += n
        return True

    def _scores(self, names: Coded, c: Mapping[str, Any]) -> tuple[Scores, Floats]:
        """Return what scores in columns are and the scores, shape (n, K); raise ValueError when a row needs the slow path.

        Models whose scores differ in kind are not taken together.
        """
        kinds = [self.decoder.how(m) for m, _ in names.names]
        how = kinds[0]
        if any(kind is not how for kind in kinds) or ("scores" in c) is not bool(how.classes) or {"score", "scores"} <= c.keys():
            raise ValueError("scores")
        rows: list[Any] = list(map(how.row, c["scores"])) if how.classes else [c["score"]]
        if None in rows or not set(map(type, chain.from_iterable(rows))) <= {float, int}:
            raise ValueError("scores")
        scores: Floats = np.array(rows, np.float64)
        return how, scores if how.classes else scores.T

    def _typed_labels(self, items: list[Any], n: int) -> bool:
        columns = {name: [getattr(e, name) for e in items] for name in items[0].__struct_fields__}
        return self.label_columns(columns, n)

    def label_columns(self, c: Mapping[str, list[Any]], n: int) -> bool:
        """Take n labels as columns; False when a row needs the slow path."""
        only = self.decoder.only_model
        names = Coded.of([(m if m is not None else only, v) for m, v in zip(c["model"], c["version"], strict=True)])
        if not all(m is not None and self.decoder.known(m) for m, _ in names.names):
            return False
        ts, good = times(c["ts"])
        try:
            encoded = list(map(str.encode, c["id"]))
        except UnicodeEncodeError:
            return False
        if not good.all() or not all(0 < len(i) <= 256 for i in encoded):
            return False
        hows = [self.decoder.how(m) for m, _ in names.names if m is not None]
        how, label = hows[0], c["label"]
        if any(h is not how for h in hows if h.classes or how.classes) or bool(how.classes) is (type(label[0]) is int):
            return False
        if how.classes:
            label = list(map(how.outcome, label))
            if None in label:
                return False
        ids, revision = self._ids(names, encoded), np.array(c["revision"], np.uint8)
        try:
            probs = _prob_codes(c["label_prob"]) if "label_prob" in c else None
        except ValueError:
            return False
        self._labels.append(_labels(how, Labels(self._index(n), ids, ts, names, np.zeros(n, np.int8), revision, probs), label))
        self.size += n
        return True

    def _index(self, n: int) -> Ints:
        return np.arange(self.size, self.size + n, dtype=np.int64)

    def _ids(self, names: Coded, ids: list[bytes]) -> NDArray[np.uint64]:
        return _by_model(self.decoder.hasher.ids, names, ids)

    def _clusters(self, names: Coded, values: list[Any]) -> NDArray[np.uint32] | None:
        """Return the hashes of clusters, 0 where there is none; raise ValueError when a value needs the slow path."""
        missing = values.count(None)
        if missing == len(values):
            return None
        if not set(map(type, values)) <= {str, int, NoneType}:
            raise ValueError("cluster")
        texts = ["" if v is None else str(v) for v in values]
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        if np.count_nonzero(sizes) != len(values) - missing or sizes.max() > 256:
            raise ValueError("cluster")
        hashes: NDArray[np.uint32] = _by_model(self.decoder.hasher.clusters, names, list(map(str.encode, texts)))
        return np.where(sizes > 0, hashes, np.uint32(0))

    def _features(self, names: Coded, given: list[Any]) -> NDArray[np.uint8] | None:
        """Return the codes of the features of each row, None where no row has any; raise ValueError for the slow path."""
        places = [self.decoder.features.get(m) for m, _ in names.names]
        if not any(places):
            return None
        out = np.zeros((len(given), FEATURES), np.uint8)
        for code, place in enumerate(places):
            at = np.flatnonzero(names.codes == code)
            if place and len(at):
                items = [given[i] for i in at]
                if type(items[0]) is Raw:
                    items = _objects.decode(b"[" + b",".join(items) + b"]")
                out[at] = encode(place, items)
        return out if out.any() else None

    def _sent(self, names: Coded, ids: list[bytes]) -> NDArray[Any] | None:
        """Return the ids of rows whose model is reviewed, None for the others; None when no row is."""
        if not self.decoder.review:
            return None
        reviewed = np.array([self.decoder.reviewed(m) for m, _ in names.names])
        if not reviewed.any():
            return None
        column = np.array(ids, object)
        column[~reviewed[names.codes]] = None
        return column

    def _combos(self, names: Coded, segments: list[Any]) -> Coded:
        models = [m for m, _ in names.names]
        if type(segments[0]) is bytes:
            if len(set(models)) == 1:
                return Coded.of(list(map(self.decoder._cache(models[0]).__getitem__, segments)))
            caches = [self.decoder._cache(m) for m in models]
            return Coded.of([caches[c][s] for c, s in zip(names.codes, segments, strict=True)])
        wanted = [self.decoder.segment_names(m) for m in models]
        combos = []
        for code, given in zip(names.codes, segments, strict=True):
            if not all(type(k) is str and type(v) is str for k, v in given.items()):
                raise TypeError("segments")
            combos.append(combo_of(given, wanted[code]))
        return Coded.of(combos)

    # The slow path: one item, every reason named.

    def add(self, item: Any) -> None:
        """Take or reject one event given as JSON text or as parsed JSON."""
        if isinstance(item, bytes | Raw):
            try:
                item = _loads(bytes(item))
            except ValueError as e:
                self.reject(self.size, "malformed", str(e))
                self.size += 1
                return
        if isinstance(item, dict) and item.keys() == {"now"}:
            self._move(item["now"])
            return
        try:
            self._take(item)
        except _Wrong as e:
            self.reject(self.size, *e.args)
        self.size += 1

    def _move(self, value: Any) -> None:
        try:
            self.now = max(self.now or 0, parse_time(value))
        except ValueError as e:
            self.reject(self.size, "timestamp", f"now: {e}")
            self.size += 1

    def _take(self, item: Any) -> None:
        if not isinstance(item, dict):
            raise _Wrong("malformed", item if isinstance(item, str) else f"expected an object, found {type(item).__name__}")
        carried = item.get("prediction")
        kind = self.kind
        if kind == "events":
            kind = (
                "labels" if "label" in item and (not item.keys() & {"score", "scores"} or carried is not None) else "predictions"
            )
        if kind == "predictions":
            self._slow["predictions"].append((self.size, *self._prediction(item)))
            return
        label = self._label(item)
        if carried is not None:
            try:
                prediction = self._prediction(_carried(item, carried, label[2]))
            except _Wrong as e:
                raise _Wrong(e.args[0], f"prediction: {e.args[1]}") from None
            self._slow["predictions"].append((self.size, *prediction))
            label = (*label[:2], prediction[2], *label[3:])  # it goes to no other version
        self._slow["labels"].append((self.size, *label))

    def _common(self, item: dict[str, Any]) -> tuple[bytes, int]:
        ident = item.get("id")
        if type(ident) is int:
            ident = str(ident)
        if ident is None:
            raise _Wrong("missing_field", "id")
        if not isinstance(ident, str):
            raise _Wrong("type", f"id: {ident!r}")
        if not 0 < len(ident) <= 256:
            raise _Wrong("id", f"{len(ident)} characters")
        if item.get("ts") is None:
            raise _Wrong("missing_field", "ts")
        try:
            ts = parse_time(item["ts"])
        except ValueError as e:
            raise _Wrong("timestamp", str(e)) from None
        try:
            return ident.encode(), ts
        except UnicodeEncodeError:
            raise _Wrong("malformed", "id holds a lone surrogate") from None

    def _name(self, item: dict[str, Any], field: str) -> str:
        value = item.get(field)
        if value is None:
            raise _Wrong("missing_field", field)
        if not isinstance(value, str) or not 0 < len(value) <= 128:
            raise _Wrong("type", f"{field}: {value!r}")
        self._text(field, value)
        return value

    def _text(self, field: str, *values: str) -> None:
        try:
            _encode(values)
        except UnicodeEncodeError:
            raise _Wrong("malformed", f"{field} holds a lone surrogate") from None

    def _cluster(self, item: dict[str, Any]) -> str | None:
        value = item.get("cluster")
        text = str(value) if type(value) is int else value
        if text is None:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            raise _Wrong("not_finite", f"cluster: {value!r}")
        if not isinstance(text, str) or not 0 < len(text) <= 256:
            raise _Wrong("type", f"cluster: {value!r} (text of 1 to 256 characters, or an integer)")
        self._text("cluster", text)
        return text

    def _prediction(self, item: dict[str, Any]) -> tuple[Any, ...]:
        _supported(item)
        if "label" in item:
            raise _Wrong("unsupported", "label inside a prediction; send the label to /v1/labels with its prediction inside")
        ident, ts = self._common(item)
        model, version = self._name(item, "model"), self._name(item, "version")
        if not self.decoder.known(model):
            raise _Wrong("unknown_model", model)
        how = self.decoder.how(model)
        scores, clipped, scaled = _one(how, item)
        segments = item.get("segments") or {}
        if not isinstance(segments, dict) or not all(isinstance(v, str) for v in segments.values()):
            raise _Wrong("type", f"segments: {segments!r}")
        self._text("segments", *segments.keys(), *segments.values())
        verdict, flagged, policy = item.get("verdict"), item.get("flagged"), item.get("policy")
        if flagged is not None and (not isinstance(flagged, bool) or verdict is not None):
            raise _Wrong("type", f"flagged: {flagged!r} (true or false, and not beside verdict)")
        if verdict is not None and (not isinstance(verdict, str) or verdict not in _VERDICT):
            raise _Wrong("type", f"verdict: {verdict!r} (one of {', '.join(_VERDICT)})")
        if policy is not None and (not isinstance(policy, str) or len(policy) > 128):
            raise _Wrong("type", f"policy: {policy!r}")
        self._text("policy", policy or "")
        if how.classes and policy:
            raise _Wrong("unsupported", "policy: each class has its own; the agent takes those that are served")
        if how.multi and (flagged is not None or verdict is not None):
            raise _Wrong("unsupported", "verdict: each class has its own; the agent takes those of their thresholds")
        code = UNDECIDED if flagged is None and verdict is None else _VERDICT[verdict or ("flag" if flagged else "pass")]
        combo = combo_of(segments, self.decoder.segment_names(model))
        prob, cluster, features = _label_prob(item), self._cluster(item), self._said(model, item.get("features"))
        self.clipped += clipped
        self.scaled += scaled
        return ident, ts, (model, version), scores, code, combo, policy or "", prob, cluster, features

    def _said(self, model: str, given: Any) -> dict[str, Any] | None:
        """Return what the event says of the features of its model, None where it says nothing or the model has none."""
        places = self.decoder.features.get(model)
        if not places or given is None:
            return None
        if not isinstance(given, dict):
            raise _Wrong("type", f"features: {given!r}")
        said = {name: given.get(name) for name in places}
        for name, value in said.items():
            if isinstance(value, dict | list):
                raise _Wrong("type", f"features.{name}: {value!r}")
            if isinstance(value, float) and not math.isfinite(value):
                raise _Wrong("not_finite", f"features.{name}: {value!r}")
        return said

    def _label(self, item: dict[str, Any]) -> tuple[Any, ...]:
        _supported(item)
        ident, ts = self._common(item)
        model, version = item.get("model"), item.get("version")
        if model is None:
            model = self.decoder.only_model
        if model is None:
            raise _Wrong("no_model", "name the model of the label")
        if not isinstance(model, str) or not isinstance(version, str | None):
            raise _Wrong("type", f"model: {model!r}, version: {version!r}")
        if not self.decoder.known(model):
            raise _Wrong("unknown_model", model)
        if "label" not in item:
            raise _Wrong("missing_field", "label")
        label, revision = item["label"], item.get("revision", 0)
        if label is None:
            raise _Wrong("null_label", "null")
        if isinstance(label, float) and not math.isfinite(label):
            raise _Wrong("not_finite", f"label: {label!r}")
        if (how := self.decoder.how(model)).classes:
            return ident, ts, (model, version), _outcome(how, label), _revision(revision), _label_prob(item)
        if not isinstance(label, int | float):
            raise _Wrong("type", f"label: {label!r}")
        if label not in (0, 1):
            raise _Wrong("label_class", f"label: {label!r}")
        return ident, ts, (model, version), int(label), _revision(revision), _label_prob(item)

    def _by_how(self, kind: str) -> list[tuple[Scores, list[tuple[Any, ...]]]]:
        """Return the rows of the slow path: those of each model with classes apart, all others together."""
        groups: dict[str, tuple[Scores, list[tuple[Any, ...]]]] = {}
        for row in self._slow[kind]:
            how = self.decoder.how(row[3][0])
            groups.setdefault(row[3][0] if how.classes else "", (how, []))[1].append(row)
        return list(groups.values())

    def _flush(self) -> None:
        for how, rows in self._by_how("predictions"):
            index, ids, ts, version, scores, verdict, combo, policy, prob, cluster, features = map(list, zip(*rows, strict=True))
            names, p = Coded.of(version), np.array(scores, np.float64)
            made = Predictions(
                np.array(index, np.int64),
                self._ids(names, ids),
                np.array(ts, np.int64),
                names,
                p[:, 0],
                np.array(verdict, np.uint8),
                Coded.of(combo),
                Coded.of(policy),
                _prob_codes(prob),
                self._clusters(names, cluster),
                self._sent(names, ids),
                features=self._features(names, features),
            )
            self._predictions.append(expand(how, made, p) if how.classes else made)
        for how, rows in self._by_how("labels"):
            index, ids, ts, version, label, revision, prob = map(list, zip(*rows, strict=True))
            names = Coded.of(version)
            ms, keys = np.array(ts, np.int64), self._ids(names, ids)
            columns = np.zeros(len(rows), np.int8), np.array(revision, np.uint8), _prob_codes(prob)
            self._labels.append(_labels(how, Labels(np.array(index, np.int64), keys, ms, names, *columns), label))

    def batch(self) -> Batch:
        """Return everything taken and rejected so far."""
        self._flush()
        return Batch(
            self.size,
            _ordered(self._predictions, Predictions),
            _ordered(self._labels, Labels),
            tuple(sorted(self.rejected)),
            self.now,
            self.clipped,
            self.scaled,
        )


def _one(how: Scores, item: dict[str, Any]) -> tuple[Floats, bool, bool]:
    """Return the probabilities (K,) of an event, whether one was clipped, and whether they were scaled to sum to 1."""
    name, other = ("scores", "score") if how.classes else ("score", "scores")
    if item.get(other) is not None:
        raise _Wrong("scores", f"{other}; send {name}")
    if name not in item:
        raise _Wrong("missing_field", name)
    given = item[name]
    row = _row(how, given) if how.classes else [given]
    if not all(isinstance(s, int | float) and not isinstance(s, bool) for s in row):
        raise _Wrong("type", f"{name}: {given!r}")
    p, wrong, clipped, scaled = probabilities(how, np.array([row], np.float64))
    if wrong[0]:
        raise _Wrong(WRONG[int(wrong[0])], f"{name}: {given!r}")
    return p[0], bool(clipped[0]), bool(scaled[0])


def _row(how: Scores, given: Any) -> list[Any]:
    """Return scores by name or in the order of the classes as a list."""
    if not isinstance(given, dict | list):
        raise _Wrong("type", f"scores: {given!r} (a list, or an object by class)")
    if isinstance(given, dict) and (unknown := [name for name in given if name not in how.classes]):
        raise _Wrong("unknown_class", f"scores: {unknown[0]!r}")
    row = how.row(given)
    if row is None:
        raise _Wrong("scores", f"{len(given)} of {len(how.classes)} scores")
    return row


def _outcome(how: Scores, label: Any) -> int | list[int]:
    named = label if how.multi and isinstance(label, list) else [label]
    if how.multi is not isinstance(label, list) or not all(type(name) in (str, int) for name in named):
        raise _Wrong("type", f"label: {label!r} ({'a list of classes' if how.multi else 'a class'})")
    found = how.outcome(label)
    if found is None:
        raise _Wrong("unknown_class", f"label: {label!r}")
    return found


def _revision(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 255:
        raise _Wrong("type", f"revision: {value!r} (0 to 255)")
    return value


def _labels(how: Scores, labels: Labels, outcomes: Sequence[Any]) -> Labels:
    """Return the labels with their outcomes, of a model with classes those of its targets."""
    if how.classes:
        return expand_labels(how, labels, outcomes)
    return replace(labels, label=np.array(outcomes, np.int8))


def _supported(item: dict[str, Any]) -> None:
    for field in _UNSUPPORTED:
        if item.get(field) is not None:
            raise _Wrong("unsupported", field)


def _label_prob(item: dict[str, Any]) -> float | None:
    value = item.get("label_prob")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong("type", f"label_prob: {value!r}")
    if not math.isfinite(value):
        raise _Wrong("not_finite", f"label_prob: {value!r}")
    if not MIN_PROB <= value <= 1:
        raise _Wrong("label_prob", f"{value!r}")
    return float(value)


def _carried(item: dict[str, Any], prediction: Any, name: tuple[str, str | None]) -> dict[str, Any]:
    """Return the prediction that a label carries, under the label's id and model; what both say must be the same."""
    if not isinstance(prediction, dict):
        raise _Wrong("type", f"expected an object, found {type(prediction).__name__}")
    known = {"id": item["id"], "model": name[0]} | ({} if name[1] is None else {"version": name[1]})
    for field, value in known.items():
        if prediction.get(field) not in (None, value):
            raise _Wrong("type", f"{field}: {prediction[field]!r}, the label has {value!r}")
    own, its = _label_prob(item), _label_prob(prediction)
    if own is not None and its is not None and np.ptp(prob_code(np.array([own, its]))) > 0:
        raise _Wrong("label_prob", f"{its!r}, the label has {own!r}")
    return prediction | known


def _prob_codes(values: list[Any]) -> NDArray[np.uint16] | None:
    """Return the codes of label probabilities, 0 for None, or None when all are; raise ValueError when one is not valid."""
    missing = values.count(None)
    if missing == len(values):
        return None
    p = np.array(values, np.float64)
    good = (p >= MIN_PROB) & (p <= 1)
    if np.count_nonzero(good) != len(values) - missing or not set(map(type, values)) <= {float, int, NoneType}:
        raise ValueError("label_prob")
    codes = np.zeros(len(values), np.uint16)
    codes[good] = prob_code(p[good])
    return codes


def _by_model(hashed: Callable[[str, list[bytes]], NDArray[Any]], names: Coded, texts: list[bytes]) -> NDArray[Any]:
    """Return the hashes of texts, each under the model of its row."""
    models = list(dict.fromkeys(m for m, _ in names.names))
    if len(models) == 1:
        return hashed(models[0], texts)
    code = np.array([models.index(m) for m, _ in names.names])[names.codes]
    rows = [np.flatnonzero(code == i) for i in range(len(models))]
    parts = [hashed(model, [texts[i] for i in at]) for model, at in zip(models, rows, strict=True)]
    out = np.empty((len(texts), *parts[0].shape[1:]), parts[0].dtype)
    for at, part in zip(rows, parts, strict=True):
        out[at] = part
    return out


def _is_name(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= 128


def _encode(*columns: Iterable[Any]) -> None:
    """Raise UnicodeEncodeError when a text, or one of the pairs of texts, cannot be written."""
    for column in columns:
        for value in column:
            "".join(value if isinstance(value, str) else (text for pair in value for text in pair)).encode()


def _rows(columns: Mapping[str, Any], n: int) -> Iterator[tuple[Any, ...]]:
    """Return the rows of columns (lists, or one value for all); raise ValueError when a list has not n values."""
    for name, column in columns.items():
        if isinstance(column, list) and len(column) != n:
            raise ValueError(f"column features.{name} has {len(column)} values, id has {n}")
    return zip(*(_spread(column, n) for column in columns.values()), strict=True) if columns else iter([()] * n)


def _spread(value: Any, n: int) -> list[Any]:
    """Return a column: the list itself, or one value n times."""
    return value if isinstance(value, list) else [value] * n


def _ordered(parts: list[Any], kind: Any) -> Any:
    if not parts:
        return None
    columns = kind.concat(parts)
    if len(parts) > 1 and (np.diff(columns.index) < 0).any():
        columns = columns.take(np.argsort(columns.index, kind="stable"))
    return columns
