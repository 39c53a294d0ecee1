"""Measurements of one device to a `Calibration`, with a report of what was fitted, how well, and what was not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from calibration.drift import steadied
from calibration.enqueue_fit import with_enqueueing
from calibration.family_fit import FittedFamily, fit_best
from calibration.features import family
from calibration.fresh_pages import page_fit, without_pages
from calibration.kernels import Dropped
from calibration.processors import is_cpu, processor_of
from calibration.quantities import Processor
from calibration.repeats import LEAST_CASES, Visits, disturbed_notes, drift_sd, measured_shape, visits
from calibration.sources import lenders, prior_for
from calibration.step_factor import STEP_SD, is_canary, step_fits
from oracle.constants import Calibration, KernelFit, MeasuredShape
from oracle.errors import BadInput
from oracle.layer import Phase
from profiler.flags import flag_notes
from profiler.measurement import Measurement

USELESS_ERROR = 1.0
"""Held-out error from which the constants of a family say nothing of other shapes."""

FEW_SHAPES = 5
"""Shapes of a family below which nothing can be left out to test its fit in folds."""

NAMED = 3
"""Families that a note names; `show --kernels` has them all."""

CONTRADICTION = 2.0
"""Visits of one case that differ by more than this factor are said to contradict one another."""


@dataclass(frozen=True)
class FamilyReport:
    """One family in one phase under one execution.

    Args:
        shapes: distinct shapes; samples: raw samples behind them.
        held_out_error: mean |predicted / measured - 1| on layers left out of the fit; None where nothing was fitted.
        additive_error: the same of constants that add up, which the fit was chosen against.
        dropped: constants that the measurements do not identify.
    """

    family: str
    phase: Phase
    execution: str
    shapes: int
    samples: int
    held_out_error: float | None
    additive_error: float | None
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True)
class Report:
    """What a fit did: families in the order of their names, and the notes that the calibration carries as well."""

    measurements: int
    families: tuple[FamilyReport, ...]
    notes: tuple[str, ...]


def fit(
    measurements: Sequence[Measurement], name: str, *, created_at: str, others: Sequence[Calibration] = ()
) -> tuple[Calibration, Report]:
    """Fit everything that was measured of one device.

    Args:
        measurements: visits of kernel cases and of canary steps, in any order; those of one case are repeats of it.
        name: what the calibration will be called.
        created_at: UTC, ISO 8601.
        others: calibrations of other devices, a prior for families of which few shapes were measured.

    Returns:
        The calibration (without an identity in any store) and the report.

    Raises:
        BadInput: no measurements, several devices, environments that do not match, or a sample that is no time.
    """
    _one_device(measurements)
    steady, moved = steadied(measurements)
    found = visits([measurement for measurement in steady if not is_canary(measurement)])
    shapes = tuple(measured_shape(call, execution, taken) for (call, execution), taken in found.items())
    pages = _page_fits(shapes) if is_cpu(measurements[0].environment.identity) else {}
    environment = measurements[0].environment
    processor = processor_of(measurements[0].device, environment.identity)
    groups = sorted(by_family([without_pages(shape, pages) for shape in shapes]).items())
    others = lenders(measurements[0].device, environment.identity, others)
    fits = {key: _fit(members, processor, others) for key, members in groups}
    reports = tuple(_family_report(key, members, fits[key]) for key, members in groups)
    said = (f"{'.'.join(key[:2])}: {note}" for key, fitted in fits.items() for note in fitted.notes)
    noted = (*moved, *_contradicting(found), *flag_notes(measurements), *disturbed_notes(found))
    kernels = Calibration(
        name=name,
        device=measurements[0].device,
        created_at=created_at,
        environment=dict(environment.identity),
        validity_key=environment.validity_key,
        fits=(
            *with_enqueueing([result.fit for result in fits.values() if result.fit is not None], found),
            *pages.values(),
        ),
        shapes=shapes,
        common_sd=drift_sd(found),
    )
    steps = step_fits(kernels, steady)
    notes = (*_unfitted(reports), *_little(groups), *said, *noted, *_thin(found))
    common_sd = kernels.common_sd if steps else math.hypot(kernels.common_sd, STEP_SD)
    calibration = replace(kernels, fits=(*kernels.fits, *steps), common_sd=common_sd, notes=notes)
    return calibration, Report(len(measurements), reports, notes)


def _page_fits(shapes: Sequence[MeasuredShape]) -> dict[str, KernelFit]:
    """What fresh pages cost under each execution that shows it."""
    by_execution: dict[str, list[MeasuredShape]] = defaultdict(list)
    for shape in shapes:
        if shape.phase is not Phase.UPDATE:
            by_execution[shape.execution].append(shape)
    fits = {execution: page_fit(members) for execution, members in by_execution.items()}
    return {execution: fit for execution, fit in fits.items() if fit is not None}


def _fit(shapes: Sequence[MeasuredShape], processor: Processor, others: Sequence[Calibration]) -> FittedFamily:
    prior, devices = prior_for(shapes, others)
    fitted = fit_best(shapes, processor, prior)
    if not fitted.prior_share:
        return fitted
    return replace(fitted, notes=(*fitted.notes, _lent(fitted, devices)))


def _lent(fitted: FittedFamily, devices: Iterable[str]) -> str:
    """Who lent a family a prior, and what it changed."""
    said = f"{fitted.prior_share:.0%} of its residual come from {', '.join(dict.fromkeys(devices))}"
    if fitted.fit is None or fitted.own_error is None:
        return said
    return f"{said} (error on layers left out {fitted.fit.held_out_error:.1%}, {fitted.own_error:.1%} without them)"


def _one_device(measurements: Sequence[Measurement]) -> None:
    if not measurements:
        raise BadInput("there are no measurements to fit")
    devices = sorted({measurement.device for measurement in measurements})
    if len(devices) > 1:
        raise BadInput(f"a calibration is of one device, not of {', '.join(devices)}")
    first = measurements[0].environment
    for other in (measurement.environment for measurement in measurements):
        if other.validity_key != first.validity_key:
            raise BadInput(f"measurements of two environments cannot be fitted together: {_difference(first, other)}")


def _difference(first: object, other: object) -> str:
    one, two = dict(getattr(first, "identity", {})), dict(getattr(other, "identity", {}))
    keys = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    return "; ".join(f"{key} is {one.get(key, 'missing')} and {two.get(key, 'missing')}" for key in keys)


Key = tuple[str, Phase, str]


def by_family(shapes: Iterable[MeasuredShape]) -> dict[Key, list[MeasuredShape]]:
    """The shapes of each (family, phase, execution)."""
    groups: dict[Key, list[MeasuredShape]] = defaultdict(list)
    for shape in shapes:
        groups[(family(shape.layer, shape.phase), shape.phase, shape.execution)].append(shape)
    return groups


def _family_report(key: Key, members: Sequence[MeasuredShape], result: FittedFamily) -> FamilyReport:
    error = result.fit.held_out_error if result.fit else None
    samples = sum(shape.count for shape in members)
    return FamilyReport(*key, len(members), samples, error, result.additive_error, result.dropped)


def _unfitted(reports: Iterable[FamilyReport]) -> Iterable[str]:
    names = [f"{report.family}.{report.phase}" for report in reports if report.held_out_error is None]
    if names:
        yield f"no constant of {_some(names)} is identified: other shapes are scaled from the nearest measured one"
    missed = [
        f"{report.family}.{report.phase}"
        for report in reports
        if report.held_out_error is not None and report.held_out_error > USELESS_ERROR
    ]
    if missed:
        yield (
            f"the constants of {_some(missed)} miss layers left out of their fit by more than {USELESS_ERROR:.0%}: "
            "measure again on a quiet machine before you rely on other shapes than the measured ones"
        )


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many there are beyond them.

    >>> _some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    named = ", ".join(names[:NAMED])
    return named if len(names) <= NAMED else f"{named} and {len(names) - NAMED} more"


def _little(groups: Sequence[tuple[Key, Sequence[MeasuredShape]]]) -> Iterable[str]:
    """Families of which too little was measured to say anything of other shapes."""
    few = [f"{key[0]}.{key[1]} ({len(members)})" for key, members in groups if len(members) < FEW_SHAPES]
    if few:
        yield f"fewer than {FEW_SHAPES} shapes of {_some(few)}: prices of other shapes rest on very little"
    flat = [
        f"{key[0]}.{key[1]} ({len(members)})"
        for key, members in groups
        if len(members) >= FEW_SHAPES and len({shape.seconds for shape in members}) == 1
    ]
    if flat:
        yield f"all shapes of {_some(flat)} took the very same time: nothing but a launch is known"


def _contradicting(found: Visits) -> Iterable[str]:
    """Cases whose visits cannot both be right, whatever the machine did between them."""
    medians = [[measurement.median_s for measurement in taken] for taken in found.values()]
    apart = [max(times) / min(times) for times in medians]
    count = sum(factor > CONTRADICTION for factor in apart)
    if count:
        yield (
            f"{count} of {len(found)} cases were measured with times up to a factor of {max(apart):.3g} apart; "
            "their medians are used"
        )


def _thin(found: Visits) -> Iterable[str]:
    twice = sum(len(taken) > 1 for taken in found.values())
    if twice < LEAST_CASES:
        yield f"{twice} of {len(found)} cases were visited twice: the machine's drift is assumed, not measured"
