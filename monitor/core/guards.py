"""Whether an alert may change anything. A decision always has a reason, also when it says no."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.core.events import DAY, Entry
from monitor.core.policy import Limit

MODES = ("off", "propose", "auto")
WATCHED = 7 * DAY
"""How long after its activation a policy's volume is compared with that of the policy before it."""
QUIET = 7 * DAY
"""How long after a way back no alert changes a policy forward."""
OPEN = 7 * DAY
"""How long a proposal waits for a person; then what it was tested on is too old."""
VOLUME = (0.5, 1.5)
"""A change may flag so many times what the current policy flags on the same scores."""
FAULTS = ("pipeline_fault", "label_fault", "canary_fault")
"""Diagnoses of which no score is to blame."""
CHANGES = ("activated", "rolled_back")
"""Kinds of journal entries that say which policy is served from then on."""
UNDO = "undo"
"""The name under which the comparison with earlier policies decides, as a rule does."""
VOLUME_LIMIT = Limit("policy_volume", low=1 / 1.5, high=1.5)
UNDO_LIMIT = Limit(UNDO, high=math.log(20))
"""What undoes a policy: too many or too few flagged, or evidence of 20 to 1 that an earlier one serves better scores."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a rule on one version, and why; `policy` is the one to serve. `about` is what it rests on, as JSON.

    `reason` is a code of reasons.DECIDED; not `allowed` with the reason `proposed` it waits for a person.
    """

    model: str
    version: str
    rule: str
    action: str
    allowed: bool
    reason: str
    policy: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies the alert that it is about."""
        return self.model, self.version, self.rule


@dataclass(frozen=True, slots=True)
class Standing:
    """The policies of one version as the journal tells it: a fold, stored nowhere.

    `served` lists (at in ms, policy id) in the order they became current; `bad` are those that were rolled back, the last time
    at `back` (ms).
    """

    served: tuple[tuple[int, str], ...] = ()
    bad: frozenset[str] = field(default_factory=frozenset)
    forward: bool = False
    back: int | None = None

    @property
    def current(self) -> str | None:
        """Return the policy that is served now."""
        return self.served[-1][1] if self.served else None

    @property
    def earlier(self) -> tuple[str, ...]:
        """Return the policies in good standing before the current one, the last one first."""
        good = (p for _, p in reversed(self.served[:-1]) if p not in self.bad and p != self.current)
        return tuple(dict.fromkeys(good))

    @property
    def good(self) -> str | None:
        """Return the last policy in good standing before the current one."""
        return next(iter(self.earlier), None)

    def after(self, entry: Entry) -> "Standing":
        """Return the standing after a journal entry."""
        if entry.kind not in CHANGES:
            return self
        back = entry.kind == "rolled_back"
        bad = self.bad | {self.current} if back and self.current else self.bad - {entry.body["policy"]}
        served = (*self.served, (entry.at, entry.body["policy"]))
        return Standing(served, frozenset(bad), not back, entry.at if back else self.back)

    def watched(self, now: int) -> bool:
        """Return whether policy volume is looked at: after a forward activation, for seven days, with something to go back to."""
        return self.forward and self.good is not None and now - self.served[-1][0] <= WATCHED


def standings(entries: Iterable[Entry]) -> dict[tuple[str, str], Standing]:
    """Return the standing of each (model, version) as the fold of the journal."""
    out: dict[tuple[str, str], Standing] = {}
    for entry in entries:
        key = entry.model, entry.version
        out[key] = out.get(key, Standing()).after(entry)
    return out


def may_act(mode: str, role: str) -> str:
    """Return why alerts of a version change nothing, or an empty text."""
    return "mode_off" if mode == "off" else "shadow" if role != "live" else ""


def may_go_back(mode: str, role: str, standing: Standing) -> str:
    """Return why the rule of an alert may not go back to the last policy in good standing, or an empty text.

    It may once per activation, without cooldown or limit of volume.
    """
    if no := may_act(mode, role):
        return no
    if standing.current is None:
        return "no_policy"
    if not standing.forward:
        return "already_rolled_back"
    return "" if standing.good is not None else "no_good_standing"


def may_go_forward(
    mode: str,
    role: str,
    standing: Standing,
    diagnosis: str,
    validated: bool,
    waits: bool,
    enough: bool,
    rested: bool,
    now: int,
    horizon: int,
) -> str:
    """Return why no change may be tested for a version now, or an empty text.

    `diagnosis` is what is likely wrong, `validated` says whether validation promised the version something, `waits` whether a
    proposal is open, `enough` whether enough mature rows have an outcome, `rested` whether QUIET is over since a person rejected
    a proposal. There is one change in a `horizon` (ms), and none within QUIET of a way back.
    """
    if no := may_act(mode, role):
        return no
    if not validated:
        return "not_validated"
    if diagnosis in FAULTS:
        return "other_fault"
    if waits:
        return "proposal_open"
    if not rested:
        return "rejected"
    if standing.back is not None and now - standing.back < QUIET:
        return "quiet"
    if standing.served and now - standing.served[-1][0] < horizon:
        return "cooldown"
    return "" if enough else "few_outcomes_yet"


def within_volume(ratio: float) -> bool:
    """Return whether a policy flags no more and no less than it may against the current one on the same scores."""
    return VOLUME[0] <= ratio <= VOLUME[1]
