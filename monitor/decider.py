"""What alerts lead to: trials, proposals, changes of policies and ways back, each with a reason in the journal."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monitor.actions.recalibrate import Trial
from monitor.actions.rollback import PolicyError
from monitor.config import Model
from monitor.core import guards, readings
from monitor.core.compare import counted, log_ratio, policy_volume, under, undo_step
from monitor.core.days import iso
from monitor.core.diagnosis import Diagnosis
from monitor.core.events import DAY, Entry
from monitor.core.guards import Decision
from monitor.core.metrics.counts import size
from monitor.core.policy import Calibrator, Policy, policy, with_calibrator
from monitor.core.readings import Reading
from monitor.core.rules import ACTIONS, Alert, Rule
from monitor.core.tables import total
from monitor.core.thresholds import Choice, by_slice, choose, thresholds
from monitor.served import Planned, Served
from monitor.watched import Watched

log = logging.getLogger("scorewatch")

CLOSED = ("expired", "superseded")
"""Why the agent itself closes a proposal."""
BY_HAND = "by hand"
"""Stands for the rule where a person asks for a trial."""

Key = tuple[str, str, str]
Name = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Testing:
    """A trial that runs for the rule in `key`, or for a person, on `days`; the policy of the version `watched` then was `policy`.

    `who` asked for it and said `why`.
    """

    key: Key
    who: str
    why: str
    watched: Watched
    policy: Policy
    days: tuple[int, ...]
    trial: Trial


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tick decided: decisions, changes of which policy is served (first those that others made), other journal entries
    (kind, model, version, body).
    """

    decisions: list[Decision] = field(default_factory=list)
    changes: list[Planned] = field(default_factory=list)
    entries: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)


