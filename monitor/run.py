"""The agent as a process: one thread that owns the store, the clock that drives it, the listeners, and a clean end."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from apscheduler.schedulers.background import BackgroundScheduler

from monitor.actions.outbox import Sender
from monitor.actions.rollback import PolicyError
from monitor.agent import Agent
from monitor.clock import EventClock, WallClock, wall
from monitor.config import TOKENS, Address, Config, ConfigError, HttpSource, fixed, load
from monitor.core.events import DAY, FUTURE, Batch, Receipt, Rejection
from monitor.core.snapshot import Snapshot
from monitor.formats import Decoder
from monitor.server import api_app, metrics_app, serve
from monitor.sources import http
from monitor.sources.file import FileReader
from monitor.store import StateError
from monitor.watched import baseline_of

log = logging.getLogger("scorewatch")

_GROUP = 64
_REFRESH = 1.0
_RETRY = 0.5
_CALM = 2.0
"""So many seconds after a failure the store counts as failing: one that fails and recovers by turns must not flicker."""


@dataclass(slots=True)
class Job:
    """What waits for the store's thread: a batch with its future, or a call; not `store` is one that memory can answer.

    A batch was made by `decoder`.
    """

    future: "Future[Any]"
    batch: Batch | None = None
    decoder: Decoder | None = None
    call: Callable[[], Any] | None = None
    store: bool = True


class Inbox:
    """Jobs in order, bounded by the events they hold."""

    def __init__(self, limit: int) -> None:
        self.limit, self.waiting = limit, 0
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()

    def put(self, job: Job) -> bool:
        """Add a job; False when the events that wait would be more than the limit."""
        size = job.batch.size if job.batch else 0
        with self._ready:
            if size and self.waiting and self.waiting + size > self.limit:
                return False
            self.waiting += size
            self._jobs.append(job)
            self._ready.notify()
        return True

    def take(self, timeout: float) -> list[Job]:
        """Return all that waits, at most 64 jobs; nothing after `timeout` seconds."""
        with self._ready:
            if not self._jobs:
                self._ready.wait(timeout)
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), _GROUP))]
            self.waiting -= sum(j.batch.size for j in jobs if j.batch)
        # From here on a sender that goes away cannot cancel its job any more; one that went before is not served.
        return [j for j in jobs if j.future.set_running_or_notify_cancel()]


class Feed:
    """A file source and the part of it that is read but not ingested yet."""

    def __init__(self, source: FileReader, strict: bool = False) -> None:
        self.source, self.strict = source, strict
        self.batch: Batch | None = None
        self.taken = 0
        self.high = self.index = np.empty(0, np.int64)
        self.newest = self.now = self.reached = source.newest
        self.failures = 0
        self._said = ""
        self._again = 0.0

    def fill(self) -> bool:
        """Read on when nothing is left; return whether there is anything. A file that cannot be read has nothing for a second."""
        while self.batch is None and time.monotonic() >= self._again:
            try:
                self.batch = self.source.read()
            except (OSError, EOFError, ValueError, zlib.error) as e:
                if self.strict:
                    raise ValueError(f"{self.source.path}: {e}") from None
                self._fail(e)
            if self.batch is None:
                return False
            self.taken = 0
            self.now = max(self.now, self.batch.now or 0)
            ts, self.index = self.batch.ts(), self.batch.index()
            real = ts <= wall() + FUTURE  # others will be rejected; they must not move the clock
            ts, self.index = ts[real], self.index[real]
            self.high = np.maximum(np.maximum.accumulate(ts), self.newest) if len(ts) else ts
            if len(ts):
                self.newest = int(self.high[-1])
        return self.batch is not None

    def _fail(self, e: Exception) -> None:
        self.failures += 1
        self._again = time.monotonic() + 1
        if str(e) != self._said:
            log.error("%s: %s; it is tried again", self.source.path, e)
            self._said = str(e)

    def until(self, boundary: int | None) -> Batch | None:
        """Return the events before the boundary that were not returned yet, None when there are none.

        A source's time is that of its newest event so far, so an event that comes late is not waited for.
        """
        assert self.batch is not None
        batch = self.batch
        k = len(self.high) if boundary is None else int(np.searchsorted(self.high, boundary))
        if k == len(self.high):
            part = batch if not self.taken else batch.after(self.taken)
            self.batch = None
            self.reached = max(self.newest, self.now)
            return replace(part, position=self.source.position(batch.end, 0, self.reached))
        index = int(self.index[k])
        if index <= self.taken:
            return None
        part = batch.between(self.taken, index)
        rejected = tuple(r for r in batch.rejected if self.taken <= r.index < index)
        self.taken = index
        self.reached = int(self.high[k - 1]) if k else self.reached
        return replace(part, rejected=rejected, position=self.source.position(batch.start, index, self.reached))

    @property
    def failing(self) -> bool:
        """Return whether the file is there and cannot be read: nobody knows what it holds."""
        return time.monotonic() < self._again and self.source.path.exists()

    @property
    def head(self) -> int | None:
        """Return the time of the next event that waits, None when nothing does."""
        if self.batch is None or not len(self.high):
            return None
        k = int(np.searchsorted(self.index, self.taken))
        return int(self.high[k]) if k < len(self.high) else None


class Loop:
    """The thread that owns the agent: takes what waits, drives the clock, never ends because of an error.

    `reopen` opens the state of an agent that was left. Batches that another decoder than `decoder` made are not taken.
    """

    def __init__(self, agent: Agent, reopen: Callable[[Config], Agent], inbox: Inbox, strict: bool = False) -> None:
        self.agent, self._reopen, self.inbox, self.strict = agent, reopen, inbox, strict
        self.feeds: list[Feed] = []
        self._failures = 0
        self._rewind()
        self.stopping = threading.Event()
        self.due = threading.Event()
        self._ticked = time.monotonic()
        self._published = 0.0
        self.failed = False
        self._again = self._calm = 0.0
        self._newest_http = 0
        self.decoder: Decoder | None = None

    def _rewind(self) -> None:
        """Read the files from their committed positions on."""
        for f in self.feeds:
            f.source.close()
            self._failures += f.failures
        self.feeds = [Feed(s, self.strict) for s in self.agent.file_sources()]

    def close(self) -> None:
        """Close the files and the store."""
        for f in self.feeds:
            f.source.close()
        self.agent.decider.close()
        try:
            self.agent.store.close()
        except (sqlite3.Error, OSError) as e:
            log.error("store: the last checkpoint failed (%s); the log has everything that was acknowledged", e)

    # Jobs.

    def run(self) -> None:
        """Work until `stopping` is set and nothing waits any more."""
        while True:
            try:
                if self._round() and self.stopping.is_set():
                    return
            except Exception:
                # An error that nothing foresaw: the agent goes on, and its state is read from the disk again.
                log.exception("unexpected")
                self._fail(RuntimeError("unexpected error"))
                if self.stopping.is_set():
                    self._refuse(self.inbox.take(0.0), http.Failed("the agent is stopping"))
                    return
                time.sleep(0.1)

    def _round(self) -> bool:
        """Do what there is to do; return whether there was nothing."""
        if self.failed and time.monotonic() >= self._again:
            self._try_reopen()
        if self.agent.problem and not self.failed and time.monotonic() >= self._calm:
            self.agent.problem = ""
            self.publish()
        idle = self.failed or self.stopping.is_set() or not self.feed()
        jobs = self.inbox.take(0.2 if idle else 0.0)
        self.work(jobs)
        # The timer counts by the machine's time, which can be set back; ticks must not wait for it to catch up.
        if not self._events and (self.due.is_set() or time.monotonic() - self._ticked > 2 * self.agent.config.tick / 1000):
            self.due.clear()
            self._ticked = time.monotonic()
            self.tick()
        old = not self._published or (self._events and time.monotonic() - self._published > _REFRESH)
        if old and not self.failed:
            self.publish()
        return idle and not jobs

    @property
    def _events(self) -> bool:
        return isinstance(self.agent.clock, EventClock)

    def work(self, jobs: list[Job]) -> None:
        """Do the jobs in order; batches beside each other share one commit where ticks do not part them."""
        while jobs:
            n = 1
            if jobs[0].batch is not None and not self._events:
                n = next((i for i, j in enumerate(jobs) if j.batch is None), len(jobs))
            group, jobs = [j for j in jobs[:n] if not self._stale(j)], jobs[n:]
            if not group:
                continue
            try:
                if self.failed and group[0].store:
                    raise http.Failed(self.agent.problem)
                if group[0].batch is None:
                    call = group[0].call
                    assert call is not None
                    results: list[Any] = [call()]
                else:
                    results = self._ingest([j.batch for j in group if j.batch])
            except (sqlite3.Error, OSError) as e:
                self._fail(e)
                self._refuse(group, http.Failed(str(e)))
            except (Missing, Impossible, http.Failed) as e:
                self._refuse(group, e)
            except Exception as e:
                log.exception("a request failed")
                self._fail(e)
                self._refuse(group, http.Failed("the agent failed; its log says why"))
            else:
                for job, result in zip(group, results, strict=True):
                    job.future.set_result(result)

    def _stale(self, job: Job) -> bool:
        """Refuse a batch that was decoded for a configuration of before."""
        if job.batch is None or job.decoder is self.decoder:
            return False
        job.future.set_exception(http.Stale())
        return True

    @staticmethod
    def _refuse(group: list[Job], e: Exception) -> None:
        for job in group:
            job.future.set_exception(e)

    def _fail(self, e: Exception) -> None:
        """After a failed commit nothing in memory is trusted: the state is read from the disk again."""
        log.error("store: %s", e)
        self.agent.add("scorewatch_store_failures_total", 1)
        self.failed = True
        self._say(e)

    def _say(self, e: Exception) -> None:
        """Show what is wrong; until the store works again what needs it is refused, and what is known is answered."""
        said = e.strerror if isinstance(e, OSError) and e.strerror else e
        self.agent.problem = f"the store failed ({said}); it is opened again as soon as it can be written"
        self._calm = time.monotonic() + _CALM
        with contextlib.suppress(Exception):
            self.agent.show()

    def _try_reopen(self) -> None:
        old = self.agent
        with contextlib.suppress(Exception):
            old.decider.close()
            old.store.abandon()
        try:
            fresh = self._reopen(old.config)
            try:
                with fresh.store.log.transaction():  # what can be read need not be writable
                    fresh.store.log.set_meta({"reopened": wall()})
            except BaseException:
                fresh.store.abandon()
                raise
        except Exception as e:
            log.error("store: %s", e)
            self._again = time.monotonic() + _RETRY
            self._say(e)
            return
        self._go_on_with(fresh)

    def _go_on_with(self, fresh: Agent) -> None:
        """Leave the agent for one that was opened after it."""
        _inherit(fresh, self.agent)
        self.agent = fresh
        self._rewind()
        self.failed = False

    def change(self, config: Config, who: str, reason: str) -> None:
        """Go on with another configuration; raise StateError when that cannot be, and go on with the one before."""
        before = self.agent
        before.decider.close()
        before.store.close()
        try:
            fresh = self._reopen(config)
            try:
                _inherit(fresh, before)
                fresh.reloaded(who, reason)
            except BaseException:
                fresh.store.abandon()
                raise
        except BaseException:
            self.failed = True
            self._try_reopen()
            raise
        self._go_on_with(fresh)

    # Time.

    def _ingest(self, batches: list[Batch]) -> list[Receipt]:
        if not self._events:
            return self.agent.ingest([self._without_now(b) for b in batches])
        return [self._by_events(batch) for batch in batches]

    @staticmethod
    def _without_now(batch: Batch) -> Batch:
        if batch.now is None:
            return batch
        refused = Rejection(batch.size, "unsupported", "now moves a clock of events only")
        return replace(batch, rejected=(*batch.rejected, refused))

    def _by_events(self, batch: Batch) -> Receipt:
        """Ingest a body in pieces, each tick after the events before its boundary."""
        clock = self.agent.clock
        assert isinstance(clock, EventClock)
        ts = batch.ts()
        latest = wall() + FUTURE
        ts = np.where(ts > latest, 0, ts)  # such events will be rejected; they must not move the clock
        high = np.maximum(np.maximum.accumulate(ts), self._newest_http) if len(ts) else ts
        index = batch.index()
        if len(high) and high[-1]:
            self._begin(clock, int(high[high > 0][0]))
        receipts = []
        at, first = 0, 0
        while at < len(high):
            b = clock.boundary
            k = int(np.searchsorted(high, b)) if b is not None and self._others_passed(b) else len(high)
            last = batch.size if k == len(high) else int(index[k])
            part = batch if (first, last) == (0, batch.size) else batch.between(first, last)
            if k > at or k == len(high):
                receipts += self.agent.ingest([replace(part, rejected=())])
            at, first = k, last
            if k < len(high):
                self._tick_once(clock, int(high[k]))
        if len(high):
            self._newest_http = int(high[-1])
        refused = batch.rejected
        if batch.now is not None and batch.now > latest:
            refused = (*refused, Rejection(batch.size, "future", f"now: {batch.now}"))
        elif batch.now is not None:
            self._begin(clock, batch.now)
            self._newest_http = max(self._newest_http, batch.now)
            if self._others_passed(batch.now):
                self._ticks_to(clock, batch.now)
        if refused or not receipts:
            receipts += self.agent.ingest([Batch(len(refused), rejected=refused)])
        rejected = tuple(sorted(r for receipt in receipts for r in receipt.rejected))
        accepted, duplicates, held = (sum(getattr(r, name) for r in receipts) for name in ("accepted", "duplicates", "held"))
        return Receipt(accepted, duplicates, rejected, held, tuple(id_ for r in receipts for id_ in r.review))

    def _begin(self, clock: EventClock, ts: int) -> None:
        """Start the clock at the earliest event of all sources; not while a file that is there cannot be read."""
        if clock.last is None:
            heads = [h for f in self.feeds if f.fill() and (h := f.head) is not None]
            if not any(f.failing for f in self.feeds):
                clock.begin(min(ts, *heads) if heads else ts)

    def _others_passed(self, boundary: int) -> bool:
        """Return whether no file has events left before the boundary: the slowest source is the clock."""
        return all((not f.fill() or (f.head or 0) >= boundary) and not f.failing for f in self.feeds)

    def _tick_once(self, clock: EventClock, ts: int) -> None:
        for now in clock.due(ts, self.agent.settled()):
            self.agent.tick(now)
            return

    def _ticks_to(self, clock: EventClock, ts: int) -> None:
        for now in clock.due(ts, self.agent.settled()):
            self.agent.tick(now)

    def feed(self) -> bool:
        """Ingest from the files; return whether anything was there."""
        try:
            return self.feed_by_events() if self._events else self._feed_by_wall()
        except (sqlite3.Error, OSError) as e:
            self._fail(e)
            return False

    def _feed_by_wall(self) -> bool:
        some = False
        for f in self.feeds:
            if f.fill():
                part = f.until(None)
                assert part is not None
                self.agent.ingest([part])
                some = True
        return some

    def feed_by_events(self) -> bool:
        """Bring every file up to the next boundary, then tick."""
        clock = self.agent.clock
        assert isinstance(clock, EventClock)
        ready = [f for f in self.feeds if f.fill()]
        if not ready:
            if self.feeds and not self._newest_http and (now := max(f.now for f in self.feeds)) and now <= wall() + FUTURE:
                clock.begin(now)
                self._ticks_to(clock, now)
            return False
        heads = [h for f in ready if (h := f.head) is not None]
        if heads:
            self._begin(clock, min(heads))
        # Labels wait for the predictions of all files up to the same boundary, and the positions for the labels.
        held: list[Batch] = []
        for f in ready:
            while f.fill() and (part := f.until(clock.boundary)) is not None:
                together, alone = part.apart()
                held.append(replace(together, rejected=(), clipped=0, scaled=0))
                if alone.predictions is not None or part.rejected:
                    self.agent.ingest([replace(alone, position="")])
        if held:
            self.agent.ingest(held)
        left = [h for f in self.feeds if f.fill() and (h := f.head) is not None]
        http_passed = not self._newest_http or (clock.boundary is not None and self._newest_http >= clock.boundary)
        if left and http_passed and not any(f.failing for f in self.feeds):
            self._tick_once(clock, min(left))
            return True
        return bool(held)

    def finish(self) -> None:
        """Let every day of a replay mature: now moves to the last event + the longest horizon + one tick."""
        clock = self.agent.clock
        assert isinstance(clock, EventClock)
        newest = max((max(f.newest, f.now) for f in self.feeds), default=0)
        if newest:
            longest = max(m.labels.longest for m in self.agent.config.models.values())
            self._ticks_to(clock, newest + longest + DAY + clock.tick)
        self.agent.finish()

    def tick(self) -> None:
        """Make a tick of the wall clock."""
        if self.failed:
            return
        try:
            now = self.agent.clock.last = self.agent.now()
            self.agent.tick(now)
            self.publish()
        except (sqlite3.Error, OSError) as e:
            self._fail(e)

    def publish(self) -> None:
        """Make the snapshot of the last tick and render it."""
        if self.feeds:
            failures = sum(f.failures for f in self.feeds)
            self.agent.counters["scorewatch_source_failures_total", (("source", "file"),)] = self._failures + failures
        self.agent.publish()
        self._published = time.monotonic()


def _inherit(fresh: Agent, old: Agent) -> None:
    """Let an agent go on counting and telling where the one before it stopped."""
    fresh.counters, fresh.timeline, fresh.told = old.counters, old.timeline, old.told
    fresh.snapshot, fresh.problem = old.snapshot, old.problem
    # The last rendering stays until the next one: a scrape in between must not see counters begin at 0 again.
    fresh.exporter.snapshot, fresh.exporter.text = old.exporter.snapshot, old.exporter.text


class Missing(LookupError):
    """What a command asks for does not exist."""


class Impossible(ValueError):
    """What a command asks for cannot be done."""


@dataclass(slots=True)
class Steps:
    """Long work in the store's thread that lets other jobs pass between two steps, and the agent it is done for."""

    agent: Agent
    left: Iterator[list[dict[str, Any]]]


