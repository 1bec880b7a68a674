"""The canary beside the live version: what is broken is found within days, what days bring to both is not."""

import numpy as np
import pytest
from scipy import stats

from monitor.core.canary import CONTRASTS, effect, gains, look
from monitor.core.detectors import DETECTORS, EFFECTS, log_evidence, log_threshold, shares
from monitor.core.readings import LabelRule
from monitor.core.reasons import REASONS

RULES = (LabelRule("negative"),) * 6
LOG_A = log_threshold(len(CONTRASTS), 1.0)
CANARY, LIVE = 1_000, 19_000


def expit(z):
    return 1 / (1 + np.exp(-z))


def logits(name):
    """Return the true logits of a world of scores."""
    rng = np.random.default_rng(99)
    if name == "gauss":
        return np.log(0.04 / 0.96) - 2 + 2 * (rng.standard_normal(20_000) + 2 * (rng.random(20_000) < 0.04))
    p = np.clip(
        {"unif": rng.random(20_000), "fraud": rng.beta(0.3, 9, 20_000), "conf": rng.beta(6, 1, 20_000)}[name], 1e-6, 1 - 1e-6
    )
    return np.log(p / (1 - p))


def day(table, rng, z, n, shift=0.0, slope=1.0, moved=0.0, shock=0.0):
    """Return a day: `moved` is added to the logits that come, `shock` to those of outcomes, `shift` and `slope` spoil scores."""
    true = z[rng.integers(0, len(z), n)] + moved
    y = rng.random(n) < expit(true + shock)
    return table(expit(slope * true + shift), y.astype(np.int8), threshold=0.3)


def run(table, name, seed, days, sizes=(CANARY, LIVE), sd=0.2, slope=1.0, **broken):
    """Return evidence by contrast after each of these days, with shocks that both versions share."""
    rng, z, evidence, found = np.random.default_rng(seed), logits(name), {}, []
    for d in range(days):
        shared = {"moved": rng.normal(0, sd), "shock": rng.normal(0, sd), "slope": slope}
        canary, live = day(table, rng, z, sizes[0], **shared, **broken), day(table, rng, z, sizes[1], **shared)
        evidence = {c: look(c, evidence.get(c), d, {"all": canary}, {"all": live}, RULES, LOG_A) for c in CONTRASTS}
        found.append({c: log_evidence(e) for c, e in evidence.items()})
    return found, canary, live


@pytest.mark.parametrize("world", ["unif", "fraud", "conf", "gauss"])
@pytest.mark.parametrize("sizes", [(CANARY, LIVE), (LIVE, CANARY)])
def test_broken(table, world, sizes):
    """Logits that are 1 too high in 5 % of 20,000 rows a day are found by scores within 2 days and by outcomes within 5."""
    found, canary, live = run(table, world, 1, 5, sizes, shift=1.0)
    assert found[1]["score_drift"] >= LOG_A
    assert found[4]["calibration"] >= LOG_A
    assert effect("score_drift", canary, live, RULES).value >= EFFECTS["score_drift"][0]
    assert effect("calibration", canary, live, RULES).high <= -EFFECTS["calibration"][0]


@pytest.mark.parametrize("world", ["unif", "fraud", "conf", "gauss"])
def test_alike(table, world):
    """Versions that are alike do not alarm in 30 days with shocks of .64, honest or not; even effects of a day are small."""
    for slope in (1.0, 0.6):
        found, canary, live = run(table, world, 2, 30, sd=0.64, slope=slope)
        assert max(max(f.values()) for f in found) < LOG_A
        assert abs(effect("calibration", canary, live, RULES).value) < 2 * EFFECTS["calibration"][0]


@pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 40), (30, 4)])
def test_gains_are_evidence(n, m):
    """The e-value of every alternative has a mean of at most 1 when chance decides which rows are the canary's."""
    rng = np.random.default_rng(3)
    tilts = np.array([[[0.0, t, 2 * t], [0.0, -t, t]] for t in (-1.5, -0.3, 0.3, 1.5)])
    for both in ([[4, 3, 3], [2, 6, 2]], [[30, 10, 3], [1, 0, 42]]):
        rest = [np.repeat(np.arange(3), np.array(k) * (n + m) // sum(k) + 1)[: n + m] for k in both]
        draws = []
        for _ in range(4_000):
            mixed = [rng.permutation(r) for r in rest]
            rows = [[np.bincount(r[part], minlength=3) for r in mixed] for part in (slice(n), slice(n, None))]
            draws.append(np.exp(gains((np.array(rows, float), tilts, np.zeros_like(tilts)))))
        mean, error = np.mean(draws, axis=0), np.std(draws, axis=0) / np.sqrt(len(draws))
        assert (mean <= 1 + 3 * error).all()


def test_effect_of_shares(table):
    """The effect of a share is the logarithm of the odds ratio with Woolf's standard error."""
    rng, z = np.random.default_rng(4), logits("unif")
    canary, live = day(table, rng, z, 2_000, shift=0.5), day(table, rng, z, 9_000)
    cells = [[t.cells[column][t.cells["verdict"] == 1].sum() for column in ("n_neg", "n_pos")] for t in (canary, live)]
    (b, a), (d, c) = cells
    half = stats.norm.ppf(0.975) * np.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
    found = effect("precision", canary, live, RULES)
    assert found[:4] == pytest.approx((np.log(a * d / (b * c)), found.value - half, found.value + half, a + b))


def test_effect_of_calibration(table):
    """At equal scores outcomes of a canary whose logits are .5 too high have odds lower by .5, with an interval that holds it."""
    rng, z, held = np.random.default_rng(5), logits("unif"), 0
    for _ in range(40):
        found = effect("calibration", day(table, rng, z, 3_000, shift=0.5), day(table, rng, z, 20_000), RULES)
        held += found.low <= -0.5 <= found.high
    assert held >= 35


def test_slices_are_named(table):
    """Evidence of one slice alone is found, and named."""
    rng, z, evidence = np.random.default_rng(6), logits("unif"), None
    names = ["all", *(f"country={c}" for c in "ABCDE")]
    for d in range(6):
        canary = {n: day(table, rng, z, 300, shift=1.0 if n == "country=C" else 0.0) for n in names[1:]}
        live = {n: day(table, rng, z, 3_000) for n in names[1:]}
        canary["all"], live["all"] = (sum(list(of.values())[1:], next(iter(of.values()))) for of in (canary, live))
        evidence = look("calibration", evidence, d, canary, live, RULES, LOG_A)
    assert log_evidence(evidence) >= LOG_A
    assert "country=C" in dict(shares(evidence))
    assert not {"country=A", "country=B", "country=D", "country=E"} & dict(shares(evidence)).keys()
    assert (evidence.looks, evidence.rows) == (6, 6 * 1_500)


def test_what_cannot_be_compared(table):
    """Without rows, decisions, positives or independent rows there is no look, no effect, and a reason."""
    rng, z = np.random.default_rng(7), logits("unif")
    live = day(table, rng, z, 1_000)
    score, y = rng.random(500), (rng.random(500) < 0.5).astype(np.int8)
    for name, canary, reason in (
        ("score_drift", table([]), "no_events"),
        ("calibration", table([], []), "no_mature_days"),
        ("recall", table(score, y), "no_threshold"),
        ("recall", table(score, y * 0, threshold=0.5), "low_n"),
        ("calibration", table(score, y, cluster=np.arange(500) // 2 + 1), "clustered"),
        ("calibration", table(score, y, label_prob=np.full(500, 0.5)), "weighted"),
    ):
        assert look(name, None, 0, {"all": canary}, {"all": live}, RULES, LOG_A) is None
        assert effect(name, canary, live, RULES) == reason
        assert reason in REASONS
    before = look("recall", None, 0, {"all": live}, {"all": live}, RULES, LOG_A)
    assert look("recall", before, 1, {"all": table([])}, {"all": live}, RULES, LOG_A) is before
    assert look("recall", before, 1, {"x": live}, {"all": live}, RULES, LOG_A) is before


def test_new_slices_join(table):
    """A slice that comes later joins, and one that is absent keeps its state."""
    rng, z = np.random.default_rng(8), logits("unif")
    a, b = (day(table, rng, z, 500) for _ in range(2))
    first = look("fpr", None, 0, {"all": a}, {"all": b}, RULES, LOG_A)
    second = look("fpr", first, 1, {"all": a, "x": a}, {"all": b, "x": b}, RULES, LOG_A)
    third = look("fpr", second, 2, {"x": b}, {"x": a}, RULES, LOG_A)
    np.testing.assert_array_equal(second.log["x"], first.log["all"])
    np.testing.assert_array_equal(third.log["all"], second.log["all"])
    assert (third.since, third.day, third.looks, third.rows) == (0, 2, 3, 1_000)


def test_contrasts_are_detectors():
    """Each contrast is a detector with an effect whose limits are known."""
    assert CONTRASTS.keys() <= DETECTORS.keys() & EFFECTS.keys()
