"""A regression of a kernel family as a calibration stores it: named constants, and arrays with documented names.

The constants are the roofline of the device's own fit; a constant that is absent costs nothing. The arrays:

    processor                   parallel units and cache in bytes for which the quantities were computed
    names                       the columns that the residual sees (`calibration.quantities`)
    shares                      weight of each branch in ln seconds: the own fit, and one over a prior
    z_scores                    |ln(measured / predicted)| / sd of left-out kernels, sorted
    local_spread                ln seconds, and ln of what the sd is multiplied by there
    coverage.axes               lowest and highest log2 of the calibrated axes
    coverage.numbers            lowest and highest ln roofline seconds, and the largest usual sd
    coverage.classes            pairs of (class, value) that were seen
    canary.*                    the quantities of a few kernels, and `canary.log_s`: what is predicted of them
    branchN.numbers             spread of ln seconds, largest believed residual, share of the process in it
    branchN.roofline            the constants of a branch over a prior, in the order of `calibration.roofline.CONSTANTS`
    branchN.process.*           Gaussian process: inputs, targets, numbers (centre, variance, noise), columns (middle,
                                scale, lowest, highest, length of every input); branch 1 without inputs has those
                                of branch 0
    branchN.trees.*, .prior.*   boosted trees: nodes (feature, left, right), cut (threshold, or value of a leaf),
                                numbers (depth, base)
    branchN.prior.process.*     the process of a prior where it has one, and `branchN.prior.process_share`

Reading evaluates the canaries; a model that says something else of them than when it was fitted is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from calibration.kernel_model import KernelModel
from calibration.quantities import Processor, Quantities
from calibration.roofline import Roofline
from oracle.constants import Constant, KernelFit
from oracle.errors import BadInput
from oracle.stored_array import StoredArray

CANARIES = 5
"""Kernels whose predictions are stored."""

_OWN_ROOFLINE = "branch0.roofline"
_PROCESSOR = "processor"


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model, and the processor that the quantities of its kernels are computed for."""

    model: KernelModel
    processor: Processor


def roofline_of(constants: Iterable[Constant]) -> Roofline:
    """The roofline in a fit's constants.

    Raises:
        BadInput: they are none.
    """
    values = {constant.quantity: constant.value for constant in constants}
    return Roofline(
        launch_s=values.get("launch_s", 0.0),
        s_per_flop=1 / values["flop_per_s"] if "flop_per_s" in values else 0.0,
        s_per_byte=1 / values["bytes_per_s"] if "bytes_per_s" in values else 0.0,
        winograd_log_factor=float(np.log(values.get("winograd_factor", 1.0))),
        wave_exponent=values.get("wave_exponent", 0.0),
    )


def arrays_of(model: KernelModel, processor: Processor, kernels: Quantities) -> tuple[StoredArray, ...]:
    """The arrays of a model; the canaries are spread over the kernels that it was fitted on."""
    rows = np.unique(np.linspace(0, len(kernels) - 1, CANARIES).astype(np.intp))
    arrays = {_PROCESSOR: np.array([processor.units, processor.cache_bytes], dtype=np.float64)}
    arrays |= model.to_arrays(kernels.take(rows))
    return tuple(StoredArray.of(name, array) for name, array in arrays.items() if name != _OWN_ROOFLINE)


def read_model(fit: KernelFit) -> StoredModel:
    """The model of a fit that has arrays.

    Raises:
        BadInput: an array is missing or damaged, or the canaries come out differently.
    """
    try:
        arrays = {array.name: array.read() for array in fit.arrays}
        units, cache_bytes = arrays.pop(_PROCESSOR)
        arrays[_OWN_ROOFLINE] = np.array(roofline_of(fit.constants).values)
        return StoredModel(KernelModel.from_arrays(arrays), Processor(int(units), float(cache_bytes)))
    except (KeyError, ValueError, TypeError, IndexError, BadInput) as error:
        what = f"array {error} is missing" if isinstance(error, KeyError) else str(error)
        raise BadInput(f"the model of {'.'.join(fit.key)} cannot be used: {what}") from None
