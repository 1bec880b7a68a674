"""What all classes say together, against scikit-learn, scipy, the shared vector and published forecasts."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import confusion_matrix, f1_score, log_loss, recall_score, roc_auc_score

from monitor.core.events import NONE, VERDICTS
from monitor.core.metrics import multiclass
from monitor.core.metrics.calibration import ece
from monitor.core.metrics.multiclass import Window, view
from monitor.core.readings import LabelRule, known, mature
from monitor.core.tables import EMPTY, LABEL, MARGIN_BINS, ROW, edges_of_width, from_dict, tables, to_dict

LUT = np.zeros((1, 1), np.int32)


def targets(p, y=None):
    """Return the tables of the targets of scores (n, k) and true classes (-1: no label), that of the predicted class last."""
    n, k = p.shape
    first, second = -np.sort(-p, axis=1)[:, :2].T
    out = []
    for t in range(k + 1):
        rows = np.zeros(n, ROW)
        rows["verdict"] = NONE
        rows["score"] = first if t == k else p[:, t]
        rows["target"] = p.argmax(axis=1) + 1 if t == k else t + 1
        rows["margin"] = np.maximum(np.rint(255 * (first - second)), 1) if t == k else 0
        labels = None if y is None else np.zeros(n, LABEL)
        if labels is not None:
            labels["outcome"] = y
        out.append(tables(rows, labels, LUT, 1)[0])
    return out


def window(p, y, before=None):
    """Return the window of scores and true classes; `before` are those of the baseline."""
    *of, top = targets(p, y)
    names = tuple(f"c{i}" for i in range(p.shape[1]))
    return Window(names, of, [known(t) for t in of], (top, known(top)), before and targets(*before)[-1])


def drawn(rng, n, k, sharp=1.5):
    """Return scores of a calibrated model and what happened."""
    e = np.exp(sharp * rng.normal(size=(n, k)))
    p = e / e.sum(axis=1, keepdims=True)
    return p, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def close(x, tolerance=1e-6):
    """Return what counts as equal."""
    return pytest.approx(x, abs=tolerance)


def test_multiclass_set(vector):
    """The shared vector holds: every quantity that the view has, to 1e-6."""
    inputs, expected = vector("multiclass_set")
    p, y = np.array(inputs["probs"]), np.array(inputs["labels"])
    w = window(p, y)
    found, k = view(w), p.shape[1]
    assert [c["mean_score"] for c in found["classes"]] == close(expected["mean_pred"])
    assert [c["base_rate"] for c in found["classes"]] == close(expected["base_rate"])
    names = {"roc_auc_macro": "auc_ovr_macro", "roc_auc_micro": "auc_ovr_micro", "roc_auc_ovo": "auc_ovo_macro"}
    names |= {"brier": "brier_multiclass_sum", "recall_macro": "macro_recall", "f1_macro": "macro_f1"}
    for name in (*names, "log_loss", "accuracy"):
        assert found[name] == {"value": close(expected[names.get(name, name)])}, name
    assert found["confusion"]["counts"] == expected["confusion"]
    fifths = edges_of_width(5)
    assert ece(w.top[1], fifths).value == close(expected["top_label_ece"])
    assert [ece(w.readings[i], fifths).value for i in range(k)] == close(expected["classwise_ece_per_class"])


@pytest.mark.parametrize(("n", "k", "sharp"), [(4_000, 3, 1.5), (6_000, 10, 2.0), (5_000, 2, 0.5)])
def test_agrees_with_scikit_learn(n, k, sharp):
    """Areas are scikit-learn's within what bins of scores cost, losses and counts exactly."""
    p, y = drawn(np.random.default_rng(k), n, k, sharp)
    found = view(window(p, y))
    onehot = np.eye(k)[y]
    if k > 2:
        assert found["roc_auc_macro"]["value"] == close(roc_auc_score(y, p, multi_class="ovr", average="macro"), 2e-4)
        assert found["roc_auc_ovo"]["value"] == close(roc_auc_score(y, p, multi_class="ovo", average="macro"), 1e-3)
    else:
        assert found["roc_auc_ovo"]["value"] == close(roc_auc_score(y, p[:, 1]), 2e-3)
    assert found["roc_auc_micro"]["value"] == close(roc_auc_score(onehot.ravel(), p.ravel()), 2e-4)
    assert found["brier"]["value"] == close(((p - onehot) ** 2).sum(axis=1).mean(), 1e-12)
    assert found["log_loss"]["value"] == close(log_loss(y, p), 1e-9)
    guess = p.argmax(axis=1)
    counts = confusion_matrix(y, guess)
    assert found["confusion"]["counts"] == counts.tolist()
    assert found["confusion"]["true"] == counts.sum(axis=1).tolist()
    assert found["confusion"]["predicted"] == counts.sum(axis=0).tolist()
    assert found["recall_macro"]["value"] == close(recall_score(y, guess, average="macro"), 1e-12)
    assert found["f1_macro"]["value"] == close(f1_score(y, guess, average="macro"), 1e-12)
    top = -np.sort(-p, axis=1)
    margins = np.histogram(np.rint(255 * (top[:, 0] - top[:, 1])) / 255, np.arange(11) / 10)[0]
    assert sum(abs(np.array(found["margin"]["n"]) - margins)) <= n / 50
    assert sum(found["margin"]["n"]) == n


