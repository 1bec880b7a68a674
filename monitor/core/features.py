"""Features as one byte a row: the bins and categories that a baseline freezes, and the code of each raw value."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.tables import FEATURE_MISSING, FEATURE_UNSEEN, FEATURES

MOST = 20
"""At most so many edges between bins of numbers, or so many values of text."""


@dataclass(frozen=True, slots=True)
class Feature:
    """What is frozen of a feature: the ascending `edges` between the bins of its numbers, or the `values` of its text.

    Code 1 + i is the bin [edges[i - 1], edges[i]), whose first and last are open, or values[i].
    """

    edges: tuple[float, ...] | None = None
    values: tuple[str, ...] = ()

    @property
    def numeric(self) -> bool:
        """Return whether its values are numbers."""
        return self.edges is not None

    @property
    def bins(self) -> tuple[str, ...]:
        """Return the names of its bins or values by code, the first for code 1.

        >>> Feature((0.0, 2.5)).bins
        ('below 0.0', '0.0 to 2.5', 'from 2.5')
        """
        if self.edges is None:
            return self.values
        if not self.edges:
            return ("any number",)
        between = (f"{a!r} to {b!r}" for a, b in pairwise(self.edges))
        return (f"below {self.edges[0]!r}", *between, f"from {self.edges[-1]!r}")


Placed = Mapping[str, tuple[int, Feature]]
"""By name the position of a feature in the baseline, which is its column of codes, and what is frozen of it."""


def placed(features: Mapping[str, Feature], names: Collection[str]) -> Placed:
    """Return those of the features of a baseline that have these names."""
    return {name: (i, feature) for i, (name, feature) in enumerate(features.items()) if name in names}


def freeze(values: Sequence[Any]) -> Feature:
    """Return the bins or categories of raw values, None where one is missing; raise ValueError as `codes` does.

    Numbers, where every value is one, get bins of equal mass; of text, booleans and mixtures the most frequent values have a
    code. All values stand for themselves: nothing is snapped or rounded.

    >>> freeze([1, 1, 0, None]).edges
    (0.0, 1.0, 1.0000000000000002)
    >>> freeze(["b", "a", "b", True]).values
    ('b', 'a', 'true')
    """
    _check(values)
    there = [v for v in values if v is not None]
    if there and {type(v) for v in there} <= {int, float}:
        return Feature(_edges(_numbers(there)))
    count = Counter(map(text, there))
    return Feature(None, tuple(sorted(count, key=lambda value: (-count[value], value))[:MOST]))


def _edges(x: NDArray[np.float64]) -> tuple[float, ...]:
    """Return quantiles in steps of 1/20; an end of the range that fills a bin alone gets an edge on its other side, too.

    So a number that never changed, or has two values, is known from smaller and from larger ones.
    """
    quantiles = np.unique(np.sort(x)[np.arange(1, MOST) * len(x) // MOST])
    above = [np.nextafter(x.max(), math.inf)] if quantiles[-1] == x.max() else []
    return tuple(np.concatenate((quantiles, above)).tolist())


def text(value: Any) -> str:
    """Return a raw value as the text that categories are compared by; booleans as JSON writes them."""
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _check(values: Sequence[Any]) -> set[type]:
    kinds = set(map(type, values))
    if not kinds <= {float, int, str, bool, type(None)}:
        raise ValueError("a feature is a number, a text, true, false or null")
    if float in kinds and not all(math.isfinite(v) for v in values if type(v) is float):
        raise ValueError("a feature is not finite")
    return kinds


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    try:
        return np.array(values, np.float64)
    except OverflowError:
        raise ValueError("a feature is larger than a float can be") from None


def codes(feature: Feature, values: Sequence[Any]) -> NDArray[np.uint8]:
    """Return the code of each raw value: FEATURE_MISSING of None, FEATURE_UNSEEN of what the baseline has no place for.

    That is a value without a category, or none that is a number where the baseline has numbers. Raises ValueError when a
    value is neither number, text, boolean nor None, or is not finite.

    >>> codes(Feature((0.0, 2.5)), [-1, 0, 7.5, None, "7.5"]).tolist()
    [1, 2, 3, 22, 23]
    """
    kinds = _check(values)
    if feature.edges is None:
        texts = values if kinds <= {str, type(None)} else [None if v is None else text(v) for v in values]
        known: dict[str | None, int] = {None: FEATURE_MISSING, **{value: i for i, value in enumerate(feature.values, 1)}}
        return np.fromiter((known.get(t, FEATURE_UNSEEN) for t in texts), np.uint8, len(values))
    numbers = values if kinds <= {float, int} else [v if type(v) in (float, int) else 0.0 for v in values]
    out = (1 + np.searchsorted(feature.edges, _numbers(numbers), side="right")).astype(np.uint8)
    if numbers is not values:
        other = [0 if type(v) in (float, int) else FEATURE_MISSING if v is None else FEATURE_UNSEEN for v in values]
        out = np.where(other, np.array(other, np.uint8), out)
    return out


def encode(places: Placed, events: Sequence[Mapping[str, Any] | None]) -> NDArray[np.uint8]:
    """Return the codes of the features of events by their position, shape (events, FEATURES); raise ValueError as `codes` does.

    What has no place is left out. A feature that an event lacks is missing; where an event is None, nothing is said: 0.
    """
    out = np.zeros((len(events), FEATURES), np.uint8)
    at = [i for i, event in enumerate(events) if event is not None]
    said = [event for event in events if event is not None]
    for name, (place, feature) in places.items():
        out[at, place] = codes(feature, [event.get(name) for event in said])
    return out


def to_dict(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return features as lists by name: {edges} of numbers, {values} of text."""
    return {name: {"edges": list(f.edges)} if f.edges is not None else {"values": list(f.values)} for name, f in features.items()}


def from_dict(body: Mapping[str, Any]) -> dict[str, Feature]:
    """Return the features that `to_dict` wrote; raise KeyError, TypeError or ValueError when they are none."""
    if len(body) > FEATURES:
        raise ValueError(f"it has {len(body)} features, at most {FEATURES} can be kept")
    features = {}
    for name, f in body.items():
        made = Feature(tuple(map(float, f["edges"]))) if "edges" in f else Feature(None, tuple(map(str, f["values"])))
        rising = all(a < b for a, b in pairwise(made.edges or ()))
        if not rising or len(set(made.values)) < len(made.values) or len(made.edges or made.values) > MOST:
            raise ValueError(f"the feature {name} needs at most {MOST} rising edges or different values")
        features[name] = made
    return features
