"""What a training step trains: the module of a graph, or a module that somebody wrote, with its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution
from oracle.layers import Loss
from oracle.model import ModelGraph
from profiler.micro.base import in_memory_format
from profiler.torch_model import GraphModule, random_batch
from profiler.tracing.factory import Factory, described
from profiler.tracing.trace import objective


@dataclass(frozen=True)
class Subject:
    """A module on a device with one batch.

    Args:
        graph: what predictions know of it.
        samples: in the batch.
        module: the module; inputs: the tensors that it reads.
        loss: runs forward and returns the number that is trained on.
    """

    graph: ModelGraph
    samples: int
    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[], Tensor]


Make = Callable[[Execution, torch.device], Subject]
"""Builds a subject on a device, for an execution."""


def of_graph(graph: ModelGraph, samples: int) -> Make:
    """The module of a graph on random samples; without a loss of its own it is trained on the mean squared error.

    Raises:
        OutOfRange: no samples.
    """
    _at_least_one(samples)

    def make(execution: Execution, device: torch.device) -> Subject:
        module = GraphModule(graph).to(device)
        _order_weights(module, execution)
        sample, target = random_batch(graph, samples, device)
        sample = in_memory_format(sample, execution)
        has_loss = isinstance(graph.nodes[-1].layer, Loss)

        def loss() -> Tensor:
            result: Tensor = module(sample, target)
            return result if has_loss else functional.mse_loss(result.float(), target)

        return Subject(graph, samples, module, (sample,), loss)

    return make


def of_factory(factory: Factory, graph: ModelGraph, samples: int) -> Make:
    """A module that a factory makes, on its example inputs.

    Args:
        factory: makes the module and its inputs.
        graph: what tracing made of it.
        samples: to which the inputs are cut or repeated.

    Raises:
        OutOfRange: no samples.
    """
    _at_least_one(samples)

    def make(execution: Execution, device: torch.device) -> Subject:
        example = factory.example(samples=samples)
        module = example.module.to(device)
        _order_weights(module, execution)

        def placed(value: object) -> object:
            return in_memory_format(value.to(device), execution) if isinstance(value, Tensor) else value

        args, kwargs = tree_map(placed, example.args), tree_map(placed, dict(example.kwargs))
        read = tuple(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))

        def loss() -> Tensor:
            try:
                return objective(module(*args, **kwargs), factory.text)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # what torch says: `torch_errors`
                raise BadInput(f"{factory.text} fails on {samples} samples: {described(error)}") from error

        return Subject(graph, samples, module, read, loss)

    return make


def _order_weights(module: nn.Module, execution: Execution) -> None:
    with torch.no_grad():
        for param in module.parameters():
            param.data = in_memory_format(param.data, execution)


def _at_least_one(samples: int) -> None:
    if samples < 1:
        raise OutOfRange(f"a step needs at least one sample, not {samples}")
