"""A device with known constants and known noise: what the fits are tested on, and what runs where nothing else is.

The device knows nothing of how the fits group kernels or weight them. Each kind of kernel has constants of its own, a
variant of a kind (an operation, a number of axes, groups, transposed) is slower or faster by a fixed
factor, and a call takes launches * launch_s + flop / flop_per_s + bytes / bytes_per_s: the physics that the fits
assume, written down from the constants' side, so that recovering them tests everything between a sample and a stored
constant.

Noise is multiplicative and log-normal, drawn anew for every sample, with the true time as its median. A drift (the
same for all cases, a sine in the number of the sample), outliers (a share of samples that take a multiple), a second
mode and a clock that falls can be added, and a memory that some cases exceed.

By default the host does the work, as on a CPU. With a `TrueHost` the device is an accelerator: its environment counts
multiprocessors, and the host's seconds are those of enqueueing, whatever the shape, with a noise of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from oracle.errors import OutOfMemory
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.units import format_bytes
from oracle.windows import Conv
from profiler.backends.base import Backend, Kernel, Sample
from profiler.case import Case
from profiler.measurement import Environment


@dataclass(frozen=True)
class TrueConstants:
    """What a kernel really costs; an infinite rate costs nothing. An optimizer's step pays `call_s` once."""

    launch_s: float
    flop_per_s: float
    bytes_per_s: float
    call_s: float = 0.0


_FORWARD = {
    "conv": TrueConstants(8e-6, 9e10, 1.2e10),
    "linear": TrueConstants(5e-6, 7e10, 9e9),
    "attention": TrueConstants(2e-5, 4e10, 8e9),
    "norm": TrueConstants(1.2e-5, math.inf, 6e9),
    "pool": TrueConstants(6e-6, math.inf, 3e9),
    "elementwise": TrueConstants(3e-6, math.inf, 1.4e10),
    "concat": TrueConstants(4e-6, math.inf, 1.2e10),
    "embedding": TrueConstants(7e-6, math.inf, 5e9),
    "loss": TrueConstants(9e-6, math.inf, 2e9),
    "matmul": TrueConstants(6e-6, 6e10, 9e9),
    "other": TrueConstants(5e-6, math.inf, 7e9),
}
_UPDATE = TrueConstants(4e-6, math.inf, 1.1e10, call_s=1.5e-5)
_SLOWER = {Phase.FORWARD: 1.0, Phase.BACKWARD_DATA: 1.15, Phase.BACKWARD_WEIGHT: 1.4}


def _variant(layer: Layer) -> float:
    """How much slower this variant of its kind is: a fixed factor of what the implementation would branch on."""
    if isinstance(layer, Conv):
        factor = {1: 1.1, 2: 1.0, 3: 1.6}[len(layer.extents)]
        if layer.transposed:
            return factor * 1.3
        if layer.groups > 1:
            return factor * (1.5 if layer.groups < layer.in_channels else 2.0)
        return factor
    operation = str(getattr(layer, "op", ""))
    axes = len(getattr(layer, "kernel", ()))
    return 1.0 + 0.05 * (sum(map(ord, operation)) % 10) + 0.1 * axes


def true_constants(layer: Layer, phase: Phase) -> TrueConstants:
    """The constants by which the device runs this layer in this phase."""
    if phase is Phase.UPDATE:
        return _UPDATE
    base, slower = _FORWARD[layer.kind], _SLOWER[phase] * _variant(layer)
    return TrueConstants(base.launch_s * slower, base.flop_per_s / slower, base.bytes_per_s / slower)


def true_seconds(layer: Layer, phase: Phase, samples: int, execution: Execution) -> float:
    """How long one call takes without noise."""
    constants, work = true_constants(layer, phase), layer.work(phase, samples, execution)
    launches = len(layer.param_shapes) if phase is Phase.UPDATE else 1
    fixed_s = constants.call_s + launches * constants.launch_s
    return fixed_s + work.flop / constants.flop_per_s + work.bytes / constants.bytes_per_s


@dataclass(frozen=True)
class Disturbance:
    """What stands between the true time and a sample.

    Args:
        noise_sd: of ln(sample / true), independent for every sample.
        drift: amplitude of a sine common to all cases, as a share; period_samples: its period.
        outlier_share: of samples that take outlier_factor times as long.
        mode_share: of samples that are of a second mode, which takes mode_factor times as long.
        throttled_from: the number of the sample from which all take throttled_factor times as long; None for never.
    """

    noise_sd: float = 0.05
    drift: float = 0.0
    period_samples: int = 1000
    outlier_share: float = 0.0
    outlier_factor: float = 5.0
    mode_share: float = 0.0
    mode_factor: float = 1.3
    throttled_from: int | None = None
    throttled_factor: float = 1.25


