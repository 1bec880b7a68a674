"""Policies and limits."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monitor.core import policy as policy_module
from monitor.core.compare import counted, flagged_by
from monitor.core.events import ABSTAIN, FLAG, FLAGGED, PASS, REVIEW, Coded
from monitor.core.policy import (
    IDENTITY,
    KINDS,
    SAME,
    Limit,
    apply,
    bands,
    check,
    decide,
    from_json,
    policy,
    served_bins,
    verdicts,
    with_calibrator,
)
from monitor.core.readings import known, scored
from monitor.core.tables import EDGES, grid_bin
from rows import next_edge

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
        ("{}", "not a policy: it has no 'undo'"),
        (_changed(version="absent"), "not a policy: "),
        (_changed(more=1), "not a policy: "),
        (_changed(undo=[{"metric": "ece", "above": 1}]), "not a policy: "),
        (_changed(undo=3), "not a policy: "),
        (_changed(thresholds={"country=DE": 0.5}), "not a policy: thresholds"),
        (_changed(thresholds={"all": 0.5, "country:DE": 0.5}), "not a policy: thresholds of 'country:DE'; write SEGMENT=VALUE"),
        (_changed(thresholds={"all": 0.5, "country=": 0.5}), "not a policy: thresholds of 'country='; write SEGMENT=VALUE"),
        (_changed(thresholds={"all": 0.5, "country=other": 0.5}), "not a policy: thresholds of 'country=other'"),
        (_changed(thresholds={"all": 0.5, "country=DE": 0.5, "age=1": 0.5}), "not a policy: thresholds by slice must be of one"),
        (_changed(review=[0.5, 0.5]), "not a policy: review"),
        (_changed(abstain=0.0), "not a policy: abstain"),
        (_changed(bands={"all": [[0.0, "flag"]]}), "not a policy: its bands are not those of its thresholds"),
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


COMBOS = ((), (("country", "DE"),), (("age", "1"), ("country", "FR")), (("country", "ES"),))
"""Combinations of segment values, the last one without a threshold of its own."""


@st.composite
def calibrators(draw):
    """Return a calibrator that `check` lets pass."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    if kind in ("histogram", "isotonic"):
        edges = sorted({0.0, *draw(st.lists(st.sampled_from(EDGES.tolist()), min_size=1, max_size=8))})
        values = sorted(draw(st.lists(st.floats(0, 1), min_size=len(edges), max_size=len(edges))))
        made = {"kind": kind, "edges": edges, "values": values}
    else:
        made = {"kind": kind} | {name: draw(st.floats(0.1, 3) if name != "c" else st.floats(-2, 2)) for name in KINDS[kind][0]}
    assume(not check(made))
    return made


@st.composite
def policies(draw):
    """Return a policy with any of its options."""
    shares = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    thresholds = {name: draw(shares) for name in ("all", *draw(st.sets(st.sampled_from(["country=DE", "country=FR"]))))}
    band = draw(st.none() | st.tuples(shares, shares).filter(lambda b: b[0] != b[1]).map(lambda b: (min(b), max(b))))
    abstain = draw(st.none() | st.floats(0.01, 1))
    return policy("1-1", "m", "1", thresholds, draw(calibrators()), POLICY.undo, {"who": "ann"}, band, abstain)


def rule(made, score, combo):
    """Return the verdict on one score, as the rule says it of what is served for the edge of its bin."""
    edge = EDGES[grid_bin(np.array([score]))]
    served = float(apply(made.calibrator, np.where(edge == EDGES[-1], 1.0, edge))[0])
    own = next((made.thresholds[f"{k}={v}"] for k, v in combo if f"{k}={v}" in made.thresholds), made.threshold)
    if made.abstain is not None and abs(2 * served - 1) < made.abstain - SAME:
        return ABSTAIN
    if made.review is not None and made.review[0] <= served < made.review[1]:
        return REVIEW
    return FLAG if served >= own else PASS


SCORES = st.lists(st.one_of(st.floats(0, 1), st.sampled_from(EDGES.tolist()), st.just(1.0)), min_size=1, max_size=30)


