"""How features and the mix of slices differ from the baseline."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from monitor.core.features import Feature, codes, freeze
from monitor.core.intervals import wilson
from monitor.core.metrics.inputs import feature_shifts, shift, slice_mix
from monitor.core.tables import FEATURE_CODES, FEATURES

RNG = np.random.default_rng(3)


def counted(*columns):
    """Return Table.features of columns of codes."""
    out = np.zeros((FEATURES, FEATURE_CODES), np.int64)
    for i, column in enumerate(columns):
        out[i] = np.bincount(column, minlength=FEATURE_CODES)
    return out


def by_hand(live, base):
    """Return the psi of shares of rows, half a row added to every bin that is not empty in both."""
    pairs = [(a + 0.5, b + 0.5) for a, b in zip(live, base, strict=True) if a + b]
    n, m = (sum(column) for column in zip(*pairs, strict=True))
    return sum((a / n - b / m) * math.log((a / n) / (b / m)) for a, b in pairs)


def test_shift_by_hand():
    """PSI and the Jensen-Shannon distance are those of the shares, cells have theirs with Wilson's interval."""
    live, base = np.array([5, 40, 0, 55, 0]), np.array([200, 300, 100, 400, 0])
    found = shift("x", "abcde", live, base)
    assert (found.n, found.reason) == (100, "")
    assert found.psi == pytest.approx(by_hand(live, base), rel=1e-12)
    assert found.js == pytest.approx(jensenshannon(live, base, 2), rel=1e-12)
    assert found.psi_null == pytest.approx(3 * (1 / 100 + 1 / 1_000))
    assert [c.name for c in found.cells] == list("abcde")
    assert [c.baseline for c in found.cells] == [0.2, 0.3, 0.1, 0.4, 0.0]
    assert found.cells[1].share[:4] == (0.4, *(pytest.approx(x) for x in wilson(40, 100)), 100)


@pytest.mark.parametrize(("n", "m"), [(200, 5_000), (1_000, 1_000)])
def test_psi_without_a_shift_is_its_null(n, m):
    """Over many samples of the same numbers psi is on average what psi_null says, within a tenth."""
    found = []
    for _ in range(150):
        base, live = RNG.normal(size=m).tolist(), RNG.normal(size=n).tolist()
        feature = freeze(base)
        found += feature_shifts(["x"], {"x": feature}, counted(codes(feature, live)), counted(codes(feature, base)))
    assert np.mean([s.psi for s in found]) == pytest.approx(found[0].psi_null, rel=0.1)


def test_what_happens_to_a_feature_shows():
    """A shifted feature, one that lost values and one with new values differ where they should, the untouched one nowhere."""
    x = RNG.normal(size=4_000).tolist()
    words = ["web", "app", "shop", "web"] * 1_000
    features = {"same": freeze(x), "moved": freeze(x), "lost": freeze(x), "new": freeze(words)}
    base = counted(*(codes(features[name], x) for name in ("same", "moved", "lost")), codes(features["new"], words))
    live = {
        "same": x[:1_000],
        "moved": [v + 0.5 for v in x[:1_000]],
        "lost": [None if i % 4 == 0 else v for i, v in enumerate(x[:1_000])],
        "new": ["kiosk" if w == "shop" else w for w in words[:1_000]],
    }
    found = {
        s.name: s for s in feature_shifts(list(live), features, counted(*(codes(features[k], v) for k, v in live.items())), base)
    }
    assert found["moved"].psi > 10 * found["moved"].psi_null > 5 * found["same"].psi
    assert (found["lost"].n, found["lost"].missing.share[:4]) == (750, (0.25, *wilson(250, 1_000), 1_000))
    assert (found["new"].unseen.share.value, found["new"].unseen.baseline, found["new"].n) == (0.25, 0.0, 750)
    assert found["same"].missing.share.value == found["same"].unseen.share.value == found["lost"].missing.baseline == 0
    assert found["lost"].psi < 3 * found["lost"].psi_null


def test_undefined():
    """Without a baseline, rows, anything said of features or any value a feature has a reason and no number."""
    features = {"x": Feature((0.0,)), "y": Feature(None, ("a",))}
    base = counted([1, 2], [1, 1])
    silent, lost = counted([0, 0], [0, 0]), counted([22, 22], [22, 23])

    def reasons(live, base=base, names=("x", "y"), features=features):
        found = feature_shifts(names, features, live, base)
        assert all((s.psi, s.psi_null, s.js, s.n) == (None, None, None, 0) for s in found)
        return [s.reason for s in found]

    assert reasons(counted([1], [1]), None) == ["no_baseline"] * 2
    assert reasons(counted([1], [1]), names=("z",)) == ["no_baseline"]
    assert reasons(None) == reasons(silent) == ["no_events"] * 2
    assert reasons(lost) == ["no_values"] * 2
    (x, y) = feature_shifts(("x", "y"), features, lost, base)
    assert (x.missing.share.value, y.missing.share.value, y.unseen.share.value) == (1.0, 0.5, 0.5)


def test_slice_mix():
    """Rows of each segment are compared over its slices alone, those of the others included."""
    base = {"all": 1_000, "c=DE": 600, "c=FR": 300, "d=web": 500, "c=other": 100, "d=other": 500}
    live = {"all": 100, "c=DE": 10, "c=FR": 80, "d=web": 50, "c=other": 10, "d=other": 50}
    c, d = slice_mix(("c", "d"), live, base)
    assert [cell.name for cell in c.cells] == ["c=DE", "c=FR", "c=other"]
    assert c.psi == pytest.approx(by_hand([10, 80, 10], [600, 300, 100]), rel=1e-12)
    assert (d.psi, d.js, d.n) == (0, 0, 100)
    assert [s.reason for s in slice_mix(("c",), {}, base)] == ["no_events"]
    assert [s.reason for s in slice_mix(("c",), live, {})] == ["no_baseline"]
