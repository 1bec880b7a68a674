"""The decision table: each row, its order, and that no combination of signs is left without an answer."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.core.diagnosis import ADVICE, DIAGNOSES, Diagnosis, Sign, Signs, explain

NAMES = [f.name for f in fields(Signs) if f.name != "slices"]
DAY = 86_400_000


def signs(moved=(), still=()):
    """Return signs of which some moved, some did not, and nothing is known of the others."""
    return Signs(**{name: Sign(True) for name in moved}, **{name: Sign(False) for name in still})


CALIBRATED = ("calibration_offset", "calibration_slope")
TABLE = [
    # what moved, what did not, diagnosis, action, confirmed
    (["canary", "score_drift", "features"], [], "canary_fault", "stop_canary", True),
    (["data_loss", "calibration_offset"], ["canary"], "pipeline_fault", "check_pipeline", True),
    (["followed", "data_loss"], [], "not_followed", "check_delivery", True),
    (["features", "score_drift"], [], "pipeline_fault", "check_pipeline", True),
    (["flagged_share", "policy"], ["score_drift"], "threshold_change", "rollback", True),
    (["flagged_share", "policy"], [], "threshold_change", "rollback", True),
    (["flagged_share"], ["score_drift", "policy"], "threshold_change", "check_pipeline", True),
    (["coverage", "roc_auc", "calibration_offset"], ["score_drift"], "label_fault", "check_labels", True),
    (["coverage"], [], "label_fault", "check_labels", True),
    (["coverage", "score_drift", "roc_auc", "calibration_offset"], ["fit"], "prior_shift", "rethreshold", False),
    (["coverage", "score_drift", "roc_auc", "fit"], [], "covariate_shift", "watch", False),
    (["calibration_offset", "roc_auc"], ["policy"], "concept_drift", "retrain", True),
    (["calibration_slope", "roc_auc", "score_drift", "policy"], ["fit"], "concept_drift", "rollback", True),
    (["roc_auc"], CALIBRATED, "concept_drift", "retrain", True),
    (["score_drift", "calibration_offset"], ["fit", "calibration_slope", "roc_auc"], "prior_shift", "rethreshold", True),
    (["score_drift"], ["fit"], "prior_shift", "rethreshold", False),
    (["calibration_offset"], ["calibration_slope", "roc_auc", "score_drift"], "calibration_drift", "recalibrate", True),
    (["score_drift", "calibration_offset", "calibration_slope"], ["fit", "roc_auc"], "calibration_drift", "recalibrate", True),
    (["score_drift", "fit", "calibration_offset"], ["roc_auc"], "calibration_drift", "recalibrate", True),
    (["score_drift", "calibration_offset"], ["roc_auc"], "calibration_drift", "recalibrate", True),
    (["score_drift", "fit"], [*CALIBRATED, "roc_auc"], "covariate_shift", "watch", True),
    (["score_drift", "flagged_share"], [*CALIBRATED, "fit"], "covariate_shift", "watch", True),
    (["score_drift", "fit"], [], "covariate_shift", "watch", False),
    (["score_drift"], [], "unclear", "watch", False),
    (["recall"], [*CALIBRATED, "roc_auc", "score_drift"], "unclear", "watch", True),
    (["fit"], ["score_drift"], "unclear", "watch", False),
    ([], NAMES, "unclear", "watch", False),
    ([], [], "unclear", "watch", False),
]


@pytest.mark.parametrize(("moved", "still", "code", "action", "confirmed"), TABLE)
def test_table(moved, still, code, action, confirmed):
    """Each row of the table has its diagnosis, its action, and whether outcomes or counts say so."""
    found = explain(signs(moved, still))
    assert (found.code, found.action, found.confirmed) == (code, action, confirmed)


def test_every_code_is_reached():
    """The sets are closed and nothing in them is out of reach."""
    assert {row[2] for row in TABLE} == set(DIAGNOSES)
    assert {row[3] for row in TABLE} == set(ADVICE)


def test_no_positive_at_all():
    """Positives that vanish while scores stay are a broken join of labels, not a better world; rarer ones are not."""
    gone = Signs(score_drift=Sign(False), prevalence=Sign(True, 0.0, 0.03), calibration_offset=Sign(True), roc_auc=Sign(None))
    assert explain(gone).code == "label_fault"
    assert explain(Signs(prevalence=Sign(True, 0.01, 0.03), calibration_offset=Sign(True))).code == "calibration_drift"


def test_words():
    """The sentence says what moved, by how much, since when, where, and what would help."""
    found = explain(
        Signs(
            score_drift=Sign(True, 0.314, since=20_002 * DAY),
            fit=Sign(False, 0.4),
            calibration_offset=Sign(True, -0.52, 0.0, 20_000 * DAY),
            calibration_slope=Sign(False, 1.02, 1.0),
            slices=tuple(
                (f"carrier={c}", share) for c, share in zip("ABCDEFG", (0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05), strict=True)
            ),
        )
    )
    assert found == Diagnosis(
        "prior_shift",
        "rethreshold",
        20_000 * DAY,
        tuple(f"carrier={c}" for c in "ABCDEFG"),
        "Positives became more or less common, and scores follow only part of the way: score drift (PSI above chance) 0.314, "
        "calibration offset (logit) -0.52 instead of 0; since 2024-10-04; in carrier=A (40%), carrier=B (20%), carrier=C (10%), "
        "carrier=D (10%), carrier=E (10%) and 2 more. Correct the scores for the new prevalence and choose the threshold anew.",
        True,
    )


SIGN = st.builds(
    Sign, st.sampled_from([True, False, None]), st.one_of(st.none(), st.floats(-5, 5)), st.one_of(st.none(), st.floats(-5, 5))
)


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, SIGN)))
def test_every_combination_has_an_answer(given_):
    """Whatever is known, there is a diagnosis of the closed set, an action that fits it, and a whole sentence."""
    found = explain(Signs(**given_))
    assert found.code in DIAGNOSES
    assert found.action in ADVICE
    assert found.words.endswith(ADVICE[found.action])
    assert found.words.startswith(DIAGNOSES[found.code])


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, SIGN)))
def test_scores_alone_never_confirm(given_):
    """Without counts or outcomes that moved or held, nothing is confirmed: no label-free sign is a reason to act."""
    free = {name: given_[name] for name in ("score_drift", "fit")}
    assert not explain(Signs(**free)).confirmed
