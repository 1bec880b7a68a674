"""Rules and alerts: one shape for all rules, and the only place with alert states."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from monitor.core.detectors import DETECTORS, EFFECTS, log_threshold
from monitor.core.metrics import Estimate
from monitor.core.policy import Limit

SEVERITIES = ("critical", "warning", "info")
ACTIONS = ("none", "rollback", "recalibrate")
"""What the agent itself does about an alert; any other action is one of the configuration."""


EVIDENCE, EFFECT = "_evidence", "_effect"
"""What a detector adds to its name: ln of its evidence against the promise, and how far the days are off now."""
FALSE_ALARMS: Mapping[str, float] = {"critical": 0.25, "warning": 4.0, "info": 12.0}
"""How many false alarms a year the detector rules of one severity may give together, per model."""

SHOWN: Mapping[str, str] = {
    "calibration": "bias",
    "recall": "recall",
    "precision": "precision",
    "fpr": "fpr",
    "high_confidence_errors": "high_confidence_error_share",
    "roc_auc": "roc_auc",
    "prevalence": "prevalence",
    "flagged_share": "flagged_share",
    "score_drift": "psi",
    "canary": "canary_effect",
}
"""The metric that the alert of a detector speaks of."""
_CANARY = ("scored", 1.0, 0.75, "up")
"""Basis and effect of the detector of a canary: that of the contrast with most evidence, in units of what is large for it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule fires when all `fires` limits are passed for `hold` ms and resolves when the `resolves` limit is.

    `basis` and `window` say which reading of which days it looks at (slice `all`, live versions, days after the
    baseline); fewer than `min_n` rows are no reason to change anything. A rule with a `detector` fires when the evidence of
    whole days passes the second limit and their effect the first one; when it resolves, evidence starts anew. `shows` is the
    metric an alert speaks of, that of the first limit unless it is given.
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
    detector: str = ""
    shows: str = ""

    @property
    def shown(self) -> str:
        """Return the metric an alert speaks of."""
        return self.shows or self.fires[0].metric

    @property
    def role(self) -> str:
        """Return the role of the versions it is looked at for."""
        return "canary" if self.detector == "canary" else "live"


def detecting(name: str, detector: str, shows: str = "") -> Rule:
    """Return the rule of a detector; alone it may use the whole budget of its severity, until it is `budgeted`."""
    basis, large, small, side = _CANARY if detector == "canary" else (DETECTORS[detector].basis, *EFFECTS[detector])
    effect = detector + EFFECT
    fires, resolves = {
        "down": (Limit(effect, low=-large), Limit(effect, high=-small)),
        "up": (Limit(effect, high=large), Limit(effect, low=small)),
        "both": (Limit(effect, low=-large, high=large), Limit(effect, low=-small, high=small, inside=True)),
    }[side]
    evidence = Limit(detector + EVIDENCE, high=log_threshold(1, FALSE_ALARMS["warning"]))
    window = {"mature": "28d", "scored": "7d"}[basis]
    return Rule(name, basis, window, (fires, evidence), resolves, min_n=1, detector=detector, shows=shows or SHOWN[detector])


SHIPPED: Mapping[str, Rule] = {
    "calibration": Rule(
        "calibration",
        "mature",
        "28d",
        (Limit("ece", "low", high=0.05),),
        Limit("ece", "low", low=0.03),
        min_n=500,
        action="recalibrate",
    ),
    "calibration_drift": replace(detecting("calibration_drift", "calibration"), action="recalibrate"),
    **{name: detecting(name, name) for name in SHOWN if name != "calibration"},
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
    "policy_not_followed": Rule(
        "policy_not_followed",
        "scored",
        "1h",
        (Limit("unfollowed_share", high=0.1),),
        Limit("unfollowed_share", low=0.05),
        min_n=20,
    ),
    "data_loss": Rule(
        "data_loss",
        "scored",
        "7d",
        (Limit("volume_ratio", low=0.5),),
        Limit("volume_ratio", high=0.8),
        min_n=1,
    ),
    "label_coverage": Rule(
        "label_coverage",
        "mature",
        "7d",
        (Limit("coverage_ratio", low=0.8),),
        Limit("coverage_ratio", high=0.9),
        min_n=50,
    ),
}


def budgeted(chosen: Iterable[Rule], false_alarms: Mapping[str, float]) -> tuple[Rule, ...]:
    """Return the rules of one model with the evidence that each detector needs, so that all of a severity keep its budget.

    `false_alarms` are those a year by severity. Each detector of a severity gets an equal part.
    """
    chosen = tuple(chosen)
    count = {severity: sum(bool(r.detector) and r.severity == severity for r in chosen) for severity in SEVERITIES}

    def limits(r: Rule) -> tuple[Limit, ...]:
        effect, evidence = r.fires
        return effect, replace(evidence, high=log_threshold(count[r.severity], false_alarms[r.severity]))

    return tuple(replace(r, fires=limits(r)) if r.detector else r for r in chosen)


@dataclass(frozen=True, slots=True)
class Alert:
    """What a rule says about one version: pending, firing or resolved (with a reason) since a time in ms.

    `slices` are those that the evidence of a detector comes from, with their share of it, the largest first.
    """

    rule: str
    model: str
    version: str
    severity: str
    state: str
    since: int
    observed: Estimate | None = None
    expected: Estimate | None = None
    reason: str = ""
    slices: tuple[tuple[str, float], ...] = ()

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
    observed = estimates.get(rule.shown)
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
