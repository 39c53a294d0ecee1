"""What enqueueing costs the host, from a calibration's constants. NumPy only.

The host's time for a call is Python, dispatch and launches. It grows with the kernels of a call and not with their
size, so a family has one number in each phase, `enqueue_s`, and every layer of it is priced by that, measured ones too:
what repeats of one shape say beside it is noise of the host. An update is a step of an optimizer:
`enqueue_step_s` once, whatever it updates, and `enqueue_s` for each tensor. A family that was not measured takes its
stand-in's number, else the mean of the families of its phase.

Uncertain is what the families' numbers are, and, for all of them alike, how a step's Python differs from a
microbenchmark's (`HOST_SD`): modules, hooks and autograd's records make it slower; backward is driven by C++ and runs
both its halves in one call, which makes it faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from calibration.draws import standard_rows, unit_mean_factors
from calibration.features import family, stand_ins
from oracle.constants import Calibration
from oracle.estimate import DRAWS, Floats
from oracle.execution import Execution
from oracle.identity import Same
from oracle.layer import Phase
from oracle.pricing import LayerCall

HOST_SD = 0.25
"""Assumed spread of ln(host seconds of a step / sum of its calls'): no host was held against whole steps yet."""

_NOTHING: Floats = np.zeros(1 + DRAWS)


class HostClock:
    """Prices the host's side of layer calls; knows nothing where a calibration has no such constants.

    Args:
        calibration: what is known of the device and its host.
        execution: how the model is trained.
    """

    def __init__(self, calibration: Calibration, execution: Execution) -> None:
        self._execution = execution
        text = "/".join((calibration.device, calibration.validity_key, calibration.created_at, "host"))
        common = np.append(1.0, unit_mean_factors(HOST_SD * standard_rows(text, 1))[0])
        known = {
            (constant.family, constant.phase, constant.execution, constant.quantity): common
            * np.append(constant.value, constant.draws)
            for constant in calibration.constants
            if constant.quantity in ("enqueue_s", "enqueue_step_s")
        }
        self._calls = {
            (name, phase): seconds for (name, phase, key, _), seconds in known.items() if key == execution.kernel_key
        }
        self._updates = {
            (key, which): seconds for (_, phase, key, which), seconds in known.items() if phase == "update"
        }
        self._remembered = lru_cache(maxsize=128)(self._priced)

    def enqueue(self, calls: Sequence[LayerCall], execution: Execution) -> Floats | None:
        """The host's seconds; see `oracle.enqueueing.Enqueues`."""
        if execution.graph or not self._calls:
            return None
        found: Floats = self._remembered(Same(tuple(calls)), execution.update_key)
        return found

    def _priced(self, calls: Same[LayerCall], update_key: str) -> Floats:
        tensor_s, step_s = self._update(update_key)
        rows = [
            step_s + len(call.layer.param_shapes) * tensor_s if call.phase is Phase.UPDATE else self._call(call)
            for call in calls.items
        ]
        return np.array(rows)

    def _call(self, call: LayerCall) -> Floats:
        name = family(call.layer, call.phase)
        for candidate in (name, *stand_ins(name)):
            if (candidate, call.phase) in self._calls:
                found: Floats = self._calls[candidate, call.phase]
                return found
        alike = [seconds for (_, phase), seconds in self._calls.items() if phase is call.phase]
        mean: Floats = np.mean(alike or list(self._calls.values()), axis=0)
        return mean

    def _update(self, key: str) -> tuple[Floats, Floats]:
        """Seconds for each tensor and for a step.

        A fused optimizer that was not measured asks for one kernel, so its step costs what one tensor does.
        """
        own = self._execution.update_key
        tensor_s, step_s = (self._updates.get((own, which), _NOTHING) for which in ("enqueue_s", "enqueue_step_s"))
        if key == own:
            return tensor_s, step_s
        if any((key, which) in self._updates for which in ("enqueue_s", "enqueue_step_s")):
            other = (self._updates.get((key, which), _NOTHING) for which in ("enqueue_s", "enqueue_step_s"))
            tensor_s, step_s = other
            return tensor_s, step_s
        return _NOTHING, step_s + tensor_s
