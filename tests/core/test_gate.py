"""The gate: what it repairs, what it leaves alone, and that each of its checks can refuse."""

import json
import math
import os
from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from monitor.core.calibrators import CANDIDATES, fit
from monitor.core.events import PASS, VERDICTS
from monitor.core.gate import BLOCKS, CHECKS, blocks, lines, trial
from monitor.core.policy import IDENTITY, apply, check, expit, logit
from monitor.core.readings import LabelRule, mature
from monitor.core.reasons import REASONS
from rows import table_of

LONG = "SCOREWATCH_LONG" in os.environ
"""100 streams of every world instead of 20."""
RUNS = 100 if LONG else 20
UNKNOWN = (LabelRule("unknown"),) * 6
WORLDS = {"temperature": lambda z: z / 1.6, "offset": lambda z: z - 0.7, "calibrated": lambda z: z}
MANY = np.clip(np.random.default_rng(99).beta(0.5, 3, 100_000), 1e-12, 1 - 1e-12)


def beta(rng, n):
    """Return scores that are Beta(.5, 3)."""
    return np.clip(rng.beta(0.5, 3, n), 1e-12, 1 - 1e-12)


def days_of(scores, outcomes, days=20, slices=(), **columns):
    """Return the tables of rows in the order of time, spread over days; `slices` names the slice of each row."""
    day, slices = np.arange(len(scores)) * days // len(scores), np.asarray(slices)
    out = {}
    for d in range(days):
        mine = {"all": day == d} | {name: (day == d) & (slices == name) for name in np.unique(slices).tolist()}
        out[d] = {
            name: table_of(scores[m], outcomes[m].astype(np.int8), **{k: v[m] for k, v in columns.items()})
            for name, m in mine.items()
        }
    return out


def drawn(rng, probability):
    return rng.random(len(probability)) < probability


def stream(rng, n, true, days=20):
    """Return days of scores whose true logit is a function of their logit."""
    scores = beta(rng, n)
    return days_of(scores, drawn(rng, expit(true(logit(scores)))), days)


def excess(calibrator, true):
    """Return by how much log loss is above that of the true map, on average."""
    p, q = expit(true(logit(MANY))), apply(calibrator, MANY)
    return float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def failed(report):
    return [c.reason for c in report.checks if c.reason]


@pytest.mark.parametrize("n", [1_000, 3_000])
@pytest.mark.parametrize("world", WORLDS)
def test_streams(world, n):
    """75 % of the excess log loss is removed in 90 of 100 streams that are off; of 100 calibrated ones at most 5 are changed."""
    true, repaired, reasons = WORLDS[world], 0, Counter()
    for run in range(RUNS):
        report = trial(stream(np.random.default_rng((n, run)), n, true), UNKNOWN, IDENTITY)
        reasons[report.reason] += 1
        repaired += report.reason == "accepted" and excess(report.calibrator, true) <= 0.25 * excess(IDENTITY, true)
    print(world, n, repaired, dict(reasons))
    if world == "calibrated":
        assert reasons["accepted"] <= 0.05 * RUNS
    else:
        assert repaired >= 0.9 * RUNS


def calibrated(rng):
    """Scores are right, so a fit changes nothing that matters."""
    return trial(stream(rng, 2_000, WORLDS["calibrated"]), UNKNOWN, IDENTITY)


def off_until_lately(rng):
    """Scores were too high in the first four fifths of the days and are less so since."""
    s = beta(rng, 9_000)
    z = logit(s) - np.where(np.arange(9_000) < 7_200, 0.8, 0.2)
    return trial(days_of(s, drawn(rng, expit(z))), UNKNOWN, IDENTITY, ["offset"])


def off_where_it_hardly_shows(rng):
    """Scores near 0 are much too low, which log loss sees and Brier does not; the rest is right."""
    low = rng.random(6_000) < 0.9
    s = np.where(low, 10 ** rng.uniform(-5, -3, 6_000), rng.uniform(0.2, 0.8, 6_000))
    return trial(days_of(s, drawn(rng, np.where(low, 0.012, s))), UNKNOWN, IDENTITY, ["platt"])


