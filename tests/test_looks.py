"""Evidence between ticks and starts: real detectors on generated days, folded in any order and over restarts."""

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from monitor.core import detectors
from monitor.core.days import Key
from monitor.core.detectors import nulls
from monitor.core.metrics import METRICS
from monitor.core.readings import LabelRule
from monitor.core.reasons import REASONS
from monitor.core.rules import FALSE_ALARMS, SHIPPED, budgeted, detecting
from monitor.core.tables import EMPTY, total
from monitor.looks import Beside, Looks, Promise
from rows import at, table_of

LABELS = (LabelRule("unknown"),) * 6
RULES = tuple(r for r in budgeted(SHIPPED.values(), FALSE_ALARMS) if r.detector and r.role == "live")
MATURE = {r.name for r in RULES if r.basis == "mature"}
FLAGGED = {r.name for r in RULES if METRICS[r.shown].decided}
PROBABILITIES = {r.name for r in RULES if r.detector in detectors.OF_PROBABILITIES}
KEY = Key("m", "v", "all", 0)
THRESHOLD = 0.3
SLICES = ("all", "c=a", "c=b")


def day(rng, n=300, off=0.0, labelled=1.0):
    """Return the tables of a day by slice; the logits of outcomes are `off` those of the scores in the slice c=b."""
    parts = {}
    for name in SLICES[1:]:
        p = rng.beta(1.5, 3, n).clip(0.01, 0.99)
        y = rng.random(n) < 1 / (1 + (1 - p) / p * np.exp(-off * (name == "c=b")))
        parts[name] = table_of(p, np.where(rng.random(n) < labelled, y, -1), THRESHOLD)
    return {"all": total(list(parts.values())), **parts}


@pytest.fixture(scope="module")
def baseline():
    """Return 20 days of a baseline by slice."""
    rng = np.random.default_rng(1)
    days = [day(rng) for _ in range(20)]
    return {name: dict(enumerate(d[name] for d in days)) for name in SLICES}


@pytest.fixture(scope="module")
def days():
    """Return 60 days of which those from 30 to 45 are off in one slice."""
    rng = np.random.default_rng(2)
    return [day(rng, off=1.2 * (30 <= d < 45)) for d in range(60)]


@pytest.fixture(scope="module")
def promise(baseline):
    """Return what the baseline promises."""
    return Promise(nulls(baseline, at(THRESHOLD), LABELS), LABELS)


def begun(promise, digest="a", decides="0.3"):
    """Return looks that have seen nothing yet."""
    looks = Looks(RULES, LABELS)
    looks.expect(digest, promise, decides, 0, 0)
    return looks


def fold(looks, days, first, last, again=()):
    """Let days `first` to `last`, the last one left out, mature and end one after the other."""
    for d in range(first, last):
        looks.see_mature(range(d + 1), [d, *again], days.__getitem__)
        looks.see_ended(d, days[d])
    return looks


def seen(looks, names=None):
    """Return the evidence as numbers, of all rules or of some."""
    return {name: detectors.to_dict(e) for name, e in looks.evidence.items() if names is None or name in names}


def says(looks, days, name):
    """Return the detection of a rule over the last 28 days."""
    window = range(max(0, looks.mature - 27), looks.mature + 1)
    found = looks.detections(KEY, window, lambda ds, part: total([days[d].get(part, EMPTY) for d in ds]))
    return next(d for d in found if d.rule == name)


def test_every_rule_looks_once_at_every_day(promise, days):
    """Evidence of each rule is that of its detector folded over the days, whatever else is looked at between."""
    looks = fold(begun(promise), days, 0, 12)
    for rule in RULES:
        evidence = None
        for d in range(12):
            evidence = detectors.look(rule.detector, evidence, d, days[d], promise.nulls, LABELS, rule.fires[1].high)
        assert detectors.to_dict(looks.evidence[rule.name]) == detectors.to_dict(evidence)
    assert (looks.mature, looks.ended, looks.volume) == (11, 11, dict.fromkeys(range(12), 600))


