"""Which predictions wait for their label when not all can, and which are picked for review."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from monitor.config import Model
from monitor.core import sampling
from monitor.core.events import DAY, FLAGGED, HOUR, MINUTE, Bools, Floats, Ints, Predictions, prob_code
from monitor.core.sampling import Volume
from monitor.core.tables import NO_AUDIT, PASSED_OVER, PICKED
from monitor.store import Drawn

_BEGIN = 0.02
"""The volume is counted from the moment when so much of the room is taken; before it all wait."""
_HURRY = 0.05
"""When so much of the room is taken, a rate seen for a minute has to do; before it an hour is waited for."""
_AGAIN = 0.01
"""A plan is made anew each hour, and whenever so much more of the room is taken."""


@dataclass(slots=True)
class Sampler:
    """Volumes, probabilities to wait and audit rates by model; `rows` may wait in all.

    `model` gives the configuration of a name, `threshold` what (model, version) is flagged at, `review` how many predictions of
    a model are picked for review a day. All depends on the rows
    before only, until these show a rate also on the times and scores of a batch itself: every probability is fixed before
    its draw.
    """

    rows: int
    model: Callable[[str], Model]
    threshold: Callable[[str, str], float | None]
    review: Callable[[str], int]
    volumes: dict[str, Volume] = field(default_factory=dict)
    plans: dict[str, Floats] = field(default_factory=dict)
    sampled: bool = False
    unplanned: float = 1.0
    planned: tuple[int, int] = (0, 0)

    def load(self, text: str, known: Callable[[str], bool]) -> None:
        """Take what `dump` wrote of the models that are still known."""
        body = json.loads(text)
        self.volumes = {name: Volume.from_json(volume) for name, volume in body["volumes"].items() if known(name)}
        self.plans = {name: np.array(plan) for name, plan in body["plans"].items() if known(name)}
        self.sampled = any((plan < 1).any() for plan in self.plans.values())

    def dump(self) -> str:
        """Return the volumes and the plans as JSON, for the next start."""
        volumes = {name: volume.to_json() for name, volume in self.volumes.items()}
        return json.dumps({"volumes": volumes, "plans": {name: plan.tolist() for name, plan in self.plans.items()}})

    def idle(self, p: Predictions, waiting: int) -> bool:
        """Return whether nothing is to be drawn or counted for these predictions."""
        small = waiting + len(p) <= _BEGIN * self.rows
        return small and not self.sampled and not any(self.review(m) for m, _ in p.version.names)

    def picks_at_once(self, p: Predictions) -> int:
        """Return how many of these predictions may be picked before the rate is looked at again: a tenth of a day's."""
        budgets = [r for name, _ in p.version.names if (r := self.review(name))]
        return max(1, min(budgets, default=10) // 10)

    def draw(self, p: Predictions, waiting: int) -> tuple[Drawn, Ints]:
        """Return what becomes of the predictions, and the class of each, to be given to `count`."""
        self._plan(waiting)
        n, u = len(p), sampling.draw(p.ids)
        of = sampling.classes(p.score, p.verdict, self._thresholds(p))
        wait, q = np.ones(n), np.zeros(n)
        audited, reviewable = np.zeros(n, bool), self._reviewable(p)
        until = np.zeros(n, np.int64)
        for code, (name, _) in enumerate(p.version.names):
            at = np.flatnonzero(p.version.codes == code)
            model = self.model(name)
            wait[at] = self.plans[name][of[at]] if name in self.plans else self.unplanned
            if (review := self.review(name)) and p.sent is not None:
                asked = at[reviewable[at]]
                before = self.volumes.get(name, Volume())
                rate = before.per_day()
                if not rate or not rate[1]:
                    # A row that no audit drew from would need a label of its own, so the audit begins with the first one.
                    rate = before.add(p.ts[asked], of[asked], np.sqrt(p.score[asked])).per_day(0)
                q[asked] = sampling.audit(p.score[asked], review, rate[1] if rate else 0.0)
                # Where no label means negative, a pick only makes the label come earlier: its weight stays 1.
                unknown = np.array([rule.missing == "unknown" for rule in model.labels.rules])
                audited[asked] = unknown[p.verdict[asked]]
            until[at] = (p.ts[at] // DAY + 1) * DAY + model.labels.longest + model.labels.corrections
        wait = np.maximum(wait, q)
        picked = u < q
        audit = np.where(audited, np.where(picked, PICKED, PASSED_OVER), NO_AUDIT).astype(np.uint8)
        prob = np.where(audited, prob_code(np.where(audited, q, 1.0)), 0).astype(np.uint16)
        code_ = np.where(wait < 1, prob_code(wait), 0).astype(np.uint16)
        return Drawn(u < wait, code_, audit, prob, picked, until), of

    def count(self, p: Predictions, of: Ints, fresh: Bools) -> None:
        """Count new predictions into the volume of their model."""
        roots = np.where(self._reviewable(p), np.sqrt(p.score), 0.0)
        for name in {m for m, _ in p.version.names}:
            mine = np.array([m == name for m, _ in p.version.names])[p.version.codes] & fresh
            self.volumes[name] = self.volumes.get(name, Volume()).add(p.ts[mine], of[mine], roots[mine])

    def _thresholds(self, p: Predictions) -> Floats:
        """Return the threshold of each row; far away from every score where there is none."""
        found = [self.threshold(*name) for name in p.version.names]
        return np.array([np.nan if t is None else t for t in found])[p.version.codes]

    def _reviewable(self, p: Predictions) -> Bools:
        """Return the rows that the audit draws from: unflagged ones of a live version whose sender gave no `label_prob`."""
        live = np.array([self.model(m).role(v) == "live" for m, v in p.version.names])
        asked: Bools = live[p.version.codes] & ~FLAGGED[p.verdict]
        return asked if p.label_prob is None else asked & (p.label_prob == 0)

    def _plan(self, waiting: int) -> None:
        """Make the plan anew when an hour has passed or the room got scarcer."""
        newest = {name: volume.newest for name, volume in self.volumes.items() if volume.newest is not None}
        now = max(newest.values(), default=0)
        hour, before = self.planned
        if now // HOUR == hour and waiting - before < _AGAIN * self.rows:
            return
        self.unplanned = sampling.unplanned(self.rows, waiting)
        if waiting < _BEGIN * self.rows and not self.sampled:
            return
        self.planned = now // HOUR, waiting
        least = MINUTE if waiting > _HURRY * self.rows else HOUR
        # A model that went quiet needs room as long as its last rows stay; its volume is what it was.
        stays = {name: (m.longest + m.corrections) // DAY + 2 for name in newest for m in (self.model(name).labels,)}
        rates = {
            name: rate
            for name, at in newest.items()
            if now - at <= stays[name] * DAY and (rate := self.volumes[name].per_day(least)) is not None
        }
        volume = np.array([rate for rate, _ in rates.values()]).reshape(-1, sampling.CLASSES)
        days = np.array([float(stays[name]) for name in rates])
        made = sampling.plan(volume, days, self.rows, waiting)
        self.plans = dict(zip(rates, made, strict=True))
        self.sampled = any((plan < 1).any() for plan in self.plans.values())
