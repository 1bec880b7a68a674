"""Names that are safe as file names, and whole files or none."""

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

_LONGEST = 150


def safe_name(text: str) -> str:
    """Return a file name for any text, different for different texts; no hidden file, no parent folder, not too long."""
    name = quote(text, safe="")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all: new file, flush, rename, flush of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