@given(policies(), SCORES, st.integers(0, 2**32))
def test_verdicts(table, made, scores, seed):
    """Each row has the verdict of its slice by the rule, and counts by bin say of all of them what the rows say."""
    score, rng = np.array(scores), np.random.default_rng(seed)
    combo, y = rng.integers(0, len(COMBOS), len(score)), rng.integers(0, 2, len(score)).astype(np.int8)
    found = verdicts(made, score, Coded(COMBOS, combo.astype(np.int32)))
    assert found.tolist() == [rule(made, s, COMBOS[c]) for s, c in zip(scores, combo, strict=True)]
    flag = FLAGGED[found]
    mine = {"all": score >= 0, "country=DE": combo == 1, "country=FR": combo == 2, "country=ES": combo == 3}
    for name, rows in mine.items():
        if name == "all":
            everywhere = FLAGGED[decide(made.bands["all"], score)]
            assert made.flags()[grid_bin(score)].tolist() == everywhere.tolist()
        else:
            assert made.flags(name)[grid_bin(score[rows])].tolist() == flag[rows].tolist()
    assert flagged_by(made, {name: scored(table(score[rows])) for name, rows in mine.items()}) == flag.sum()
    counts = counted(made, {name: known(table(score[rows], y[rows])) for name, rows in mine.items()})
    assert counts == tuple(float(((flag == f) & (y == k)).sum()) for f, k in ((True, 1), (True, 0), (False, 1), (False, 0)))


@given(policies())
def test_every_policy_is_read_as_it_was_written(made):
    """JSON says all of a policy, and thresholds that are edges already stay where they are."""
    assert from_json(made.to_json()) == made
    assert policy("1-1", "m", "1", made.thresholds, made.calibrator).thresholds == made.thresholds
    without = json.loads(made.to_json())
    del without["bands"], without["id"], without["checksum"]
    assert from_json(json.dumps(without)) == replace(made, id="")
    # The cut is where flagging begins.
    if not made.review and not made.abstain:
        assert made.cut == min(EDGES[made.flags()], default=2.0)


@given(policies(), calibrators())
def test_another_calibrator_decides_the_same(made, calibrator):
    """With another calibrator a policy decides as before, where that tells apart what its cuts do."""
    limits = np.array([*made.thresholds.values(), *(made.review or ())])
    assume((np.minimum(limits, 1 - limits) > 1e-9)[(limits > 0) & (limits < 1)].all())
    old = policy("1-1", "m", "1", made.thresholds, made.calibrator, review=made.review)
    new = with_calibrator(old, "1-2", calibrator, {})
    served = apply(calibrator, np.append(EDGES[:-1], 1.0))
    edges = np.searchsorted(EDGES, sorted({cut for b in old.bands.values() for cut, _ in b} - {0.0}))
    assume((served[edges] > served[edges - 1]).all() and served[-1] < 1)
    assert new.bands == old.bands


def test_abstaining_between_classes():
    """Of the predicted class the margin to the next one counts, not that to 1/2, and the threshold of the slice decides."""
    made = policy("1-1", "m", "1", {"all": 0.5, "country=DE": 0.9}, abstain=0.2)
    score, margin = np.array([0.55, 0.55, 0.8, 0.8, 0.55]), np.array([100, 50, 100, 100, 0], np.uint8)
    combo = Coded(COMBOS, np.array([0, 0, 0, 1, 0], np.int32))
    assert verdicts(made, score, combo, margin).tolist() == [FLAG, ABSTAIN, FLAG, PASS, ABSTAIN]


@pytest.mark.parametrize(
    ("calibrator", "said"),
    [
        ({"kind": "magic"}, "its kind is 'magic'"),
        ({"kind": "temperature"}, "temperature has the keys kind, t, found kind"),
        ({"kind": "temperature", "t": "1.5"}, "a parameter of temperature is no number"),
        ({"kind": "temperature", "t": [1.5]}, "a parameter of temperature is no number"),
        ({"kind": "temperature", "t": True}, "a parameter of temperature is no number"),
        ({"kind": "temperature", "t": 0.0}, "it serves scores that are not finite"),
        ({"kind": "temperature", "t": -1.0}, "it does not keep the order of the scores"),
        ({"kind": "offset", "a": float("nan")}, "a parameter of offset is not finite"),
        ({"kind": "platt", "a": 0.0, "b": 0.0}, "it does not keep the order of the scores"),
        ({"kind": "isotonic", "edges": [0.0, 0.5], "values": [0.5, 0.1]}, "it does not keep the order of the scores"),
        ({"kind": "isotonic", "edges": [0.0, 0.51], "values": [0.1, 0.5]}, "isotonic needs a value for each of its edges"),
        ({"kind": "isotonic", "edges": [0.0, 0.5, 0.5], "values": [0.1, 0.2, 0.5]}, "the edges of isotonic do not rise"),
        ({"kind": "histogram", "edges": [], "values": []}, "histogram needs a value for each of its edges"),
    ],
)
def test_calibrators_that_cannot_be_applied(calibrator, said):
    """What is wrong with a calibrator is said."""
    assert check(calibrator).startswith(said)


