"""A calibration like a real store's: of every family of a ResNet-50 step 40 to 200 shapes, most with a residual model.

The shapes are the calls of ResNet-50 at one batch, as `calibrate --for` measures them, and, for more shapes, of two
other networks at several batches and of all three under three strategies, at most 200 of a family. The device is the
simulated one behind a cache: a call whose traffic fits into it takes down to two fifths of its time, and odd channels
cost a quarter more, neither of which constants that add up can say. So the gate of `fit` gives all families a roofline
with a residual but for updates, which walk over memory, and for average poolings, dropout and losses, of which there
are too few shapes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.recovery import measure
from calibration.calibrate import fit
from calibration.design import model_calls, plan_calls
from calibration.features import family
from oracle.constants import Calibration
from oracle.execution import Execution
from oracle.loading import load_model
from oracle.machine import Cluster
from oracle.plan import Job
from oracle.pricing import LayerCall
from oracle.strategies import strategy
from profiler.backends.simulated import Disturbance, SimulatedDevice
from profiler.case import Case

BATCHES = {"resnet50": (8,), "vgg16": (1, 2, 8, 32), "alexnet": (1, 2, 8, 32)}
SHARDED = ("filter", "channel", "spatial")
DEVICES = (2, 4, 8, 16, 32)
MOST_SHAPES = 200
CACHE_BYTES = 2.0**22


def residual_calibration(cluster: Cluster) -> Calibration:
    """What `fit` finds of those shapes on that device.

    Args:
        cluster: where the strategies run, which decides nothing but how many devices there are.
    """
    groups: dict[tuple[str, str], list[LayerCall]] = defaultdict(list)
    for call in dict.fromkeys(_calls(cluster)):
        groups[family(call.layer, call.phase), call.phase].append(call)
    device, measurements = SimulatedDevice(0, Disturbance(0.05)), []
    for members in groups.values():
        for row in np.unique(np.linspace(0, len(members) - 1, MOST_SHAPES).astype(int)).tolist():
            taken = measure(Case(members[row], Execution()), device)
            factor = _factor(members[row])
            measurements.append(replace(taken, device_s=tuple(factor * sample_s for sample_s in taken.device_s)))
    return fit(measurements, "residuals", created_at="2026-01-01T00:00:00Z")[0]


def _calls(cluster: Cluster) -> Iterator[LayerCall]:
    for model, batches in BATCHES.items():
        graph = load_model(model)
        for samples in batches:
            yield from model_calls(graph, samples)
        for name in SHARDED:
            for devices in DEVICES:
                yield from plan_calls(strategy(name).plan(Job(graph, 8, devices, cluster)))


def _factor(call: LayerCall) -> float:
    """The time of a call behind the cache over that of the simulated device."""
    beyond = math.log2(call.layer.work(call.phase, call.samples).bytes / CACHE_BYTES)
    odd = 1.25 if call.layer.output_shape[0] % 2 else 1.0
    return odd * (1 - 0.6 / (1 + math.exp(beyond)))
