"""The Snapshot in Prometheus' text format, rendered once per tick and served from memory."""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from monitor.core.metrics import Estimate
from monitor.core.metrics.calibration import reliability
from monitor.core.metrics.inputs import Inputs
from monitor.core.reasons import REJECTED
from monitor.core.rules import EVIDENCE
from monitor.core.snapshot import Snapshot, Version
from monitor.series import EXPECTED_ESTIMATES, SERIES

_FAMILY = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class _Families:
    """Families of one rendering, made on first use; a label that the contract does not have is an error."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Add a sample; an undefined value adds none."""
        if value is None:
            return
        family = self.made.get(name)
        if family is None:
            series = SERIES[name]
            family = self.made[name] = _FAMILY[series.kind](name, series.help, labels=series.labels)
        family.add_metric(labels, value)

    def histogram(self, name: str, labels: tuple[str, ...], counts: dict[str, float], total: float) -> None:
        """Add a histogram given its cumulative counts by upper bound."""
        series = SERIES[name]
        if name not in self.made:
            self.made[name] = HistogramMetricFamily(name, series.help, labels=series.labels)
        self.made[name].add_metric(labels, list(counts.items()), total)


class Exporter(Collector):
    """Collects the current snapshot; `text` is what /metrics serves.

    `sources` are the kinds of the configured sources, `interval` the seconds between two ticks of the machine's clock.
    """

    def __init__(self, version: str, sources: Iterable[str] = (), interval: float | None = None) -> None:
        self.version = version
        self.interval = interval
        self.zeros = dict.fromkeys(_from_zero(sources), 0.0)
        self.snapshot = Snapshot(None)
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self.render(self.snapshot)

    def describe(self) -> Iterable[Any]:
        """Return nothing: names come from the contract and registration must not collect."""
        return ()

    def render(self, snapshot: Snapshot) -> None:
        """Make `text` say this snapshot."""
        self.snapshot = snapshot
        self.text = generate_latest(self.registry)

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of the snapshot."""
        f, s = _Families(), self.snapshot
        f.put("scorewatch_build_info", 1, self.version)
        if s.at is not None:
            f.put("scorewatch_last_tick_timestamp_seconds", s.at / 1000)
        f.put("scorewatch_tick_interval_seconds", self.interval)
        f.put("scorewatch_store_failing", float(bool(s.problem)))
        roles = {(v.model, v.version): v.role for v in s.versions}
        for (name, labels), value in (self.zeros | dict(s.counters)).items():
            given = dict(labels)
            if "version" not in given or (given["model"], given["version"]) in roles:  # nothing is said of a version that is gone
                f.put(name, value, *given.values())
        for v in s.versions:
            _version(f, v)
        for e in s.estimates:
            _estimate(f, e, roles[e.key.model, e.key.version])
        edges = {(v.model, v.version): v.edges for v in s.versions}
        for (key, window), reading in s.readings.items():
            has_bins = edges[key.model, key.version] is not None and reading.reason != "margin_scores"
            if key.slice == "all" and window == "28d" and has_bins:
                labels_ = (key.model, key.version, roles[key.model, key.version], key.slice, window)
                _bins(f, labels_, reliability(reading, edges[key.model, key.version], False))
        _alerts(f, s)
        yield from f.made.values()


def _from_zero(sources: Iterable[str]) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the counters that are said from the start, because a rate does not see a series that begins above 0."""
    for name in ("store_failures", "labels_early", "not_waiting", "waiting_overflow"):
        yield f"scorewatch_{name}_total", ()
    for action in ("rollback", "policy"):
        yield "scorewatch_action_failures_total", (("action", action),)
    for source in sorted(sources):
        yield "scorewatch_source_failures_total", (("source", source),)
        for what in ("total", "accepted_total", "duplicate_total"):
            yield f"scorewatch_events_{what}", (("source", source),)
        for reason in REJECTED:
            yield "scorewatch_events_rejected_total", (("source", source), ("reason", reason))


def _version(f: _Families, v: Version) -> None:
    labels = (v.model, v.version, v.role)
    f.put("scorewatch_waiting_predictions", v.waiting, *labels)
    f.put("scorewatch_known_so_far", v.known, *labels)
    if v.mature_days:
        f.put("scorewatch_matured", v.matured, *labels)
        f.put("scorewatch_never_labelled", v.never_labelled, *labels)
    f.put("scorewatch_label_coverage", v.coverage, *labels)
    f.put("scorewatch_label_completeness", v.completeness, *labels)
    f.put("scorewatch_horizon_seconds", v.horizon / 1000, *labels)
    f.put("scorewatch_suggested_horizon_seconds", None if v.suggested.horizon is None else v.suggested.horizon / 1000, *labels)
    f.put("scorewatch_late_labels_share", v.suggested.late, *labels)
    f.put("scorewatch_last_event_timestamp_seconds", v.last_event / 1000, *labels)
    f.put("scorewatch_threshold", v.threshold, *labels)
    if v.policy is not None:
        f.put("scorewatch_policy_info", 1, v.model, v.version, v.policy.id)
        f.put(
            "scorewatch_policy_activated_timestamp_seconds",
            None if v.activated_at is None else v.activated_at / 1000,
            v.model,
            v.version,
        )
    counts, total = v.scores
    if counts:
        f.histogram("scorewatch_score", labels, dict(counts), total)
    for d in v.detections:
        e = d.evidence
        f.put(
            "scorewatch_estimate_available", float(not e.reason), v.model, v.version, "all", e.window, d.rule + EVIDENCE, e.reason
        )
        f.put("scorewatch_evidence", e.value, *labels, d.rule)
        f.put("scorewatch_evidence_limit", None if e.reason else d.limit, *labels, d.rule)
        for end, value in (("", d.effect.value), ("_low", d.effect.low), ("_high", d.effect.high)):
            f.put(f"scorewatch_effect{end}", value, *labels, d.rule)
    for policy, log_e in v.undo.items():
        f.put("scorewatch_undo_evidence", log_e, *labels, policy)
    for action, n in v.proposals.items():
        f.put("scorewatch_proposals_open", n, v.model, v.version, action)
    for decision, at in v.decided.items():
        f.put("scorewatch_decision_timestamp_seconds", at / 1000, v.model, v.version, *decision)
    for policy, n in v.following.items():
        f.put("scorewatch_policy_following", n, v.model, v.version, policy)
    for inputs in v.inputs:
        if inputs.window != "day":
            _inputs(f, inputs, labels)


