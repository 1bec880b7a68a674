"""Calibrators against scikit-learn, the shared vectors and simulation."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from monitor.core.calibrators import CANDIDATES, apply_classes, check_classes, choose_classes, fit, fit_classes
from monitor.core.policy import IDENTITY, apply, check, expit, from_json, logit, policy
from monitor.core.readings import LabelRule, known, mature
from monitor.core.reasons import REASONS
from monitor.core.tables import EDGES
from rows import VECTORS, table_of

NEAR_ENDS = (0.0, 5e-324, 1e-300, 1e-300 * (1 + 1e-16), 1e-17, 0.5, 1 - 1e-16, 1.0)
FINE = np.unique(np.concatenate((np.linspace(0, 1, 10_001), NEAR_ENDS, EDGES)))


def _world(rng, n, a=0.0, b=1.0):
    """Return scores of Beta(.5, 3) and outcomes of which logit P = a + b logit(score)."""
    score = rng.beta(0.5, 3.0, n)
    return score, (rng.random(n) < expit(a + b * logit(score))).astype(np.int8)


def _vector(name):
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS} is not here: the shared test vectors are not part of the repository")
    return next(v for v in json.loads(VECTORS.read_text())["vectors"] if v["id"] == name)


def test_temperature_and_platt_of_the_shared_vector(table):
    """Temperature, slope and intercept of miscal60 are the published ones; sixty rows are too few to be tried."""
    v = _vector("miscal60")
    r = known(table(v["inputs"]["scores"], v["inputs"]["labels"]))
    wanted = v["expected"]
    assert CANDIDATES["temperature"].fit(r)["t"] == pytest.approx(wanted["temperature"], rel=1e-3)
    found = CANDIDATES["platt"].fit(r)
    line = wanted["platt_on_logit"]
    assert (found["a"], found["b"]) == pytest.approx((line["intercept"], line["slope"]), abs=1e-3)
    assert {fit(kind, r) for kind in CANDIDATES} == {"low_n"}


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (-0.7, 1.0), (0.0, 1 / 1.6), (0.4, 1.5)])
def test_logits_are_the_most_likely_ones(table, a, b):
    """Temperature, offset and Platt are scikit-learn's regressions without a penalty on the logits of the cells."""
    r = known(table(*_world(np.random.default_rng(2), 4_000, a, b)))
    x, y = np.tile(logit(r.score), 2)[:, None], np.repeat([1, 0], len(r.n))
    weight = np.append(r.pos, r.neg)
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1_000).fit(x, y, weight)
    platt = fit("platt", r)
    assert (platt["a"], platt["b"]) == pytest.approx((line.intercept_[0], line.coef_[0, 0]), abs=1e-4)
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1_000, fit_intercept=False).fit(x, y, weight)
    assert fit("temperature", r)["t"] == pytest.approx(1 / line.coef_[0, 0], abs=1e-4)
    served = apply(fit("offset", r), r.score)
    assert served @ r.n == pytest.approx(r.pos.sum(), abs=1e-2)


@pytest.mark.parametrize(("a", "b", "out"), [(1, 1, ""), (0.6, 1.4, ""), (-0.3, 1.5, "a"), (1.5, -0.3, "b")])
def test_beta_is_the_most_likely_one_of_those_that_rise(table, a, b, out):
    """Beta calibration finds what a search bounded by 0 finds, one parameter at 0 where the truth is below it."""
    rng = np.random.default_rng(7)
    score = rng.beta(2, 2, 4_000)
    r = known(table(score, (rng.random(4_000) < expit(a * np.log(score) - b * np.log1p(-score))).astype(np.int8)))
    z = np.stack((np.log(r.score), -np.log1p(-r.score), np.ones(len(r.n))))

    def lost(w):
        return r.n @ np.logaddexp(0, w @ z) - r.pos @ (w @ z)

    search = minimize(lost, [1, 1, 0], bounds=[(0, None), (0, None), (None, None)], tol=1e-12)
    found = fit("beta", r)
    assert [name for name in "ab" if found[name] == 0] == list(out)
    assert lost(np.array([found[name] for name in "abc"])) <= search.fun + 1e-4


