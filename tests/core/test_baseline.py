"""What validation promised: building, slices, and its file."""

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.core.baseline import SLICE_ROWS, SLICES, Baseline, build, from_json, members, slice_names, to_json
from monitor.core.events import DAY, OTHER
from monitor.core.features import encode, freeze, placed
from monitor.core.metrics.calibration import calibration_edges
from monitor.core.readings import known, scored
from monitor.core.tables import CELL, GRID, LABEL, ROW, tables, total

DAY0 = 19_700


def world(n=3_000, seed=0, combos=3):
    """Return rows over five days with combinations of very different sizes, and labels for most."""
    rng = np.random.default_rng(seed)
    rows, labels = np.zeros(n, ROW), np.zeros(n, LABEL)
    rows["score"] = rng.beta(1, 4, n)
    rows["ts"] = (DAY0 + rng.integers(0, 5, n)) * DAY + rng.integers(0, DAY, n)
    rows["combo"] = np.minimum(rng.geometric(0.7, n) - 1, combos - 1)
    labels["outcome"] = np.where(rng.random(n) < 0.9, rng.random(n) < rows["score"], -1)
    return rows, labels


COMBOS = [(("country", "DE"), ("channel", "web")), (("country", "FR"),), (("country", "US"), ("channel", "app"))]
SEGMENTS = ("country", "channel")


def assert_same(a, b):
    """Tables are equal to the last bit."""
    np.testing.assert_array_equal(a.cells, b.cells)
    np.testing.assert_array_equal(a.totals, b.totals)


def counted(*counts):
    """Return how many rows each combination has."""
    return np.array(counts, np.int64)


def test_slices_by_size():
    """A value with at least 200 rows is a slice, largest first, names breaking ties; then the others of every segment."""
    combos = [(("c", "a"),), (("c", "b"), ("d", "x")), (("c", "z"), ("d", "x")), (("c", "q"),), (("e", "no"),), ()]
    rows = counted(SLICE_ROWS, SLICE_ROWS - 50, 250, SLICE_ROWS, 900, 900)
    assert slice_names(rows, combos, ("c", "d")) == ("all", "d=x", "c=z", "c=a", "c=q", "c=other", "d=other")
    assert slice_names(rows, combos, ()) == ("all",)


def test_slices_are_at_most_a_hundred():
    """Of too many values the smallest have no slice of their own; the others always have one."""
    combos = [(("c", f"{i:03}"),) for i in range(150)]
    names = slice_names(counted(*range(400, 250, -1)), combos, ("c",))
    assert names == ("all", *(f"c={i:03}" for i in range(98)), "c=other")
    assert len(names) == SLICES


def test_a_value_named_other():
    """A value that is itself called other shares the slice of the others."""
    combos = [(("c", OTHER),), (("c", "a"),), ()]
    slices = slice_names(counted(300, 300, 300), combos, ("c",))
    assert slices == ("all", "c=a", "c=other")
    assert members(slices, combos, ("c",)).tolist() == [[0, 0, 0], [2, 1, 2]]


def test_members():
    """Every combination belongs to all and to one slice of each segment, to the others where it has none."""
    slices = ("all", "country=DE", "channel=web", "country=other", "channel=other")
    assert members(slices, COMBOS, SEGMENTS).tolist() == [[0, 0, 0], [1, 3, 3], [2, 4, 4]]
    assert members(slices, [], SEGMENTS).shape == (3, 1)


def test_build():
    """A baseline holds the table of each day and slice, edges of the whole, and ends with its last day."""
    rows, labels = world()
    made = build("m", "1", SEGMENTS, rows, labels, COMBOS, {"kind": "validation"})
    assert made.slices == (
        "all",
        "channel=web",
        "country=DE",
        "country=FR",
        "channel=app",
        "country=US",
        "country=other",
        "channel=other",
    )
    assert (made.until, made.promises, sorted(made.days["all"])) == ((DAY0 + 5) * DAY, True, [DAY0 + i for i in range(5)])
    lut = members(made.slices, COMBOS, SEGMENTS)
    for day in made.days["all"]:
        at = rows["ts"] // DAY == day
        expected = tables(rows[at], labels[at], lut, len(made.slices))
        for name, table in zip(made.slices, expected, strict=True):
            if table.n:
                assert_same(made.days[name][day], table)
            else:
                assert day not in made.days[name]
    everything = total(list(made.days["all"].values()))
    assert_same(made.table("all"), everything)
    assert (everything.n, known(everything).pos.sum()) == (3_000, (labels["outcome"] == 1).sum())
    np.testing.assert_array_equal(made.edges, calibration_edges(scored(everything)))
    assert sum(made.table(f"country={c}").n for c in ("DE", "FR", "US", "other")) == 3_000
    assert made.table("country=XX").n == 0


