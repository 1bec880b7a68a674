"""Files of labelled rows, as a validation leaves them: CSV, NDJSON, both also .gz, and Parquet."""

import csv
import gzip
import io
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from monitor.core.events import Floats
from monitor.core.validation import ROLES
from monitor.formats.classes import BINARY, WRONG, Scores, probabilities
from monitor.formats.csv import number
from monitor.formats.json import Combo, parse_time

_COLUMNS = ("id", "score", "label", "ts", "role", "entity", "model", "version")
_NUMBERS = ("score", "label", "ts")
_UNSUPPORTED = {
    "weight": "rows count alike; repeat none and draw a sample in which each row stands for as many",
    "label_prob": "of a sample that was labelled selectively no baseline can be built; use one drawn at random",
}
_LARGEST = sys.float_info.max
_GROUPS = ("segments", "features", "scores")


class Refused(NamedTuple):
    """A row that cannot be used: its file and line (of Parquet: row), a code of `reasons`, and what was found."""

    path: Path
    line: int
    reason: str
    detail: str

    def __str__(self) -> str:
        """Return it as a line for a person."""
        return f"{self.path}: line {self.line}: {self.reason}: {self.detail}"


class _Wrong(Exception):
    """One row that cannot be used; args are (reason, detail)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read: of which model and version, which segments and features, and what its scores are."""

    model: str
    version: str
    segments: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    how: Scores = BINARY


@dataclass(slots=True)
class Rows:
    """The rows of files as columns of equal length; None is what a row lacks.

    `score` are the probabilities (n, classes), `label` what the file says: 0, 1 or None, of a model with classes what
    `Scores.outcome` returns. `places` are file and line. `unused` names columns that nothing was taken from.
    """

    ids: list[str] = field(default_factory=list)
    score: Floats = field(default_factory=lambda: np.zeros((0, 1)))
    label: list[Any] = field(default_factory=list)
    ts: list[int | None] = field(default_factory=list)
    role: list[int | None] = field(default_factory=list)
    entity: list[str | None] = field(default_factory=list)
    combo: list[Combo] = field(default_factory=list)
    features: dict[str, list[Any]] = field(default_factory=dict)
    places: list[tuple[Path, int]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)

    def kept(self, keep: Sequence[bool]) -> "Rows":
        """Return the rows that are kept."""
        made = replace(self, score=self.score[np.array(keep, bool)])
        made.features = {name: _some(values, keep) for name, values in self.features.items()}
        for name in ("ids", "label", "ts", "role", "entity", "combo", "places"):
            setattr(made, name, _some(getattr(self, name), keep))
        return made


def _some(values: list[Any], keep: Sequence[bool]) -> list[Any]:
    return [value for value, k in zip(values, keep, strict=True) if k]


def read(paths: Sequence[Path], wanted: Wanted) -> Rows:
    """Return the rows of files, and those that cannot be used with the reason.

    Raises ValueError that names the file when it is unreadable as a whole, has a column that is not supported, or no row has a
    segment or feature that is wanted.
    """
    rows, scores = Rows(features={name: [] for name in wanted.features}), []
    for path in paths:
        for line, item in _items(path, wanted, rows.unused):
            try:
                scores.append(_take(rows, wanted, item))
                rows.places.append((path, line))
            except _Wrong as e:
                rows.refused.append(Refused(path, line, *e.args))
            except ValueError as e:
                raise ValueError(f"{path}: line {line}: {e}") from None
    rows.score = np.array(scores, np.float64) if scores else rows.score
    _absent(rows, wanted)
    return _checked(rows, wanted, paths)


def _take(rows: Rows, wanted: Wanted, item: Any) -> list[float]:
    """Add all columns of a row but its scores and its place, and return the scores."""
    if not isinstance(item, dict):
        raise _Wrong("malformed", str(item)[:200])
    for name, remedy in _UNSUPPORTED.items():
        if item.get(name) is not None:
            raise ValueError(f"column {name} is not supported: {remedy}")
    for name in ("model", "version"):
        if item.get(name) is not None and str(item[name]) != getattr(wanted, name):
            raise _Wrong("other_version", f"{name}: {item[name]!r}")
    ident, entity = _text(item, "id"), _text(item, "entity")
    if ident is None:
        raise _Wrong("missing_field", "id")
    found = (ident, _label(wanted.how, item), _time(item), _role(item), entity, _combo(wanted.segments, item))
    score, features = _scores(wanted.how, item), [_feature(item, name) for name in wanted.features]
    columns: tuple[list[Any], ...] = (rows.ids, rows.label, rows.ts, rows.role, rows.entity, rows.combo)
    for column, value in (*zip(columns, found, strict=True), *zip(rows.features.values(), features, strict=True)):
        column.append(value)
    return score


