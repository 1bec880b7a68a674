"""The states of an alert as tables of cases."""

import math
from dataclasses import replace

import pytest

from monitor.core.days import Key
from monitor.core.detectors import EFFECTS, log_threshold
from monitor.core.metrics import METRICS, Estimate
from monitor.core.policy import Limit
from monitor.core.readings import ACTING
from monitor.core.reasons import RESOLVED
from monitor.core.rules import (
    ACTIONS,
    EFFECT,
    EVIDENCE,
    FALSE_ALARMS,
    SEVERITIES,
    SHIPPED,
    SHOWN,
    Alert,
    Rule,
    budgeted,
    detecting,
    resolved,
    step,
)

KEY = Key("m", "1", "all", 0)
RATIOS = ("policy_volume", "volume_ratio", "coverage_ratio")
OWN = (*RATIOS, "unfollowed_share")
RULE = Rule("r", "mature", "28d", (Limit("ece", "low", high=0.05),), Limit("ece", "low", low=0.03), min_n=100)
HELD = replace(RULE, hold=10)


def ece(low, n=1000, value=0.5):
    """Return estimates with this lower end."""
    return {"ece": Estimate("ece", KEY, "28d", "mature", value, low, None, n)}


HIGH, MIDDLE, LOW = ece(0.06), ece(0.04), ece(0.02)
FEW = ece(0.06, n=99)
FEW_LOW = ece(0.02, n=99)
UNDEFINED = {"ece": Estimate("ece", KEY, "28d", "mature", None, None, None, 5000, "one_class")}
ABSENT = {}
NO_INTERVAL = {"ece": replace(ece(None)["ece"], interval_reason="few_clusters")}


def walk(rule, looks):
    """Return (state, since) after each look; a resolved alert is forgotten, as the agent forgets it."""
    out, alert = [], None
    for now, estimates in looks:
        alert = step(rule, "m", "1", alert, estimates, now)
        out.append(None if alert is None else (alert.state, alert.since))
        if alert is not None and alert.state == "resolved":
            alert = None
    return out


CASES = {
    "nothing": (RULE, [(0, LOW), (1, MIDDLE)], [None, None]),
    "fires at once": (RULE, [(5, HIGH), (6, HIGH)], [("firing", 5), ("firing", 5)]),
    "goes on between the limits": (RULE, [(5, HIGH), (6, MIDDLE), (7, LOW)], [("firing", 5), ("firing", 5), ("resolved", 7)]),
    "fires again": (RULE, [(5, HIGH), (6, LOW), (7, HIGH)], [("firing", 5), ("resolved", 6), ("firing", 7)]),
    "undefined keeps it firing": (RULE, [(5, HIGH), (6, UNDEFINED), (7, ABSENT), (8, FEW_LOW)], [("firing", 5)] * 4),
    "undefined never starts it": (RULE, [(5, UNDEFINED), (6, ABSENT), (7, FEW)], [None] * 3),
    "no interval says nothing": (RULE, [(4, NO_INTERVAL), (5, HIGH), (6, NO_INTERVAL)], [None, ("firing", 5), ("firing", 5)]),
    "enough rows": (RULE, [(5, ece(0.06, n=100))], [("firing", 5)]),
    "at the limit": (RULE, [(5, ece(0.05))], [None]),
    "at the limit that resolves": (RULE, [(5, HIGH), (6, ece(0.03))], [("firing", 5), ("firing", 5)]),
    "held": (
        HELD,
        [(0, HIGH), (9, HIGH), (10, HIGH), (11, HIGH)],
        [("pending", 0), ("pending", 0), ("firing", 10), ("firing", 10)],
    ),
    "held over a gap": (HELD, [(0, HIGH), (50, HIGH)], [("pending", 0), ("firing", 50)]),
    "pending is dropped": (HELD, [(0, HIGH), (5, MIDDLE), (10, HIGH)], [("pending", 0), None, ("pending", 10)]),
    "pending is dropped by undefined": (HELD, [(0, HIGH), (5, UNDEFINED), (10, HIGH)], [("pending", 0), None, ("pending", 10)]),
}


@pytest.mark.parametrize("name", CASES)
def test_states(name):
    """An alert goes from pending to firing to resolved as its case says, with the time of its last change."""
    rule, looks, expected = CASES[name]
    assert walk(rule, looks) == expected


def test_all_limits_fire_and_one_resolves():
    """A rule fires when every limit is passed, by the named end of each; it resolves by its own limit alone."""
    rule = replace(RULE, fires=(Limit("ece", "low", high=0.05), Limit("bias", high=0.1)), resolves=Limit("bias", low=0.05))

    def looks(low, bias):
        return ece(low) | {"bias": Estimate("bias", KEY, "28d", "mature", bias, None, None, 1000)}

    assert walk(rule, [(1, looks(0.06, 0.05)), (2, looks(0.04, 0.2)), (3, ece(0.06))]) == [None] * 3
    assert walk(rule, [(1, looks(0.06, 0.2)), (2, looks(0.0, 0.2)), (3, looks(0.06, 0.0))]) == [
        ("firing", 1),
        ("firing", 1),
        ("resolved", 3),
    ]


def test_an_end_that_is_not_there():
    """Where an estimate has no interval its value is compared."""
    assert walk(RULE, [(1, ece(None, value=0.06)), (2, ece(None, value=0.02))]) == [("firing", 1), ("resolved", 2)]


