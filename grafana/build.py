"""Write grafana/dashboards/model.json: one model, one version, everything that is known about it."""

from pathlib import Path

from grafana_foundation_sdk.builders import barchart, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

MODEL = Path(__file__).parent / "dashboards" / "model.json"
UID = "scorewatch-model"

SOURCE = cm.DataSourceRef(type_val="prometheus", uid="${datasource}")
VERSION = 'model="$model", version="$version"'
MATURE = f'{VERSION}, slice="all", window="28d"'
DAY = f'{VERSION}, slice="all", window="24h"'
NOWCAST = f'{VERSION}, slice="all", window="waiting"'
PROMISE = f'{VERSION}, slice="all"'
WAITING = "waiting for labels"
NOT_MATURE = "The nowcast is no measurement: it says what days that are not mature will show, from the labels they have so far."

INTERVAL_LINES = [
    dm.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}),
    dm.DynamicConfigValue("custom.lineWidth", 1),
]
PROMISE_LINE = [
    dm.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "green"}),
    dm.DynamicConfigValue("custom.lineStyle", {"fill": "dot", "dash": [1, 6]}),
]
NOWCAST_LINE = [dm.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "orange"})]


def query(expr: str, legend: str = "", instant: bool = False, form: PromQueryFormat | None = None) -> prometheus.Dataquery:
    """Return a query of the dashboard's data source."""
    made = prometheus.Dataquery().datasource(SOURCE).expr(expr).legend_format(legend)
    made = made.instant() if instant else made.range()
    return made if form is None else made.format(form)


def lines(title: str, description: str, unit: str, *queries: tuple[str, str], empty: str = WAITING) -> timeseries.Panel:
    """Return a panel of lines over time: dashed for the ends of an interval, dotted green for a promise, orange for a nowcast."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .no_value(empty)
        .datasource(SOURCE)
        .legend(common.VizLegendOptions().display_mode(cm.LegendDisplayMode.LIST).placement(cm.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(cm.TooltipDisplayMode.MULTI))
        .override_by_regexp("/ (low|high)$/", INTERVAL_LINES)
        .override_by_regexp("/^promised/", PROMISE_LINE)
        .override_by_regexp("/^nowcast/", NOWCAST_LINE)
        .height(8)
        .span(12)
    )
    for ref, (expr, legend) in zip("ABCDEFGH", queries, strict=False):
        panel = panel.with_target(query(expr, legend).ref_id(ref))
    return panel


def estimate(name: str, legend: str, where: str = MATURE) -> tuple[tuple[str, str], ...]:
    """Return the queries of an estimate and its interval."""
    ends = (("", ""), ("_low", " low"), ("_high", " high"))
    return tuple((f"scorewatch_{name}{end}{{{where}}}", legend + text) for end, text in ends)


def nowcast(name: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of what is expected of days that are not mature, and its interval."""
    return estimate(f"nowcast_{name}", "nowcast, not mature", NOWCAST)


def promised(name: str) -> tuple[str, str]:
    """Return the query of what validation promised."""
    return f"scorewatch_baseline_{name}{{{PROMISE}}}", "promised"


def alerts() -> stat.Panel:
    """Return which alerts are firing."""
    states = {
        "0": dm.ValueMappingResult(text="quiet", color="green", index=0),
        "1": dm.ValueMappingResult(text="firing", color="red", index=1),
    }
    return (
        stat.Panel()
        .title("Alerts active now")
        .description("One field per rule of this version. The agent decides; Prometheus only passes it on.")
        .unit("none")
        .no_value("no rules: the version is not live or has no events")
        .datasource(SOURCE)
        .mappings([dm.ValueMap(options=states)])
        .color_mode(cm.BigValueColorMode.BACKGROUND)
        .graph_mode(cm.BigValueGraphMode.NONE)
        .text_mode(cm.BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query(f"scorewatch_alert_active{{{VERSION}}}", "{{rule}} ({{severity}})", instant=True).ref_id("A"))
        .height(5)
        .span(24)
    )


def reliability() -> barchart.Panel:
    """Return observed share beside mean score, bin by bin."""
    panel = (
        barchart.Panel()
        .title("Reliability by bin")
        .description(
            "Share of positives beside the mean score of each calibration bin frozen in the baseline, 28 mature days. "
            "Honest probabilities make both bars equally high; the interval of the observed share is 95 % Wilson."
        )
        .unit("percentunit")
        .no_value(WAITING)
        .datasource(SOURCE)
        .x_field("bin")
        .with_transformation(dm.DataTransformerConfig("joinByField", options={"byField": "bin", "mode": "outer"}))
        .with_transformation(
            dm.DataTransformerConfig(
                "organize",
                options={
                    "excludeByName": {f"Time {i}": True for i in range(1, 5)},
                    "renameByName": {
                        "Value #A": "mean score",
                        "Value #B": "observed",
                        "Value #C": "observed low",
                        "Value #D": "observed high",
                    },
                },
            )
        )
        .height(8)
        .span(12)
    )
    for ref, name in zip("ABCD", ("score", "observed", "observed_low", "observed_high"), strict=True):
        expr = f"sum by (bin) (scorewatch_reliability_{name}{{{MATURE}}})"
        panel = panel.with_target(query(expr, instant=True, form=PromQueryFormat.TABLE).ref_id(ref))
    return panel


