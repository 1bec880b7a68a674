"""The grid and the laws of tables."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sk_log_loss

from monitor.core.events import FLAG, NONE, PASS
from monitor.core.tables import (
    BINS,
    CELL,
    EDGES,
    EMPTY,
    GROUP_COLUMNS,
    GROUPS,
    LABEL,
    ROW,
    TOTALS,
    count_pieces,
    decided,
    differing,
    edges_of_width,
    from_dict,
    grid_bin,
    log_losses,
    tables,
    to_dict,
    total,
    unlike,
)

SCORES = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.1, 0.5, 0.7, 5e-324, 1 - 2**-53]))
EVENTS = st.lists(st.tuples(SCORES, st.sampled_from([-1, 0, 1]), st.sampled_from([PASS, FLAG, NONE])), max_size=30)


def _build(table, events):
    scores, outcomes, verdicts = zip(*events, strict=True) if events else ((), (), ())
    return table(np.array(scores, float), np.array(outcomes, np.int8), verdicts=np.array(verdicts, np.uint8))


def assert_same(a, b):
    """Counts are equal, sums are equal up to the order of addition."""
    for name in CELL.names:
        np.testing.assert_allclose(a.cells[name], b.cells[name], rtol=1e-12, atol=1e-300, err_msg=name)
    np.testing.assert_allclose(a.totals, b.totals, rtol=1e-12, atol=1e-12)


def test_edges_are_the_smallest_scores():
    """Every edge lies in its own bin and the next smaller number in the bin below."""
    assert (np.diff(EDGES) > 0).all()
    np.testing.assert_array_equal(grid_bin(EDGES), np.arange(BINS))
    np.testing.assert_array_equal(grid_bin(np.nextafter(EDGES[1:], 0.0)), np.arange(BINS - 1))


def test_zero_and_one():
    """Scores of exactly 0 and 1 lie in the end bins."""
    np.testing.assert_array_equal(grid_bin(np.array([0.0, 5e-324, 1 - 2**-53, 1.0])), [0, 0, BINS - 1, BINS - 1])


@pytest.mark.parametrize("k", range(1, 60))
def test_sixtieths_are_edges(k):
    """k/60 is an edge exactly: it opens a bin and the number below it does not belong there."""
    b = int(grid_bin(np.array([k / 60]))[0])
    assert EDGES[b] == k / 60
    assert grid_bin(np.array([np.nextafter(k / 60, 0)]))[0] == b - 1


@given(st.lists(SCORES, min_size=2))
def test_grid_is_monotone(scores):
    """A higher score never lies in a lower bin, and each lies between the edges of its bin."""
    scores = np.sort(np.array(scores))
    bins = grid_bin(scores)
    assert (np.diff(bins) >= 0).all()
    assert (EDGES[bins] <= scores).all()
    assert (scores < np.append(EDGES, np.inf)[bins + 1]).all()


@pytest.mark.parametrize("bins", [1, 2, 5, 10, 12, 15, 20, 30, 60])
def test_equal_widths_are_exact(bins):
    """Equal-width bins of a divisor of 60 are unions of grid bins."""
    np.testing.assert_array_equal(EDGES[edges_of_width(bins)], np.arange(bins) / bins)


@given(EVENTS, EVENTS)
def test_tables_add(table, a, b):
    """The table of two parts is the sum of their tables, in either order."""
    assert_same(_build(table, a) + _build(table, b), _build(table, a + b))
    assert_same(_build(table, b) + _build(table, a), _build(table, a + b))


@given(st.lists(EVENTS, max_size=4))
def test_total_is_repeated_addition(table, parts):
    """The total of many tables is the table of all rows; that of none is the empty one."""
    assert_same(total([_build(table, p) for p in parts]), _build(table, [e for p in parts for e in p]))
    assert total([]) is EMPTY


@given(EVENTS)
def test_empty_adds_nothing(table, events):
    """The empty table is neutral."""
    t = _build(table, events)
    assert t + EMPTY is t or not events
    assert_same(EMPTY + t, t)


@given(EVENTS)
def test_counts_are_all_rows(table, events):
    """Every row is counted once, cells are sorted, and cells and totals agree."""
    t = _build(table, events)
    assert t.n == len(events)
    assert t.labelled == sum(y >= 0 for _, y, _ in events)
    assert (np.diff(t.cells["bin"].astype(int) * 8 + t.cells["verdict"]) > 0).all()
    assert [t.cells[c].sum() for c in ("n_none", "n_neg", "n_pos")] == t.totals[:, 0].tolist()
    np.testing.assert_allclose(t.cells["p_none"].sum() + t.cells["p_lab"].sum(), t.totals[:, 1].sum(), rtol=1e-12)


def test_losses_are_scikit_learns(table):
    """The sums of both losses are exact, scores of 0 and 1 included."""
    rng = np.random.default_rng(3)
    score = np.concatenate((rng.beta(0.3, 2, 5_000), [0.0, 1.0, 0.0, 1.0]))
    y = np.concatenate((rng.random(5_000) < score[:-4], [0, 1, 1, 0])).astype(np.int8)
    t = table(score, y)
    n, _, brier, loss, clipped = t.totals.sum(axis=0)
    assert brier / n == pytest.approx(brier_score_loss(y, score), rel=1e-12)
    assert loss / n == pytest.approx(sk_log_loss(y, score), rel=1e-12)
    assert clipped == 4
    assert TOTALS[4] == "clipped"


def test_log_losses():
    """The loss is -ln of the probability of what happened and finite at the ends."""
    found = log_losses(np.array([0.25, 0.25, 0.0, 1.0]), np.array([True, False, True, False]))
    assert found == pytest.approx([-np.log(0.25), -np.log(0.75), 52 * np.log(2), 52 * np.log(2)])


def test_slices_partition_the_rows():
    """Each slice counts the rows of its combinations, `all` counts everything, a slice without rows is empty."""
    rows = np.zeros(4, ROW)
    rows["score"], rows["combo"] = [0.1, 0.2, 0.3, 0.4], [0, 1, 1, 0]
    labels = np.zeros(4, LABEL)
    labels["outcome"] = [0, 1, 0, -1]
    members = np.array([[0, 0], [1, 2]], np.int32)  # combination 0 is in slices 0 and 1, combination 1 in 0 and 2
    every, first, second, nobody = tables(rows, labels, members, 4)
    assert [t.n for t in (every, first, second, nobody)] == [4, 2, 2, 0]
    assert_same(first + second, every)
    assert nobody is EMPTY


def test_groups_do_not_depend_on_the_pieces():
    """Only rows with a cluster are in the groups, wherever the rows are cut into pieces."""
    rng = np.random.default_rng(8)
    rows, labels = np.zeros(300, ROW), np.zeros(300, LABEL)
    rows["score"], rows["verdict"], labels["outcome"] = rng.random(300), rng.integers(0, 6, 300), rng.integers(-1, 2, 300)
    rows["h1"] = rng.integers(0, 2**63, 300)
    rows["cluster"][200:] = rng.integers(0, 1_000, 100)
    whole, members = rows["cluster"] > 0, np.zeros((1, 1), np.int32)
    table = tables(rows, labels, members, 1)[0]
    assert table.groups.shape == (GROUPS, 3, len(GROUP_COLUMNS))
    assert table.groups[:, :, :3].sum() == whole.sum() < 300
    np.testing.assert_allclose(table.groups[:, :, 3].sum(), rows["score"][whole].sum(), rtol=1e-12)
    for cut in (100, 200, 250):
        pieces = [(rows[:cut], labels[:cut]), (rows[cut:], labels[cut:])]
        assert count_pieces(pieces, members, 1)[0].groups.tobytes() == table.groups.tobytes()
        np.testing.assert_allclose(total([tables(*p, members, 1)[0] for p in pieces]).groups, table.groups, rtol=1e-12)
    assert tables(rows[:200], labels[:200], members, 1)[0].groups is None


def test_decided(table):
    """A table is decided as soon as one row has a verdict."""
    assert not decided(EMPTY)
    assert not decided(table([0.1, 0.9]))
    assert decided(table([0.1, 0.9], verdicts=[NONE, PASS]))


def test_a_table_as_json_comes_back():
    """Through JSON every part of a table keeps its bytes: cells, totals, weights, delays and groups, or their absence."""
    rng = np.random.default_rng(0)
    rows, labels = np.zeros(500, ROW), np.zeros(500, LABEL)
    rows["score"], rows["verdict"] = rng.random(500), rng.integers(0, 6, 500)
    labels["outcome"], labels["delta"] = rng.integers(-1, 2, 500), rng.integers(0, 90_000, 500)
    one = np.zeros((1, 1), np.int32)
    for column, value in (("score", rows["score"]), ("label_prob", 700), ("cluster", rng.integers(0, 9, 500))):
        rows[column] = value
        table = tables(rows, labels, one, 1, (86_400_000, 86_400_000))[0]
        back = from_dict(json.loads(json.dumps(to_dict(table))))
        assert differing(table, back) == []
        assert [getattr(back, name) is None for name in ("weights", "groups")] == [column == "score", column != "cluster"]
    assert differing(from_dict(to_dict(EMPTY)), EMPTY) == []
    assert unlike({"all": table, "a": EMPTY}, {"all": table + table}) == {
        "all": ["cells", "totals", "weights", "delays", "groups"]
    }
