"""A `Calibration` as the oracle's `LayerTimer`: look up what was measured, compute the rest. NumPy only.

A price is a *mean*, because steps add prices up and means add while medians do not. Additive constants are fitted to be
unbiased for the mean time (`calibration.kernels`), so the usual correction exp(s^2 / 2) of a fit in logarithms would
count the skew twice; a roofline with its residual is such a fit and brings its mean along (`calibration.kernel_model`).
The draws scatter around the price with factors of mean 1. For a shape that was measured
itself the median is the price: its spread of a few percent moves the mean by less than a thousandth.

Three things make a price uncertain, and each has draws of its own: the constants (drawn jointly when they were
fitted) or the error of the residual process (drawn as functions, so that shapes that resemble one another share it),
how far a shape lies from its family's line (the held-out residual; independent between shapes, the same wherever a
shape occurs), and what all kernels have in common: the drift of the machine and, where canary steps were measured, the
factor by which kernels of their phase take longer inside a step. The first two belong to the device, so
two calibrations of one device share the residuals of its shapes; the noise of measured shapes and the drift belong to
one calibration, under whatever name it is stored.

A layer that was measured at another number of samples is priced by its family's fit times the factor by which its own
measurements differ from that fit (`calibration.measured_shapes`). A family of which nothing but
single shapes is known (a fit found no constant that the measurements identify) is priced by the nearest of them, as an
extrapolation with a wide interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from calibration.draws import bank_rows, unit_mean_factors
from calibration.enqueue import HostClock
from calibration.family_prices import FamilyPrices, joined
from calibration.features import canonical, family, features, seconds, stand_ins
from calibration.fresh_pages import fresh_bytes, fresh_curve
from calibration.measured_shapes import MeasuredShapes, anchors, own_factors
from oracle.constants import FRESH_PAGES, STEP, Calibration, KernelFit, MeasuredShape
from oracle.errors import NotCalibrated
from oracle.estimate import DRAWS, Floats, Ints
from oracle.execution import Execution
from oracle.identity import Same
from oracle.layer import Layer, Phase
from oracle.pricing import Curves, LayerCall, Method, Prices

NEAREST_SD = 0.5
"""Spread of ln(seconds) of a price that is a measured shape's time in proportion to the work."""

MOST_KNOTS = 64
"""Numbers of samples of one call that are priced by a roofline: between them, evenly in the logarithm, waves come and
go by a few percent, and a sweep over every batch asks for thousands."""

NO_FACTOR = (1.0, np.ones(1))
"""What a kernel takes inside a step over what it takes alone, where no canary steps say it: middle and draws."""


class _Price(NamedTuple):
    middle_s: float
    draws_s: Floats
    method: Method


@dataclass(frozen=True)
class _Line:
    """Seconds of a call without samples, for each sample, and at the samples at which it was measured itself."""

    start_s: float
    sample_s: float
    measured: tuple[tuple[int, float], ...] = ()


