"""Outcomes in four worlds of late labels: what labels show as they come, what is mature, and what open days will show."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from monitor.core.days import Key, newest_mature
from monitor.core.delays import Completeness, delay_curves
from monitor.core.events import BLOCK, DAY, PASS, prob_of
from monitor.core.metrics import measure
from monitor.core.readings import complete_enough, known, mature, nowcast
from monitor.core.tables import PICKED
from worlds import CORRECTIONS, HORIZON, PREVALENCE, THRESHOLD, WORLDS, generate

RUNS = 200
DAYS = 88  # at the end of the last one, 28 are mature and 60 are not
FIRST = 20_000
NOW = (FIRST + DAYS) * DAY
NAMES = ("prevalence", "recall", "precision", "bias")


def population():
    """Return what prevalence, recall, precision and bias are on average: scores are honest and rise with x."""
    cut = (math.log(THRESHOLD / (1 - THRESHOLD)) - math.log(PREVALENCE / (1 - PREVALENCE)) + 2) / 2
    recall, fpr = 1 - NormalDist(2, 1).cdf(cut), 1 - NormalDist().cdf(cut)
    tp, fp = PREVALENCE * recall, (1 - PREVALENCE) * fpr
    return PREVALENCE, recall, tp / (tp + fp), 0.0


def final(days):
    """Return the same of rows whose outcomes are all known; blocked rows have none."""
    there = days.rows["verdict"] != BLOCK
    y, flagged = days.outcome[there], days.rows["verdict"][there] != PASS
    tp = (y & flagged).sum()
    return y.mean(), tp / y.sum(), tp / flagged.sum(), days.rows["score"][there].mean() - y.mean()


def measured(reading):
    """Return value, low and high of prevalence, recall, precision and bias of a reading."""
    found = {e.metric: e for e in measure(reading, Key("m", "v", "all", FIRST), "28d", names=NAMES)}
    return tuple((e.value, e.low, e.high) for e in map(found.__getitem__, NAMES))


def open_days(days):
    """Return the table of the mature days at NOW and those of the days aged 0-29, the youngest last, with their completeness."""
    oldest = newest_mature(NOW, HORIZON) + 1
    # Mature days can have shown every delay, so one table of them says as much as one each. Those aged 30-59 only give
    # delays: five days are counted together at the age of the youngest, to save time.
    blocks = [(FIRST, oldest - 1)]
    blocks += [(d, d + 4) for d in range(oldest, FIRST + DAYS - 30, 5)]
    blocks += [(d, d) for d in range(FIRST + DAYS - 30, FIRST + DAYS)]
    tables = [(days.days(first, last).table(NOW), NOW - (last + 1) * DAY) for first, last in blocks]
    curves = delay_curves(tables, HORIZON, CORRECTIONS)
    return tables[0][0], [(table, curves.at(age)) for table, age in tables[-30:]]


def what_they_show(days, read, world):
    """Return the rows of those of the days aged 0-29 that are read: all up to an age."""
    shown = [complete_enough(table, completeness, world.rules) for table, completeness in read]
    n = sum(shown)
    assert shown == [True] * n + [False] * (30 - n)
    return days.days(FIRST + DAYS - 30, FIRST + DAYS - 31 + n)


def check(errors, covers, runs=RUNS):
    """The mean error is at most .01 and at least 90 % of the intervals cover, for each quantity."""
    assert len(errors) == runs
    assert (np.abs(np.mean(errors, axis=0)) <= 0.01).all(), np.mean(errors, axis=0)
    assert (np.mean(covers, axis=0) >= 0.9).all(), np.mean(covers, axis=0)


@pytest.mark.parametrize("name", "ABCD")
def test_nowcast(name):
    """Nowcasts are off by at most .01 on average and cover what the same days show in the end; blocked outcomes leave bias.

    What is mature equals what the same rows show, and its intervals cover what the model does on average.
    """
    world, which = WORLDS[name], slice(3, 4) if name == "D" else slice(None)
    errors, covers, mature_errors, mature_covers = [], [], [], []
    for seed in range(RUNS):
        days = generate(world, seed, DAYS, FIRST)
        old, read = open_days(days)
        reading, truth = nowcast(read, world.rules), np.array(final(what_they_show(days, read, world)))
        assert {reading.reason, reading.flagged_reason} == {"prevented" if name == "D" else ""}
        value, low, high = np.array(measured(reading), float).T
        errors.append((value - truth)[which])
        covers.append(((low <= truth) & (truth <= high))[which])
        value, low, high = np.array(measured(mature(old, world.rules)), float).T
        same = days.days(FIRST, newest_mature(NOW, HORIZON))
        np.testing.assert_allclose(value[which], np.array(final(same))[which], rtol=0, atol=1e-9)
        if name != "D":
            mature_errors.append(value - population())
            mature_covers.append((low <= population()) & (population() <= high))
    check(errors, covers)
    if name != "D":
        check(mature_errors, mature_covers)


def test_population():
    """What the model does on average is what the worlds were made for, and what many rows of them show."""
    assert [round(x, 3) for x in population()] == [0.03, 0.482, 0.422, 0]
    np.testing.assert_allclose(final(generate(WORLDS["A"], 0, 300)), population(), atol=0.006)


def test_labels_as_they_come():
    """The worlds mislead: what is labelled so far says .7 of the prevalence, 1.7 times it, or .62 instead of .482 of recall."""
    seen = {}
    for name in "ABC":
        days = generate(WORLDS[name], 0, DAYS, FIRST)
        seen[name] = days.days(FIRST + DAYS - 30, FIRST + DAYS - 1).table(NOW)
    assert measured(mature(seen["A"], WORLDS["A"].rules))[0][0] < 0.7 * PREVALENCE
    assert measured(known(seen["B"]))[0][0] > 1.7 * PREVALENCE
    assert measured(known(seen["C"]))[1][0] > 0.62


def test_one_curve_for_all_verdicts_misleads():
    """Negative control: in world C the completeness of all positives, whatever the verdict, leaves recall far too high."""
    days = generate(WORLDS["C"], 0, DAYS, FIRST)
    _, read = open_days(days)
    pooled = []
    for table, c in read:
        share = table.delays[1].sum(axis=1) / c.f[1]
        f = np.full_like(c.f, table.delays[1].sum() / np.nansum(share))
        pooled.append((table, Completeness(f, c.sd, c.curve)))
    assert measured(nowcast(pooled, WORLDS["C"].rules))[1][0] > 0.65


def test_audits():
    """Recall from at least 1,000 audits drawn by the root of the score covers that of the same rows, and of the population."""
    world = WORLDS["audited"]
    errors, covers = [], []
    complete = Completeness(np.ones((2, 6)), np.zeros((2, 6)), np.zeros((2, 6), int))
    for seed in range(RUNS):
        days = generate(world, seed, 17, FIRST).audited(65, np.random.default_rng([1, seed]))
        assert (days.rows["audit"] == PICKED).sum() >= 1_000
        value, low, high = measured(nowcast([(days.table(), complete)], world.rules))[1]
        truth = np.array([final(days)[1], population()[1]])
        errors.append(value - truth)
        covers.append((low <= truth) & (truth <= high))
        assert value == pytest.approx(horvitz_thompson(days), abs=1e-9)
    check(errors, covers)


def horvitz_thompson(days):
    """Return recall from the flagged positives and the audited missed ones, each over the probability that it was picked."""
    rows = days.rows[days.outcome]
    tp = (rows["verdict"] != PASS).sum()
    return tp / (tp + (1 / prob_of(rows["label_prob"][rows["audit"] == PICKED])).sum())


def test_audits_of_open_days():
    """The same from audits that are not all answered yet: a nowcast of weighted labels."""
    world, runs = WORLDS["audited"], 50
    errors, covers = [], []
    for seed in range(runs):
        days = generate(world, seed, DAYS, FIRST).audited(65, np.random.default_rng([2, seed]))
        _, read = open_days(days)
        value, low, high = measured(nowcast(read, world.rules))[1]
        truth = final(what_they_show(days, read, world))[1]
        errors.append(value - truth)
        covers.append(low <= truth <= high)
    check(errors, covers, runs)
