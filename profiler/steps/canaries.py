"""Canary steps: three small networks that are trained for a moment beside the microbenchmarks.

A kernel takes longer inside a training step than alone: the layers around it have emptied the caches, the allocator
faults pages in again that it gave back, gradients are copied, Python and autograd take their part. How much is mostly a
matter of the machine and its software. So networks that nobody asks for are trained for a few steps, their kernels are
measured like all others, and `calibration.step_factor` makes a constant of the ratio. Between them they hold what most
networks are made of: plain convolutions with pooling and large fully connected layers, residual blocks with batch
normalisation, and attention blocks with layer normalisation.

A canary's measurements have the micro `canary`, one for each part of the step (`PARTS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from types import MappingProxyType

from oracle.errors import BadInput, OutOfMemory, UnknownName
from oracle.execution import Execution
from oracle.layers import Attention, Elementwise, Linear, Loss, Norm
from oracle.model import GraphBuilder, ModelGraph
from oracle.windows import Conv, Pool
from oracle.zoo.parts import add_linear, add_relu
from profiler.backends.base import Backend
from profiler.measurement import Measurement
from profiler.stopping import StoppingRule

CANARY = "canary"
"""The micro of a canary's measurements."""

PARTS = ("forward", "backward", "update")
"""The parts of a step, in the order of the clock's laps."""

LEAST_S = 0.1
"""A canary's step takes at least this long, where so many samples are tried: as long as steps of real networks."""

RULE = StoppingRule(target=0.02, min_samples=4, max_samples=8, max_s=1.5)
"""When one visit of a canary ends, after its warm-up."""

_TRAINING = ("cpu", "cuda")
"""Kinds of devices that run training steps; a simulated one does not, and may do without torch."""

_SAMPLES = (4, 16, 64, 256)
_TRIES = 3
_CLASSES = 10
_TOKENS, _WIDTH, _HEADS = 196, 384, 6


@dataclass(frozen=True)
class Canary:
    """A canary network by its name, and the samples of its step on a device."""

    model: str
    samples: int

    @property
    def graph(self) -> ModelGraph:
        """The network.

        Raises:
            UnknownName: there is no canary of that name.
        """
        graphs = _graphs()
        if self.model not in graphs:
            raise UnknownName("canary", self.model, graphs)
        return graphs[self.model]


@cache
def _graphs() -> Mapping[str, ModelGraph]:
    graphs = (_plain(), _residual(), _tokens())
    return MappingProxyType({graph.name: graph for graph in graphs})


def _plain() -> ModelGraph:
    build = GraphBuilder("canary-plain", (3, 112, 112))
    for number, filters in enumerate((32, 64, 128), start=1):
        build.add(f"conv{number}", Conv.of(build.shape(), filters, 3, padding=1))
        add_relu(build, f"relu{number}")
        build.add(f"pool{number}", Pool.of("max", build.shape(), 2, stride=2))
    add_linear(build, "fc4", 1024)
    add_relu(build, "relu4")
    return _classified(build)


def _residual() -> ModelGraph:
    build = GraphBuilder("canary-residual", (3, 112, 112))
    entry = _normalised(build, "stem", Conv.of(build.shape(), 64, 3, stride=2, padding=1, bias=False))
    add_relu(build, "stem.relu")
    for block in ("block1", "block2"):
        entry = build.nodes[-1].name
        same = Conv.of(build.shape(), 64, 3, padding=1, bias=False)
        _normalised(build, f"{block}.1", same)
        add_relu(build, f"{block}.relu1")
        branch = _normalised(build, f"{block}.2", same)
        build.add(f"{block}.add", Elementwise("add", build.shape(), inplace=True), branch, entry)
        add_relu(build, f"{block}.relu2")
    build.add("pool", Pool.of("avg", build.shape(), build.shape()[1:]))
    return _classified(build)


