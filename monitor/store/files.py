"""Names that are safe as file names, folders whose names are on the disk, and whole files or none."""

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


def flush_folder(folder: Path) -> None:
    """Bring the names of the files in a folder to the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where they are missing; on return their names are on the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush_folder(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all: new file, flush, rename, flush of the folder."""
    make_folder(path.parent)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(fresh, path)
    flush_folder(path.parent)
