"""Who may act, and where to go back to."""

from itertools import product

import pytest

from monitor.core.events import DAY, Entry
from monitor.core.guards import MODES, QUIET, Standing, may_go_back, may_go_forward, standings, within_volume
from monitor.core.reasons import DECIDED


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
    assert s.back == max((i for i, step in enumerate(steps, 1) if step[0] == "-"), default=None)


def test_earlier():
    """What can be gone back to is in good standing and not current, the last one first, each once."""
    assert fold("+a", "+b", "+a", "+c", "+d", "-a", "+e").earlier == ("a", "c", "b")


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
        ("m", "2"): Standing(((3, "b"), (4, "c")), frozenset({"b"}), False, 4),
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
    return {"nothing": "no_policy", "first": "no_good_standing", "forward": "", "back": "already_rolled_back"}[steps]


@pytest.mark.parametrize(("mode", "role", "steps"), list(product(MODES, ["live", "shadow"], STEPS)))
def test_going_back(mode, role, steps):
    """A way back may be taken once per activation, by a live version, with somewhere to go; else the reason is said."""
    reason = may_go_back(mode, role, fold(*STEPS[steps]))
    assert reason == _expected(mode, role, steps)
    assert reason in ("", *DECIDED)


GIVEN = {
    "mode": "auto",
    "role": "live",
    "diagnosis": "calibration_drift",
    "validated": True,
    "waits": False,
    "enough": True,
    "rested": True,
}


@pytest.mark.parametrize(
    ("given", "steps", "now", "reason"),
    [
        ({}, ("+a",), 11, ""),
        ({}, (), 0, ""),
        ({"mode": "propose"}, ("+a",), 11, ""),
        ({"mode": "off"}, ("+a",), 11, "mode_off"),
        ({"role": "shadow"}, ("+a",), 11, "shadow"),
        ({"validated": False}, ("+a",), 11, "not_validated"),
        ({"diagnosis": "pipeline_fault"}, ("+a",), 11, "other_fault"),
        ({"diagnosis": "label_fault"}, ("+a",), 11, "other_fault"),
        ({"waits": True}, ("+a",), 11, "proposal_open"),
        ({"rested": False}, ("+a",), 11, "rejected"),
        ({"enough": False}, ("+a",), 11, "few_outcomes_yet"),
        ({}, ("+a",), 10, "cooldown"),
        ({}, ("+a", "+b"), 11, "cooldown"),
        ({}, ("+a", "+b", "-a"), 3 + QUIET - 1, "quiet"),
        ({}, ("+a", "+b", "-a"), 3 + QUIET, ""),
        ({}, ("+a", "+b", "-a", "+c"), 3 + QUIET - 1, "quiet"),
    ],
)
def test_going_forward(given, steps, now, reason):
    """Each thing that speaks against a change does so by itself; a horizon is 10 ms here, from the last change on."""
    found = may_go_forward(standing=fold(*steps), now=now, horizon=10, **GIVEN | given)
    assert found == reason
    assert found in ("", *DECIDED)


def test_volume():
    """A change may flag half to one and a half times as much, both included."""
    assert [within_volume(x) for x in (0.49, 0.5, 1.0, 1.5, 1.51)] == [False, True, True, True, False]