def test_what_an_alert_says():
    """An alert says what was observed at the last look, and keeps it where a look says nothing at all."""
    fired = step(RULE, "m", "1", None, HIGH, 5)
    assert fired == Alert("r", "m", "1", "warning", "firing", 5, HIGH["ece"])
    assert fired.key == ("m", "1", "r")
    assert step(RULE, "m", "1", fired, MIDDLE, 6) == replace(fired, observed=MIDDLE["ece"])
    assert step(RULE, "m", "1", fired, ABSENT, 6) == fired
    assert step(RULE, "m", "1", fired, LOW, 6) == replace(
        fired, state="resolved", since=6, reason="recovered", observed=LOW["ece"]
    )
    assert resolved(fired, "version_gone", 9) == replace(fired, state="resolved", since=9, reason="version_gone")
    assert {"recovered", "version_gone"} <= RESOLVED.keys()
    pending = step(HELD, "m", "1", None, HIGH, 5)
    assert step(HELD, "m", "1", pending, ece(0.07), 6) == replace(pending, observed=ece(0.07)["ece"])


def test_policy_volume_states():
    """The shipped volume rule fires outside 1/1.5 to 1.5 on enough rows and resolves inside, the ends included."""
    rule = SHIPPED["policy_volume"]

    def volume(x, n=200):
        return {"policy_volume": Estimate("policy_volume", KEY, "24h", "scored", x, x, x, n)}

    looks = [volume(1.5), volume(1.6, 199), volume(1.6), volume(1.51), volume(1.5), volume(1 / 1.5), volume(0.6), volume(1.0)]
    assert walk(rule, list(enumerate(looks))) == [
        None,
        None,
        ("firing", 2),
        ("firing", 2),
        ("resolved", 4),
        None,
        ("firing", 6),
        ("resolved", 7),
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped(name):
    """A shipped rule goes by its name, looks at known metrics, resolves where it does not fire, and acts on counts only."""
    rule = SHIPPED[name]
    assert (rule.name, rule.severity in SEVERITIES, rule.action in ACTIONS) == (name, True, True)
    own = {rule.detector + EFFECT, rule.detector + EVIDENCE} if rule.detector else {*METRICS, *OWN}
    assert {limit.metric for limit in (*rule.fires, rule.resolves)} <= own
    assert rule.basis in ACTING
    assert rule.action in ("none", "recalibrate") or not rule.detector
    first = rule.fires[0]
    for x in (-math.inf, -0.3, -0.17, 0.0, 0.01, 0.04, 0.06, 0.17, 0.3, 0.5, 0.9, 1.0, 1.4, 1.6, math.inf):
        assert not (first.passed(x) and rule.resolves.passed(x))
    assert any(first.passed(x) for x in (-math.inf, math.inf))
    assert rule.resolves.passed(1.0 if first.metric in RATIOS else 0.0)


@pytest.mark.parametrize("detector", SHOWN)
def test_detecting(detector):
    """A detector fires on the side that its evidence is about, shows a known metric, and is shipped once."""
    rule = detecting("x", detector)
    large, _, side = (1.0, 0.75, "up") if detector == "canary" else EFFECTS[detector]
    assert [rule.fires[0].passed(x) for x in (-1.01 * large, 0.99 * large, 1.01 * large)] == [side != "up", False, side != "down"]
    assert (rule.name, rule.detector, rule.severity, rule.action, rule.role) == (
        *("x", detector, "warning", "none"),
        "canary" if detector == "canary" else "live",
    )
    assert rule.shown in {*METRICS, "canary_effect"}
    assert detecting("x", detector, "bias").shown == "bias"
    assert [r.name for r in SHIPPED.values() if r.detector == detector] == [
        "calibration_drift" if detector == "calibration" else detector
    ]


def test_evidence_and_effect():
    """A detector fires on evidence and a large effect together, speaks of its metric, and resolves by the effect alone."""
    (rule,) = budgeted([SHIPPED["recall"]], FALSE_ALARMS)
    shown = Estimate("recall", KEY, "28d", "mature", 0.6, None, None, 900)

    def looks(evidence, effect, reason=""):
        own = {EVIDENCE: evidence, EFFECT: effect}
        made = (Estimate(f"recall{what}", KEY, "28d", "mature", x, None, None, 900, reason) for what, x in own.items())
        return {e.metric: e for e in (shown, *made)}

    enough = rule.fires[1].high
    assert enough == pytest.approx(math.log(365 / 4))
    assert walk(
        rule,
        [
            (0, looks(enough, -1.0)),
            (1, looks(enough + 1, -0.1)),
            (2, looks(enough + 1, 1.0)),
            (3, looks(enough + 1, -0.3)),
            (4, looks(0.0, -0.3)),
            (5, looks(None, None, "no_threshold")),
            (6, looks(enough + 1, -0.14)),
        ],
    ) == [None, None, None, ("firing", 3), ("firing", 3), ("firing", 3), ("resolved", 6)]
    assert step(rule, "m", "1", None, looks(enough + 1, -0.3), 5).observed == shown


def test_budget():
    """The detectors of a severity share what it may cost; other rules cost nothing."""
    chosen = [SHIPPED["recall"], replace(SHIPPED["fpr"], severity="critical"), SHIPPED["calibration"], SHIPPED["precision"]]
    found = budgeted(iter(chosen), {"critical": 0.5, "warning": 2.0, "info": 9.0})
    assert [r.fires[1].high for r in found if r.detector] == [log_threshold(2, 2.0), log_threshold(1, 0.5), log_threshold(2, 2.0)]
    assert [replace(r, fires=r.fires[:1]) for r in found] == [replace(r, fires=r.fires[:1]) for r in chosen]
    assert found[2] == SHIPPED["calibration"]
    assert budgeted(found, {"critical": 0.5, "warning": 2.0, "info": 9.0}) == found
    assert FALSE_ALARMS.keys() == set(SEVERITIES)