def _absent(rows: Rows, wanted: Wanted) -> None:
    """Raise ValueError when no row has a segment or a feature that is wanted: a name is then misspelt."""
    if not rows.ids:
        return
    there = {name for combo in set(rows.combo) for name, _ in combo}
    there |= {name for name, values in rows.features.items() if any(v is not None for v in values)}
    missing = [name for name in (*wanted.segments, *wanted.features) if name not in there]
    if missing:
        others = f"; columns that are not used are {', '.join(sorted(rows.unused))}" if rows.unused else ""
        raise ValueError(f"no row has {', '.join(missing)}, which is to be a segment or a feature{others}")


def _checked(rows: Rows, wanted: Wanted, order: Sequence[Path]) -> Rows:
    """Return the rows without those whose scores are wrong, or that lack a time or a role where others have one."""
    refused: dict[int, tuple[str, str]] = {}
    for name in ("ts", "role"):
        column = getattr(rows, name)
        if any(value is not None for value in column):
            refused |= {i: ("missing_field", f"{name}, which other rows have") for i, value in enumerate(column) if value is None}
    if rows.ids:
        given = rows.score
        rows.score, wrong, _, _ = probabilities(wanted.how, given)
        refused |= {i: (WRONG[wrong[i]], f"score: {_one(given[i])}") for i in np.flatnonzero(wrong).tolist()}
    rows.refused += [Refused(*rows.places[i], *why) for i, why in refused.items()]
    rows.refused.sort(key=lambda r: (order.index(r.path), r.line))
    if refused:
        rows = rows.kept([i not in refused for i in range(len(rows.ids))])
    rows.features = {name: _typed(values) for name, values in rows.features.items()}
    return rows


def _one(scores: Floats) -> Any:
    return scores.tolist() if len(scores) > 1 else float(scores[0])


def _typed(values: list[Any]) -> list[Any]:
    """Return the values of a feature, as numbers where all texts of it are: a CSV has nothing but text."""
    found = [number(v) if type(v) is _Text else v for v in values]
    return [str(v) if type(v) is _Text else v for v in values] if any(type(v) is _Text for v in found) else found


class _Text(str):
    """A text that may stand for a number."""

    __slots__ = ()


def _text(item: Mapping[str, Any], name: str) -> str | None:
    value = item.get(name)
    text = str(value) if type(value) is int else value
    if text is None:
        return None
    if not isinstance(text, str) or not 0 < len(text) <= 256:
        raise _Wrong("id" if name == "id" else "type", f"{name}: {value!r} (text of 1 to 256 characters, or an integer)")
    return text


def _time(item: Mapping[str, Any]) -> int | None:
    value = item.get("ts")
    try:
        return None if value is None else parse_time(value)
    except ValueError:
        raise _Wrong("timestamp", f"ts: {value!r}") from None


def _role(item: Mapping[str, Any]) -> int | None:
    role = item.get("role")
    if role is not None and role not in ROLES:
        raise _Wrong("role", f"role: {role!r} (one of {', '.join(ROLES)})")
    return None if role is None else ROLES.index(role)


def _label(how: Scores, item: Mapping[str, Any]) -> Any:
    label = item.get("label")
    if label is None:
        return None
    if how.classes:
        found = how.outcome(label if how.multi else str(label))
        if found is None:
            raise _Wrong("unknown_class", f"label: {label!r}")
        return found
    if not isinstance(label, int | float):
        raise _Wrong("type", f"label: {label!r} (0, 1, or nothing where the outcome is not known)")
    if label not in (0, 1):
        raise _Wrong("label_class", f"label: {label!r}")
    return int(label)


def _scores(how: Scores, item: Mapping[str, Any]) -> list[float]:
    name = "scores" if how.classes else "score"
    given = item.get(name)
    if given is None:
        raise _Wrong("missing_field", name)
    row = how.row(given) if how.classes else [given]
    if row is None:
        raise _Wrong("scores", f"scores: {given!r}")
    found: list[float] = []
    for value in row:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _Wrong("type", f"{name}: {value!r}")
        try:
            found.append(float(value))
        except OverflowError:
            raise _Wrong("out_of_range", f"{name}: larger than a float can be") from None
    return found