def histogram() -> heatmap.Panel:
    """Return how the served scores are spread over time."""
    return (
        heatmap.Panel()
        .title("Scores served")
        .description("Predictions per step of .05 of the score, as they arrived at the agent.")
        .unit("short")
        .no_value("no events yet")
        .datasource(SOURCE)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit("percentunit"))
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64))
        .with_target(
            query(
                f"sum by (le) (increase(scorewatch_score_bucket{{{VERSION}}}[$__rate_interval]))",
                "{{le}}",
                form=PromQueryFormat.HEATMAP,
            ).ref_id("A")
        )
        .height(8)
        .span(12)
    )


def unavailable() -> table.Panel:
    """Return which estimates do not exist, and why."""
    return (
        table.Panel()
        .title("What is not known, and why")
        .description("Estimates of slice all that do not exist now, with the reason. An estimate that is not here exists.")
        .unit("none")
        .no_value("every estimate exists")
        .datasource(SOURCE)
        .with_target(
            query(
                f'sum by (estimate, window, reason) (scorewatch_estimate_available{{{VERSION}, slice="all"}} == 0)',
                instant=True,
                form=PromQueryFormat.TABLE,
            ).ref_id("A")
        )
        .with_transformation(
            dm.DataTransformerConfig("organize", options={"excludeByName": {"Time": True, "Value": True}, "renameByName": {}})
        )
        .height(8)
        .span(12)
    )