def test_two_rules_of_one_detector_have_evidence_of_their_own(promise, days):
    """A second rule of a detector begins anew by itself, and is the first one's equal until then."""
    (rule,) = [r for r in RULES if r.name == "recall"]
    looks = Looks((rule, replace(rule, name="mine")), LABELS)
    looks.expect("a", promise, "0.3", 0, 0)
    fold(looks, days, 0, 5)
    assert seen(looks)["mine"] == seen(looks)["recall"]
    looks.restart("mine")
    fold(looks, days, 5, 8)
    assert [looks.evidence[name].since for name in ("recall", "mine")] == [0, 5]


def test_the_effect_is_that_of_the_slice_with_the_evidence(promise, days):
    """While evidence suffices the effect is of the slice it comes from; before, it is that of `all`."""
    before = says(fold(begun(promise), days, 0, 30), days, "calibration_drift")
    assert (before.effect.key.slice, before.evidence.value < before.limit) == ("all", True)
    assert abs(before.effect.value) < 0.15
    after = says(fold(begun(promise), days, 0, 45), days, "calibration_drift")
    assert after.evidence.value > after.limit
    assert after.slices[0][0] == after.effect.key.slice == "c=b"
    whole = detectors.effect("calibration", total([days[d]["all"] for d in range(17, 45)]), promise.nulls, LABELS)
    assert after.effect.value > whole.value + 0.1


def test_evidence_starts_anew_after_an_alert_resolved(promise, days):
    """After a restart only later days count, recounts of earlier ones included, and other rules go on."""
    looks = fold(begun(promise), days, 0, 46)
    others = seen(looks, MATURE - {"calibration_drift"})
    looks.restart("calibration_drift")
    looks.restart("score_drift")
    assert says(looks, days, "calibration_drift").evidence.reason == "no_mature_days"
    assert seen(looks, MATURE - {"calibration_drift"}) == others
    fold(looks, days, 46, 50, again=[40])
    fresh = fold(begun(promise), days, 0, 50)
    for name in ("calibration_drift", "score_drift"):
        assert (looks.evidence[name].since, looks.evidence[name].looks) == (46, 4)
    rest = {r.name for r in RULES} - {"calibration_drift", "score_drift"}
    assert seen(looks, rest) == seen(fresh, rest)
    assert says(looks, days, "calibration_drift").evidence.value < says(fresh, days, "calibration_drift").evidence.value


@pytest.mark.parametrize("changed", [57, 30, 5])
def test_a_day_that_is_counted_again(promise, days, changed):
    """From the next new day on evidence is as if the day had always been so, whether it is remembered before it or not."""
    other = [*days[:changed], day(np.random.default_rng(3), off=-0.5), *days[changed + 1 :]]
    looks = fold(begun(promise), days, 0, 59)
    before = seen(looks)
    looks.see_mature(range(59), [changed], other.__getitem__)
    assert seen(looks) == before
    looks.see_mature(range(60), [59], other.__getitem__)
    assert (
        seen(looks, MATURE) == seen(fold(begun(promise), other, 0, 60), MATURE) != seen(fold(begun(promise), days, 0, 60), MATURE)
    )
    assert looks.evidence["score_drift"].looks == 59  # the scores of a day are looked at once


@pytest.mark.parametrize("changed", [None, 20])
def test_after_a_start(promise, days, changed):
    """Evidence goes on over a start as without one, and a day counted again before it is not forgotten."""
    other = days if changed is None else [*days[:changed], days[40], *days[changed + 1 :]]
    looks = fold(begun(promise), days, 0, 25)
    looks.dump()
    assert not looks.unsaved
    looks.see_mature(range(25), [] if changed is None else [changed], other.__getitem__)
    assert looks.unsaved is (changed is not None)
    loaded = Looks(RULES, LABELS)
    loaded.load(looks.dump())
    loaded.expect("a", promise, "0.3", 0, 25)
    assert seen(loaded) == seen(looks)
    assert msgspec.msgpack.decode(loaded.dump()) == msgspec.msgpack.decode(looks.dump())
    assert seen(fold(loaded, other, 25, 32)) == seen(fold(looks, other, 25, 32))
    assert seen(loaded, MATURE) == seen(fold(begun(promise), other, 0, 32), MATURE)


