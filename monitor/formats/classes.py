"""What the scores of a model are, and how an event of a model with classes becomes the events of its binary targets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import CLIP, UNDECIDED, Bools, Coded, Floats, Labels, Predictions, valid_scores

WRONG = ("", "not_finite", "out_of_range", "sum")
"""Why the scores of an event cannot be taken, by the positions that `probabilities` returns."""
MARGIN_STEPS = 255


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model's scores are: probabilities or, `unbounded`, logits or margins; of one class or of each of `classes`.

    With `multi` each class is right or wrong by itself, else one of them is right and the probabilities sum to 1, up to
    `tolerance`. `targets` are the names of the binary models that stand for the classes and, last, for the predicted one.
    """

    unbounded: bool = False
    classes: tuple[str, ...] = ()
    multi: bool = False
    tolerance: float = 0.0
    targets: tuple[str, ...] = ()

    def row(self, given: object) -> list[object] | None:
        """Return scores that came by name or in the order of the classes as a list, None when they are not one a class."""
        if isinstance(given, dict):
            return [given[name] for name in self.classes] if given.keys() == set(self.classes) else None
        return given if isinstance(given, list) and len(given) == len(self.classes) else None

    def outcome(self, label: object) -> int | list[int] | None:
        """Return the code of the class that a label names, with `multi` 1 or 0 by class, None where a class is unknown."""
        if not self.multi:
            return self.classes.index(str(label)) if str(label) in self.classes else None
        named = {str(name) for name in label} if isinstance(label, list) else {""}
        return [int(name in named) for name in self.classes] if named <= set(self.classes) else None


BINARY = Scores()


def sigmoid(z: Floats) -> Floats:
    """Return 1 / (1 + exp(-z)), which no z overflows."""
    e = np.exp(-np.abs(z))
    p: Floats = np.where(z >= 0, 1.0, e) / (1.0 + e)
    return p


def softmax(z: Floats) -> Floats:
    """Return exp(z) over its sum by row."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p: Floats = e / e.sum(axis=1, keepdims=True)
    return p


def probabilities(how: Scores, given: Floats) -> tuple[Floats, NDArray[np.int64], Bools, Bools]:
    """Return the probabilities (n, K) of scores, which of WRONG each row is, where one was clipped, and the rows scaled to 1."""
    nowhere = np.zeros(len(given), bool)
    if how is BINARY:
        p, inside, clipped = valid_scores(given)
        return p, np.where(inside[:, 0], 0, np.where(np.isfinite(given[:, 0]), 2, 1)), clipped[:, 0], nowhere
    finite: Bools = np.logical_and.reduce(np.isfinite(given), axis=1)
    given = np.where(finite[:, None], given, 0.0)
    if how.unbounded:
        p = sigmoid(given) if how.multi or not how.classes else softmax(given)
        return p, np.where(finite, 0, 1), nowhere, nowhere
    p, inside, clipped = valid_scores(given)
    total = p.sum(axis=1)
    off: Floats = np.abs(total - 1.0) if how.classes and not how.multi else np.zeros(len(p))
    wrong: NDArray[np.int64] = np.select((~finite, ~inside.all(axis=1), off > how.tolerance + CLIP), (1, 2, 3), 0)
    scaled: Bools = (off > CLIP) & (wrong == 0)
    p[scaled] /= total[scaled, None]
    return p, wrong, clipped.any(axis=1) & (wrong == 0), scaled


def expand(how: Scores, p: Predictions, scores: Floats) -> Predictions:
    """Return a prediction for each target of each event: of a class with its score, of the predicted class with the best one.

    The verdict of an event is about its predicted class; targets of classes have one by their thresholds. Of equal scores
    the first is the predicted class.
    """
    (n, k), m = scores.shape, len(how.targets)
    score, verdict = np.empty((n, m)), np.full((n, m), UNDECIDED, np.uint8)
    target, margin = np.zeros((n, m), np.uint8), np.zeros((n, m), np.uint8)
    score[:, :k] = scores
    if not how.multi:
        best = scores.argmax(axis=1)
        second, first = np.partition(scores, k - 2, axis=1)[:, k - 2 :].T
        score[:, k], verdict[:, k] = first, p.verdict
        target[:, :k], target[:, k] = np.arange(1, k + 1), best + 1
        margin[:, k] = np.maximum(np.rint(MARGIN_STEPS * (first - second)), 1)
    rows = p.take(np.repeat(np.arange(n), m))
    return replace(
        rows,
        ids=_ids(how, rows.ids, n),
        version=_versions(how, p.version, n),
        score=score.ravel(),
        verdict=verdict.ravel(),
        target=target.ravel(),
        margin=margin.ravel(),
    )


def expand_labels(how: Scores, labels: Labels, outcomes: Sequence[int | list[int]]) -> Labels:
    """Return a label for each target of each event: the code of its class, or with `multi` 1 or 0."""
    n, m = len(labels), len(how.targets)
    rows = labels.take(np.repeat(np.arange(n), m))
    label = np.array(outcomes, np.int8).reshape(n, -1)
    return replace(
        rows,
        ids=_ids(how, rows.ids, n),
        version=_versions(how, labels.version, n),
        label=(label if how.multi else np.repeat(label, m, axis=1)).ravel(),
    )


def _versions(how: Scores, version: Coded, n: int) -> Coded:
    """Return the (target, version) of each row, target after target of each event."""
    m = len(how.targets)
    names = tuple((target, name[1]) for name in version.names for target in how.targets)
    codes = np.repeat(version.codes, m) * m + np.tile(np.arange(m, dtype=np.int32), n)
    return Coded(names, codes.astype(np.int32))


def _ids(how: Scores, ids: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Return the id hashes of the rows.

    The targets of an event share its hash, so that they wait together and one held label serves all of them. With `multi`
    the labels of targets differ, and so must the hashes by which they are held; the half that is drawn by stays the same.
    """
    if not how.multi:
        return ids
    masks = np.zeros((len(how.targets), 2), np.uint64)
    masks[:, 0] = np.arange(1, len(masks) + 1)
    return ids ^ np.tile(masks, (n, 1))
