"""What a baseline file says, for people and for programs."""

from collections.abc import Iterator
from typing import Any

from monitor.core import readings
from monitor.core.baseline import MIN_DAYS, Baseline
from monitor.core.days import Key, iso
from monitor.core.events import DAY
from monitor.core.features import Feature
from monitor.core.metrics import measure
from monitor.core.tables import EDGES, FEATURE_MISSING, FEATURE_UNSEEN, Table
from monitor.timeline import number

_SHOWN = ("prevalence", "mean_score", "bias", "ece", "roc_auc")
_MOST = 8
"""A person is shown so many values of a feature."""


def as_dict(b: Baseline) -> dict[str, Any]:
    """Return what a baseline says as JSON; scores are the lower edges of the calibration bins."""
    days = sorted(b.days.get("all", {}))
    table = b.table("all")
    return {
        "model": b.model,
        "version": b.version,
        "promises": b.promises,
        "provenance": dict(b.provenance),
        "days": len(days),
        "first_day": iso(days[0] * DAY)[:10] if days else None,
        "last_day": iso(days[-1] * DAY)[:10] if days else None,
        "until": iso(b.until),
        "day_spread": b.day_spread,
        **_slice(b, "all"),
        "segments": list(b.segments),
        "slices": {name: _slice(b, name) for name in b.slices[1:]},
        "edges": EDGES[b.edges].tolist(),
        "features": {name: _feature(f, i, table) for i, (name, f) in enumerate(b.features.items())},
        "checksum": b.checksum,
    }


def _slice(b: Baseline, name: str) -> dict[str, Any]:
    reading = readings.known(b.table(name))
    found = measure(reading, Key(b.model, b.version, name, b.until // DAY - 1), "", b.edges, None, _SHOWN)
    labelled, positives = int((reading.neg + reading.pos).sum()), int(reading.pos.sum())
    return {
        "rows": b.table(name).n,
        "labelled": labelled,
        "positives": positives,
        "estimates": {e.metric: number(e) for e in found},
    }


def _feature(f: Feature, place: int, table: Table) -> dict[str, Any]:
    counts = [0] * (FEATURE_UNSEEN + 1) if table.features is None else table.features[place].tolist()
    bins = [{"name": name, "rows": n} for name, n in zip(f.bins, counts[1:], strict=False)]
    kind = "number" if f.numeric else "text"
    return {"kind": kind, "bins": bins, "missing": counts[FEATURE_MISSING], "unseen": counts[FEATURE_UNSEEN]}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what `as_dict` returned for a person; no line has a character that would break it."""
    for line in _lines(found):
        yield line if line.isprintable() else repr(line)[1:-1]


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['model']} {found['version']}"
    kind = found["provenance"].get("kind", "unknown")
    yield f"  {kind}: {'a promise' if found['promises'] else 'freezes slices and bins, and promises nothing'}"
    for key, value in found["provenance"].items():
        if key != "kind":
            yield f"  {key}: {value}"
    yield f"  checksum: {'holds, ' + found['checksum'] if found['checksum'] else 'none'}"
    yield f"  days: {found['days']:,} from {found['first_day']} to {found['last_day']}"
    spread = found["day_spread"]
    yield f"  days differ: {f'unknown, that takes {MIN_DAYS} days with outcomes' if spread is None else f'sd {spread:.3f} logit'}"
    yield f"  rows: {found['rows']:,}, {found['labelled']:,} with outcome, {found['positives']:,} positive"
    for name, e in found["estimates"].items():
        ends = "" if e["low"] is None else f" ({e['low']:.4f} to {e['high']:.4f})"
        yield f"  {name}: " + (e["reason"].replace("_", " ") if e["value"] is None else f"{e['value']:.4f}{ends}")
    yield f"  calibration edges: {' '.join(f'{edge:.4g}' for edge in found['edges'])}"
    if found["slices"]:
        yield f"  slices: {len(found['slices'])} of {', '.join(found['segments'])}"
    for name, s in found["slices"].items():
        value = s["estimates"]["prevalence"]["value"]
        share = "" if value is None else f", prevalence {value:.4f}"
        yield f"    {name}: {s['rows']:,} rows, {s['positives']:,} positive{share}"
    for name, f in found["features"].items():
        named = [b["name"] for b in f["bins"]]
        more = "" if len(named) <= _MOST else f", and {len(named) - _MOST} more"
        yield f"  feature {name}: {f['kind']}, {f['missing']:,} missing, {f['unseen']:,} unseen; {', '.join(named[:_MOST])}{more}"
