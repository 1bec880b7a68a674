"""What others are told: messages that wait in the log since the journal entry that caused them, and what sends them."""

import json
import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from monitor.actions.command import Command
from monitor.actions.webhook import Webhook
from monitor.clock import wall
from monitor.core.days import iso
from monitor.core.events import HOUR, MINUTE, SECOND, Entry
from monitor.core.policy import Policy
from monitor.core.reasons import DELIVERED
from monitor.store.log import Log

log = logging.getLogger("scorewatch")

Target = Webhook | Command

DELIVER = "deliver"
"""What the action of a message is called that hands on a policy; no configured action has this name."""
TYPES = {"activated": "policy.activated", "rolled_back": "policy.rolled_back"}
"""The type of the message about a journal entry of that kind."""
ALERT = "alert.fired"
STEPS = (0, 5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 16 * HOUR)
"""How long a message waits before each try, in ms; after the last one, some 48 hours, it is dead."""
JITTER = 0.2
"""Waits are longer or shorter by up to this share, so that what failed together does not come again together."""
FINAL = ("gone", "argument", "not_configured")
"""After these trying again would change nothing."""
MOST = 1_000
"""So many messages may wait, and so many dead ones are kept."""
LARGEST = 20_000
"""The largest message by webhook in bytes; of a larger one the policy is left out but for its id and checksum."""
SLICES = 20
"""So many slices of an alert are named."""

_FIELDS = "id, entry, action, place, model, version, type, body, at, due, tries, dead, reason, detail"


@dataclass(frozen=True, slots=True)
class Item:
    """A message on its way: caused by a journal entry, for an action or the place in the list `deliver` of its model.

    Times are ms since 1970. `reason` and `detail` are those of the last try, empty before it.
    """

    id: str
    entry: int
    action: str
    place: int
    model: str
    version: str
    type: str
    body: str = field(repr=False)
    at: int
    due: int
    tries: int = 0
    dead: int = 0
    reason: str = ""
    detail: str = ""

    @property
    def lane(self) -> tuple[str, str, int]:
        """Return what it is for; one message is sent there at a time."""
        return self.action, self.model if self.action == DELIVER else "", self.place

    @property
    def values(self) -> dict[str, str]:
        """Return what the places in the arguments of a command stand for."""
        data = json.loads(self.body)["data"]
        policy = data.get("policy") or {}
        rule = data.get("rule") or ""
        own = {"model": self.model, "version": self.version, "type": self.type, "id": self.id}
        return {**own, "rule": rule, "policy": policy.get("id", "")}

    def waits(self, now: int) -> int:
        """Return how many ms it still waits; no more than its step, should the machine's time have been set back."""
        return min(self.due - now, round(STEPS[min(self.tries, len(STEPS) - 1)] * (1 + JITTER)))


