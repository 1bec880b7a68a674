"""Where the victims live."""

import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path):
    """Return a folder in memory where there is such: what a kill leaves is the same there, and flushing costs nothing."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="scorewatch-", dir=MEMORY) as name:
        yield Path(name)
