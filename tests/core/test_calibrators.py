"""Calibrators against scikit-learn, the shared vectors and simulation."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from monitor.core.calibrators import CANDIDATES, fit
from monitor.core.policy import apply, expit, logit
from monitor.core.readings import known
from tests.rows import VECTORS


def _world(rng, n, a=0.0, b=1.0):
    """Return scores of Beta(.5, 3) and outcomes of which logit P = a + b logit(score)."""
    score = rng.beta(0.5, 3.0, n)
    return score, (rng.random(n) < expit(a + b * logit(score))).astype(np.int8)


def _vector(name):
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
