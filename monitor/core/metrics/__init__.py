"""Every metric: what it is, what it needs, and the one function that measures a reading."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from monitor.core.days import Key
from monitor.core.events import Ints
from monitor.core.intervals import Measured, whole
from monitor.core.metrics import calibration, confusion, decomposition, drift, fit, prevalence, ranking
from monitor.core.metrics.counts import size
from monitor.core.metrics.daily import RATIOS, Days, expected, own_variance, variances
from monitor.core.readings import Reading


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a metric says about a reading of a window; `key.day` is the last day of the window or the current one.

    `value` is None exactly when `reason` is a code of `reasons.UNDEFINED`. `n` counts the rows the value is a share or a mean
    of, or those of the reading when there is no value; of weighted rows, the effective number. `interval_reason` is a code of
    `reasons.NO_INTERVAL` where an interval is wanting that the metric has elsewhere.

    `low` and `high` are about the days that happened, `expect_low` and `expect_high` about what days like them are expected
    to show; `design_effect` is the variance of the second question over that of the first, at least 1.
    """

    metric: str
    key: Key
    window: str
    basis: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str = ""
    interval_reason: str = ""
    expect_low: float | None = None
    expect_high: float | None = None
    design_effect: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and what it needs: outcomes, the frozen edges of a baseline, verdicts, the scores of the baseline.

    `about` says whose outcomes it needs: those of `all` rows, of the `flagged` ones, or of the rows whose outcome can be `seen`,
    because it holds given the score and so for any choice by score and verdict. `function(reading, edges)` returns a measured
    value or a code of `reasons.UNDEFINED`; with `reference` set it takes the reading of the baseline as its third argument.
    """

    function: Callable[..., Measured | str]
    outcomes: bool
    edges: bool
    decided: bool
    help: str
    reference: bool = False
    about: str = "all"


METRICS: dict[str, Metric] = {
    "flagged_share": Metric(
        confusion.flagged_share,
        outcomes=False,
        edges=False,
        decided=True,
        help="Share of the decided rows that were flagged (flag, review or block); interval: 95 % Wilson.",
    ),
    "mean_score": Metric(
        prevalence.mean_score,
        outcomes=False,
        edges=False,
        decided=False,
        help="Mean score: the model-implied prevalence, not the prevalence; interval: where 95 % of observed shares would lie"
        " if every score were the true probability.",
    ),
    "psi": Metric(
        drift.psi,
        outcomes=False,
        edges=True,
        decided=False,
        reference=True,
        help="Population stability index of the scores against the baseline over its frozen calibration bins, half a row added"
        " to every bin; compare with psi_null.",
    ),
    "psi_null": Metric(
        drift.psi_null,
        outcomes=False,
        edges=True,
        decided=False,
        reference=True,
        help="What psi is on average without drift: (K - 1)(1/n + 1/m) for K bins, n rows and m baseline rows.",
    ),
    "js": Metric(
        drift.js,
        outcomes=False,
        edges=True,
        decided=False,
        reference=True,
        help="Jensen-Shannon distance, in bits, of the scores and those of the baseline over its frozen calibration bins,"
        " from 0 to 1; compare with js_null.",
    ),
    "js_null": Metric(
        drift.js_null,
        outcomes=False,
        edges=True,
        decided=False,
        reference=True,
        help="What js is on average without drift: sqrt((1/n + 1/m) / (8 ln 2)) times the mean of a chi variable of K - 1"
        " degrees of freedom for K bins, n rows and m baseline rows.",
    ),
    "ks": Metric(
        drift.ks,
        outcomes=False,
        edges=False,
        decided=False,
        reference=True,
        help="Kolmogorov-Smirnov distance of the scores and those of the baseline: the largest difference of their distribution"
        " functions on the grid of 2,107 bins; compare with ks_null.",
    ),
    "ks_null": Metric(
        drift.ks_null,
        outcomes=False,
        edges=False,
        decided=False,
        reference=True,
        help="What ks is on average without drift, or more where scores have many ties: .8687 sqrt(1/n + 1/m).",
    ),
    "wasserstein": Metric(
        drift.wasserstein,
        outcomes=False,
        edges=False,
        decided=False,
        reference=True,
        help="Wasserstein distance of the scores and those of the baseline: how far a score moved on average, in units of"
        " the score; compare with wasserstein_null.",
    ),
    "wasserstein_null": Metric(
        drift.wasserstein_null,
        outcomes=False,
        edges=False,
        decided=False,
        reference=True,
        help="What wasserstein is on average without drift: sqrt(2/pi) sqrt(1/n + 1/m) times the integral of sqrt(F (1 -"
        " F)), F the distribution function of the baseline.",
    ),
    "prevalence": Metric(
        prevalence.prevalence,
        outcomes=True,
        edges=False,
        decided=False,
        help="Share of positive outcomes; interval: 95 % Wilson.",
    ),
    "majority_share": Metric(
        prevalence.majority_share,
        outcomes=True,
        edges=False,
        decided=False,
        help="Share of the more common class, which is the accuracy of always saying the same; interval: 95 % Wilson.",
    ),
    "bias": Metric(
        calibration.bias,
        outcomes=True,
        edges=False,
        decided=False,
        help="Mean P(positive) minus the share of positives, so above 0 when scores are too high; interval: 95 % normal with"
        " the variance the scores imply or the observed one, the larger."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "ece": Metric(
        calibration.ece,
        outcomes=True,
        edges=True,
        decided=False,
        help="Expected calibration error of P(positive) over the at most 15 equal-mass bins frozen in the baseline:"
        " sum of n_b/n times |observed share - mean score|; interval: 99 % noise ball."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "mce": Metric(
        calibration.mce,
        outcomes=True,
        edges=True,
        decided=False,
        help="Maximum calibration error of P(positive): the largest |observed share - mean score| of the bins frozen in the"
        " baseline that hold at least 20 rows; no interval."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "ece_noise_floor": Metric(
        calibration.ece_noise_floor,
        outcomes=True,
        edges=True,
        decided=False,
        help="What ece is on average when every score is the true probability: sqrt(2/pi) times the sum of sqrt(V_b) over n,"
        " V_b the sum of p(1 - p) of a frozen bin; no interval."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "squared_calibration_error": Metric(
        calibration.squared_calibration_error,
        outcomes=True,
        edges=True,
        decided=False,
        help="Debiased squared calibration error over the frozen bins: sum of n_b/n times the squared gap less what noise"
        " adds to it; below 0 as often as not where the model is calibrated; interval: 95 % normal."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "ece_width10": Metric(
        calibration.ece_width10,
        outcomes=True,
        edges=False,
        decided=False,
        help="Expected calibration error of P(positive) over ten equal-width bins [a, b), the last one closed (not of the"
        " top-label confidence); interval: 99 % noise ball."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "mce_width10": Metric(
        calibration.mce_width10,
        outcomes=True,
        edges=False,
        decided=False,
        help="Maximum calibration error of P(positive) over ten equal-width bins [a, b), the last one closed, without a minimum"
        " number of rows; no interval."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "offset": Metric(
        fit.offset,
        outcomes=True,
        edges=False,
        decided=False,
        help="Calibration offset in logit: a of logit P(positive) = a + logit(score), so above 0 when scores are too low;"
        " interval: 95 % Wald."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "slope": Metric(
        fit.slope,
        outcomes=True,
        edges=False,
        decided=False,
        help="Calibration slope: b of logit P(positive) = a + b logit(score), below 1 when scores are too extreme;"
        " interval: 95 % Wald."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "intercept": Metric(
        fit.intercept,
        outcomes=True,
        edges=False,
        decided=False,
        help="Calibration intercept: a of logit P(positive) = a + b logit(score), to be read beside slope; interval: 95 % Wald."
        " About the rows whose outcome no verdict prevents.",
        about="seen",
    ),
    "high_confidence_error_share": Metric(
        confusion.high_confidence_error_share,
        outcomes=True,
        edges=False,
        decided=False,
        help="Share of the rows with a confidence max(p, 1 - p) of at least .8 that are of the other class; interval: 95 %"
        " Wilson.",
    ),
    "brier": Metric(
        calibration.brier,
        outcomes=True,
        edges=False,
        decided=False,
        help="Brier score: mean of (p - y)**2, exact; interval: 95 % normal.",
    ),
    "brier_refinement": Metric(
        decomposition.brier_refinement,
        outcomes=True,
        edges=False,
        decided=False,
        help="What isotonic regression on the grid of 2,107 bins leaves of brier: what the ranking by the scores cannot"
        " tell; no interval.",
    ),
    "brier_calibration": Metric(
        decomposition.brier_calibration,
        outcomes=True,
        edges=False,
        decided=False,
        help="By how much isotonic regression on the grid lowers brier: what the values of the scores lose; above 0 by"
        " noise alone, no interval.",
    ),
    "log_loss": Metric(
        calibration.log_loss,
        outcomes=True,
        edges=False,
        decided=False,
        help="Logarithmic loss: mean of -ln of the probability given to what happened, p clipped to [2**-52, 1 - 2**-52],"
        " exact; interval: 95 % normal.",
    ),
    "log_loss_refinement": Metric(
        decomposition.log_loss_refinement,
        outcomes=True,
        edges=False,
        decided=False,
        help="What isotonic regression on the grid of 2,107 bins leaves of log_loss: what the ranking by the scores cannot"
        " tell; no interval.",
    ),
    "log_loss_calibration": Metric(
        decomposition.log_loss_calibration,
        outcomes=True,
        edges=False,
        decided=False,
        help="By how much isotonic regression on the grid lowers log_loss: what the values of the scores lose; above 0 by"
        " noise alone, no interval.",
    ),
    "roc_auc": Metric(
        ranking.roc_auc,
        outcomes=True,
        edges=False,
        decided=False,
        help="Area under the ROC curve: P(a positive scores higher than a negative), scores of one of the 2,107 grid bins count"
        " as ties, a tie counts 1/2; interval: 95 % DeLong on the logit scale.",
    ),
    "partial_roc_auc": Metric(
        ranking.partial_roc_auc,
        outcomes=True,
        edges=False,
        decided=False,
        help="Area under the ROC curve up to a false-positive rate of .1, standardised (McClish): .5 is chance, 1 perfect;"
        " no interval.",
    ),
    "average_precision": Metric(
        ranking.average_precision,
        outcomes=True,
        edges=False,
        decided=False,
        help="Average precision: the sum over thresholds of precision times the gain in recall, scores of one grid bin"
        " count as ties; a ranking by chance has the prevalence; interval: 95 % normal of the logit.",
    ),
    "recall": Metric(
        confusion.recall,
        outcomes=True,
        edges=False,
        decided=True,
        help="Share of the positives that were flagged, of the decided rows; interval: 95 % Wilson.",
    ),
    "precision": Metric(
        confusion.precision,
        outcomes=True,
        edges=False,
        decided=True,
        help="Share of the flagged rows that were positive; interval: 95 % Wilson.",
        about="flagged",
    ),
    "f1": Metric(
        confusion.f1,
        outcomes=True,
        edges=False,
        decided=True,
        help="F1 = 2 tp / (2 tp + fp + fn) of the decided rows; interval: 95 % Wilson of tp / (tp + fp + fn), carried over.",
    ),
    "fpr": Metric(
        confusion.fpr,
        outcomes=True,
        edges=False,
        decided=True,
        help="False-positive rate: share of the negatives that were flagged, of the decided rows; interval: 95 % Wilson.",
    ),
    "accuracy": Metric(
        confusion.accuracy,
        outcomes=True,
        edges=False,
        decided=True,
        help="Share of the decided rows that were flagged and positive or not flagged and negative; compare with"
        " majority_share; interval: 95 % Wilson.",
    ),
    "balanced_accuracy": Metric(
        confusion.balanced_accuracy,
        outcomes=True,
        edges=False,
        decided=True,
        help="Mean of recall and specificity (1 - fpr); always saying the same has .5; interval: 95 %, from those of the two.",
    ),
}


def _measured(metric: Metric, reading: Reading, decided: bool, edges: Ints | None, reference: Reading | None) -> Measured | str:
    if not len(reading.n):
        return reading.reason or "no_events"
    reason = reading.flagged_reason if metric.about == "flagged" else reading.reason
    if metric.outcomes and reason and not (metric.about == "seen" and reason == "prevented"):
        return reason
    if (metric.edges and edges is None) or (metric.reference and (reference is None or not len(reference.n))):
        return "no_baseline"
    if metric.decided and not decided:
        return "no_threshold"
    return metric.function(reading, edges, reference) if metric.reference else metric.function(reading, edges)


PROBABILITY = (
    "mean_score",
    "high_confidence_error_share",
    *(name for name, m in METRICS.items() if m.function.__module__ in {x.__name__ for x in (calibration, fit, decomposition)}),
)
"""Metrics that read a score as a probability."""


_IMPLIED = ("recall", "precision", "recall_bias", "precision_bias")
"""What the basis `estimated` makes of scores taken as probabilities; its prevalence needs only where they lie."""


def of_margins(estimates: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """Return estimates of a model whose scores are margins: what reads them as probabilities is undefined."""
    return tuple(
        Estimate(e.metric, e.key, e.window, e.basis, None, None, None, e.n, "margin_scores")
        if e.reason in ("", "no_baseline") and (e.metric in PROBABILITY or (e.basis == "estimated" and e.metric in _IMPLIED))
        else e
        for e in estimates
    )


def measure(
    reading: Reading,
    key: Key,
    window: str,
    edges: Ints | None = None,
    reference: Reading | None = None,
    names: Collection[str] | None = None,
    days: Days | None = None,
) -> tuple[Estimate, ...]:
    """Return one estimate per metric that applies to the basis of the reading (and is in `names`), in the order of METRICS.

    With the `days` of the reading, estimates also say what days like them are expected to show.
    """
    between = {} if days is None else variances(days)
    wanted = METRICS.keys() if names is None else frozenset(names)
    rows, decided, basis = whole(size(reading)), reading.decided, reading.basis
    estimates = []
    for name, metric in METRICS.items():
        if name not in wanted or (metric.outcomes and basis == "scored"):
            continue
        found = _measured(metric, reading, decided, edges, reference)
        if isinstance(found, str):
            estimates.append(Estimate(name, key, window, basis, None, None, None, rows, found))
        else:
            more = () if days is None else expected(name, found, reading, days, between)
            estimates.append(Estimate(name, key, window, basis, *found[:4], "", found[4], *more))
    return tuple(estimates)


def spread(estimates: Iterable[Estimate], days: int) -> dict[str, float]:
    """Return by metric the variance that a day adds to that of independent rows, from what so many days said."""
    found = {}
    for e in estimates:
        if e.metric in RATIOS and e.design_effect is not None:
            assert e.value is not None
            assert e.low is not None
            assert e.high is not None
            found[e.metric] = (e.design_effect - 1) * own_variance(e.metric, e.value, e.low, e.high) * days
    return found
