"""Named steps at which a process kills itself, and what a disk loses when the power goes at that moment."""

import itertools
import mmap
import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path

SECTOR = 512
_unlink = os.unlink  # the loss of power is no step of the process


def choose(rng, log, most):
    """Return where the next process is to die, (name, count, most): at the count-th step of that name, a rare one where none
    died yet, at the latest at the step number `most`.
    """
    passed, hit = steps(log)
    if (left := sorted(passed.keys() - hit.keys(), key=lambda name: (passed[name], name))) and rng.random() < 0.9:
        return left[rng.randrange(min(len(left), 3))], rng.choice([1, 1, 2]), most * 5
    return "", -1, rng.randrange(1, most)


def steps(log):
    """Return in how many lives each step was passed, and at which steps a process died."""
    said = log.read_text().split() if log.exists() else []
    return [Counter(name for what, name in zip(said[::2], said[1::2], strict=True) if what == w) for w in ("passed", "hit")]


class Points:
    """The steps of this process, which dies `where` `choose` said. `log` hears of each name once."""

    def __init__(self, log, where, die):
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.name, self.count, self.most = where
        self.die = die
        self.known = set()

    def passed(self, name):
        """Note a step, and die if it is the one."""
        if name not in self.known:
            self.known.add(name)
            os.write(self.log, f"passed {name}\n".encode())
        self.most -= 1
        self.count -= name == self.name
        if not self.most or not self.count:
            os.write(self.log, f"hit {name}\n".encode())
            self.die()

    def around(self, call, name_of):
        """Return the call with a step before and after it, whose name its first argument gives."""

        def wrapped(first, *args, **kw):
            name = name_of(first)
            self.passed("before-" + name)
            result = call(first, *args, **kw)
            self.passed("after-" + name)
            return result

        return wrapped


def kill():
    """Be killed by nobody else than oneself."""
    os.kill(os.getpid(), signal.SIGKILL)


class Disk:
    """What of a folder would be there after a loss of power: files as of their last flush, and of what came later any sectors.

    The log's own file is SQLite's affair; of what was appended to its WAL after the last commit that returned any tail is
    lost. With `late` a flush takes effect only after the next commit: the mistake that must be found.
    """

    def __init__(self, folder, rng, late=False):
        self.folder, self.rng, self.late = folder, rng, late
        folder.mkdir(exist_ok=True)
        self.wal = folder / "log.db-wal"
        self.images = {path: path.read_bytes() for path in self._files()}
        self.names = set(self.images)
        self.committed = self._wal_size()
        self.pending = []

    def _files(self):
        return [path for path in self.folder.iterdir() if not path.name.startswith("log.db")]

    def _wal_size(self):
        return self.wal.stat().st_size if self.wal.exists() else 0

    def flushed(self, path, start=0, size=None):
        """Take a file, some bytes of it with its length, or the names in a folder, as they are now."""
        if self.late and path.is_file():
            self.pending.append((path, start, size))
        elif path == self.folder:
            self.names = set(self._files())
        elif path.exists():
            self._take(path, start, size)

    def _take(self, path, start, size):
        new = path.read_bytes()
        end = len(new) if size is None else start + size
        old = self.images.get(path, b"")[: len(new)].ljust(len(new), b"\0")
        self.images[path] = old[:start] + new[start:end] + old[end:]

    def commit(self):
        """Take the log as it is now."""
        self.committed = self._wal_size()

    def settle(self):
        """Make the flushes that were late."""
        late, self.pending = self.pending, []
        for flush in late:
            self._take(*flush)

    def lose(self):
        """Leave of the folder what the disk might hold."""
        for path in sorted({*self._files(), *self.names}):
            self._lose_file(path)
        if self.wal.exists():
            os.truncate(self.wal, self.rng.randint(self.committed, max(self.committed, self._wal_size())))

    def _lose_file(self, path):
        old = self.images.get(path, b"")
        if path.exists() != (path in self.names) and self.rng.random() < 0.5:
            if path.exists():
                _unlink(path)  # its name was not flushed
            else:
                path.write_bytes(old)  # its deletion was not
            return
        if not path.exists() or (new := path.read_bytes()) == old:
            return
        size = self.rng.choice([len(old), len(new)])
        old, new = (data[:size].ljust(size, b"\0") for data in (old, new))
        parts = [self.rng.choice((old, new))[i : i + SECTOR] for i in range(0, size, SECTOR)]
        path.write_bytes(b"".join(parts))


def arm(log, where, disk=None):
    """Make one of the coming steps the last one of this process; given a disk, its power goes with it."""

    def die():
        if disk is not None:
            disk.lose()
        kill()

    points = Points(log, where, die)

    class Connection(sqlite3.Connection):
        def execute(self, sql, *args):
            if disk is not None and "wal_autocheckpoint" in sql:
                sql = "pragma wal_autocheckpoint=0"  # so that any part of the WAL is one that can be left
            return self.step(name_of(sql), super().execute, sql, *args)

        def executemany(self, sql, *args):
            return self.step(name_of(sql), super().executemany, sql, *args)

        def executescript(self, sql):
            return self.step("script", super().executescript, sql)

        def step(self, name, call, *args):
            points.passed("before-" + name)
            result = call(*args)
            if disk is not None and not self.in_transaction:
                if name == "commit":
                    points.passed("within-commit")
                disk.commit()
            points.passed("after-" + name)
            if disk is not None and name == "commit":
                disk.settle()
            return result

    connect, pwrite = sqlite3.connect, os.pwrite

    def torn(fd, view, offset):
        """Write in two halves, with a step between."""
        half = len(view) // 2
        pwrite(fd, view[:half], offset)
        points.passed("within-pwrite-" + called(path_of(fd)))
        return half + pwrite(fd, view[half:], offset + half)

    def flushing(call):
        def flushed(fd):
            call(fd)
            if disk is not None:
                disk.flushed(path_of(fd))

        return flushed

    class Mapped(mmap.mmap):
        def __new__(cls, fd, *args, **kw):
            made = super().__new__(cls, fd, *args, **kw)
            made.path = path_of(fd)
            return made

        def flush(self, start=0, size=None):
            points.passed("before-msync-" + called(self.path))
            super().flush(start, len(self) - start if size is None else size)
            if disk is not None:
                disk.flushed(self.path, start, size)
            points.passed("after-msync-" + called(self.path))

    sqlite3.connect = lambda *a, **kw: connect(*a, **kw, factory=Connection)
    mmap.mmap = Mapped
    os.pwrite = torn
    for call in ("fdatasync", "fsync"):
        setattr(os, call, flushing(getattr(os, call)))
    for call in ("pwrite", "fdatasync", "fsync", "posix_fallocate", "ftruncate"):
        setattr(os, call, points.around(getattr(os, call), lambda fd, call=call: f"{call}-{called(path_of(fd))}"))
    for call in ("replace", "rename", "unlink"):
        setattr(os, call, points.around(getattr(os, call), lambda path, call=call: f"{call}-{called(Path(path))}"))


def path_of(fd):
    """Return the path of an open file."""
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


def called(path):
    """Return what steps call a file: the name of one of the store, else what it is."""
    return path.stem if path.suffix == ".bin" else "folder" if path.is_dir() else "file"


def name_of(sql):
    """Return the name of a statement: its verb and its table or pragma."""
    words = sql.lower().split()
    if words[0] == "pragma":
        return "pragma-" + words[1].partition("=")[0]
    table = [after for word, after in itertools.pairwise(words) if word in ("into", "from", "update")]
    return "-".join((words[0], *table[:1]))
