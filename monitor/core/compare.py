"""Two policies or two versions on the same days."""

from monitor.core.intervals import Measured
from monitor.core.readings import Reading
from monitor.core.tables import EDGES


def flagged_at(reading: Reading, threshold: float) -> int:
    """Return how many rows a threshold flags; exact for thresholds on grid edges, which those of policies are."""
    return int(reading.n[EDGES[reading.bin] >= threshold].sum())


def policy_volume(reading: Reading, current: float, previous: float) -> Measured | str:
    """Return flagged by the current threshold over flagged by the previous one on the same scores.

    It has no sampling error: both counts are of the same rows. Where the previous policy flags nothing, one is put in
    its place, so that a new policy that flags a lot is not undefined.
    """
    if not len(reading.n):
        return "no_events"
    now, before = flagged_at(reading, current), flagged_at(reading, previous)
    ratio = 1.0 if now == before else now / max(before, 1)
    return Measured(ratio, ratio, ratio, int(reading.n.sum()))
