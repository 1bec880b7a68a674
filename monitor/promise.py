"""What a baseline file says, for people and for programs."""

from collections.abc import Iterator
from typing import Any

from monitor.core import readings
from monitor.core.baseline import MIN_DAYS, Baseline
from monitor.core.days import Key, iso
from monitor.core.events import DAY
from monitor.core.features import Feature
from monitor.core.metrics import measure
from monitor.core.reasons import REASONS
from monitor.core.tables import EDGES, FEATURE_MISSING, FEATURE_UNSEEN, Table
from monitor.core.validation import FOLDS
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
        "timed": b.timed,
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
        "report": dict(b.report),
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
        if key not in ("kind", "timed"):
            yield f"  {key}: {_said(value)}"
    yield f"  checksum: {'holds, ' + found['checksum'] if found['checksum'] else 'none'}"
    if found["timed"]:
        yield f"  days: {found['days']:,} from {found['first_day']} to {found['last_day']}"
    else:
        yield "  days: unknown, the rows have no times; all of them are counted as one day"
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
    if found["report"]:
        yield from _report(found["report"])


def _said(value: Any) -> str:
    """Return counts and names of a provenance as words."""
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name} ({_said(v)})" if isinstance(v, dict) else f"{name} {v}" for name, v in value.items())


def _report(report: dict[str, Any]) -> Iterator[str]:
    """Yield how the policy was chosen and what it did on rows kept for its test."""
    made, test = report["policy"], report["test"]
    yield f"  policy: {'none' if made is None else _policy(made)}"
    yield _part("calibration", report["calibration"])
    yield from _tried(report["calibration"])
    yield _part("selection", report["selection"])
    if report["method"] == "roles":
        yield f"  test: {test['rows']:,} rows that chose nothing"
    else:
        yield f"  test: {test['rows']:,} rows in {FOLDS} folds, each decided by the threshold that the others choose"
    yield "    " + ", ".join(f"{name} {n:,}" for name, n in test["counts"].items() if n or name in ("tp", "fp", "fn", "tn"))
    yield from _look(test["look"])
    yield from _scores(test)


def _part(name: str, found: dict[str, Any]) -> str:
    """Return what rows led to, with the reason where it has one."""
    why = f"; {found['reason']}: {_sentence(found['reason'])}" if found["reason"] else ""
    return f"    {name}: {found['rows']:,} rows, {found['positives']:,} positive{why}"


def _tried(trial: dict[str, Any]) -> Iterator[str]:
    """Yield what calibrators would change on rows that they were not fitted to."""
    candidates = trial.get("candidates", []) or [{"kind": kind, **c} for kind, c in trial.get("diagnosis", {}).items()]
    about = "a diagnosis and not a proposal" if "diagnosis" in trial else "tried"
    for c in candidates:
        gain = c.get("log_loss")
        said = (
            "log loss {value:+.4f} ({low:+.4f} to {high:+.4f}) on rows held out".format(**gain)
            if gain
            else _sentence(c["reason"])
        )
        yield f"    {c['kind']}, {about}: {said}"


def _sentence(reason: str) -> str:
    """Return what a code of reasons says; a baseline may be of a version with other ones."""
    return REASONS.get(reason, reason)


def _policy(made: dict[str, Any]) -> str:
    calibrator = ", ".join(f"{name} {v:.4g}" for name, v in made["calibrator"].items() if isinstance(v, float))
    kind = f"{made['calibrator']['kind']}{f' ({calibrator})' if calibrator else ''}"
    return f"{kind}, thresholds {', '.join(f'{name} {t:.4g}' for name, t in made['thresholds'].items())}"


def _look(look: dict[str, Any] | None) -> Iterator[str]:
    """Yield that rows were tested on before: what was chosen after that is chosen on them, too."""
    if look and look["first"]:
        first = look["first"]
        named = "no policy" if first["policy"] is None else _ledger_policy(first["policy"])
        yield f"    look {look['number']} of the same {look['n']:,} test rows; first on {first['at'][:10]} with {named}"


def _ledger_policy(policy: dict[str, Any]) -> str:
    return f"policy {policy['calibrator']}, thresholds {', '.join(f'{n} {t:.4g}' for n, t in policy['thresholds'].items())}"


def _scores(test: dict[str, Any]) -> Iterator[str]:
    """Yield metrics and reliability bins of the scores of the model, and of those that are served."""
    sides = {name: side for name in ("raw", "served") if (side := test[name])}
    yield f"    {'':28}" + "".join(f"{name:>36}" for name in sides)
    for metric in test["raw"]["estimates"]:
        yield f"    {metric:28}" + "".join(f"{_interval(side['estimates'][metric]):>36}" for side in sides.values())
    for name, side in sides.items():
        yield f"    {name} scores: from, rows, mean score, observed share"
        for b in side["reliability"]["frozen"]:
            if b["n"]:
                ends = "" if b["low"] is None else f" ({b['low']:.4f} to {b['high']:.4f})"
                yield f"      {b['lower']:8.4f} {b['n']:9,} {b['mean_score']:8.4f} {b['observed']:8.4f}{ends}"


def _interval(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return str(e["reason"].replace("_", " "))
    return f"{e['value']:.4f}" + ("" if e["low"] is None else f" ({e['low']:.4f} to {e['high']:.4f})")