def _tokens() -> ModelGraph:
    build = GraphBuilder("canary-tokens", (_TOKENS, _WIDTH))
    square = Linear(_WIDTH, _WIDTH, rows=_TOKENS)
    norm, add = Norm("layer", (_TOKENS, _WIDTH)), Elementwise("add", (_TOKENS, _WIDTH))
    entry = build.add("embed", square)
    for block in ("block1", "block2"):
        seen = build.add(f"{block}.norm1", norm, entry)
        heads = [build.add(f"{block}.{name}", square, seen) for name in ("query", "key", "value")]
        build.add(f"{block}.attention", Attention(_HEADS, _TOKENS, _TOKENS, _WIDTH // _HEADS), *heads)
        joined = build.add(f"{block}.join", square)
        entry = build.add(f"{block}.add1", add, joined, entry)
        build.add(f"{block}.norm2", norm, entry)
        build.add(f"{block}.wide", Linear(_WIDTH, 4 * _WIDTH, rows=_TOKENS))
        build.add(f"{block}.gelu", Elementwise("gelu", (_TOKENS, 4 * _WIDTH)))
        narrow = build.add(f"{block}.narrow", Linear(4 * _WIDTH, _WIDTH, rows=_TOKENS))
        entry = build.add(f"{block}.add2", add, narrow, entry)
    return _classified(build)


def _normalised(build: GraphBuilder, name: str, conv: Conv) -> str:
    build.add(f"{name}.conv", conv)
    return build.add(f"{name}.norm", Norm("batch", conv.output_shape))


def _classified(build: GraphBuilder) -> ModelGraph:
    add_linear(build, "classes", _CLASSES)
    build.add("loss", Loss("cross_entropy", build.shape()))
    return build.graph(source="stepgauge: a canary step")


def choose_canaries(backend: Backend, execution: Execution) -> tuple[Canary, ...]:
    """The canaries of a device, with as many samples as make a step of ordinary length on it.

    Args:
        backend: the device; each network is tried with more and more samples.
        execution: how the networks are trained.

    Returns:
        None of a device that runs no training steps; a network that it cannot run is left out.
    """
    if backend.name not in _TRAINING:
        return ()
    found = []
    for model in _graphs():
        best: Canary | None = None
        for samples in _SAMPLES:
            canary = Canary(model, samples)
            try:
                step_s = _quick_step_s(canary, backend, execution)
            except (BadInput, OutOfMemory):
                break
            best = canary
            if step_s >= LEAST_S:
                break
        found += [best] if best else []
    return tuple(found)


def _quick_step_s(canary: Canary, backend: Backend, execution: Execution) -> float:
    rule = StoppingRule(target=0.0, min_samples=_TRIES, max_samples=_TRIES)
    parts = _time(canary, backend, execution, "", rule)
    return sum(min(part.device_s) for part in parts)


def visit_canaries(
    canaries: tuple[Canary, ...],
    backend: Backend,
    execution: Execution,
    run_id: str,
    record: Callable[[Measurement], None],
    deadline_s: float = inf,
) -> None:
    """Train every canary for a moment.

    Args:
        canaries: with their samples on this device.
        backend: the device.
        execution: how they are trained.
        run_id: the run that they belong to.
        record: called with the measurements of each part of each canary's step.
        deadline_s: `time.monotonic()` from which on no canary is begun.
    """
    for canary in canaries:
        if time.monotonic() >= deadline_s:
            return
        try:
            parts = _time(canary, backend, execution, run_id, RULE)
        except (BadInput, OutOfMemory):  # a device that others have filled since it was chosen
            continue
        for part in parts:
            record(part)


def _time(canary: Canary, backend: Backend, execution: Execution, run_id: str, rule: StoppingRule) -> list[Measurement]:
    from profiler.steps.serial import StepSettings, time_steps  # a second of imports of torch

    times = time_steps(canary.graph, canary.samples, execution, backend, StepSettings(run_id, rule))
    keys = (execution.kernel_key, execution.kernel_key, execution.update_key)
    return [
        replace(times.measurement, micro=CANARY, phase=part, execution=key, device_s=laps_s, host_s=())
        for part, key, laps_s in zip(PARTS, keys, times.laps_s, strict=True)
    ]