def test_how_far_back_a_start_goes(promise, days):
    """After a start no more than the last 60 days are looked at again, with the same evidence, for a day of the last 40."""
    looks = fold(begun(promise), [*days, *days], 0, 105)
    loaded = Looks(RULES, LABELS)
    loaded.load(looks.dump())
    loaded.expect("a", promise, "0.3", 0, 105)
    looked = []

    def again(d):
        looked.append(d)
        return [*days, *days][d]

    loaded.see_mature(range(106), [66, 105], again)
    assert 45 < looked[0] <= 66
    assert seen(loaded, MATURE) == seen(fold(looks, [*days, *days], 105, 106, again=[66]), MATURE)
    assert msgspec.msgpack.decode(loaded.dump())["history"] == msgspec.msgpack.decode(looks.dump())["history"]


def test_another_threshold(baseline, promise, days):
    """Only detectors of what is flagged begin anew, with the first whole day under it, also when earlier days are recounted."""
    looks = fold(begun(promise), days, 0, 10)
    before = seen(looks)
    changed = Promise(nulls(baseline, at(0.4), LABELS), LABELS)
    looks.expect("a", changed, "0.4", 0, 12)
    assert seen(looks) == {name: e for name, e in before.items() if name not in FLAGGED}
    fold(looks, days, 10, 16, again=[4])
    assert {name: looks.evidence[name].since for name in sorted(looks.evidence)} == {
        r.name: 13 if r.name in FLAGGED else 0 for r in sorted(RULES, key=lambda r: r.name)
    }
    for rule in RULES:
        assert min(looks.days_of(rule, range(16))) == (13 if rule.name in FLAGGED else 0)
    looks.expect("a", changed, "0.4", 0, 17)
    assert looks.evidence["recall"].since == 13


def test_other_scores_are_served(baseline, promise, days):
    """Detectors that read probabilities begin with the first whole day of a calibrator, as they would from the start."""
    served = Promise(nulls(baseline, replace(at(THRESHOLD), calibrator={"kind": "offset", "a": 0.2}), LABELS), LABELS)
    looks = fold(begun(promise), days, 0, 10)
    before = seen(looks)
    looks.expect("a", served, "0.3", 0, 12, 13)
    assert seen(looks) == {name: e for name, e in before.items() if name not in PROBABILITIES}
    assert says(looks, days, "calibration_drift").evidence.reason == "no_days_since"
    assert says(looks, days, "calibration_drift").effect.reason == "no_days_since"
    looks.restart("calibration_drift")
    loaded = Looks(RULES, LABELS)
    loaded.load(looks.dump())
    loaded.expect("a", served, "0.3", 0, 12, 13)
    fresh = Looks(RULES, LABELS)
    fresh.expect("a", served, "0.3", 0, 0, 13)
    for each, first in ((looks, 10), (loaded, 10), (fresh, 0)):
        fold(each, days, first, 16, again=[4])
        assert {r.name: each.evidence[r.name].since for r in RULES} == {r.name: 13 * (r.name in PROBABILITIES) for r in RULES}
        assert [min(each.days_of(r, range(16))) for r in RULES] == [13 * (r.name in PROBABILITIES) for r in RULES]
    assert seen(looks) == seen(loaded) == seen(fresh)


def test_another_baseline(baseline, promise, days):
    """All mature days after it are looked at again, with what it promises; scores of days that ended are not kept for that."""
    looks = fold(begun(promise), days, 0, 20)
    worse = Promise(nulls({"all": baseline["all"]}, at(THRESHOLD), LABELS), LABELS)
    looks.expect("b", worse, "0.3", 4, 20)
    assert (looks.evidence, looks.unsaved) == ({}, True)
    fold(looks, days, 20, 22)
    fresh = Looks(RULES, LABELS)
    fresh.expect("b", worse, "0.3", 4, 0)
    fold(fresh, days, 0, 22)
    assert seen(looks, MATURE) == seen(fresh, MATURE)
    assert {looks.evidence[name].since for name in MATURE} == {4}
    assert looks.evidence["score_drift"].since == 20


