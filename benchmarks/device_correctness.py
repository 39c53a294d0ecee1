"""Run every microbenchmark on a device, and compare what it computes with torch's own modules in float64 on the CPU.

    python benchmarks/device_correctness.py [--device cuda] > correctness.json

Prints one JSON list: a case, its relative error, its tolerance, what the clocks said, or why it could not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from oracle.errors import StepgaugeError
from oracle.execution import ATTENTIONS, OPTIMIZERS, UPDATES, Execution
from oracle.layer import Layer, Phase
from oracle.layers import LOSSES, NORMS, Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.pricing import LayerCall
from oracle.updates import Parameters
from oracle.windows import POOLS, Conv, Pool
from profiler.backends.base import open_backend
from profiler.backends.torch_device import TorchDevice, torch_errors
from profiler.case import Case
from profiler.micro.base import Builder, Prepared, find_micro
from profiler.micro.optimizer import make_optimizer
from profiler.precision import switched
from profiler.torch_model import module_of

SAMPLES = 4
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2, "fp16": 1e-2}
"""Largest relative error, in the Euclidean norm; gradients of 16-bit numbers lose some bits more than products."""

UPDATE_TOLERANCE = 2e-3

CONVOLUTIONS: tuple[Layer, ...] = (
    Conv.of((16, 33), 8, 3, stride=2, padding=1),
    Conv.of((16, 17, 15), 24, 3, padding=1),
    Conv.of((16, 17, 15), 16, 3, padding=1, groups=16),
    Conv.of((16, 17, 15), 32, 3, dilation=2, groups=2),
    Conv.of((8, 9, 10, 7), 16, 3, padding=1),
    Conv.of((16, 9, 8), 8, 3, stride=2, padding=1, transposed=True, output_padding=1),
)
ATTENTION = Attention(4, 64, 64, 32, causal=True)
TENSORS = Parameters(((100_000, 2), (3072, 40), (65, 160)))
"""More than one kernel of a list takes, of sizes that no block divides."""
OTHERS: tuple[Layer, ...] = (
    Linear(64, 48),
    Linear(64, 48, rows=16),
    *(Norm(op, (16, 9, 8), groups=4 if op == "group" else 1) for op in NORMS),
    *(Pool.of(op, (16, 17, 15), 3, stride=2, padding=1) for op in POOLS),
    *(Elementwise(op, (16, 9, 8)) for op in ("relu", "gelu", "softmax", "add", "mul")),
    Concat((8, 16), (9, 8)),
    Embedding(101, 32, 16),
    ATTENTION,
    *(Loss(op, (33,)) for op in LOSSES),
)


@dataclass(frozen=True)
class Check:
    """One case, and what came of it."""

    text: str
    error: float | None
    tolerance: float
    device_s: float | None = None
    host_s: float | None = None
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether the numbers agree."""
        return self.error is not None and self.error <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "good": self.good}


def cases(cuda: bool) -> Iterator[Case]:
    """Every layer and phase under every execution that concerns it."""
    yield from _of((*CONVOLUTIONS, *OTHERS), Execution(), Execution(memory_format="channels_last"))
    products = (CONVOLUTIONS[1], Linear(64, 48, rows=16))
    mixed = [Execution(name, autocast=casts) for name in ("bf16", "fp16") for casts in (False, True)]
    yield from _of(products, *mixed)
    yield from _of((ATTENTION,), *(Execution(attention=name) for name in ATTENTIONS[1:]))
    yield from _of((ATTENTION,), *(Execution("bf16", attention=name) for name in ATTENTIONS[1:]))
    for name in OPTIMIZERS:
        for update in UPDATES:
            yield Case(LayerCall(TENSORS, Phase.UPDATE, 1), Execution(optimizer=name, update=update))
    yield from _of(products, Execution(warm=True))
    if cuda:
        switches = Execution("tf32"), Execution(cudnn_benchmark=True), Execution(graph=True)
        yield from _of(products, *switches)
        yield Case(LayerCall(TENSORS, Phase.UPDATE, 1), Execution(optimizer="adam", graph=True))


def _of(layers: tuple[Layer, ...], *executions: Execution) -> Iterator[Case]:
    for execution in executions:
        for layer in layers:
            for phase in layer.phases:
                if phase is not Phase.UPDATE:
                    yield Case(LayerCall(layer, phase, SAMPLES), execution)


def describe(case: Case) -> str:
    """A case in a few words."""
    layer = case.call.layer
    return f"{layer.kind} {getattr(layer, 'op', '')} {case.call.phase} {case.execution_key}".replace("  ", " ")


def check(case: Case, device: TorchDevice) -> Check:
    """Run a case once for its numbers, and a few times for its clocks."""
    call, execution, text = case.call, case.execution, describe(case)
    tolerance = TOLERANCE[execution.precision]
    try:
        with switched(execution, device.name), torch_errors(device.device):
            prepared = find_micro(call)[1](Builder(call, execution, device.torch_device))
            if call.phase is Phase.UPDATE:
                # Moves are compared, since the weights themselves hardly change; float32 weights round them.
                error, tolerance = relative_error(*moves(case, prepared)), UPDATE_TOLERANCE
            else:
                error = relative_error(results(prepared), reference(case, prepared))
        with device.open(case) as kernel:
            kernel.sample(2)
            sample = kernel.sample(2)
    except (StepgaugeError, RuntimeError) as failure:
        return Check(text, None, tolerance, reason=str(failure).partition("\n")[0])
    return Check(text, error, tolerance, sample.device_s, sample.host_s)


