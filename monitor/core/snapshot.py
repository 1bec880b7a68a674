"""Everything the agent says at one moment. Metrics, JSON, page and timeline are renderings of it and compute no estimate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.core.days import Key
from monitor.core.delays import SuggestedHorizon
from monitor.core.diagnosis import Diagnosis
from monitor.core.events import Ints
from monitor.core.metrics import Estimate
from monitor.core.metrics.inputs import Inputs
from monitor.core.policy import Policy
from monitor.core.readings import Reading
from monitor.core.rules import Alert, Rule


@dataclass(frozen=True, slots=True)
class Detection:
    """What the detector of a rule sees: ln of its evidence and the limit it needs, and the effect now.

    `since` is the first of `looks` days that the evidence comes from, `slices` have most of it with their shares. `lr` is the
    long-run variance by which the days of the baseline differ more than their rows alone would.
    """

    rule: str
    detector: str
    evidence: Estimate
    effect: Estimate
    limit: float
    looks: int = 0
    since: int | None = None
    slices: tuple[tuple[str, float], ...] = ()
    lr: float | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one model: its role, what waits, what it is measured with, which policy it should follow.

    Times are ms since 1970. `waiting` days are not mature yet; `known` of their rows have a label already, which is the share
    `completeness` of the labels that come by the horizon. `coverage` is the share of the labels of the last 28 mature days
    that came of those to be expected (`readings.coverage`). Both are None where they cannot be told. `following`
    counts the rows of the last 24 hours by the policy they named (empty text: none). `inputs` are features and the mix of
    slices in the last 24 hours, and on the newest and the last 28 mature days if there are any. `scores` is a histogram since the
    start: cumulative counts by upper bound, and the sum. `verdicts` counts the rows of the last 24
    hours by what was decided, `undo` is ln of the evidence by earlier policy that it would have served
    better, `proposals` how many wait by action, `decided` when each rule last decided something else: (rule, action, reason).
    """

    model: str
    version: str
    role: str
    slices: tuple[str, ...]
    edges: Ints | None
    baseline: str
    horizon: int
    last_event: int
    waiting: int
    known: int
    waiting_days: tuple[int, ...]
    mature_days: tuple[int, ...]
    matured: int
    never_labelled: int
    coverage: float | None
    completeness: float | None
    suggested: SuggestedHorizon
    policy: Policy | None
    activated_at: int | None
    threshold: float | None
    following: Mapping[str, int]
    rules: tuple[Rule, ...]
    inputs: tuple[Inputs, ...]
    scores: tuple[Mapping[str, float], float]
    detections: tuple[Detection, ...] = ()
    verdicts: Mapping[str, int] = field(default_factory=dict)
    undo: Mapping[str, float] = field(default_factory=dict)
    proposals: Mapping[str, int] = field(default_factory=dict)
    decided: Mapping[tuple[str, str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable; `at` is None before the first tick. `readings` are what the estimates of mature windows were made from, and
    `calibrated` those of the scores that a calibrator serves, with the edges of their calibration bins.

    `diagnoses` are those of firing alerts by their key. `problem` says why the state directory cannot be written, for a person;
    it is empty when it can. `journal` is the number and the hash of the newest journal entry, 0 and empty before the first.
    """

    at: int | None
    versions: tuple[Version, ...] = ()
    estimates: tuple[Estimate, ...] = ()
    readings: Mapping[tuple[Key, str], Reading] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    diagnoses: Mapping[tuple[str, str, str], Diagnosis] = field(default_factory=dict)
    counters: Mapping[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)
    closed: tuple[tuple[str, str, int], ...] = ()
    problem: str = ""
    journal: tuple[int, str] = (0, "")
    calibrated: Mapping[tuple[Key, str], tuple[Reading, Ints | None]] = field(default_factory=dict)
