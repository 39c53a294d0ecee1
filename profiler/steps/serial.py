"""Real training steps of a model on one device, as a plain training loop runs them.

A step is `zero_grad(set_to_none=True)`, forward with its loss, backward and `optimizer.step()`. A model without a loss
is trained on the mean squared error. Mixed precision runs under `torch.autocast`, float16 with a gradient scaler.

The clock is marked at the phases' borders without waiting for the device; a step's marks are read only after the next
step has been enqueued, so that an accelerator never runs dry, as in a loop that does not print its loss. The batch is
made once and stays on the device: reading data is no part of a step here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.model import ModelGraph
from profiler.backends.base import Backend
from profiler.backends.torch_device import Stopwatch, TorchDevice, torch_errors
from profiler.measurement import Measurement
from profiler.micro.optimizer import make_optimizer
from profiler.precision import DTYPES, switched
from profiler.steps.subject import Make, Subject, of_graph
from profiler.stopping import StoppingRule, decide, flags
from profiler.visit import host_flags, now

WARM_UP_STEPS = 2
MAX_WARM_UP_STEPS = 8
WARM_UP_AGREEMENT = 1.05
"""Steps are warm when two in a row differ by less: the allocator of a CPU needs about six to settle."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class StepSettings:
    """How to time steps.

    Args:
        run_id: what the measurements of one run share.
        rule: when to stop; its `max_s` counts the steps after warm-up.
        progress: called with steps done and the most there can be.
    """

    run_id: str
    rule: StoppingRule = field(default_factory=lambda: StoppingRule(max_samples=50, max_s=20.0))
    progress: Progress = lambda done, total, text: None


@dataclass(frozen=True)
class StepTimes:
    """A measured training step, and its forward, backward and update in seconds of the device's clock, step by step."""

    measurement: Measurement
    laps_s: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]


def _nothing(part: str) -> None:
    """Nobody asks which part of a step begins."""


class TrainingStep:
    """A subject with its optimizer.

    Args:
        subject: what is trained.
        execution: how.
        device: where.
    """

    def __init__(self, subject: Subject, execution: Execution, device: TorchDevice) -> None:
        self.subject, self.module = subject, subject.module
        trained = [param for param in self.module.parameters() if param.requires_grad]
        self.optimizer = make_optimizer(execution.optimizer, trained, execution.update)
        self._device_type = device.name
        self._dtype = DTYPES[execution.precision]
        self._scaler = torch.amp.GradScaler(device.name, enabled=execution.precision == "fp16")

    def loss(self) -> Tensor:
        """Forward with its loss."""
        with torch.autocast(self._device_type, self._dtype, enabled=self._dtype is not torch.float32):
            return self.subject.loss()

    def run(self, stopwatch: Stopwatch, begins: Callable[[str], None] = _nothing) -> None:
        """One step; the stopwatch's laps are forward, backward and update, the first with clearing the gradients.

        Args:
            stopwatch: marked at the borders.
            begins: told `forward`, `backward`, `update` and `end`, each when it begins.
        """
        stopwatch.mark()
        self.optimizer.zero_grad(set_to_none=True)
        begins("forward")
        loss = self.loss()
        stopwatch.mark()
        begins("backward")
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        stopwatch.mark()
        begins("update")
        self._scaler.step(self.optimizer)
        self._scaler.update()
        stopwatch.mark()
        begins("end")


def time_steps(
    graph: ModelGraph,
    samples: int,
    execution: Execution,
    backend: Backend,
    settings: StepSettings,
    make: Make | None = None,
) -> StepTimes:
    """Time real training steps of a model.

    Args:
        graph: the model.
        samples: samples in the batch.
        execution: how it is trained.
        backend: the device, one on which torch runs.
        settings: when to stop.
        make: builds what is trained; by default the graph's own module.

    Raises:
        OutOfRange: no samples.
        BadInput: the device runs no training steps, or not in this precision.
        OutOfMemory: the step does not fit.
    """
    make = make or of_graph(graph, samples)
    device = device_for_steps(graph, samples, execution, backend)
    environment = backend.environment()
    with switched(execution, device.name), torch_errors(device.device):
        step = TrainingStep(make(execution, device.torch_device), execution, device)
        warm_up_steps(step, device)
        steps, stopped = _sample(step, device, settings.rule, settings.progress)
    measurement = Measurement(
        micro="step",
        case={"model": graph.name, "samples": samples},
        phase="step",
        execution=f"{execution.kernel_key}/{execution.optimizer}",
        device_s=steps.step_s,
        host_s=tuple(steps.host_s),
        inner=1,
        device=backend.device,
        environment=environment,
        run_id=settings.run_id,
        taken_at=now(),
        stopped=stopped,
        flags=flags(steps.step_s, settings.rule) + host_flags(backend.name, steps.step_s, steps.host_s),
    )
    return StepTimes(measurement, (steps.phase_s(0), steps.phase_s(1), steps.phase_s(2)))


def device_for_steps(graph: ModelGraph, samples: int, execution: Execution, backend: Backend) -> TorchDevice:
    """The device, if it can run a step.

    Raises:
        BadInput: the device runs no training steps.
        OutOfMemory: the step does not fit.
    """
    if not isinstance(backend, TorchDevice):
        raise BadInput(f"a {backend.name} device runs no training steps")
    backend.must_fit(step_bytes(graph, samples, execution), f"a step of {graph.name} with {samples} samples")
    return backend


def step_bytes(graph: ModelGraph, samples: int, execution: Execution) -> float:
    """Least memory of a step: every layer's result, and weights, gradients and optimizer states in float32."""
    activations = samples * execution.item_bytes * sum(node.layer.output_items for node in graph.nodes)
    return activations + 4.0 * graph.params * (2 + execution.optimizer_cost.states)


def warm_up_steps(step: TrainingStep, device: TorchDevice) -> None:
    """Run steps until two in a row take the same time."""
    before_s = 0.0
    for count in range(1, MAX_WARM_UP_STEPS + 1):
        stopwatch = device.stopwatch()
        step.run(stopwatch)
        step_s = sum(stopwatch.laps_s())
        if count > WARM_UP_STEPS and max(step_s, before_s) <= WARM_UP_AGREEMENT * min(step_s, before_s):
            return
        before_s = step_s


@dataclass
class _Steps:
    """What has been timed so far: seconds per phase and per step."""

    laps_s: list[list[float]] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)

    @property
    def step_s(self) -> tuple[float, ...]:
        return tuple(sum(laps) for laps in self.laps_s)

    def phase_s(self, phase: int) -> tuple[float, ...]:
        return tuple(laps[phase] for laps in self.laps_s)


def _sample(step: TrainingStep, device: TorchDevice, rule: StoppingRule, progress: Progress) -> tuple[_Steps, str]:
    """Time steps until the rule says enough; also which part of it did."""
    steps = _Steps()
    before: Stopwatch | None = None
    stopped: str | None = None
    while stopped is None:
        progress(len(steps.laps_s), rule.max_samples, "training steps")
        begun_s = device.host_seconds()
        stopwatch = device.stopwatch()
        step.run(stopwatch)
        steps.host_s.append(device.host_seconds() - begun_s)
        if before is not None:
            steps.laps_s.append(before.laps_s())
            stopped = decide(steps.step_s, sum(steps.step_s), rule)
        before = stopwatch
    # The step that was enqueued meanwhile is a sample like the others.
    steps.laps_s.append(stopwatch.laps_s())
    progress(rule.max_samples, rule.max_samples, "training steps")
    return steps, stopped
