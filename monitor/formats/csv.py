"""CSV with a header line: predictions, labels, or both in one file (a row with a score is a prediction, else a label).

A row with `score`, `label` and `prediction_ts` is a label that carries its prediction; its `ts` is that of the label. A column
such as `features.amount` holds a feature, which is missing where the field is empty; other columns are segments.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import Any

from monitor.core.events import Batch
from monitor.formats.json import Decoder, Maker

_NUMBERS = ("score", "label", "revision", "label_prob")
_TIMES = ("ts", "prediction_ts")
_CARRIED = ("version", "score", "scores", "segments", "verdict", "flagged", "policy", "cluster", "features")
_FEATURE = "features."
_SCORES = "scores."
"""Columns `scores.cat`, ... hold the scores of a model with classes."""
_FIELDS = ("id", "model", *_TIMES, *_NUMBERS, *_CARRIED)


def header(line: str) -> list[str]:
    """Return the column names of a header line."""
    return next(_rows(line.lstrip("\ufeff")), [])


def _rows(text: str) -> Iterator[list[str]]:
    """Yield the rows of a whole body; quotes may hold line ends. Raise ValueError when it is no CSV (a stray quote)."""
    try:
        yield from csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as e:
        raise ValueError(f"not CSV: {e}") from None


def _lines(text: str) -> Iterator[list[str]]:
    """Yield a row for each line of a file; quotes hold no line ends, so a stray quote costs one line and not the rest."""
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if '"' not in line:
            yield line.split(",") if line else []
            continue
        try:
            yield next(csv.reader([line], strict=True), [])
        except csv.Error:
            yield [line]  # the wrong number of fields, which is what is said of it


def decode(decoder: Decoder, names: list[str], body: bytes, kind: str, by_line: bool = False) -> Batch:
    """Return the batch of CSV rows (without the header line); an empty field is an absent one.

    `by_line`: the text is a part of a file, whose rows are lines.
    """
    made = Maker(decoder, kind)
    text = body.decode("utf-8", "surrogateescape")
    rows = [row for row in (_lines(text) if by_line else _rows(text)) if row]
    if not _columns(made, names, rows, kind):
        for row in rows:
            made.add(_item(made.decoder, names, row))
    return made.batch()


def _columns(made: Maker, names: list[str], rows: list[list[str]], kind: str) -> bool:
    """Take all rows as columns when they are complete and of one kind; else False, and each row is looked at."""
    n = len(rows)
    if not n or {len(row) for row in rows} != {len(names)} or len(set(names)) < len(names):
        return False
    c: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if any(name.startswith(_SCORES) for name in c):
        return False
    labels = "label" in c and "score" not in c
    if (
        ("label" in c) == ("score" in c)
        or any("" in c[name] for name in names if not name.startswith(_FEATURE))
        or "flagged" in c
        or "segments" in c
    ):
        return False
    if labels is not (kind == "labels") and kind != "events":
        return False
    try:
        c["ts"] = list(map(int, c["ts"])) if all(map(str.isdigit, c["ts"])) else c["ts"]
        if "label_prob" in c:
            c["label_prob"] = list(map(float, c["label_prob"]))
        if labels:
            c["label"] = [("0", "1").index(v) for v in c["label"]]
            c["revision"] = list(map(int, c["revision"])) if "revision" in c else [0] * n
            c = {"model": [None] * n, "version": [None] * n, **c}
            return min(c["revision"]) >= 0 and max(c["revision"]) < 256 and made.label_columns(c, n)
        c["score"] = list(map(float, c["score"]))
        if any(name.startswith(_FEATURE) for name in names):
            said = [
                _features(made.decoder, model, zip(names, row, strict=True)) for model, row in zip(c["model"], rows, strict=True)
            ]
            c = {name: column for name, column in c.items() if not name.startswith(_FEATURE)} | {"features": said}
        segments = [name for name in c if name not in _FIELDS]
        wanted = {made.decoder.segment_names(m) for m in set(c["model"])}
        if len(wanted) == 1:
            used = [name for name in wanted.pop() if name in segments]
            c["combo"] = [tuple(zip(used, values, strict=True)) for values in zip(*(c[name] for name in used), strict=True)] or [
                ()
            ] * n
            return made.columns({name: column for name, column in c.items() if name not in segments}, n)
    except (KeyError, ValueError):
        pass
    return False


def _features(decoder: Decoder, model: str, fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the features of a row; a text is a number where the baseline has numbers, and stays one where it has text."""
    given = {name.removeprefix(_FEATURE): value for name, value in fields if name.startswith(_FEATURE) and value != ""}
    places = decoder.features.get(model, {})
    return {name: number(given[name]) if f.numeric else given[name] for name, (_, f) in places.items() if name in given}


def _item(decoder: Decoder, names: list[str], row: list[str]) -> Any:
    if len(row) != len(names):
        return f"{len(row)} fields, the header has {len(names)}"
    item: dict[str, Any] = {}
    segments: dict[str, str] = {}
    scores: dict[str, Any] = {}
    for name, value in zip(names, row, strict=True):
        if value == "":
            continue
        if name in _NUMBERS or (name in _TIMES and value.lstrip("-").replace(".", "", 1).isdigit()):
            item[name] = number(value)
        elif name == "flagged":
            item[name] = {"true": True, "false": False, "1": True, "0": False}.get(value.lower(), value)
        elif name in _FIELDS:
            item[name] = value
        elif name.startswith(_SCORES):
            scores[name.removeprefix(_SCORES)] = number(value)
        elif not name.startswith(_FEATURE):
            segments[name] = value
    if segments:
        item["segments"] = segments
    if scores:
        item["scores"] = scores
    if any(name.startswith(_FEATURE) for name in names):
        item["features"] = _features(decoder, item.get("model", ""), zip(names, row, strict=True))
    if item.keys() >= {"label", "prediction_ts"} and item.keys() & {"score", "scores"}:
        item["prediction"] = {"ts": item.pop("prediction_ts")} | {name: item.pop(name) for name in _CARRIED if name in item}
    return item


def number(text: str) -> Any:
    """Return the number, or the text itself, which is then rejected with the reason `type`."""
    try:
        value = float(text)
    except ValueError:
        return text
    return int(text) if math.isfinite(value) and text.lstrip("+-").isdigit() else value