def test_isotonic_is_pool_adjacent_violators(table):
    """Of very many rows isotonic regression serves what scikit-learn's does on the bins of the grid, up to the row added."""
    r = known(table(*_world(np.random.default_rng(3), 4_000)))
    many = replace(r, n=r.n * 1e7, neg=r.neg * 1e7, pos=r.pos * 1e7)
    bins = np.unique(r.bin)
    n, k = (np.bincount(r.bin, x)[bins] for x in (r.n, r.pos))
    want = IsotonicRegression().fit(bins, k / n, n).predict(bins)
    assert apply(fit("isotonic", many), r.score) == pytest.approx(want[np.searchsorted(bins, r.bin)], abs=1e-6)
    served = np.array(fit("isotonic", r)["values"])
    assert 0 < served[0] < served[-1] < 1


def test_a_row_alone_at_the_end_does_not_set_the_rest(table):
    """A single negative below thousands of rows of which few are positive is served about what these are, not a quarter."""
    score, y = np.repeat([0.05, 0.1, 0.9], [1, 4_000, 500]), np.repeat([0, 1, 0, 1, 0], [1, 40, 3_960, 400, 100])
    assert apply(fit("isotonic", known(table(score, y))), np.array([0.05, 0.1])) == pytest.approx(0.01, abs=1e-3)


def test_histogram_has_bins_of_equal_mass(table):
    """Ten bins of about equal mass serve their shares; where a share falls there is no histogram, equal ones are one step."""
    score = np.linspace(0.005, 0.995, 5_000)
    rises = (np.arange(5_000) % 100 < np.repeat(np.arange(5, 100, 10), 500)).astype(np.int8)
    found = fit("histogram", known(table(score, rises)))
    assert found["edges"] == pytest.approx(np.arange(10) / 10, abs=0.01)
    assert found["values"] == pytest.approx(np.arange(5, 100, 10) / 100, abs=0.01)
    assert fit("histogram", known(table(score, np.where(score < 0.2, 1 - rises, rises).astype(np.int8)))) == "not_monotone"
    ten, rows = np.repeat(np.arange(10) / 10 + 0.05, 500), np.tile(np.arange(500), 10)
    level = (rows < 500 * np.maximum(ten, 0.5)).astype(np.int8)
    assert fit("histogram", known(table(ten, level)))["edges"] == pytest.approx([0, 0.55, 0.65, 0.75, 0.85, 0.95], abs=0.01)


@pytest.mark.parametrize("kind", CANDIDATES)
def test_why_there_is_none(table, kind):
    """Too few rows or outcomes of a class, one class, scores at the ends, classes apart and falling scores are reasons."""
    needs, rng = CANDIDATES[kind], np.random.default_rng(4)

    def outcome(neg, pos, low=0.1, high=0.9, p=None):
        score = rng.uniform(low, high, neg + pos) if p is None else p
        return fit(kind, known(table(score, np.repeat([0, 1], [neg, pos]))))

    most = needs.rows - needs.positives
    steps = np.repeat(np.arange(10), 1_200) / 10 + 0.05
    assert not isinstance(fit(kind, known(table(steps, (np.arange(12_000) % 1_200 < 1_200 * steps).astype(np.int8)))), str)
    assert outcome(most - 1, needs.positives) == "low_n"
    assert outcome(most + 1, needs.positives - 1) == "few_positives"
    assert outcome(needs.positives - 1, most + 1) == "few_negatives"
    assert outcome(0, 5_000) == outcome(5_000, 0) == "one_class"
    assert outcome(1_500, 3_500, p=np.ones(5_000)) == "degenerate"
    falls = outcome(2_500, 2_500, p=np.concatenate((rng.uniform(0.4, 0.9, 2_500), rng.uniform(0.1, 0.6, 2_500))))
    apart = outcome(2_500, 2_500, p=np.concatenate((rng.uniform(0.1, 0.4, 2_500), rng.uniform(0.6, 0.9, 2_500))))
    if kind != "offset":
        assert falls == "not_monotone"
    if kind in ("temperature", "platt", "beta"):
        assert apart == "separable"
    assert {"low_n", "few_positives", "few_negatives", "one_class", "degenerate", "not_monotone", "separable"} <= REASONS.keys()


