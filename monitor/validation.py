"""`scorewatch baseline build`: files of labelled rows to a baseline, the policy that they choose, and the report of its test."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.config import TOP, Model
from monitor.core import baseline as baselines
from monitor.core.baseline import Baseline
from monitor.core.days import iso
from monitor.core.events import EARLIEST, UNDECIDED, Coded, Floats, Ints, Predictions
from monitor.core.features import encode, freeze, placed
from monitor.core.policy import Policy
from monitor.core.reasons import LEAKS
from monitor.core.tables import LABEL, ROW
from monitor.core.thresholds import Objective
from monitor.core.validation import (
    FEW,
    ROLES,
    Chosen,
    Leak,
    Result,
    Shown,
    Validation,
    chosen,
    cross_fitted,
    leaks,
    measured,
    split,
)
from monitor.formats.classes import Scores, expand
from monitor.formats.rows import Refused, Rows, Wanted, read
from monitor.store.files import make_folder, safe_name, write_whole
from monitor.timeline import number
from monitor.watched import baseline_checksum, scores_of

SHARES = (0.4, 0.3, 0.3)
"""Rows without a role are split so over calibration, selection and test."""
LOOKS = "test-looks.jsonl"
_NAMED = 10
"""So many ids of what leaks are named."""
_TIMELESS = EARLIEST
"""Rows without times are counted on this day, before all live ones."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built: of which files and version, where to, for which model as configured.

    `shares` are those of ROLES for rows without a role, `allowed` is how many rows may be refused, `code` the version of the
    program, `at` the present time in ms. `policy` is where the policy is to be written, None for nowhere.
    """

    files: tuple[Path, ...]
    model: Model
    version: str
    out: Path
    code: str
    at: int
    policy: Path | None = None
    data: str = ""
    shares: tuple[float, ...] = SHARES
    allowed: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """What was built: where the baseline is and what it says, and the policy, None where none could be chosen."""

    path: Path
    baseline: Baseline
    policy: Policy | None


def load(order: Order) -> Rows:
    """Return the rows of the files; some may be refused. Raises ValueError when a file is unreadable or nothing is left."""
    m = order.model
    rows = read(order.files, Wanted(m.name, order.version, m.segments, m.features, scores_of(m)))
    if not rows.ids and not rows.refused:
        raise ValueError(f"{', '.join(map(str, order.files))}: there are no rows")
    return rows


def build(order: Order, rows: Rows) -> list[Built]:
    """Write the baseline of rows, of a model with classes one for each target, and the policies, and return them.

    Raises ValueError when too many rows were refused or roles leak into each other: nothing is then written.
    """
    if len(rows.refused) > order.allowed or not rows.ids:
        counted = ", ".join(f"{n:,} {reason}" for reason, n in Counter(r.reason for r in rows.refused).most_common())
        raise ValueError(
            f"{len(rows.refused):,} of {len(rows.refused) + len(rows.ids):,} rows cannot be used ({counted}); correct them,"
            f" or leave them out with --allow-rejected {len(rows.refused)}"
        )
    ts = None if rows.ts[0] is None else np.array(rows.ts, np.int64)
    key = _keys(rows)
    given = rows.role[0] is not None
    role = np.array(rows.role, np.int64) if given else split(order.shares, key, ts)
    if found := leaks(_codes(rows.ids), _codes(rows.entity), role, ts):
        raise ValueError("\n".join(_leak(leak, rows, role, ts) for leak in found))
    provenance = _provenance(order, rows, ts, "column role" if given else "by time" if ts is not None else "by entity or id")
    return [_one(order, rows, m, v, provenance) for m, v in _targets(order, rows, role, key, ts)]


def _keys(rows: Rows) -> NDArray[np.uint64]:
    """Return 64 bits of the hash of the entity of each row, or of its id where it has none."""
    texts = (f"e\0{entity}" if entity is not None else f"i\0{ident}" for entity, ident in zip(rows.entity, rows.ids, strict=True))
    digests = b"".join(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8")


def _codes(values: Sequence[str | None]) -> Ints:
    """Return a number for each text, the same for the same, -1 where there is none."""
    code: dict[str | None, int] = {None: -1}
    return np.array([code.setdefault(value, len(code)) for value in values], np.int64)


def _leak(leak: Leak, rows: Rows, role: Ints, ts: Ints | None) -> str:
    """Return what leaks as a sentence with the first ids and how many rows show it."""

    def said(i: int) -> str:
        about = [ROLES[role[i]]]
        if leak.reason == "entity_in_two_roles":
            about.append(f"entity {rows.entity[i]}")
        if leak.reason == "time_order" and ts is not None:
            about.append(iso(int(ts[i])))
        return _printable(f"{rows.ids[i]} ({', '.join(about)})")

    first = leak.at[:_NAMED].tolist()
    more = f", and {len(leak.at) - len(first):,} more" if len(leak.at) > len(first) else ""
    return f"{leak.reason}: {LEAKS[leak.reason]}\n  {len(leak.at):,} rows: {', '.join(map(said, first))}{more}"


def _provenance(order: Order, rows: Rows, ts: Ints | None, roles: str) -> dict[str, Any]:
    names = [path.name for path in order.files]
    files = {str(path) if names.count(path.name) > 1 else path.name: "sha256:" + _sha256(path) for path in order.files}
    return {
        "kind": "validation",
        "data": order.data or ", ".join(files),
        "files": files,
        "rows": len(rows.ids),
        "rejected": len(rows.refused),
        "split": roles,
        "timed": ts is not None,
        **({"missing": "rows without a label count as negative"} if order.model.labels.missing == "negative" else {}),
        "code": order.code,
        "built_at": iso(order.at),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _targets(
    order: Order, rows: Rows, role: Ints, key: NDArray[np.uint64], ts: Ints | None
) -> Iterator[tuple[Model, Validation]]:
    """Yield the model itself, or each target of a model with classes, with its rows."""
    m = order.model
    combo = Coded.of(rows.combo)
    stored, labels = np.zeros(len(role), ROW), np.zeros(len(role), LABEL)
    stored["ts"] = _TIMELESS if ts is None else ts
    stored["combo"] = combo.codes
    stored["cluster"] = np.where([e is not None for e in rows.entity], np.maximum(key.astype(np.uint32), 1), 0)
    how = scores_of(m)
    none = 0 if m.labels.missing == "negative" and (how.multi or not how.classes) else -1
    outcome = [none if label is None else label for label in rows.label]
    if not how.classes:
        stored["score"], labels["outcome"] = rows.score[:, 0], outcome
        yield (
            m,
            Validation(
                m.name, order.version, m.segments, stored, labels, combo.names, role, key, ts is not None, m.score == "margin"
            ),
        )
        return
    score, target, margin = _expanded(how, rows.score, combo)
    for j, (name, t) in enumerate(m.targets.items()):
        mine, its = stored.copy(), labels.copy()
        mine["score"], mine["target"], mine["margin"] = score[:, j], target[:, j], margin[:, j]
        its["outcome"] = [o if isinstance(o, int) else o[j] for o in outcome]
        t = replace(t, objective=None) if name == TOP else t
        yield (
            t,
            Validation(t.name, order.version, m.segments, mine, its, combo.names, role, key, ts is not None, m.score == "margin"),
        )


def _expanded(how: Scores, given: Floats, combo: Coded) -> tuple[Floats, NDArray[np.uint8], NDArray[np.uint8]]:
    """Return scores, target codes and margins by row and target."""
    n, zeros = len(given), np.zeros(len(given), np.int64)
    same = Coded((("", ""),), zeros.astype(np.int32))
    events = Predictions(
        np.arange(n),
        np.zeros((n, 2), np.uint64),
        zeros,
        same,
        zeros.astype(np.float64),
        np.full(n, UNDECIDED, np.uint8),
        combo,
        same,
    )
    made = expand(how, events, given)
    assert made.target is not None
    assert made.margin is not None
    return made.score.reshape(n, -1), made.target.reshape(n, -1), made.margin.reshape(n, -1)


def _one(order: Order, rows: Rows, model: Model, v: Validation, provenance: Mapping[str, Any]) -> Built:
    """Write the baseline and the policy of a model or target; what was tested is in the ledger before anything is written."""
    made = _frozen(rows, v, {**provenance, "roles": {name: v.of(name).counts for name in ROLES}})
    objective = model.objective or (None if model.threshold is None else Objective("fixed", model.threshold))
    few = v.counts["positives"] < FEW
    if few:
        choice, result = cross_fitted(v, made.slices, objective, model.by, made.edges)
    else:
        choice = chosen(v, made.slices, objective, model.by)
        result = measured(v.of("test"), choice.policy, made.edges)
    name = f"{safe_name(model.name.removeprefix(f'{model.parent}:'))}.json" if model.parent else ""
    path, policy_path = order.out / name, order.policy and order.policy / name
    tested_on = np.ones(len(v.role), bool) if few else v.role == ROLES.index("test")
    look = _look(path.parent / LOOKS, _entry(order, rows, v, tested_on, choice, path))
    made = replace(made, report=_report("cross_fitted" if few else "roles", choice, result, look))
    made = replace(made, checksum=baseline_checksum(made))
    finished = choice.policy and _finished(order, choice.policy, made)
    write_whole(path, baselines.to_json(made))
    if finished and policy_path:
        write_whole(policy_path, finished.to_json())
    return Built(path, made, finished)


def _frozen(rows: Rows, v: Validation, provenance: Mapping[str, Any]) -> Baseline:
    """Return the baseline of all rows. Its days are compared with live ones, so nothing in it knows entities or verdicts."""
    features = {name: freeze(values) for name, values in rows.features.items()}
    stored = v.rows.copy()
    stored["cluster"] = 0
    if features:
        events = [dict(zip(features, values, strict=True)) for values in zip(*rows.features.values(), strict=True)]
        stored["features"] = encode(placed(features, features), events)
    return baselines.build(v.model, v.version, v.segments, stored, v.labels, v.combos, provenance, features)


def _finished(order: Order, made: Policy, of: Baseline) -> Policy:
    """Return the policy with where it comes from; it gets its id, and what undoes it, when it is activated."""
    about = {"who": "baseline build", "at": order.at, "baseline": of.checksum, "data": of.provenance["data"], "code": order.code}
    return replace(made, provenance=about)


def _report(method: str, choice: Chosen, result: Result, look: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return as JSON how the policy was chosen and what it did."""
    made = choice.policy
    return {
        "method": method,
        "policy": None if made is None else {"thresholds": dict(made.thresholds), "calibrator": dict(made.calibrator)},
        "calibration": dict(choice.calibration),
        "selection": dict(choice.selection),
        "test": {
            "rows": result.rows,
            "counts": dict(result.counts),
            "raw": _shown(result.raw),
            "served": None if result.served is None else _shown(result.served),
            "look": look,
        },
    }