def test_days_that_were_learnt_from(baseline, days):
    """When a detector has learnt how days differ it looks at all mature days at once, as it would from the start."""
    few = {name: dict(itertools.islice(of.items(), 10)) for name, of in baseline.items()}
    looks = Looks(RULES, LABELS)
    for d in range(35):
        live = {i: days[i]["all"] for i in range(d + 1)}
        learnt = Promise(nulls(few, at(THRESHOLD), LABELS, live=live), LABELS)
        looks.expect("a", learnt, "0.3", 0, d)
        assert says(looks, days, "recall").evidence.reason == ("learning" if d < 27 else "no_mature_days" if d == 27 else "")
        fold(looks, days, d, d + 1)
    assert seen(looks, MATURE) == seen(fold(begun(learnt), days, 0, 35), MATURE)
    assert looks.evidence["score_drift"].since == 27


def test_a_day_without_its_labels(promise, days):
    """A day with far fewer labels than usual waits with a reason, is no part of the effect, and counts once they came."""
    bare = [*days[:50], day(np.random.default_rng(4), labelled=0.5), *days[51:]]
    looks = fold(begun(promise), bare, 0, 52)
    (calibration,) = [r for r in RULES if r.name == "calibration_drift"]
    assert looks.skipped == {50: "coverage"}
    assert "coverage" in REASONS
    assert looks.days_of(calibration, range(48, 52)) == [48, 49, 51]
    assert (looks.evidence["recall"].looks, looks.evidence["score_drift"].looks) == (51, 52)
    assert seen(looks, MATURE) == seen(fold(begun(promise), bare, 0, 52), MATURE)
    # Another day, as old as may be, is counted again: the day is compared with as many days as at first.
    looks = fold(begun(promise), [*bare[:20], bare[50], *bare[21:]], 0, 59)
    assert looks.skipped == {20: "coverage", 50: "coverage"}
    fold(looks, [*bare[:20], bare[50], *bare[21:]], 59, 60, again=[20])
    assert looks.skipped == {20: "coverage", 50: "coverage"}
    fold(looks, [*days, days[0]], 60, 61, again=[20, 50])
    assert looks.skipped == {}
    assert seen(looks, MATURE) == seen(fold(begun(promise), [*days, days[0]], 0, 61), MATURE)


def test_little_traffic(promise, days):
    """Of the first two days that ended the later one says what part of the traffic a version has, which lowers its evidence."""
    looks = fold(begun(promise), days, 0, 1)
    looks.weigh(600)
    full = says(looks, days, "recall").evidence.value
    looks.weigh(600 * 20)
    assert says(looks, days, "recall").evidence.reason == "low_traffic"
    looks.weigh(2_400)
    assert says(looks, days, "recall").evidence.value == pytest.approx(full + np.log(0.25))
    fold(looks, days, 1, 2)
    looks.weigh(1_200)
    fold(looks, days, 2, 3)
    looks.weigh(600)
    assert looks.weight == 0.5
    looks.expect("b", promise, "0.3", 0, 3)
    looks.weigh(1_800)
    assert looks.weight == pytest.approx(1 / 3)


def test_a_canary_looks_once_at_a_day(days):
    """A contrast that never can be looked at brings no other look at days before, which another live version does."""
    looked = []

    def live(basis, d):
        looked.append(d)
        return {name: table_of([0.2, 0.4, 0.6], [0, 0, 1]) for name in SLICES}

    rules = tuple(detecting(name, name) for name in ("recall", "calibration"))
    looks = Looks(rules, LABELS, "canary")
    looks.expect("v1", Beside(live, LABELS), "", 0, 0)
    fold(looks, days, 0, 4)
    assert looked == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {name: e.looks for name, e in looks.evidence.items()} == {"calibration": 4}
    looks.expect("v2", Beside(live, LABELS), "", 0, 4)
    fold(looks, days, 4, 5)
    assert looked[8:] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert looks.evidence["calibration"].looks == 5
    assert says(looks, days, "canary").evidence.reason == ""