class Decider:
    """All of it but a running trial is a fold of the journal.

    `decided` is the last reason by alert, `failing` are alerts whose action failed and is tried again, `proposals` the open
    ones by number, `last` when a rule last decided what by version, `rejected` when a person last rejected which action of a
    version, `late` are alerts whose trial waits for another one to end. `evidence` is ln of how much better earlier policies
    would have served than the current one, by version and policy. `asked` are the trials that people wait for.
    `count(name, by, **labels)` counts something the exporter shows.
    """

    def __init__(self, served: Served, version: str, count: Callable[..., None]) -> None:
        self.served, self.version, self.count = served, version, count
        self.decided: dict[Key, str] = {}
        self.failing: set[Key] = set()
        self.proposals: dict[int, Entry] = {}
        self.last: dict[Name, dict[str, tuple[str, str, int]]] = {}
        self.late: set[Key] = set()
        self.rejected: dict[Key, int] = {}
        self.testing: Testing | None = None
        self.asked: list[Testing] = []
        self.evidence: dict[Name, dict[str, float]] = {}
        self._compared_at: dict[Name, tuple[Any, dict[str, float]]] = {}

    def close(self) -> None:
        """End the trials that run."""
        for t in (*self.asked, *((self.testing,) if self.testing is not None else ())):
            t.trial.end()
        self.testing, self.asked = None, []

    def after(self, entry: Entry) -> None:
        """Fold a journal entry."""
        if entry.kind == "decision":
            key = entry.model, entry.version, entry.body["rule"]
            self.decided[key] = entry.body["reason"]
            said = entry.body["action"], entry.body["reason"], entry.at
            self.last.setdefault(key[:2], {})[key[2]] = said
            (self.failing.add if entry.body["reason"] == "failed" else self.failing.discard)(key)
        elif entry.kind == "alert" and entry.body["state"] == "resolved":
            self.forget((entry.model, entry.version, entry.body["rule"]))
        elif entry.kind == "proposal":
            self.proposals[entry.seq] = entry
        elif entry.kind == "answer":
            of = self.proposals.pop(entry.body["proposal"], None)
            # A person may write one of these words, and may be called agent.
            closed = entry.who == "agent" and entry.body["reason"] in CLOSED
            if of is not None and not entry.body["approved"] and not closed:
                self.rejected[of.model, of.version, of.body["action"]] = entry.at
            if of is not None and closed and entry.body["reason"] == "expired":
                self.decided.pop((of.model, of.version, of.body["rule"]), None)  # it is decided anew, as of a new alert

    def shown(self, name: Name) -> dict[str, Any]:
        """Return what the snapshot says of a version."""
        waiting = [e.body["action"] for e in self.proposals.values() if (e.model, e.version) == name]
        return {
            "undo": self.evidence.get(name, {}),
            "proposals": {action: waiting.count(action) for action in ("recalibrate", "rollback")},
            "decided": {(rule, action, reason): at for rule, (action, reason, at) in self.last.get(name, {}).items()},
        }

    def forget(self, key: Key) -> None:
        """Forget what was decided about an alert that ended: should it fire again, it is another one."""
        self.decided.pop(key, None)
        self.failing.discard(key)
        self.late.discard(key)

    def step(
        self,
        alerts: Iterable[Alert],
        diagnoses: Mapping[Key, Diagnosis],
        active: Sequence[Watched],
        now: int,
        found: Iterable[Planned],
        matured: Collection[int],
        wait: bool,
    ) -> Outcome:
        """Decide about every alert that fires, about the policies that serve, and about the trial that ended.

        What others were `found` to have changed is left as it is by this tick. Days of the versions in `matured` (codes) have
        matured with it. With `wait` each trial is waited for, so that what happens does not hang on how fast a machine is.
        """
        out, spoken = Outcome(changes=list(found)), {w.name: w for w in active}
        firing = [a for a in alerts if a.state == "firing"]
        for key in (
            self.decided.keys() - {a.key for a in firing} - {(*w.name, name) for w in active for name in (guards.UNDO, BY_HAND)}
        ):
            self.forget(key)
        self._close_old(out, now)
        for w in active:
            self._undo(w, out, now)
        for alert in firing:
            w, rule = spoken[alert.key[:2]], _rule(spoken[alert.key[:2]], alert)
            if rule.action == "rollback":
                self._roll_back(w, alert, out, now)
            elif rule.action not in ACTIONS:
                self._hand_on(w, alert, rule, out)
        self._conclude(out, now, wait)
        for alert in firing:
            w = spoken[alert.key[:2]]
            # A trial that ended with the agent has led to nothing: it is begun again.
            lost = alert.key not in self.decided and self.testing is None
            tried_now = alert.since == now or w.code in matured or alert.key in self.late or lost
            if _rule(w, alert).action == "recalibrate" and tried_now:
                self._recalibrate(w, alert, diagnoses[alert.key].code, out, now)
                if wait:
                    self._conclude(out, now, wait)
        return out

    # Ways back.

    def _roll_back(self, w: Watched, alert: Alert, out: Outcome, now: int) -> None:
        """Go back to the last policy in good standing, once per alert; what fails is tried again at every tick."""
        if not self._undecided(w, alert) or _changes(w.name, out):
            return
        standing = self.served.standing(*w.name)
        no = guards.may_go_back(w.model.mode, w.role, standing)
        decision = Decision(*alert.key, "rollback", not no, no or "allowed", None if no else standing.good)
        self._go_back(w, decision, f"{alert.rule} is firing", out, now)

    def _go_back(self, w: Watched, decision: Decision, why: str, out: Outcome, now: int) -> None:
        """Decide for a way back: carry it out in the mode auto, else propose it."""
        if decision.allowed and w.model.mode == "propose":
            decision = replace(decision, allowed=False, reason="proposed")
            if any(
                e.model == w.model.name and e.version == w.version and e.body["policy"] == decision.policy
                for e in self.proposals.values()
            ):
                decision = replace(decision, reason="proposal_open")
        if decision.allowed:
            try:
                out.changes.append(self.served.way_back(*w.name, "agent", why, now, decision.policy))
            except PolicyError as e:
                decision = self._failed(decision, e)
        self._say(decision, out)

    def _failed(self, decision: Decision, e: PolicyError) -> Decision:
        self.count("scorewatch_action_failures_total", 1, action=decision.action)
        if decision.key not in self.failing:
            log.error("%s of %s %s: %s; it is tried again at every tick", decision.action, decision.model, decision.version, e)
        self.failing.add(decision.key)
        return replace(decision, allowed=False, reason="failed")

    def _undo(self, w: Watched, out: Outcome, now: int) -> None:
        """Compare a policy that calibrates with the last that served other scores and with the last that left them as they are.

        On each mature day that was not mature yet when its calibrator came: e <- max(e, 1) LR, and at e >= 20 the best of them
        comes back.
        """
        standing, current = self.served.standing(*w.name), self.served.current(*w.name)
        self.evidence.pop(w.name, None)
        limit = next((x.high for x in current.undo if x.metric == guards.UNDO), None) if current is not None else None
        if current is None or not current.calibrates or limit is None or guards.may_act(w.model.mode, w.role):
            return
        if _changes(w.name, out):
            return
        earlier = [p for ident in standing.earlier if (p := self.served.policy(*w.name, ident)) is not None]
        others = [p for p in earlier if p.calibrator != current.calibrator]
        others = list({p.id: p for p in (*others[:1], *[p for p in others if not p.calibrates][:1])}.values())
        came = self.served.calibrated_at(*w.name)
        if not others or came is None:
            return
        since = w.newest_mature(came) + 1
        self.evidence[w.name] = found = self._compared(w, current, others, since)
        best = max(found, key=lambda ident: found[ident])
        key = *w.name, guards.UNDO
        if found[best] < limit:
            self.decided.pop(key, None)
            return
        # A way back waits for no answer about a way forward.
        if w.model.mode == "propose" and (self._waits(w.name, "rollback") or not self._rested(w.name, now, "rollback")):
            return
        about = {"log_e": found, "limit": limit, "days": [iso(d * DAY)[:10] for d in w.closed_since(since)]}
        decision = Decision(*key, "rollback", True, "outserved", best, about)
        why = f"policy {best} would have served the outcomes since {iso(since * DAY)[:10]} better, ln e = {found[best]:.1f}"
        self._go_back(w, decision, why, out, now)

    def _compared(self, w: Watched, current: Policy, others: Sequence[Policy], since: int) -> dict[str, float]:
        """Return ln of the evidence by other policy, made anew only when a day was closed or counted again."""
        state = w.revision, current.id, since, tuple(p.id for p in others)
        known = self._compared_at.get(w.name)
        if known is None or known[0] != state:
            found = {p.id: 0.0 for p in others}
            for day in w.closed_since(since):
                reading = readings.judged(w.whole_day(day, closed=True)["all"], w.model.labels.rules)
                for p in others if not reading.reason else ():
                    found[p.id] = undo_step(found[p.id], log_ratio(reading, p.calibrator, current.calibrator))
            known = state, found
            self._compared_at[w.name] = known
        return known[1]

    # Ways forward.

    def _recalibrate(self, w: Watched, alert: Alert, diagnosis: str, out: Outcome, now: int) -> None:
        """Begin a trial on the mature days if nothing speaks against a change, after another one that runs."""
        if self.testing is not None or _changes(w.name, out) or any(d.key[:2] == w.name for d in out.decisions):
            self.late.add(alert.key)
            return
        self.late.discard(alert.key)
        policy = self._tried_against(w)
        standing = self.served.standing(*w.name)
        outcomes = readings.mature(total([t["all"] for t in w.days.values()]), w.model.labels.rules)
        no = guards.may_go_forward(
            w.model.mode,
            w.role,
            standing,
            diagnosis,
            validated=w.baseline is not None and w.baseline.promises,
            waits=self._waits(w.name),
            enough=size(outcomes) >= w.model.recalibrate.rows,
            rested=self._rested(w.name, now),
            now=now,
            horizon=w.model.labels.longest,
        )
        if no or policy is None:
            self._say(Decision(*alert.key, "recalibrate", False, no or "no_policy"), out)
            return
        try:
            self.testing = self._begin(alert.key, "agent", f"{alert.rule} is firing", w, policy)
        except PolicyError as e:
            log.error("recalibrate of %s %s: %s", *w.name, e)
            self._say(Decision(*alert.key, "recalibrate", False, "trial_failed"), out)

    def _tried_against(self, w: Watched) -> Policy | None:
        """Return the policy that decides now, None where nobody knows: the one that is served cannot be read."""
        lost = self.served.current(*w.name) is None and self.served.standing(*w.name).current is not None
        return None if lost else self.served.deciding(*w.name)

    def _waits(self, name: Name, *actions: str) -> bool:
        """Return whether a proposal for a version is open, of these actions or of any."""
        return any((e.model, e.version) == name and e.body["action"] in (actions or ACTIONS) for e in self.proposals.values())

    def _rested(self, name: Name, now: int, *actions: str) -> bool:
        """Return whether no person rejected a proposal for a version lately, of these actions or of any."""
        return all(now - self.rejected.get((*name, action), -guards.QUIET) >= guards.QUIET for action in actions or ACTIONS)

    def _begin(self, key: Key, who: str, why: str, w: Watched, policy: Policy) -> Testing:
        days = {d: w.tables_of(d) for d in sorted(w.days)}
        folder = self.served.store.place("trial", key[2])
        try:
            trial = Trial(folder, days, w.model.labels.rules, policy.calibrator, w.model.recalibrate.limit)
        except OSError as e:
            raise PolicyError(f"the trial cannot begin ({e.strerror}); it is tried again when other days mature") from None
        return Testing(key, who, why, w, policy, tuple(days), trial)

    def ask(self, w: Watched, who: str, why: str) -> Testing:
        """Begin a trial that a person asks for; raise PolicyError when there is nothing to try."""
        policy = self._tried_against(w)
        if policy is None:
            raise PolicyError(f"{w.model.name} {w.version} has no policy that can be read, or no threshold; activate one first")
        if not w.days:
            raise PolicyError(f"{w.model.name} {w.version} has no mature day yet")
        self.asked.append(self._begin((*w.name, BY_HAND), who, why, w, policy))
        return self.asked[-1]

    def told(self, testing: Testing, now: int, wait: bool) -> Outcome | None:
        """Return what a person's trial led to, None while it runs; a change that won it is proposed, whatever the mode."""
        report = testing.trial.outcome(wait)
        if report is None:
            return None
        self.asked.remove(testing)
        out = Outcome()
        self._judge(testing, report, out, now)
        return out

    def _conclude(self, out: Outcome, now: int, wait: bool) -> None:
        """Decide about the trial that ended."""
        if self.testing is None or (report := self.testing.trial.outcome(wait)) is None:
            return
        t, self.testing = self.testing, None
        self._judge(t, report, out, now)

    def _judge(self, t: Testing, report: dict[str, Any], out: Outcome, now: int) -> None:
        """Decide about the report of a trial."""
        w = t.watched
        decision = Decision(*t.key, "recalibrate", False, report["reason"], None, {"report": report})
        current = self._tried_against(w)
        if current is None or current.id != t.policy.id or _changes(w.name, out):
            self._say(replace(decision, reason="overtaken"), out)
            return
        if report["reason"] != "accepted":
            self._say(decision, out)
            return
        if self._waits(w.name):
            self._say(replace(decision, reason="proposal_open"), out)
            return
        self._apply(t, report, out, now)

    def _apply(self, t: Testing, report: dict[str, Any], out: Outcome, now: int) -> None:
        """Write the policy of a trial that was won, unless it flags another volume than it may, and serve or propose it."""
        w = t.watched
        days = {d: w.tables_of(d) for d in t.days if d in w.days}
        summed = {name: total([tables[name] for tables in days.values() if name in tables]) for name in w.slices}
        scored = {name: readings.scored(t) for name, t in summed.items()}
        mature = {name: readings.mature(t, w.model.labels.rules) for name, t in summed.items()}
        decision = Decision(*t.key, "recalibrate", False, "proposed", None, {"report": report})
        first, last = (iso(d * DAY)[:10] for d in (t.days[0], t.days[-1]))
        provenance: dict[str, Any] = {
            "who": t.who,
            "reason": t.why,
            "at": now,
            "baseline": w.baseline.checksum if w.baseline else "",
            "data": {"first_day": first, "last_day": last, "rows": report["rows"], "positives": report["positives"]},
            "code": self.version,
        }
        calibrator, chosen = report["calibrator"], _chosen(w, report["calibrator"], mature, scored, len(days))
        won = _next(t.policy, "", calibrator, chosen, provenance)
        preview = {when: _preview(p, mature, scored, w.model) for when, p in (("before", t.policy), ("after", won))}
        decision = replace(decision, about={"report": report, "preview": preview})
        volume = policy_volume(scored, won, t.policy)
        if not isinstance(volume, str) and not guards.within_volume(volume.value):
            self._say(replace(decision, reason="volume"), out)
            return
        try:
            # There must be something to go back to, which a configured threshold alone is not.
            old = t.policy if t.policy.id else self.served.first(*w.name, now, "what the configuration says, to go back to")
            provenance["before"] = old.id
            made = self.served.draft(
                *w.name, now, lambda ident: _next(replace(old, undo=w.model.undo), ident, calibrator, chosen, provenance)
            )
            decision = replace(decision, policy=made.id)
            if w.model.mode == "auto" and t.key[2] != BY_HAND:
                out.changes.extend(self._activations(*w.name, t.who, t.why, now, made))
                decision = replace(decision, allowed=True, reason="applied")
        except PolicyError as e:
            decision = self._failed(decision, e)
        self._say(decision, out)

    def _activations(self, name: str, version: str, who: str, reason: str, at: int, policy: Policy) -> list[Planned]:
        """Return the changes that make a policy current; where none serves yet, first the one that it was tested against."""
        changes = []
        if self.served.standing(name, version).current is None:
            first, now = self.served.policy(name, version, policy.provenance["before"]), self.served.deciding(name, version)
            if first is None or now is None or first.bands != now.bands:
                raise PolicyError(
                    f"{name} {version} decides otherwise than when policy {policy.id} was tested; reject the proposal"
                )
            changes.append(self.served.activation(name, version, who, str(first.provenance["reason"]), at, first))
        return [*changes, self.served.activation(name, version, who, reason, at, policy)]

    def _hand_on(self, w: Watched, alert: Alert, rule: Rule, out: Outcome) -> None:
        """Hand an alert on to the configured action, once."""
        if self._undecided(w, alert):
            no = guards.may_act(w.model.mode, w.role)
            self._say(Decision(*alert.key, rule.action, not no, no or "sent"), out)

    def _undecided(self, w: Watched, alert: Alert) -> bool:
        """Return whether nothing was decided about an alert, or what failed, or what it could not do then and can now."""
        said = self.decided.get(alert.key)
        return said in (None, "failed") or (said in ("mode_off", "shadow") and not guards.may_act(w.model.mode, w.role))

    # Proposals.

    def _say(self, decision: Decision, out: Outcome) -> None:
        """Take a decision; one that says what the last one about the same alert said is counted, and not journalled again."""
        labels = dict(zip(("model", "version", "rule"), decision.key, strict=True))
        self.count("scorewatch_decisions_total", 1, **labels, action=decision.action, reason=decision.reason)
        repeats = decision.allowed or decision.reason == "proposed" or decision.rule == BY_HAND
        again = self.decided.get(decision.key) == decision.reason and not repeats
        self.decided[decision.key] = decision.reason
        if again:
            return
        out.decisions.append(decision)
        if decision.reason == "proposed":
            body = {"rule": decision.rule, "action": decision.action, "policy": decision.policy, **decision.about}
            out.entries.append(("proposal", decision.model, decision.version, body))

    def _close_old(self, out: Outcome, now: int) -> None:
        """Close proposals that nobody answered in time, and those whose version has another policy by now."""
        for seq, e in self.proposals.items():
            old = "expired" if now - e.at >= guards.OPEN else ""
            reason = old if self._changed_since(e) is None else "superseded"
            if reason:
                out.entries.append(("answer", e.model, e.version, {"proposal": seq, "approved": False, "reason": reason}))

    def _changed_since(self, proposal: Entry) -> Entry | None:
        """Return the entry by which the policy of a proposal's version was changed after it was made, None when it was not.

        The journal's order says so, not its times: those of one moment are equal, and a clock can be set back.
        """
        last = self.served.last(proposal.model, proposal.version)
        return last if last is not None and last.seq > proposal.seq else None

    def open(self) -> list[dict[str, Any]]:
        """Return the proposals that wait for a person, as JSON, oldest first."""
        return [
            {"proposal": seq, "at": iso(e.at), "model": e.model, "version": e.version, **e.body}
            for seq, e in self.proposals.items()
        ]

    def answer(self, proposal: int, approve: bool, who: str, reason: str, at: int) -> tuple[Entry, list[Planned]]:
        """Return the proposal's entry and the changes that approving it makes; raise PolicyError when it is not open."""
        entry = self.proposals.get(proposal)
        if entry is None:
            raise PolicyError(f"there is no open proposal {proposal}; open are {', '.join(map(str, self.proposals)) or 'none'}")
        if not approve:
            return entry, []
        name, policy = (entry.model, entry.version), entry.body["policy"]
        if (since := self._changed_since(entry)) is not None:
            raise PolicyError(f"the policy of {name[0]} {name[1]} was changed at {iso(since.at)}, after this was tested")
        why = f"proposal {proposal} approved: {reason}"
        if entry.body["action"] == "rollback":
            return entry, [self.served.way_back(*name, who, why, at, policy)]
        made = self.served.policy(*name, policy)
        if made is None:
            raise PolicyError(f"policy {policy} of {name[0]} {name[1]} cannot be read any more; reject the proposal")
        return entry, self._activations(*name, who, why, at, made)


