"""For the tests of core: tables from lists of scores and outcomes, and the shared test vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from monitor.core.events import NONE, prob_code
from monitor.core.policy import decide
from monitor.core.tables import LABEL, ROW, Table, tables

VECTORS = Path(__file__).parents[3] / "shared" / "test_vectors.json"


def _table(
    scores: Any, outcomes: Any = None, threshold: float | None = None, verdicts: Any = NONE, **columns: NDArray[Any]
) -> Table:
    """Return the table of rows with these outcomes (-1: none, None: nobody looks); a threshold replaces the verdicts.

    `columns` are other columns of ROW; `label_prob` and `wait_prob` are probabilities, 0 where not given.
    """
    rows = np.zeros(len(scores), ROW)
    rows["score"] = scores
    rows["verdict"] = verdicts if threshold is None else decide(threshold, rows["score"])
    for name, values in columns.items():
        given = np.asarray(values)
        rows[name] = np.where(given > 0, prob_code(np.where(given > 0, given, 1.0)), 0) if name.endswith("_prob") else given
    labels = None
    if outcomes is not None:
        labels = np.zeros(len(scores), LABEL)
        labels["outcome"] = outcomes
    return tables(rows, labels, np.zeros((1, 1), np.int32), 1)[0]


@pytest.fixture(scope="session")
def table() -> Callable[..., Table]:
    """Give the function that builds a table from scores and outcomes."""
    return _table


@pytest.fixture(scope="session")
def vector() -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """Give the function that returns inputs and expected values of a shared test vector."""
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS} is not here: the shared test vectors are not part of the repository")
    by_id = {v["id"]: v for v in json.loads(VECTORS.read_text())["vectors"]}
    return lambda name: (by_id[name]["inputs"], by_id[name]["expected"])
