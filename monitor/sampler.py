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
_HURRY = 0.2
"""When so much of the room is taken, a rate seen for a minute has to do; before it an hour is waited for."""
_AGAIN = 0.01
"""A plan is made anew each hour, and whenever so much more of the room is taken."""


@dataclass(slots=True)
class Sampler:
    """Volumes, probabilities to wait and audit rates by model; `rows` may wait in all.

    `model` gives the configuration of a name, `threshold` what (model, version) is flagged at.
    """

    rows: int
    model: Callable[[str], Model]
    threshold: Callable[[str, str], float | None]
    volumes: dict[str, Volume] = field(default_factory=dict)
    plans: dict[str, Floats] = field(default_factory=dict)
    planned: tuple[int, int] = (0, 0)

    def load(self, text: str) -> None:
        """Take what `dump` wrote."""
        body = json.loads(text)
        self.volumes = {name: Volume.from_json(volume) for name, volume in body["volumes"].items()}
        self.plans = {name: np.array(plan) for name, plan in body["plans"].items()}

    def dump(self) -> str:
        """Return the volumes and the plans as JSON, for the next start."""
        volumes = {name: volume.to_json() for name, volume in self.volumes.items()}
        return json.dumps({"volumes": volumes, "plans": {name: plan.tolist() for name, plan in self.plans.items()}})

    def idle(self, p: Predictions, waiting: int) -> bool:
        """Return whether nothing is to be drawn or counted for these predictions."""
        return waiting < _BEGIN * self.rows and not self.plans and not any(self.model(m).review for m, _ in p.version.names)

    def draw(self, p: Predictions, waiting: int, now: int) -> tuple[Drawn, Ints]:
        """Return what becomes of the predictions, and the class of each, to be given to `count`."""
        self._plan(waiting, now)
        n, u = len(p), sampling.draw(p.ids)
        of = sampling.classes(p.score, p.verdict, self._thresholds(p))
        wait, q = np.ones(n), np.zeros(n)
        audited = np.zeros(n, bool)
        until = np.zeros(n, np.int64)
        for code, (name, version) in enumerate(p.version.names):
            at = np.flatnonzero(p.version.codes == code)
            model = self.model(name)
            if name in self.plans:
                wait[at] = self.plans[name][of[at]]
            if (asked := self._asked(model, version, p, at, now)) is not None:
                q[asked] = sampling.audit(p.score[asked], model.review, self._expected(name, now) or 0.0)
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
        for name in {m for m, _ in p.version.names}:
            mine = np.array([m == name for m, _ in p.version.names])[p.version.codes] & fresh
            volume = self.volumes.get(name, Volume())
            self.volumes[name] = volume.add(p.ts[mine], p.score[mine], p.verdict[mine], of[mine])

    def _thresholds(self, p: Predictions) -> Floats:
        """Return the threshold of each row; far away from every score where there is none."""
        found = [self.threshold(*name) for name in p.version.names]
        return np.array([np.nan if t is None else t for t in found])[p.version.codes]

    def _asked(self, model: Model, version: str, p: Predictions, at: Ints, now: int) -> Ints | None:
        """Return the rows that the audit draws from: unflagged ones of a live version whose sender gave no `label_prob`."""
        if not model.review or model.role(version) != "live" or p.sent is None or self._expected(model.name, now) is None:
            return None
        given = np.zeros(len(p), bool) if p.label_prob is None else p.label_prob > 0
        asked: Ints = at[~FLAGGED[p.verdict[at]] & ~given[at]]
        return asked

    def _expected(self, name: str, now: int) -> float | None:
        found = self.volumes.get(name, Volume()).per_day(now)
        return None if found is None else found[1]

    def _plan(self, waiting: int, now: int) -> None:
        """Make the plan anew when an hour has passed or the room got scarcer."""
        hour, before = self.planned
        if now // HOUR == hour and waiting - before < _AGAIN * self.rows:
            return
        if waiting < _BEGIN * self.rows and not self.plans:
            return
        least = MINUTE if waiting > _HURRY * self.rows else HOUR
        rates = {name: rate for name, volume in self.volumes.items() if (rate := volume.per_day(now, least)) is not None}
        self.planned = now // HOUR, waiting
        if not rates:
            return
        labels = [self.model(name).labels for name in rates]
        days = np.array([(m.longest + m.corrections) / DAY + 2 for m in labels])
        made = sampling.plan(np.array([rate for rate, _ in rates.values()]), days, self.rows, waiting)
        plans = dict(zip(rates, made, strict=True))
        self.plans = {} if all((plan == 1).all() for plan in plans.values()) else plans
