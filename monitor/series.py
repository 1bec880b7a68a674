"""The contract of all exported series: name, type, labels, meaning. Exporter, README, dashboards, rules and tests read it."""

from dataclasses import dataclass

from monitor.core.before_labels import ESTIMATED
from monitor.core.metrics import METRICS
from monitor.core.metrics.daily import EXPECTED

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of /metrics."""

_VERSION = ("model", "version", "role")
_WINDOW = (*_VERSION, "slice", "window")
NOWCAST = ("prevalence", "bias", "recall", "precision")
"""What is estimated of the newest 28 days that are not mature and whose labels are complete enough."""
EXPECTED_ESTIMATES = tuple(name for name, m in METRICS.items() if name in EXPECTED and (m.outcomes or name == "flagged_share"))
"""What is exported with what to expect and its design effect, for the slice `all` over 28 mature days."""
CALIBRATED = (
    *("mean_score", "bias", "ece", "mce", "ece_width10", "offset", "slope", "high_confidence_error_share"),
    *("brier", "log_loss", "roc_auc"),
)
"""What is said of the scores that a calibrator serves as well, of whole mature days since it came."""
SLICE_CALIBRATED = ("bias",)
"""What is said of them for slices other than `all`, over 28 days."""
_POINTS = (
    *(f"{name}{end}" for name in ("psi", "js", "ks", "wasserstein") for end in ("", "_null")),
    *("mce", "mce_width10", "ece_noise_floor", "partial_roc_auc"),
    *(f"{loss}_{part}" for loss in ("brier", "log_loss") for part in ("refinement", "calibration")),
)
"""Metrics that are numbers without an interval."""


_INPUTS = "which one it is, all others and what psi is without drift: /v1/models/{m}/features."


@dataclass(frozen=True, slots=True)
class Series:
    """One series: counter, gauge or histogram, its labels beside those Prometheus adds, and what it means."""

    kind: str
    labels: tuple[str, ...]
    help: str


def _estimates() -> dict[str, Series]:
    out = {}
    for name, metric in METRICS.items():
        out[f"scorewatch_{name}"] = Series("gauge", _WINDOW, metric.help)
        if name not in _POINTS:
            for end in ("low", "high"):
                out[f"scorewatch_{name}_{end}"] = Series("gauge", _WINDOW, f"Interval of scorewatch_{name}: its {end} end.")
        if name in EXPECTED_ESTIMATES:
            expected = f"What days like those of the window are expected to show as scorewatch_{name}"
            for end in ("low", "high"):
                out[f"scorewatch_{name}_expect_{end}"] = Series("gauge", _WINDOW, f"{expected}: {end} end.")
        if name in CALIBRATED:
            served = "Of the scores that the calibrator of the policy serves, on whole mature days since it came: "
            out[f"scorewatch_calibrated_{name}"] = Series(
                "gauge", _WINDOW, served + metric.help.replace(", exact", ", read off the mean scores of the grid's bins")
            )
            for end in ("low", "high") if name not in _POINTS else ():
                out[f"scorewatch_calibrated_{name}_{end}"] = Series(
                    "gauge", _WINDOW, f"Interval of scorewatch_calibrated_{name}: its {end} end."
                )
        if name in NOWCAST:
            expected = "Of days that are not mature, from the labels so far and how complete they are; no measurement: "
            out[f"scorewatch_nowcast_{name}"] = Series("gauge", _WINDOW, f"{expected}{metric.help}")
            for end in ("low", "high"):
                out[f"scorewatch_nowcast_{name}_{end}"] = Series(
                    "gauge", _WINDOW, f"Interval of scorewatch_nowcast_{name}: its {end} end."
                )
        if name in ESTIMATED:
            right = "" if name == "prevalence" else " and scores were right there"
            guess = f"From the scores and the baseline, as if only prevalence had changed{right}; no measurement: "
            out[f"scorewatch_estimated_{name}"] = Series("gauge", _WINDOW, f"{guess}{metric.help.split(';')[0].rstrip('.')}.")
            for end in ("low", "high"):
                out[f"scorewatch_estimated_{name}_{end}"] = Series(
                    "gauge",
                    _WINDOW,
                    f"Interval of scorewatch_estimated_{name}, at least as wide as earlier errors: its {end} end.",
                )
            out[f"scorewatch_estimated_{name}_bias"] = Series(
                "gauge",
                _WINDOW,
                f"What scorewatch_estimated_{name} was worth: estimated less matured, mean of whole mature days.",
            )
        if metric.outcomes or name == "flagged_share":
            promise = f"What validation promised, under the current policy: {metric.help}"
            out[f"scorewatch_baseline_{name}"] = Series("gauge", (*_VERSION, "slice"), promise)
    return out


SERIES: dict[str, Series] = {
    "scorewatch_build_info": Series("gauge", ("version",), "Always 1; the version of the agent."),
    "scorewatch_events_total": Series("counter", ("source",), "Events sent: accepted, duplicates and rejected ones."),
    "scorewatch_events_accepted_total": Series("counter", ("source",), "Events stored."),
    "scorewatch_events_duplicate_total": Series("counter", ("source",), "Events that said nothing new."),
    "scorewatch_events_rejected_total": Series("counter", ("source", "reason"), "Events that were not taken, by reason."),
    "scorewatch_requests_refused_total": Series("counter", ("source", "reason"), "Requests of which nothing was taken."),
    "scorewatch_scores_clipped_total": Series("counter", ("source",), "Scores within 1e-9 outside [0, 1] that were clipped."),
    "scorewatch_scores_scaled_total": Series(
        "counter", ("source",), "Predictions whose scores of the classes did not sum to 1 exactly and were scaled to do so."
    ),
    "scorewatch_prediction_conflicts_total": Series("counter", (), "Repeated predictions that differ from the stored one."),
    "scorewatch_segment_overflow_total": Series("counter", (), "Predictions whose segment combination found no code any more."),
    "scorewatch_label_corrections_total": Series("counter", ("reason",), "Labels changed from 0 to 1 or from 1 to 0."),
    "scorewatch_labels_held": Series("gauge", (), "Labels that came before their prediction and are held for it."),
    "scorewatch_labels_early_total": Series("counter", (), "Labels that were held because their prediction was not there."),
    "scorewatch_labels_dropped_total": Series(
        "counter", ("reason",), "Held labels that no prediction took in time, or that did not fit it."
    ),
    "scorewatch_not_waiting_total": Series("counter", (), "Predictions that were counted but do not wait for their label."),
    "scorewatch_waiting_overflow_total": Series(
        "counter", (), "Those of them that were to wait and found no room; no weight makes up for them."
    ),
    "scorewatch_predictions_total": Series("counter", _VERSION, "Predictions stored since the agent started."),
    "scorewatch_score": Series("histogram", _VERSION, "Scores stored since the agent started, in steps of .05."),
    "scorewatch_scored": Series("gauge", _WINDOW, "Predictions in the window."),
    "scorewatch_labelled": Series("gauge", _WINDOW, "Predictions of the mature window whose outcome counts."),
    "scorewatch_never_labelled": Series(
        "gauge", _VERSION, "Predictions of the last 28 mature days that waited for a label and got none."
    ),
    "scorewatch_matured": Series("gauge", _VERSION, "Predictions of the last 28 mature days."),
    "scorewatch_label_coverage": Series(
        "gauge",
        _VERSION,
        "Share of the expected labels of the last 28 mature days that came: by label_prob, of rows whose missing is unknown.",
    ),
    "scorewatch_label_completeness": Series(
        "gauge", _VERSION, "Share of the labels of waiting predictions that are in, of those that come by the horizon."
    ),
    "scorewatch_horizon_seconds": Series("gauge", _VERSION, "How long a day waits for its labels after it ended."),
    "scorewatch_suggested_horizon_seconds": Series(
        "gauge", _VERSION, "The smallest horizon by which .98 of the labels come that come before corrections end."
    ),
    "scorewatch_late_labels_share": Series("gauge", _VERSION, "Share of those labels that come after the configured horizon."),
    "scorewatch_waiting_predictions": Series(
        "gauge", _VERSION, "Predictions of days that are not mature yet which wait for their label."
    ),
    "scorewatch_known_so_far": Series("gauge", _VERSION, "Waiting predictions that have a label already; no measurement."),
    "scorewatch_estimate_available": Series(
        "gauge",
        ("model", "version", "slice", "window", "estimate", "reason"),
        "1 when the estimate exists (reason empty), else 0 with the reason why not.",
    ),
    **_estimates(),
    "scorewatch_reliability_scored": Series("gauge", (*_WINDOW, "bin"), "Rows with an outcome in each calibration bin."),
    "scorewatch_reliability_score": Series("gauge", (*_WINDOW, "bin"), "Mean score in each calibration bin."),
    "scorewatch_reliability_observed": Series("gauge", (*_WINDOW, "bin"), "Share of positives in each calibration bin."),
    "scorewatch_reliability_observed_low": Series("gauge", (*_WINDOW, "bin"), "Wilson interval of the share of positives: low."),
    "scorewatch_reliability_observed_high": Series(
        "gauge", (*_WINDOW, "bin"), "Wilson interval of the share of positives: high."
    ),
    "scorewatch_design_effect": Series(
        "gauge",
        (*_WINDOW, "estimate"),
        "How many times the variance of independent rows an estimate has over days like those of the window; at least 1.",
    ),
    "scorewatch_feature_psi_max": Series(
        "gauge", _WINDOW, f"The largest psi of a feature against the baseline over its bins; {_INPUTS}"
    ),
    "scorewatch_feature_missing_increase_max": Series(
        "gauge", _WINDOW, f"The largest share of rows without a feature, less that of the baseline; {_INPUTS}"
    ),
    "scorewatch_feature_unseen_increase_max": Series(
        "gauge", _WINDOW, f"The largest share of rows with a value the baseline has not, less that of the baseline; {_INPUTS}"
    ),
    "scorewatch_slice_psi_max": Series(
        "gauge", _WINDOW, f"The largest psi of how rows are spread over the slices of a segment; {_INPUTS}"
    ),
    "scorewatch_threshold": Series("gauge", _VERSION, "The score at or above which a case is flagged now."),
    "scorewatch_policy_info": Series("gauge", ("model", "version", "policy"), "Always 1; the policy that is served."),
    "scorewatch_policy_activated_timestamp_seconds": Series(
        "gauge", ("model", "version"), "When the served policy became current."
    ),
    "scorewatch_policy_following": Series(
        "gauge", ("model", "version", "policy"), "Predictions of the last 24 hours by the policy they name."
    ),
    "scorewatch_evidence": Series(
        "gauge",
        (*_VERSION, "rule"),
        "Natural logarithm of the evidence that a detector has against the promise; the rule needs scorewatch_evidence_limit.",
    ),
    "scorewatch_evidence_limit": Series(
        "gauge", (*_VERSION, "rule"), "What the evidence of the rule must pass, by the false alarms a year that are accepted."
    ),
    "scorewatch_effect": Series(
        "gauge",
        (*_VERSION, "rule"),
        "How far the days of a detector are off the promise, in logits (roc_auc: a difference; score_drift: psi less its null;"
        " canary: from the live version, in units of what is large).",
    ),
    "scorewatch_effect_low": Series("gauge", (*_VERSION, "rule"), "Interval of scorewatch_effect: its low end."),
    "scorewatch_effect_high": Series("gauge", (*_VERSION, "rule"), "Interval of scorewatch_effect: its high end."),
    "scorewatch_alert_active": Series("gauge", ("model", "version", "rule", "severity"), "1 while the alert is firing."),
    "scorewatch_alert_info": Series(
        "gauge",
        ("model", "version", "rule", "severity", "diagnosis", "action"),
        "1 while firing; what is likely wrong, and what the rule does.",
    ),
    "scorewatch_alert_observed": Series("gauge", ("model", "version", "rule"), "The estimate the firing rule looks at."),
    "scorewatch_alert_expected": Series("gauge", ("model", "version", "rule"), "What validation promised for that estimate."),
    "scorewatch_alert_since_timestamp_seconds": Series("gauge", ("model", "version", "rule"), "Since when the alert is firing."),
    "scorewatch_decisions_total": Series(
        "counter", ("model", "version", "rule", "action", "reason"), "Decisions since the agent started."
    ),
    "scorewatch_decision_timestamp_seconds": Series(
        "gauge", ("model", "version", "rule", "action", "reason"), "When each rule last decided something else than before."
    ),
    "scorewatch_proposals_open": Series("gauge", ("model", "version", "action"), "Proposals that wait for a person."),
    "scorewatch_undo_evidence": Series(
        "gauge",
        (*_VERSION, "policy"),
        "Natural logarithm of the evidence that an earlier policy would have served the outcomes since the activation better; at"
        " ln 20 = 3.0 it comes back.",
    ),
    "scorewatch_last_tick_timestamp_seconds": Series("gauge", (), "The time of the last tick, by the agent's clock."),
    "scorewatch_tick_interval_seconds": Series(
        "gauge", (), "How often the agent ticks by the machine's clock; absent where events are the clock."
    ),
    "scorewatch_last_event_timestamp_seconds": Series("gauge", _VERSION, "The newest prediction."),
    "scorewatch_last_label_timestamp_seconds": Series("gauge", ("model",), "The newest label."),
    "scorewatch_tick_duration_seconds": Series("gauge", (), "How long the last tick took."),
    "scorewatch_store_rows": Series("gauge", (), "Predictions in the store, waiting or kept for corrections."),
    "scorewatch_store_rows_limit": Series("gauge", (), "Predictions that may be in the store (waiting.rows)."),
    "scorewatch_store_failing": Series("gauge", (), "1 while the state directory cannot be written, else 0."),
    "scorewatch_store_failures_total": Series("counter", (), "Commits that failed; nothing of them was acknowledged."),
    "scorewatch_source_failures_total": Series("counter", ("source",), "Reads of a source that failed; they are tried again."),
    "scorewatch_deliveries_total": Series(
        "counter", ("action", "reason"), "Tries to deliver a message since the agent started, by how they ended."
    ),
    "scorewatch_outbox_waiting": Series("gauge", (), "Messages that wait for being delivered, or for the next try."),
    "scorewatch_outbox_dead": Series("gauge", (), "Messages that were given up; a person can let them be tried again."),
    "scorewatch_action_failures_total": Series("counter", ("action",), "Actions and policy files that failed."),
    "scorewatch_config_reload_success": Series(
        "gauge", (), "0 when the configuration was last read anew and refused: the agent goes on with the one before. Else 1."
    ),
    "scorewatch_config_reload_timestamp_seconds": Series("gauge", (), "When the configuration that is in use was read."),
}

SLICE_ESTIMATES = ("flagged_share", "prevalence", "bias", "recall", "precision")
"""What is exported for slices other than `all`, over one mature window of 28 days."""