def test_weighted_rows(table):
    """Rows that stand for ten give the map of ten times the rows, and count as the rows that they are."""
    rng = np.random.default_rng(5)
    score, y = _world(rng, 6_000, -0.7)
    ten = mature(table(score, y, label_prob=np.full(6_000, 0.1)), (LabelRule("unknown"),) * 6)
    assert ten.spread is not None
    assert ten.n.sum() > 50_000
    plain = known(table(score, y))
    for kind in CANDIDATES:
        one, other = fit(kind, plain), fit(kind, ten)
        if isinstance(one, str):
            assert other == one
        else:
            assert apply(other, FINE) == pytest.approx(apply(one, FINE), abs=1e-4)
    few = mature(table(score[:299], y[:299], label_prob=np.full(299, 0.1)), (LabelRule("unknown"),) * 6)
    assert fit("offset", few) == "low_n"
    one_in_ten = mature(table(score[:900], np.arange(900) % 31 == 0, label_prob=np.full(900, 0.1)), (LabelRule("unknown"),) * 6)
    assert fit("offset", one_in_ten) == "few_positives"
    assert fit("offset", replace(few, reason="unidentified")) == "unidentified"


ENDS = ((0.0, 1e-300, 0.5, 1 - 1e-16, 1.0), (1_822, 162, 2_912, 2_781, 2_224), (495, 86, 1_583, 2_357, 2_158))
TINY_OR_NOT = ((1e-9, 0.3, 0.5, 0.6, 0.97), (2_371, 2_636, 1_935, 1_301, 292), (0, 345, 506, 1_026, 233))
OFTEN_ONE = ((0.01, 0.5, 0.6, 1.0), (955, 2_178, 606, 840), (0, 54, 39, 361))


@pytest.mark.parametrize(
    ("kind", "rows"), [("temperature", ENDS), ("platt", ENDS), ("beta", ENDS), ("platt", OFTEN_ONE), ("beta", TINY_OR_NOT)]
)
def test_certain_scores(table, kind, rows):
    """Where many scores are at or near the ends, and some of these wrong, the fit is as likely as what a general search finds."""
    score, n, pos = rows
    r = known(table(np.repeat(score, n), np.concatenate([np.repeat([1, 0], [k, m - k]) for m, k in zip(n, pos, strict=True)])))
    towards, against = (np.log(np.clip(q, 2**-52, 1.0)) for q in (r.score, 1 - r.score))
    columns = {"temperature": [towards - against], "platt": [np.ones(len(r.n)), towards - against]}
    x = np.array(columns.get(kind, [towards, -against, np.ones(len(r.n))]))

    def lost(v):
        return r.n @ np.logaddexp(0, v @ x) - r.pos @ (v @ x)

    bounds = [(0, None), (0, None), (None, None)] if kind == "beta" else None
    search = minimize(lost, np.full(len(x), 0.1), bounds=bounds, tol=1e-12)
    found = dict(fit(kind, r))
    del found["kind"]
    v = np.array([1 / found["t"]] if kind == "temperature" else [found[name] for name in sorted(found)])
    assert lost(v) <= search.fun + 1e-3


SCORES = st.lists(st.sampled_from(NEAR_ENDS) | st.floats(0, 1), min_size=2, max_size=12)


@given(SCORES, st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 4_000)), min_size=2, max_size=12))
def test_every_fit_can_be_served(scores, outcomes):
    """Whatever is fitted to scores at and near the ends is finite, in [0, 1], rising, and the same after a policy's JSON."""
    pairs = list(zip(scores, outcomes, strict=False))
    score = np.repeat([s for s, _ in pairs], [neg + pos for _, (neg, pos) in pairs])
    y = np.concatenate([np.repeat([0, 1], both) for _, both in pairs]).astype(np.int8)
    if not len(score):
        return
    r = known(table_of(score, y))
    for kind in CANDIDATES:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = fit(kind, r)
        if isinstance(found, str):
            assert found in REASONS
            continue
        served = apply(found, FINE)
        assert np.isfinite(served).all()
        assert served.min() >= 0
        assert served.max() <= 1
        assert (np.diff(served) >= -1e-12).all()
        assert not check(found)
        again = from_json(policy("1-1", "m", "v", {"all": 0.5}, found).to_json()).calibrator
        assert apply(again, FINE).tolist() == served.tolist()