def results(prepared: Prepared) -> list[Tensor]:
    """What the closure returns, without the gradients that it masks out."""
    result = prepared.run()
    items = (result,) if isinstance(result, Tensor) else result
    return [item.detach() for item in items if item is not None and item.numel()]


def reference(case: Case, prepared: Prepared) -> list[Tensor]:
    """The same by torch's own module and autograd, in float64 on the CPU."""
    layer, phase = case.call.layer, case.call.phase
    inputs, params = _leaves(prepared.inputs), _leaves(prepared.params)
    module = module_of(layer).double()
    names = [name for name, _ in module.named_parameters()]
    result = functional_call(module, dict(zip(names, params, strict=True)), inputs)
    if phase is Phase.FORWARD:
        return [result.detach()]
    wanted = params if phase is Phase.BACKWARD_WEIGHT else (*inputs, *params) if layer.kind == "norm" else inputs
    if layer.kind == "loss":
        wanted = inputs[:1]  # not the target
    gradient = None if prepared.gradient is None else prepared.gradient.cpu().double()
    return list(torch.autograd.grad(result, wanted, gradient))


def moves(case: Case, prepared: Prepared) -> tuple[list[Tensor], list[Tensor]]:
    """By how much an optimizer's third step moves the parameters: on the device, and in float64 on the CPU."""
    before = [param.detach().cpu().double() for param in prepared.params]
    found = [after.cpu().double() - start for after, start in zip(results(prepared), before, strict=True)]
    twins = [param.clone().requires_grad_() for param in before]
    for twin, param in zip(twins, prepared.params, strict=True):
        twin.grad = None if param.grad is None else param.grad.cpu().double()
    optimizer = make_optimizer(case.execution.optimizer, twins, "for_loop")
    for _ in range(2):  # as the microbenchmark did, so that the states are those of the third step
        optimizer.step()
    with torch.no_grad():
        for twin, start in zip(twins, before, strict=True):
            twin.copy_(start)
    optimizer.step()
    return found, [twin.detach() - start for twin, start in zip(twins, before, strict=True)]


def _leaves(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    copies = (tensor.detach().cpu().contiguous() for tensor in tensors)
    return tuple(copy.double().requires_grad_() if copy.is_floating_point() else copy for copy in copies)


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest over the tensors of |found - expected| / |expected|; infinite where they are not as many."""
    if len(found) != len(expected):
        return float("inf")
    pairs = ((one.cpu().double(), other.double()) for one, other in zip(found, expected, strict=True))
    return max(float((one - other).norm() / max(float(other.norm()), 1e-30)) for one, other in pairs)


def raw_checks(device: TorchDevice) -> Iterator[Check]:
    """The raw streams on numbers that are known, and the clock on spins of which one is twice the other."""
    import numpy as np

    from profiler.raw.module import load_file

    threads, blocks = 256, 8
    items = 4 * threads * blocks
    a, b, c = (torch.randn(4 * items, device=device.torch_device) for _ in range(3))
    addresses = [np.uint64(tensor.data_ptr()) for tensor in (a, b, c)]
    module = load_file("memory.cu", device.torch_device)
    module.function("copy").launch((blocks,), (threads,), (addresses[0], addresses[2], np.int64(items)))
    yield Check("raw copy", relative_error([c], [a.cpu()]), 0.0)
    scalar = (np.float32(0.5), np.int64(items))
    module.function("triad").launch((blocks,), (threads,), (*addresses, *scalar))
    yield Check("raw triad", relative_error([c], [(a + 0.5 * b).cpu()]), 1e-6)
    spins = [device.kernel([partial(_spin, cycles)]) for cycles in (10**6, 2 * 10**6)]
    short, long = (min(spin.sample(4).device_s for _ in range(8)) for spin in spins)
    yield Check("clock: a spin and one of twice its length", abs(long / (2 * short) - 1), 0.02, short)


def _spin(cycles: int) -> tuple[()]:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
    return ()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further case after this time")
    given = parser.parse_args()
    end_s = time.monotonic() + given.seconds
    device = open_backend(given.device)
    if not isinstance(device, TorchDevice):
        sys.exit(f"a {device.name} device runs no kernels")
    found = [
        check(case, device) if time.monotonic() < end_s else Check(describe(case), None, 0.0, reason="no time was left")
        for case in cases(device.name == "cuda")
    ]
    if device.name == "cuda":
        try:
            found += list(raw_checks(device))
        except StepgaugeError as error:
            found.append(Check("raw kernels", None, 0.0, reason=str(error)))
    print(json.dumps([item.to_dict() for item in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
