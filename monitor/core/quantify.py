"""How common positives are before their labels come, from the scores of both classes in validation."""

from dataclasses import dataclass

import numpy as np

from monitor.core.events import Floats, Ints
from monitor.core.intervals import Measured, chi_square_tail, normal

MIN_N, MIN_OUTCOMES = 1_000, 200
"""So many live rows, and validation outcomes of either class, are needed."""
FIT_LEVEL = 0.01
"""Below this p-value live scores are no mixture of the two classes, so something else than prevalence changed."""
_FLOOR = 0.5
_TENTHS = np.arange(1, 10) / 10


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Validation rows per bin, shape (bins,) each: of negatives and of positives; `edges` are the first grid bins.

    `reason` is a code of `reasons.UNDEFINED` when they cannot say how common positives are, else empty.
    """

    edges: Ints
    neg: Floats
    pos: Floats
    reason: str = ""

    @property
    def prevalence(self) -> float:
        """Return the share of positives of the validation."""
        return float(self.pos.sum() / (self.pos.sum() + self.neg.sum()))


@dataclass(frozen=True, slots=True)
class Quantified:
    """The prevalence that explains live scores best, its variance, and how well it explains them (p-value)."""

    value: float
    variance: float
    fit: float
    n: int

    @property
    def fits(self) -> bool:
        """Return whether a change of prevalence alone explains the scores."""
        return self.fit >= FIT_LEVEL

    @property
    def measured(self) -> Measured:
        """Return the value, and its interval when the scores are explained."""
        if not self.fits:
            return Measured(self.value, None, None, self.n, "label_shift_rejected")
        low, high = normal(self.value, self.variance)
        return Measured(self.value, max(low, 0.0), min(high, 1.0), self.n)


def classes(grid: Ints, neg: Floats, pos: Floats) -> Classes:
    """Return the classes over at most 19 bins: `neg` and `pos` are rows by grid bin, in the ascending order of `grid`.

    Edges are the deciles of all scores united with those of the positives, so that rare positives have bins of their own.
    """
    few = min(float(neg.sum()), float(pos.sum())) < MIN_OUTCOMES
    edges = np.unique(np.concatenate(([0], *(_deciles(grid, rows) for rows in (neg + pos, pos) if rows.any())))).astype(np.int64)
    # Scores in two bins are explained by some mixture whatever they are.
    reason = "few_outcomes" if few else "few_scores" if len(edges) < 3 else ""
    return Classes(edges, _over(edges, grid, neg), _over(edges, grid, pos), reason)


def _deciles(grid: Ints, rows: Floats) -> Ints:
    share = rows.cumsum() / rows.sum()
    return grid[np.searchsorted(share, _TENTHS)]


def _over(edges: Ints, grid: Ints, rows: Floats) -> Floats:
    at = np.searchsorted(edges, grid, side="right") - 1
    return np.bincount(at, rows, len(edges)).astype(np.float64)


def histogram_ml(grid: Ints, rows: Floats, known: Classes) -> Quantified | str:
    """Return the prevalence q under which live `rows` by grid bin are likeliest, or a code of `reasons.UNDEFINED`.

    Live scores are a mixture q f1 + (1 - q) f0 of the classes' histograms when only prevalence changed (label shift): q is
    where the derivative sum_b x_b (f1_b - f0_b) / m_b of the log-likelihood is 0, which is where the EM algorithm of Saerens,
    Latinne and Decaestecker (Neural Computation 14, 2002) ends; half a row is added to every bin of a class. It needs no
    calibrated scores. The variance is 1 / information plus what the two histograms bring, by the delta method.

    >>> quarter = classes(np.arange(4), np.array([400.0, 300, 200, 100]), np.array([40.0, 80, 120, 160]))
    >>> found = histogram_ml(np.arange(4), np.array([1000.0, 1000, 1000, 1000]), quarter)
    >>> round(found.value, 2), found.fits
    (0.5, True)
    """
    n = float(rows.sum())
    if known.reason or n < MIN_N:
        return known.reason or "low_n"
    x, bins = _over(known.edges, grid, rows), len(known.edges)
    n0, n1 = float(known.neg.sum()), float(known.pos.sum())
    f0, f1 = (known.neg + _FLOOR) / (n0 + _FLOOR * bins), (known.pos + _FLOOR) / (n1 + _FLOOR * bins)
    if float((f1 - f0) @ (f1 - f0)) < 1e-12:
        return "unseparated"
    q = _likeliest(x, f0, f1 - f0)
    m = f0 + q * (f1 - f0)
    information = float(x @ ((f1 - f0) / m) ** 2)
    if information < 1e-9:
        return "label_shift_rejected"  # all rows are where the classes are equally common, as no mixture of them is
    # dq/df1 = x f0 / (m**2 information), and likewise for f0; a histogram of k rows has the covariance (diag f - f f') / k.
    by1, by0 = x * f0 / (m * m * information), x * f1 / (m * m * information)
    validation = (f1 @ by1**2 - (f1 @ by1) ** 2) / n1 + (f0 @ by0**2 - (f0 @ by0) ** 2) / n0
    spread = m / n + q * q * f1 / n1 + (1 - q) ** 2 * f0 / n0
    fit = chi_square_tail(float((x / n - m) ** 2 @ (1 / spread)), bins - 2)
    return Quantified(q, 1 / information + float(validation), fit, int(n))


def _likeliest(x: Floats, f0: Floats, slope: Floats) -> float:
    """Return the q in [0, 1] that maximises sum_b x_b ln(f0_b + q slope_b): Newton's steps, halved where they leave."""
    low, high, q = 0.0, 1.0, 0.5
    if float(x @ (slope / f0)) <= 0:
        return 0.0
    if float(x @ (slope / (f0 + slope))) >= 0:
        return 1.0
    for _ in range(60):
        r = slope / (f0 + q * slope)
        up = float(x @ r)
        low, high = (q, high) if up > 0 else (low, q)
        step = q + up / float(x @ (r * r))
        step = step if low < step < high else (low + high) / 2
        if abs(step - q) < 1e-12:
            break
        q = step
    return q


def corrected(score: Floats, before: float, now: float) -> Floats:
    """Return P(positive) after prevalence moved from `before` to `now`: logit p + logit now - logit before (Saerens 2002).

    >>> float(corrected(np.array([0.3]), 0.05, 0.1)[0].round(6))
    0.475
    """
    odds = now / (1 - now) * (1 - before) / before
    up: Floats = score * odds
    return up / (up + (1 - score))
