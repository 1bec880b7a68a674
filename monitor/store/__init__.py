"""The store: rows once, counts never. A row exists iff the transaction that moved the tail committed."""

import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import DAY, HOUR, SECOND, Bools, Coded, Entry, Ints, Labels, Predictions, U64x2, prob_of
from monitor.core.tables import GRID, LABEL, NAMED, NO_AUDIT, ROW, SCHEMA, Table, unlike, wanted
from monitor.formats.ids import Hasher
from monitor.store import early
from monitor.store.early import EARLY, Early, better
from monitor.store.files import make_folder, safe_name
from monitor.store.index import MAX_SLOTS, Index
from monitor.store.log import Log, StateError
from monitor.store.passing import Passing
from monitor.store.ring import BLOCK, Ring

__all__ = [
    "HELD",
    "NEWS",
    "NOT_SAMPLED",
    "OLD_NEWS",
    "REFUSED",
    "TOO_OLD",
    "UNKNOWN",
    "UNLIKE",
    "Span",
    "StateError",
    "Store",
]

VERSIONS_PER_MODEL = 16
_MAX_CODES = 60_000
_KEPT_DAYS = 400
_HITS_PER_CHECKPOINT = 1 << 20
_CHECKPOINT_PARTS = 32
_HITS_PER_STEP = 1 << 14
_MOST_CELLS = 1 << 16
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "ceph", "glusterfs", "afs")

UNKNOWN, NOT_SAMPLED, TOO_OLD, UNLIKE, OLD_NEWS, HELD, NEWS = range(7)
"""What became of a label: no such prediction, one that did not wait, one past its corrections or with another `label_prob`,
nothing new, held until its prediction comes, stored."""
REFUSED = {UNKNOWN: "unknown_id", NOT_SAMPLED: "not_sampled", TOO_OLD: "too_old", UNLIKE: "label_prob"}
"""The reasons of labels that were not taken."""

_DONE = object()

HIT = np.dtype([("row", "<i8"), ("label", LABEL)])


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the samplers drew for predictions, columns of length n.

    Which wait for their label and with which probability they were to (codes of `prob_code`), what the audit drew and with
    which probability (codes), which are picked for review, and until when (ms) those are listed.
    """

    waits: Bools
    wait_prob: NDArray[np.uint16]
    audit: NDArray[np.uint8]
    label_prob: NDArray[np.uint16]
    picked: Bools
    until: Ints

    def take(self, keep: slice) -> "Drawn":
        """Return the rows of a slice."""
        return Drawn(*(getattr(self, f.name)[keep] for f in fields(self)))


@dataclass(slots=True)
class Span:
    """Where the rows of one (version, day) are: all in [first, last), n of them, `labelled` with a label."""

    first: int
    last: int
    n: int
    labelled: int


class Book:
    """A code book: names get the next code when first used, and keep it for ever."""

    def __init__(self, kind: str, names: list[Any]) -> None:
        self.kind, self.names = kind, names
        self.code = {name: i for i, name in enumerate(names)}

    def new(self, names: Sequence[Any]) -> list[Any]:
        """Return those of `names` that have no code yet."""
        return [name for name in names if name not in self.code]

    def extend(self, names: Iterable[Any]) -> None:
        """Give codes to new names; after their transaction committed."""
        for name in names:
            self.code[name] = len(self.names)
            self.names.append(name)


def _filesystem(path: Path) -> str:
    """Return the type of the file system that holds the path, or nothing where the machine does not say."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    # Of several mounts at one place the last one is on top.
    holds = [(len(at), i, kind) for i, (at, kind) in enumerate(mounts) if path.is_relative_to(at.replace("\\040", " "))]
    return max(holds)[2] if holds else ""