def test_balance():
    """An honest class has a z like noise, one whose scores are too high has not; both p-values are scipy's."""
    rng = np.random.default_rng(0)
    p, y = drawn(rng, 5_000, 4)
    y = np.where((y == 2) & (rng.random(5_000) < 0.2), 3, y)
    found = multiclass.balances(window(p, y))
    z = [(p[:, i].sum() - (y == i).sum()) / np.sqrt((p[:, i] * (1 - p[:, i])).sum()) for i in range(4)]
    assert [b.z for b in found] == close(z, 1e-4)
    assert [b.p for b in found] == close(2 * stats.norm.sf(np.abs(z)), 1e-6)
    assert [b.q for b in found] == close(stats.false_discovery_control([b.p for b in found]), 1e-12)
    assert [b.q < 0.01 for b in found] == [False, False, True, True]


def test_multiple_tests(vector):
    """Adjusted p-values are those of scipy, and the shared vector holds."""
    inputs, expected = vector("bh8")
    adjusted = multiclass.benjamini_hochberg(inputs["p"])
    assert adjusted == close(expected["adjusted"])
    assert [q <= inputs["q"] for q in adjusted] == expected["reject"]
    assert adjusted == close(stats.false_discovery_control(inputs["p"]), 1e-12)


def test_drift_of_the_confusion_matrix():
    """Rows that changed are named, as are the confusion that grew most and the class that draws other classes' rows."""
    rng = np.random.default_rng(3)
    p, y = drawn(rng, 8_000, 3)
    q, u = drawn(rng, 6_000, 3)
    lost = (u == 0) & (rng.random(len(u)) < 0.3)
    q[lost] = np.array([0.1, 0.2, 0.7])
    found = view(window(q, u, (p, y)))["confusion"]
    base, live = (confusion_matrix(a, b.argmax(axis=1)) for a, b in ((y, p), (u, q)))
    for i, row in enumerate(found["drift"]):
        oracle = stats.chi2_contingency(np.stack((live[i], base[i])), correction=False)
        assert (row["chi2"], row["df"], row["p"]) == (close(oracle[0], 1e-9), oracle[2], close(oracle[1], 1e-9))
    assert [row["q"] < 0.001 for row in found["drift"]] == [True, False, False]
    assert (found["largest_growth"]["true"], found["largest_growth"]["predicted"]) == ("c0", "c2")
    assert found["largest_growth"]["now"] - found["largest_growth"]["before"] == close(0.3 * 0.8, 0.05)
    assert (found["sink"]["predicted"], found["sink"]["true"]) == ("c2", None)
    others = live.sum() - live[2].sum()
    assert found["sink"]["now"] == close((live[:, 2].sum() - live[2, 2]) / others, 1e-12)


