"""What an alert is likely about: the signs that one version shows, for the decision table of `core.diagnosis`."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from monitor.core import diagnosis
from monitor.core.before_labels import before_labels
from monitor.core.days import Key
from monitor.core.diagnosis import UNKNOWN, Diagnosis, Sign, Signs
from monitor.core.events import DAY
from monitor.core.metrics import PROBABILITY, Estimate
from monitor.core.rules import Alert
from monitor.core.snapshot import Detection
from monitor.watched import Watched

RECENT = 7 * DAY
"""A policy that was activated so long ago or less may be why something moved."""
SLOPES = 0.8, 1.25
"""A calibration slope whose interval lies outside of these is off."""
MORE = 0.05
"""So much larger a share of missing or unseen values of a feature than in the baseline is a fault."""


def explain(w: Watched, now: int, alerts: Collection[Alert], activated: int | None) -> Mapping[tuple[str, str, str], Diagnosis]:
    """Return a diagnosis of each firing alert of a version; `activated` is when its policy became current."""
    firing = {a.rule: a for a in alerts if a.state == "firing"}
    if not firing:
        return {}
    shown = _shown(w, now)
    seen = {d.detector: d for d in w.detections(now)}
    by_detector = {r.detector: firing[r.name] for r in w.rules if r.detector and r.name in firing}

    def sign(detector: str, metric: str) -> Sign:
        return _sign(by_detector.get(detector), seen.get(detector), shown.get(metric), w.expected(metric))

    def stated(rule: str, metric: str) -> Sign:
        alert = firing.get(rule)
        return UNKNOWN if alert is None else Sign(True, _value(alert.observed), None, alert.since)

    offset = sign("calibration", "offset")
    if (off := firing.get("calibration")) is not None:
        offset = Sign(True, _value(shown.get("offset")), 0.0, off.since)
    signs = Signs(
        score_drift=sign("score_drift", "psi"),
        fit=_fit(w, now),
        flagged_share=sign("flagged_share", "flagged_share"),
        policy=Sign(True, since=activated) if activated is not None and now - activated <= RECENT else Sign(False),
        prevalence=sign("prevalence", "prevalence"),
        calibration_offset=offset,
        calibration_slope=_slope(shown.get("slope"), offset.since),
        roc_auc=sign("roc_auc", "roc_auc"),
        recall=sign("recall", "recall"),
        precision=sign("precision", "precision"),
        coverage=stated("label_coverage", "coverage_ratio"),
        data_loss=stated("data_loss", "volume_ratio"),
        features=_features(w, now),
        canary=stated(w.looks.canary, "canary_effect") if w.role == "canary" else UNKNOWN,
    )
    return {a.key: diagnosis.explain(_about(signs, a)) for a in firing.values()}


def _about(signs: Signs, alert: Alert) -> Signs:
    """Return the signs with the slices of one alert."""
    named = tuple((name, share) for name, share in alert.slices if name != "all")
    if alert.rule == "policy_volume":
        # It compares two policies on the same scores, so whatever these do is not why.
        moved = Sign(True, _value(alert.observed), 1.0, alert.since)
        return Signs(flagged_share=moved, score_drift=Sign(False), policy=signs.policy)
    if alert.rule == "policy_not_followed":
        return Signs(followed=Sign(True, _value(alert.observed), 0.0, alert.since))
    return replace(signs, slices=named)


def _shown(w: Watched, now: int) -> dict[str, Estimate]:
    """Return the estimates of the slice `all` over the last 28 mature days, by metric; probabilities are those served."""
    assert w.measured is not None
    served = [e for e in w.measured.calibrated if e.metric in PROBABILITY]
    found = {e.metric: e for e in (*w.measured.estimates, *served) if e.key.slice == "all" and e.window == "28d"}
    return {name: e for name, e in found.items() if not e.reason}


def _value(e: Estimate | None) -> float | None:
    return None if e is None else e.value


def _sign(alert: Alert | None, seen: Detection | None, shown: Estimate | None, promised: Estimate | None) -> Sign:
    """Return whether a detector's alert is firing, whether it is known not to be, and the estimate it is about."""
    if alert is not None:
        since = alert.since if seen is None or seen.since is None else seen.since * DAY
        observed = alert.observed if alert.observed is not None else shown
        return Sign(True, _value(observed), _value(alert.expected), since)
    known = seen is not None and not seen.evidence.reason and seen.effect.value is not None
    return Sign(False, _value(shown), _value(promised)) if known else UNKNOWN


def _fit(w: Watched, now: int) -> Sign:
    """Return whether the scores of the last day cannot be a mixture of the classes of the baseline."""
    key = Key(*w.name, "all", now // DAY)
    found = next(e for e in before_labels(w.hours_table("24h", now), w.validation, key, "24h", {}) if e.metric == "prevalence")
    return UNKNOWN if found.value is None else Sign(found.interval_reason == "label_shift_rejected")


def _slope(e: Estimate | None, since: int | None) -> Sign:
    if e is None or e.low is None or e.high is None:
        return UNKNOWN
    moved = e.high < SLOPES[0] or e.low > SLOPES[1]
    return Sign(moved, e.value, 1.0, since if moved else None)


def _features(w: Watched, now: int) -> Sign:
    """Return the feature that misses most more values than in the baseline, or has most more that the baseline did not see."""
    worst: Sign = UNKNOWN
    for shift in w.recent_inputs(now, ()).features:
        for cell in (shift.missing, shift.unseen):
            if cell is None or cell.share.low is None:
                continue
            moved = cell.share.low > cell.baseline + MORE
            if worst.value is None or cell.share.value - cell.baseline > worst.value - (worst.expected or 0.0):
                worst = Sign(moved, cell.share.value, cell.baseline)
    return worst
