"""What a table means under each way of counting."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sk_log_loss

from monitor.core.events import BLOCK, FLAG, FLAGGED, PASS, Coded, prob_code
from monitor.core.policy import logit, policy, verdicts
from monitor.core.readings import LabelRule, baseline, coverage, decided, honest, known, mature, scored
from monitor.core.tables import EMPTY, LABEL, PASSED_OVER, PICKED, ROW, not_waiting, tables, weights_of
from rows import at

NEGATIVE = (LabelRule("negative"),) * 6
UNKNOWN = (LabelRule("unknown"),) * 6

SCORE = np.array([0.1, 0.1, 0.3, 0.6, 0.6, 0.9])
OUTCOME = np.array([0, -1, -1, 1, 0, 1], np.int8)


def test_scored_has_every_row_and_no_outcome(table):
    """The basis scored counts all rows and knows no outcome."""
    r = scored(table(SCORE, OUTCOME, threshold=0.5))
    assert (r.basis, r.reason, r.decided) == ("scored", "", True)
    np.testing.assert_allclose(r.score, [0.1, 0.3, 0.6, 0.9])
    assert r.n.tolist() == [2, 1, 2, 1]
    assert r.neg.tolist() == r.pos.tolist() == [0, 0, 0, 0]
    assert r.flagged.tolist() == [False, False, True, True]


def test_known_has_the_labelled_rows(table):
    """The basis known counts rows whose label is in, with exactly their scores and losses."""
    r = known(table(SCORE, OUTCOME, threshold=0.5))
    seen = OUTCOME >= 0
    np.testing.assert_allclose(r.score, [0.1, 0.6, 0.9])
    assert (r.neg.tolist(), r.pos.tolist()) == ([1, 1, 0], [0, 1, 1])
    assert r.losses[0] / 4 == pytest.approx(brier_score_loss(OUTCOME[seen], SCORE[seen]), rel=1e-12)
    assert r.losses[1] / 4 == pytest.approx(sk_log_loss(OUTCOME[seen], SCORE[seen]), rel=1e-12)


def test_mature_missing_negative(table):
    """Where no label means negative, the unlabelled rows of a mature day are negatives, in the losses too."""
    r = mature(table(SCORE, OUTCOME, threshold=0.5), NEGATIVE)
    y = np.maximum(OUTCOME, 0)
    assert (r.basis, r.reason) == ("mature", "")
    assert (r.n.tolist(), r.neg.tolist(), r.pos.tolist()) == ([2, 1, 2, 1], [2, 1, 1, 0], [0, 0, 1, 1])
    assert r.losses[0] / 6 == pytest.approx(brier_score_loss(y, SCORE), rel=1e-12)
    assert r.losses[1] / 6 == pytest.approx(sk_log_loss(y, SCORE), rel=1e-12)


@pytest.mark.parametrize(("labelled", "reason"), [(10, ""), (8, ""), (7, "unidentified"), (0, "no_labels")])
def test_mature_missing_unknown(table, labelled, reason):
    """Where no label means nothing, under .8 of the labels identify nothing; unlabelled rows are left out."""
    outcome = np.where(np.arange(10) < labelled, np.arange(10) % 2, -1)
    r = mature(table(np.linspace(0.05, 0.95, 10), outcome), UNKNOWN)
    assert r.reason == reason
    assert r.n.sum() == labelled
    assert (r.neg + r.pos).tolist() == r.n.tolist()


def test_nothing_at_all():
    """An empty table has a reason on every basis, and no cells."""
    readings = [scored(EMPTY), known(EMPTY), mature(EMPTY, NEGATIVE), mature(EMPTY, UNKNOWN), baseline({"all": EMPTY}, None)]
    assert [r.reason for r in readings] == ["no_events", "no_events", "no_mature_days", "no_mature_days", "no_events"]
    assert all(len(r.n) == 0 and r.losses == (0.0, 0.0) and not r.decided for r in readings)


def test_events_without_labels(table):
    """Scores without a single label say no_labels, not no_events."""
    assert known(table(SCORE)).reason == "no_labels"


def test_baseline_follows_the_current_policy(table):
    """The baseline is decided anew by the threshold it is asked about; a score on the threshold is flagged."""
    t = table(SCORE, np.maximum(OUTCOME, 0), threshold=0.05)
    r = baseline({"all": t}, at(0.6))
    assert r.basis == "baseline"
    assert r.verdict.tolist() == [PASS, PASS, FLAG, FLAG]
    assert not baseline({"all": t}, None).decided


def test_clipped_are_counted(table):
    """Scores at the very ends are counted on the basis they belong to."""
    t = table([0.0, 1.0, 1.0, 0.5], [0, 1, -1, 1])
    assert (scored(t).clipped, known(t).clipped, mature(t, NEGATIVE).clipped) == (3, 2, 3)


BY_VERDICT = tuple(LabelRule("unknown", never=v == BLOCK) if FLAGGED[v] else LabelRule("negative") for v in range(6))
"""Passed rows are negative without a label, flagged ones unknown, blocked ones have no outcome."""


def _with(*changes):
    """Return six rules, `missing: unknown` but for the given verdicts."""
    return tuple(dict(changes).get(v, UNKNOWN[0]) for v in range(6))


def test_rows_that_do_not_wait_are_scored(table):
    """A row that does not wait is a score and never an outcome, not even a negative one."""
    t = table([0.1, 0.3], [0, -1], 0.5) + not_waiting(table([0.1, 0.6, 0.6], threshold=0.5))
    r = scored(t)
    assert (r.n.tolist(), r.score.tolist()) == ([2, 1, 2], [0.1, 0.3, 0.6])
    assert t.n == r.n.sum() == 5
    m = mature(t, NEGATIVE)
    assert (m.n.tolist(), m.neg.tolist(), m.reason) == ([1, 1], [1, 1], "")
    assert m.losses == pytest.approx((0.1**2 + 0.3**2, -np.log(0.9) - np.log(0.7)))
    assert mature(t, UNKNOWN).n.tolist() == [1]
    assert mature(not_waiting(table([0.2, 0.4])), UNKNOWN).reason == "no_labels"


def test_missing_by_verdict(table):
    """Each verdict has its own rule, and outcomes of a verdict that prevents them do not count although some have labels."""
    verdicts = [PASS, PASS, PASS, FLAG, FLAG, FLAG, FLAG, FLAG, BLOCK, BLOCK]
    score = np.array([0.1, 0.1, 0.2, 0.6, 0.6, 0.7, 0.7, 0.7, 0.9, 0.95])
    r = mature(table(score, [0, -1, 1, 1, -1, 0, 1, 1, -1, 1], verdicts=verdicts), BY_VERDICT)
    np.testing.assert_allclose(r.score, [0.1, 0.2, 0.6, 0.7])
    assert (r.neg.tolist(), r.pos.tolist()) == ([2, 0, 0, 1], [0, 1, 1, 2])
    assert (r.reason, r.flagged_reason) == ("prevented", "prevented")
    y = np.array([0, 0, 1, 1, 0, 1, 1])
    p = score[[0, 1, 2, 3, 5, 6, 7]]  # the exact totals do not know verdicts, so losses are those of the cells
    assert r.losses == pytest.approx((((p - y) ** 2).sum(), 7 * sk_log_loss(y, p)), rel=1e-9)


ENOUGH, SOME, NOTHING = [1, 0, 1, 0, -1], [1, 0, 1, -1, -1], [-1] * 5
REASONS = {
    "both known": (UNKNOWN, ENOUGH, ENOUGH, "", ""),
    "flagged unidentified": (UNKNOWN, ENOUGH, SOME, "unidentified", "unidentified"),
    "passed unidentified": (UNKNOWN, SOME, ENOUGH, "", "unidentified"),
    "nobody looks at passed rows": (UNKNOWN, NOTHING, ENOUGH, "", "unidentified"),
    "no label at all": (UNKNOWN, NOTHING, NOTHING, "no_labels", "no_labels"),
    "negative needs no label": (NEGATIVE, NOTHING, NOTHING, "", ""),
    "passed negative, flagged unknown": (_with((PASS, LabelRule("negative"))), NOTHING, ENOUGH, "", ""),
    "flagged without labels": (_with((PASS, LabelRule("negative"))), NOTHING, NOTHING, "unidentified", "unidentified"),
    "flagged prevented": (_with((FLAG, LabelRule("unknown", never=True))), ENOUGH, ENOUGH, "prevented", "prevented"),
    "worse than prevented": (_with((FLAG, LabelRule("unknown", never=True))), SOME, NOTHING, "prevented", "unidentified"),
    "prevented and no label": (_with((FLAG, LabelRule("negative", never=True))), NOTHING, SOME, "prevented", "no_labels"),
    "passed prevented": (_with((PASS, LabelRule("unknown", never=True))), NOTHING, ENOUGH, "", "prevented"),
}


@pytest.mark.parametrize("case", REASONS)
def test_reasons_by_part(table, case):
    """Flagged rows and the rest are judged apart; the reason of all rows is the worse one."""
    rules, passed, flagged, flagged_reason, reason = REASONS[case]
    r = mature(table(np.linspace(0.05, 0.95, 10), [*passed, *flagged], 0.5), rules)
    assert (r.flagged_reason, r.reason) == (flagged_reason, reason)


def test_part_of_a_role_is_prevented(table):
    """Blocked rows take the reason to their part, and the flagged ones among it keep theirs when it is worse."""
    verdicts = [FLAG] * 5 + [BLOCK] * 5
    score = np.linspace(0.5, 0.9, 10)
    assert mature(table(score, [*ENOUGH, *NOTHING], verdicts=verdicts), BY_VERDICT).flagged_reason == "prevented"
    assert mature(table(score, [*SOME, *NOTHING], verdicts=verdicts), BY_VERDICT).flagged_reason == "unidentified"


@pytest.mark.parametrize(("looked", "flagged", "reason"), [(80, 50, ""), (79, 50, "unidentified"), (0, 200, "unidentified")])
def test_coverage_is_of_expected_labels(table, looked, flagged, reason):
    """Where one label in ten is expected, 80 of 1,000 rows are enough: label_prob says how the labels were selected."""
    n = 1_000 + flagged
    passed, seen = np.arange(n) < 1_000, np.arange(n) < looked
    flags = (np.arange(n) >= 1_000) & (np.arange(n) < 1_000 + 0.8 * flagged)
    y = np.where(seen, 0, np.where(flags, 1, -1))
    r = mature(table(np.full(n, 0.2), y, verdicts=np.where(passed, PASS, FLAG), label_prob=np.where(passed, 0.1, 0.0)), UNKNOWN)
    assert (r.reason, r.flagged_reason) == (reason, "")


def test_coverage_asks_only_where_a_missing_label_means_nothing(table):
    """No label is missed where none means negative or where the outcome is prevented; without expected labels nothing is said."""
    t = table(np.linspace(0.05, 0.95, 10), [*NOTHING, *SOME], 0.5)
    assert coverage(t, UNKNOWN) == pytest.approx(0.3)
    assert coverage(t, _with((PASS, LabelRule("negative")))) == pytest.approx(0.6)
    assert coverage(t, _with((PASS, LabelRule("unknown", never=True)))) == pytest.approx(0.6)
    assert coverage(t, NEGATIVE) is None
    assert coverage(EMPTY, UNKNOWN) is None
    some = table(np.full(10, 0.2), [1, 1, *[-1] * 8], verdicts=[PASS] * 10, label_prob=np.full(10, 0.5))
    assert coverage(some, UNKNOWN) == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize(("looked", "reason"), [(70, ""), (67, "unidentified")])
def test_a_part_may_miss_by_chance(table, looked, reason):
    """Where .8 of all labels came, a part of them that lacks some is judged by what chance does: 80 - 3 * 4 of 100."""
    y = np.where((np.arange(200) < looked) | (np.arange(200) >= 100), 1, -1)
    r = mature(table(np.full(200, 0.2), y, verdicts=[FLAG] * 100 + [PASS] * 100), UNKNOWN)
    assert r.flagged_reason == r.reason == reason


def test_weighted_outcomes(table):
    """A looked-at row counts 1 / label_prob, with its square as variance; `seen` are the positives it rests on."""
    verdicts = [PASS, PASS, PASS, PASS, FLAG, FLAG]
    # Codes keep probabilities to 2.5e-4; powers of 1/e**(1/8) are kept exactly.
    q = np.exp(-np.array([8, 8, 8, 16, 0, 0]) / 8)
    t = table([0.1, 0.1, 0.1, 0.3, 0.8, 0.8], [0, 1, -1, 1, 1, 0], verdicts=verdicts, label_prob=q)
    e = np.e
    for rules in (UNKNOWN, NEGATIVE):  # a row with a label_prob and no label was not looked at, whatever missing means
        r = mature(t, rules)
        np.testing.assert_allclose(r.score, [0.1, 0.3, 0.8])
        np.testing.assert_allclose((r.neg, r.pos, r.n), ([e, 0, 1], [e, e**2, 1], [2 * e, e**2, 2]))
        np.testing.assert_allclose(r.spread, ([e**2, 0, 1], [e**2, e**4, 1], [0, 0, 0]))
        np.testing.assert_allclose(r.seen, [1, 1, 1])
        brier = e * 0.01 + e * 0.81 + e**2 * 0.49 + 0.04 + 0.64
        assert r.losses[0] == pytest.approx(brier)
        assert r.losses[1] == pytest.approx(-(e * np.log(0.09) + e**2 * np.log(0.3) + np.log(0.16)))
    k = known(t)
    assert (k.spread, k.n.tolist(), k.pos.tolist()) == (None, [2, 1, 2], [1, 1, 1])


@pytest.mark.parametrize(("looked_at", "reason"), [(4, ""), (3, "unidentified")])
def test_a_probability_that_comes_with_the_label_only(looked_at, reason):
    """Labels that say how likely they were looked for stand for unlabelled rows like theirs, whatever missing means."""
    rows, labels = np.zeros(12, ROW), np.zeros(12, LABEL)
    rows["score"], rows["verdict"] = 0.1, PASS
    labels["outcome"] = [1, 0, 0, 0, *[-1] * 8]
    labels["outcome"][looked_at:] = -1
    labels["label_prob"][:looked_at] = prob_code(np.full(looked_at, np.exp(-1)))
    t = tables(rows, labels, np.zeros((1, 1), np.int32), 1)[0]
    for rules in (UNKNOWN, NEGATIVE):
        r = mature(t, rules)
        np.testing.assert_allclose((r.pos, r.neg), ([np.e], [(looked_at - 1) * np.e]))
        assert coverage(t, rules) == pytest.approx(looked_at * np.e / 12)
        assert r.reason == reason


def test_unlabelled_rows_stand_for_those_that_do_not_wait(table):
    """Where missing is negative, a waiting row without label counts 1 / wait_prob negatives."""
    q = np.exp(-np.array([8, 8, 0]) / 8)
    r = mature(table([0.1, 0.1, 0.8], [-1, 1, 1], 0.5, wait_prob=q) + not_waiting(table([0.1] * 4, threshold=0.5)), NEGATIVE)
    np.testing.assert_allclose((r.neg, r.pos), ([np.e, 0], [np.e, 1]))
    np.testing.assert_allclose(r.spread, ([np.e**2, 0], [np.e**2, 1], [0, 0]))


def test_labels_that_came_by_themselves_are_not_seen(table):
    """A label of a row that the audit passed over stands for nothing and is none of the positives seen."""
    q = np.full(4, np.exp(-1))
    audit = [PICKED, PICKED, PASSED_OVER, PASSED_OVER]
    r = mature(table([0.1] * 4, [1, 0, 1, 1], verdicts=PASS, label_prob=q, audit=audit), UNKNOWN)
    np.testing.assert_allclose((r.pos, r.neg, r.seen), ([np.e], [np.e], [1]))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([-1, 0, 1]), st.integers(0, 5)), min_size=1, max_size=30),
    st.tuples(*[st.builds(LabelRule, st.sampled_from(["negative", "unknown"]), st.booleans())] * 6),
)
def test_weights_of_one_change_nothing(table, events, rules):
    """A table with weights that are all 1 is read bit by bit as one without."""
    scores, outcomes, verdicts = zip(*events, strict=True)
    t = table(np.array(scores), np.array(outcomes, np.int8), verdicts=np.array(verdicts, np.uint8))
    a, b = mature(t, rules), mature(replace(t, weights=weights_of(t)), rules)
    assert b.spread is b.seen is None
    for name in ("bin", "verdict", "n", "score", "neg", "pos"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
    assert (a.losses, a.clipped, a.reason, a.flagged_reason) == (b.losses, b.clipped, b.reason, b.flagged_reason)


def test_groups_follow_the_outcomes(table):
    """Sums by cluster group are those of the rows read; what was decided alike cannot be told apart in them."""
    score = np.array([0.1, 0.2, 0.6, 0.7, 0.8, 0.9])
    y, verdicts, cluster = [-1, 0, 1, 0, -1, 1], [PASS, PASS, FLAG, FLAG, BLOCK, BLOCK], [1, 1, 1, 2, 2, 2]
    t = table(score, y, verdicts=verdicts, cluster=cluster)
    assert scored(t).groups[[1, 2], 0, :4] == pytest.approx(np.array([[2, 1, 0, 0.9], [0, 3, 0, 2.4]]))
    assert not scored(t).groups[:, 1].any()
    assert known(t).groups[[1, 2], :, :2].tolist() == [[[1, 0], [0, 1]], [[0, 1], [0, 1]]]
    negative = mature(t, NEGATIVE)
    assert negative.groups[[1, 2], :, :2].tolist() == [[[2, 0], [0, 1]], [[0, 2], [0, 1]]]
    np.testing.assert_allclose(negative.groups.sum(axis=(0, 1)), [2, 4, 0, score.sum(), *negative.losses])
    by_verdict = mature(t, BY_VERDICT)  # of the two labelled blocked and flagged positives only one counts
    assert np.isnan(by_verdict.groups[:, 1, [1, 3, 4, 5]]).all()
    assert by_verdict.groups[[1, 2], 0, 0].tolist() == [2, 0]
    assert baseline({"all": t}, at(0.5)).groups is None
    assert mature(table(score, y, verdicts=verdicts), UNKNOWN).groups is None
    assert np.isnan(scored(t + not_waiting(t)).groups[:, 0]).all()


def test_the_promise_of_a_policy_with_a_threshold_by_slice(table):
    """Each row is promised what its own slice gets, `all` is the sum of that, and another segment is not promised anything."""
    rng, names = np.random.default_rng(5), ("a", "b", "c")
    score, country = rng.random(3_000).round(3), rng.integers(3, size=3_000)
    outcome = np.where(rng.random(3_000) < 0.1, -1, rng.random(3_000) < score).astype(np.int8)
    made = policy("p", "m", "1", {"all": 0.5, "c=a": 0.3, "c=b": 0.8, "c=gone": 0.1}, review=(0.4, 0.5))
    by_slice = {"all": table(score, outcome)} | {
        f"c={n}": table(score[country == i], outcome[country == i]) for i, n in enumerate(names)
    }
    combos = Coded(tuple((("c", n),) for n in names), country)
    verdict = verdicts(made, score, combos)
    for name, mine in [("all", country >= 0), *((f"c={n}", country == i) for i, n in enumerate(names))]:
        r, oracle = baseline(by_slice, made, name), known(table(score[mine], outcome[mine], verdicts=verdict[mine]))
        for code in range(6):
            a, b = r.verdict == code, oracle.verdict == code
            assert (r.bin[a].tolist(), r.neg[a].tolist(), r.pos[a].tolist()) == (
                oracle.bin[b].tolist(),
                oracle.neg[b].tolist(),
                oracle.pos[b].tolist(),
            )
            np.testing.assert_allclose(r.score[a], oracle.score[b], rtol=1e-12)
        assert r.losses == known(by_slice[name]).losses
    assert not baseline(by_slice | {"d=x": by_slice["all"]}, made, "d=x").decided
    assert decided(by_slice | {"d=x": by_slice["all"]}, at(0.5), "d=x", scored).decided


def test_outcomes_as_scores_say_them(table):
    """Honest outcomes are the scores, moved in logit by a line where there is one."""
    r = scored(table(SCORE))
    assert honest(r).pos.tolist() == pytest.approx((r.n * r.score).tolist())
    moved = honest(r, 0.5, -0.2)
    np.testing.assert_allclose(logit(moved.pos / r.n), 0.5 + 0.8 * logit(r.score))
    np.testing.assert_allclose(moved.pos + moved.neg, r.n)
