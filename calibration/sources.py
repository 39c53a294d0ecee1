"""Which stored calibrations of other devices may inform a kernel family with few shapes.

Up to a hundred shapes a prior is worth two to eight times the points for near siblings and for convolutions; beyond
that the device's own kernels say more. A source needs fifty shapes of the same family in the same execution, and does
not show the calls that calibrate the new device: the residual that is learnt from them would be fitted twice, and
intervals then cover 75 % instead of 80 %. Two devices that were measured by the very same design hence lend one another
nothing.

Only devices of one kind lend: libraries choose algorithms by waves and tiles on a GPU and by caches on a CPU, so the
residual of one says nothing of the other, and a simulated device says nothing of a real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calibration.device_prior import learn_prior
from calibration.family_fit import shape_quantities
from calibration.features import family
from calibration.processors import kind_of, processor_of
from calibration.shared_residual import SharedResidual
from oracle.constants import Calibration, MeasuredShape

MOST_OWN = 100
LEAST_OF_SOURCE = 50


def lenders(device: str, identity: Mapping[str, str], others: Sequence[Calibration]) -> list[Calibration]:
    """The calibrations of other devices of the same kind.

    Args:
        device: whose kernels are fitted; identity: of its environment.
        identity: what tells a GPU from a CPU.
        others: what the store holds.
    """
    kind = kind_of(identity)
    return [other for other in others if other.device != device and kind_of(other.environment) == kind]


def prior_for(
    shapes: Sequence[MeasuredShape], others: Sequence[Calibration]
) -> tuple[SharedResidual | None, tuple[str, ...]]:
    """What other devices say of a family, and their names; nothing where there are many shapes or no sources.

    Args:
        shapes: the shapes of the family that calibrate the new device.
        others: calibrations of other devices.
    """
    if len(shapes) > MOST_OWN:
        return None, ()
    first = shapes[0]
    name = family(first.layer, first.phase)
    known = {(shape.layer, shape.samples) for shape in shapes}
    sources, devices = [], []
    for other in others:
        alike = [
            shape
            for shape in other.shapes
            if shape.phase is first.phase
            and shape.execution == first.execution
            and family(shape.layer, shape.phase) == name
            and (shape.layer, shape.samples) not in known
        ]
        if len(alike) >= LEAST_OF_SOURCE:
            kernels = shape_quantities(alike, processor_of(other.device, other.environment))
            sources.append((kernels, np.array([shape.seconds for shape in alike])))
            devices.append(other.device)
    return (learn_prior(sources), tuple(devices)) if sources else (None, ())
