"""Policies: numbered, immutable {thresholds, calibrator, provenance} that the model server follows."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.events import ABSTAIN, FLAG, FLAGGED, OTHER, PASS, REVIEW, VERDICTS, Bools, Coded, Floats, Ints
from monitor.core.tables import BINS, EDGES, TINY, Table, at_bins, grid_bin

Calibrator = Mapping[str, Any]
"""A map from the score of the model to the one that is served: its `kind`, one of KINDS, and the parameters of that."""
IDENTITY: Calibrator = {"kind": "identity"}

Bands = tuple[tuple[float, str], ...]
"""The scores of the model, the first 0, from which on a verdict holds, up to the next one."""

SAME = 1e-12
"""Served scores are the same up to this: processors round logarithms differently, and each must read what another one wrote."""
_INSIDE = (EDGES + np.append(EDGES[1:], 1.0)) / 2
"""A score inside of each bin."""


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


def logit(score: Floats) -> Floats:
    """Return ln(p / (1 - p)) of scores that are taken as at least TINY away from 0 and 1, so that it is finite."""
    p = np.clip(score, TINY, 1 - TINY)
    found: Floats = np.log(p) - np.log1p(-p)
    return found


def expit(z: Floats) -> Floats:
    """Return 1 / (1 + exp(-z)) in a form that cannot overflow."""
    found: Floats = 0.5 * np.tanh(0.5 * z) + 0.5
    return found


def _beta(score: Floats, a: float, b: float, c: float) -> Floats:
    p = np.clip(score, TINY, 1 - TINY)
    return expit(c + a * np.log(p) - b * np.log1p(-p))


def _steps(score: Floats, edges: list[float], values: list[float]) -> Floats:
    found: Floats = np.array(values)[np.searchsorted(np.array(edges), score, side="right") - 1]
    return found


KINDS: Mapping[str, tuple[tuple[str, ...], Callable[..., Floats]]] = {
    "identity": ((), lambda s: s),
    "temperature": (("t",), lambda s, t: expit(logit(s) / t)),
    "offset": (("a",), lambda s, a: expit(logit(s) + a)),
    "platt": (("a", "b"), lambda s, a, b: expit(a + b * logit(s))),
    "beta": (("a", "b", "c"), _beta),
    "histogram": (("edges", "values"), _steps),
    "isotonic": (("edges", "values"), _steps),
}
"""Every kind of calibrator of one score: its parameters and its function.

