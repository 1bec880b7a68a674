"""Sampling: classes, budgets in simulated traffic, exact probabilities, the shared draw, and volumes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.events import BLOCK, DAY, FLAG, FLAGGED, HOUR, MINUTE, NONE, PASS, REVIEW, prob_code, prob_of
from monitor.core.sampling import CLASSES, FILL, FLOOR, LEAST, SCORE_BINS, Volume, audit, classes, draw, plan, unplanned

START = 20_000 * DAY


def traffic(rng, n):
    """Return scores of which few are high, the verdicts at the threshold .3, and the classes without one."""
    score = rng.beta(0.3, 10, n)
    verdict = np.where(score >= 0.3, FLAG, PASS).astype(np.uint8)
    return score, verdict, classes(score, verdict, None)


def roots(score, verdict):
    """Return what each row adds to the volume that an audit draws from."""
    return np.where(FLAGGED[verdict], 0.0, np.sqrt(score))


def keys(rng, n):
    """Return n hashed ids."""
    return rng.integers(0, 2**64, (n, 2), np.uint64)


def test_classes():
    """A class is the bin of the logit, 1 wide and open at the ends, and whether the row is flagged or near the threshold."""
    score = np.array([0.0, 1e-9, 0.2689414, 0.4999, 0.5, 0.74, 1.0])
    passed, flagged = np.full(7, PASS, np.uint8), np.full(7, BLOCK, np.uint8)
    bins = [0, 0, 8, 9, 10, 11, 19]
    assert classes(score, passed, None).tolist() == bins
    assert classes(score, flagged, None).tolist() == [SCORE_BINS + b for b in bins]
    near = classes(score, passed, 0.5) >= SCORE_BINS
    assert near.tolist() == [False, False, False, True, True, False, False]
    assert (classes(score, passed, np.array([0.0, 1.0, 1.0, 1.0, 1.0, 0.8, 1.0])) >= SCORE_BINS).tolist() == [
        True, False, False, False, False, True, True,
    ]  # fmt: skip
    assert classes(np.array([]), np.array([], np.uint8), 0.5).shape == (0,)


def test_everything_waits_where_it_fits():
    """Nothing is drawn as long as the plan uses at most .9 of the rows, and models that send nothing are no matter."""
    volume = np.zeros((2, CLASSES))
    volume[0, 3], volume[0, 25] = 600, 300
    assert (plan(volume, np.array([1.0, 9.0]), 1_000) == 1).all()
    assert plan(volume, np.array([1.0, 9.0]), 999).min() < 1
    assert (plan(np.zeros((1, CLASSES)), np.ones(1), 10) == 1).all()
    assert plan(np.zeros((0, CLASSES)), np.zeros(0), 10).shape == (0, CLASSES)


def test_plan_by_hand():
    """Protected classes wait, each other class has its floor, and what is left is drawn evenly up to the budget."""
    volume = np.zeros((2, CLASSES))
    volume[0, :3] = 100_000, 10_000, 400
    volume[0, 30] = 1_000
    volume[1, 5] = 50
    p = plan(volume, np.array([10.0, 20.0]), 200_000)
    # 180,000 less 10 * 1,000 protected, 10 * 200 and 20 * 50 of the floors leave 167,000 for 10 * 110,000 rows.
    even = 167_000 / 1_100_000
    assert p[0, :3] == pytest.approx([even, even, FLOOR / 400], rel=3e-4)
    assert (p[0, 30], p[1, 5]) == (1, 1)
    assert (p[volume == 0] == 1).all()


def test_a_huge_flagged_share_takes_half():
    """Protected classes take half when they are many, more when the others leave it, and all are drawn evenly then."""
    volume = np.zeros((1, CLASSES))
    volume[0, 5], volume[0, 25], volume[0, 26] = 50_000, 500_000, 450_000
    p = plan(volume, np.ones(1), 100_000)[0]
    assert p[[5, 25, 26]] == pytest.approx([0.9, 45_000 / 950_000, 45_000 / 950_000], rel=3e-4)
    volume[0, 5] = 10_000
    p = plan(volume, np.ones(1), 100_000)[0]
    assert p[[5, 25, 26]] == pytest.approx([1, 80_000 / 950_000, 80_000 / 950_000], rel=3e-4)


def test_floors_give_way_together():
    """Where not even the floors fit they shrink by one factor, and a probability never falls below the least one."""
    volume = np.full((50, CLASSES), 1_000.0)
    days = np.full(50, 30.0)
    p = plan(volume, days, 30_000)
    assert p == pytest.approx(FILL * 30_000 / (volume * 30).sum(), rel=3e-4)
    assert plan(volume, days, 10) == pytest.approx(LEAST, rel=3e-4)


ROWS_A_DAY = st.lists(st.sampled_from([0, 1, 50, 200, 3_000, 1e5, 1e7]), min_size=CLASSES, max_size=CLASSES)


@given(st.lists(ROWS_A_DAY, min_size=1, max_size=3), st.integers(10_000, 10_000_000))
def test_any_plan_keeps_and_uses_its_budget(volumes, rows):
    """Every plan costs at most .9 of the rows, apart from least probabilities, and that much unless everything waits."""
    volume = np.array(volumes, np.float64)
    days = np.linspace(1, 120, len(volume))
    p = plan(volume, days, rows)
    cost = (volume * days[:, None] * p).sum()
    assert LEAST * (1 - 3e-4) <= p.min() <= p.max() <= 1
    assert cost <= FILL * rows * (1 + 3e-4) + (LEAST * volume * days[:, None]).sum()
    assert (p[volume > 0] == 1).all() or cost >= FILL * rows * (1 - 3e-4)


def test_a_store_that_fills_up_lowers_every_probability():
    """The last tenth of the rows is a brake: half of it left halves the plan, none of it left leaves the least probability."""
    volume = np.full((1, CLASSES), 100.0)
    assert (plan(volume, np.ones(1), 10_000, 9_000) == 1).all()
    assert plan(volume, np.ones(1), 10_000, 9_500) == pytest.approx(0.5, rel=3e-4)
    assert plan(volume, np.ones(1), 10_000, 10_500) == pytest.approx(LEAST, rel=3e-4)


@pytest.mark.parametrize(("days", "burst", "most"), [(30, 1, 0.94), (30, 10, 0.96), (5, 10, 1.0)])
def test_waiting_rows_stay_in_their_budget(days, burst, most):
    """A daily rhythm of 1 to 9 and a day of ten times the traffic leave the waiting rows below the budget, and use it."""
    rng = np.random.default_rng(7)
    rows, per_day, length = 20_000, 10_000, 45
    if days < 30:
        per_day *= 3
    volume, p = Volume(), np.ones((1, CLASSES))
    waiting, used = np.zeros(length + 1, np.int64), []
    for hour in range(length * 24):
        day, now = hour // 24, START + hour * HOUR
        rate = per_day / 24 * (1 + 0.8 * np.sin(2 * np.pi * hour / 24)) * (burst if day == 38 else 1)
        score, verdict, of = traffic(rng, rng.poisson(rate))
        waiting[day] += (draw(keys(rng, len(score))) < p[0][of]).sum()
        used.append(waiting[max(0, day + 1 - days) : day + 1].sum())
        volume = volume.add(now + rng.integers(0, HOUR, len(score)), of, roots(score, verdict))
        if (found := volume.per_day()) is not None:
            p = plan(found[0][None], np.array([float(days)]), rows, used[-1])
    assert max(used) <= most * rows
    assert np.mean(used[32 * 24 : 38 * 24]) > 0.8 * rows


def test_totals_are_unbiased_over_keys():
    """The weighted total of the rows that wait is the true one on average, with the variance that the weights say."""
    rng = np.random.default_rng(3)
    score, verdict, of = traffic(rng, 3_000)
    volume = np.bincount(of, minlength=CLASSES).astype(np.float64)
    p = np.minimum(plan(volume[None] * 20, np.ones(1), 15_000)[0][of], 1)
    q = np.where(verdict == PASS, audit(score, 300, np.sqrt(score[verdict == PASS]).sum()), 1.0)
    value = (rng.random(3_000) < score) + score
    for chance in (p, q, np.maximum(p, q)):
        assert 0 < chance.min() < 0.5
        assert (prob_of(prob_code(chance)) == chance).all()
        u = np.array([draw(keys(rng, 3_000)) for _ in range(1_500)])
        totals = ((u < chance) * (value / chance)).sum(axis=1)
        sd = np.sqrt((value**2 * (1 / chance - 1)).sum())
        assert abs(totals.mean() - value.sum()) < 4 * sd / np.sqrt(len(totals))
        assert totals.std() == pytest.approx(sd, rel=0.1)


def test_the_draw_is_the_id():
    """The number of an id is always the same, even in [0, 1), from its second word, and a pick waits for sure."""
    ids = np.array([[1, 0], [1, 2**64 - 1], [2**64 - 1, 2**63]], np.uint64)
    assert draw(ids).tolist() == [0.0, 1 - 2**-53, 0.5]
    rng = np.random.default_rng(1)
    ids = keys(rng, 100_000)
    u = draw(ids)
    assert (u == draw(ids)).all()
    assert np.abs(np.sort(u) - (np.arange(len(u)) + 0.5) / len(u)).max() < 0.006  # Kolmogorov-Smirnov, 1e-3
    p, q = rng.random(len(u)), rng.random(len(u))
    assert not ((u < q) & ~(u < np.maximum(p, q))).any()


def test_audit_probabilities():
    """A pick is proportional to the root of the score, never sure to be passed over, and sure where few rows are expected.

    Rows that all score 0 hide no misses.
    """
    q = audit(np.array([0.0, 0.04, 0.16, 1.0]), 10, 100.0)
    assert q == pytest.approx([LEAST, 0.02, 0.04, 0.1], rel=3e-4)
    assert (audit(np.array([0.25, 1.0]), 10, 5.0) == 1).all()
    assert audit(np.zeros(2), 10, 0.0) == pytest.approx([LEAST, LEAST], rel=3e-4)


def test_reviews_stay_in_their_daily_budget():
    """About as many rows a day are picked as the budget says, in any rhythm; ten times the traffic at once shows for a day."""
    rng = np.random.default_rng(5)
    volume, picked = Volume(), np.zeros(24)
    for hour in range(24 * 24):
        day, now = hour // 24, START + hour * HOUR
        rate = 20_000 / 24 * (1 + 0.8 * np.sin(2 * np.pi * hour / 24)) * (10 if day == 20 else 1)
        score, verdict, of = traffic(rng, rng.poisson(rate))
        if (found := volume.per_day()) is not None:
            passed = verdict == PASS
            picked[day] += (draw(keys(rng, passed.sum())) < audit(score[passed], 200, found[1])).sum()
        volume = volume.add(now + rng.integers(0, HOUR, len(score)), of, roots(score, verdict))
    assert abs(picked[2:20].mean() - 200) < 10
    assert picked[2:20].max() < 300
    assert picked[20] < 3 * 200
    assert picked[22:].max() < 300


def test_volume_is_a_rate_of_the_last_day():
    """A volume is None in its first hour, then what came since the first row, then what came in the last 24 whole hours."""
    score, verdict = np.array([0.25, 0.25, 0.81]), np.array([NONE, PASS, REVIEW], np.uint8)
    of = classes(score, verdict, None)

    def at(minute):
        return Volume().add(np.full(3, START + minute * MINUTE), of, roots(score, verdict))

    assert Volume().per_day() is Volume().per_day(0) is None
    assert at(30).per_day(0)[1] == 24 * 60  # as if it had come in a minute
    assert (at(30) + at(89)).per_day() is None
    rows, root = (at(30) + at(90)).per_day()
    assert (rows == 24 * 2 * np.bincount(of, minlength=CLASSES)).all()
    assert root == 24 * 2 * (0.5 + 0.5)
    volume = at(30)
    for hour in range(1, 49):
        volume = volume + at(hour * 60)
    rows, root = volume.per_day()
    assert (rows.sum(), root) == (25 * 3, 25.0)
    assert (volume + at(48 * 60 + 30)).per_day()[1] == pytest.approx(26 * DAY / (DAY + HOUR / 2))
    later = volume + at(100 * 60)  # after so long a silence it begins anew
    assert (len(later.hours), later.per_day()) == (1, None)
    assert len(volume.hours) == 25
    assert (volume + at(0)).hours.keys() == volume.hours.keys()
    assert volume.add(of[:0], of[:0], score[:0]) is volume


def test_history_has_the_rate_that_it_had():
    """Rows that are read in all at once tell the rate of their own time."""
    rng = np.random.default_rng(2)
    score, _, of = traffic(rng, 10_000)
    rows, _ = Volume().add(START + rng.integers(0, DAY // 2, 10_000), of, np.sqrt(score)).per_day()
    assert rows.sum() == pytest.approx(20_000, rel=0.01)


@pytest.mark.parametrize("times", [0.1, 1, 30, 250])
def test_a_rate_that_nobody_knows(times):
    """Until a plan is made all rows wait while a fifth of the room is not taken, then fewer, and any number finds room."""
    rng = np.random.default_rng(4)
    waiting, total, room = 0, 0.0, 10_000
    for _ in range(int(times * 100)):
        p = unplanned(room, waiting)
        n = rng.binomial(100, p)
        waiting, total = waiting + n, total + n / p
    assert waiting <= room
    assert total == pytest.approx(times * room, rel=0.1)
    assert unplanned(room, 2_000) == 1
    assert unplanned(room, 10_000) == pytest.approx(LEAST, rel=3e-4)


@given(st.lists(st.integers(0, 60 * 60), min_size=1, max_size=40), st.integers(0, 40))
def test_volumes_add_in_any_batches_and_survive_json(minutes, cut):
    """Volumes of parts add to the volume of the whole, exactly, and JSON gives the same volume back."""
    ts = START + np.array(minutes, np.int64) * MINUTE
    score = np.linspace(0, 1, 5)[np.arange(len(ts)) % 5] ** 2
    verdict = (np.arange(len(ts)) % 6).astype(np.uint8)
    of = classes(score, verdict, 0.5)

    def volume(at):
        return Volume().add(ts[at], of[at], roots(score[at], verdict[at]))

    def shown(v):
        return {hour: sums.tolist() for hour, sums in v.hours.items()}

    whole, a, b = volume(slice(None)), volume(slice(cut)), volume(slice(cut, None))
    assert shown(whole) == dict(sorted(shown(b + a).items())) == dict(sorted(shown(a + b).items()))
    back = Volume.from_json(whole.to_json())
    assert (shown(back), back.since, back.newest) == (shown(whole), whole.since, whole.newest)
    assert back.to_json() == whole.to_json()