class Store:
    """Rows, labels, index and log of one state directory. One thread at a time; opening it twice is refused.

    Raises StateError when the directory cannot be used. After any other exception from a method that writes, the object must
    be thrown away and opened anew: what was committed is there, nothing else is. Not `durable` leaves out the flushes, for
    states that are thrown away.
    """

    def __init__(self, folder: Path, hash_name: str = "xxh3", max_rows: int = MAX_SLOTS, durable: bool = True) -> None:
        self.folder, self.durable = folder, durable
        try:
            make_folder(folder)
        except OSError as e:
            raise StateError(f"{folder}: {e.strerror}; make it writable or choose another `state`") from None
        if (kind := _filesystem(folder.resolve())) in _NETWORK:
            raise StateError(
                f"{folder}: {kind} is a network file system, on which commits can be lost; choose a local disk for `state`"
            )
        if not os.access(folder, os.W_OK):
            raise StateError(f"{folder}: not writable; make it writable or choose another `state`")
        self.log = Log(folder / "log.db", durable)
        try:
            self._open(hash_name, max_rows)
        except BaseException as e:
            self.log.close()
            if isinstance(e, OSError | sqlite3.Error):
                said = e.strerror if isinstance(e, OSError) else e
                raise StateError(f"{folder}: {said}; make room there or choose another `state`") from None
            raise

    def _open(self, hash_name: str, max_rows: int) -> None:
        meta = self.log.meta()
        if not meta:
            meta = {"schema": SCHEMA, "grid": GRID, "hash": hash_name, "key": secrets.token_bytes(16)}
            meta |= {"block": BLOCK, "head": 0, "tail": 0, "labels_tail": 0}
            with self.log.transaction():
                self.log.set_meta(meta)
        for name, ours in (("schema", SCHEMA), ("grid", GRID), ("hash", hash_name)):
            if meta[name] != ours:
                raise StateError(
                    f"{self.folder}: was written with {name} {meta[name]!r}, this agent uses {ours!r}; use a new `state`"
                )
        self.meta: dict[str, Any] = meta
        # The first and the last block hold other rows, or none, as well.
        self.max_rows = min(max_rows, (MAX_SLOTS // meta["block"] - 1) * meta["block"])
        self.hasher = Hasher(meta["hash"], meta["key"])
        self.positions = self.log.positions()
        self.versions, self.combos, self.policies = (Book(k, self.log.codes(k)) for k in ("version", "combo", "policy"))
        self._masks: list[U64x2] = [self.hasher.version(*name) for name in self.versions.names]
        self._of_model: dict[str, list[int]] = {}
        self._group_versions(0)
        self.head, self.tail = int(meta["head"]), int(meta["tail"])
        blocks = self.log.blocks()
        self._check_files(blocks)
        self.passed = self.log.passed()
        self._unsaved: set[tuple[int, str, int]] = set()
        # Opening is tried again and again while it fails, so what fails must leave no file open.
        with ExitStack() as opened:
            self.ring = Ring(self.folder, meta["block"], blocks, self.durable)
            opened.callback(self.ring.close)
            counted, tail = (int(meta.get(name, 0)) for name in ("passing_counted", "passing_tail"))
            self.passing = Passing(self.folder, counted, tail, self.durable)
            opened.callback(self.passing.close)
            self._replay()
            opened.pop_all()

    def _replay(self) -> None:
        """Make all that is kept in memory from the files."""
        meta = self.meta
        self.ring.unlabel(max(self.head, int(meta["labels_tail"])), self.tail)
        self._hits = 0
        self._checkpointing: Iterator[None] | None = None
        # All at once: a million requests with one label each take seconds otherwise. Of several for a row the last one stays.
        stored = self.log.db.execute("select data from hits order by seq")
        self._apply(np.frombuffer(b"".join(data for (data,) in stored), HIT))
        self.closed = self.log.closed()
        self.recount = self.log.recounts()
        self.keep_from: dict[int, int] = {}
        self.left: dict[int, int] = {int(v): day for v, day in json.loads(meta.get("left", "{}")).items()}
        self.touched: set[tuple[int, int]] = set()
        self.refused = {"unknown_id": 0, "not_sampled": 0, "label_prob": 0}
        self.newest_passed = int(meta.get("newest_passed", 0))
        self._with_passed = {v for v, _, _ in self.passed}
        for rows in self.passing.since(self.passing.counted):
            self._with_passed.update(np.unique(rows["version"]).tolist())
        self.early = Early(self.log.db)
        self.newest: dict[int, int] = {}
        self.conflicts = self.overflown_combos = 0
        self.corrections = {"0_to_1": 0, "1_to_0": 0}
        self._reindex()
        self.changed = self.spans.keys() - self.closed.keys()

    def _check_files(self, blocks: Mapping[int, int]) -> None:
        """Refuse to go on with what the log counts on and the files have not: new files would hold zeros in its place."""
        size = int(self.meta["block"])
        needs = {"passing": Passing.file_size() if self.meta.get("passing_tail") else 0}
        for name, dtype, last in (("rows", ROW, self.tail), ("labels", LABEL, int(self.meta["labels_tail"]))):
            n = 1 + max((physical for physical, logical in blocks.items() if logical * size < last), default=-1)
            needs[name] = n * size * dtype.itemsize
        for name, need in needs.items():
            path = self.folder / f"{name}.bin"
            if need and (not path.exists() or path.stat().st_size < need):
                raise StateError(f"{path}: missing or too short; restore it together with log.db or use a new `state`")

    def _reindex(self) -> None:
        """Build the index and the spans from the rows."""
        self.index = Index(self.tail - self.head, self._rows_at, self._live)
        self.spans: dict[tuple[int, int], Span] = {}
        self._with_spans: set[int] = set()
        for number, part in self.ring.pieces(self.head, self.tail):
            rows = self.ring.rows[part]
            slots = np.arange(part.start, part.stop, dtype=np.int64)
            self.index.insert(np.ascontiguousarray(rows["h1"]), slots, self.tail - self.head)
            self._extend_spans(number, rows, self.ring.labels[part]["outcome"] >= 0)

    def _extend_spans(self, first: int, rows: NDArray[Any], labelled: Bools | None = None) -> None:
        """Note where the days of these rows are."""
        ts = np.ascontiguousarray(rows["ts"])
        keys, cell = _cells_of(rows["version"].astype(np.int64), ts // DAY)
        count = np.bincount(cell, minlength=len(keys))
        known = np.zeros(len(keys)) if labelled is None else np.bincount(cell, labelled, len(keys))
        begin, end, newest = np.full(len(keys), len(rows)), np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        at = np.arange(len(rows))
        np.minimum.at(begin, cell, at)
        np.maximum.at(end, cell, at)
        np.maximum.at(newest, cell, ts)
        for i in np.flatnonzero(count).tolist():
            key = int(keys[i]) >> 32, int(keys[i]) & 0xFFFFFFFF
            self.newest[key[0]] = max(self.newest.get(key[0], 0), int(newest[i]))
            self._with_spans.add(key[0])
            a, b = first + int(begin[i]), first + int(end[i]) + 1
            if (span := self.spans.get(key)) is None:
                self.spans[key] = Span(a, b, int(count[i]), int(known[i]))
            else:
                span.first, span.last = min(span.first, a), max(span.last, b)
                span.n, span.labelled = span.n + int(count[i]), span.labelled + int(known[i])

    def _rows_at(self, slots: NDArray[np.uint32]) -> NDArray[Any]:
        return self.ring.rows[slots]

    def _live(self, slots: NDArray[np.uint32]) -> Bools:
        numbers = self.ring.numbers(slots)
        live: Bools = (numbers >= self.head) & (numbers < self.tail)
        return live

    def _find(self, keys: U64x2) -> NDArray[np.int64]:
        return self.index.find(keys)

    def _group_versions(self, first: int) -> None:
        """Note of which model each version from the code `first` on is."""
        for code, (model, _) in enumerate(self.versions.names[first:], first):
            self._of_model.setdefault(model, []).append(code)

    def versions_of(self, model: str) -> list[int]:
        """Return the codes of the versions of a model that have rows, whether or not any of them wait."""
        return [v for v in self._of_model.get(model, ()) if v in self._with_spans or v in self._with_passed]

    def full_versions(self, names: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of the names that would be one version too many for their model."""
        refused: set[tuple[str, str]] = set()
        fresh: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            known = self.versions.code.get(name)
            have = self.versions_of(name[0])
            if known is not None and known in have:
                continue
            new = fresh.setdefault(name[0], [])
            if len(have) + len(new) >= VERSIONS_PER_MODEL or len(self.versions.names) >= _MAX_CODES:
                refused.add(name)
            else:
                new.append(name)
        return refused

    def append(
        self,
        p: Predictions,
        positions: Mapping[str, str],
        drawn: Drawn | None = None,
    ) -> Bools:
        """Store predictions and return which were new; on return they are on the disk.

        Of several with the same id the first wins, whenever it came; others with different content are counted as
        conflicts. `positions` are committed with the rows. `drawn` says which of them wait for their label (None: all).
        A new row takes the label that was held for it, or that another version of its model has for the same id.
        """
        books = (self.versions, self.combos, self.policies)
        new = {self.versions: self.versions.new(p.version.used())}
        for book, column in ((self.combos, p.combo), (self.policies, p.policy)):
            new[book] = book.new(column.used())[: max(0, _MAX_CODES - len(book.names))]
        masks = self._masks + [self.hasher.version(*name) for name in new[self.versions]]
        version = self._codes(self.versions, new[self.versions], p.version)
        keys = p.ids ^ np.array(masks, np.uint64).reshape(-1, 2)[version]
        rows = np.zeros(len(p), ROW)
        rows["h1"], rows["h2"], rows["ts"], rows["score"] = keys[:, 0], keys[:, 1], p.ts, p.score
        rows["version"], rows["verdict"] = version, p.verdict
        rows["combo"] = self._codes(self.combos, new[self.combos], p.combo)
        rows["policy"] = self._codes(self.policies, new[self.policies], p.policy)
        for name in ("label_prob", "cluster", "target", "margin", "features"):
            if (given := getattr(p, name)) is not None:
                rows[name] = given
        waits = np.ones(len(p), bool)
        if drawn is not None:
            waits, rows["wait_prob"], rows["audit"] = drawn.waits, drawn.wait_prob, drawn.audit
            rows["label_prob"] = np.where(drawn.audit != NO_AUDIT, drawn.label_prob, rows["label_prob"])
        fresh = self._fresh(rows, keys)
        at = np.flatnonzero(fresh & waits)
        added = rows if len(at) == len(rows) else rows[at]
        blocks = self.ring.reserve(self.tail, self.tail + len(added))
        if len(added):
            self.ring.write(self.tail, added)
        tail = self.tail + len(added)
        passed = rows[fresh & ~waits]
        newest_passed = max(self.newest_passed, int(passed["ts"].max(initial=0)))
        if len(passed):
            self.passing.write(passed)
        hits, slots = self._labels_for(added, p.ids[at], masks, [*self.versions.names, *new[self.versions]])
        touched = _days_of(np.unique((rows["version"][fresh].astype(np.int64) << 32) | (rows["ts"][fresh] // DAY)))
        late = touched & self.closed.keys()
        with self.log.transaction():
            self.log.db.executemany("insert or ignore into recount values (?, ?)", late)
            for book in books:
                self.log.add_codes(book.kind, len(book.names), new[book])
            self.log.add_blocks(blocks)
            self.log.set_meta({"tail": tail, "passing_tail": self.passing.tail + len(passed), "newest_passed": newest_passed})
            if len(hits):
                self.log.db.execute("insert into hits (data) values (?)", (hits.tobytes(),))
            self.early.use(self.log.db, slots)
            if drawn is not None and (picked := np.flatnonzero(fresh & drawn.picked)).size:
                self._put_picks(p.take(picked), rows[picked], drawn.until[picked])
            self.log.set_positions(positions)
        known = len(self.versions.names)
        for book in books:
            book.extend(new[book])
        self._group_versions(known)
        self._masks = masks
        self.positions.update(positions)
        self.passing.advance(len(passed))
        self.newest_passed = newest_passed
        self._with_passed.update(np.unique(passed["version"]).tolist())
        self.early.held["used"][slots] = True
        if len(added):
            self.index.insert(np.ascontiguousarray(added["h1"]), self.ring.slots(self.tail, tail), self.tail - self.head)
            self._extend_spans(self.tail, added)
            self.tail = tail
            if len(hits):
                day = (added["version"].astype(np.int64) << 32) | (added["ts"] // DAY)
                at = hits["row"] - (tail - len(added))
                self._count_labels(added[at], np.full(len(hits), -1, np.int8), hits["label"]["outcome"], day[at])
                self._apply(hits)
        self.touched |= touched
        self.changed |= touched
        self.recount |= late
        self._go_on_with_checkpoint(len(hits))
        return fresh

    def _labels_for(
        self, rows: NDArray[Any], ids: U64x2, masks: Sequence[U64x2], names: Sequence[tuple[str, str]]
    ) -> tuple[NDArray[Any], Ints]:
        """Return the labels (HIT) that wait for the new rows, and the slots of the held ones that found theirs.

        A label that named no version is for all of them, those to come as well.
        """
        found, slots = [], []
        if len(self.early) and len(rows):
            keys = np.stack((rows["h1"], rows["h2"]), axis=1)
            for slot, named in ((self.early.find(ids), 0), (self.early.find(keys), NAMED)):
                at = np.flatnonzero(slot >= 0)
                held = self.early.held[slot[at]]
                found.append((at, held["ts"], held["label"], named))
                slots.append(slot[at])
        version = rows["version"]
        for v in np.unique(version).tolist():
            mine = np.flatnonzero(version == v)
            for other in self.versions_of(names[v][0]):
                if other == v:
                    continue
                slot = self._find(ids[mine] ^ masks[other])
                have = slot >= 0
                have[have] = (self.ring.labels["outcome"][slot[have]] >= 0) & (self.ring.labels["label_prob"][slot[have]] < NAMED)
                said = self.ring.labels[slot[have]]
                found.append((mine[have], _time_of(self.ring.rows["ts"][slot[have]], said), said, 0))
        return self._winners(rows, found), np.unique(np.concatenate(slots)) if slots else np.empty(0, np.int64)

    def _winners(self, rows: NDArray[Any], found: list[tuple[Any, Ints, NDArray[Any], int]]) -> NDArray[Any]:
        """Return one label (HIT) for each new row that has any: of (positions, times, labels, NAMED or 0) the one that wins."""
        found = [f for f in found if len(f[0])]
        if not found:
            return np.empty(0, HIT)
        at = np.concatenate([f[0] for f in found])
        said = np.concatenate([f[2] for f in found])
        said["delta"] = _delta(np.concatenate([f[1] for f in found]), rows["ts"][at])
        said["label_prob"] = (said["label_prob"] & ~np.uint16(NAMED)) | np.concatenate(
            [np.full(len(f[0]), f[3], np.uint16) for f in found]
        )
        like = _alike(rows["label_prob"][at], said["label_prob"])
        self.refused["label_prob"] += int((~like).sum())
        at, said = at[like], said[like]
        win = _last_of(at, said["revision"], said["delta"])
        hits = np.zeros(len(win), HIT)
        hits["row"], hits["label"] = self.tail + at[win], said[win]
        return hits

    def _put_picks(self, p: Predictions, rows: NDArray[Any], until: Ints) -> None:
        assert p.sent is not None
        names = [p.version.names[c] for c in p.version.codes]
        keys = zip(*(rows[h].view(np.int64).tolist() for h in ("h1", "h2")), strict=True)
        prob = prob_of(rows["label_prob"]).tolist()
        values = zip(keys, names, p.sent.tolist(), p.ts.tolist(), p.score.tolist(), prob, until.tolist(), strict=True)
        self.log.db.executemany(
            "insert or ignore into picks values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((*key, *name, sent.decode(), *rest) for key, name, sent, *rest in values),
        )

    def _codes(self, book: Book, new: list[Any], column: Coded) -> NDArray[np.int64]:
        later = {name: len(book.names) + i for i, name in enumerate(new)}
        # A name past the bound of its book shares code 0, as do names that no row has.
        lut = np.array([book.code.get(name, later.get(name, -1)) for name in column.names], np.int64)
        if (over := lut < 0).any():
            if book is self.combos:
                self.overflown_combos += int(over[column.codes].sum())
            lut[over] = 0
        return lut[column.codes]

    def _fresh(self, rows: NDArray[Any], keys: U64x2) -> Bools:
        """Return which rows are not stored yet, counting conflicts."""
        fresh = np.ones(len(rows), bool)
        first = np.unique(rows[["h1", "h2"]], return_index=True, return_inverse=True) if _repeats(keys) else None
        if first is not None:
            _, at, inverse = first
            original = at[inverse.ravel()]
            repeated = original != np.arange(len(rows))
            fresh &= ~repeated
            self.conflicts += _differ(rows[repeated], rows[original[repeated]])
        slots = self._find(keys)
        stored = slots >= 0
        if stored.any():
            again = stored & fresh
            self.conflicts += _differ(rows[again], self.ring.rows[slots[again]])
            fresh &= ~stored
        slots = self.passing.find(keys)
        if (passed := slots >= 0).any():
            again = passed & fresh
            self.conflicts += _differ(rows[again], self.passing.rows[slots[again]])
            fresh &= ~passed
        return fresh

    def label(self, labels: Labels, positions: Mapping[str, str], until: Ints, now: int) -> NDArray[np.int8]:
        """Store labels and return what became of each (UNKNOWN to NEWS); on return they are on the disk.

        A label without version goes to every version of its model that has the id. Highest revision wins, else the
        newest `ts`, else the later arrival. A label that changes a closed day marks it for recount. One whose prediction
        is not there is held for it until `until`, unless that is past; so is one without version that no row shows, since
        labels that name a version won: it is for the versions to come.
        """
        became = np.full(len(labels), UNKNOWN, np.int8)
        looked: list[tuple[Ints, int]] = []
        keys = labels.ids.copy()
        named = np.zeros(len(labels), np.uint16)
        for code, (model, version) in enumerate(labels.version.names):
            at = np.flatnonzero(labels.version.codes == code)
            if version is not None:
                keys[at] ^= self.hasher.version(model, version)
                named[at] = NAMED
            known = [self.versions.code[model, version]] if (model, version) in self.versions.code else []
            looked += [(at, v) for v in (self.versions_of(model) if version is None else known)]
        of, at = self._rows_of_labels(labels.ids, looked, became)
        prob = named if labels.label_prob is None else labels.label_prob | named
        hits, shadowed, displaced = np.empty(0, HIT), np.zeros(len(labels), bool), np.empty(0, EARLY)
        if len(of):
            like = _alike(self.ring.rows["label_prob"][at], prob[of])
            became[of[~like]] = np.maximum(became[of[~like]], UNLIKE)
            of, at = of[like], at[like]
            hits, won = self._hits_of(labels, prob, of, at, became)
            shadowed = self._shadowed(prob, of, at, hits)
            displaced = self._displaced(labels, until, hits, won)
        early = self._to_hold(labels, prob, keys, until, now, became, shadowed, displaced)
        if len(hits) or len(early) or positions:
            slot = self.ring.slots_of(hits["row"])
            rows, before = self.ring.rows[slot], self.ring.labels[slot]
            old = before["outcome"]
            day = (rows["version"].astype(np.int64) << 32) | (rows["ts"] // DAY)
            changed = _days_of(np.unique(day[_counts_otherwise(before, hits["label"])]))
            late = changed & self.closed.keys()
            with self.log.transaction():
                if len(hits):
                    self.log.db.execute("insert into hits (data) values (?)", (hits.tobytes(),))
                gone = self.early.hold(self.log.db, early)
                self.log.db.executemany("insert or ignore into recount values (?, ?)", late)
                self.log.set_positions(positions)
            self._early_left(gone)
            self.early.settle(early)
            self.recount |= late
            self.touched |= changed
            self.changed |= _days_of(np.unique(day))
            self.positions.update(positions)
            self._count_labels(rows, old, hits["label"]["outcome"], day)
            self._apply(hits)
            self._go_on_with_checkpoint(len(hits))
        return became

    def _rows_of_labels(self, ids: U64x2, looked: list[tuple[Ints, int]], became: NDArray[np.int8]) -> tuple[Ints, Ints]:
        """Return labels and the slots of their rows, for labels and the version that each is looked up under.

        All are looked up at once. Note in `became` which rows did not wait or are past their corrections.
        """
        if not looked:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = np.concatenate([at for at, _ in looked])
        key = np.concatenate([ids[at] ^ self._masks[v] for at, v in looked])
        oldest = [max(self.keep_from.get(v, 0), self.left.get(v, 0)) for _, v in looked]
        first = np.repeat(np.array(oldest, np.int64), [len(at) for at, _ in looked])
        slot = self._find(key)
        became[at[(slot < 0) & self.passing.has(key)]] = NOT_SAMPLED
        there = slot >= 0
        at, slot, first = at[there], slot[there], first[there]
        kept = self.ring.rows["ts"][slot] // DAY >= first
        became[at[~kept]] = np.maximum(became[at[~kept]], TOO_OLD)
        return at[kept], slot[kept]

    def _to_hold(
        self,
        labels: Labels,
        prob: NDArray[np.uint16],
        keys: U64x2,
        until: Ints,
        now: int,
        became: NDArray[np.int8],
        shadowed: Bools,
        displaced: NDArray[Any],
    ) -> NDArray[Any]:
        """Return the labels (EARLY) to hold: those of unknown ids, and those without version that no row shows.

        Note in `became` which are held and which say nothing new.
        """
        at = np.flatnonzero(((became == UNKNOWN) | shadowed) & (until > now))[-early.CAPACITY :]
        displaced = displaced[displaced["until"] > now][: early.CAPACITY - len(at)]
        if not len(at) + len(displaced):
            return np.empty(0, EARLY)
        new = np.zeros(len(at), EARLY)
        new["h1"], new["h2"], new["ts"], new["until"] = keys[at, 0], keys[at, 1], labels.ts[at], until[at]
        new["label"]["outcome"], new["label"]["revision"], new["label"]["label_prob"] = (
            labels.label[at],
            labels.revision[at],
            prob[at],
        )
        new["used"] = shadowed[at]
        became[at] = OLD_NEWS
        new, at = np.concatenate((displaced, new)), np.append(np.full(len(displaced), -1), at)
        _, group = np.unique(new[["h1", "h2"]], return_inverse=True)
        win = np.sort(_last_of(group.ravel(), new["label"]["revision"], new["ts"]))
        at, new = at[win], new[win]
        slot = self.early.find(np.stack((new["h1"], new["h2"]), axis=1))
        old = self.early.held[slot]
        keep = (slot < 0) | (better(old, new) & ((old["ts"] != new["ts"]) | (old["label"] != new["label"])))
        became[at[keep & (at >= 0)]] = HELD
        held: NDArray[Any] = new[keep]
        return held

    def _early_left(self, gone: NDArray[Any]) -> None:
        """Forget held labels and count those that no prediction took.

        One from a time whose predictions did not all wait may be of one that did not, which nobody remembers by its id.
        """
        dropped = gone[~gone["used"]]
        held = dropped["until"] - dropped["ts"]
        sampled = int((dropped["ts"] - held <= self.newest_passed).sum())
        self.refused["not_sampled"] += sampled
        self.refused["unknown_id"] += len(dropped) - sampled
        self.early.drop(gone)

    def _hits_of(
        self, labels: Labels, prob: NDArray[np.uint16], which: NDArray[np.int64], slots: Ints, became: NDArray[np.int8]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the labels that win (HIT), one per row, and which labels of the request they are.

        Note in `became` which won and which said nothing new.
        """
        became[which] = np.maximum(became[which], OLD_NEWS)
        delta = _delta(labels.ts[which], self.ring.rows["ts"][slots])
        # Of labels that agree in revision and time the last one in the request won, so `which` decides.
        order = np.argsort(which, kind="stable")
        win = order[_last_of(slots[order], labels.revision[which[order]], delta[order])]
        which, slots, delta = which[win], slots[win], delta[win]
        old = self.ring.labels[slots]
        revision = labels.revision[which].astype(np.int64)
        newer = (revision > old["revision"]) | ((revision == old["revision"]) & (delta >= old["delta"]))
        same = (old["outcome"] == labels.label[which]) & (old["revision"] == revision) & (old["delta"] == delta)
        keep = (old["outcome"] < 0) | (newer & ~(same & (old["label_prob"] == prob[which])))
        became[which[keep]] = NEWS
        hits = np.zeros(int(keep.sum()), HIT)
        hits["row"] = self.ring.numbers(slots[keep])
        hits["label"]["outcome"] = labels.label[which[keep]]
        hits["label"]["revision"] = revision[keep]
        hits["label"]["label_prob"] = prob[which[keep]]
        hits["label"]["delta"] = delta[keep]
        return hits, which[keep]

    def _shadowed(self, prob: NDArray[np.uint16], which: NDArray[np.int64], slots: Ints, hits: NDArray[Any]) -> Bools:
        """Return which labels of the request have no version and will be on no row, nor will a better one like them."""
        out = np.zeros(len(prob), bool)
        if (prob >= NAMED).all():
            return out
        after = self.ring.labels["label_prob"][slots]
        if len(hits):
            at = self.ring.slots_of(hits["row"])
            order = np.argsort(at)
            place = order[np.minimum(np.searchsorted(at, slots, sorter=order), len(at) - 1)]
            after = np.where(at[place] == slots, hits["label"]["label_prob"][place], after)
        out[which[prob[which] < NAMED]] = True
        out[which[after < NAMED]] = False
        return out

    def _displaced(self, labels: Labels, until: Ints, hits: NDArray[Any], won: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels without version (EARLY) that rows lose to labels that name one."""
        slots = self.ring.slots_of(hits["row"])
        old = self.ring.labels[slots]
        lose = (old["outcome"] >= 0) & (old["label_prob"] < NAMED) & (hits["label"]["label_prob"] >= NAMED)
        old, won = old[lose], won[lose]
        out = np.zeros(len(old), EARLY)
        out["h1"], out["h2"] = labels.ids[won, 0], labels.ids[won, 1]
        out["ts"] = _time_of(self.ring.rows["ts"][slots[lose]], old)
        out["until"] = out["ts"] + until[won] - labels.ts[won]
        out["label"], out["used"] = old, True
        out["label"]["delta"] = 0
        return out

    def _count_labels(self, rows: NDArray[Any], old: NDArray[np.int8], new: NDArray[np.int8], day: Ints) -> None:
        known, before, after = old >= 0, old == wanted(rows), new == wanted(rows)
        self.corrections["0_to_1"] += int((known & ~before & after).sum())
        self.corrections["1_to_0"] += int((before & ~after).sum())
        for key, n in zip(*(a.tolist() for a in np.unique(day[old < 0], return_counts=True)), strict=True):
            self.spans[key >> 32, key & 0xFFFFFFFF].labelled += n

    def _apply(self, hits: NDArray[Any]) -> None:
        live = hits[hits["row"] >= self.head]
        self.ring.labels[self.ring.slots_of(live["row"])] = live["label"]
        self._hits += len(hits)

    def checkpoint(self) -> None:
        """Bring the label records to the disk, after which the log need not repeat them."""
        self._checkpointing = None
        for _ in self._checkpoint(1):
            pass

    def _go_on_with_checkpoint(self, hits: int) -> None:
        """Take the next steps of a checkpoint when the log repeats many labels, so that no caller waits for the whole of it.

        There are more of them for many hits, which else would come faster than the log forgets them.
        """
        for _ in range(1 + hits // _HITS_PER_STEP if hits else 0):
            if self._hits <= _HITS_PER_CHECKPOINT:
                return
            if self._checkpointing is None:
                self._checkpointing = self._checkpoint(_CHECKPOINT_PARTS)
            if next(self._checkpointing, _DONE) is _DONE:
                self._checkpointing = None

    def _checkpoint(self, parts: int) -> Iterator[None]:
        # Labels that come between the steps stay in the log. It forgets the oldest first: whatever it repeats of a row's
        # labels then ends with the last one.
        tail, hits = self.tail, self._hits
        first, last = self.log.hits_range()
        yield from self.ring.flush_labels()
        for part in range(1, parts + 1):
            with self.log.transaction():
                self.log.set_meta({"labels_tail": tail})
                self.log.remove_hits(first + (last - first) * part // parts)
            yield
        self._hits -= hits

    def pieces_of(self, version: int, day: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield the rows (ROW) of a version and day and their labels (LABEL), some 100,000 at a time."""
        span = self.spans.get((version, day))
        for _, part in self.ring.pieces(max(span.first, self.head), span.last) if span else ():
            piece = self.ring.rows[part]
            keep = (piece["version"] == version) & (piece["ts"] // DAY == day)
            if keep.any():
                yield piece[keep], self.ring.labels[part][keep]

    def rows_of(self, version: int, day: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return all rows (ROW) of a version and day and their labels (LABEL)."""
        rows, labels = [np.empty(0, ROW)], [np.empty(0, LABEL)]
        for piece, said in self.pieces_of(version, day):
            rows.append(piece)
            labels.append(said)
        return np.concatenate(rows), np.concatenate(labels)

    def finds(self, rows: NDArray[Any]) -> Bools:
        """Return which rows (ROW) the index finds by their ids."""
        slots = self._find(np.stack((rows["h1"], rows["h2"]), axis=1))
        there: Bools = (slots >= 0) & (self.ring.rows["ts"][slots] == rows["ts"])
        return there

    def unlike_log(self) -> list[str]:
        """Return what memory has otherwise than the log: held labels, tables of rows that did not wait."""
        out = [] if np.array_equal(Early(self.log.db).by_key(), self.early.by_key()) else ["held labels"]
        stored = self.log.passed()
        saved = (stored.keys() | self.passed.keys()) - self._unsaved
        if any(unlike(stored.get(key, {}), self.passed.get(key, {})) for key in saved):
            out.append("tables of rows that did not wait")
        return out

    def rows_since(self, first: int) -> Iterable[NDArray[Any]]:
        """Yield the rows from number `first` to the tail in pieces."""
        for _, part in self.ring.pieces(max(first, self.head), self.tail):
            yield self.ring.rows[part]

    def record(
        self,
        now: int,
        days: Mapping[tuple[int, int], Mapping[str, Table]],
        keep_from: Mapping[int, int],
        entries: Sequence[tuple[str, str, str, dict[str, Any]]],
        meta: Mapping[str, Any],
    ) -> list[Entry]:
        """Commit a tick as one transaction: final day tables, journal entries, the tick itself, and the rows that may leave.

        `keep_from` says for each version from which day on its rows are still needed for corrections; rows of other
        versions, whose models are no longer configured, may leave. Final tables are kept for 400 days. Days of which rows
        left stay past their corrections, whatever it says later: counted again they would lose those rows.
        """
        closed = self.closed | {k: (t["all"].n, t["all"].labelled) for k, t in days.items()}
        head = self._new_head(closed, keep_from, self.recount - days.keys())
        left = dict(self.left)
        for (version, day), span in self.spans.items():
            if span.first < head:
                left[version] = max(left.get(version, 0), day + 1)
        # A day that is counted again needs the tables of its rows that did not wait as long as it has rows that do.
        whole = {k for k in self.spans if k[1] >= left.get(k[0], 0)}
        over = [
            (v, kind, at)
            for v, kind, at in self.passed
            if (at < now // HOUR - 48 if kind == "hour" else at < keep_from.get(v, now // DAY) and (v, at) not in whole)
        ]
        with self.log.transaction():
            for (version, day), tables in days.items():
                self.log.put_day(version, day, tables)
            added = self.log.add_entries(now, "agent", entries)
            self.log.set_meta({"head": head, "last_tick": now, "left": json.dumps(left), **meta})
            self.log.remove_blocks(head // self.ring.size)
            if past := {k for k in closed if k[1] < now // DAY - _KEPT_DAYS and k not in self.spans}:
                self.log.db.executemany("delete from days where version = ? and day = ?", past)
            self._put_passed()
            self.log.db.executemany("delete from passed where version = ? and kind = ? and at = ?", over)
            self.log.db.execute("delete from picks where until <= ?", (now,))
            gone = self.early.expired(self.log.db, now)
        self._passed_put()
        for key in over:
            del self.passed[key]
        self._with_passed = {v for v, _, _ in self.passed}
        self._early_left(gone)
        self.closed, self.left = {k: v for k, v in closed.items() if k not in past}, left
        self.recount -= days.keys()
        self.touched.clear()
        self.keep_from = dict(keep_from)
        self.meta |= {"last_tick": now, **meta}
        if head != self.head:
            self._leave(head)
        return added

    def mark(self, days: set[tuple[int, int]]) -> None:
        """Mark closed (version, day) pairs to be counted again."""
        if days <= self.recount:
            return
        with self.log.transaction():
            self.log.db.executemany("insert or ignore into recount values (?, ?)", days)
        self.recount |= days

    def add_passed(self, key: tuple[int, str, int], tables: Mapping[str, Table]) -> None:
        """Add to the tables of the rows of a (version, "day" or "hour", which) that do not wait; the next commit stores them.

        A slice that was not there from its first rows on was not counted in full and is left out.
        """
        before = self.passed.get(key)
        self.passed[key] = (
            dict(tables) if before is None else {name: before[name] + t for name, t in tables.items() if name in before}
        )
        self._unsaved.add(key)

    def save_passed(self) -> None:
        """Commit the tables of rows that do not wait between two ticks, to make room for more."""
        with self.log.transaction():
            self._put_passed()
        self._passed_put()

    def _put_passed(self) -> None:
        for key in self._unsaved:
            self.log.put_passed(*key, self.passed[key])
        self.log.set_meta({"passing_counted": self.passing.seen})

    def _passed_put(self) -> None:
        self._unsaved.clear()
        self.passing.counted = self.passing.seen

    def picks(self, model: str) -> list[dict[str, Any]]:
        """Return the predictions of a model that were picked for review and have no label yet, newest first."""
        query = "select h1, h2, version, id, ts, score, label_prob from picks where model = ? order by ts desc, id"
        stored = self.log.db.execute(query, (model,)).fetchall()
        if not stored:
            return []
        slots = self._find(np.array([row[:2] for row in stored], np.int64).view(np.uint64))
        waits = (slots >= 0) & (self.ring.labels["outcome"][slots] < 0)
        names = ("version", "id", "ts", "score", "label_prob")
        return [dict(zip(names, row[2:], strict=True)) for row, open_ in zip(stored, waits.tolist(), strict=True) if open_]

    def _new_head(
        self, closed: Mapping[tuple[int, int], Any], keep_from: Mapping[int, int], recount: set[tuple[int, int]]
    ) -> int:
        """Return the first row that has to stay: rows before it are of closed and counted days past their corrections.

        Days of a version that `keep_from` does not have are nobody's any more and hold nothing back, as do those of which
        rows left.
        """
        staying = [
            s.first
            for (v, d), s in self.spans.items()
            if v in keep_from and d >= self.left.get(v, 0) and ((v, d) not in closed or d >= keep_from[v] or (v, d) in recount)
        ]
        return max(self.head, min(staying, default=self.tail))

    def _leave(self, head: int) -> None:
        self.head = head
        self.ring.free(head)
        for key, span in list(self.spans.items()):
            if span.last <= head:
                del self.spans[key]
        self._with_spans = {v for v, _ in self.spans}

    def place(self, *parts: str) -> Path:
        """Return a path below the state directory; any text is safe as a part."""
        return self.folder.joinpath(*map(safe_name, parts))

    def abandon(self) -> None:
        """Close all files without a checkpoint, after something failed: what was committed is there when it is opened anew."""
        self.log.close()  # first: while it is open nobody can open the directory anew
        self.ring.close()
        self.passing.close()

    def close(self) -> None:
        """Checkpoint and close all files, these also when the checkpoint fails."""
        try:
            self.checkpoint()
        finally:
            self.abandon()


def _days_of(keys: Ints) -> set[tuple[int, int]]:
    """Return the (version, day) pairs of keys version << 32 | day."""
    return {(k >> 32, k & 0xFFFFFFFF) for k in keys.tolist()}


def _delta(label: Ints, prediction: Ints) -> Ints:
    """Return the seconds from prediction to label, within what a label record holds.

    Both times are cut to whole seconds, so that the label's time is the same whichever row it is told from.
    """
    seconds: Ints = np.clip(label // SECOND - prediction // SECOND, -(2**31) + 1, 2**31 - 1)
    return seconds


def _time_of(prediction: Ints, label: NDArray[Any]) -> Ints:
    """Return the time of labels (LABEL) in ms, cut to whole seconds."""
    ms: Ints = (prediction // SECOND + label["delta"]) * SECOND
    return ms


def _counts_otherwise(old: NDArray[Any], new: NDArray[Any]) -> Bools:
    """Return where a table counts the new label (LABEL) otherwise than the old one."""
    prob = (old["label_prob"] ^ new["label_prob"]) & ~np.uint16(NAMED)
    changes: Bools = (old["outcome"] != new["outcome"]) | (old["delta"] != new["delta"]) | (prob != 0)
    return changes


def _alike(row: NDArray[np.uint16], label: NDArray[np.uint16]) -> Bools:
    """Return where prediction and label do not give two different `label_prob`."""
    label = label & ~np.uint16(NAMED)
    alike: Bools = (row == 0) | (label == 0) | (row == label)
    return alike


def _last_of(key: Ints, revision: NDArray[Any], time: Ints) -> Ints:
    """Return for each key the position of the label that wins: highest revision, else newest time, else the last."""
    order = np.lexsort((np.arange(len(key)), time, revision, key))
    last = np.ones(len(order), bool)
    last[:-1] = key[order][1:] != key[order][:-1]
    return order[last]


def _cells_of(version: Ints, day: Ints) -> tuple[Ints, Ints]:
    """Return keys version << 32 | day, all distinct, and for each row the place of its own among them.

    Rows are mostly of few versions and days that are close together, so all pairs in between are keys; sorting is for
    rows that are not.
    """
    v, d = int(version.min()), int(day.min())
    versions, days = int(version.max()) - v + 1, int(day.max()) - d + 1
    if versions * days > _MOST_CELLS:
        keys, cell = np.unique((version << 32) | day, return_inverse=True)
        return keys, cell
    keys = (np.arange(v, v + versions)[:, None] << 32) | np.arange(d, d + days)
    return keys.ravel(), (version - v) * days + (day - d)


def _repeats(keys: U64x2) -> bool:
    h1 = np.sort(keys[:, 0])
    return bool((h1[1:] == h1[:-1]).any())


def _differ(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Return how many repeated predictions differ from the stored ones in score or time."""
    return int(((a["score"] != b["score"]) | (a["ts"] != b["ts"])).sum())