class CalibratedTimer:
    """Prices layer calls on the calibrated device under one execution.

    Args:
        calibration: what is known of the device.
        execution: how the model is trained.
    """

    def __init__(self, calibration: Calibration, execution: Execution) -> None:
        self.calibration = calibration
        self.execution = execution
        keys = {phase: self._key(phase) for phase in Phase}
        fits = {(fit.family, fit.phase): fit for fit in calibration.fits if fit.execution == keys[fit.phase]}
        self._fits = {key: fit for key, fit in fits.items() if fit.family not in (STEP, FRESH_PAGES)}
        self._pages = {fit.execution: fit for fit in fits.values() if fit.family == FRESH_PAGES}
        factors = {phase: fit.constants[0] for (name, phase), fit in fits.items() if name == STEP}
        self._in_step = {phase: (factor.value, np.array(factor.draws)) for phase, factor in factors.items()}
        self._prices = FamilyPrices(execution)
        self._shapes = MeasuredShapes(calibration, keys, self._pages)
        self._once = "/".join((calibration.device, calibration.validity_key, calibration.created_at))
        self._common = unit_mean_factors(calibration.common_sd * self._rows(self._once, [""])[0])
        self._known: dict[LayerCall, _Price] = {}
        # A plan that is asked for again asks with the same calls, and comparing hundreds of layers takes longer than
        # all the rest of a prediction.
        self._remembered = lru_cache(maxsize=128)(self._priced)
        self._lines: dict[tuple[Layer, Phase], _Line | None] = {}
        self._host = HostClock(calibration, execution)

    @cached_property
    def _page_s(self) -> tuple[float, Floats]:
        """Seconds of a byte of fresh pages: middle and draws."""
        rate = self._pages[self.execution.kernel_key].constants[0]
        return 1 / rate.value, 1 / np.array(rate.draws)

    def _rows(self, owner: str, texts: Iterable[str]) -> Floats:
        """Standard normal draws of each text, which belong to an owner: a calibration or a device."""
        return bank_rows(f"{owner}/{text}" for text in texts)

    def _key(self, phase: Phase) -> str:
        return self.execution.update_key if phase is Phase.UPDATE else self.execution.kernel_key

    def price(self, calls: Sequence[LayerCall]) -> Prices:
        """Seconds of each call on one device; see the protocol `oracle.pricing.LayerTimer`.

        Raises:
            NotCalibrated: neither the shape nor its family was measured under this execution.
        """
        return self._remembered(Same(tuple(calls))) if calls else Prices.exact([])

    def _priced(self, calls: Same[LayerCall]) -> Prices:
        asked = [canonical(call) for call in calls.items]
        self._learn([call for call in dict.fromkeys(asked) if call not in self._known])
        known = [self._known[call] for call in asked]
        return Prices(
            middle_s=np.array([price.middle_s for price in known]),
            draws_s=np.array([price.draws_s for price in known]),
            methods=tuple(price.method for price in known),
        )

    def enqueue(self, calls: Sequence[LayerCall], execution: Execution) -> Floats | None:
        """The host's seconds of each call; see `oracle.enqueueing.Enqueues`."""
        return self._host.enqueue(calls, execution)

    def over_samples(self, calls: Sequence[LayerCall], samples: Ints) -> Curves:
        """Middles of calls on many numbers of samples; see `oracle.pricing.ManySamples`."""
        keys = [(call.layer, call.phase) for call in calls]
        self._learn_lines([LayerCall(*key, 1) for key in dict.fromkeys(keys) if key not in self._lines])
        known = [self._lines[key] for key in keys]
        places = {n: range(*np.searchsorted(samples, (n, n + 1)).tolist()) for n in self._shapes.samples}
        apart: list[tuple[int, int, float]] = []
        for row, (call, line) in enumerate(zip(calls, known, strict=True)):
            if line is None:
                points = dict(enumerate(self._curve_s(call, samples)))
            else:
                points = {column: line_s for n, line_s in line.measured for column in places[n]}
                points |= self._with_pages(call, line, samples, points)
            apart += [(row, column, middle_s) for column, middle_s in points.items()]
        rows, columns, apart_s = np.array(apart).reshape(-1, 3).T
        lines = np.array([(line.start_s, line.sample_s) if line else (0.0, 0.0) for line in known])
        return Curves(lines, rows.astype(np.int64), columns.astype(np.int64), apart_s)

    def _with_pages(
        self, call: LayerCall, line: _Line, samples: Ints, points: Mapping[int, float]
    ) -> Mapping[int, float]:
        """Where a line's results are large: its seconds there, or those of points apart from it, with fresh pages."""
        if not self._pages or call.phase is Phase.UPDATE:
            return {}
        times, _ = self._in_step.get(call.phase, NO_FACTOR)
        paid_s = times * self._page_s[0] * fresh_curve(call, self.execution, samples)
        on_line_s = line.start_s + line.sample_s * samples
        return {
            column: points.get(column, float(on_line_s[column])) + float(paid_s[column])
            for column in np.flatnonzero(paid_s).tolist()
        }

    def _curve_s(self, call: LayerCall, samples: Ints) -> list[float]:
        """Middles of a call whose time is no line; of many samples MOST_KNOTS are priced, and what was measured."""
        knots = samples
        if len(samples) > MOST_KNOTS:
            spread = np.searchsorted(samples, np.geomspace(samples[0], samples[-1], MOST_KNOTS))
            measured = [n for n, _ in self._shapes.own(call)]
            knots = np.union1d(samples[np.minimum(spread, len(samples) - 1)], np.intersect1d(samples, measured))
        middle_s = self.price([replace(call, samples=n) for n in knots.tolist()]).middle_s
        found: list[float] = np.exp(np.interp(np.log(samples), np.log(knots), np.log(middle_s))).tolist()
        return found

    def _learn_lines(self, calls: Sequence[LayerCall]) -> None:
        """Calls of one sample as lines: a kernel's work is a straight line, so two of its features give all."""
        first, second = (features([replace(call, samples=n) for call in calls], self.execution) for n in (1, 2))
        updates = [call for call in calls if call.phase is Phase.UPDATE]
        update_s = dict(zip(updates, self.price(updates).middle_s.tolist(), strict=True))
        for call, one, two in zip(calls, first, second, strict=True):
            name = family(call.layer, call.phase)
            fit = self._fit_for(name, call.phase)
            line = None
            if call in update_s:
                line = _Line(update_s[call], 0.0)
            elif fit is None:
                self._alike(name, call.phase)
            elif not fit.arrays:
                one_s, two_s = seconds(np.array([one, two]), self._prices.seconds_per_unit(fit)[0]).tolist()
                own, (times, _) = self._shapes.own(call), self._in_step.get(call.phase, NO_FACTOR)
                if own:
                    near = self._prices.of(fit, name, anchors([call], [own]), np.zeros((len(own), DRAWS)))
                    factor = float(own_factors([call], [own], near, np.zeros((1, DRAWS)))[0][0])
                    one_s, two_s = factor * one_s, factor * two_s
                points = tuple((n, times * own_s) for n, own_s in own)
                line = _Line(times * (2 * one_s - two_s), times * (two_s - one_s), points)
            self._lines[call.layer, call.phase] = line

    def _learn(self, calls: Iterable[LayerCall]) -> None:
        groups: dict[tuple[str, Phase], list[LayerCall]] = defaultdict(list)
        measured: dict[LayerCall, MeasuredShape] = {}
        for call in calls:
            shape = self._shapes.find(call)
            if shape is not None:
                measured[call] = shape
            else:
                groups[family(call.layer, call.phase), call.phase].append(call)
        if measured:
            self._look_up(measured)
        fitted: list[tuple[KernelFit, str, list[LayerCall]]] = []
        for (name, phase), members in groups.items():
            fit = self._fit_for(name, phase)
            if fit is None:
                self._scale_nearest(self._alike(name, phase), members)
            else:
                fitted.append((fit, name, members))
        if fitted:
            self._compute(fitted)

    def _look_up(self, shapes: Mapping[LayerCall, MeasuredShape]) -> None:
        middle = np.array([shape.seconds for shape in shapes.values()])
        spread = np.array([shape.log_sd for shape in shapes.values()])
        rows = self._rows(self._once, map(_text, shapes))
        draws = middle[:, None] * unit_mean_factors(spread[:, None] * rows)
        self._keep(list(shapes), middle, draws, [Method.MEASURED] * len(shapes))

    def _compute(self, groups: Sequence[tuple[KernelFit, str, list[LayerCall]]]) -> None:
        """Price calls by fits, and by their layers' own measurements at other numbers of samples.

        A fit is asked once for its calls and for those measurements: the answer takes its time, however short it is.

        Args:
            groups: a fit, the family of the calls that it prices, and those calls.
        """
        calls = [call for *_, members in groups for call in members]
        rows = self._rows(self.calibration.device, map(_text, calls))
        own = [() if call.phase is Phase.UPDATE else self._shapes.own(call) for call in calls]
        asked, measured, first = [], [], 0
        for fit, name, members in groups:
            these = slice(first, first + len(members))
            every = np.concatenate([rows[these], np.repeat(rows[these], list(map(len, own[these])), axis=0)])
            fitted = self._prices.of(fit, name, [*members, *anchors(members, own[these])], every)
            asked.append(fitted.take(slice(len(members))))
            measured.append(fitted.take(slice(len(members), None)))
            first = these.stop
        found = joined(asked)
        middle, draws = found.middle_s, found.draws_s
        owned = [index for index, each in enumerate(own) if each]
        if owned:
            its_calls, its_own = [calls[index] for index in owned], [own[index] for index in owned]
            factors = own_factors(its_calls, its_own, joined(measured), rows[owned])
            middle[owned], draws[owned] = middle[owned] * factors[0], draws[owned] * factors[1]
        if self._pages:
            fresh = np.array([fresh_bytes(call, self.execution) for call in calls])
            middle, draws = middle + self._page_s[0] * fresh, draws + self._page_s[1] * fresh[:, None]
        methods = [Method.FITTED if inside else Method.EXTRAPOLATED for inside in found.inside.tolist()]
        self._keep(calls, middle, draws, methods)

    def _scale_nearest(self, shapes: Sequence[MeasuredShape], calls: Sequence[LayerCall]) -> None:
        """Price calls of a family without constants by its most similar measured shape, in proportion to the work."""
        work = np.log([_work(shape.layer, shape.phase, shape.samples, self.execution) for shape in shapes])
        middle = np.empty(len(calls))
        for index, call in enumerate(calls):
            ratios = np.log(_work(call.layer, call.phase, call.samples, self.execution)) - work
            nearest = int(np.abs(ratios).sum(axis=1).argmin())
            middle[index] = shapes[nearest].seconds * np.exp(ratios[nearest].mean())
        rows = self._rows(self.calibration.device, map(_text, calls))
        draws = middle[:, None] * unit_mean_factors(NEAREST_SD * rows)
        self._keep(calls, middle, draws, [Method.EXTRAPOLATED] * len(calls))

    def _keep(self, calls: Sequence[LayerCall], middle: Floats, draws: Floats, methods: Sequence[Method]) -> None:
        draws = draws * self._common
        if self._in_step:
            factors = [self._in_step.get(call.phase, NO_FACTOR) for call in calls]
            middle = middle * np.array([factor for factor, _ in factors])
            draws *= np.array([np.broadcast_to(drawn, DRAWS) for _, drawn in factors])
        for call, *price in zip(calls, middle.tolist(), draws, methods, strict=True):
            self._known[call] = _Price(*price)

    def _fit_for(self, name: str, phase: Phase) -> KernelFit | None:
        """The fit of a family, or of the first that may stand in for it."""
        known = (self._fits.get((candidate, phase)) for candidate in (name, *stand_ins(name)))
        return next((fit for fit in known if fit is not None), None)

    def _alike(self, name: str, phase: Phase) -> Sequence[MeasuredShape]:
        """The measured shapes of a family that has no fit, at least one."""
        shapes = self._shapes.of_family(name, phase)
        if not shapes:
            raise NotCalibrated(self._missing(name, phase))
        return shapes

    def _missing(self, name: str, phase: Phase) -> str:
        wanted, updates = self._key(phase), phase is Phase.UPDATE
        known = {item.execution for item in self.calibration.shapes if (item.phase is Phase.UPDATE) == updates}
        what = f"{name} kernels" if updates else f"{name} {phase.replace('_', '-')} kernels"
        measured_here = f"calibration '{self.calibration.name}' of {self.calibration.device} has no {what} for {wanted}"
        if wanted not in known:
            remedy = ": whole steps need them, and `calibrate` measures them; tables of kernels have none" * updates
            others = f"was measured for {', '.join(sorted(known))}" if known else f"has none at all{remedy}"
            return f"{measured_here}; it {others}"
        return f"{measured_here}; calibrate without --quick, or with a longer --budget"


def _work(layer: Layer, phase: Phase, samples: int, execution: Execution) -> tuple[float, float]:
    work = layer.work(phase, samples, execution)
    return work.flop, work.bytes


def _text(call: LayerCall) -> str:
    """One short text for equal calls, the same in every process."""
    return f"{call.layer.kind}/{call.phase}/{call.samples}/{_values(call.layer)}"


@lru_cache(maxsize=4096)
def _values(layer: Layer) -> str:
    return str(layer.values)