temperature: logit p / t (Guo et al. 2017); offset: logit p + a; platt: a + b logit p (Platt 1999); beta: c + a ln p -
b ln(1 - p) (Kull, Silva Filho and Flach 2017), all as logits; histogram and isotonic: `values` from each of the `edges` on, which
are edges of the grid, the first of them 0.
"""


def apply(calibrator: Calibrator, score: Floats) -> Floats:
    """Return the served scores: finite, in [0, 1] and never falling in the score for a calibrator that `check` lets pass.

    >>> apply({"kind": "platt", "a": 0.0, "b": 2.0}, np.array([0.0, 0.5, 0.8, 1.0])).round(4).tolist()
    [0.0, 0.5, 0.9412, 1.0]
    """
    names, function = KINDS[calibrator["kind"]]
    found: Floats = np.clip(function(score, *(calibrator[name] for name in names)), 0.0, 1.0)
    return found


def check(calibrator: Calibrator) -> str:
    """Return what is wrong with a calibrator of one score, nothing when it can be applied."""
    kind = str(calibrator.get("kind"))
    if kind not in KINDS:
        return f"its kind is {kind!r}, not one of {', '.join(KINDS)}"
    wanted = {"kind", *KINDS[kind][0]}
    if calibrator.keys() != wanted:
        return f"{kind} has the keys {', '.join(sorted(wanted))}, found {', '.join(sorted(calibrator))}"
    try:
        numbers = [np.asarray(calibrator[name]) for name in KINDS[kind][0]]
    except ValueError:  # lists in a list, of unequal length
        return f"a parameter of {kind} is no number"
    if any(x.dtype.kind not in "if" for x in numbers):
        return f"a parameter of {kind} is no number"
    if not all(np.isfinite(x).all() for x in numbers):
        return f"a parameter of {kind} is not finite"
    if kind in ("histogram", "isotonic"):
        edges, values = numbers
        if edges.shape != values.shape or edges.ndim != 1 or not len(edges) or edges[0] != 0.0 or not np.isin(edges, EDGES).all():
            return f"{kind} needs a value for each of its edges, which begin with 0 and are edges of the grid"
        if (np.diff(edges) <= 0).any():
            return f"the edges of {kind} do not rise"
    elif any(x.shape for x in numbers):
        return f"a parameter of {kind} is no number"
    with np.errstate(all="ignore"):
        served = apply(calibrator, EDGES)
    if not np.isfinite(served).all():
        return "it serves scores that are not finite"
    # What falls by less than this is how the last digits are rounded.
    if (np.diff(served) < -1e-12).any() or served[0] >= served[-1]:
        return "it does not keep the order of the scores"
    return ""


def served_edges(calibrator: Calibrator) -> Floats:
    """Return what is served for the lower edge of each bin of the grid, and for 1 of the last one, never falling, shape (BINS,).

    Counts know of a score only its bin, and nearly every score of the last one, [1 - 1.5e-8, 1], is 1.
    """
    found: Floats = np.maximum.accumulate(apply(calibrator, np.append(EDGES[:-1], 1.0)))
    return found


def served_bins(edges: Ints, calibrator: Calibrator) -> Ints:
    """Return frozen edges, bins of the grid with 0 for the first, on the scale that is served; those that become one are one."""
    found: Ints = np.unique(grid_bin(served_edges(calibrator)[edges])).astype(np.int64)
    found[0] = 0
    return found


def bands(
    threshold: float, calibrator: Calibrator = IDENTITY, review: tuple[float, float] | None = None, abstain: float | None = None
) -> Bands:
    """Return from which score of the model on which verdict holds, for rules that speak of the score that is served.

    A served score at or above the threshold is flagged; one in the review band [low, high) is reviewed instead, and one whose
    margin between the two outcomes |2 p - 1| is below `abstain` is abstained from. Every cut is an edge of the grid, the next
    one up; the last bin is decided as a score of 1 is.
    """
    served = served_edges(calibrator)
    verdict = np.where(served >= threshold, FLAG, PASS)
    if review is not None:
        verdict[(served >= review[0]) & (served < review[1])] = REVIEW
    if abstain is not None:
        # A margin of .1 is that of .45 as well as that of .55, however 2 p - 1 rounds.
        verdict[np.abs(2 * served - 1) < abstain - SAME] = ABSTAIN
    first = np.flatnonzero(np.diff(verdict, prepend=-1))
    return tuple((float(EDGES[i]), VERDICTS[verdict[i]]) for i in first.tolist())


@dataclass(frozen=True, slots=True)
class Policy:
    """One decision rule. `thresholds` maps a slice to the served score at or above which a case is flagged.

    Slices other than `all` are values of one segment, so that a case has one threshold. `review` is a band [low, high) of
    served scores, `abstain` the margin below which nobody decides (of a model with classes, between the two likeliest). `bands`
    say the same by slice in scores of the model, so that a model server needs no calibrator to decide; `policy` makes them.
    `checksum` is the caller's digest of `content()`; core does no hashing.
    """

    id: str
    model: str
    version: str
    thresholds: Mapping[str, float]
    calibrator: Calibrator
    undo: tuple[Limit, ...]
    provenance: Mapping[str, Any]
    review: tuple[float, float] | None = None
    abstain: float | None = None
    bands: Mapping[str, Bands] = field(default_factory=dict)
    checksum: str = ""

    @property
    def threshold(self) -> float:
        """Return the threshold of the slice `all`."""
        return self.thresholds["all"]

    @property
    def cut(self) -> float:
        """Return the lowest score of the model at which a case is flagged in the slice `all`, above 1 where none is."""
        return next((cut for cut, verdict in self.bands["all"] if FLAGGED[VERDICTS.index(verdict)]), 2.0)

    @property
    def calibrates(self) -> bool:
        """Return whether another score is served than that of the model."""
        return dict(self.calibrator) != IDENTITY

    def verdicts(self, name: str = "all") -> NDArray[np.uint8]:
        """Return the verdict on the scores of each bin of the grid in a slice, shape (BINS,)."""
        return decide(self.bands.get(name, self.bands["all"]), _INSIDE)

    def flags(self, name: str = "all") -> Bools:
        """Return which bins of the grid are flagged in a slice."""
        found: Bools = FLAGGED[self.verdicts(name)]
        return found

    def content(self) -> str:
        """Return the canonical JSON without the checksum, which is what the checksum covers."""
        body = asdict(replace(self, checksum=""))
        del body["checksum"]
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    def to_json(self) -> str:
        """Return the policy as the JSON that is stored and served."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def policy(
    ident: str,
    model: str,
    version: str,
    thresholds: Mapping[str, float],
    calibrator: Calibrator = IDENTITY,
    undo: tuple[Limit, ...] = (),
    provenance: Mapping[str, Any] | None = None,
    review: tuple[float, float] | None = None,
    abstain: float | None = None,
) -> Policy:
    """Return a policy without a checksum; each threshold moves up to what is served for the next edge of the grid.

    Raises ValueError that says what is wrong.
    """
    if wrong := check(calibrator):
        raise ValueError(f"not a policy: the calibrator cannot be applied, {wrong}")
    served = served_edges(calibrator)
    if "all" not in thresholds or not all(isinstance(t, int | float) and 0.0 <= t <= 1.0 for t in thresholds.values()):
        raise ValueError("not a policy: thresholds must hold a number in [0, 1] for the slice all")
    for name in thresholds.keys() - {"all"}:
        if not all(name.partition("=")) or name.endswith(f"={OTHER}"):
            raise ValueError(f"not a policy: thresholds of {name!r}; write SEGMENT=VALUE, and not {OTHER}, which is no value")
    if len({name.partition("=")[0] for name in thresholds if name != "all"}) > 1:
        raise ValueError("not a policy: thresholds by slice must be of one segment, so that each case has one")
    if review is not None and not 0.0 <= review[0] < review[1] <= 1.0:
        raise ValueError("not a policy: review must be a band [low, high) with 0 <= low < high <= 1")
    if abstain is not None and not 0.0 < abstain <= 1.0:
        raise ValueError("not a policy: abstain must be a margin above 0 and at most 1")
    up = {name: _next(served, t) for name, t in thresholds.items()}
    made = {name: bands(t, calibrator, review, abstain) for name, t in up.items()}
    return Policy(ident, model, version, up, dict(calibrator), undo, provenance or {}, review, abstain, made)