@dataclass(frozen=True)
class TrueHost:
    """What it really costs the host to enqueue.

    Args:
        call_s: a forward call; backward takes the factors of `host_seconds`.
        tensor_s, step_s: an optimizer's step, for each tensor and once.
        noise_sd: of ln(sample / true).
    """

    call_s: float = 3e-5
    tensor_s: float = 1e-5
    step_s: float = 8e-5
    noise_sd: float = 0.05

    def host_seconds(self, layer: Layer, phase: Phase) -> float:
        """How long the host needs for one call without noise."""
        if phase is Phase.UPDATE:
            return self.step_s + self.tensor_s * len(layer.param_shapes)
        return self.call_s * {Phase.FORWARD: 1.0, Phase.BACKWARD_DATA: 0.8, Phase.BACKWARD_WEIGHT: 0.9}[phase]


@dataclass
class SimulatedDevice:
    """A device whose every sample follows from its seed and the samples taken before it.

    Args:
        seed: of the noise.
        disturbance: what stands between the true time and a sample.
        memory_bytes: what the operands and the result of a case have to fit into.
        host: of an accelerator; None: the host does the work.
    """

    seed: int = 0
    disturbance: Disturbance = Disturbance()
    memory_bytes: float = math.inf
    host: TrueHost | None = None
    name: str = field(default="simulated", init=False)
    device: str = field(default="simulated device", init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._taken = 0
        self._host_random = np.random.default_rng((self.seed, 1))

    def environment(self) -> Environment:
        """The seed is state: two seeds are two runs on the same kind of device."""
        identity = {"device": self.device, "law": "additive"}
        if self.host is not None:
            identity |= {"multiprocessors": "80", "l2_bytes": str(6 * 2**20)}
        return Environment(identity=identity, state={"seed": str(self.seed), "disturbance": str(self.disturbance)})

    @contextmanager
    def open(self, case: Case) -> Iterator[Kernel]:
        """A kernel that takes its true time, disturbed.

        Raises:
            OutOfMemory: the case exceeds the memory.
        """
        call = case.call
        needed_bytes = call.layer.work(call.phase, call.samples, case.execution).bytes
        if needed_bytes > self.memory_bytes:
            needed, there = format_bytes(needed_bytes), format_bytes(self.memory_bytes)
            raise OutOfMemory(f"a {call.layer.kind} layer's {call.phase} takes {needed}; {self.device} has {there}")
        host_s = None if self.host is None else self.host.host_seconds(call.layer, call.phase)
        yield _SimulatedKernel(self, true_seconds(call.layer, call.phase, call.samples, case.execution), host_s)

    def disturb(self, seconds: float) -> float:
        """The next sample of something that truly takes `seconds`."""
        how = self.disturbance
        self._taken += 1
        factor = 1 + how.drift * math.sin(2 * math.pi * self._taken / how.period_samples)
        if how.outlier_share and self._random.random() < how.outlier_share:
            factor *= how.outlier_factor
        if how.mode_share and self._random.random() < how.mode_share:
            factor *= how.mode_factor
        if how.throttled_from is not None and self._taken >= how.throttled_from:
            factor *= how.throttled_factor
        return seconds * factor * math.exp(how.noise_sd * self._random.standard_normal())

    def host_sample_s(self, taken_s: float, host_s: float | None) -> float:
        """What the host's clock says of a sample that took the device `taken_s`."""
        if self.host is None or host_s is None:
            return taken_s
        return host_s * math.exp(self.host.noise_sd * self._host_random.standard_normal())


@dataclass(frozen=True)
class _SimulatedKernel:
    device: SimulatedDevice
    seconds: float
    host_s: float | None

    def sample(self, inner: int) -> Sample:
        """A sample's noise does not shrink with the calls in it: real noise is rarely independent from call to call."""
        taken = self.device.disturb(self.seconds)
        return Sample(device_s=taken, host_s=self.device.host_sample_s(taken, self.host_s))


def BACKEND(index: int) -> Backend:  # noqa: N802 - the name by which every backend is found
    """Open the simulated device with the index as its seed."""
    return SimulatedDevice(seed=index)
