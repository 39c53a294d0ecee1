"""Choose what prices a kernel family: constants that add up, or a roofline with a residual over it.

Both are fitted and both are scored on layers that they have not seen, everything refitted in every fold. Additive
constants (`calibration.kernels`) need few shapes and have the best-tested intervals; the regression
(`calibration.kernel_regression`) needs at least 16, and wins where waves, tiles, alignments or caches rule. It has to
be better by a twentieth, because both scores are noisy and constants alone are easier to understand, and it is not
tried where the constants already miss left-out layers by no more than repeats of one shape differ: there is nothing
left to learn but noise.

The intervals of the roofline's constants come from the curvature of its fit. A constant that the measurements do not
identify keeps its row, with an interval that says so, since the others depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.call_quantities import call_quantities
from calibration.draws import white_rows
from calibration.features import canonical, execution_of, family, features
from calibration.kernel_regression import RESIDUAL_SHAPES, fit_kernel_model
from calibration.kernels import Dropped, fit_family
from calibration.quantities import Processor, Quantities
from calibration.roofline_fit import Z80, RooflineFit
from calibration.shared_residual import SharedResidual
from calibration.stored_model import arrays_of, readable, roofline_of
from oracle.constants import LARGEST_LOG_SD, POSSIBLE, UNITS, Constant, KernelFit, MeasuredShape
from oracle.estimate import Floats
from oracle.pricing import LayerCall

NEEDED_GAIN = 0.05
"""By how much the regression's held-out error must be smaller."""

NOISE = 1.5
"""Held-out spread over the spread of repeats up to which nothing is left to learn."""

MOST_SHAPES = 1500
"""Shapes that a family is fitted on; of an imported table with more, the others are looked up all the same."""

VAGUE = "its interval is too wide to say anything"
"""Of a roofline's constant that is kept because the others were fitted beside it."""

_QUANTITIES = {
    "launch_s": "launch_s",
    "s_per_flop": "flop_per_s",
    "s_per_byte": "bytes_per_s",
    "winograd_log_factor": "winograd_factor",
    "wave_exponent": "wave_exponent",
    "call_s": "call_s",
}
"""What the parameters of a roofline are called in the store."""


@dataclass(frozen=True)
class FittedFamily:
    """What came of a family.

    Args:
        fit: None where nothing is identified.
        dropped: constants that are not identified, and why.
        additive_error: held-out error of additive constants; None where they were not fitted.
        notes: what has to be said of its measurements.
        prior_share: how much of the price comes from the branch over a prior.
        own_error: held-out error without a prior; None where no residual was fitted.
    """

    fit: KernelFit | None
    dropped: tuple[Dropped, ...]
    additive_error: float | None
    notes: tuple[str, ...] = ()
    prior_share: float = 0.0
    own_error: float | None = None


def fit_best(
    shapes: Sequence[MeasuredShape], processor: Processor, prior: SharedResidual | None = None
) -> FittedFamily:
    """Fit one family in one phase under one execution.

    Args:
        shapes: the measured shapes of that family, each once, at least one.
        processor: of the device.
        prior: the residual over rooflines that other devices show, or None.
    """
    shapes = _some(shapes)
    additive = fit_family(shapes)
    error = None if additive.fit is None else additive.fit.held_out_error
    plain = FittedFamily(additive.fit, additive.dropped, error)
    if (len(shapes) < RESIDUAL_SHAPES and prior is None) or _is_noise(additive.fit, shapes):
        return plain
    kernels = shape_quantities(shapes, processor)
    times = np.array([shape.seconds for shape in shapes])
    if len(np.unique(kernels.dims, axis=0)) < 2 or np.ptp(times) == 0:
        return plain
    model, report = fit_kernel_model(kernels, times, [shape.layer for shape in shapes], prior)
    if error is not None and report.error > (1 - NEEDED_GAIN) * error:
        return plain
    constants = tuple(_constants(report.constants, shapes[0], times))
    # What is stored is what predicts: the branch takes its constants back from their rows.
    own = replace(model.branches[0], roofline=roofline_of(constants))
    model = replace(model, branches=(own, *model.branches[1:]))
    work = features(_calls(shapes), execution_of(shapes[0].execution, shapes[0].phase))
    found = KernelFit(
        family=family(shapes[0].layer, shapes[0].phase),
        phase=shapes[0].phase,
        execution=shapes[0].execution,
        constants=constants,
        shapes=len(shapes),
        samples=sum(shape.count for shape in shapes),
        held_out_error=report.error,
        residual_sd=min(report.log_spread, LARGEST_LOG_SD),
        flop_lo=float(work[:, 1].min()),
        flop_hi=float(work[:, 1].max()),
        bytes_lo=float(work[:, 2].min()),
        bytes_hi=float(work[:, 2].max()),
        arrays=arrays_of(model, processor, kernels),
    )
    vague = tuple(Dropped(constant.quantity, VAGUE) for constant in constants if not constant.identified)
    return FittedFamily(readable(found), vague, error, report.notes, report.prior_share, report.own_error)


def _some(shapes: Sequence[MeasuredShape]) -> Sequence[MeasuredShape]:
    """At most MOST_SHAPES of them, the fastest and the slowest among them."""
    if len(shapes) <= MOST_SHAPES:
        return shapes
    ends = sorted(range(len(shapes)), key=lambda row: shapes[row].seconds)[:: len(shapes) - 1]
    rows = np.random.default_rng(0).permutation(len(shapes))[: MOST_SHAPES - 2]
    return [shapes[row] for row in sorted({*ends, *rows.tolist()})]


def _is_noise(fit: KernelFit | None, shapes: Sequence[MeasuredShape]) -> bool:
    return fit is not None and fit.residual_sd <= NOISE * float(np.median([shape.log_sd for shape in shapes]))


def shape_quantities(shapes: Sequence[MeasuredShape], processor: Processor) -> Quantities:
    """The quantities of measured shapes of one family."""
    return call_quantities(_calls(shapes), execution_of(shapes[0].execution, shapes[0].phase), processor)


def _calls(shapes: Sequence[MeasuredShape]) -> list[LayerCall]:
    return [canonical(LayerCall(shape.layer, shape.phase, shape.samples)) for shape in shapes]


def _constants(found: RooflineFit, shape: MeasuredShape, times: Floats) -> Iterator[Constant]:
    """Name the free constants; their draws are joint, and decided by what was measured."""
    names = found.fitted
    key = (family(shape.layer, shape.phase), shape.phase, shape.execution)
    values, vectors = np.linalg.eigh(found.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = root @ white_rows(f"{'/'.join(key)}/roofline/{times.tolist()}", len(names))
    sd = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    for row, name in enumerate(names):
        quantity = _QUANTITIES[name]
        value = getattr(found.roofline, name)
        line = value + sd[row] * np.array([-Z80, 0.0, Z80])
        draws = value + drawn[row]
        if name != "wave_exponent":
            middle = value if name == "winograd_log_factor" else math.log(value)
            sign = -1.0 if quantity.endswith("_per_s") else 1.0
            line = np.exp(np.sort(sign * (middle + sd[row] * np.array([-Z80, 0.0, Z80]))))
            draws = np.exp(sign * (middle + drawn[row]))
        low, middle_value, high = np.clip(line, *POSSIBLE[quantity]).tolist()
        yield Constant(
            *key,
            quantity=quantity,
            value=middle_value,
            unit=UNITS[quantity],
            lo=low,
            hi=high,
            draws=tuple(np.clip(draws, *POSSIBLE[quantity]).tolist()),
        )