def _next(served: Floats, threshold: float) -> float:
    """Return the smallest served edge that is not below the threshold, else 1: no score is flagged."""
    i = _place(served, threshold)
    return float(served[i]) if i < BINS else 1.0


def _place(served: Floats, threshold: float) -> int:
    """Return the first bin that is served at or above a threshold; one that another processor rounded is that of its edge."""
    i = int(np.searchsorted(served, threshold))
    # A threshold of 1 flags nothing where nothing is served as 1.
    exact = threshold == 1.0 or (i < BINS and served[i] == threshold)
    return i - 1 if i and not exact and threshold - served[i - 1] <= SAME else i


def from_json(text: str) -> Policy:
    """Return the policy that `to_json` wrote; raise ValueError when a field is missing, unknown or does not fit the others.

    `bands` may be left out: they follow from the rest. A policy without an id gets one when it is activated.
    """
    body = json.loads(text)
    try:
        undo = tuple(Limit(**limit) for limit in body.pop("undo"))
        said, checksum = body.pop("bands", None), body.pop("checksum", "")
        review = None if (band := body.pop("review", None)) is None else (float(band[0]), float(band[1]))
        body.setdefault("id", "")
        given = {name: body.pop(name) for name in ("id", "model", "version", "thresholds", "calibrator", "provenance")}
        abstain = body.pop("abstain", None)
        if body:
            raise ValueError(f"unknown is {', '.join(body)}")
        named = all(isinstance(given[name], str) for name in ("id", "model", "version")) and isinstance(checksum, str)
        if not named:
            raise ValueError("id, model, version and checksum must be texts")
        ident, *rest = given.values()
        made = policy(ident, rest[0], rest[1], rest[2], rest[3], undo, rest[4], review, abstain)
        if any(abs(made.thresholds[name] - t) > SAME for name, t in rest[2].items()):
            raise ValueError(f"thresholds must be served for an edge of the grid, the next ones are {dict(made.thresholds)}")
        if said is not None:
            written = {name: tuple((float(cut), str(verdict)) for cut, verdict in b) for name, b in said.items()}
            if written.keys() != made.bands.keys() or not all(_alike(b, made, name) for name, b in written.items()):
                raise ValueError("its bands are not those of its thresholds; leave them out")
            # To the last digit: the checksum covers it.
            made = replace(made, thresholds={name: float(t) for name, t in rest[2].items()}, bands=written)
    except KeyError as e:
        raise ValueError(f"not a policy: it has no {e}") from None
    except (TypeError, AttributeError, IndexError) as e:
        raise ValueError(f"not a policy: {e}") from None
    except ValueError as e:
        raise ValueError(str(e) if str(e).startswith("not a policy") else f"not a policy: {e}") from None
    return replace(made, checksum=checksum)


