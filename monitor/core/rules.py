"""Rules and alerts: one shape for all rules, and the only place with alert states."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from monitor.core.metrics import Estimate
from monitor.core.policy import Limit

SEVERITIES = ("critical", "warning", "info")
ACTIONS = ("none", "rollback")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule fires when all `fires` limits are passed for `hold` ms and resolves when the `resolves` limit is.

    `basis` and `window` say which reading of which days it looks at (slice `all`, live versions, days after the
    baseline); fewer than `min_n` rows are no reason to change anything.
    """

    name: str
    basis: str
    window: str
    fires: tuple[Limit, ...]
    resolves: Limit
    min_n: int
    hold: int = 0
    severity: str = "warning"
    action: str = "none"


SHIPPED: Mapping[str, Rule] = {
    "calibration": Rule(
        "calibration",
        "mature",
        "28d",
        (Limit("ece", "low", high=0.05),),
        Limit("ece", "low", low=0.03),
        min_n=500,
    ),
    "policy_volume": Rule(
        "policy_volume",
        "scored",
        "24h",
        (Limit("policy_volume", low=1 / 1.5, high=1.5),),
        Limit("policy_volume", low=1 / 1.5, high=1.5, inside=True),
        min_n=200,
        severity="critical",
        action="rollback",
    ),
}


@dataclass(frozen=True, slots=True)
class Alert:
    """What a rule says about one version: pending, firing or resolved (with a reason) since a time in ms."""

    rule: str
    model: str
    version: str
    severity: str
    state: str
    since: int
    observed: Estimate | None = None
    expected: Estimate | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies the alert."""
        return self.model, self.version, self.rule


def _passed(limit: Limit, estimates: Mapping[str, Estimate], min_n: int) -> bool | None:
    """Return whether a limit is passed, or None when the estimate says nothing (undefined, too few rows, no interval)."""
    estimate = estimates.get(limit.metric)
    if estimate is None or estimate.value is None or estimate.n < min_n:
        return None
    if limit.end != "value" and estimate.interval_reason:
        return None
    x = getattr(estimate, limit.end)
    return limit.passed(estimate.value if x is None else x)


def step(rule: Rule, model: str, version: str, alert: Alert | None, estimates: Mapping[str, Estimate], now: int) -> Alert | None:
    """Return the alert after one look: None, pending, firing, or resolved at this very look.

    Where an estimate says nothing a firing alert goes on firing and a pending one is dropped: absence of evidence neither
    starts nor ends an alert.
    """
    observed = estimates.get(rule.fires[0].metric)
    if alert is not None and alert.state == "firing":
        if _passed(rule.resolves, estimates, rule.min_n):
            return resolved(alert, "recovered", now, observed)
        return replace(alert, observed=observed or alert.observed)
    if not all(_passed(limit, estimates, rule.min_n) for limit in rule.fires):
        return None
    since = now if alert is None else alert.since
    state = "firing" if now - since >= rule.hold else "pending"
    if alert is None or alert.state != state:
        return Alert(rule.name, model, version, rule.severity, state, now if state == "firing" else since, observed)
    return replace(alert, observed=observed)


def resolved(alert: Alert, reason: str, now: int, observed: Estimate | None = None) -> Alert:
    """Return the alert as it ends."""
    return replace(alert, state="resolved", since=now, reason=reason, observed=observed or alert.observed)
