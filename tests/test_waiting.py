"""More predictions than may wait for their labels: every score is counted, and the sample that waits says what all would."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.core.events import DAY, FLAGGED, HOUR, MINUTE, Coded, Labels
from monitor.core.readings import mature
from monitor.core.tables import NO_AUDIT, weights_of
from monitor.store import passing
from traffic import DAY0, Program, Source, scores

CONFIG = """\
state: state
clock: events
tick: {tick}
waiting: {{rows: {rows}}}
models:
  a: {{labels: {{horizon: {horizon}, missing: negative, corrections: {corrections}}}, threshold: 0.2}}
  b: {{labels: {{horizon: {horizon}, missing: unknown, corrections: {corrections}}}, threshold: 0.2}}
"""
THIN = 1_000
METRICS = ("recall", "precision", "bias")


def config(rows, tick="12h", horizon="60d", corrections="28d"):
    return CONFIG.format(rows=rows, tick=tick, horizon=horizon, corrections=corrections)


def steps(program, sources, first, days, factor=1.0, hours=6):
    """Send days of traffic in steps, labels after the predictions of their step, and yield after each."""
    for start in range((DAY0 + first) * DAY, (DAY0 + first + days) * DAY, hours * HOUR):
        sent = [s.step(start, hours * HOUR, factor) for s in sources]
        receipts = program.send(*(p for p, _ in sent), *(labels for _, labels in sent))
        program.rejected += [r.reason for receipt in receipts for r in receipt.rejected]
        yield start + hours * HOUR, sent, receipts


def drain(program, sources, first, days):
    """Let the labels of the days before come in, and every day mature."""
    for _ in steps(program, sources, first, days, factor=0.0):
        pass
    program.now((DAY0 + first + days) * DAY)


def day_of(program, model, day):
    """Return the final table of all rows of a day."""
    return program.agent.store.log.day(program.watched(model).code, DAY0 + day)["all"]


def covered(estimate, truth):
    return estimate.low <= truth <= estimate.high


def stands_for(table):
    """Return how many rows the waiting ones stand for, and the standard error of that."""
    w = weights_of(table)
    total = sum(w[f"w_{kind}"].sum() for kind in ("none", "neg", "pos"))
    return total, np.sqrt(sum((w[f"w2_{kind}"] - w[f"w_{kind}"]).sum() for kind in ("none", "neg", "pos")))


def test_ninety_days_of_800_a_second(tmp_path):
    """Of 90 days with 800 predictions a second and 20 M rows that may wait, thinned by 1,000, all is counted and estimated.

    Fifteen of sixteen rows are of the model `a`, whose positives alone are reported, 12 days later on average, the others of
    `b`, whose positives are reported after 5 days and negatives after 30. The agent is started again every eleven days.
    """
    program = Program(tmp_path, config(20_000_000 // THIN))
    sources = [Source("a", 750 / THIN, 12 * DAY, None, 0.2, 1), Source("b", 50 / THIN, 5 * DAY, 30 * DAY, 0.2, 2)]
    peak = lost = 0
    for i, (now, _, _) in enumerate(steps(program, sources, 0, 90)):
        peak = max(peak, program.waiting)
        if i % 44 == 43:
            lost += program.agent.store.refused["not_sampled"]
            program.again()
        if i % 28 == 27:
            program.now(now)
            last_day = {s.model: program.estimates(s.model, "24h")["mean_score"].n for s in sources}
            assert last_day == {s.model: s.truth[now // DAY - 1][0] for s in sources}
    drain(program, sources, 90, 60)
    assert 0.8 * 20_000_000 // THIN < peak <= 20_000_000 // THIN
    days = {s.model: {DAY0 + d: day_of(program, s.model, d) for d in range(90)} for s in sources}
    for s in sources:
        all_are_counted(days[s.model], s)
    what_waits_stands_for_all(days, sources)
    mature_weeks_are_right(program, days, sources)
    labels_add_up(program, days, sources, lost)
    program.loop.close()


def all_are_counted(days, source):
    """Check that the final tables have exactly the rows and the scores that were sent."""
    assert {d: t.n for d, t in days.items()} == {d: t[0] for d, t in source.truth.items() if t[0]}
    assert sum(t.totals[:, 1].sum() for t in days.values()) == pytest.approx(sum(t[1] for t in source.truth.values()), rel=1e-12)


def what_waits_stands_for_all(days, sources):
    """Check that the weights of a day add up to the rows that were sent, with the error that they say themselves."""
    z = []
    for s in sources:
        for d, table in days[s.model].items():
            total, error = stands_for(table)
            z.append((total - s.truth[d][0]) / error)
    assert abs(np.mean(z)) < 3 / np.sqrt(len(z))
    assert 0.85 < np.std(z) < 1.15


def mature_weeks_are_right(program, days, sources):
    """Check that intervals hold the truth of all rows: at most 4 of 24 weeks may miss it, and the exported 28 days may not.

    With 95 % intervals more than 4 misses come in 0.6 % of worlds.
    """
    hits = {m: [] for m in METRICS}
    for s in sources:
        for first in range(DAY0, DAY0 + 84, 7):
            week = {d: days[s.model][d] for d in range(first, first + 7)}
            found = {e.metric: e for e in program.watched(s.model).summary(week, "7d")}
            for m in METRICS:
                if found[m].reason != "few_audited_misses":
                    hits[m].append(covered(found[m], s.true(week)[m]))
        exported, truth = program.estimates(s.model, "28d"), s.true(range(DAY0 + 62, DAY0 + 90))
        assert {m: covered(exported[m], truth[m]) for m in METRICS} == dict.fromkeys(METRICS, True), s.model
    assert all(len(h) >= 20 and h.count(False) <= 4 for h in hits.values()), hits


def labels_add_up(program, days, sources, lost):
    """Check that each label was taken, rejected as not sampled, is held, or was counted as not sampled when it was dropped."""
    sent = sum(t[2] if s.negative is None else t[0] for s in sources for t in s.truth.values())
    taken = sum(t.labelled for tables in days.values() for t in tables.values())
    store = program.agent.store
    assert set(program.rejected) == {"not_sampled"}
    assert len(program.rejected) + lost + store.refused["not_sampled"] + len(store.early) + taken == sent


@pytest.fixture
def program(tmp_path):
    """Return a function that makes an agent in process with sources; its files are closed at the end."""
    made = []

    def make(sources, rows, **given):
        made.append(Program(tmp_path, config(rows, **given)))
        made[-1].sources = sources
        return made[-1]

    yield make
    for p in made:
        p.loop.close()


SHORT = {"horizon": "2d", "corrections": "0s", "tick": "1h"}


def quick(model, per_day, threshold=0.2, seed=1):
    """Return a source whose positives are reported within the hour, negatives as well for the model `b`."""
    return Source(model, per_day / 86_400, HOUR / 20, HOUR / 20 if model == "b" else None, threshold, seed)


def test_a_day_of_ten_times_the_traffic(program):
    """A burst neither passes the limit nor leaves rows out: what waits of each day stands for all of it."""
    p = program([quick("a", 20_000)], 10_000, **SHORT)
    peak = []
    for first, factor in ((0, 1.0), (5, 10.0), (6, 1.0)):
        for _ in steps(p, p.sources, first, 1 if factor > 1 else 5 if not first else 4, factor, hours=1):
            peak.append(p.waiting)
    drain(p, p.sources, 10, 4)
    assert 0.8 * 10_000 < max(peak) <= 10_000
    for d in range(10):
        table = day_of(p, "a", d)
        total, error = stands_for(table)
        assert table.n == p.sources[0].truth[DAY0 + d][0]
        assert abs(total - table.n) < 4 * error + 1, d
        assert table.n - table.out > 200, d


def test_before_a_rate_is_known(program):
    """More rows at once than may ever wait, all of one moment: none is lost, and what waits stands for all of them."""
    p = program([quick("a", 1)], 2_000, **SHORT)
    (source,) = p.sources
    source.rate = 30_000_000 / DAY * 1_000
    burst, _ = source.step(DAY0 * DAY, DAY // 600)
    assert len(burst) > 45_000
    at_once = np.full(len(burst), DAY0 * DAY)
    receipts = p.send(type(burst)(burst.index, burst.ids, at_once, *(getattr(burst, c) for c in AFTER_TS)))
    assert [r.accepted for r in receipts] == [len(burst)]
    assert p.waiting <= 2_000
    p.now((DAY0 + 4) * DAY)
    table = day_of(p, "a", 0)
    total, error = stands_for(table)
    assert table.n == len(burst)
    assert abs(total - table.n) < 4 * error


AFTER_TS = ("version", "score", "verdict", "combo", "policy")


def test_more_flagged_rows_than_may_wait(program):
    """Where most rows are flagged a sample of the flagged ones waits, and precision and bias are still those of all."""
    p = program([quick("b", 40_000, threshold=0.002)], 10_000, **SHORT)
    p.path.write_text(p.path.read_text().replace("threshold: 0.2", "threshold: 0.002"))
    p.again()
    for _ in steps(p, p.sources, 0, 8, hours=1):
        pass
    drain(p, p.sources, 8, 2)
    assert p.sources[0].truth[DAY0 + 5][3] > 20_000
    found, truth = p.estimates("b", "7d"), p.sources[0].true(range(DAY0 + 1, DAY0 + 8))
    assert covered(found["precision"], truth["precision"])
    assert covered(found["bias"], truth["bias"])
    assert found["recall"].reason == "few_audited_misses"  # they are one in a hundred
    flagged = sum(day_of(p, "b", d).n - day_of(p, "b", d).out for d in range(8))
    assert flagged < 40_000


def labels_of(program, predictions, n):
    """Return labels of the first n of the predictions that do not wait."""
    waiting = set(program.agent.store.ring.rows["ts"][: program.agent.store.tail].tolist())
    at = [i for i, ts in enumerate(predictions.ts.tolist()) if ts not in waiting][:n]
    p = predictions.take(np.array(at))
    return Labels(np.arange(n), p.ids, p.ts, Coded.of([("a", None)] * n), np.ones(n, np.int8), np.zeros(n, np.uint8))


def test_the_label_of_a_row_that_did_not_wait(program):
    """It is rejected while the row is remembered; of a row forgotten since it is held, and counted when its time is over."""
    p = program([quick("a", 400_000)], 2_000, **SHORT)
    (source,) = p.sources
    source.positive = None
    sent = [some[0][0] for _, some, _ in steps(p, p.sources, 0, 1, hours=1)]
    assert p.agent.store.passing.tail > passing.CAPACITY
    (receipt,) = p.send(labels_of(p, sent[-1], 5))
    assert [r.reason for r in receipt.rejected] == ["not_sampled"] * 5
    (receipt,) = p.send(labels_of(p, sent[1], 5))
    assert (receipt.accepted, receipt.held, receipt.rejected) == (5, 5, ())
    p.now((DAY0 + 10) * DAY)
    assert (len(p.agent.store.early), p.agent.store.refused["not_sampled"]) == (0, 5)


AUDITED = """\
state: state
clock: events
tick: 6h
models:
  m:
    labels: {horizon: 24h, corrections: 24h}
    threshold: 0.2
    review: {per_day: 200}
