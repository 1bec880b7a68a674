"""Why an alert fires: the decision table from what moved to what is likely wrong, and what would help."""

from dataclasses import dataclass, fields

from monitor.core.days import iso

DIAGNOSES = {
    "canary_fault": "The canary differs from the live version on the same days, so it is at fault and not the world",
    "not_followed": "The model server does not do what its policy says",
    "pipeline_fault": "Data is lost or changed before it reaches the model",
    "label_fault": "Labels are missing, so outcomes say nothing about the model",
    "threshold_change": "More or fewer cases are flagged although scores are as before: decisions changed, not the world",
    "concept_drift": "The model ranks cases worse than validation promised: what makes a case positive has changed",
    "prior_shift": "Positives became more or less common, and scores follow only part of the way",
    "calibration_drift": "Scores rank as well as promised but no longer mean what they say",
    "covariate_shift": "Other cases come than in the baseline, and where outcomes are known the scores still hold",
    "unclear": "What is known does not fit one cause",
}
"""Every diagnosis: {code: sentence without its full stop}."""

ADVICE = {
    "stop_canary": "Take the canary out of the traffic.",
    "check_delivery": "Find out why the model server does not read its policy; what it serves is another one.",
    "check_pipeline": "Look for what changed in the data on its way to the model.",
    "check_labels": "Find out why labels do not arrive before anything is changed.",
    "rollback": "Go back to the last policy in good standing.",
    "retrain": "Train the model on recent outcomes; a new threshold or calibration does not bring its ranking back.",
    "rethreshold": "Correct the scores for the new prevalence and choose the threshold anew.",
    "recalibrate": "Fit a calibration on matured outcomes.",
    "watch": "Watch until outcomes have matured; nothing known so far asks for a change.",
}
"""Everything that may help: {code: sentence}."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Whether something moved (None: unknown), what it is and was to be, and since when in ms."""

    moved: bool | None = None
    value: float | None = None
    expected: float | None = None
    since: int | None = None


UNKNOWN = Sign()


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known when an alert fires; `moved` of a sign always means that it is not as it should be.

    `fit` moved when live scores are no mixture of the baseline's classes, `roc_auc` when it went down, `flagged_share` in either
    direction, `followed` when the model server names another policy than the current one, `policy` when another one was activated
    in the last 7 days, `coverage` when fewer labels came than usual, `data_loss` when events were rejected or lost, `features`
    when more of them were missing or unseen, and `canary` when it differs from the live version on the same days. `slices` are
    (name, share of the evidence), largest first.
    """

    score_drift: Sign = UNKNOWN
    fit: Sign = UNKNOWN
    flagged_share: Sign = UNKNOWN
    followed: Sign = UNKNOWN
    policy: Sign = UNKNOWN
    prevalence: Sign = UNKNOWN
    calibration_offset: Sign = UNKNOWN
    calibration_slope: Sign = UNKNOWN
    roc_auc: Sign = UNKNOWN
    recall: Sign = UNKNOWN
    precision: Sign = UNKNOWN
    coverage: Sign = UNKNOWN
    data_loss: Sign = UNKNOWN
    features: Sign = UNKNOWN
    canary: Sign = UNKNOWN
    slices: tuple[tuple[str, float], ...] = ()


_SAID = {
    "score_drift": "score drift (PSI above chance)",
    "fit": "no change of prevalence explains the scores",
    "flagged_share": "flagged share",
    "followed": "share of predictions under another policy",
    "policy": "another policy was activated",
    "prevalence": "prevalence",
    "calibration_offset": "calibration offset (logit)",
    "calibration_slope": "calibration slope",
    "roc_auc": "ROC AUC",
    "recall": "recall",
    "precision": "precision",
    "coverage": "label coverage",
    "data_loss": "share of events lost",
    "features": "share of features missing or unseen",
    "canary": "canary against live",
}
_OUTCOMES = ("prevalence", "calibration_offset", "calibration_slope", "roc_auc", "recall", "precision")
_LABEL_FREE = ("score_drift", "fit", "flagged_share")
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is likely wrong (a code of DIAGNOSES), what would help (of ADVICE), since when in ms, where, and all of it in words.

    `confirmed` says whether outcomes or counts say so; else scores alone do, which is never a reason to act.
    """

    code: str
    action: str
    since: int | None
    slices: tuple[str, ...]
    words: str
    confirmed: bool


def explain(signs: Signs) -> Diagnosis:
    """Return the first row of the decision table that fits; where none does, that it is unclear."""
    code, action, confirmed = _row(signs)
    moved = {f.name: s for f in fields(signs) if isinstance(s := getattr(signs, f.name), Sign) and s.moved}
    since = min((s.since for s in moved.values() if s.since is not None), default=None)
    said = [_phrase(_SAID[name], s) for name, s in moved.items()]
    words = f"{DIAGNOSES[code]}{': ' if said else ''}{', '.join(said)}"
    if since is not None:
        words += f"; since {iso(since)[:10]}"
    if signs.slices:
        words += "; in " + ", ".join(f"{name} ({share:.0%})" for name, share in signs.slices[:_NAMED])
        if len(signs.slices) > _NAMED:
            words += f" and {len(signs.slices) - _NAMED} more"
    if not confirmed:
        words += "; no outcome confirms it yet"
    return Diagnosis(code, action, since, tuple(name for name, _ in signs.slices), f"{words}. {ADVICE[action]}", confirmed)


def _phrase(what: str, sign: Sign) -> str:
    """Return a sign in words, with the numbers that are known."""
    if sign.value is None:
        return what
    return f"{what} {sign.value:.3g}" if sign.expected is None else f"{what} {sign.value:.3g} instead of {sign.expected:.3g}"


def _row(s: Signs) -> tuple[str, str, bool]:
    """Return code, action and whether it is confirmed.

    A fault of the canary goes first, because comparing it with the live version cancels what both share; faults of data
    and labels go before anything that outcomes say, because they may have made it.
    """
    undo = "rollback" if s.policy.moved else "retrain"
    free = any(getattr(s, name).moved for name in _LABEL_FREE)
    if s.canary.moved:
        return "canary_fault", "stop_canary", True
    if s.followed.moved:
        return "not_followed", "check_delivery", True
    if s.data_loss.moved or s.features.moved:
        return "pipeline_fault", "check_pipeline", True
    if s.flagged_share.moved and (s.score_drift.moved is False or (s.score_drift.moved is None and s.policy.moved)):
        return "threshold_change", "rollback" if s.policy.moved else "check_pipeline", True
    no_positives = s.prevalence.moved and s.prevalence.value == 0
    if not free and (s.coverage.moved or no_positives):
        return "label_fault", "check_labels", True
    # With labels missing outcomes count as unknown: what is left is what scores say.
    trusted = not (s.coverage.moved or no_positives)
    if trusted and s.roc_auc.moved:
        return "concept_drift", undo, True
    offset, slope = (x.moved if trusted else None for x in (s.calibration_offset, s.calibration_slope))
    explained = s.score_drift.moved and s.fit.moved is False
    if offset or slope:
        return ("prior_shift", "rethreshold", True) if explained and not slope else ("calibration_drift", "recalibrate", True)
    if not s.score_drift.moved:
        return "unclear", "watch", trusted and any(getattr(s, name).moved for name in _OUTCOMES)
    if offset is False:
        return "covariate_shift", "watch", True
    if explained:
        return "prior_shift", "rethreshold", False
    return ("covariate_shift", "watch", False) if s.fit.moved else ("unclear", "watch", False)
