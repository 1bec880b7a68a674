"""Policies and limits."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.events import FLAG, PASS
from monitor.core.policy import IDENTITY, Limit, bands, decide, from_json, policy
from monitor.core.tables import EDGES, next_edge

POLICY = replace(
    policy(
        "1700000000-1",
        "m",
        "v/ü",
        {"all": 0.3, "country=DE": 1.0},
        IDENTITY,
        (Limit("policy_volume", low=1 / 1.5, high=1.5), Limit("ece", "low", high=0.1, inside=True)),
        {"who": "ann", "at": 1},
    ),
    checksum="sha256:abc",
)


@pytest.mark.parametrize(
    ("limit", "passed"),
    [
        (Limit("m", high=2.0), {1.0: False, 2.0: False, 2.1: True}),
        (Limit("m", low=1.0), {0.9: True, 1.0: False, 2.0: False}),
        (Limit("m", low=1.0, high=2.0), {0.9: True, 1.0: False, 1.5: False, 2.0: False, 2.1: True}),
        (Limit("m", low=1.0, high=2.0, inside=True), {0.9: False, 1.0: True, 1.5: True, 2.0: True, 2.1: False}),
        (Limit("m", high=2.0, inside=True), {1.0: True, 2.0: True, 2.1: False}),
    ],
)
def test_limits(limit, passed):
    """A limit is passed outside its ends, the ends not included; with `inside` it is passed where it is not outside."""
    assert {x: limit.passed(x) for x in passed} == passed


def test_round_trip():
    """A policy reads back as it was written, and writing it again gives the same text."""
    assert from_json(POLICY.to_json()) == POLICY
    assert from_json(POLICY.to_json()).to_json() == POLICY.to_json()
    assert POLICY.threshold == next_edge(0.3)


def test_content():
    """What the checksum covers does not hold the checksum, does not depend on the order of keys, and changes with the rest."""
    turned = replace(POLICY, thresholds=dict(reversed(POLICY.thresholds.items())), checksum="")
    assert turned.content() == POLICY.content() == from_json(POLICY.to_json()).content()
    assert "sha256" not in POLICY.content()
    changes = {"id": "2-1", "model": "n", "version": "2", "thresholds": {"all": 1.0}, "undo": (), "provenance": {}}
    assert len({POLICY.content(), *(replace(POLICY, **{k: v}).content() for k, v in changes.items())}) == 1 + len(changes)


def _changed(**change):
    body = json.loads(POLICY.to_json()) | change
    return json.dumps({k: v for k, v in body.items() if v != "absent"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting"),
        ("[]", "not a policy: "),
        ("null", "not a policy: "),
        ("{}", "not a policy: 'undo'"),
        (_changed(version="absent"), "not a policy: "),
        (_changed(more=1), "not a policy: "),
        (_changed(undo=[{"metric": "ece", "above": 1}]), "not a policy: "),
        (_changed(undo=3), "not a policy: "),
        (_changed(thresholds={"country=DE": 0.5}), "not a policy: thresholds"),
        (_changed(thresholds={"all": 0.31}), "not a policy: thresholds"),
        (_changed(thresholds={"all": 1.5}), "not a policy: thresholds"),
        (_changed(thresholds={"all": "0.5"}), "not a policy: "),
        (_changed(thresholds={"all": float("nan")}), "not a policy: thresholds"),
        (_changed(thresholds=0.5), "not a policy: "),
        (
            _changed(calibrator={"kind": "isotonic"}),
            "not a policy: the calibrator cannot be applied, isotonic has the keys edges",
        ),
        (_changed(calibrator="identity"), "not a policy"),
        (_changed(calibrator=None), "not a policy"),
        (_changed(id=5), "not a policy"),
    ],
)
def test_unreadable(text, said):
    """What is no policy, or none that can be applied, is refused with what is wrong."""
    with pytest.raises(ValueError) as e:
        from_json(text)
    assert str(e.value).startswith(said)


@given(st.sampled_from(EDGES.tolist()), st.lists(st.floats(0, 1), min_size=1))
def test_decide(threshold, scores):
    """A score at or above its threshold is flagged, one below passes."""
    verdicts = decide(bands(threshold), np.array([*scores, threshold]))
    assert verdicts.tolist() == [FLAG if s >= threshold else PASS for s in scores] + [FLAG]
    assert verdicts.dtype == np.uint8