def _alike(written: Bands, made: Policy, name: str) -> bool:
    """Return whether bands begin on edges of the grid and say what those of a policy say, but where processors may differ."""
    cuts, exact = np.array([cut for cut, _ in written]), made.bands[name]
    if written == exact:
        return True
    if cuts[0] != 0.0 or not np.isin(cuts, EDGES).all() or (np.diff(cuts) <= 0).any():
        return False
    served = served_edges(made.calibrator)
    limits = [made.thresholds[name], *(made.review or ())]
    limits += [] if made.abstain is None else [(1 - made.abstain) / 2, (1 + made.abstain) / 2]
    near = (np.abs(served[:, None] - np.array(limits)) <= SAME).any(axis=1)
    return bool((near | (decide(written, _INSIDE) == decide(exact, _INSIDE))).all())


def decide(of: Bands, score: Floats) -> NDArray[np.uint8]:
    """Return the verdict on each score of the model; a score equal to a cut belongs to the band that begins there."""
    cuts, codes = np.array([cut for cut, _ in of]), np.array([VERDICTS.index(verdict) for _, verdict in of], np.uint8)
    found: NDArray[np.uint8] = codes[np.searchsorted(cuts, score, side="right") - 1]
    return found


def verdicts(made: Policy, score: Floats, combo: Coded, margin: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Return the verdicts of a policy on rows with their combinations of segment values.

    Where the score is that of the predicted class, its `margin` (in steps of 1 / 255, else 0) is what `abstain` asks for.
    """
    out = decide(made.bands["all"], score)
    own = {name: i for i, name in enumerate(made.bands) if name != "all"}
    # There may be many more combinations than slices with a threshold of their own.
    which = np.array([next((own[s] for k, v in values if (s := f"{k}={v}") in own), -1) for values in combo.names], np.int32)
    for name, i in own.items():
        mine = which[combo.codes] == i
        out[mine] = decide(made.bands[name], score[mine])
    if made.abstain is not None and margin is not None and (top := margin > 0).any():
        of = {name: bands(t, made.calibrator, made.review) for name, t in made.thresholds.items()}
        plain = verdicts(replace(made, abstain=None, bands=of), score, combo)
        out[top] = np.where(margin < made.abstain * 255, ABSTAIN, plain)[top]
    return out


def with_calibrator(old: Policy, ident: str, calibrator: Calibrator, provenance: Mapping[str, Any]) -> Policy:
    """Return a policy that decides as the old one does and serves other scores: its thresholds are what those are served as.

    Where the calibrator serves scores on both sides of a cut alike, all of them are decided as those above it.
    """
    before, after = served_edges(old.calibrator), np.append(served_edges(calibrator), 1.0)

    def moved(t: float) -> float:
        return float(after[_place(before, t)])

    up = {name: moved(t) for name, t in old.thresholds.items()}
    review = None if old.review is None else (moved(old.review[0]), moved(old.review[1]))
    review = None if review is not None and review[0] >= review[1] else review
    return policy(ident, old.model, old.version, up, calibrator, old.undo, provenance, review, old.abstain)


def recalibrated(table: Table, calibrator: Calibrator) -> Table:
    """Return the counts of a table as if the calibrator's scores had been served, as `tables.at_bins` moves them."""
    return at_bins(table, lambda score: apply(calibrator, score))