def variable(name: str, label: str, values: str) -> dashboard.QueryVariable:
    """Return a variable with the values of a label."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": values, "refId": name})
        .refresh(dm.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dm.VariableSort.NATURAL_ASC)
    )


def annotation(name: str, color: str, expr: str, text: str, value_is_time: bool = False) -> dashboard.AnnotationQuery:
    """Return marks on every panel."""
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(SOURCE)
        .enable(True)
        .icon_color(color)
        .expr(expr)
        .title_format(name)
        .text_format(text)
        .use_value_for_time(value_is_time)
    )


def model() -> dashboard.Dashboard:
    """Return the dashboard."""
    made = (
        dashboard.Dashboard("Scorewatch: model")
        .uid(UID)
        .description("One version of one model: is it what validation promised, and are its probabilities honest?")
        .tags(["scorewatch"])
        .readonly()
        .time("now-7d", "now")
        .refresh("1m")
        .timezone("utc")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(variable("model", "Model", "label_values(scorewatch_waiting_predictions, model)"))
        .with_variable(variable("version", "Version", 'label_values(scorewatch_waiting_predictions{model="$model"}, version)'))
        .annotation(
            annotation(
                "Alert",
                "red",
                f'ALERTS{{alertname="ScorewatchRuleFiring", alertstate="firing", {VERSION}}}',
                "{{rule}} ({{severity}})",
            )
        )
        .annotation(
            annotation(
                "Policy changed",
                "blue",
                f"scorewatch_policy_activated_timestamp_seconds{{{VERSION}}} * 1000",
                "{{model}} {{version}}",
                value_is_time=True,
            )
        )
        .annotation(
            annotation(
                "Decision",
                "purple",
                f"scorewatch_decision_timestamp_seconds{{{VERSION}}} * 1000",
                "{{rule}}: {{action}} ({{reason}})",
                value_is_time=True,
            )
        )
    )
    ece = lines(
        "Calibration error",
        "Expected calibration error over the frozen bins, 28 mature days, with its 99 % interval. The noise floor is what "
        "honest probabilities would show on so many rows; only an interval above the limit of the rule is an alert.",
        "percentunit",
        *estimate("ece", "error"),
        (f"scorewatch_ece_noise_floor{{{MATURE}}}", "noise floor"),
        promised("ece"),
    )
    calibrated = lines(
        "Calibration of the served scores",
        "Of the scores that the calibrator of the policy serves, on whole mature days since it came, at most 28: expected "
        "calibration error with its 99 % interval, and bias.",
        "percentunit",
        *estimate("calibrated_ece", "error"),
        *estimate("calibrated_bias", "bias"),
        empty="the policy serves the model's scores, or no day since its calibrator came is mature",
    )
    bias = lines(
        "Bias",
        "Mean score minus share of positives, 28 mature days: above 0 when scores are too high.",
        "percentunit",
        *estimate("bias", "bias"),
        promised("bias"),
    )
    prevalence = lines(
        "Prevalence and what the scores imply",
        "Share of positive outcomes of 28 mature days beside the mean score (the model-implied prevalence) of the same days "
        "and of the last 24 hours, for which outcomes are not known yet.",
        "percentunit",
        *estimate("prevalence", "prevalence"),
        (f"scorewatch_mean_score{{{MATURE}}}", "mean score, same days"),
        (f"scorewatch_mean_score{{{DAY}}}", "mean score, last 24 hours"),
        promised("prevalence"),
    )
    recall = lines(
        "Recall",
        "Share of the positives that were flagged, 28 mature days; promised: by validation under the current threshold. "
        + NOT_MATURE,
        "percentunit",
        *estimate("recall", "recall"),
        *nowcast("recall"),
        promised("recall"),
    )
    precision = lines(
        "Precision",
        "Share of the flagged that were positive, 28 mature days; promised: by validation under the current threshold. "
        + NOT_MATURE,
        "percentunit",
        *estimate("precision", "precision"),
        *nowcast("precision"),
        promised("precision"),
    )
    roc_auc = lines(
        "ROC AUC",
        "How often a positive scores higher than a negative, 28 mature days.",
        "none",
        *estimate("roc_auc", "AUC"),
        promised("roc_auc"),
    )
    flagged = lines(
        "Flagged share, last 24 hours",
        "Share of the predictions that were flagged; needs no labels. Promised: by validation under the current threshold.",
        "percentunit",
        *estimate("flagged_share", "flagged", DAY),
        promised("flagged_share"),
        empty="no events or no threshold yet",
    )
    evidence = lines(
        "Evidence of detectors",
        "Logarithm of the evidence that whole days give against what validation promised, and what a rule needs of it to keep "
        "the budget of false alarms: above, it fires if the effect is large as well.",
        "none",
        (f"scorewatch_evidence{{{VERSION}}} > 0", "{{rule}}"),
        (f"max(scorewatch_evidence_limit{{{VERSION}}})", "needed"),
        empty="no day was looked at, or nothing speaks against the promise",
    )
    labels = lines(
        "Waiting, known so far, never labelled",
        "Waiting predictions are of days that are not mature; those known so far have a label already, which is no "
        "measurement. Matured and never labelled are of the last 28 mature days.",
        "short",
        (f"scorewatch_waiting_predictions{{{VERSION}}}", "waiting"),
        (f"scorewatch_known_so_far{{{VERSION}}}", "known so far"),
        (f"scorewatch_matured{{{VERSION}}}", "matured"),
        (f"scorewatch_never_labelled{{{VERSION}}}", "never labelled"),
    )
    coming = lines(
        "Coverage, completeness, late labels",
        "Coverage: labels that came for the last 28 mature days, of those expected; below 80 % outcomes are not known. "
        "Completeness: labels of waiting predictions that are in, of those that come by the horizon. "
        "Late: labels that come after the horizon; above 2 % it is too short.",
        "percentunit",
        (f"scorewatch_label_coverage{{{VERSION}}}", "coverage"),
        (f"scorewatch_label_completeness{{{VERSION}}}", "completeness"),
        (f"scorewatch_late_labels_share{{{VERSION}}}", "late"),
    )
    horizon = lines(
        "Horizon, configured and suggested",
        "How long a day waits for its labels after it ended, and the shortest wait by which 98 % of the labels came "
        "that come before corrections end.",
        "s",
        (f"scorewatch_horizon_seconds{{{VERSION}}}", "configured"),
        (f"scorewatch_suggested_horizon_seconds{{{VERSION}}}", "suggested"),
        empty="no events yet",
    )
    held = lines(
        "Labels held and dropped",
        "Labels of all models that came before their prediction and are held for it, and those dropped because no prediction "
        "took them in time or the one that came did not fit.",
        "short",
        ("sum(scorewatch_labels_held)", "held"),
        ("sum by (reason) (increase(scorewatch_labels_dropped_total[$__rate_interval]))", "dropped: {{reason}}"),
        empty="no agent answers",
    )
    sampled = lines(
        "Predictions that do not wait",
        "Predictions of all models that were counted but do not wait for their label, because a sample waits. Those without "
        "room were drawn to wait and could not; no weight makes up for them.",
        "short",
        ("sum(increase(scorewatch_not_waiting_total[$__rate_interval]))", "do not wait"),
        ("sum(increase(scorewatch_waiting_overflow_total[$__rate_interval]))", "of them without room"),
        empty="no agent answers",
    )
    rejected = lines(
        "Rejected events by reason",
        "Events of all models that were not taken; the sender was told which and why.",
        "short",
        ("sum by (source, reason) (increase(scorewatch_events_rejected_total[$__rate_interval])) > 0", "{{source}}: {{reason}}"),
        empty="nothing was rejected",
    )
    panels = (
        *(alerts(), ece, reliability(), bias, calibrated, prevalence, recall, precision, roc_auc),
        *(flagged, histogram(), evidence, labels, coming, horizon, held, sampled, rejected, unavailable()),
    )
    for panel in panels:
        made = made.with_panel(panel)
    return made


def text() -> str:
    """Return the dashboard as JSON, the same at every call."""
    return str(JSONEncoder(sort_keys=True, indent=2).encode(model().build())) + "\n"


if __name__ == "__main__":
    MODEL.write_text(text())