def off_inside_of_a_bin(rng):
    """One of the 15 bins is right on average with scores far too close; all others are right, and one temperature is for all."""
    n = 120_000
    u, outer = rng.permutation(np.arange(n) / n), rng.uniform(0.05, 0.1, n)
    middle = (u >= 7 / 15) & (u < 8 / 15)
    s = np.where(middle, rng.uniform(0.3, 0.7, n), np.where(u < 0.5, outer, 1 - outer))
    return trial(days_of(s, drawn(rng, np.where(middle, expit(8 * logit(s)), s))), UNKNOWN, IDENTITY, ["temperature"])


def off_in_one_slice(rng):
    """Scores of four in five rows are too high, those of the rest too low."""
    s, rest = beta(rng, 6_000), rng.random(6_000) < 0.2
    y = drawn(rng, expit(logit(s) + np.where(rest, 0.3, -0.9)))
    return trial(days_of(s, y, slices=np.where(rest, "c=b", "c=a")), UNKNOWN, IDENTITY)


def told_apart_within_a_step(rng):
    """Scores are too high, and most of what the ranking is worth is within the highest tenth of them."""
    p = np.append(np.repeat(np.linspace(0.01, 0.21, 9), 2_000), rng.uniform(0.25, 0.99, 2_000))
    p[:-2_000] += rng.uniform(-0.01, 0.01, 18_000)
    p = rng.permutation(p)
    return trial(days_of(expit(logit(p) + 1.2), drawn(rng, p)), UNKNOWN, IDENTITY, ["histogram"])


def two_kinds_of_rows(rng):
    """Higher scores are too high, lower ones right; lowered as well, these claim to be sure and are not."""
    lower = rng.random(4_000) < 0.15
    s = np.where(lower, rng.uniform(0.28, 0.32, 4_000), rng.uniform(0.4, 0.7, 4_000))
    return trial(days_of(s, drawn(rng, expit(logit(s) - np.where(lower, 0.0, 1.3)))), UNKNOWN, IDENTITY, ["offset"])


