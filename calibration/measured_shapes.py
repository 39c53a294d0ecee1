"""The shapes that were measured under one execution, found by the call that asks. NumPy only.

A layer that was measured at another number of samples is priced by its family's fit times the factor by which its own
measurements differ from that fit (the geometric mean, where it was measured at several). The factor belongs to the
layer: how well its algorithm suits its channels and windows, and, where it was timed inside a step, what the step does
to it. The fit then only has to say how time grows with the samples, so that its constants' errors and the shape's own
residual cancel; what is left is a spread that grows with the logarithm of the distance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from calibration.draws import unit_mean_factors
from calibration.family_prices import Fitted
from calibration.features import canonical, family
from calibration.fresh_pages import without_pages
from oracle.constants import Calibration, KernelFit, MeasuredShape
from oracle.estimate import Floats
from oracle.layer import Layer, Phase
from oracle.pricing import LayerCall

ANCHORED_SD = 0.06
"""Spread of ln(seconds) of a price that rests on the same layer's measurement at e times the samples, or at 1/e."""

Own = Sequence[tuple[int, float]]
"""What was measured of a call's layer in its phase: samples, and seconds with memory that the process has kept."""


class MeasuredShapes:
    """The measured shapes of a calibration; a store has thousands, so nothing is worked out of those nobody asks for.

    Args:
        calibration: what is known of the device.
        keys: the execution that the kernels of each phase are of.
        pages: what fresh pages cost, by execution (`calibration.fresh_pages`).
    """

    def __init__(self, calibration: Calibration, keys: Mapping[Phase, str], pages: Mapping[str, KernelFit]) -> None:
        self._calibration, self._keys, self._pages = calibration, keys, pages
        self._found: dict[tuple[Layer, Phase], Mapping[int, MeasuredShape]] = {}
        self._own: dict[tuple[Layer, Phase], Own] = {}

    @cached_property
    def _others(self) -> Mapping[Layer, Sequence[MeasuredShape]]:
        """The shapes that another layer than their own asks for: updates, and layers whose weights are another's."""
        found: dict[Layer, list[MeasuredShape]] = defaultdict(list)
        for shape in self._calibration.shapes:
            if shape.phase is Phase.UPDATE or getattr(shape.layer, "tied", False):
                found[canonical(LayerCall(shape.layer, shape.phase, shape.samples)).layer].append(shape)
        return found

    def _of(self, layer: Layer, phase: Phase) -> Mapping[int, MeasuredShape]:
        """The shapes of a canonical call's layer in its phase, by their samples; of an update, by 1."""
        same = () if phase is Phase.UPDATE else self._calibration.by_layer.get(layer, ())
        shapes, key = (*same, *self._others.get(layer, ())), self._keys[phase]
        found = [shape for shape in shapes if shape.phase is phase and shape.execution == key]
        return {1 if phase is Phase.UPDATE else shape.samples: shape for shape in found}

    def find(self, call: LayerCall) -> MeasuredShape | None:
        """The measurement of this very call."""
        key = (call.layer, call.phase)
        if key not in self._found:
            self._found[key] = self._of(*key)
        return self._found[key].get(call.samples)

    def own(self, call: LayerCall) -> Own:
        """The measurements of a call's layer in its phase, at any number of samples."""
        key = (call.layer, call.phase)
        own = self._own.get(key)
        if own is None:
            self.find(call)
            shapes = [without_pages(shape, self._pages) for shape in self._found[key].values()]
            own = self._own[key] = [(shape.samples, shape.seconds) for shape in shapes]
        return own

    def of_family(self, name: str, phase: Phase) -> list[MeasuredShape]:
        """The shapes of a family in a phase."""
        of_phase = (shape for shape in self._all if shape.phase is phase)
        return [shape for shape in of_phase if family(shape.layer, phase) == name]

    @cached_property
    def samples(self) -> list[int]:
        """The numbers of samples that occur, ascending."""
        return sorted({shape.samples for shape in self._all})

    @cached_property
    def _all(self) -> list[MeasuredShape]:
        return [shape for shape in self._calibration.shapes if shape.execution == self._keys[shape.phase]]


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
