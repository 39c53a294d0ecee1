"""Updates: `optimizer.step()` on the trainable tensors of one layer, in the implementation that torch picks by default.

Two steps go before, since the first one allocates the state (github.com/pytorch/pytorch/issues/97712). Weights,
gradients and states are float32 under every precision policy. One call has the overhead of a whole `step()`, which a
model's own step pays once for all its layers: the launch seconds of a fit hold it.
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


def make_optimizer(name: str, params: Iterable[Tensor]) -> Optimizer:
    """The named optimizer of `oracle.execution.OPTIMIZERS`, without weight decay unless it is the point of it (adamw).

    Raises:
        KeyError: no such name; an `Execution` has been checked for that.
    """
    makers: dict[str, Callable[..., Optimizer]] = {
        "sgd": SGD,
        "sgd_momentum": partial(SGD, momentum=MOMENTUM),
        "adam": Adam,
        "adamw": AdamW,
    }
    return makers[name](params, lr=LEARNING_RATE)


def prepare(build: Builder) -> Prepared:
    """The update of one layer; what it returns are the parameters after the step."""
    params = build.params(grad=True, dtype=torch.float32)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = make_optimizer(build.execution.optimizer, params)
    for _ in range(WARM_UP_STEPS):
        optimizer.step()

    def update() -> tuple[Tensor, ...]:
        optimizer.step()
        return params

    return Prepared(update, (), params)


MICRO = prepare