def test_round_trip():
    """A baseline reads back as it was written, to the last bit, and writing it again gives the same text."""
    rows, labels = world()
    made = build("m", "ü", SEGMENTS, rows, labels, COMBOS, {"kind": "observed", "rows": 3_000})
    back = from_json(to_json(made))
    for name in ("model", "version", "segments", "slices", "until", "provenance", "checksum"):
        assert getattr(back, name) == getattr(made, name)
    np.testing.assert_array_equal(back.edges, made.edges)
    assert {n: list(d) for n, d in back.days.items()} == {n: list(d) for n, d in made.days.items()}
    for name, days in made.days.items():
        for day, table in days.items():
            assert_same(back.days[name][day], table)
            assert back.days[name][day].cells.dtype == CELL
    assert (to_json(back), back.promises, type(back)) == (to_json(made), False, Baseline)


def test_features_round_trip():
    """Frozen features read back in their order, the tables count their codes, and a baseline without any says nothing of them."""
    rows, labels = world()
    rng = np.random.default_rng(1)
    raw = [
        {"amount": float(a), "channel": c}
        for a, c in zip(rng.lognormal(3, 1, 3_000), rng.choice(["web", "app"], 3_000).tolist(), strict=True)
    ]
    features = {name: freeze([e[name] for e in raw]) for name in ("channel", "amount")}
    rows["features"] = encode(placed(features, features), raw)
    made = build("m", "1", SEGMENTS, rows, labels, COMBOS, {"kind": "validation"}, features)
    back = from_json(to_json(made))
    assert (back.features, list(back.features), to_json(back)) == (features, ["channel", "amount"], to_json(made))
    counted = back.table("all").features
    assert counted[0, 1:3].tolist() == [sum(e["channel"] == c for e in raw) for c in features["channel"].values]
    assert counted[1, 1:21].tolist() == [150] * 20
    assert "features" not in json.loads(to_json(replace(made, features={})))


def test_day_spread():
    """The spread is that of the logit shifts between days without the part of chance, and unknown of fewer than 14 days."""
    rng = np.random.default_rng(4)

    def spread(sd, days, n=2_000):
        rows, labels = np.zeros(days * n, ROW), np.zeros(days * n, LABEL)
        rows["ts"] = np.repeat(np.arange(DAY0, DAY0 + days), n) * DAY
        rows["score"] = p = rng.beta(2, 5, days * n)
        shift = np.repeat(sd * rng.standard_normal(days), n)
        labels["outcome"] = rng.random(days * n) < 1 / (1 + np.exp(-np.log(p / (1 - p)) - shift))
        return build("m", "1", (), rows, labels, [()], {"kind": "validation"}).day_spread

    assert spread(0.4, 200, 1_000) == pytest.approx(0.4, rel=0.15)
    assert spread(0.0, 200, 1_000) < 0.05
    assert spread(0.4, 13) is None
    assert spread(0.4, 14) > 0


def _changed(**change):
    rows, labels = world(50)
    body = json.loads(to_json(build("m", "1", (), rows, labels, [()] * 3, {"kind": "validation"}))) | change
    return json.dumps({k: v for k, v in body.items() if v != "absent"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "not a baseline: "),
        ("{}", "not a baseline: KeyError('grid')"),
        (_changed(grid=GRID + 1), f"made on grid {GRID + 1}, this version counts on grid {GRID}"),
        (_changed(edges="absent"), "not a baseline: KeyError('edges')"),
        (_changed(days=[]), "not a baseline: "),
        (_changed(days={"all": {"1": {"bin": [1]}}}), "not a baseline: "),
        (_changed(segments=None), "not a baseline: "),
        (_changed(features=[1]), "not a baseline: "),
        (_changed(features={"a": {"edges": [1, 1]}}), "the feature a needs at most 20 rising edges or different values"),
        (_changed(features={"a": {"values": ["x", "x"]}}), "the feature a needs at most 20 rising edges or different values"),
        (_changed(features={"a": {"edges": list(range(21))}}), "the feature a needs at most 20 rising edges or different values"),
        (_changed(features={str(i): {"values": []} for i in range(15)}), "it has 15 features, at most 14 can be kept"),
    ],
)
def test_unreadable(text, said):
    """What is no baseline, or was made on another grid, is refused with what is wrong."""
    with pytest.raises(ValueError) as e:
        from_json(text)
    assert str(e.value).startswith(said)