"""


def test_a_burst_after_few_rows_does_not_flood_the_reviewers(tmp_path):
    """Of many rows in one request after hours with hardly any about a day's reviews are picked, not all."""
    program = Program(tmp_path, AUDITED)
    source = Source("m", 1 / 600, HOUR, None, 0.2, 1, audited=True)
    for hour in range(3):
        program.send(source.step(DAY0 * DAY + hour * HOUR, HOUR)[0])
    source.rate = 50.0
    (receipt,) = program.send(source.step(DAY0 * DAY + 3 * HOUR, HOUR // 3)[0])
    assert receipt.accepted > 50_000
    assert 20 < len(receipt.review) < 600


def test_weekly_recall_from_reviews(tmp_path):
    """Of twenty weeks with 200 reviews a day 95 % intervals of recall cover the true one in at least 17.

    Positives that report themselves are a third of the misses; without the weights of the reviews recall is far off.
    """
    p = Program(tmp_path, AUDITED)
    source = Source("m", 20_000 / 86_400, HOUR, HOUR, 0.2, 11, audited=True)
    for _, _, receipts in steps(p, [source], 0, 141):
        picked = [i for receipt in receipts for i in receipt.review]
        if picked:
            p.send(source.reviewed(picked))
    p.now((DAY0 + 143) * DAY)
    weeks, naive = [], []
    for first in range(1, 141, 7):
        week = {DAY0 + d: day_of(p, "m", d) for d in range(first, first + 7)}
        found = {e.metric: e for e in p.watched("m").summary(week, "7d")}
        weeks.append(covered(found["recall"], source.true(week)["recall"]))
        flagged = FLAGGED[np.concatenate([t.cells["verdict"] for t in week.values()])]
        positives = np.concatenate([t.cells["n_pos"] for t in week.values()])
        naive.append(positives[flagged].sum() / positives.sum())
    p.loop.close()
    assert weeks.count(True) >= 17
    assert np.mean(naive) > 0.65 > 0.5 > source.true(range(DAY0, DAY0 + 141))["recall"]


@pytest.mark.parametrize("minutes", [1, 360])
def test_reviews_begin_with_the_first_prediction(tmp_path, minutes):
    """Of the first day every passed row is drawn from, about as many as on others are picked, and recall is identified."""
    p = Program(tmp_path, AUDITED)
    source = Source("m", 20_000 / 86_400, MINUTE, MINUTE, 0.2, 12, audited=True)
    reviews = 0
    for start in range(DAY0 * DAY, (DAY0 + 1) * DAY, minutes * MINUTE):
        predictions, labels = source.step(start, minutes * MINUTE)
        picked = [i for receipt in p.send(predictions, labels) for i in receipt.review]
        if picked:
            p.send(source.reviewed(picked))
        reviews += len(picked)
    p.send(source.step((DAY0 + 1) * DAY, HOUR)[1])
    p.now((DAY0 + 2) * DAY)
    rows = p.agent.store.ring.rows[: p.agent.store.tail]
    assert (rows["audit"][~FLAGGED[rows["verdict"]]] != NO_AUDIT).all()
    assert 100 < reviews < 400
    assert mature(day_of(p, "m", 0), p.watched("m").model.labels.rules).reason == ""
    p.loop.close()


REVIEWED = """\
state: state
api: 127.0.0.1:0
metrics: 127.0.0.1:0
clock: events
models:
  m:
    versions: {shadow: shadow}
    labels: {horizon: 24h, corrections: 24h}
    threshold: 0.2
    review: {per_day: 200}
  few:
    labels: {horizon: 24h, corrections: 24h}
    threshold: 0.2
    review: {per_day: 2}
"""


def test_reviews_over_http(agent):
    """Picks come in the answer and in the audit list, never of flagged or shadow rows, and give a recall when they suffice.

    The key of the draw is another one in each run, so bounds are four standard errors and more.
    """
    a = agent(REVIEWED)
    rng = np.random.default_rng(5)
    truth, per_day, told = np.zeros((9, 2)), np.zeros(9), {}
    for hour in range(9 * 24):
        begin = DAY0 * 86_400 + hour * 3_600
        for model, n in (("m", 800), ("few", 150)):
            score, positive = scores(rng, n)
            ids = [f"{model}-{hour}-{i}" for i in range(n)]
            events = [
                {"id": i, "ts": begin + k, "model": model, "version": "1", "score": s}
                for k, (i, s) in enumerate(zip(ids, score.tolist(), strict=True))
            ]
            picks = a.post("predictions", events).get("review", [])
            told |= {i: s for i, s in zip(ids, score.tolist(), strict=True) if i in set(picks)}
            outcome = dict(zip(ids, positive.tolist(), strict=True))
            labelled = picks if hour < 9 * 24 - 1 else []
            labelled = labelled + [i for i, s in zip(ids, score.tolist(), strict=True) if s >= 0.2]
            labels = [{"id": i, "ts": begin + 1_800, "model": model, "label": int(outcome[i])} for i in labelled]
            a.post("labels", labels)
            if model == "m":
                if hour < 48:
                    shadows = [e | {"version": "shadow"} for e in events]
                    assert "review" not in a.post("predictions", shadows)
                per_day[hour // 24] += len(picks)
                truth[hour // 24] += (positive & (score >= 0.2)).sum(), positive.sum()
    assert all(s < 0.2 for s in told.values())
    assert abs(per_day[1:].mean() - 200) < 25
    assert ((per_day[1:] > 130) & (per_day[1:] < 270)).all()
    status, waiting, _ = a.ask("/v1/models/m/audit")
    assert (status, {w["id"] for w in waiting}) == (200, {i for i in told if i.startswith("m-215-")})
    ratio = np.array([w["label_prob"] / w["score"] ** 0.5 for w in waiting])
    assert ratio.max() < 1.01 * ratio.min()
    assert {w["version"] for w in waiting} == {"1"}
    a.now((DAY0 + 10) * 86_400)
    recall, low, high = (a.gauge(f"scorewatch_recall{e}", model="m", version="1", window="7d") for e in ("", "_low", "_high"))
    hits, positives = truth[2:9].sum(axis=0)
    assert low - (recall - low) < hits / positives < high + (high - recall)
    assert a.gauge("scorewatch_recall", model="few", window="7d") is None
    why = a.gauge("scorewatch_estimate_available", model="few", window="7d", estimate="recall", reason="few_audited_misses")
    assert why == 0


SLICED = """\
state: state
clock: events
waiting: {rows: 5k}
models:
  a: {labels: {horizon: 24h, corrections: 0s, missing: negative}, segments: [country], threshold: 0.2}
"""


def test_what_is_observed_of_a_sample_is_of_all_rows(tmp_path):
    """An observed baseline has the scores of all rows; slices are shown from when on all of their rows were counted for them.

    A slice of waiting rows alone would have a flagged share several times too high.
    """
    p = Program(tmp_path, SLICED)
    source = Source("a", 30_000 / 86_400, HOUR, None, 0.2, 3)
    countries = ((("country", "DE"),), (("country", "FR"),))
    true = {}
    for start in range(DAY0 * DAY, (DAY0 + 8) * DAY, HOUR):
        sent, labels = source.step(start, HOUR)
        of = np.arange(len(sent)) % 2
        p.send(replace(sent, combo=Coded(countries, of.astype(np.int32))), labels)
        flagged, n = true.get(start // DAY, (0, 0))
        true[start // DAY] = flagged + (sent.score[of == 0] >= 0.2).sum(), n + (of == 0).sum()
    p.now((DAY0 + 8) * DAY)
    w = p.watched("a")
    promised = w.baseline.table("all")
    assert w.baseline.provenance["kind"] == "observed"
    assert promised.n == sum(source.truth[d][0] for d in w.baseline.days["all"])
    assert p.waiting < 5_000 < promised.n
    found = p.estimates("a", "24h")
    assert found["psi"].value < 3 * found["psi_null"].value
    shares = [e for e in p.agent.snapshot.estimates if (e.key.slice, e.metric) == ("country=DE", "flagged_share")]
    flagged, n = true[DAY0 + 7]
    assert [(e.value, e.n) for e in shares if e.window == "24h"] == [(flagged / n, n)]
    p.now((DAY0 + 10) * DAY)
    days = {d: t["country=DE"] for d, t in w.days.items() if "country=DE" in t}
    assert {d: t.n for d, t in days.items()} == {d: n for d, (_, n) in true.items() if d in days}
    assert len(days) >= 3
    p.loop.close()
