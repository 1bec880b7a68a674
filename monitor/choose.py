"""What `scorewatch threshold` says: the threshold an objective chooses, and what others would do."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from monitor.core import readings
from monitor.core.baseline import Baseline
from monitor.core.policy import IDENTITY, Calibrator, policy
from monitor.core.readings import LabelRule, Reading
from monitor.core.reasons import REASONS
from monitor.core.tables import Table, total
from monitor.core.thresholds import Choice, Objective, by_slice, candidates, choose, flagged, precisions, shifted, thresholds
from monitor.data import Days


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What a threshold is chosen on: by slice the outcomes and all scores of so many days, and where they come from.

    `days` is 0 where nobody knows when the rows were scored.
    """

    model: str
    version: str
    source: str
    days: int
    outcomes: Mapping[str, Reading]
    scores: Mapping[str, Reading]


def of_baseline(baseline: Baseline, source: str, rules: tuple[LabelRule, ...]) -> Outcomes:
    """Return the outcomes of a baseline; `rules` say of one that was observed what no label means."""
    tables = {name: baseline.table(name) for name in baseline.slices}
    days = len(baseline.days.get("all", {})) if baseline.timed else 0
    return _outcomes(baseline.model, baseline.version, source, days, tables, None if baseline.promises else rules)


def of_days(model: str, version: str, days: Days, last: int) -> Outcomes:
    """Return the outcomes of the last mature days."""
    kept = sorted(days.tables)[-last:]
    names = dict.fromkeys(name for day in kept for name in days.tables[day])
    tables = {name: total([days.tables[d][name] for d in kept if name in days.tables[d]]) for name in names}
    return _outcomes(model, version, f"the last {len(kept)} mature days", len(kept), tables, days.rules)


def _outcomes(
    model: str, version: str, source: str, days: int, tables: Mapping[str, Table], rules: tuple[LabelRule, ...] | None
) -> Outcomes:
    read = {name: readings.known(t) if rules is None else readings.mature(t, rules) for name, t in tables.items()}
    return Outcomes(model, version, source, days, read, {name: readings.scored(t) for name, t in tables.items()})


def found(
    o: Outcomes, objective: Objective, calibrator: Calibrator, by: str, current: float | None, now: float | None
) -> dict[str, Any]:
    """Return what is chosen as JSON; `current` is the present threshold, `now` the prevalence to expect from here on.

    Raises ValueError that says why nothing can be chosen.
    """
    if by and not any(name.startswith(f"{by}=") for name in o.outcomes):
        segments = dict.fromkeys(name.partition("=")[0] for name in o.outcomes if name != "all")
        raise ValueError(f"{o.source} has no slices of {by!r}; it has those of {', '.join(segments) or 'no segment'}")
    reading, accepted = o.outcomes["all"], dict(calibrator) != IDENTITY
    timeless = objective.name == "capacity" and not o.days
    chosen = "no_times" if timeless else choose(objective, reading, calibrator, accepted, o.scores["all"], o.days)
    if isinstance(chosen, str):
        raise ValueError(f"{objective.name} of {o.source}: {REASONS[chosen]}")

    def row(c: Choice, name: str = "all") -> dict[str, Any]:
        return _row(c, objective, flagged(o.scores[name], c.threshold, calibrator) / o.days if o.days else None)

    others = () if current is None else (current,)
    prevalence = (chosen.tp + chosen.fn) / max(chosen.tp + chosen.fp + chosen.fn + chosen.tn, 1.0)
    slices = by_slice(objective, o.outcomes, by, chosen, calibrator, accepted)
    return {
        "model": o.model,
        "version": o.version,
        "source": o.source,
        "days": o.days,
        "rows": float(reading.n.sum()),
        "positives": float(reading.pos.sum()),
        "objective": asdict(objective),
        "calibrator": dict(calibrator),
        "chosen": row(chosen),
        "automatic": chosen.automatic,
        "reason": chosen.reason,
        "bound": chosen.bound,
        "undefined": reading.reason,
        "current": current,
        "candidates": [row(c) for c in candidates(reading, chosen, calibrator, others)],
        "precisions": [{"prevalence": times * prevalence, "precision": p} for times, p in precisions(chosen).items()],
        "shifted": None if now is None or not 0 < prevalence < 1 else shifted(chosen.threshold, prevalence, now),
        "slices": {
            name: {"positives": kept.tp + kept.fn, "kept": row(kept, name), "own": row(own, name)}
            for name, (kept, own) in slices.items()
        },
        "thresholds": thresholds(chosen, slices),
    }


