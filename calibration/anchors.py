"""Session anchors: a few kernels measured again say whether constants still hold, and by how much all of them moved.

Clocks, drivers and temperature move all kernels of a session together: published label sets lie 25 to 35 % away from
their own calibration session. The median ratio of a handful of canary kernels is immune to one wild kernel among
five. The scatter of the ratios tells a session (all moved alike) from rows of another device (each moved
differently).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibration.kernel_model import KernelModel
from calibration.quantities import Quantities
from oracle.errors import BadInput
from oracle.estimate import Floats

DRIFT = 0.03
"""A median ratio further from 1 than this calls for a rescale or a refit."""

_FOREIGN = 3.0
"""Kernels scattered this many times more than the model's own error are not of this device, driver or precision."""


@dataclass(frozen=True)
class SessionFactor:
    """What the anchors say: measured / predicted in the median, and the scatter of ln of it as a standard deviation."""

    factor: float
    log_scatter: float
    expected_scatter: float

    @property
    def drifted(self) -> bool:
        """Whether times should be rescaled by the factor."""
        return abs(self.factor - 1) > DRIFT

    @property
    def foreign(self) -> bool:
        """Whether the kernels behave unlike those that were calibrated: another device's rows, or other software."""
        return self.log_scatter > _FOREIGN * self.expected_scatter


def session_factor(model: KernelModel, kernels: Quantities, seconds: Floats) -> SessionFactor:
    """Compare kernels measured now with what a calibration says of them.

    Raises:
        BadInput: fewer than three kernels, or a time that is not positive.
    """
    if len(kernels) < 3 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise BadInput(f"a session needs three anchors with positive times, not {len(kernels)}")
    logs = np.log(seconds / model.predict(kernels).median_s)
    middle = float(np.median(logs))
    scatter = 1.4826 * float(np.median(np.abs(logs - middle)))
    expected = float(np.median(model.z_scores) * 1.4826 * np.median(model.predict(kernels).log_sd))
    return SessionFactor(float(np.exp(middle)), scatter, max(expected, 0.01))
