"""Policies: numbered, immutable {threshold, calibrator, provenance} that the model server follows."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import FLAG, PASS, Floats
from monitor.core.tables import next_edge

IDENTITY = {"kind": "identity"}


@dataclass(frozen=True, slots=True)
class Limit:
    """What an estimate is compared with.

    It is passed when the `end` (value, low or high) of the estimate is below `low` or above `high`; with `inside`, when
    it is neither.
    """

    metric: str
    end: str = "value"
    low: float | None = None
    high: float | None = None
    inside: bool = False

    def outside(self, x: float) -> bool:
        """Return whether the number is below `low` or above `high`."""
        return (self.low is not None and x < self.low) or (self.high is not None and x > self.high)

    def passed(self, x: float) -> bool:
        """Return whether the number passes the limit."""
        return bool(self.outside(x)) != self.inside


@dataclass(frozen=True, slots=True)
class Policy:
    """One decision rule. `thresholds` maps a slice to the score at or above which a case is flagged.

    `checksum` is the caller's digest of `content()`; core does no hashing.
    """

    id: str
    model: str
    version: str
    thresholds: Mapping[str, float]
    calibrator: Mapping[str, Any]
    undo: tuple[Limit, ...]
    provenance: Mapping[str, Any]
    checksum: str = ""

    @property
    def threshold(self) -> float:
        """Return the threshold of the slice `all`."""
        return self.thresholds["all"]

    def content(self) -> str:
        """Return the canonical JSON without the checksum, which is what the checksum covers."""
        body = asdict(replace(self, checksum=""))
        del body["checksum"]
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    def to_json(self) -> str:
        """Return the policy as the JSON that is stored and served."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> Policy:
    """Return the policy that `to_json` wrote; raise ValueError when a field is missing or unknown or a threshold is no number."""
    body = json.loads(text)
    try:
        body["undo"] = tuple(Limit(**limit) for limit in body["undo"])
        policy = Policy(**body)
        named = all(isinstance(name, str) for name in (policy.id, policy.model, policy.version, policy.checksum))
        valid = "all" in policy.thresholds and all(0.0 <= t <= 1.0 and next_edge(t) == t for t in policy.thresholds.values())
        known = dict(policy.calibrator) == IDENTITY
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise ValueError(f"not a policy: {e}") from None
    if not named:
        raise ValueError("not a policy: id, model, version and checksum must be texts")
    if not valid:
        raise ValueError("not a policy: thresholds must hold an edge of the grid in [0, 1] for the slice all")
    if not known:
        raise ValueError(f"not a policy this version can apply: calibrator {policy.calibrator}")
    return policy


def decide(threshold: float, score: Floats) -> NDArray[np.uint8]:
    """Return the verdicts flag and pass; a score equal to its threshold is flagged."""
    return np.where(score >= threshold, FLAG, PASS).astype(np.uint8)