@pytest.mark.parametrize(
    ("kind", "a", "b", "n", "at_most"),
    [
        ("temperature", 0, 1 / 1.6, 3_000, 2.5e-4),
        ("offset", -0.7, 1, 3_000, 3e-4),
        ("platt", 0, 1 / 1.6, 3_000, 5e-4),
        ("beta", -0.7, 1, 3_000, 9e-4),
        ("isotonic", 0, 1 / 1.6, 3_000, 78e-4),
    ],
)
def test_recovery(kind, a, b, n, at_most):
    """Of 50 draws the mean excess log loss over the true map is not above that of the prototypes, which fitted to .6 n."""
    score = np.random.default_rng(6).beta(0.5, 3.0, 20_000)
    true, lost = expit(a + b * logit(score)), []
    for seed in range(50):
        served = apply(fit(kind, known(table_of(*_world(np.random.default_rng(seed), n, a, b)))), score)
        lost.append(np.mean(true * np.log(true / served) + (1 - true) * np.log((1 - true) / (1 - served))))
    assert 0 < np.mean(lost) < at_most
    assert max(lost) < np.mean(true * np.log(true / score) + (1 - true) * np.log((1 - true) / (1 - score)))


def _classes(seed, n, w=1.0, b=0.0, k=3):
    """Return scores of k classes and labels drawn from softmax(w * ln p + b)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (n, k))
    score = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return score, (w * np.log(score) + b + rng.gumbel(size=(n, k))).argmax(axis=1)


def test_temperature_of_classes():
    """The temperature of the article's four cases, and of a binary model seen as one of two classes, is the known one."""
    v = _vector("metrics_article_ex4")
    score, codes = np.exp(np.tile(v["inputs"]["logits"], (75, 1))), np.tile(v["inputs"]["labels"], 75)
    found = fit_classes("class_temperature", score / score.sum(axis=1, keepdims=True), codes)
    assert found["t"] == pytest.approx(v["expected"]["temperature"], rel=1e-5)
    two, y = _classes(1, 3_000, 0.6, 0.0, 2)
    by_rows = fit_classes("class_temperature", two, y)["t"]
    assert fit("temperature", known(table_of(two[:, 1], y)))["t"] == pytest.approx(by_rows, rel=1e-3)


def test_vector_is_the_most_likely_one():
    """Vector scaling is as likely as what a general search without the penalty finds, and near the truth."""
    score, codes = _classes(2, 3_000, np.array([0.5, 1.0, 1.5]), np.array([0.3, 0.0, -0.3]))
    x, rows = np.log(score), np.arange(3_000)

    def lost(v):
        z = v[:3] * x + v[3:]
        return np.logaddexp.reduce(z, axis=1).sum() - z[rows, codes].sum()

    found = fit_classes("vector", score, codes)
    search = minimize(lost, [1, 1, 1, 0, 0, 0], tol=1e-10)
    assert lost(np.array(found["w"] + found["b"])) == pytest.approx(search.fun, abs=0.01)
    assert found["w"] == pytest.approx([0.5, 1.0, 1.5], abs=0.2)


@pytest.mark.parametrize("kind", ["class_temperature", "vector"])
@given(st.integers(2, 6), st.integers(0, 100), st.booleans())
def test_every_fit_to_classes_can_be_served(kind, k, seed, known_well):
    """Whatever is fitted serves rows that are finite, in [0, 1] and sum to 1, with zeros in scores and classes apart, too."""
    rng = np.random.default_rng(seed)
    score, codes = _classes(seed, 400, 3.0, 0.0, k)
    score[rng.random(score.shape) < 0.3] = 0.0
    score[rng.random(400) < 0.2] = np.eye(k)[0]
    if known_well:
        codes = score.argmax(axis=1)
    found = fit_classes(kind, score, codes)
    if isinstance(found, str):
        assert found in REASONS
        return
    assert not check_classes(json.loads(json.dumps(found)), k)
    ends = np.concatenate((score, np.eye(k), np.zeros((1, k)), np.full((1, k), 5e-324), np.full((1, k), 1 / k)))
    served = apply_classes(found, ends)
    assert np.isfinite(served).all()
    assert served.min() >= 0
    assert served.max() <= 1
    assert served.sum(axis=1) == pytest.approx(1)


