"""For the tests of core: tables from lists of scores and outcomes, and the shared test vectors."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from monitor.core.tables import Table
from rows import VECTORS, table_of


@pytest.fixture(scope="session")
def table() -> Callable[..., Table]:
    """Give the function that builds a table from scores and outcomes."""
    return table_of


@pytest.fixture(scope="session")
def vector() -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """Give the function that returns inputs and expected values of a shared test vector."""
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS} is not here: the shared test vectors are not part of the repository")
    by_id = {v["id"]: v for v in json.loads(VECTORS.read_text())["vectors"]}
    return lambda name: (by_id[name]["inputs"], by_id[name]["expected"])
