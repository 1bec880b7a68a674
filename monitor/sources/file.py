"""Follow a file of NDJSON or CSV. Its position is committed with the rows, so a restart goes on where it was."""

import gzip
import os
from pathlib import Path
from typing import IO, cast

from monitor.core.events import Batch
from monitor.formats import Decoder, csv

_CHUNK = 1 << 20


class FileSource:
    """Reads whole lines. Positions are `offset:events`: bytes read, and events of the lines after them already taken.

    In a gzip file offsets count uncompressed bytes. A file that is shorter than its position was replaced and is read
    from its start; ids make that harmless.
    """

    def __init__(self, path: Path, kind: str, form: str, follow: bool, decoder: Decoder, position: str | None) -> None:
        self.path, self.kind, self.follow = path, kind, follow
        self.name = f"file:{path}"
        self.csv = form == "csv"
        self.decoder = decoder
        offset, _, skip = (position or "0:0").partition(":")
        self.offset, self._skip = int(offset), int(skip)
        self._file: IO[bytes] | None = None
        self._names: list[str] = []
        self.at_end = False

    def _open(self) -> IO[bytes] | None:
        try:
            opened = self.path.open("rb")
        except OSError:
            return None
        if self.path.suffix != ".gz" and os.fstat(opened.fileno()).st_size < self.offset:
            self.offset = self._skip = 0
        f = cast("IO[bytes]", gzip.GzipFile(fileobj=opened)) if self.path.suffix == ".gz" else opened
        if self.csv:
            line = f.readline()
            if not line.endswith(b"\n") and self.follow:
                f.close()
                return None
            self._names = csv.header(line.decode("utf-8", "replace").strip())
            self.offset = max(self.offset, len(line))
        f.seek(self.offset)
        return f

    def read(self) -> Batch | None:
        """Return the next events, or None at the end of what is there now (`at_end` says so, too)."""
        if self._file is None:
            self._file = self._open()
        data = self._file.read(_CHUNK) if self._file else b""
        if self._file and data and not data.endswith(b"\n"):
            data += self._file.readline()
        self.at_end = not data
        if data and not data.endswith(b"\n") and self.follow:
            # The last line is still being written.
            whole = data.rfind(b"\n") + 1
            data = data[:whole]
            assert self._file is not None
            self._file.seek(self.offset + whole)
            self.at_end = not data
        if not data:
            return None
        start, self.offset = self.offset, self.offset + len(data)
        batch = csv.decode(self.decoder, self._names, data, self.kind) if self.csv else self.decoder.ndjson(data, self.kind)
        skip, self._skip = self._skip, 0
        rest = batch.after(skip) if skip else batch
        return rest.read_from(self.name, start, self.offset)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
