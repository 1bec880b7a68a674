"""Rows of two versions with the same ids, out of a real store."""

from dataclasses import replace

import numpy as np

from monitor import pairs as module
from monitor.core.events import BLOCK, DAY
from monitor.core.readings import LabelRule
from monitor.pairs import pairs
from monitor.store import Store
from stores import T0, label, predictions

TODAY = T0 // DAY
NEGATIVE, UNKNOWN = LabelRule("negative"), LabelRule("unknown")


def fill(store, version, ids, score, **columns):
    assert store.append(predictions(store, ids, score=score, version=("m", version), **columns), {}).all()


def test_rows_of_one_id_are_found(tmp_path):
    """Exactly the ids that both versions scored on that day, with both scores and the outcome, in whatever order they came."""
    store = Store(tmp_path)
    rng = np.random.default_rng(1)
    scores = {f"r{i}": rng.random(2).tolist() for i in range(300)}
    first, second = list(scores)[:200], rng.permutation(list(scores)[100:]).tolist()
    fill(store, "1", first, [scores[i][0] for i in first])
    fill(store, "2", second, [scores[i][1] for i in second])
    fill(store, "2", ["r0"], 0.5, ts=T0 + DAY)
    for version in ("1", "2"):
        label(store, *((i, int(i[-1] in "37"), T0, 0, version) for i in scores if i[-1] != "5"))
    found = pairs(store, (0, 1), TODAY, (UNKNOWN,) * 6)
    wanted = {tuple(scores[i]): -1 if i[-1] == "5" else int(i[-1] in "37") for i in list(scores)[100:200]}
    assert dict(zip(map(tuple, found.score.T.tolist()), found.outcome.tolist(), strict=True)) == wanted
    assert (found.reason, found.clustered) == ("", False)
    assert set(pairs(store, (0, 1), TODAY, (NEGATIVE,) * 6).outcome.tolist()) == {0, 1}
    assert len(pairs(store, (0, 1), TODAY + 1, (UNKNOWN,) * 6).outcome) == 0
    store.close()


def test_what_a_verdict_prevents_is_unknown(tmp_path):
    """An outcome that the verdict of either version prevents is not known, whatever no label means."""
    store = Store(tmp_path)
    fill(store, "1", ["a", "b"], 0.5)
    blocked = predictions(store, ["a", "b"], version=("m", "2"))
    blocked.verdict[:] = [BLOCK, 0]
    store.append(blocked, {})
    rules = tuple(LabelRule("negative", v == BLOCK) for v in range(6))
    assert sorted(pairs(store, (0, 1), TODAY, rules).outcome.tolist()) == [-1, 0]
    store.close()


def test_bounded(tmp_path, monkeypatch):
    """Of more rows than are looked at, whole pairs are chosen by their ids."""
    store = Store(tmp_path)
    ids = [str(i) for i in range(4_000)]
    fill(store, "1", ids, np.arange(4_000) / 4_000)
    fill(store, "2", ids[::-1], np.arange(4_000)[::-1] / 4_000)
    monkeypatch.setattr(module, "MAX_ROWS", 1_000)
    score = pairs(store, (0, 1), TODAY, (UNKNOWN,) * 6).score
    assert 850 <= score.shape[1] <= 1_150
    np.testing.assert_array_equal(score[0], score[1])
    store.close()


def test_no_fair_choice(tmp_path):
    """Where rows are labelled with a probability, pairs say so instead of comparing those that happen to be labelled."""
    store = Store(tmp_path)
    fill(store, "1", ["a", "b"], 0.5)
    store.append(replace(predictions(store, ["a", "b"], version=("m", "2")), label_prob=np.array([0, 5], np.uint16)), {})
    assert pairs(store, (0, 1), TODAY, (UNKNOWN,) * 6).reason == "sampled"
    store.close()
