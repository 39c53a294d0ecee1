"""Updates: `optimizer.step()` on the tensors of a layer, or of a model, in the implementation that the execution names.

Two steps go before, since the first one allocates the state (github.com/pytorch/pytorch/issues/97712). Weights,
gradients and states are float32 under every precision policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from profiler.micro.base import Builder, Prepared

LEARNING_RATE = 1e-4
MOMENTUM = 0.9
WARM_UP_STEPS = 2

IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "any": {},
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""What each of `oracle.execution.UPDATES` tells torch."""


def make_optimizer(name: str, params: Iterable[Tensor], update: str = "any", *, graph: bool = False) -> Optimizer:
    """The named optimizer of `oracle.execution.OPTIMIZERS`, without weight decay unless it is the point of it (adamw).

    Args:
        name: a key of `OPTIMIZERS`.
        params: what it updates.
        update: one of `oracle.execution.UPDATES`.
        graph: its steps will be captured into a CUDA graph.

    Raises:
        KeyError: no such name; an `Execution` has been checked for that.
    """
    makers: dict[str, Callable[..., Optimizer]] = {
        "sgd": SGD,
        "sgd_momentum": partial(SGD, momentum=MOMENTUM),
        "adam": Adam,
        "adamw": AdamW,
    }
    options = dict(IMPLEMENTATIONS[update])
    if graph and name in ("adam", "adamw"):
        options["capturable"] = True  # the number of the step is a tensor then
    return makers[name](params, lr=LEARNING_RATE, **options)


def prepare(build: Builder) -> Prepared:
    """One step of an optimizer; what it returns are the parameters after the step."""
    params = build.params(grad=True, dtype=torch.float32)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = make_optimizer(build.execution.optimizer, params, build.execution.update, graph=build.execution.graph)
    for _ in range(WARM_UP_STEPS):
        optimizer.step()

    def update() -> tuple[Tensor, ...]:
        optimizer.step()
        return params

    return Prepared(update, (), params)


MICRO = prepare