class Outbox:
    """The messages in the log. All methods are called from the store's thread.

    `actions` are the configured ones by name, `deliver` returns what is called with policies of a model, `policy` a policy by
    model, version and id. `count(name, by, **labels)` counts something the exporter shows. `news` is set when there may be
    something to send.
    """

    def __init__(
        self,
        log: Log,
        actions: Mapping[str, Target],
        deliver: Callable[[str], Sequence[Target]],
        policy: Callable[[str, str, str], Policy | None],
        count: Callable[..., None],
    ) -> None:
        self.log, self.actions, self.deliver, self.policy, self.count = log, actions, deliver, policy, count
        self.news = threading.Event()
        self.news.set()
        self._counts: tuple[int, int] | None = None

    def begin(self) -> None:
        """Follow the journal: from now on its entries are the cause of messages."""
        self.log.follow = self.add
        # Said from the start, because a rate does not see a series that begins above 0.
        for action in (*self.actions, DELIVER):
            for reason in DELIVERED:
                self.count("scorewatch_deliveries_total", 0, action=action, reason=reason)

    def add(self, entries: Iterable[Entry]) -> None:
        """Write the messages of journal entries; inside the transaction that appends these."""
        some = False
        for item in (item for entry in entries for item in self._items(entry)):
            if item.action == DELIVER:
                self._supersede(item)
            marks = ", ".join("?" * len(_FIELDS.split(",")))
            self.log.db.execute(f"insert into outbox ({_FIELDS}) values ({marks})", tuple(asdict(item).values()))
            some = True
        if some:
            self._keep_few()
            self._changed()

    def _items(self, entry: Entry) -> Iterator[Item]:
        if entry.kind in TYPES:
            for place, target in enumerate(self.deliver(entry.model)):
                yield self._item(entry, DELIVER, place, TYPES[entry.kind], self._policy_data(entry, isinstance(target, Command)))
        elif entry.kind == "decision" and entry.body["allowed"] and entry.body["action"] in self.actions:
            yield self._item(entry, entry.body["action"], 0, ALERT, self._alert_data(entry))

    @staticmethod
    def _item(entry: Entry, action: str, place: int, kind: str, data: Mapping[str, Any]) -> Item:
        about = {"model": entry.model, "version": entry.version, "decision": entry.seq, **data}
        body = json.dumps({"type": kind, "timestamp": iso(entry.at), "data": about}, ensure_ascii=False, separators=(",", ":"))
        now = wall()
        # An id of chance: journals of two agents may have the same entries, and a receiver must not take one for the other.
        return Item(f"msg_{secrets.token_hex(16)}", entry.seq, action, place, entry.model, entry.version, kind, body, now, now)

    def _policy_data(self, entry: Entry, whole: bool) -> dict[str, Any]:
        """Return what is said of a change of policies: with the policy, unless it is too large for a webhook."""
        ident, before = entry.body["policy"], entry.body["before"]
        said = {"who": entry.who, "reason": entry.body["reason"], "before": before and before["policy"]}
        policy = self.policy(entry.model, entry.version, ident)
        if policy is None:
            return said | {"policy": {"id": ident}}
        if whole or len(policy.to_json()) < LARGEST:
            return said | {"policy": asdict(policy)}
        return said | {"policy": {"id": ident, "checksum": policy.checksum}}

    def _alert_data(self, entry: Entry) -> dict[str, Any]:
        """Return what the journal says of the alert that a decision is about."""
        said = {"rule": entry.body["rule"], "action": entry.body["action"]}
        row = self.log.db.execute(
            "select body from journal where seq <= ? and kind = 'alert' and model = ? and version = ?"
            " and json_extract(body, '$.rule') = ? order by seq desc limit 1",
            (entry.seq, entry.model, entry.version, entry.body["rule"]),
        ).fetchone()
        alert = {} if row is None else json.loads(row[0])
        names = ("severity", "since", "diagnosis", "advice", "words", "observed", "expected")
        said |= {name: alert.get(name) for name in names}
        said["since"] = None if alert.get("since") is None else iso(alert["since"])
        return said | {"slices": dict(list(alert.get("slices", {}).items())[:SLICES])}

    def _supersede(self, item: Item) -> None:
        """Take out what has not arrived of earlier policies: arriving after this one it would undo it."""
        gone = self.log.db.execute(
            "delete from outbox where action = ? and place = ? and model = ? and version = ?",
            (DELIVER, item.place, item.model, item.version),
        ).rowcount
        if gone:
            self.count("scorewatch_deliveries_total", gone, action=DELIVER, reason="replaced")

    def _keep_few(self) -> None:
        """Give up the oldest of too many that wait, and forget the oldest of too many dead ones."""
        for ident, action in self._oldest(0):
            self.log.db.execute("update outbox set dead = 1, reason = 'overflow', detail = '' where id = ?", (ident,))
            self.count("scorewatch_deliveries_total", 1, action=action, reason="overflow")
        for ident, action in self._oldest(1):
            self.log.db.execute("delete from outbox where id = ?", (ident,))
            self.count("scorewatch_deliveries_total", 1, action=action, reason="forgotten")

    def _oldest(self, dead: int) -> list[tuple[str, str]]:
        """Return id and action of those past the newest MOST that wait, or that are dead."""
        found = self.log.db.execute(
            "select id, action from outbox where dead = ? order by at desc, rowid desc limit -1 offset ?", (dead, MOST)
        )
        return list(found)

    def _changed(self) -> None:
        self._counts = None
        self.news.set()

    # What the sender asks and tells.

    def items(self, dead: bool | None = None) -> list[Item]:
        """Return the messages, oldest first: those that wait, the dead ones, or both."""
        where = "" if dead is None else f"where dead = {int(dead)}"
        return [Item(*row) for row in self.log.db.execute(f"select {_FIELDS} from outbox {where} order by at, rowid")]

    def target(self, item: Item) -> Target | None:
        """Return what a message is for, None when that is no longer configured."""
        if item.action != DELIVER:
            return self.actions.get(item.action)
        targets = self.deliver(item.model)
        return targets[item.place] if item.place < len(targets) else None

    def waiting(self) -> list[tuple[Item, Target | None]]:
        """Return the messages that wait, each with what it is for."""
        return [(item, self.target(item)) for item in self.items(dead=False)]

    def tried(self, ident: str, reason: str, detail: str) -> None:
        """Note how a try ended: a message that arrived leaves, another one waits for its next try or is dead."""
        row = self.log.db.execute(f"select {_FIELDS} from outbox where id = ?", (ident,)).fetchone()
        if row is None:  # a newer policy took its place meanwhile
            return
        item = Item(*row)
        tries = item.tries + 1
        dead = reason in FINAL or tries >= len(STEPS)
        due = wall() + (0 if dead else round(STEPS[tries] * random.uniform(1 - JITTER, 1 + JITTER)))
        with self.log.transaction():
            if reason == "delivered":
                self.log.db.execute("delete from outbox where id = ?", (ident,))
            else:
                self.log.db.execute(
                    "update outbox set tries = ?, due = ?, dead = ?, reason = ?, detail = ? where id = ?",
                    (tries, due, int(dead), reason, detail, ident),
                )
                self._keep_few()
        self.count("scorewatch_deliveries_total", 1, action=item.action, reason=reason)
        if dead:
            log.error("%s of %s to %s is given up: %s %s", item.type, item.model, item.action, DELIVERED[reason], detail)
        self._changed()

    # What a person asks.

    @property
    def counts(self) -> tuple[int, int]:
        """Return how many messages wait and how many are dead."""
        if self._counts is None:
            found = dict(self.log.db.execute("select dead, count(*) from outbox group by dead"))
            self._counts = found.get(0, 0), found.get(1, 0)
        return self._counts

    def find(self, ident: str) -> Item:
        """Return a dead message; raise LookupError when there is none."""
        found = next((item for item in self.items(dead=True) if item.id == ident), None)
        if found is None:
            raise LookupError(f"no dead message {ident}; GET /v1/outbox lists them")
        return found

    def revive(self, ident: str) -> None:
        """Let a dead message be tried anew; inside a transaction."""
        self.log.db.execute("update outbox set dead = 0, tries = 0, due = ? where id = ?", (wall(), ident))
        self._changed()

    def discard(self, ident: str) -> None:
        """Forget a dead message; inside a transaction."""
        self.log.db.execute("delete from outbox where id = ?", (ident,))
        self._changed()

    def listed(self) -> list[dict[str, Any]]:
        """Return every message as JSON, without its body."""
        return [
            {
                **{name: getattr(item, name) for name in ("id", "action", "type", "model", "version")},
                "decision": item.entry,
                "state": "dead" if item.dead else "waiting",
                "at": iso(item.at),
                "tries": item.tries,
                "next_try": None if item.dead else iso(item.due),
                "reason": item.reason,
                "detail": item.detail,
            }
            for item in self.items()
        ]


