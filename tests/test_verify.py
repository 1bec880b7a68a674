"""`scorewatch verify`: what is kept is what the rows say, and every way in which it is not is found and named."""

import json
import socket
from contextlib import closing
from dataclasses import asdict, replace

import numpy as np
import pytest

from monitor import cli, verify
from monitor.core.days import iso
from monitor.core.events import DAY, HOUR, MINUTE
from monitor.core.tables import EMPTY
from monitor.store import Store, passing
from test_agent import CONFIG, DAY0, Program, program

__all__ = ["program"]

SEGMENTS = "segments: [country]\n    mode: auto"


def found(p, live=True):
    """Return the report of an agent in this process."""
    return verify.report(asdict(step) for step in p.agent.verify(live))


def differing(p, live=True):
    """Return {(part, slice)} of what differs."""
    return {(d["part"], d["slice"]) for d in found(p, live)["differences"]}


def events(day, n=600, countries=("DE", "FR"), version="v1", late=0):
    """Return n predictions of a day and their labels, which come `late` ms after an hour."""
    rng = np.random.default_rng([day, n, late])
    ts = ((DAY0 + day) * DAY + np.sort(rng.integers(0, DAY - 2 * HOUR, n))).tolist()
    given = [
        {"id": f"{version}-{day}-{i}", "model": "m", "version": version, "ts": t, "score": round(rng.random(), 3)}
        | {"segments": {"country": countries[i % len(countries)]}}
        for i, t in enumerate(ts)
    ]
    said = [
        {"id": e["id"], "ts": e["ts"] + HOUR + late, "label": int(rng.random() < e["score"]), "model": "m", "version": version}
        for e in given
    ]
    return given, said


