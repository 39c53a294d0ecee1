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
                                (`call_s` may be absent)
    branchN.process.*           Gaussian process: inputs, targets, numbers (centre, variance, noise), columns (middle,
                                scale, lowest, highest, length of every input); branch 1 without inputs has those
                                of branch 0
    branchN.trees.*, .prior.*   boosted trees: conditions (feature, leaves that are possible below and above, bit by
                                bit), cut (of every condition), leaves (their values), numbers (base)
    branchN.prior.process.*     the process of a prior where it has one, and `branchN.prior.process_share`

Trees of older stores have nodes (feature, left, right), cut (threshold, or value of a leaf) and numbers (depth, base).

A model that says something else of its canaries than when it was fitted is refused. They are evaluated together with
the first kernels that it is asked for: so few kernels cost what the calls of NumPy cost, and not twice as much with the
canaries among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from calibration.array_checks import check_processor
from calibration.kernel_model import Canaries, KernelModel, KernelPrediction, read_arrays
from calibration.quantities import Processor, Quantities, join
from calibration.roofline import Roofline
from oracle.constants import Constant, KernelFit
from oracle.errors import BadInput
from oracle.estimate import DRAWS, Floats
from oracle.stored_array import StoredArray

CANARIES = 5
"""Kernels whose predictions are stored."""

_OWN_ROOFLINE = "branch0.roofline"
_PROCESSOR = "processor"


class StoredModel:
    """A model that was stored; it says nothing before it has reproduced its canaries.

    Args:
        name: of the kernel family, for errors.
        model: as it was read.
        canaries: of the model.
        processor: that the quantities of its kernels are computed for.
    """

    def __init__(self, name: str, model: KernelModel, canaries: Canaries, processor: Processor) -> None:
        self.processor = processor
        self.canaries = canaries
        self._name, self._model, self._checked = name, model, False

    @property
    def model(self) -> KernelModel:
        """The model.

        Raises:
            BadInput: the canaries come out differently.
        """
        if not self._checked:
            nothing = self.canaries.kernels.take(slice(0))
            self.predict_with_draws(nothing, np.zeros((0, DRAWS)))
        return self._model

    def predict_with_draws(self, kernels: Quantities, own: Floats) -> tuple[KernelPrediction, Floats]:
        """See `KernelModel.predict_with_draws`.

        Raises:
            BadInput: the canaries come out differently, a draw is not finite, or the kernels have other columns than
                those of the fit.
        """
        if self._checked:
            return self._finite(*self._model.predict_with_draws(kernels, own))
        count = len(kernels)
        asked = join([kernels, self.canaries.kernels])
        blank = np.zeros((len(asked) - count, DRAWS))
        try:
            with np.errstate(all="ignore"):  # what is no number is refused below
                prediction, draws = self._model.predict_with_draws(asked, np.concatenate([own, blank]))
            self.canaries.check(prediction.take(slice(count, None)))
        except (ValueError, IndexError, BadInput) as error:
            raise _unusable(self._name, error) from None
        found = self._finite(prediction.take(slice(count)), draws[:count])
        self._checked = True
        return found

    def _finite(self, prediction: KernelPrediction, draws: Floats) -> tuple[KernelPrediction, Floats]:
        """The same; the canaries, which check medians, do not see an error that overflows."""
        if not np.logical_and.reduce(np.isfinite(draws), axis=None):
            raise _unusable(self._name, BadInput("its intervals are no finite times"))
        return prediction, draws


def _unusable(name: str, error: Exception) -> BadInput:
    what = f"array {error} is missing" if isinstance(error, KeyError) else str(error)
    return BadInput(f"the model of {name} cannot be used: {what}")


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
        winograd_log_factor=math.log(values.get("winograd_factor", 1.0)),
        wave_exponent=values.get("wave_exponent", 0.0),
        call_s=values.get("call_s", 0.0),
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
        BadInput: an array is missing or damaged.
    """
    name = ".".join(fit.key)
    try:
        arrays = {array.name: array.read() for array in fit.arrays}
        processor = Processor(*check_processor(arrays.pop(_PROCESSOR)))
        arrays[_OWN_ROOFLINE] = np.array(roofline_of(fit.constants).values)
        model, canaries = read_arrays(arrays)
        if len(canaries.log_s) < min(CANARIES, fit.shapes):
            raise BadInput(f"{len(canaries.log_s)} canaries of {fit.shapes} shapes; there are at least {CANARIES}")
        return StoredModel(name, model, canaries, processor)
    except (KeyError, ValueError, TypeError, IndexError, BadInput) as error:
        raise _unusable(name, error) from None


def readable(fit: KernelFit) -> KernelFit:
    """The fit itself, once what it will be read as has reproduced the canaries: calibrations cannot be mended later.

    Raises:
        BadInput: its model could not be used.
    """
    _ = read_model(fit).model
    return fit