def test_scores_of_1():
    """A threshold of 1 flags the scores of 1, in counts as by row; they share their bin with those from 1 - 1.5e-8 on."""
    made = policy("1-1", "m", "1", {"all": 1.0})
    assert made.threshold == 1.0
    assert decide(made.bands["all"], np.array([1.0, 1 - 1e-9, 1 - 1e-7])).tolist() == [FLAG, FLAG, PASS]
    assert np.flatnonzero(made.flags()).tolist() == [len(EDGES) - 1]
    never = policy("1-1", "m", "1", {"all": 0.9}, {"kind": "isotonic", "edges": [0.0, 0.5], "values": [0.1, 0.8]})
    assert (never.threshold, never.cut, never.flags().any()) == (1.0, 2.0, False)


@given(policies(), st.integers(0, 2**32))
def test_processors_round_differently(made, seed):
    """A policy written where served scores have other last digits is read, and what it says stays to the last digit."""
    rng = np.random.default_rng(seed)
    exact = policy_module.served_edges

    def other(calibrator):
        served = exact(calibrator)
        return np.maximum.accumulate(np.clip(served + rng.uniform(-1e-15, 1e-15, len(served)), 0.0, 1.0))

    assume(made.calibrator["kind"] not in ("identity", "histogram", "isotonic"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_module, "served_edges", other)
        read = from_json(made.to_json())
        assert read == made
        again = with_calibrator(read, "1-2", made.calibrator, {})
    limits = np.array([*made.thresholds.values(), *(made.review or ())])
    if ((limits > 1e-6) & (limits < 1 - 1e-6)).all():
        assert all((again.verdicts(name) != made.verdicts(name)).sum() <= 4 for name in made.bands)


def test_bands_that_say_something_else():
    """Bands must begin on edges and say what the thresholds do but where a served score is a threshold to the last digits."""
    made = policy("1-1", "m", "1", {"all": 0.3}, {"kind": "temperature", "t": 1.5})
    body, cut = json.loads(made.to_json()), np.searchsorted(EDGES, made.cut)
    for other, wrong in ((EDGES[cut + 1], False), (EDGES[cut - 1], True), (EDGES[cut + 2], True), (made.cut + 1e-9, True)):
        body["bands"]["all"][1][0] = float(other)
        if wrong:
            with pytest.raises(ValueError, match="its bands are not those of its thresholds"):
                from_json(json.dumps(body))
        else:
            assert from_json(json.dumps(body)).cut == other


def test_abstaining_is_symmetric():
    """A margin of .1 is not below .1 on either side of 1/2, however 2 p - 1 rounds."""
    assert [cut for cut, _ in policy("", "m", "1", {"all": 0.5}, abstain=0.1).bands["all"]] == [
        0.0,
        EDGES[grid_bin(np.array([0.45]))[0] + 1],
        0.55,
    ]


def test_edges_of_what_is_served():
    """They hold the same rows apart as those of the model's scores do, and none has nothing below it."""
    edges, score = np.array([0, 400, 900, 1_300, 1_800]), np.random.default_rng(0).random(5_000)
    platt = {"kind": "platt", "a": -0.4, "b": 1.3}
    moved = np.searchsorted(served_bins(edges, platt), grid_bin(apply(platt, score)), side="right")
    assert (moved == np.searchsorted(edges, grid_bin(score), side="right")).mean() > 0.99
    steps = {"kind": "isotonic", "edges": [0.0, float(EDGES[900])], "values": [0.1, 0.6]}
    assert served_bins(edges, steps).tolist() == [0, int(grid_bin(np.array([0.6]))[0])]
