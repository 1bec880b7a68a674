"""The closed loop on nine months of real flights: what it is worth, and what it would do without a way back."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from loop import run


@pytest.mark.parametrize("undo", [True, False])
def test_auto(tmp_path, undo):
    """With undo it is no more than 1 % worse than doing nothing, with at most 12 changes and no month 3 % worse; without, it
    is.
    """
    found = run(tmp_path, "auto", undo)
    total = found.losses()["total"]
    if undo:
        assert total[2] <= 1
        assert found.changes <= 12
        assert max(percent for _, _, percent in found.losses().values()) <= 3
        assert any(i["kind"] == "rolled_back" for i in found.items)
    else:
        assert total[2] > 1
        assert not any(i["kind"] == "rolled_back" for i in found.items)


def test_propose_changes_nothing(tmp_path):
    """Nothing is served differently without a person, and what was tested waits."""
    found = run(tmp_path, "propose")
    assert found.changes == 0
    assert (found.served == found.score).all()
    assert any(i["kind"] == "proposal" for i in found.items)
