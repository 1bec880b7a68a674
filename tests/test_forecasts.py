"""Forecasts of games that were really published: one league that stayed calibrated and one that did not."""

from dataclasses import replace as replaced

import numpy as np
import pytest

from monitor.config import load
from monitor.core import baseline as baselines
from monitor.core import detectors
from monitor.core.events import DAY, VERDICTS
from monitor.core.readings import LabelRule
from monitor.core.tables import LABEL, ROW
from monitor.run import replay
from monitor.watched import baseline_checksum

CONFIG = """\
state: state
clock: events
tick: 1d
sources:
  - file: {path: events.ndjson, follow: false}
models:
  games:
    baseline: baseline.json
    idle_after: 3650d
    labels: {horizon: 24h, corrections: 24h}
    false_alarms_per_year: {warning: 1}
    rules: {data_loss: off}  # a season has an end
"""


@pytest.fixture(scope="module")
def games(shared):
    """Return the columns of all games."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(shared / "data/fte_forecasts/games.parquet")
    return {name: table[name].to_numpy() for name in table.column_names}


def alerts(folder, games, league):
    """Replay a league after its season of 2016, the baseline, and return (rule, state, month) of its alerts."""
    mine = {name: column[games["league"] == league] for name, column in games.items()}
    first, later = mine["season"] == 2016, mine["season"] > 2016
    rows, labels = np.zeros(first.sum(), ROW), np.zeros(first.sum(), LABEL)
    rows["ts"] = mine["pred_time"][first].astype("datetime64[ms]").astype(np.int64)
    rows["score"], labels["outcome"] = mine["score"][first], mine["label"][first]
    made = baselines.build("games", "1", (), rows, labels, [()], {"kind": "validation", "data": f"{league} 2016"})
    (folder / "baseline.json").write_text(baselines.to_json(replaced(made, checksum=baseline_checksum(made))))
    ts = mine["pred_time"][later].astype("datetime64[s]").astype(np.int64)
    lines = []
    for i, (t, p, y) in enumerate(
        sorted(zip(ts.tolist(), mine["score"][later].tolist(), mine["label"][later].tolist(), strict=True))
    ):
        assert t * 1000 >= made.until - DAY
        lines.append(f'{{"id":"{i}","ts":{t},"model":"games","version":"1","score":{p!r}}}')
        lines.append(f'{{"id":"{i}","label":{y},"ts":{t},"model":"games"}}')
    (folder / "events.ndjson").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(CONFIG)
    items = []
    replay(load(folder / "config.yaml"), "test", items.append, False, False)
    return [(i["rule"], i["state"], i["at"][:7]) for i in items if i["kind"] == "alert"]


def test_baseball_never_alerts(tmp_path, games):
    """Six seasons of calibrated forecasts give no alert about outcomes.

    Their spread did change, from .080 in 2016 to .095 in 2018, and only that is said.
    """
    mine = {season: games["score"][(games["league"] == "mlb") & (games["season"] == season)].std() for season in (2016, 2018)}
    assert mine == pytest.approx({2016: 0.0796, 2018: 0.0945}, abs=1e-4)
    assert {rule for rule, _, _ in alerts(tmp_path, games, "mlb")} == {"score_drift"}


def test_basketball_alerts_when_calibration_goes(tmp_path, games):
    """Forecasts that drifted slowly give a calibration alert by the end of 2020, and none about their ranking, which stayed."""
    found = alerts(tmp_path, games, "nba")
    fired = [month for rule, state, month in found if state == "firing" and rule.startswith("calibration")]
    assert "2017-10" <= fired[0] <= "2020-12"
    assert "roc_auc" not in {rule for rule, _, _ in found}


def test_forecasts_of_one_team_are_no_evidence_of_their_own(shared):
    """Daily forecasts of what a team will have done at the end of a season share their outcome: no detector looks at them."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(shared / "data/fte_forecasts/season_forecasts.parquet")
    column = {name: table[name].to_numpy() for name in table.column_names}
    of = (column["event"] == "nfl_make_playoffs") & (column["season"] == 2015)
    rows, labels = np.zeros(of.sum(), ROW), np.zeros(of.sum(), LABEL)
    rows["ts"] = column["pred_time"][of].astype("datetime64[ms]").astype(np.int64)
    rows["score"], labels["outcome"] = column["score"][of], column["label"][of]
    rows["cluster"] = 1 + np.unique(column["team"][of], return_inverse=True)[1]
    made = baselines.build("games", "1", (), rows, labels, [()], {"kind": "validation"})
    found = detectors.nulls(made.days, None, (LabelRule("unknown"),) * len(VERDICTS))
    assert {name: reason for name, reason in found.reasons.items() if reason != "no_threshold"} == dict.fromkeys(
        ("calibration", "high_confidence_errors", "roc_auc", "prevalence", "score_drift"), "clustered"
    )