_OF_MEMORY = ("fresh", "policy", "proposals")
"""Commands that are answered while the store fails."""


class Running:
    """What the listeners ask; every answer is of the last snapshot or comes from the store's thread.

    `retime` is called with the seconds between two ticks when these change, `send` when there is somebody to tell.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.source: http.HttpReceiver | None = None
        self.retime: Callable[[float], None] = lambda seconds: None
        self.send: Callable[[], None] = lambda: None
        self._configure()

    def _configure(self) -> None:
        """Take from the agent's configuration what senders meet: tokens, and the decoder of their bodies."""
        config, entry = self.loop.agent.config, self.loop.agent.http
        self.tokens = {role: config.tokens.of(role) for role in TOKENS}
        decoder = self.loop.decoder = self.loop.agent.decoder()
        if entry is None:
            self.source = None
        elif self.source is None:
            self.source = http.HttpReceiver(decoder, self.offer, entry.max_body)
        else:
            self.source.decoder, self.source.max_body = decoder, entry.max_body
        self.loop.inbox.limit = (entry or HttpSource()).queue
        for role in config.tokens.exposed:
            path = config.tokens.files[role]
            log.warning(
                "tokens.%s: every user can read %s; chmod o-r it (Kubernetes: defaultMode 0440 of the secret)", role, path
            )
        if config.tokens.shared:
            log.warning("tokens.decide: has a token of tokens.ingest; give it others, or whoever sends events also decides")
        self._say_configured(True)

    def _say_configured(self, well: bool) -> None:
        counters = self.loop.agent.counters
        counters["scorewatch_config_reload_success", ()] = float(well)
        if well:
            counters["scorewatch_config_reload_timestamp_seconds", ()] = wall() / 1000

    @property
    def metrics(self) -> bytes:
        """Return the rendered metrics."""
        return self.loop.agent.exporter.text

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """Return what happened since the start, the newest 20,000 items."""
        return list(self.loop.agent.timeline)

    def refused(self, reason: str) -> None:
        """Count a request of which nothing was taken."""
        name, labels = "scorewatch_requests_refused_total", {"source": "http", "reason": reason}
        self.loop.inbox.put(Job(Future(), call=lambda: self.loop.agent.add(name, 1, **labels), store=False))

    async def fresh(self) -> Snapshot:
        """Return a snapshot of the last tick with the present counters, made now when there is none."""
        made: Snapshot = await self.ask("fresh")
        return made

    def _fresh(self) -> Snapshot:
        agent = self.loop.agent
        if self.loop.failed:
            agent.show()
        elif (agent.snapshot.at, agent.snapshot.journal) != (agent.clock.last, agent.store.log.head) or (
            agent.snapshot.counters != agent.counters
        ):
            self.loop.publish()
        return agent.snapshot

    async def offer(self, batch: Batch, decoder: Decoder) -> Receipt:
        """Hand a batch to the store's thread and return its receipt after the commit."""
        job = Job(Future(), batch=batch, decoder=decoder)
        if not self.loop.inbox.put(job):
            raise http.Busy(f"{self.loop.inbox.waiting} events wait to be stored")
        receipt: Receipt = await asyncio.wrap_future(job.future)
        return receipt

    async def ask(self, command: str, **given: Any) -> Any:
        """Run a command in the store's thread."""
        job = Job(Future(), call=lambda: getattr(self, f"_{command}")(**given), store=command not in _OF_MEMORY)
        self.loop.inbox.put(job)
        return await asyncio.wrap_future(job.future)

    def _activate(self, name: str, version: str | None, who: str, reason: str, **given: Any) -> Any:
        try:
            return self.loop.agent.command("activate", name, version, who, reason, **given)
        except PolicyError as e:
            raise Impossible(str(e)) from None

    def _rollback(self, name: str, version: str | None, who: str, reason: str) -> Any:
        try:
            return self.loop.agent.command("rollback", name, version, who, reason)
        except PolicyError as e:
            raise Impossible(str(e)) from None

    def _calibrate(self, name: str, version: str | None, who: str, reason: str) -> Any:
        try:
            return self.loop.agent, self.loop.agent.calibrate(name, version, who, reason)
        except PolicyError as e:
            raise Impossible(str(e)) from None

    def _calibrated(self, begun: Any) -> Any:
        agent, testing = begun
        if agent is not self.loop.agent:
            raise http.Failed("the store was opened anew meanwhile; ask again")
        return agent.calibrated(testing, wait=False)

    def _answer(self, proposal: int, approve: bool, who: str, reason: str) -> Any:
        try:
            return self.loop.agent.answer(proposal, approve, who, reason)
        except PolicyError as e:
            raise Impossible(str(e)) from None

    def _proposals(self) -> Any:
        return self.loop.agent.proposals()

    def _decisions(self, name: str | None, limit: int, since: int) -> Any:
        try:
            return self.loop.agent.decisions(name, limit, since)
        except PolicyError as e:
            raise Missing(str(e)) from None

    def _reload(self, who: str, reason: str) -> Any:
        """Go on with what the configuration file says now; a wrong one changes nothing."""
        from monitor.check import baselines

        before = self.loop.agent.config
        assert before.path is not None
        try:
            config = load(before.path, serving=True)
            if wrong := fixed(before, config) + baselines(config, baseline_of)[1]:
                raise ConfigError("\n".join(wrong))
            self.loop.change(config, who, reason)
        except (ConfigError, StateError) as e:
            self._say_configured(False)
            raise Impossible(str(e)) from None
        self._configure()
        if config.tick != before.tick:
            self.retime(config.tick / 1000)
        if config.delivers:
            self.send()
        self.loop.publish()
        # What the agent of before had was taken out of the collector's sight.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        log.info("the configuration was read anew: %s", before.path)
        return {"path": str(config.path), "digest": config.digest}

    def hang_up(self) -> None:
        """Read the configuration anew, as SIGHUP asks for."""
        job = Job(Future(), call=lambda: self._reload("SIGHUP", "SIGHUP"))
        job.future.add_done_callback(_say_failure)
        self.loop.inbox.put(job)

    def _policy(self, name: str, version: str | None) -> Any:
        try:
            return asdict(self.loop.agent.policy_of(name, version))
        except PolicyError as e:
            raise Missing(str(e)) from None

    def _outbox(self) -> Any:
        return self.loop.agent.outbox.listed()

    def _redeliver(self, ident: str, done: str, who: str, reason: str) -> Any:
        try:
            return self.loop.agent.redeliver(ident, done, who, reason)
        except LookupError as e:
            raise Missing(str(e.args[0])) from None

    def _audit(self, name: str) -> Any:
        return self._found(self.loop.agent.audit, name)

    def _compare(self, name: str, version: str | None, other: str | None) -> Any:
        return self._found(lambda name: self.loop.agent.compare(name, version, other), name)

    def _classes(self, name: str, version: str | None, window: str) -> Any:
        return self._found(lambda name: self.loop.agent.classes(name, version, window), name)

    def _delays(self, name: str) -> Any:
        return self._found(self.loop.agent.delays, name)

    @staticmethod
    def _found(ask: Callable[[str], Any], name: str) -> Any:
        try:
            return ask(name)
        except PolicyError as e:
            raise Missing(str(e)) from None

    def _verify(self) -> "Steps":
        agent = self.loop.agent
        return Steps(agent, ([asdict(step)] for step in agent.verify(live=True)))

    def _data(self) -> "Steps":
        return Steps(self.loop.agent, self.loop.agent.export())

    def _more(self, steps: "Steps") -> list[dict[str, Any]] | None:
        if steps.agent is not self.loop.agent:
            raise http.Failed("the store was opened anew meanwhile; ask again")
        try:
            return next(steps.left, None)
        except StateError as e:
            raise http.Failed(str(e)) from None

    def _months(self, name: str) -> Any:
        return self.loop.agent.all_months(name)