def test_why_classes_have_none():
    """Few rows, few of a class, one class, classes apart, falling scores and certain scores are reasons."""
    score, codes = _classes(3, 600)
    assert fit_classes("class_temperature", score[:299], codes[:299]) == "low_n"
    few = np.concatenate((np.flatnonzero(codes != 2), np.flatnonzero(codes == 2)[:49]))
    assert fit_classes("vector", score[few], codes[few]) == "few_of_class"
    assert not isinstance(fit_classes("class_temperature", score[few], codes[few]), str)
    assert fit_classes("class_temperature", score, np.zeros(600, int)) == "one_class"
    assert fit_classes("class_temperature", score, score.argmax(axis=1)) == "separable"
    assert min(fit_classes("vector", score, score.argmax(axis=1))["w"]) > 20
    assert fit_classes("class_temperature", score, score.argmin(axis=1)) == "not_monotone"
    assert fit_classes("vector", *_classes(4, 3_000, np.array([1.0, -1.0, 1.0]))) == "not_monotone"
    assert fit_classes("class_temperature", np.eye(3)[codes[::-1]], codes) == "degenerate"
    assert {"few_of_class", "low_n", "one_class", "separable", "not_monotone", "degenerate"} <= REASONS.keys()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"kind": "softmax"}, "its kind is 'softmax'"),
        ({"kind": "vector"}, "has the keys b, kind, w, found b, kind, t, w"),
        ({"kind": "vector", "w": [1.0, 1.0], "b": [0, 0, 0], "t": None}, "a list of 3 numbers"),
        ({"kind": "vector", "w": [1.0, 1.0, 0.0], "b": [0, 0, 0], "t": None}, "w of vector must be above 0"),
        ({"kind": "vector", "w": [1.0, 1.0, 1e308], "b": [0, 0, 0], "t": None}, "not finite"),
        ({"kind": "vector", "w": [1.0, 1.0, "x"], "b": [0, 0, 0], "t": None}, "w of vector is no number"),
        ({"kind": "class_temperature", "w": None, "b": None, "t": 0.0}, "must be above 0"),
        ({"kind": "class_temperature", "w": None, "b": None, "t": 5e-324}, "not finite"),
        ({"kind": "class_temperature", "w": None, "b": None, "t": float("nan")}, "not finite"),
        ({"kind": "class_temperature", "w": None, "b": None, "t": [1.0]}, "must be a number"),
    ],
)
def test_calibrators_of_classes_that_cannot_be_applied(change, wrong):
    """Each thing that may be wrong is said; a key of None is left out."""
    made = {"t": 1.0, "w": [1.0] * 3, "b": [0.0] * 3} | change
    assert wrong in check_classes({k: v for k, v in made.items() if v is not None}, 3)


def test_choice_for_classes():
    """A temperature is chosen where one is at fault, a vector where classes differ, and nothing where scores are honest."""
    hot = choose_classes(*_classes(5, 1_000, 1 / 1.6))
    assert (hot.calibrator["kind"], hot.reason) == ("class_temperature", "accepted")
    assert hot.calibrator["t"] == pytest.approx(1.6, abs=0.2)
    apart = choose_classes(*_classes(6, 3_000, 1.0, np.array([0.7, 0.0, -0.7])))
    assert (apart.calibrator["kind"], apart.reason) == ("vector", "accepted")
    temperature, vector = apart.tried
    assert vector.log_loss < temperature.log_loss
    close = choose_classes(*_classes(6, 600, 1 / 1.6))
    assert close.tried[1].log_loss < close.tried[0].log_loss
    assert close.calibrator["kind"] == "class_temperature"
    few = choose_classes(*_classes(7, 60))
    assert (few.calibrator, few.reason, [t.reason for t in few.tried]) == (IDENTITY, "low_n", ["low_n", "low_n"])
    assert choose_classes(np.zeros((0, 3)), np.zeros(0, int)).reason == "low_n"
    honest = [choose_classes(*_classes(100 + seed, 1_000)) for seed in range(40)]
    assert sum(c.calibrator != IDENTITY for c in honest) <= 2
    assert {c.reason for c in honest} <= {"no_improvement", "accepted"}