def test_a_class_never_seen():
    """A class without rows leaves reasons where it is needed and numbers elsewhere; without labels all of it has reasons."""
    p, y = drawn(np.random.default_rng(1), 1_000, 4)
    y[y == 3] = 0
    found = view(window(p, y, (p, y)))
    assert [found[name] for name in ("roc_auc_macro", "roc_auc_ovo")] == [{"reason": "unseen_class"}] * 2
    assert [c["reason"] for c in found["classes"]] == ["", "", "", "no_positives"]
    assert found["recall"]["c3"] is None
    assert found["recall_macro"]["value"] == close(np.mean([found["recall"][f"c{i}"] for i in range(3)]), 1e-12)
    assert found["confusion"]["drift"][3]["reason"] == "no_positives"
    assert "value" in found["roc_auc_micro"]
    nothing = view(window(p, np.full(1_000, -1)))
    scalars = {k: v for k, v in nothing.items() if k not in ("classes", "recall", "f1", "confusion", "margin")}
    assert all("reason" in v for v in scalars.values()), scalars
    assert sum(nothing["margin"]["n"]) == 1_000
    empty = Window(("a", "b"), [EMPTY] * 2, [known(EMPTY)] * 2, (EMPTY, known(EMPTY)))
    assert view(empty)["confusion"]["counts"] == [[0, 0], [0, 0]]


def test_too_few_labels():
    """Where too few of the expected labels came, whatever is made of outcomes alone says so instead of a number."""
    p, y = drawn(np.random.default_rng(9), 1_000, 3)
    y[300:] = -1
    *of, top = targets(p, y)
    read = [mature(t, (LabelRule("unknown"),) * len(VERDICTS)) for t in (*of, top)]
    found = view(Window(("a", "b", "c"), of, read[:3], (top, read[3])))
    names = ("roc_auc_macro", "roc_auc_micro", "roc_auc_ovo", "brier", "log_loss", "ece_top_label")
    assert [found[name] for name in names] == [{"reason": "unidentified"}] * 6
    assert found["confusion"]["true"] == np.bincount(y[:300]).tolist()


def test_more_than_ten_classes():
    """With eleven classes pairs are not counted and the reason says so; all else is there."""
    p, y = drawn(np.random.default_rng(2), 3_000, 11)
    found = view(window(p, y))
    assert found["roc_auc_ovo"] == {"reason": "too_many_classes"}
    assert found["roc_auc_macro"]["value"] == close(roc_auc_score(y, p, multi_class="ovr"), 5e-4)


@pytest.mark.parametrize("k", [3, 12])
def test_tables_of_classes_add_up(k):
    """Tables of halves add up to that of the whole, survive JSON, and know nothing of classes where there are none."""
    p, y = drawn(np.random.default_rng(5), 900, k)
    whole = targets(p, y)
    for a, b, both in zip(targets(p[:400], y[:400]), targets(p[400:], y[400:]), whole, strict=True):
        summed = a + b
        assert (summed.classes is None) == (both.classes is None)
        assert summed.classes is None or (summed.classes == both.classes).all()
        assert both.classes is None or (from_dict(to_dict(both)).classes == both.classes).all()
    assert whole[-1].classes[MARGIN_BINS:].sum() == whole[-1].classes[:MARGIN_BINS].sum() == 900
    assert [t.classes is not None for t in whole] == [True] * 10 + [False] * (k - 10) + [True] if k > 10 else [True] * 4
    plain = np.zeros(5, ROW)
    assert tables(plain, None, LUT, 1)[0].classes is None


def test_forecasts_of_the_world_cup(shared):
    """Published forecasts of three outcomes: mean scores, base rates, loss and accuracy are what NumPy says of them."""
    pq = pytest.importorskip("pyarrow.parquet")
    t = pq.read_table(shared / "data" / "fte_forecasts" / "worldcup_ingame_3class.parquet").to_pydict()
    p, y = np.array([t[name] for name in ("p_team1", "p_tie", "p_team2")]).T, np.array(t["label"])
    p /= p.sum(axis=1, keepdims=True)
    found = view(window(p, y))
    assert len(p) == 13_232
    assert [c["mean_score"] for c in found["classes"]] == close(p.mean(axis=0), 1e-9)
    assert [c["base_rate"] for c in found["classes"]] == close(np.bincount(y, minlength=3) / len(y), 1e-12)
    assert found["log_loss"]["value"] == close(log_loss(y, p, labels=[0, 1, 2]), 1e-6)
    assert found["accuracy"]["value"] == close((p.argmax(axis=1) == y).mean(), 1e-12)
    assert found["roc_auc_ovo"]["value"] == close(roc_auc_score(y, p, multi_class="ovo"), 2e-3)