def _say_failure(done: "Future[Any]") -> None:
    if (e := done.exception()) is not None:
        log.error("the configuration stays as it was: %s", e)


def _bind(name: str, address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Connections inherit it; without it each answer waits 40 ms for the sender's delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host, address.port))
    except OSError as e:
        sock.close()
        raise OSError(f"{name}: cannot listen on {address} ({e.strerror}); stop what uses it or write another address") from None
    sock.listen(1024)
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def _ticking(loop: Loop, api: Running, config: Config) -> Iterator[None]:
    """Say that a tick is due every `tick` of the machine's time."""
    if config.clock != "wall":
        yield
        return
    timer = BackgroundScheduler(timezone="UTC", daemon=True)
    job = timer.add_job(loop.due.set, "interval", seconds=config.tick / 1000, coalesce=True)
    api.retime = lambda seconds: job.reschedule("interval", seconds=seconds)
    timer.start()
    try:
        yield
    finally:
        timer.shutdown(wait=False)


@contextlib.contextmanager
def _sending(loop: Loop, api: Running, config: Config) -> Iterator[None]:
    """Send what the journal gives cause to; where nobody is to be told there is no thread for it."""
    if config.clock == "events":
        yield
        return

    def ask(call: Callable[[], Any]) -> Any:
        job = Job(Future(), call=call)
        loop.inbox.put(job)
        return job.future.result()

    sender = Sender(ask, lambda: loop.agent.outbox, lambda: loop.agent.config.hidden)
    if config.delivers or loop.agent.outbox.counts[0]:
        sender.start()
    api.send = sender.start
    try:
        yield
    finally:
        sender.stop()


def run(config: Config, version: str, started: Callable[[str, str], None]) -> None:
    """Run the agent until SIGTERM or SIGINT; `started(api, metrics)` gets the addresses once both listen.

    Raises StateError when the state cannot be used and OSError when an address cannot be bound.
    """
    listen = [_bind("api", config.api), _bind("metrics", config.metrics)]
    agent = Agent(config, version)
    clock = agent.clock if isinstance(agent.clock, WallClock) else None
    loop = Loop(agent, lambda config: Agent(config, version, clock=clock), Inbox(HttpSource().queue))
    api = Running(loop)
    gc.collect()
    gc.freeze()

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, api.hang_up)
        serving = asyncio.create_task(serve([(api_app(api), listen[0]), (metrics_app(api), listen[1])], stop))
        await asyncio.sleep(0)
        started(*(_url(sock) for sock in listen))
        await serving

    thread = threading.Thread(target=loop.run, name="scorewatch")
    thread.start()
    try:
        with _ticking(loop, api, config), _sending(loop, api, config):
            asyncio.run(main())
    finally:
        loop.stopping.set()
        thread.join()
        loop.close()


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def replay(config: Config, version: str, item: Callable[[dict[str, Any]], None], days: bool, durable: bool) -> None:
    """Run the agent over its files to their end and give every timeline item to `item` as it happens.

    Raises ValueError when a file cannot be read.
    """
    agent = Agent(config, version, durable)
    agent.timeline_days = days
    loop = Loop(agent, lambda config: Agent(config, version, durable), Inbox(1), strict=True)

    def tell() -> None:
        while agent.timeline:
            item(agent.timeline.popleft())

    try:
        while loop.feed_by_events():
            tell()
        loop.finish()
        tell()
    finally:
        loop.close()
