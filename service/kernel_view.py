"""What a calibration knows of its kernels: families, how far they hold, and what to measure next for a question.

A question is a model at a batch. The variance of its predicted step is shared out over its calls by their covariance
with the step, which takes into account that calls that resemble one another are wrong together. What all calls have in
common (the drift of the machine) is left out: no microbenchmark narrows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calibration.design import model_calls
from calibration.features import canonical, execution_of, family
from calibration.repeats import LEAST_LOG_SD
from calibration.timers import CalibratedTimer
from db.reading import Reader
from oracle.constants import FRESH_PAGES, STEP, Calibration, Constant, KernelFit, MeasuredShape
from oracle.estimate import Floats
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.loading import load_model
from oracle.pricing import LayerCall, Method
from oracle.updates import Parameters
from service.predicting import find_calibration, validity_notes
from service.requests import parse_model_batch

STRONG = 0.9
"""A correlation of two constants that is worth saying: only their combination is known."""

PROPOSED = 10
"""How many calls are proposed at most."""


@dataclass(frozen=True, eq=False)
class FamilyView:
    """One family in one phase under one execution.

    Args:
        fit: its constants and errors.
        measured_s, predicted_s, lo_s, hi_s: of its measured shapes, priced by the fit that has seen them and not looked
            up, in 80 % intervals.
        flop, bytes: of these shapes.
        correlated: pairs of constants whose correlation is at least STRONG, with it.
    """

    fit: KernelFit
    measured_s: Floats
    predicted_s: Floats
    lo_s: Floats
    hi_s: Floats
    flop: Floats
    bytes: Floats
    correlated: tuple[tuple[str, str, float], ...]

    @property
    def coverage(self) -> float | None:
        """The share of the measured shapes inside their interval, fewer of unseen ones; None without any."""
        if not len(self.measured_s):
            return None
        return float(np.mean((self.lo_s <= self.measured_s) & (self.measured_s <= self.hi_s)))

    @property
    def half_width(self) -> float | None:
        """The median of sqrt(hi / lo) - 1; None without measured shapes."""
        if not len(self.measured_s):
            return None
        return float(np.median(np.sqrt(self.hi_s / self.lo_s)) - 1)

    @property
    def not_identified(self) -> tuple[str, ...]:
        """Constants that the measurements do not pin down."""
        return tuple(constant.quantity for constant in self.fit.constants if not constant.identified)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        fit = self.fit
        return {
            "family": fit.family,
            "phase": str(fit.phase),
            "execution": fit.execution,
            "law": fit.law,
            "shapes": fit.shapes,
            "held_out_error": fit.held_out_error,
            "coverage": self.coverage,
            "half_width": self.half_width,
            "constants": {c.quantity: {"value": c.value, "lo": c.lo, "hi": c.hi} for c in fit.constants},
            "not_identified": list(self.not_identified),
            "correlated": [list(pair) for pair in self.correlated],
        }


@dataclass(frozen=True)
class Proposal:
    """A call whose measurement would narrow a step.

    Args:
        layer: its kind and shapes; count: how often it runs in the step; seconds: all of them.
        method: how it is known today; share: of the variance of the step.
    """

    layer: str
    phase: str
    samples: int
    count: int
    seconds: float
    method: str
    share: float


@dataclass(frozen=True)
class Narrowing:
    """What would narrow the step of a question.

    Args:
        question: `MODEL:BATCH`; step_s: predicted.
        half_width: of its 80 % interval without the drift of the machine; after: with the proposals measured.
    """

    question: str
    step_s: float
    half_width: float
    after: float
    proposals: tuple[Proposal, ...]


@dataclass(frozen=True)
class ShownKernels:
    """The kernels of a calibration."""

    calibration: Calibration
    families: tuple[FamilyView, ...]
    narrowing: Narrowing | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "calibration": self.calibration.name,
            "device": self.calibration.device,
            "families": [view.to_dict() for view in self.families],
            "narrowing": None if self.narrowing is None else asdict(self.narrowing),
            "notes": list(self.notes),
        }


def show_kernels(store: Reader, name: str | None, question: str | None) -> ShownKernels:
    """The kernel families of a calibration, and what to measure for a question.

    Args:
        store: where it is.
        name: of the calibration; None takes the newest.
        question: `MODEL:BATCH`, or None; the model is trained as most of the kernels were measured.

    Raises:
        UnknownName: no such calibration or model. BadInput: the question has another form.
        NotCalibrated: there is no calibration, or it lacks a kernel of the question.
    """
    calibration = find_calibration(store, name)
    narrowing = None if question is None else narrow(calibration, question, usual_execution(calibration))
    views = tuple(_view(calibration, fit) for fit in calibration.fits if fit.family not in (STEP, FRESH_PAGES))
    return ShownKernels(calibration, views, narrowing, validity_notes(calibration))


def usual_execution(calibration: Calibration) -> Execution:
    """How most kernels of a calibration were measured."""
    kernels = Counter(s.execution for s in calibration.shapes if s.phase is not Phase.UPDATE).most_common(1)
    updates = Counter(s.execution for s in calibration.shapes if s.phase is Phase.UPDATE).most_common(1)
    found = execution_of(kernels[0][0], Phase.FORWARD) if kernels else Execution()
    return replace(found, optimizer=execution_of(updates[0][0], Phase.UPDATE).optimizer) if updates else found


def _view(calibration: Calibration, fit: KernelFit) -> FamilyView:
    shapes = [shape for shape in calibration.shapes if _is_of(fit, shape)]
    execution = execution_of(fit.execution, fit.phase)
    calls = [canonical(LayerCall(shape.layer, shape.phase, shape.samples)) for shape in shapes]
    pages = [other for other in calibration.fits if other.family == FRESH_PAGES]
    alone = replace(calibration, fits=(fit, *pages), shapes=(), common_sd=0.0)
    prices = CalibratedTimer(alone, execution).price(calls)
    lo, hi = np.quantile(prices.draws_s, [0.1, 0.9], axis=1) if calls else (np.zeros(0), np.zeros(0))
    work = [call.layer.work(call.phase, call.samples, execution) for call in calls]
    return FamilyView(
        fit=fit,
        measured_s=np.array([shape.seconds for shape in shapes]),
        predicted_s=prices.middle_s,
        lo_s=lo,
        hi_s=hi,
        flop=np.array([item.flop for item in work]),
        bytes=np.array([item.bytes for item in work]),
        correlated=tuple(_correlated(fit.constants)),
    )


def _is_of(fit: KernelFit, shape: MeasuredShape) -> bool:
    return (family(shape.layer, shape.phase), shape.phase, shape.execution) == fit.key


def _correlated(constants: Sequence[Constant]) -> list[tuple[str, str, float]]:
    """Pairs of constants that move together from draw to draw; times are compared, so rates count as their inverse."""
    if len(constants) < 2:
        return []
    signs = [-1.0 if constant.quantity.endswith("_per_s") else 1.0 for constant in constants]
    logs = np.array([sign * np.log(constant.draws) for sign, constant in zip(signs, constants, strict=True)])
    logs += 1e-12 * np.arange(logs.shape[1])  # draws that are all alike are correlated with nothing
    table = np.corrcoef(logs)
    return [
        (constants[row].quantity, constants[column].quantity, float(table[row, column]))
        for row in range(len(constants))
        for column in range(row + 1, len(constants))
        if abs(table[row, column]) >= STRONG
    ]


def narrow(calibration: Calibration, question: str, execution: Execution) -> Narrowing:
    """The calls that contribute most to the variance of a step and were not measured.

    Args:
        calibration: of a device.
        question: `MODEL:BATCH`.
        execution: how the model is trained.
    """
    model, samples = parse_model_batch(question)
    counts = model_calls(load_model(model), samples)
    calls = list(counts)
    weights = np.array([float(counts[call]) for call in calls])
    prices = CalibratedTimer(replace(calibration, common_sd=0.0), execution).price(calls)
    drawn = weights[:, None] * prices.draws_s
    total = drawn.sum(axis=0)
    away = total - total.mean()
    shares = drawn @ away / max(float(away @ away), 1e-300)
    open_calls = [row for row in np.argsort(-shares).tolist() if prices.methods[row] is not Method.MEASURED]
    chosen = [row for row in open_calls if shares[row] > 0][:PROPOSED]
    known = drawn.copy()
    known[chosen] = drawn[chosen].mean(axis=1, keepdims=True)
    noise = LEAST_LOG_SD * np.linalg.norm((weights * prices.middle_s)[chosen])
    return Narrowing(
        question=question,
        step_s=float(weights @ prices.middle_s),
        half_width=_half_width(total),
        after=float(np.hypot(_half_width(known.sum(axis=0)), 1.2816 * noise / total.mean())),
        proposals=tuple(
            Proposal(
                layer=_described(calls[row].layer),
                phase=str(calls[row].phase),
                samples=calls[row].samples,
                count=int(weights[row]),
                seconds=float(weights[row] * prices.middle_s[row]),
                method=str(prices.methods[row]),
                share=float(shares[row]),
            )
            for row in chosen
        ),
    )


def _described(layer: Layer) -> str:
    """`conv (64, 56, 56) -> (128, 28, 28), kernel (3, 3)`."""
    if isinstance(layer, Parameters):
        return layer.text
    shapes = " + ".join(str(shape) for shape in layer.input_shapes)
    kernel = getattr(layer, "kernel", None)
    return f"{layer.kind} {shapes} -> {layer.output_shape}" + (f", kernel {kernel}" if kernel else "")


def _half_width(draws: Floats) -> float:
    lo, hi = np.quantile(draws, [0.1, 0.9])
    return float((hi / lo) ** 0.5 - 1)
