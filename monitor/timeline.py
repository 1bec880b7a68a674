"""What happened, one line each: months or days with their estimates, alerts, decisions, policy changes."""

from collections.abc import Iterator, Sequence
from typing import Any

from monitor.core import gate
from monitor.core.metrics import Estimate
from monitor.core.reasons import REASONS

_SHOWN = {
    "prevalence": "prevalence",
    "mean_score": "score",
    "ece_width10": "ece",
    "brier": "brier",
    "log_loss": "log loss",
    "roc_auc": "auc",
}
"""Metric and what its column is called."""
_WIDTH = 9

_DONE = {"rollback": "go back to policy {policy}", "recalibrate": "serve policy {policy}"}
"""What an allowed decision does, by action."""

HEADER = f"{'':<10} {'n':>8} " + " ".join(f"{name:>{_WIDTH}}" for name in _SHOWN.values())


def number(e: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON."""
    found = {"value": e.value, "low": e.low, "high": e.high, "n": e.n, **({"reason": e.reason} if e.reason else {})}
    return found | expected(e)


def expected(e: Estimate) -> dict[str, Any]:
    """Return as JSON what days like those of an estimate are expected to show, where that is known."""
    if e.design_effect is None:
        return {}
    return {"expect_low": e.expect_low, "expect_high": e.expect_high, "design_effect": e.design_effect}


def estimates(kind: str, name: str, version: tuple[str, str], made: Sequence[Estimate]) -> dict[str, Any]:
    """Return the item of a month or day (`kind`) of a (model, version)."""
    n = next(e.n for e in made if e.metric == "prevalence")
    numbers = {e.metric: number(e) for e in made}
    return {"kind": kind, kind: name, "model": version[0], "version": version[1], "n": n, "estimates": numbers}


def line(item: dict[str, Any], color: bool = False) -> str:
    """Return a timeline item for people."""
    kind = item["kind"]
    if kind in ("month", "day"):
        return _estimates(item, item[kind])
    text = _text(item)
    if color and kind == "alert":
        return f"\033[{'31' if item['state'] == 'firing' else '32'}m{text}\033[0m"
    return f"\033[36m{text}\033[0m" if color else text


def trial(found: dict[str, Any]) -> Iterator[str]:
    """Yield for people what a trial of calibrators led to."""
    yield f"{found['model']} {found['version']}: {REASONS[found['reason']]}"
    yield from gate.lines(found["report"])[1:] if "candidates" in found.get("report", {}) else ()
    for when, shown in found.get("preview", {}).items():
        yield f"{when}: " + ", ".join(f"{name.replace('_', ' ')} {_shown(number)}" for name, number in shown.items())
    if found["proposal"] is not None:
        yield f"Policy {found['policy']} waits: `scorewatch approve {found['proposal']} --reason TEXT`"


def _shown(number: dict[str, Any]) -> str:
    return str(number["reason"]).replace("_", " ") if "reason" in number else f"{number['value']:.4f}"


def _estimates(item: dict[str, Any], name: str) -> str:
    cells = []
    for metric in _SHOWN:
        value = item["estimates"].get(metric, {}).get("value")
        cells.append(f"{'–':>{_WIDTH}}" if value is None else f"{value:>{_WIDTH}.4f}")
    return f"{name:<10} {item['n']:>8,} {' '.join(cells)}  {item['model']} {item['version']}"


def _text(item: dict[str, Any]) -> str:
    at, kind = item["at"][:16].replace("T", " "), item["kind"]
    who = f"{item['model']} {item['version']}"
    if kind == "alert":
        observed, expected = item.get("observed"), item.get("expected")
        seen = ""
        if observed and observed.get("value") is not None:
            low = observed.get("low")
            seen = f": observed {observed['value']:.3f}" + ("" if low in (None, observed["value"]) else f" (at least {low:.3f})")
            if expected and expected.get("value") is not None:
                seen += f", promised {expected['value']:.3f}"
        slices = [name for name in item.get("slices", {}) if name != "all"]
        seen += f" in {', '.join(slices[:3])}{' and others' if len(slices) > 3 else ''}" if slices else ""
        why = item["reason"] or (item.get("diagnosis", "") if item["state"] == "firing" else "")
        reason = f" ({why.replace('_', ' ')})" if why else ""
        mark = "▲" if item["state"] == "firing" else "▽"
        return f"  {mark} {at}  {who} {item['rule']} {item['state']}{reason}{seen}"
    if kind == "decision":
        verdict = _DONE.get(item["action"], "hand on to {action}").format(**item) if item["allowed"] else "no action"
        return f"  ● {at}  {who} {item['rule']}: {verdict} ({item['reason'].replace('_', ' ')})"
    if kind == "proposal":
        return f"  ◇ {at}  {who} {item['rule']}: policy {item['policy']} waits for approval as proposal {item['entry']}"
    if kind == "answer":
        answer = "approved" if item["approved"] else "not approved"
        return f"  ◇ {at}  {who} proposal {item['proposal']} {answer} by {item['who']}: {item['reason']}"
    if kind == "reload":
        return f"  ◆ {at}  configuration read anew by {item['who']}: {item['reason']}"
    if kind == "delivery":
        return f"  ◆ {at}  {who} message {item['message']} for {item['action']} {item['done']} by {item['who']}: {item['reason']}"
    verb = "rolled back to" if kind == "rolled_back" else "activated"
    return f"  ◆ {at}  {who} {verb} policy {item['policy']} by {item['who']}: {item['reason']}"
