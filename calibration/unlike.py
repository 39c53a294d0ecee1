"""Do new measurements behave like the device that they name? A calibration of it that is already known tells.

Two sessions of one device differ by a factor that all kernels share (clocks, drivers); kernels of another device differ
each in its own way. So the scatter of ln(new / known) within a family is what speaks, against the error that the known
fit makes on shapes it has not seen; its median is only worth a note where it is far from 1.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from calibration.calibrate import by_family
from calibration.features import canonical, execution_of
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration
from oracle.errors import NotCalibrated
from oracle.pricing import LayerCall, Method

LEAST_SHAPES = 5
"""Shapes of a family inside the known range from which their scatter is worth anything."""

FOREIGN = 3.0
"""Scatter over the known fit's own error from which rows are not of that device."""

LEAST_SCATTER = 0.1
"""Scatter in ln(seconds) below which two sessions are alike, however exact the known fit is."""

APART = 1.25
"""Median ratio, either way, from which it is said."""


def unlike_notes(found: Calibration, known: Iterable[Calibration]) -> tuple[str, ...]:
    """What does not fit together with other calibrations of the same device.

    Args:
        found: a new calibration.
        known: stored ones; those of other devices are passed over.
    """
    return tuple(note for other in known if other.device == found.device for note in _against(found, other))


def _against(found: Calibration, known: Calibration) -> Iterable[str]:
    errors = {fit.key: fit.residual_sd for fit in known.fits}
    foreign, apart = [], []
    for key, shapes in by_family(found.shapes).items():
        timer = CalibratedTimer(known, execution_of(key[2], key[1]))
        calls = [canonical(LayerCall(shape.layer, shape.phase, shape.samples)) for shape in shapes]
        try:
            prices = timer.price(calls)
        except NotCalibrated:
            continue
        inside = np.array([method is not Method.EXTRAPOLATED for method in prices.methods])
        if inside.sum() < LEAST_SHAPES:
            continue
        logs = np.log(np.array([shape.seconds for shape in shapes]) / prices.middle_s)[inside]
        middle = float(np.median(logs))
        scatter = 1.4826 * float(np.median(np.abs(logs - middle)))
        if scatter > max(FOREIGN * errors.get(key, 0.0), LEAST_SCATTER):
            foreign.append(f"{key[0]}.{key[1]}")
        elif abs(middle) > np.log(APART):
            apart.append(f"{key[0]}.{key[1]} {np.exp(middle):.2f}")
    if foreign:
        yield (
            f"{', '.join(foreign)} behave unlike '{known.name}' of the same device: are they of another device, or of "
            "other software?"
        )
    if apart:
        yield f"times over those of '{known.name}' of the same device: {', '.join(apart)}"
