"""Who may act, and where to go back to."""

from itertools import product

import pytest

from monitor.core.events import DAY, Entry
from monitor.core.guards import Decision, Standing, decide, standings
from monitor.core.reasons import DECIDED
from monitor.core.rules import SHIPPED, Alert

RULE = SHIPPED["policy_volume"]
ALERT = Alert("policy_volume", "m", "1", "critical", "firing", 0)


def fold(*steps, version="1"):
    """Return the standing after "+a" (a was activated) and "-a" (rolled back to a), one a ms."""
    kinds = {"+": "activated", "-": "rolled_back"}
    entries = [Entry(i, i, "ann", kinds[s[0]], "m", version, {"policy": s[1:]}, "") for i, s in enumerate(steps, 1)]
    return standings(entries).get(("m", version), Standing())


@pytest.mark.parametrize(
    ("steps", "current", "good", "bad", "forward"),
    [
        ((), None, None, set(), False),
        (("+a",), "a", None, set(), True),
        (("+a", "+b"), "b", "a", set(), True),
        (("+a", "+b", "-a"), "a", None, {"b"}, False),
        (("+a", "+b", "-a", "+c"), "c", "a", {"b"}, True),
        (("+a", "+b", "+c", "-b"), "b", "a", {"c"}, False),
        (("+a", "+b", "+c", "-b", "-a"), "a", None, {"b", "c"}, False),
        (("+a", "+b", "-a", "+b"), "b", "a", set(), True),
        (("+a", "+b", "-a", "+b", "-a"), "a", None, {"b"}, False),
        (("+a", "+a"), "a", None, set(), True),
        (("+a", "+b", "+a"), "a", "b", set(), True),
        (("-a",), "a", None, set(), False),
    ],
)
def test_standing(steps, current, good, bad, forward):
    """Good standing is a fold of the journal: what was rolled back is bad until a person activates it again."""
    s = fold(*steps)
    assert (s.current, s.good, s.bad, s.forward) == (current, good, bad, forward)
    assert s.served == tuple((i, step[1:]) for i, step in enumerate(steps, 1))


def test_standings_are_by_version():
    """Other entries change nothing, and versions do not see each other."""
    kinds = [
        ("activated", "1", "a"),
        ("alert", "1", "x"),
        ("activated", "2", "b"),
        ("rolled_back", "2", "c"),
        ("decision", "2", "b"),
    ]
    entries = [Entry(i, i, "ann", kind, "m", version, {"policy": p}, "") for i, (kind, version, p) in enumerate(kinds, 1)]
    assert standings(entries) == {
        ("m", "1"): Standing(((1, "a"),), frozenset(), True),
        ("m", "2"): Standing(((3, "b"), (4, "c")), frozenset({"b"}), False),
    }


@pytest.mark.parametrize(
    ("steps", "now", "watched"),
    [
        (("+a", "+b"), 2, True),
        (("+a", "+b"), 2 + 7 * DAY, True),
        (("+a", "+b"), 3 + 7 * DAY, False),
        (("+a",), 2, False),
        (("+a", "+b", "-a"), 4, False),
        ((), 4, False),
    ],
)
def test_watched(steps, now, watched):
    """Policy volume is looked at for seven days after a forward activation that has something to go back to."""
    assert fold(*steps).watched(now) is watched


STEPS = {"nothing": (), "first": ("+a",), "forward": ("+a", "+b"), "back": ("+a", "+b", "-a")}


def _expected(mode, role, steps):
    if mode == "off":
        return "mode_off"
    if role != "live":
        return "shadow"
    return {"nothing": "no_policy", "first": "no_good_standing", "forward": "allowed", "back": "already_rolled_back"}[steps]


@pytest.mark.parametrize(("mode", "role", "steps"), list(product(["off", "auto"], ["live", "shadow"], STEPS)))
def test_decide(mode, role, steps):
    """A rollback is allowed once per activation, by a live version in mode auto with somewhere to go, else the reason is said."""
    reason = _expected(mode, role, steps)
    allowed = reason == "allowed"
    found = decide(ALERT, RULE, mode, role, fold(*STEPS[steps]))
    assert found == Decision("rollback", ALERT, allowed, reason, "a" if allowed else None)
    assert found.reason in DECIDED