def _chosen(
    w: Watched, calibrator: Calibrator, mature: Mapping[str, Reading], scored: Mapping[str, Reading], days: int
) -> dict[str, float]:
    """Return the thresholds by slice that the configured objective chooses for honest scores; none where it may not by itself."""
    if w.model.objective is None:
        return {}
    whole = choose(w.model.objective, mature["all"], calibrator, True, scored["all"], days)
    if isinstance(whole, str) or not whole.automatic:
        return {}
    own = by_slice(w.model.objective, mature, w.model.by, whole, calibrator, True)
    return thresholds(whole, {name: pair for name, pair in own.items() if pair[1].automatic})


def _next(old: Policy, ident: str, calibrator: Calibrator, chosen: Mapping[str, float], provenance: Mapping[str, Any]) -> Policy:
    """Return the policy that serves the calibrator's scores: with the thresholds that were chosen for them, else deciding as
    before.
    """
    same = with_calibrator(old, ident, calibrator, provenance)
    if not chosen:
        return same
    return policy(ident, old.model, old.version, chosen, calibrator, old.undo, provenance, same.review, same.abstain)


def _preview(made: Policy, mature: Mapping[str, Reading], scored: Mapping[str, Reading], model: Model) -> dict[str, Any]:
    """Return as JSON what a policy would have done on mature days; with a configured cost or utility also what a row is worth."""
    found: dict[str, Any] = {
        name: {"reason": m} if isinstance(m, str) else m._asdict() for name, m in under(made, mature, scored).items()
    }
    if model.objective is not None and any(model.objective.utility) and not mature["all"].reason:
        choice = Choice(made.threshold, *counted(made, mature))
        found["worth_per_row"] = {"value": choice.worth(model.objective) / max(sum(counted(made, mature)), 1.0)}
    return found


def _rule(w: Watched, alert: Alert) -> Rule:
    return next(r for r in w.model.rules if r.name == alert.rule)


def _changes(name: Name, out: Outcome) -> bool:
    """Return whether this tick already changes the policy of a version."""
    return any((c.model, c.change.version) == name for c in out.changes)
