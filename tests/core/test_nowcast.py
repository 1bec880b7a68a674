"""What the nowcast makes of hand-made days: raised counts, their variances, and when it says nothing."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.core.delays import Completeness
from monitor.core.events import BLOCK, DAY, FLAG, PASS, prob_code, prob_of
from monitor.core.readings import LabelRule, mature, nowcast
from monitor.core.tables import EMPTY, LABEL, NO_AUDIT, PASSED_OVER, PICKED, ROW, not_waiting, tables, total

NEGATIVE, UNKNOWN = (LabelRule("negative"),) * 6, (LabelRule("unknown"),) * 6
BLOCKED = tuple(replace(rule, never=v == BLOCK) for v, rule in enumerate(NEGATIVE))


def day(counts, **columns):
    """Return the table of {(score, verdict): (unlabelled, negative, positive)}."""
    scores, verdicts, outcomes = [], [], []
    for (score, verdict), numbers in counts.items():
        scores += [score] * sum(numbers)
        verdicts += [verdict] * sum(numbers)
        outcomes += np.repeat([-1, 0, 1], numbers).tolist()
    rows, labels = np.zeros(len(scores), ROW), np.zeros(len(scores), LABEL)
    rows["score"], rows["verdict"], labels["outcome"] = scores, verdicts, outcomes
    for name, values in columns.items():
        rows[name] = values
    return tables(rows, labels, np.zeros((1, 1), np.int32), 1, (DAY, DAY))[0]


def complete(neg=np.nan, pos=np.nan, sd=0.0, flagged=None):
    """Return the completeness of a day by class; `flagged` is that of flagged positives where it differs."""
    f = np.full((2, 6), [[neg], [pos]], float)
    curve = np.repeat([[0], [1]], 6, axis=1)
    if flagged is not None:
        f[1, FLAG], curve[1, FLAG] = flagged, 2
    return Completeness(f, np.full((2, 6), sd), curve)


A_DAY = {(0.1, PASS): (800, 0, 40), (0.7, FLAG): (100, 0, 60)}


def test_missing_negative():
    """A positive seen stands for 1 / F, the negatives are the rest of the rows of the cell."""
    r = nowcast([(day(A_DAY), complete(pos=0.4, flagged=0.8))], NEGATIVE)
    assert (r.basis, r.reason, r.flagged_reason) == ("nowcast", "", "")
    np.testing.assert_allclose(r.score, [0.1, 0.7])
    np.testing.assert_allclose(r.n, [840, 160])
    np.testing.assert_allclose(r.pos, [100, 75])
    np.testing.assert_allclose(r.neg, [740, 85])
    np.testing.assert_allclose(r.spread[1], [40 / 0.4**2, 60 / 0.8**2])
    np.testing.assert_allclose(r.spread[0], [800 + 40 * 1.5**2, 100 + 60 * 0.25**2])
    np.testing.assert_allclose(r.spread[2], [-40 * 2.5 * 1.5, -60 * 1.25 * 0.25])
    assert r.seen.tolist() == [40, 60]
    assert r.losses[0] == pytest.approx(100 * 0.81 + 740 * 0.01 + 75 * 0.09 + 85 * 0.49)


def test_labels_whose_delays_nobody_counted():
    """Labels of which nobody knows how many are to come, as with a horizon of 0, are not shown as all there will be."""
    assert nowcast([(day(A_DAY), complete())], NEGATIVE).reason == "incomplete"
    assert nowcast([(day({(0.1, PASS): (0, 90, 10)}), complete(pos=0.9))], UNKNOWN).reason == "incomplete"


def test_the_variance_of_a_share_of_all_rows():
    """Where rows are known the variance of positives / rows is (pi / F - pi**2) / n, the exact one of thinned draws."""
    r = nowcast([(day({(0.1, PASS): (920, 0, 80)}), complete(pos=0.5))], NEGATIVE)
    (k,), (rest,), n = r.pos, r.neg, r.n[0]
    (neg2, pos2, cov) = r.spread[:, 0]
    assert (rest**2 * pos2 + k**2 * neg2 - 2 * k * rest * cov) / n**4 == pytest.approx((0.16 / 0.5 - 0.16**2) / 1000)


def test_missing_unknown():
    """Each class is raised by its own completeness; the rows are those that labels are expected of."""
    r = nowcast([(day({(0.1, PASS): (460, 300, 60), (0.7, FLAG): (60, 90, 30)}), complete(neg=0.5, pos=0.75))], UNKNOWN)
    assert r.reason == ""
    np.testing.assert_allclose(r.neg, [600, 180])
    np.testing.assert_allclose(r.pos, [80, 40])
    np.testing.assert_allclose(r.n, [680, 220])
    np.testing.assert_allclose(r.spread, [[1200, 360], [60 / 0.75**2, 30 / 0.75**2], [0, 0]])


def test_a_complete_day_reads_as_mature():
    """With completeness 1 the nowcast of days is the mature reading of their sum."""
    days = [day(A_DAY), day({(0.1, PASS): (5, 9, 1), (0.3, PASS): (1, 0, 0), (0.7, FLAG): (3, 0, 0), (0.9, FLAG): (0, 0, 4)})]
    r, m = nowcast([(t, complete(1, 1)) for t in days], NEGATIVE), mature(total(days), NEGATIVE)
    for name in ("bin", "verdict", "n", "neg", "pos", "score"):
        np.testing.assert_allclose(getattr(r, name), getattr(m, name), rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(r.spread, [m.neg, m.pos, np.zeros(len(m.n))], atol=1e-12)
    assert r.losses == pytest.approx(m.losses, rel=1e-12)


def test_negatives_of_a_cell_may_be_below_zero():
    """A small cell with a positive of a young day has fewer rows than positives to come; sums stay right."""
    days = [(day(A_DAY | {(0.2, PASS): (0, 0, 1)}), complete(pos=0.4))]
    r = nowcast(days, NEGATIVE)
    assert r.neg.min() == pytest.approx(1 - 2.5)
    assert r.n.sum() == 1001


def test_the_error_of_a_curve_adds_up():
    """Errors of one curve are added over cells and days before they are squared, those of two curves after."""
    days = [(day(A_DAY), complete(pos=0.4, sd=0.1, flagged=0.8)), (day(A_DAY), complete(pos=0.5, sd=0.2, flagged=0.8))]
    plain = [(t, replace(c, sd=np.zeros((2, 6)))) for t, c in days]
    more = nowcast(days, NEGATIVE).spread - nowcast(plain, NEGATIVE).spread
    passed, flagged = (100 * 0.1 + 80 * 0.2) ** 2, (75 * 0.1 + 75 * 0.2) ** 2
    np.testing.assert_allclose(more, [[passed, flagged], [passed, flagged], [-passed, -flagged]])
    one = [(t, replace(c, curve=np.zeros((2, 6), np.int64))) for t, c in days]
    more = nowcast(one, NEGATIVE).spread - nowcast(plain, NEGATIVE).spread
    assert more[1].sum() == pytest.approx((100 * 0.1 + 80 * 0.2 + 75 * 0.1 + 75 * 0.2) ** 2)


def test_days_that_are_not_complete_enough_are_left_out():
    """A day counts when .3 of each class and verdict with labels is in; of negatives that are the rest it does not matter."""
    good, bad = complete(pos=0.3), complete(pos=0.9, flagged=0.29)
    r = nowcast([(day(A_DAY), good), (day(A_DAY), bad)], NEGATIVE)
    assert r.n.sum() == 1000
    assert nowcast([(day(A_DAY), bad)], NEGATIVE).reason == "incomplete"
    assert nowcast([(day(A_DAY), complete(neg=0.1, pos=0.9))], NEGATIVE).reason == ""
    assert nowcast([(day(A_DAY), complete(neg=0.1, pos=0.9))], UNKNOWN).reason == "incomplete"
    # Nothing of the flagged rows has come yet, but labels of theirs do come.
    assert nowcast([(day(A_DAY | {(0.7, FLAG): (100, 0, 0)}), bad)], NEGATIVE).reason == "incomplete"


@pytest.mark.parametrize(("positives", "reason"), [(50, ""), (49, "incomplete"), (0, "incomplete")])
def test_fifty_labels(positives, reason):
    """Labels worth fewer than 50 of weight one say nothing, whatever the number of rows."""
    r = nowcast([(day({(0.1, PASS): (9000, 0, positives)}), complete(pos=0.5))], NEGATIVE)
    assert (r.reason, r.flagged_reason, len(r.n)) == (reason, reason, 0 if reason else 1)


def test_unequal_weights_are_worth_less():
    """50 labels of days of unequal completeness are worth fewer than 50."""
    half = day({(0.1, PASS): (900, 0, 25)})
    assert nowcast([(half, complete(pos=0.9)), (half, complete(pos=0.3))], NEGATIVE).reason == "incomplete"


def test_nothing_at_all():
    """Without days or rows there are no events."""
    assert nowcast([], NEGATIVE).reason == nowcast([(EMPTY, complete())], NEGATIVE).reason == "no_events"


def test_prevented():
    """Blocked rows have no outcome, whatever came of them; the flagged part says so, the passed one is as ever."""
    r = nowcast([(day(A_DAY | {(0.8, BLOCK): (50, 5, 5)}), complete(pos=0.5))], BLOCKED)
    assert (r.reason, r.flagged_reason) == ("prevented", "prevented")
    np.testing.assert_allclose(r.n, [840, 160])
    np.testing.assert_allclose(r.pos, [80, 120])


def test_unidentified():
    """Where missing is unknown and fewer than .8 of the labels are to come, the part that misses them says so."""
    few_passed = {(0.1, PASS): (700, 150, 10), (0.7, FLAG): (60, 60, 60)}
    r = nowcast([(day(few_passed), complete(0.5, 0.75))], UNKNOWN)
    assert (r.reason, r.flagged_reason) == ("unidentified", "")
    few_flagged = {(0.1, PASS): (300, 350, 50), (0.7, FLAG): (120, 20, 40)}
    r = nowcast([(day(few_flagged), complete(0.5, 0.75))], UNKNOWN)
    assert (r.reason, r.flagged_reason) == ("unidentified", "unidentified")
    rules = (UNKNOWN[PASS], *BLOCKED[FLAG:])
    r = nowcast([(day(few_passed | {(0.8, BLOCK): (9, 0, 0)}), complete(0.5, 0.75))], rules)
    assert (r.reason, r.flagged_reason) == ("unidentified", "prevented")


def test_rows_that_did_not_wait():
    """Waiting rows stand for those that did not wait, which are themselves no negatives."""
    prob = prob_of(prob_code(np.array([0.25])))[0]
    waited = day({(0.1, PASS): (160, 0, 40)}, wait_prob=prob_code(np.array([0.25])))
    flagged = day({(0.7, FLAG): (100, 0, 100)})
    gone = not_waiting(day({(0.1, PASS): (600, 0, 0)}))
    r = nowcast([(total([waited, flagged, gone]), complete(pos=0.5))], NEGATIVE)
    np.testing.assert_allclose(r.n, [200 / prob, 200])
    np.testing.assert_allclose(r.pos, [80 / prob, 200])
    np.testing.assert_allclose(r.spread[:, 0], [(160 + 40) / prob**2, 40 * 4 / prob**2, -40 * 2 / prob**2])
    np.testing.assert_allclose(r.score, [0.1, 0.7])


@pytest.mark.parametrize("rules", [NEGATIVE, UNKNOWN])
def test_audited_rows(rules):
    """Audited rows stand for all by their probability; an unlabelled one is no negative, and a label by itself is no audit."""
    prob = prob_of(prob_code(np.array([0.1])))[0]
    counts = {(0.1, PASS): (1800, 70, 30), (0.7, FLAG): (0, 100, 100)}
    # Of those passed over 20 positives came by themselves, of those picked 100 are still being looked at.
    audit = np.repeat([PASSED_OVER, PICKED, PASSED_OVER, NO_AUDIT], [1700, 180, 20, 200])
    table = day(counts, label_prob=np.where(audit == NO_AUDIT, 0, prob_code(np.array([0.1]))), audit=audit)
    r = nowcast([(table, complete(0.5, 0.5, flagged=0.5))], rules)
    np.testing.assert_allclose(r.pos[0], 10 / prob / 0.5)
    np.testing.assert_allclose(r.neg[0], 70 / prob / 0.5)
    np.testing.assert_allclose(r.spread[:, 0], [70 / prob**2 / 0.25, 10 / prob**2 / 0.25, 0])
    np.testing.assert_allclose(r.seen, [10, 100])
