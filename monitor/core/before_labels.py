"""What is estimated before labels come, and what such estimates were worth on days that matured."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from monitor.core import readings
from monitor.core.days import Key
from monitor.core.intervals import student
from monitor.core.metrics import Estimate, measure
from monitor.core.quantify import Classes, Quantified, histogram_ml
from monitor.core.readings import LabelRule, Reading
from monitor.core.tables import Table

ESTIMATED = ("prevalence", "recall", "precision")
"""Not the calibration: of outcomes that scores imply it has no error."""
MIN_DAYS = 7


@dataclass(frozen=True, slots=True)
class Error:
    """Estimated less matured on whole days: its mean, the root of its mean square, and how many days."""

    mean: float
    rms: float
    days: int


def before_labels(
    table: Table, validation: Classes | None, key: Key, window: str, errors: Mapping[str, Error]
) -> tuple[Estimate, ...]:
    """Return the estimates of ESTIMATED for rows of which nobody knows outcomes; to be shown, never acted on.

    Where earlier estimates are known to have been off (`errors`), an interval reaches at least t rms to both sides, t the
    quantile of Student's t for as many days. The prevalence is shown without interval where its model does not fit.
    """
    if validation is None:
        reading = replace(readings.scored(table), basis="estimated", reason="no_baseline", flagged_reason="no_baseline")
        return measure(reading, key, window, names=ESTIMATED)
    live = readings.scored(table)
    found = live.reason or histogram_ml(live.bin, live.n, validation)
    return tuple(_widened(e, errors.get(e.metric)) for e in _made(live, validation, found, key, window))


def _made(live: Reading, validation: Classes, found: Quantified | str, key: Key, window: str) -> tuple[Estimate, ...]:
    """Return the estimates that follow from the prevalence that was `found`."""
    made = measure(readings.estimated(live, validation, found), key, window, names=ESTIMATED)
    if isinstance(found, str):
        return made
    value, low, high, n, reason = found.measured
    if live.groups is not None and not reason:
        low, high, reason = None, None, "clustered"
    prevalence = Estimate("prevalence", key, window, "estimated", value, low, high, n, interval_reason=reason)
    return tuple(prevalence if e.metric == "prevalence" else e for e in made)


def _widened(e: Estimate, error: Error | None) -> Estimate:
    if error is None or e.value is None or e.low is None or e.high is None:
        return e
    half = student(error.days) * error.rms
    return replace(e, low=max(0.0, min(e.low, e.value - half)), high=min(1.0, max(e.high, e.value + half)))


def off(table: Table, validation: Classes, rules: tuple[LabelRule, ...]) -> dict[str, float]:
    """Return estimated less matured of a whole mature day, for each estimate that both can tell.

    Also where the scores were not explained and nothing would have been said: on days like those before, that the scores can be
    explained is no reason to believe them.
    """
    key, live = Key("", "", "all", 0), readings.scored(table)
    found = live.reason or histogram_ml(live.bin, live.n, validation)
    made = _made(live, validation, found if isinstance(found, str) else replace(found, fit=1.0), key, "")
    matured = measure(readings.mature(table, rules), key, "", names=ESTIMATED)
    pairs = zip(made, matured, strict=True)
    return {e.metric: e.value - m.value for e, m in pairs if e.value is not None and m.value is not None}


def errors(days: Iterable[Mapping[str, float]]) -> dict[str, Error]:
    """Return from what is `off` on each day what estimates were worth; with fewer than 7 days nothing is said."""
    by_day = list(days)
    out = {}
    for name in ESTIMATED:
        d = [day[name] for day in by_day if name in day]
        if len(d) >= MIN_DAYS:
            out[name] = Error(sum(d) / len(d), math.sqrt(sum(x * x for x in d) / len(d)), len(d))
    return out


def worth(found: Mapping[str, Error], key: Key, reason: str = "few_compared_days") -> tuple[Estimate, ...]:
    """Return the mean errors as estimates named `prevalence_bias` and so on; `reason` says why one is missing."""
    return tuple(
        Estimate(f"{name}_bias", key, "28d", "estimated", e.mean, None, None, e.days)
        if (e := found.get(name))
        else Estimate(f"{name}_bias", key, "28d", "estimated", None, None, None, 0, reason)
        for name in ESTIMATED
    )