def _inputs(f: _Families, inputs: Inputs, version: tuple[str, str, str]) -> None:
    """Say the worst of all features and of all segments; more would be a series for each."""
    labels = (*version, "all", inputs.window)
    for name, shifts in (("feature_psi_max", inputs.features), ("slice_psi_max", inputs.segments)):
        worst = max((s.psi for s in shifts if s.psi is not None), default=None)
        f.put(f"scorewatch_{name}", worst, *labels)
        if shifts:
            available = (*version[:2], "all", inputs.window, name, shifts[0].reason if worst is None else "")
            f.put("scorewatch_estimate_available", float(worst is not None), *available)
    for what in ("missing", "unseen"):
        cells = [cell for s in inputs.features if (cell := getattr(s, what)) is not None]
        worst = max((c.share.value - c.baseline for c in cells), default=None)
        f.put(f"scorewatch_feature_{what}_increase_max", worst, *labels)


def _estimate(f: _Families, e: Estimate, role: str) -> None:
    labels = (e.key.model, e.key.version, role, e.key.slice)
    if e.basis == "baseline":
        f.put(f"scorewatch_baseline_{e.metric}", e.value, *labels)
        return
    name = f"{e.basis}_{e.metric}" if e.basis in ("nowcast", "estimated", "calibrated") else e.metric
    available = (e.key.model, e.key.version, e.key.slice, e.window, name, e.reason)
    f.put("scorewatch_estimate_available", 0.0 if e.reason else 1.0, *available)
    if e.metric == "mean_score" and e.reason == "margin_scores":
        f.put("scorewatch_scored", e.n, *labels, e.window)
    if e.reason:
        return
    f.put(f"scorewatch_{name}", e.value, *labels, e.window)
    for end, bound in (("low", e.low), ("high", e.high)):
        if f"scorewatch_{name}_{end}" in SERIES:
            f.put(f"scorewatch_{name}_{end}", bound, *labels, e.window)
    if name != e.metric:
        return
    if e.key.slice == "all" and e.window == "28d" and e.metric in EXPECTED_ESTIMATES:
        f.put(f"scorewatch_{name}_expect_low", e.expect_low, *labels, e.window)
        f.put(f"scorewatch_{name}_expect_high", e.expect_high, *labels, e.window)
        f.put("scorewatch_design_effect", e.design_effect, *labels, e.window, name)
    if e.metric == "mean_score":
        f.put("scorewatch_scored", e.n, *labels, e.window)
    elif e.metric == "prevalence":
        f.put("scorewatch_labelled", e.n, *labels, e.window)


def _bins(f: _Families, labels: tuple[str, ...], bins: Iterable[Any]) -> None:
    for i, b in enumerate(bins):
        at = (*labels, f"{i:02d}")
        f.put("scorewatch_reliability_scored", b.n, *at)
        f.put("scorewatch_reliability_score", b.mean_score, *at)
        f.put("scorewatch_reliability_observed", b.observed, *at)
        f.put("scorewatch_reliability_observed_low", b.low, *at)
        f.put("scorewatch_reliability_observed_high", b.high, *at)


def _alerts(f: _Families, s: Snapshot) -> None:
    active = {a.key: a for a in s.alerts if a.state == "firing"}
    for v in s.versions:
        for rule in v.rules:
            alert = active.get((v.model, v.version, rule.name))
            f.put("scorewatch_alert_active", float(alert is not None), v.model, v.version, rule.name, rule.severity)
            if alert is None:
                continue
            found = s.diagnoses.get(alert.key)
            diagnosis = "" if found is None else found.code
            f.put("scorewatch_alert_info", 1, v.model, v.version, rule.name, rule.severity, diagnosis, rule.action)
            f.put(
                "scorewatch_alert_observed",
                None if alert.observed is None else alert.observed.value,
                v.model,
                v.version,
                rule.name,
            )
            f.put(
                "scorewatch_alert_expected",
                None if alert.expected is None else alert.expected.value,
                v.model,
                v.version,
                rule.name,
            )
            f.put("scorewatch_alert_since_timestamp_seconds", alert.since / 1000, v.model, v.version, rule.name)
