"""Which policy each version is served: the folders, what the journal says of them, and the verdicts they give."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.actions.rollback import Change, Pointer, Policies, PolicyError, activate, carry_out, checksum, draft, rollback
from monitor.config import Model
from monitor.core.events import NONE, UNDECIDED, Entry, Ints, Predictions
from monitor.core.guards import CHANGES, Standing
from monitor.core.policy import IDENTITY, Policy, bands, decide, from_json, verdicts
from monitor.core.policy import policy as compose
from monitor.store import Store

log = logging.getLogger("scorewatch")


class Planned(NamedTuple):
    """A change of one model's policy that the journal gets before current.json follows it."""

    model: str
    change: Change


class Served:
    """The standing of every version is a fold of the journal; current.json says what is served and follows the journal.

    `model` returns the configuration of a model by its name, `carried` is the last journal entry that current.json followed
    when the agent last recorded. Methods raise PolicyError with a message for a person.
    """

    def __init__(self, store: Store, model: Callable[[str], Model], journal: Iterable[Entry], carried: int) -> None:
        self.store, self.model = store, model
        self.standings: dict[tuple[str, str], Standing] = {}
        self._last: dict[tuple[str, str], Entry] = {}
        self._folders: dict[str, Policies] = {}
        self._loaded: dict[tuple[str, str, str], Policy] = {}
        self._configured: dict[tuple[str, str, float], Policy] = {}
        self.failures = 0
        self._behind: set[tuple[str, str]] = set()
        self._said: set[str] = set()
        for entry in journal:
            self.after(entry)
        self._behind = {key for key, entry in self._last.items() if entry.seq > carried and self._unfinished(key, entry)}

    def _unfinished(self, key: tuple[str, str], entry: Entry) -> bool:
        """Return whether current.json still says what it said before the entry: nobody has written it since."""
        try:
            pointer = self.folder(key[0]).current(key[1])
        except (PolicyError, KeyError):  # unreadable, or of a model that is no longer configured
            return False
        return bool((None if pointer is None else asdict(pointer)) == entry.body["before"])

    def lags(self, name: str, version: str) -> bool:
        """Return whether current.json does not follow the journal yet."""
        return (name, version) in self._behind

    def folder(self, name: str) -> Policies:
        """Return the policies folder of a model."""
        if name not in self._folders:
            self._folders[name] = Policies(self.model(name).policies or self.store.place("policies", name), name)
        return self._folders[name]

    def standing(self, name: str, version: str) -> Standing:
        """Return the standing of a version's policies."""
        return self.standings.get((name, version), Standing())

    def last(self, name: str, version: str) -> Entry | None:
        """Return the journal's last entry that changed which policy a version is served."""
        return self._last.get((name, version))

    def policy(self, name: str, version: str, ident: str | None) -> Policy | None:
        """Return a policy from memory or its file, None when it cannot be used; policies never change, so one look is enough."""
        if ident is None:
            return None
        key = name, version, ident
        if key not in self._loaded:
            try:
                self._loaded[key] = self.folder(name).read(version, ident)
            except PolicyError as e:
                if ident == self.standing(name, version).current:
                    self._fail(e)  # others are named by events, which are rejected and counted for it
                return None
        return self._loaded[key]

    def current(self, name: str, version: str) -> Policy | None:
        """Return the policy that is served."""
        return self.policy(name, version, self.standing(name, version).current)

    def deciding(self, name: str, version: str) -> Policy | None:
        """Return the policy that is served, else one of the configured threshold (its id is empty), else None."""
        policy, configured = self.current(name, version), self.model(name).threshold
        if policy is not None or configured is None:
            return policy
        key = name, version, configured
        if key not in self._configured:
            self._configured[key] = compose("", name, version, {"all": configured})
        return self._configured[key]

    def calibrated_at(self, name: str, version: str) -> int | None:
        """Return since when (ms) scores have been served by the calibrator that serves them now, None when that was always so."""
        current, since = self.current(name, version), None
        if current is None:
            return None
        for at, ident in reversed(self.standing(name, version).served):
            policy = self.policy(name, version, ident)
            if policy is None or policy.calibrator != current.calibrator:
                return since
            since = at
        return since if current.calibrates else None

    def threshold(self, name: str, version: str) -> float | None:
        """Return the served score at or above which a case is flagged, None where nothing says so."""
        policy = self.deciding(name, version)
        return None if policy is None else policy.threshold

    def cut(self, name: str, version: str) -> float | None:
        """Return the lowest score of the model at which a case is flagged, None where nothing says so."""
        policy = self.deciding(name, version)
        return None if policy is None else policy.cut

    # Verdicts.

    def verdicts(self, p: Predictions) -> tuple[Predictions, NDArray[np.bool_]]:
        """Return the predictions with what the policy says where the event gave no verdict, and which name an unknown policy."""
        verdict = p.verdict.copy()
        unknown = np.zeros(len(p), bool)
        for code, (name, version) in enumerate(p.version.names):
            mine = (p.version.codes == code) & (verdict == UNDECIDED)
            for named_code, named in enumerate(p.policy.names if mine.any() else ()):
                at = np.flatnonzero(mine & (p.policy.codes == named_code))
                if not len(at):
                    continue
                if named:
                    policy = self.policy(name, version, named)
                    unknown[at] = policy is None
                    verdict[at] = NONE if policy is None else _verdicts(policy, p, at)
                else:
                    verdict[at] = self._current_verdicts(name, version, p, at)
        return replace(p, verdict=verdict), unknown

    def _current_verdicts(self, name: str, version: str, p: Predictions, at: Ints) -> NDArray[np.uint8]:
        """Return what the policy says that was current at each event's time; before the first one, the configured threshold."""
        served = self.standing(name, version).served
        configured = self.model(name).threshold
        out = np.full(len(at), NONE, np.uint8) if configured is None else decide(bands(configured), p.score[at])
        which = np.searchsorted(np.array([since for since, _ in served], np.int64), p.ts[at], side="right") - 1
        for i in np.unique(which).tolist():
            policy = self.policy(name, version, served[i][1]) if i >= 0 else None
            if policy is not None:
                out[which == i] = _verdicts(policy, p, at[which == i])
        return out

    # Changes: planned, journalled by the caller, then carried out.

    def activation(
        self,
        name: str,
        version: str,
        who: str,
        reason: str,
        at: int,
        policy: Policy | Mapping[str, Any] | None = None,
        threshold: float | None = None,
    ) -> Planned:
        """Return the change that makes a policy (also given as JSON, or the next one with a threshold) current."""
        if isinstance(policy, Policy):
            chosen = policy
        elif policy is not None:
            try:
                given = from_json(json.dumps(policy))
            except ValueError as e:
                raise PolicyError(str(e)) from None
            if given.id:
                chosen = replace(given, checksum=given.checksum or checksum(given))
            else:
                undo = given.undo or self.model(name).undo
                chosen = self.draft(name, version, at, lambda ident: replace(given, id=ident, undo=undo))
        elif threshold is not None and 0.0 <= threshold <= 1.0:
            chosen = self._next(name, version, threshold, {"who": who, "reason": reason, "at": at})
        else:
            raise PolicyError(f"the threshold must be in [0, 1], found {threshold}")
        return Planned(name, activate(self.folder(name), version, chosen, who, reason, at))

    def _next(self, name: str, version: str, threshold: float, provenance: dict[str, Any]) -> Policy:
        """Write the next policy with a threshold; scores are served, reviewed and abstained from as the current one says."""
        now = self.current(name, version)
        calibrator, review, abstain = (now.calibrator, now.review, now.abstain) if now else (IDENTITY, None, None)
        undo = self.model(name).undo

        def make(ident: str) -> Policy:
            return compose(ident, name, version, {"all": threshold}, calibrator, undo, provenance, review, abstain)

        return self.draft(name, version, provenance["at"], make)

    def first(self, name: str, version: str, at: int, reason: str) -> Policy:
        """Write the policy of the configured threshold, without serving it."""
        threshold = self.model(name).threshold
        assert threshold is not None
        return self._next(name, version, threshold, {"who": "agent", "reason": reason, "at": at})

    def draft(self, name: str, version: str, at: int, make: Callable[[str], Policy]) -> Policy:
        """Write the next policy of a version, which `make` returns for its id, without serving it."""
        return draft(self.folder(name), version, at, make)

    def way_back(self, name: str, version: str, who: str, reason: str, at: int, to: str | None = None) -> Planned:
        """Return the change that goes back to a policy, the last one in good standing unless it is named."""
        to = to or self.standing(name, version).good
        if to is None:
            raise PolicyError(f"{name} {version} has no earlier policy in good standing to go back to")
        return Planned(name, rollback(self.folder(name), version, to, who, reason, at))

    def found(self, versions: Iterable[tuple[str, str]], last: int | None, now: int) -> list[Planned]:
        """Return the changes of current.json that somebody made and the journal does not have."""
        out = []
        for name, version in versions:
            try:
                out += self._explain(name, version, last, now)
            except PolicyError as e:
                self._fail(e)
        return out

    def _explain(self, name: str, version: str, last: int | None, now: int) -> list[Planned]:
        """Return the change somebody made to current.json since the journal's last entry, or nothing."""
        entry = self._last.get((name, version))
        if (name, version) in self._behind:
            return []
        pointer = self.folder(name).current(version)
        known = None if entry is None else {key: entry.body[key] for key in ("policy", "who", "reason", "at")}
        if pointer is None:
            if entry is not None:
                raise PolicyError(
                    f"{self.folder(name).of(version)}/current.json is gone; policy {entry.body['policy']} is served on"
                )
            return []
        if pointer.policy == self.standing(name, version).current:
            return []
        self.folder(name).read(version, pointer.policy)
        back = pointer.policy == self.standing(name, version).good
        dated = replace(pointer, at=min(max(pointer.at, last or pointer.at), now))
        return [Planned(name, Change("rolled_back" if back else "activated", version, dated, {**asdict(dated), "before": known}))]

    def _fail(self, e: PolicyError) -> None:
        """Count what is wrong with a policies folder; the log says it once."""
        self.failures += 1
        if str(e) not in self._said:
            log.error("%s", e)
            self._said.add(str(e))

    @property
    def carried(self) -> int:
        """Return the journal entry up to which every current.json follows."""
        behind = [self._last[key].seq - 1 for key in self._behind]
        return min(behind, default=max((e.seq for e in self._last.values()), default=0))

    def follow_journal(self, versions: Iterable[tuple[str, str]]) -> None:
        """Let every current.json follow the journal that does not yet; what fails is tried again at the next tick."""
        for name, version in versions:
            if (name, version) in self._behind:
                try:
                    self.carry_out(name, version)
                except PolicyError as e:
                    self._fail(e)

    def carry_out(self, name: str, version: str) -> None:
        """Let current.json of a version follow the journal."""
        entry = self._last[name, version]
        pointer = Pointer(*(entry.body[key] for key in ("policy", "who", "reason", "at")))
        said = self.folder(name).current(version)
        # What a person just wrote leads to the same policy; writing it again could only overwrite what they write next.
        if said is None or said.policy != pointer.policy:
            carry_out(self.folder(name), Change(entry.kind, version, pointer, entry.body))
        self._behind.discard((name, version))

    def after(self, entry: Entry) -> None:
        """Fold a journal entry."""
        if entry.kind in CHANGES:
            key = entry.model, entry.version
            self.standings[key] = self.standing(*key).after(entry)
            self._last[key] = entry
            self._behind.add(key)


def _verdicts(policy: Policy, p: Predictions, at: Ints) -> NDArray[np.uint8]:
    """Return the verdicts of a policy on some of the predictions."""
    return verdicts(policy, p.score[at], p.combo.take(at), None if p.margin is None else p.margin[at])
