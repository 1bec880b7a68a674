"""Evidence over days: the shared vectors, false alarms, delays, and what a look leaves alone."""

import numpy as np
import pytest

from monitor.core.detectors import binned_evidence


@pytest.mark.parametrize(("tolerance", "expected"), [(0.0, "log_lr"), (0.1, "log_lr_band_binmean")])
def test_vector_binned(vector, tolerance, expected):
    """The log likelihood ratios of the shared vector, without and with the band."""
    given, wanted = vector("evalue_binned")
    n, p, y = (np.array(given[name]) for name in ("n", "sum_p", "sum_y"))
    z = np.log(p / (n - p))
    found = binned_evidence(n, z, y, 0.0, np.array(given["grid"]), tolerance)
    assert found == pytest.approx(wanted[expected], abs=1e-6)