def _shown(found: Shown) -> dict[str, Any]:
    bins = {"frozen": [asdict(b) for b in found.frozen], "width10": [asdict(b) for b in found.width10]}
    return {"estimates": {e.metric: number(e) for e in found.estimates}, "reliability": bins}


def _entry(order: Order, rows: Rows, v: Validation, tested_on: NDArray[np.bool_], choice: Chosen, path: Path) -> dict[str, Any]:
    """Return what the ledger keeps of a test. The digest is that of the ids and labels of its rows, whatever their order."""
    outcomes = v.labels["outcome"][tested_on].tolist()
    ids = (rows.ids[i] for i in np.flatnonzero(tested_on).tolist())
    lines = sorted(f"{ident}\0{outcome}\n" for ident, outcome in zip(ids, outcomes, strict=True))
    made = choice.policy
    said = None if made is None else {"thresholds": dict(made.thresholds), "calibrator": made.calibrator["kind"]}
    digest = hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
    target = {"target": v.model} if v.rows["target"].any() else {}
    named = {"model": v.model, "version": v.version, "baseline": path.name}
    return {"rows": f"sha256:{digest}", "n": len(lines), "at": iso(order.at), **named, **target, "policy": said}


def _look(ledger: Path, entry: dict[str, Any]) -> dict[str, Any] | None:
    """Note in a ledger that rows were tested on, and return which look at them it was and what the first one was.

    The ledger is appended to and never written anew, so that a look cannot be undone by building again.
    """
    if not entry["n"]:
        return None
    same = [e for e in _looks(ledger) if (e["rows"], e.get("target")) == (entry["rows"], entry.get("target"))]
    make_folder(ledger.parent)
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return {"number": len(same) + 1, "rows": entry["rows"], "n": entry["n"], "first": same[0] if same else None}


def _looks(ledger: Path) -> list[dict[str, Any]]:
    if not ledger.exists():
        return []
    try:
        entries = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
        return [e for e in entries if e["rows"]]
    except (ValueError, TypeError, LookupError) as e:
        raise ValueError(f"{ledger}: is no ledger of tests ({e!r}); put it back as it was, or keep the file elsewhere") from None


def write(path: Path, made: Baseline) -> Built:
    """Write a baseline that has no policy."""
    write_whole(path, baselines.to_json(made))
    return Built(path, made, None)


def refusals(refused: Sequence[Refused], most: int = 20) -> Iterator[str]:
    """Yield the first rows that cannot be used as lines for a person, and how many more there are."""
    yield from (_printable(str(r)) for r in refused[:most])
    if len(refused) > most:
        yield f"and {len(refused) - most:,} more"


def _printable(line: str) -> str:
    """Return a line with no character that would break it, or a terminal."""
    return line if line.isprintable() else repr(line)[1:-1]
