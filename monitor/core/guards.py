"""Whether an alert may act. A decision always has a reason, also when it says no."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from monitor.core.events import DAY, Entry
from monitor.core.rules import Alert, Rule

MODES = ("off", "auto")
WATCHED = 7 * DAY
"""How long after its activation a policy's volume is compared with that of the policy before it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about an alert; `policy` is what to go back to."""

    action: str
    alert: Alert
    allowed: bool
    reason: str
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """The policies of one version as the journal tells it: a fold, stored nowhere.

    `served` lists (at in ms, policy id) in the order they became current; `bad` are those that were rolled back.
    """

    served: tuple[tuple[int, str], ...] = ()
    bad: frozenset[str] = field(default_factory=frozenset)
    forward: bool = False

    @property
    def current(self) -> str | None:
        """Return the policy that is served now."""
        return self.served[-1][1] if self.served else None

    @property
    def good(self) -> str | None:
        """Return the last policy in good standing before the current one."""
        return next((p for _, p in reversed(self.served[:-1]) if p not in self.bad and p != self.current), None)

    def after(self, entry: Entry) -> "Standing":
        """Return the standing after a journal entry."""
        if entry.kind not in ("activated", "rolled_back"):
            return self
        back = entry.kind == "rolled_back"
        bad = self.bad | {self.current} if back and self.current else self.bad - {entry.body["policy"]}
        return Standing((*self.served, (entry.at, entry.body["policy"])), frozenset(bad), not back)

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


def decide(alert: Alert, rule: Rule, mode: str, role: str, standing: Standing) -> Decision:
    """Return whether the rollback of an alert whose rule has that action is carried out.

    Going back to the last policy in good standing is always allowed once per activation, without cooldown or limit.
    """

    def no(reason: str) -> Decision:
        return Decision(rule.action, alert, False, reason)

    if mode == "off":
        return no("mode_off")
    if role != "live":
        return no("shadow")
    if standing.current is None:
        return no("no_policy")
    if not standing.forward:
        return no("already_rolled_back")
    if standing.good is None:
        return no("no_good_standing")
    return Decision(rule.action, alert, True, "allowed", standing.good)
