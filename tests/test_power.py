"""What is simulated is what the agent does."""

import numpy as np
import pytest

from monitor.core import power, rules
from monitor.core.days import Key
from monitor.core.detectors import log_threshold, nulls
from monitor.core.events import VERDICTS
from monitor.core.power import Watch, watched
from monitor.core.readings import LabelRule
from monitor.core.tables import total
from monitor.looks import Looks, Promise
from rows import at

RULES = (LabelRule("unknown"),) * len(VERDICTS)


@pytest.mark.parametrize("name", ["calibration", "recall", "flagged_share"])
@pytest.mark.parametrize(("rows", "where"), [(400, [0, 1, 2]), (6_000, [1])])
def test_a_watch_fires_as_the_rule_does(name, rows, where):
    """Through 30 days in which all or one of three slices are off the watch fires and resolves on the days the agent does."""
    rng = np.random.default_rng(1)
    good, bad = (
        power.normal(0.1, 2.0, 0.3),
        power.missed(power.shifted(power.more_flagged(power.normal(0.1, 2.0, 0.3), 1.7), 0.8), 0.2),
    )
    base = [power.day([good] * 3, rows, 0.0, 0.0, rng) for _ in range(60)]
    expected = nulls({part: {i: d[part] for i, d in enumerate(base)} for part in base[0]}, at(0.3), RULES)
    days = [power.day([bad if 10 <= i < 40 and k in where else good for k in range(3)], rows, 0.0, 0.0, rng) for i in range(80)]
    limit = log_threshold(3, 1.0)
    (rule,) = rules.budgeted([rules.detecting(name, name)], {**rules.FALSE_ALARMS, "warning": 1 / 3})
    assert rule.fires[1].high == pytest.approx(limit)
    looks, alert, watch = Looks((rule,), RULES), None, Watch(name, expected, RULES, limit)
    looks.expect("baseline", Promise(expected, RULES), "0.3", 0, 0)
    agent, simulated = [], []
    for i, tables in enumerate(days):
        looks.see_ended(i, tables)
        looks.see_mature(range(i + 1), (), days.__getitem__)
        window = range(max(0, i - 27), i + 1)
        (seen,) = looks.detections(Key("m", "v", "all", i), window, lambda at, part: total([days[d][part] for d in at]))
        alert = rules.step(rule, "m", "v", alert, {e.metric: e for e in (seen.evidence, seen.effect)}, i)
        if alert is not None and alert.state == "resolved":
            looks.restart(rule.name)
            alert = None
        agent.append(alert is not None)
        watch = watched(watch, i, tables)
        simulated.append(bool(watch.firing))
    assert simulated == agent
    assert any(agent[10:40])
    assert not any(agent[:10])
