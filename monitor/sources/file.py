"""Follow a file of NDJSON or CSV. Its position is committed with the rows, so a restart goes on where it was."""

import gzip
import os
from pathlib import Path
from typing import IO, cast

from monitor.core.events import Batch
from monitor.formats import Decoder, csv

_CHUNK = 1 << 20


class FileReader:
    """Reads whole lines. Positions are `offset:events:inode:newest`: bytes read, events of the lines after them already taken,
    which file it was, and how far its events had brought the time (ms).

    In a gzip file offsets count uncompressed bytes. A file that was replaced or cut short is read from its start, which
    ids make harmless. `read` raises OSError, EOFError or ValueError when the file cannot be read; the next call tries again
    from the same place.
    """

    def __init__(self, path: Path, kind: str, form: str, follow: bool, decoder: Decoder, position: str | None) -> None:
        self.path, self.kind, self.follow = path, kind, follow
        self.name = f"file:{path}"
        self.csv = form == "csv"
        self.decoder = decoder
        self.offset, self._skip, self._inode, self.newest = map(int, (position or "0:0:0:0").split(":"))
        self._file: IO[bytes] | None = None
        self._names: list[str] = []
        self.at_end = False

    def position(self, offset: int, skip: int, newest: int) -> str:
        """Return the position after `skip` events of the lines that begin at `offset`, of which one was at `newest`."""
        return f"{offset}:{skip}:{self._inode}:{newest}"

    def _open(self) -> IO[bytes] | None:
        """Open the file at the position; None while the header line of a followed CSV file is being written."""
        opened = gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb")  # noqa: SIM115 - close() does
        f = cast("IO[bytes]", opened)
        about = os.fstat(f.fileno())
        if self._inode not in (0, about.st_ino) or (self.path.suffix != ".gz" and about.st_size < self.offset):
            self.offset = self._skip = 0
        self._inode = about.st_ino
        try:
            if self.csv:
                line = f.readline()
                if not line.endswith(b"\n") and self.follow:
                    f.close()
                    return None
                self._names = csv.header(line.decode("utf-8", "replace").strip())
                self.offset = max(self.offset, len(line))
            f.seek(self.offset)
        except BaseException:
            f.close()
            raise
        return f

    def _replaced(self) -> bool:
        """Return whether the path leads to another file now, or to one that was cut short."""
        about = self.path.stat()
        return about.st_ino != self._inode or (self.path.suffix != ".gz" and about.st_size < self.offset)

    def read(self) -> Batch | None:
        """Return the next events, or None at the end of what is there now (`at_end` says so, too)."""
        try:
            data = self._lines()
            self.at_end = not data
            if not data:
                if self.follow and self._file is not None and self._replaced():
                    self.close()
                return None
            batch = self._decode(data)
        except BaseException:
            self.close()
            raise
        start, self.offset = self.offset, self.offset + len(data)
        skip, self._skip = self._skip, 0
        return (batch.after(skip) if skip else batch).read_from(self.name, start, self.offset)

    def _decode(self, data: bytes) -> Batch:
        if self.csv:
            return csv.decode(self.decoder, self._names, data, self.kind, by_line=True)
        return self.decoder.ndjson(data, self.kind)

    def _lines(self) -> bytes:
        """Return the next whole lines; a last line without its end is one only when the file is not followed."""
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return b""
        data = self._file.read(_CHUNK)
        if data and not data.endswith(b"\n"):
            data += self._file.readline()
        if data and not data.endswith(b"\n") and self.follow:
            data = data[: data.rfind(b"\n") + 1]
            self._file.seek(self.offset + len(data))
        return data

    def close(self) -> None:
        """Close the file; the next read opens it again at its position."""
        if self._file is not None:
            self._file.close()
            self._file = None