def _combo(names: tuple[str, ...], item: Mapping[str, Any]) -> Combo:
    given = item.get("segments") or {}
    if not isinstance(given, dict):
        raise _Wrong("type", f"segments: {given!r}")
    values = {name: v for name in names if (v := given.get(name, item.get(name))) is not None}
    for name, value in values.items():
        if not isinstance(value, str):
            raise _Wrong("type", f"{name}: {value!r} (a segment is text)")
    return tuple((name, str(value)) for name, value in values.items())


def _feature(item: Mapping[str, Any], name: str) -> Any:
    given = item.get("features")
    value = given.get(name) if isinstance(given, dict) else item.get(f"features.{name}", item.get(name))
    if isinstance(value, dict | list):
        raise _Wrong("type", f"features.{name}: {value!r}")
    size = number(value) if type(value) is _Text else value
    if isinstance(size, int | float) and not -_LARGEST <= size <= _LARGEST:
        raise _Wrong("not_finite", f"features.{name}: {str(value)[:40]}")
    return value


def _items(path: Path, wanted: Wanted, unused: set[str]) -> Iterator[tuple[int, Any]]:
    """Yield (line, row) of a file, a row as its fields by name, or as what it is when it has none."""
    if path.suffix == ".parquet":
        yield from _parquet(path, wanted, unused)
        return
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            if path.name.removesuffix(".gz").endswith(".csv"):
                with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
                    yield from _csv(text, wanted, unused)
            else:
                yield from ((i, _object(line)) for i, line in enumerate(file, 1) if line.strip())
        except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as e:
            raise ValueError(f"{path}: cannot be read: {e}") from None


def _object(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line.decode("utf-8", "backslashreplace")


def _used(names: Collection[str], wanted: Wanted, unused: set[str]) -> list[str]:
    """Return the columns that something is taken from, and note the others."""
    known = {*_COLUMNS, *_UNSUPPORTED, *wanted.segments, *wanted.features, *(f"features.{name}" for name in wanted.features)}
    known |= {*_GROUPS} | {f"scores.{name}" for name in wanted.how.classes}
    unused |= set(names) - known
    return [name for name in names if name in known]


def _csv(file: io.TextIOWrapper, wanted: Wanted, unused: set[str]) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(file, strict=True)
    names = next(reader, [])
    if len(set(names)) < len(names):
        raise csv.Error(f"the header names a column twice: {', '.join(names)}")
    used = {*_used(names, wanted, unused)}
    read_as = [(name, _reader(name, wanted.how)) for name in names]
    for row in reader:
        if not row:
            continue
        if len(row) != len(names):
            yield reader.line_num, f"{len(row)} fields, the header has {len(names)}"
            continue
        item: dict[str, Any] = {
            name: made(value) for (name, made), value in zip(read_as, row, strict=True) if value != "" and name in used
        }
        scores = {name.removeprefix("scores."): item.pop(name) for name in [*item] if name.startswith("scores.")}
        yield reader.line_num, item | {"scores": scores} if scores else item


def _reader(name: str, how: Scores) -> Any:
    """Return how the text of a CSV column becomes a value."""
    if name == "label" and how.classes:
        return (lambda text: text.split(";")) if how.multi else str
    return number if name in _NUMBERS or name.startswith("scores.") else _Text


def _parquet(path: Path, wanted: Wanted, unused: set[str]) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(f"{path}: Parquet needs pyarrow; install scorewatch[lake], or write CSV or NDJSON") from None
    try:
        with pq.ParquetFile(path) as file:
            names, at = _used(file.schema_arrow.names, wanted, unused), 0
            for batch in file.iter_batches(columns=names):
                columns = [batch.column(i) for i in range(batch.num_columns)]
                plain = [c.cast(pa.timestamp("ms")).cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
                for i, row in enumerate(zip(*(c.to_pylist() for c in plain), strict=True), at + 1):
                    yield i, {name: v for name, v in zip(batch.schema.names, row, strict=True) if v is not None and v == v}
                at += batch.num_rows
    except pa.ArrowException as e:
        raise ValueError(f"{path}: cannot be read: {e}") from None
