"""Features as codes: what is frozen of raw values, and the code of each."""

import numpy as np
import pytest

from monitor.core.features import MOST, Feature, codes, encode, freeze, from_dict, placed, to_dict
from monitor.core.tables import FEATURE_CODES, FEATURE_MISSING, FEATURE_UNSEEN, FEATURES

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("x", [RNG.normal(size=4_000), RNG.lognormal(size=999), RNG.integers(0, 1_000_000, 5_000)])
def test_bins_of_numbers_hold_equal_mass(x):
    """Numbers fall into 20 bins of equal size, up to one row and a few ties."""
    n = np.bincount(codes(freeze(x.tolist()), x.tolist()), minlength=FEATURE_CODES)
    assert np.abs(n[1:21] - len(x) / 20).max() <= 3
    assert n[1:21].sum() == len(x)


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([5] * 40, (5.0, np.nextafter(5, 6))),
        ([0, 1] * 40, (0.0, 1.0, np.nextafter(1, 2))),
        ([0] * 96 + [2.5] * 3 + [3], (0.0,)),
        ([None, 1.0], (1.0, np.nextafter(1, 2))),
        (list(range(1, 41)), tuple(range(3, 41, 2))),
    ],
)
def test_edges_at_ties(values, edges):
    """An edge is a value, each once; an end that fills a bin has one on both sides, so that others are told from it."""
    feature = freeze(values)
    assert feature.edges == edges
    assert codes(feature, [-1e300, 1e300]).tolist() == [1, 1 + len(edges)]


def test_every_code_fits():
    """Any numbers leave at most 20 edges, so no bin has the code of a missing or unseen value."""
    for size in (1, 2, 19, 20, 21, 40, 400):
        for high in (2, 10, 21, 1_000):
            feature = freeze(RNG.integers(0, high, size).tolist())
            assert len(feature.edges) <= MOST
            assert len(feature.bins) == len(feature.edges) + 1 < FEATURE_MISSING


def test_codes_are_those_of_digitize():
    """The code of a number is numpy's digitize plus 1, whatever stands beside it."""
    x = RNG.normal(size=500)
    feature = freeze(RNG.normal(size=300).tolist())
    expected = np.digitize(x, feature.edges) + 1
    assert codes(feature, x.tolist()).tolist() == expected.tolist()
    mixed = [*x.tolist(), None, "0.5", True]
    assert codes(feature, mixed).tolist() == [*expected, FEATURE_MISSING, FEATURE_UNSEEN, FEATURE_UNSEEN]


def test_most_frequent_values():
    """The 20 most frequent values have a code, ties by name; all others are unseen, and a number stands for its text."""
    values = [f"v{i:02}" for i in range(30) for _ in range(30 - i // 2)] + ["7", "true"] * 40
    feature = freeze(values)
    assert feature == Feature(None, ("7", "true", *(f"v{i:02}" for i in range(18))))
    found = codes(feature, [7, True, "v00", "v18", "", None, False, 7.0])
    assert found.tolist() == [1, 2, 3, FEATURE_UNSEEN, FEATURE_UNSEEN, FEATURE_MISSING, FEATURE_UNSEEN, FEATURE_UNSEEN]


def test_numbers_are_told_from_text():
    """A single value that is no number makes all of them text; without any value everything is unseen."""
    assert freeze([1, 2.5, "3"]).values == ("1", "2.5", "3")
    assert freeze([True, False, True]).values == ("true", "false")
    assert codes(freeze([None]), ["x", 1, None]).tolist() == [FEATURE_UNSEEN, FEATURE_UNSEEN, FEATURE_MISSING]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [], {}, b"x", 10**400])
def test_what_is_no_value(value):
    """Numbers that are not finite, lists and objects are refused when frozen and when encoded."""
    for bad in (lambda: freeze([1, value]), lambda: codes(Feature((0.0,)), [1, value])):
        with pytest.raises(ValueError):
            bad()


def test_encode():
    """Codes stand at the position in the baseline; nothing said is 0, an absent feature is missing, others are passed over."""
    features = {"a": Feature((0.0,)), "skipped": Feature((0.0,)), "c": Feature(None, ("x",))}
    found = encode(placed(features, ("c", "a")), [{"a": 1, "c": "x", "d": []}, None, {"skipped": 3, "c": "y"}, {}])
    assert found.shape == (4, FEATURES)
    assert found[:, :3].tolist() == [
        [2, 0, 1],
        [0, 0, 0],
        [FEATURE_MISSING, 0, FEATURE_UNSEEN],
        [FEATURE_MISSING, 0, FEATURE_MISSING],
    ]
    assert not found[:, 3:].any()


def test_round_trip():
    """Features come back from their JSON as they were, in their order."""
    features = {"b": freeze(RNG.normal(size=50).tolist()), "a": freeze(["x", "y"]), "none": freeze([]), "one": Feature(())}
    assert from_dict(to_dict(features)) == features
    assert list(from_dict(to_dict(features))) == list(features)
    assert Feature(()).bins == ("any number",)
