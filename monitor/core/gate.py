"""STAND-IN."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monitor.core import readings
from monitor.core.compare import log_ratio
from monitor.core.metrics.fit import fit_line
from monitor.core.policy import Calibrator
from monitor.core.readings import LabelRule
from monitor.core.tables import Table, total


@dataclass
class Report:
    reason: str
    calibrator: Calibrator
    rows: int
    positives: int

    def to_dict(self) -> dict[str, Any]:
        return {"reason": self.reason, "calibrator": dict(self.calibrator), "rows": self.rows, "positives": self.positives}


def trial(days: Mapping[int, Mapping[str, Table]], rules: tuple[LabelRule, ...], current: Calibrator) -> Report:
    keys = sorted(days)
    blocks = [keys[i * len(keys) // 5 : (i + 1) * len(keys) // 5] for i in range(5)]
    gain = 0.0
    newest = 0.0
    for b in blocks:
        rest = readings.mature(total([days[d]["all"] for d in keys if d not in b]), rules)
        fit = fit_line(rest)
        if isinstance(fit, str):
            return Report(fit, current, 0, 0)
        made = {"kind": "platt", "a": fit.intercept, "b": fit.slope}
        newest = log_ratio(readings.mature(total([days[d]["all"] for d in b]), rules), made, current)
        gain += newest
    whole = readings.mature(total([days[d]["all"] for d in keys]), rules)
    fit = fit_line(whole)
    assert not isinstance(fit, str)
    ok = gain > 8 and newest > 0
    return Report(
        "accepted" if ok else "no_improvement",
        {"kind": "platt", "a": fit.intercept, "b": fit.slope},
        int(whole.n.sum()),
        int(whole.pos.sum()),
    )