def ended(*rows):
    """Return looks after days with so many rows; of a day without any there is nothing."""
    looks = Looks(RULES, LABELS)
    for d, n in enumerate(rows):
        looks.see_ended(d, {"all": table_of(np.full(n, 0.5))} if n else {})
    return looks


def lost(looks):
    """Return the volume ratio of the last day, or why there is none."""
    (volume, _) = looks.ratios(KEY, looks.volume)
    return volume.reason or volume.value


WEEK = (90, 100, 110, 100, 90, 40, 30)


@pytest.mark.parametrize(
    ("rows", "ratio"),
    [
        (WEEK, "few_days"),
        ((*WEEK, 90), 3.0),
        ((*WEEK * 4, *WEEK[:6]), 40 / 30),  # a weekend is no loss
        ((*WEEK * 4, *WEEK), 1.0),
        ((*WEEK * 4, 12), 0.4),
        ((*WEEK * 4, 0), 0.0),
        ((*WEEK * 4, *(12,) * 10), 0.4),  # a loss goes on to be one
        ((*WEEK * 2, 0, 100), 100 / 30),  # the day after a loss is as usual
        ((*WEEK * 4, 0, 100), 100 / 30),
        ((*WEEK * 4, *(0,) * 7, 90), 3.0),
        ((*(5, 5, 5, 5, 5, 0, 0) * 4, 5), "no_events"),  # where nothing is usual nothing is lost
    ],
)
def test_volume_ratio(rows, ratio):
    """Rows of the last day over those of the weekday that usually has the fewest, which one lost day or week does not change."""
    assert lost(ended(*rows)) == (ratio if isinstance(ratio, str) else pytest.approx(ratio))


def test_coverage_ratio(promise, days):
    """Coverage of the newest mature day over the median of those before, with the rows it is of."""
    rng = np.random.default_rng(5)
    bare = [day(rng, n, labelled=share) for n, share in [(300, 0.8)] * 7 + [(20, 0.3), (300, 0.8)]]
    looks, found = begun(promise), []
    for d in range(9):
        fold(looks, bare, d, d + 1)
        found.append(looks.ratios(KEY, {})[1])
    assert [e.reason for e in found] == ["few_days"] * 7 + ["", ""]
    assert [e.n for e in found] == [600] * 7 + [40, 600]
    assert found[7].value == pytest.approx(0.3 / 0.8, abs=0.15)
    assert found[8].value == pytest.approx(1.0, abs=0.1)


def test_a_rule_that_has_another_detector_after_a_start(promise, days):
    """Evidence of another detector, which has another grid, is not taken for that of a rule of the same name."""
    (mine,) = [replace(r, name="mine") for r in RULES if r.name == "recall"]
    other = next(replace(r, name="mine") for r in RULES if r.detector == "calibration")
    looks = Looks((mine,), LABELS)
    looks.expect("a", promise, "0.3", 0, 0)
    fold(looks, days, 0, 5)
    loaded = Looks((other,), LABELS)
    loaded.load(looks.dump())
    loaded.expect("a", promise, "0.3", 0, 5)
    fresh = Looks((other,), LABELS)
    fresh.expect("a", promise, "0.3", 0, 0)
    assert seen(fold(loaded, days, 5, 7)) == seen(fold(fresh, days, 0, 7))


@pytest.mark.parametrize("dumped", [b"", b"\xc1", msgspec.msgpack.encode({}), msgspec.msgpack.encode([1])])
def test_what_is_no_evidence_is_refused(dumped):
    """Bytes that nobody dumped raise a ValueError, and nothing else."""
    with pytest.raises(ValueError, match="cannot be read"):
        Looks(RULES, LABELS).load(dumped)
