"""Tables from lists of scores and outcomes, and where the shared test vectors are."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import FLAG, NONE, PASS, prob_code
from monitor.core.policy import Policy, policy
from monitor.core.tables import EDGES, LABEL, ROW, Table, tables

VECTORS = Path(__file__).parents[2] / "shared" / "test_vectors.json"


def at(threshold: float | None) -> Policy | None:
    """Return the policy that only has a threshold."""
    return None if threshold is None else policy("", "m", "1", {"all": threshold})


def table_of(
    scores: Any, outcomes: Any = None, threshold: float | None = None, verdicts: Any = NONE, **columns: NDArray[Any]
) -> Table:
    """Return the table of rows with these outcomes (-1: none, None: nobody looks); a threshold replaces the verdicts.

    `columns` are other columns of ROW; `label_prob` and `wait_prob` are probabilities, 0 where not given.
    """
    rows = np.zeros(len(scores), ROW)
    rows["score"] = scores
    rows["verdict"] = verdicts if threshold is None else np.where(rows["score"] >= threshold, FLAG, PASS)
    for name, values in columns.items():
        given = np.asarray(values)
        rows[name] = np.where(given > 0, prob_code(np.where(given > 0, given, 1.0)), 0) if name.endswith("_prob") else given
    labels = None
    if outcomes is not None:
        labels = np.zeros(len(scores), LABEL)
        labels["outcome"] = outcomes
    return tables(rows, labels, np.zeros((1, 1), np.int32), 1)[0]


def next_edge(score: float) -> float:
    """Return the smallest grid edge that is not below a score; at most 1."""
    return float(np.append(EDGES, 1.0)[np.searchsorted(EDGES, score)])