@pytest.mark.parametrize(
    ("case", "seed", "reason"),
    [
        (calibrated, 2, "no_improvement"),
        (off_until_lately, 0, "newest_worse"),
        (off_where_it_hardly_shows, 3, "brier_worse"),
        (off_inside_of_a_bin, 1, "calibration_not_better"),
        (off_in_one_slice, 0, "slice_worse"),
        (told_apart_within_a_step, 1, "auc_changed"),
        (two_kinds_of_rows, 0, "confidence_worse"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_each_check_can_refuse(case, seed, reason):
    """There are days on which one check fails and all others hold; the report has its figures and says what would be applied."""
    report = case(np.random.default_rng(seed))
    assert (report.reason, failed(report)) == (reason, [reason])
    assert CHECKS[next(c.name for c in report.checks if c.reason)] == reason
    assert check(report.calibrator) == ""
    assert json.loads(json.dumps(report.to_dict()))["sentence"] == REASONS[reason]


def test_a_slice_is_named():
    """The slice that is worse off is named, with its log loss before and after; a slice with few positives is not asked."""
    s, rng = beta(np.random.default_rng(0), 6_000), np.random.default_rng(1)
    slices = np.where(rng.random(6_000) < 0.2, "c=b", "c=a")
    slices[::120] = "c=few"
    report = trial(
        days_of(s, drawn(rng, expit(logit(s) + np.where(slices == "c=b", 0.3, -0.9))), slices=slices), UNKNOWN, IDENTITY
    )
    found = next(c for c in report.checks if c.name == "slices")
    assert (found.about, set(report.slices)) == ("c=b", {"c=a", "c=b"})
    assert found.before < found.after
    assert report.slices["c=a"].after < report.slices["c=a"].before
    worse = report.slices["c=b"]
    assert worse.p == pytest.approx(2 * NormalDist().cdf(-worse.difference.value / worse.difference.error))


@pytest.mark.parametrize("n", [60, 300])
def test_few_rows(n):
    """With 60 rows, or 300 of which each fit has 240, nothing is tried, and the reason says so."""
    for run in range(RUNS):
        report = trial(stream(np.random.default_rng(run), n, lambda z: z / 3), UNKNOWN, IDENTITY)
        assert (report.reason, report.calibrator, report.checks) == ("low_n", None, ())
        assert report.rows == n
        assert {t.reason for t in report.candidates} == {"low_n"}


def test_what_cannot_be_tried():
    """All scores 1, one class, four days, no outcomes, too few of them and no days each have their reason."""
    rng, n = np.random.default_rng(0), 2_000
    s, y = beta(rng, n), np.arange(n) % 5 == 0
    assert trial(days_of(np.ones(n), rng.random(n) < 0.7), UNKNOWN, IDENTITY).reason == "degenerate"
    assert trial(days_of(np.ones(n), rng.random(n) < 0.7), UNKNOWN, {"kind": "offset", "a": 0.5}).reason == "degenerate"
    assert trial(days_of(s, np.zeros(n)), UNKNOWN, IDENTITY).reason == "one_class"
    assert trial(days_of(s, y, days=4), UNKNOWN, IDENTITY).reason == "few_blocks"
    assert trial(days_of(s, -np.ones(n)), UNKNOWN, IDENTITY).reason == "no_labels"
    assert trial(days_of(s, np.where(rng.random(n) < 0.5, y, -1)), UNKNOWN, IDENTITY).reason == "unidentified"
    assert trial({}, UNKNOWN, IDENTITY).reason == "no_mature_days"
    assert trial({3: {}}, UNKNOWN, IDENTITY).reason == "no_mature_days"


def test_days_without_labels_are_left_out():
    """Days of which hardly any label came are no part of a trial, and the others are tried as if these were not there."""
    rng, n = np.random.default_rng(0), 3_000
    s = beta(rng, n)
    y, lost = drawn(rng, expit(logit(s) - 0.7)), np.arange(n) // 150 >= 17
    days = days_of(s, np.where(lost & (rng.random(n) < 0.9), -1, y))
    report = trial(days, UNKNOWN, IDENTITY)
    assert (report.reason, report.blocks[-1].last_day) == ("accepted", "1970-01-17")
    assert report == trial({d: days[d] for d in range(17)}, UNKNOWN, IDENTITY)


def test_prevented_outcomes():
    """What is blocked has no outcome; the rest says what scores are worth there, so they are repaired."""
    rng = np.random.default_rng(0)
    s, day = beta(rng, 4_000), np.arange(4_000) // 200
    blocked, rules = s > 0.6, tuple(LabelRule("unknown", never=v == "block") for v in VERDICTS)
    y = np.where(blocked, -1, drawn(rng, expit(logit(s) - 0.9)))
    verdicts = np.where(blocked, VERDICTS.index("block"), PASS)
    days = {d: {"all": table_of(s[day == d], y[day == d], verdicts=verdicts[day == d])} for d in range(20)}
    assert mature(days[0]["all"], rules).reason == "prevented"
    report = trial(days, rules, IDENTITY)
    assert (report.reason, report.calibrator["kind"]) == ("accepted", "offset")
    assert report.rows == int((~blocked).sum())


def test_a_fit_that_changes_nothing_is_no_calibration():
    """Where the current calibrator is right, fits differ from it by next to nothing and are not accepted, identity neither."""
    current = {"kind": "temperature", "t": 1.6}
    report = trial(stream(np.random.default_rng(0), 3_000, WORLDS["temperature"]), UNKNOWN, current)
    assert report.reason == "no_improvement"
    identity = next(t for t in report.candidates if t.kind == "identity")
    assert identity.log_loss.low > 0
    report = trial(stream(np.random.default_rng(0), 3_000, WORLDS["calibrated"]), UNKNOWN, IDENTITY)
    assert report.reason == "no_improvement"
    assert "identity" not in {t.kind for t in report.candidates}


def test_back_to_identity():
    """Where the current calibrator is wrong and the model's scores are right, identity takes its place: it is the simplest."""
    report = trial(stream(np.random.default_rng(0), 3_000, WORLDS["calibrated"]), UNKNOWN, {"kind": "temperature", "t": 2.0})
    assert (report.reason, report.calibrator) == ("accepted", IDENTITY)


@pytest.mark.parametrize(("a", "b", "kind"), [(0.0, 0.5, "temperature"), (-1.0, 1.0, "offset"), (-1.0, 0.5, "platt")])
def test_the_simplest_that_is_as_good(a, b, kind):
    """One parameter where one is enough, and two where both are off: neither temperature nor offset is as good there."""
    report = trial(stream(np.random.default_rng(0), 4_000, lambda z: a + b * z), UNKNOWN, IDENTITY)
    assert (report.reason, report.calibrator["kind"]) == ("accepted", kind)
    assert {t.kind for t in report.candidates if not t.reason} >= {"temperature", "offset", "platt", "beta"}


def test_ties_may_cost_a_little():
    """Steps lose some of the ranking by their ties, which is let pass up to .005 and would not be of a map without ties."""
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    report = trial(days_of(expit(logit(p) + 1.0), drawn(rng, p)), UNKNOWN, IDENTITY, ["histogram"])
    assert (report.reason, report.calibrator["kind"]) == ("accepted", "histogram")
    assert -0.005 < next(c.difference for c in report.checks if c.name == "roc_auc") < -0.001


def test_clusters():
    """Ten rows that share an outcome say as much as one, so intervals are those of one; with few clusters nothing is tried."""
    rng = np.random.default_rng(0)
    s = np.repeat(beta(rng, 2_000), 10)
    y = np.repeat(drawn(rng, expit(logit(s[::10]) - 0.3)), 10)
    rows, clustered, few = (
        trial(days_of(s, y, **columns), UNKNOWN, IDENTITY, ["offset"])
        for columns in ({}, {"cluster": 1 + np.arange(20_000) // 10}, {"cluster": 1 + np.arange(20_000) // 2_000})
    )
    each = trial(days_of(s[::10], y[::10]), UNKNOWN, IDENTITY, ["offset"])
    a, b, c = (r.candidates[0].log_loss for r in (rows, clustered, each))
    assert a.value == b.value == pytest.approx(c.value)
    assert a.dispersion > 5 > 1.5 > b.dispersion
    assert b.error == pytest.approx(c.error, rel=0.25)
    assert (few.reason, few.candidates) == ("few_clusters", ())


def test_against_rows():
    """Figures are those of rows that are served by a fit to the other blocks, as scikit-learn measures them."""
    rng, n, kind = np.random.default_rng(3), 3_000, "platt"
    s = beta(rng, n)
    y = drawn(rng, expit(0.7 * logit(s) - 0.5))
    report = trial(days_of(s, y, days=15), UNKNOWN, IDENTITY, [kind])
    served, areas, pairs, block = np.empty(n), [], [], np.arange(n) * BLOCKS // n
    for k in range(BLOCKS):
        mine = block == k
        served[mine] = apply(fit(kind, mature(table_of(s[~mine], y[~mine].astype(np.int8)), UNKNOWN)), s[mine])
        areas.append(roc_auc_score(y[mine], served[mine]))
        pairs.append(y[mine].sum() * (~y[mine]).sum())
    assert [(b.days, b.rows, b.positives) for b in report.blocks] == [(3, 600, int(y[block == k].sum())) for k in range(BLOCKS)]
    assert (report.blocks[0].first_day, report.blocks[-1].last_day) == ("1970-01-01", "1970-01-15")
    assert report.after["log_loss"].value == pytest.approx(log_loss(y, served), abs=1e-4)
    assert report.before["log_loss"].value == pytest.approx(log_loss(y, s), abs=1e-4)
    assert report.after["brier"].value == pytest.approx(brier_score_loss(y, served), abs=1e-4)
    assert report.after["roc_auc"].value == pytest.approx(np.average(areas, weights=pairs), abs=1e-4)
    gap = np.where(y, np.log(s / served), np.log((1 - s) / (1 - served)))
    found = report.candidates[0].log_loss
    assert found.value == pytest.approx(gap.mean(), abs=1e-5)
    assert found.error == pytest.approx(gap.std() / math.sqrt(n), rel=0.03)
    everything = fit(kind, mature(table_of(s, y.astype(np.int8)), UNKNOWN))
    assert [report.calibrator[name] for name in "ab"] == pytest.approx([everything[name] for name in "ab"], rel=1e-9)


def shocked(rng, sd, days=28, rows=900):
    """Return days whose logits are all off by a shock of the day, with an autocorrelation of .5 and 0 on average."""
    shocks = sd * rng.standard_normal(days)
    for d in range(1, days):
        shocks[d] = 0.5 * shocks[d - 1] + math.sqrt(0.75) * shocks[d]
    s = beta(rng, days * rows)
    return days_of(s, drawn(rng, expit(logit(s) + np.repeat(shocks, rows))), days)


def test_days_with_shocks():
    """Where days differ they are what is drawn: what would win by rows is not accepted for what these days had in common."""
    reports = [trial(shocked(np.random.default_rng(run), 0.64), UNKNOWN, IDENTITY) for run in range(RUNS)]
    assert sum(r.reason == "accepted" for r in reports) <= 0.05 * RUNS
    found = [next(t.log_loss for t in r.candidates if t.kind == "offset") for r in reports]
    assert np.median([d.dispersion for d in found]) > 3
    alone = [trial(stream(np.random.default_rng(run), 3_000, WORLDS["offset"]), UNKNOWN, IDENTITY) for run in range(RUNS)]
    assert np.mean([r.candidates[0].log_loss.dispersion for r in alone]) == pytest.approx(1.0, abs=0.15)


def test_weighted_rows():
    """Rows that are looked at with a probability count by its inverse: the same map is found, less surely, on effective rows."""
    rng, n = np.random.default_rng(0), 8_000
    s = beta(rng, n)
    y, prob = drawn(rng, expit(logit(s) - 0.9)), np.where(s > 0.3, 1.0, 0.3)
    seen = np.where(rng.random(n) < prob, y, -1)
    whole, sampled = (
        trial(days_of(s, labels, **columns), UNKNOWN, IDENTITY, ["offset"])
        for labels, columns in ((y, {}), (seen, {"label_prob": prob}))
    )
    assert (whole.reason, sampled.reason) == ("accepted", "accepted")
    assert sampled.calibrator["a"] == pytest.approx(whole.calibrator["a"], abs=0.15)
    assert (seen >= 0).sum() * 0.6 < sampled.rows < (seen >= 0).sum() < whole.rows == n
    a, b = (r.candidates[0].log_loss for r in (whole, sampled))
    assert abs(a.value - b.value) < 3 * b.error
    assert a.error < b.error < 2.5 * a.error


@given(st.lists(st.floats(0.01, 1e4), min_size=5, max_size=60))
def test_blocks(weight):
    """There are always five blocks, contiguous, of a day at least; of equal days they are as equal as whole days can be."""
    found = blocks(np.array(weight))
    assert sorted(set(found.tolist())) == list(range(BLOCKS))
    assert (np.diff(found) >= 0).all()
    sizes = np.bincount(blocks(np.ones(len(weight))))
    assert sizes.max() - sizes.min() <= 1


def test_report():
    """A report is JSON, with every check, every candidate, and metrics with intervals before and after."""
    report = trial(stream(np.random.default_rng(0), 3_000, WORLDS["offset"]), UNKNOWN, IDENTITY)
    body = json.loads(json.dumps(report.to_dict()))
    assert body["reason"] == "accepted"
    assert [c["name"] for c in body["checks"]] == [name for name in CHECKS if name != "slices"]
    assert [t["kind"] for t in body["candidates"]] == list(CANDIDATES)
    assert body["calibrator"] == dict(report.calibrator)
    for name in ("log_loss", "brier", "ece", "offset"):
        assert all(body[side][name]["low"] < body[side][name]["value"] < body[side][name]["high"] for side in ("before", "after"))
    assert body["before"]["offset"]["high"] < -0.4
    assert abs(body["after"]["offset"]["value"]) < 0.1
    assert sum(b["rows"] for b in body["blocks"]) == body["rows"] == 3_000
    assert sum(b["positives"] for b in body["blocks"]) == body["positives"]


def test_lines():
    """For people there is a line for each candidate and check, in words where something was not tried or fails."""
    refused = off_in_one_slice(np.random.default_rng(0))
    said = lines(json.loads(json.dumps(refused.to_dict())))
    assert said[0] == REASONS["slice_worse"]
    assert said[1].startswith("6,000 rows with an outcome, ")
    assert [line.split()[0] for line in said[2 : 2 + len(CANDIDATES)]] == list(CANDIDATES)
    checks = [line.split() for line in said if line.startswith(("  holds", "  fails"))]
    assert [(c[0], c[1]) for c in checks] == [("fails" if c.reason else "holds", c.name) for c in refused.checks]
    assert any("slices of c=b" in line for line in said)
    assert json.loads(said[-1].partition(": ")[2]) == dict(refused.calibrator)
    (confident,) = (line for line in said if "high_confidence_error_share" in line)
    assert confident.endswith(f" ({refused.checks[-1].limit:.5f} claimed)")
    few = lines(trial(stream(np.random.default_rng(0), 60, WORLDS["offset"]), UNKNOWN, IDENTITY).to_dict())
    assert len(few) == 2 + len(CANDIDATES)
    assert all(line.endswith(REASONS["low_n"]) for line in few[2:])
