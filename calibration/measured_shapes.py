"""The shapes that were measured under one execution, found by the call that asks. NumPy only.

A layer that was measured at another number of samples is priced by its family's fit times the factor by which its own
measurements differ from that fit (the geometric mean, where it was measured at several). The factor belongs to the
layer: how well its algorithm suits its channels and windows, and, where it was timed inside a step, what the step does
to it. The fit then only has to say how time grows with the samples, so that its constants' errors and the shape's own
residual cancel; what is left is a spread that grows with the logarithm of the distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from calibration.draws import unit_mean_factors
from calibration.family_prices import Fitted
from calibration.features import canonical, family
from calibration.fresh_pages import without_pages
from oracle.constants import KernelFit, MeasuredShape
from oracle.estimate import Floats
from oracle.layer import Layer, Phase
from oracle.pricing import LayerCall

ANCHORED_SD = 0.06
"""Spread of ln(seconds) of a price that rests on the same layer's measurement at e times the samples, or at 1/e."""

Own = Sequence[tuple[int, float]]
"""What was measured of a call's layer in its phase: samples, and seconds with memory that the process has kept."""


class MeasuredShapes:
    """An index of measured shapes by canonical calls; nothing else is worked out of those that nobody asks for.

    Args:
        shapes: each with another layer, phase or samples.
        pages: what fresh pages cost, by execution (`calibration.fresh_pages`).
    """

    def __init__(self, shapes: Iterable[MeasuredShape], pages: Mapping[str, KernelFit]) -> None:
        self._pages = pages
        self._of: dict[tuple[Layer, Phase], dict[int, MeasuredShape]] = {}
        for shape in shapes:
            call = canonical(LayerCall(shape.layer, shape.phase, shape.samples))
            self._of.setdefault((call.layer, call.phase), {})[call.samples] = shape
        self._own: dict[tuple[Layer, Phase], Own] = {}

    def find(self, call: LayerCall) -> MeasuredShape | None:
        """The measurement of this very call."""
        return self._of.get((call.layer, call.phase), {}).get(call.samples)

    def own(self, call: LayerCall) -> Own:
        """The measurements of a call's layer in its phase, at any number of samples."""
        key = (call.layer, call.phase)
        if key not in self._own:
            shapes = self._of.get(key, {}).values()
            self._own[key] = [(shape.samples, without_pages(shape, self._pages).seconds) for shape in shapes]
        return self._own[key]

    def of_family(self, name: str, phase: Phase) -> list[MeasuredShape]:
        """The shapes of a family in a phase."""
        return [
            shape
            for (layer, own_phase), shapes in self._of.items()
            if own_phase is phase and family(layer, phase) == name
            for shape in shapes.values()
        ]

    @cached_property
    def samples(self) -> list[int]:
        """The numbers of samples that occur, ascending."""
        return sorted({samples for shapes in self._of.values() for samples in shapes})


def anchors(calls: Sequence[LayerCall], own: Sequence[Own]) -> list[LayerCall]:
    """The calls at the samples at which their layers were measured, call after call."""
    return [
        LayerCall(call.layer, call.phase, n) for call, measured in zip(calls, own, strict=True) for n, _ in measured
    ]


def own_factors(calls: Sequence[LayerCall], own: Sequence[Own], fitted: Fitted, rows: Floats) -> tuple[Floats, Floats]:
    """By how much measurements of calls' own layers differ from a fit: of middles (n,), of draws (n, DRAWS).

    Args:
        calls: n calls.
        own: of each, at least one measurement.
        fitted: what the fits say of the `anchors`.
        rows: standard normal draws of each call, shape (n, DRAWS).
    """
    counts = [len(measured) for measured in own]
    logs = np.log([own_s for measured in own for _, own_s in measured])
    first, share = np.cumsum([0, *counts[:-1]]), 1 / np.array(counts)
    middle = share * np.add.reduceat(logs - np.log(fitted.middle_s), first)
    draws = share[:, None] * np.add.reduceat(logs[:, None] - np.log(fitted.draws_s), first)
    away = [min(abs(math.log(call.samples / n)) for n, _ in known) for call, known in zip(calls, own, strict=True)]
    spread = unit_mean_factors(ANCHORED_SD * np.array(away)[:, None] * rows)
    return np.exp(middle), np.exp(draws) * spread