def _row(c: Choice, objective: Objective, per_day: float | None) -> dict[str, Any]:
    counts = {"tp": c.tp, "fp": c.fp, "fn": c.fn, "tn": c.tn}
    rates = {"recall": c.recall, "precision": c.precision, "fpr": c.fpr}
    worth = {"worth": c.worth(objective)} if any(objective.utility) else {}
    return {"threshold": c.threshold, **counts, **rates, "flagged_per_day": per_day, **worth}


def policy_of(said: Mapping[str, Any]) -> str:
    """Return the policy with the chosen thresholds as JSON, which gets its id when it is activated."""
    about = {"reason": f"{said['objective']['name']} of {said['source']}", "rows": said["rows"], "positives": said["positives"]}
    return policy("", said["model"], said["version"], said["thresholds"], said["calibrator"], (), about).to_json()


_COLUMNS = {"threshold": 12, "flagged/day": 13, "recall": 9, "precision": 11, "fpr": 9, "tp": 10, "fp": 10, "fn": 10, "tn": 12}


def lines(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `found` returned for a person."""
    rows, positives = said["rows"], said["positives"]
    of = f"{said['source']} ({said['days']} days)" if said["days"] else f"{said['source']} (without times)"
    yield f"{said['model']} {said['version']}: {rows:,.0f} outcomes, {positives:,.0f} positive, of {of}"
    worth = "worth" in said["chosen"]
    name = said["objective"]["name"]
    yield f"objective: {_words(said['objective'])}; scores as {said['calibrator']['kind']} serves them"
    yield ""
    yield "".join(f"{name:>{width}}" for name, width in {**_COLUMNS, **({"worth": 13} if worth else {})}.items())
    # The present threshold need not be an edge of the grid; the next one decides the same.
    now = next((c for c in said["candidates"] if said["current"] is not None and c["threshold"] >= said["current"]), None)
    for c in said["candidates"]:
        yield _line(c, "▶" if c == said["chosen"] else "·" if c == now else "", worth)
    yield ""
    if said["undefined"]:
        yield f"Only flagged/day says something here: {REASONS[said['undefined']]}"
    if said["bound"] is not None:
        end = "at most" if name == "fpr_cap" else "at least"
        yield f"With a confidence of 95 % the {_KEEPS[name]} is {end} {said['bound']:.4f}."
    if said["reason"]:
        yield f"Not without a person: {REASONS[said['reason']]}"
    at = [f"{p['prevalence']:.3g}: {p['precision']:.3f}" for p in said["precisions"]]
    if at:
        yield f"Precision where the prevalence is {', '.join(at)}."
    if said["shifted"] is not None:
        yield f"With the prevalence to expect, and nothing else changed, this threshold belongs at {said['shifted']:.4f}."
    yield from _slices(said["slices"], worth)


def _words(objective: Mapping[str, Any]) -> str:
    """Return an objective in words."""
    name, value, worth = objective["name"], objective["value"], objective["utility"]
    if name == "cost":
        return f"cost, missed {-worth[2]:g}, false alarm {-worth[1]:g}"
    if name == "utility":
        return f"utility, tp {worth[0]:g}, fp {worth[1]:g}, fn {worth[2]:g}, tn {worth[3]:g}"
    return f"{name} {value:g}" if value else str(name)


_KEEPS = {"min_recall": "recall", "precision_floor": "precision", "fpr_cap": "false positive rate"}


def _slices(slices: Mapping[str, Any], worth: bool) -> Iterable[str]:
    if not slices:
        return
    yield ""
    yield "By slice, with the threshold of all and, where it has 300 positives, with its own (▶):"
    for name, s in slices.items():
        yield f"{name}: {s['positives']:,.0f} positive"
        yield _line(s["kept"], "", worth)
        if s["own"] != s["kept"]:
            yield _line(s["own"], "▶", worth)


def _line(c: Mapping[str, Any], mark: str, worth: bool) -> str:
    rates = ["–" if c[name] is None else f"{c[name]:.4f}" for name in ("recall", "precision", "fpr")]
    counts = [f"{c[name]:,.0f}" for name in ("tp", "fp", "fn", "tn")]
    per_day = "–" if c["flagged_per_day"] is None else f"{c['flagged_per_day']:,.1f}"
    cells = zip((f"{c['threshold']:.4f}", per_day, *rates, *counts), _COLUMNS.values(), strict=True)
    text = "".join(f"{cell:>{width}}" for cell, width in cells) + (f"{c['worth']:>13,.1f}" if worth else "")
    return f"{mark:2}{text[2:]}"