def run(p, first=0, last=5, n=600):
    """Let days pass: rows, corrections, labels repeated later, late rows, restarts."""
    for day in range(first, last):
        given, said = events(day, n)
        p.send("predictions", given[: n // 2])
        p.send("labels", said[: n // 4])
        p.again()
        p.send("predictions", given[n // 2 : n - 5])
        p.send("labels", said[n // 4 : n - 10])
        p.now(day + 2.1)
        p.send("predictions", given[n - 5 :])  # late, for a day that was closed
        p.send("labels", [{**e, "label": 1 - e["label"], "ts": e["ts"] + HOUR, "revision": 1} for e in said[:5]])
        p.send("labels", [{**e, "ts": e["ts"] + 20 * HOUR} for e in said[10:20]])  # the outcome again, with another delay
        p.again()


def test_a_real_run_is_equal(program):
    """After corrections, late rows, repeated labels, new slices and restarts every day that has rows is what they say."""
    p = program(SEGMENTS)
    run(p)
    p.now(6.5)
    report = found(p)
    assert report["differences"] == []
    (v,) = report["versions"]
    assert (v["days"], v["equal"], v["skipped"]["left"]) == (2, 2, 3)
    assert p.agent.store.log.day(0, DAY0 + 4).keys() == {"all", "country=DE", "country=FR"}


def test_days_to_be_counted_again_are_no_differences(program):
    """A day that a correction marked is not final, so it is not compared until it was counted again."""
    p = program()
    p.scores(0)
    p.now(2.1)
    p.send("labels", {"id": "v1-0-0", "ts": (DAY0 + 2) * DAY, "label": 1, "revision": 1})
    assert found(p)["versions"][0]["skipped"]["recount"] == 1
    p.now(2.2)
    assert (found(p)["equal"], found(p)["versions"][0]["equal"]) == (True, 1)


def test_an_outcome_said_again_later_is_counted_again(program):
    """A closed day counts the delays of its labels, so one that is dated anew has it counted again."""
    p = program()
    given, said = events(0)
    p.send("predictions", given)
    p.send("labels", said)
    p.now(2.1)
    assert p.send("labels", [{**e, "ts": e["ts"] + 20 * HOUR} for e in said[:20]]) == 20
    p.now(2.2)
    assert found(p)["differences"] == []


def test_new_slices_have_old_days_counted_again(program):
    """A baseline that is observed anew after 28 days changes the slices of every day that still has rows."""
    p = program()
    p.again(CONFIG.format(more="segments: [country]").replace("corrections: 2d", "corrections: 90d"))
    for day in range(0, 56, 2):
        given, _ = events(day, 300, countries=("DE", "DE", "DE", "FR"))  # of FR one day has too few
        p.send("predictions", given)
    p.now(57)
    assert {"country=DE", "country=FR"} <= set(p.agent.watched[0].slices)
    assert (found(p)["differences"], found(p)["versions"][0]["equal"]) == ([], 28)


def test_hours_are_counted_once_when_slices_change(program):
    """Rows that came since the hours were counted last are counted once, also when a tick in between freezes new slices."""
    p = program(SEGMENTS)
    for day in range(3):
        given, _ = events(day)
        p.send("predictions", given[:500])
        p.agent.publish()
        p.send("predictions", given[500:])
    assert p.agent.watched[0].slices == ("all",)
    p.now(3)
    assert len(p.agent.watched[0].slices) > 1
    assert found(p)["differences"] == []


@pytest.mark.parametrize("change", [("horizon: 24h", "horizon: 25h"), ("corrections: 2d", "corrections: 20d")])
def test_another_horizon_has_days_counted_again(program, change):
    """Delays are counted by the horizon: another one in the configuration marks the days that still have rows."""
    p = program()
    p.scores(0)
    p.now(2.2)
    p.again(CONFIG.format(more="").replace(*change))
    assert found(p)["versions"][0]["skipped"]["recount"] == 1
    p.again()
    p.now(2.4)
    assert (found(p)["equal"], found(p)["versions"][0]["equal"]) == (True, 1)


def test_rows_that_did_not_wait_are_counted(program):
    """Days of which some rows did not wait are equal, also as long as only other models keep their rows there."""
    slow = "  slow: {labels: {horizon: 20d}}\nwaiting: {rows: 500}\n"
    p = program("review: {per_day: 20}", slow)
    p.scores(0, n=100, model="slow")
    for day in range(4):
        p.scores(day, n=600)
        p.again()
        p.now(day + 1.5)
        assert found(p)["equal"], found(p)
    p.now(8)
    assert p.agent.store.log.day(1, DAY0 + 1)["all"].out > 0
    assert found(p)["equal"], found(p)
    assert (1, DAY0 + 1) in p.agent.store.spans


def test_rows_of_the_running_hour_that_did_not_wait_survive_a_restart(program):
    """Rows newer than the last tick are in the hours in memory after a restart, too, whether or not they wait."""
    p = program("", "waiting: {rows: 500}\n")
    begin = DAY0 * DAY
    for minute in range(0, 100, 10):
        given = {"model": "m", "version": "v1", "score": 0.3}
        assert p.send("predictions", [given | {"id": f"{minute}-{i}", "ts": begin + minute * MINUTE + i} for i in range(300)])
    assert found(p)["equal"], found(p)
    p.again()
    assert found(p)["equal"], found(p)
    p.agent.publish()
    assert [t.n for (t,) in p.agent.watched[0].hours.values()] == [6 * 300, 4 * 300]


def test_hours_after_the_last_tick_survive_a_restart(program, monkeypatch):
    """Rows that did not wait and came after the last tick, so many that they were counted before the next, stay counted."""
    monkeypatch.setattr(passing, "CAPACITY", 64)
    p = program("", "waiting: {rows: 100}\ntick: 12h\n")
    p.scores(0, n=3_000)
    assert p.agent.store.passed
    p.again()
    p.agent.publish()
    p.now(1)
    p.agent.publish()
    (n,) = {e.n for e in p.agent.snapshot.estimates if (e.metric, e.window, e.key.slice) == ("mean_score", "24h", "all")}
    assert n == 3_000


def test_rows_that_do_not_wait_of_a_model_taken_out_for_a_while(program):
    """Those that no tick had counted when the model was taken out of the configuration are counted when it is back."""
    both = "  b: {labels: {horizon: 24h}, segments: [country]}\nwaiting: {rows: 100}\n"
    p = program("", both)
    p.now(0.5)
    p.now(0.99)
    p.scores(0, n=3_000, model="b")
    assert p.agent.store.passing.tail > p.agent.store.passing.seen
    p.again(CONFIG.format(more="") + "waiting: {rows: 100}\n")
    p.now(1)
    p.again(CONFIG.format(more="") + both)
    p.now(3)
    assert p.agent.store.log.day(0, DAY0)["all"].n == 3_000
    assert found(p)["differences"] == []


# Damage: each kind is found and named.


@pytest.fixture
def damaged(tmp_path):
    """Return a function that damages a state, days 1 and 2 of which are closed, and returns {(part, slice)} of what differs."""

    def change(damage, live=False):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        p = Program(folder, SEGMENTS)
        try:
            return changed(p, damage, live)
        finally:
            p.loop.close()

    def changed(p, damage, live):
        for day in range(4):
            given, said = events(day)
            p.send("predictions", given)
            p.send("labels", said[:400])
        p.send("labels", {"id": "early", "ts": (DAY0 + 4) * DAY, "label": 1, "model": "m"})
        for threshold in (0.5, 0.6):
            p.agent.command("activate", "m", "v1", "ann", "a try", threshold=threshold)
        p.now(4.5)
        p.agent.publish()
        assert found(p, live=True)["equal"]
        assert found(p, live=False)["equal"]
        damage(p.agent)
        if not live:
            p.again()
        return differing(p, live)

    return change


def number(store, day):
    """Return the number of a row of a day of version 0, of slice DE and with a label."""
    return store.spans[0, DAY0 + day].first + 100


def overwrite(store, day, **fields):
    """Write other fields into a row of a day, and leave its label as it is."""
    at = store.ring.slots(number(store, day), number(store, day) + 1)
    row, label = store.ring.rows[at].copy(), store.ring.labels[at].copy()
    for name, change in fields.items():
        row[name] = change(row[name])
    store.ring.write(number(store, day), row)
    store.ring.labels[at] = label


def relabel(store, day, **fields):
    """Change fields of the label of a row of a day."""
    at = store.ring.slots(number(store, day), number(store, day) + 1)
    for name, change in fields.items():
        store.ring.labels[name][at] = change(store.ring.labels[name][at])


def restore(store, day, change):
    """Keep other tables of a day than were counted."""
    with store.log.transaction():
        store.log.put_day(0, DAY0 + day, change(store.log.day(0, DAY0 + day)))


def day_name(day):
    return iso((DAY0 + day) * DAY)[:10]


def test_a_damaged_row_is_found(damaged):
    """A score, a segment or a verdict that is not what was counted differs where it counts, and nowhere else."""
    assert damaged(lambda a: overwrite(a.store, 1, score=lambda x: x + 1e-9)) == {
        (day_name(1), "all"),
        (day_name(1), "country=DE"),
    }
    both = {(day_name(2), "country=DE"), (day_name(2), "country=FR")}
    assert damaged(lambda a: overwrite(a.store, 2, combo=lambda x: 1 - x)) == both
    assert damaged(lambda a: overwrite(a.store, 2, combo=lambda _: 999)) == {(day_name(2), "all")}
    assert (day_name(1), "all") in damaged(lambda a: overwrite(a.store, 1, verdict=lambda x: 1 - x))


def test_a_row_of_another_day_is_found(damaged):
    """A row whose time became another is missing on its day and is too much on the other."""
    assert {d for d, _ in damaged(lambda a: overwrite(a.store, 1, ts=lambda x: x + DAY))} == {day_name(1), day_name(2)}
    assert (day_name(1), "all") in damaged(lambda a: overwrite(a.store, 1, ts=lambda x: x | 1 << 62))
    elsewhere = damaged(lambda a: overwrite(a.store, 1, version=lambda _: 77))  # a version that nobody named
    assert elsewhere == {(day_name(1), "all"), (day_name(1), "country=DE")}


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": lambda x: 1 - x},
        {"outcome": lambda x: x * 0 - 1},
        {"outcome": lambda x: x * 0 + 7},
        {"delta": lambda x: x * 9},
    ],
)
def test_a_damaged_label_is_found(damaged, fields):
    """An outcome that turned, went or makes no sense, and another delay, are found on their day."""
    seen = damaged(lambda a: relabel(a.store, 2, **fields))
    assert (day_name(2), "all") in seen
    assert {day for day, _ in seen} == {day_name(2)}


def test_a_damaged_table_is_found(damaged):
    """A table, a slice of it or a noted number in the log that is not what the rows say is found."""

    def one_more(tables):
        totals = tables["all"].totals.copy()
        totals[0, 0] += 1
        return tables | {"all": replace(tables["all"], totals=totals)}

    def ulp(tables):
        cells = tables["country=FR"].cells.copy()
        cells["p_lab"][3] = np.nextafter(cells["p_lab"][3], 1)
        return tables | {"country=FR": replace(tables["country=FR"], cells=cells)}

    assert damaged(lambda a: restore(a.store, 1, one_more)) == {(day_name(1), "all")}
    assert damaged(lambda a: restore(a.store, 1, ulp)) == {(day_name(1), "country=FR")}
    assert damaged(lambda a: restore(a.store, 2, lambda t: t | {"country=DE": EMPTY})) == {(day_name(2), "country=DE")}
    assert damaged(lambda a: a.store.log.db.execute("update days set labelled = 7 where day = ?", (DAY0 + 1,))) == {
        (day_name(1), "all")
    }


@pytest.mark.parametrize("n", [1, 600])
def test_a_dropped_row_is_found(damaged, n):
    """Rows that left though their day may still be corrected are missed, one of them or all."""

    def drop(agent):
        head = agent.store.spans[0, DAY0 + 1].first + n
        agent.store.log.set_meta({"head": head})

    assert (day_name(1), "all") in damaged(drop)


def test_a_changed_journal_is_found(damaged):
    """The journal's entries follow from each other."""
    assert damaged(lambda a: a.store.log.db.execute("update journal set who = 'bob' where seq = 1")) == {("journal", "")}


def lose_span(agent):
    agent.store.spans[0, DAY0 + 2].labelled += 1


def lose_index(agent):
    agent.store.index.entries[:] = 0


def lose_hour(agent):
    w = agent.watched[0]
    w.hours[max(w.hours)] = [EMPTY] * len(w.slices)


def lose_day(agent):
    w = agent.watched[0]
    w.days[DAY0 + 1] = w.days[DAY0 + 1] | {"all": w.days[DAY0 + 2]["all"]}


def lose_held(agent):
    agent.store.early.drop(agent.store.early.held)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose_span, {(day_name(2), "all")}),
        (lose_index, {(day_name(day), "all") for day in (1, 2, 3)}),
        (lose_hour, {("last hours", name) for name in ("all", "country=DE", "country=FR")}),
        (lose_day, {("mature windows", "all")}),
        (lose_held, {("memory", "")}),
    ],
)
def test_damaged_memory_is_found(damaged, damage, expected):
    """What a running agent keeps in memory is compared with rows and log."""
    assert damaged(damage, live=True) == expected


# The command.


@pytest.fixture
def port():
    """Return a port that is free now."""
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def config_of(port):
    return f"""\
state: state
api: 127.0.0.1:{port}
metrics: 127.0.0.1:0
clock: events
tokens: {{decide: secret-of-ann}}
models:
  m: {{labels: {{horizon: 24h, corrections: 2d}}, segments: [country]}}
"""


def test_the_command_with_the_agent_running_and_stopped(agent, port, capfd):
    """Running and stopped say the same; a difference is named and the exit code is 1."""
    a = agent(config_of(port))
    for day in range(4):
        given, said = events(day)
        a.post("predictions", given)
        a.post("labels", said)
    a.now((DAY0 + 4) * DAY + DAY // 2)
    command = ["verify", "--config", str(a.config)]
    for running in (True, False):
        if not running:
            a.stop()
        assert cli.main(command) == 0
        out = capfd.readouterr().out
        assert "m v1: 2 days equal, 1,800 rows in" in out
        assert "1 open" in out
        assert cli.main([*command, "--json"]) == 0
        report = json.loads(capfd.readouterr().out)
        assert (report["equal"], report["versions"][0]["equal"], report["differences"]) == (True, 2, [])
    with closing(Store(a.folder / "state", durable=False)) as store:
        relabel(store, 2, outcome=lambda x: 1 - x)
    for running in (False, True):
        if running:
            a.start()
        assert cli.main(command) == 1
        out = capfd.readouterr().out
        assert f"  m v1 {day_name(2)} all: cells, totals" in out
        assert "m v1: 1 of 2 days equal" in out


def test_what_cannot_be_verified_is_said(agent, port, tmp_path, capfd):
    """No configuration, no state, a state in use, a damaged log and a wrong token leave exit code 2 and a message."""
    a = agent(config_of(port))
    given, said = events(0)
    a.post("predictions", given)
    a.post("labels", said)
    a.now((DAY0 + 3) * DAY)
    other = tmp_path / "other.yaml"
    for text, message in (
        ("models: {m: {labels: {horizon: nonsense}}}", "horizon"),
        (config_of(1).replace("state: state", "state: nothing"), "there is no state yet"),
        (config_of(1).replace("state: state", f"state: {a.folder}/state"), "another process uses this state"),
        (config_of(port).replace("secret-of-ann", "secret-of-bob"), "this is not the decide token"),
    ):
        other.write_text(text)
        assert cli.main(["verify", "--config", str(other)]) == 2
        assert message in capfd.readouterr().err
    assert cli.main(["verify", "--config", str(a.config), "--url", "http://127.0.0.1:1"]) == 2
    assert "no agent listens there" in capfd.readouterr().err
    assert not (tmp_path / "nothing").exists()
    a.stop()
    with closing(Store(a.folder / "state", durable=False)) as store:
        store.log.db.execute("update days set tables = x'93'")
    assert cli.main(["verify", "--config", str(a.config)]) == 2
    assert "are damaged" in capfd.readouterr().err


def test_opening_a_stopped_state_leaves_it_as_it_was(agent, port, tmp_path):
    """Looking changes nothing in rows, labels, tables and journal."""
    a = agent(config_of(port))
    for day in range(3):
        given, said = events(day)
        a.post("predictions", given)
        a.post("labels", said)
    a.now((DAY0 + 3) * DAY)
    a.stop()

    def content():
        with closing(Store(a.folder / "state", durable=False)) as store:
            dump = [line for line in store.log.db.iterdump() if "sampler" not in line]
            return dump, [(r.tobytes(), k.tobytes()) for d in range(3) for r, k in store.pieces_of(0, DAY0 + d)]

    before = content()
    assert cli.main(["verify", "--config", str(a.config)]) == 0
    assert content() == before


def test_events_come_in_while_it_goes_on(program):
    """Between two steps predictions, labels and ticks pass, and nothing seems to differ."""
    p = program(SEGMENTS)
    run(p, last=3)
    steps = []
    for i, step in enumerate(p.agent.verify(live=True)):
        steps.append(asdict(step))
        given, said = events(3 + i)
        p.send("predictions", given)
        p.send("labels", said)
        p.now(5.5 + i)
    assert verify.report(steps)["differences"] == []
