"""Optimizer steps by the number of tensors and their size, in each implementation.

A step costs something once, something for every tensor and something for every item:

    seconds = step_s + tensor_s * tensors + item_s * items

A layer's update that is timed by itself pays the first part each time, which a model's step pays once. Three numbers of
tensors times two sizes tell the three apart.
"""

from __future__ import annotations

from functools import partial

import torch

from oracle.execution import UPDATES
from profiler.backends.base import Kernel
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.probe import SECONDS, Probe
from profiler.micro.base import Result, random_normal
from profiler.micro.optimizer import WARM_UP_STEPS, make_optimizer

TENSORS = (1, 16, 128)
ITEMS = (1_000, 100_000)
OPTIMIZERS = ("sgd_momentum", "adam")


def update_probes(device: TorchDevice) -> list[Probe]:
    """Steps of every optimizer, implementation, number of tensors and size."""
    return [
        Probe(
            group="update",
            question=f"update_{name}_{update}",
            unit=SECONDS,
            amount=1.0,
            prepare=partial(_step, name, update, (tensors, items), device),
            case={"tensors": tensors, "items": items},
        )
        for name in OPTIMIZERS
        for update in UPDATES
        if update != "any"
        for tensors in TENSORS
        for items in ITEMS
    ]


def _step(name: str, update: str, shape: tuple[int, int], device: TorchDevice) -> Kernel:
    tensors, items = shape
    params = [random_normal((items,), device.torch_device).requires_grad_() for _ in range(tensors)]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = make_optimizer(name, params, update)
    for _ in range(WARM_UP_STEPS):
        optimizer.step()

    def step() -> Result:
        optimizer.step()
        return ()

    return device.kernel([step])