class Sender:
    """Sends what waits, in threads of its own: one message at a time to each target, and at most eight together.

    `outbox` returns the present one, `ask` runs a call in the store's thread and returns what it returned; it raises when the
    store fails. Commands do not see the variables of the environment that `hidden` returns.
    """

    MOST = 8
    PATIENCE = 1.0
    """Seconds until it looks again at the latest."""

    def __init__(
        self, ask: Callable[[Callable[[], Any]], Any], outbox: Callable[[], Outbox], hidden: Callable[[], Collection[str]]
    ) -> None:
        self.ask, self.outbox, self.hidden = ask, outbox, hidden
        self.stopping = threading.Event()
        self._busy: dict[tuple[str, str, int], threading.Thread] = {}
        self._done: deque[tuple[str, str, int]] = deque()
        self._thread = threading.Thread(target=self._run, name="scorewatch-sender", daemon=True)

    def start(self) -> None:
        """Begin to send, unless it has begun."""
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        """Begin nothing more and kill commands; what was on its way is sent again after the next start."""
        self.stopping.set()
        self.outbox().news.set()
        for thread in (self._thread, *list(self._busy.values())):
            if thread.ident:
                thread.join(self.PATIENCE)

    def _run(self) -> None:
        waiting: list[tuple[Item, Target | None]] = []
        while not self.stopping.is_set():
            news = self.outbox().news
            if news.is_set():
                news.clear()
                done = len(self._done)
                try:
                    waiting = self.ask(lambda: self.outbox().waiting())
                except Exception:  # the store fails, which is said elsewhere
                    news.set()
                    self.stopping.wait(self.PATIENCE)
                    continue
                for _ in range(done):  # not before the list is without what was just sent there
                    del self._busy[self._done.popleft()]
            now = wall()
            self._begin([(item, target) for item, target in waiting if item.waits(now) <= 0])
            news.wait(self._patience(waiting, now))

    def _patience(self, waiting: list[tuple[Item, Target | None]], now: int) -> float:
        """Return how many seconds there is nothing to begin unless there is news, such as a delivery that ended."""
        if len(self._busy) >= self.MOST:
            return self.PATIENCE
        soonest = min((item.waits(now) / 1000 for item, _ in waiting if item.lane not in self._busy), default=self.PATIENCE)
        return min(max(soonest, 0.01), self.PATIENCE)

    def _begin(self, due: list[tuple[Item, Target | None]]) -> None:
        for item, target in due:
            if item.lane not in self._busy and len(self._busy) < self.MOST:
                thread = threading.Thread(target=self._send, args=(item, target), name="scorewatch-delivery", daemon=True)
                self._busy[item.lane] = thread
                thread.start()

    def _send(self, item: Item, target: Target | None) -> None:
        try:
            reason, detail = self._deliver(item, target)
        except Exception as e:
            log.exception("delivery")
            reason, detail = "unreachable", repr(e)
        while not (self.stopping.is_set() and reason != "delivered"):
            try:
                self.ask(lambda: self.outbox().tried(item.id, reason, detail))
                break
            except Exception:  # told again until the store has it, rather than sent again
                if self.stopping.wait(self.PATIENCE):
                    break
        self._done.append(item.lane)
        self.outbox().news.set()

    def _deliver(self, item: Item, target: Target | None) -> tuple[str, str]:
        match target:
            case Webhook():
                return target.send(item.id, item.body, int(time.time()))
            case Command():
                return target.run(item.values, item.body, self.stopping, self.hidden())
        return "not_configured", ""
