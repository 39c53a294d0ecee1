"""Bytes that one device holds in a training step, by kind.

What autograd keeps from forward for backward follows torch's derivatives.yaml: convolutions and fully connected layers
keep their input, normalisations their input and statistics, ReLU, sigmoid, tanh and softmax their result, GELU and SiLU
their input, dropout a mask of bytes, a maximum pooling its input and 64-bit indices, attention its operands, its
result and the logarithms of its sums (flash attention), a sum nothing, cross entropy its log-softmax. A tensor that two
layers keep is one tensor, and one that an in-place layer overwrites is the storage of its input.

The kinds are added up, which is never less than the peak: gradients of weights grow only as activations go. The
largest gradients of activations are those of one layer at a time. What no graph shows (device context, library
workspaces, communicators, allocator rounding) is not in here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from oracle.layer import Layer, Phase
from oracle.layers import Elementwise, Loss, Norm
from oracle.model import INPUT, Node
from oracle.plan import Job, Plan, Stage
from oracle.units import format_bytes


class MemoryKind(StrEnum):
    """What memory is held for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer_states"
    BUFFERS = "buffers"
    """Running statistics of batch normalisation."""
    CASTS = "weight_casts"
    """Copies of the weights in the precision that multiplies, which autocast keeps for the step."""
    INPUT = "input"
    ACTIVATIONS = "activations"
    """What backward needs of forward."""
    TRANSIENT = "activation_gradients"
    """The gradients of result and operands of the layer where they are largest."""


@dataclass(frozen=True)
class Memory:
    """What one device holds, and what it could.

    Args:
        by_kind_bytes: bytes of each kind that is not zero.
        capacity_bytes: memory of the device; None where it is not known.
    """

    by_kind_bytes: Mapping[MemoryKind, float]
    capacity_bytes: float | None

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return sum(self.by_kind_bytes.values())

    @property
    def fits(self) -> bool | None:
        """Whether the device is large enough; None where its memory is not known."""
        return None if self.capacity_bytes is None else self.total_bytes <= self.capacity_bytes

    @property
    def refusal(self) -> str | None:
        """Why it does not fit, in one line; None where it fits or nobody knows."""
        if self.capacity_bytes is None or self.fits:
            return None
        largest = max(self.by_kind_bytes, key=lambda kind: self.by_kind_bytes[kind])
        needed, capacity = format_bytes(self.total_bytes), format_bytes(self.capacity_bytes)
        share = format_bytes(self.by_kind_bytes[largest])
        return f"does not fit: a device needs {needed} and has {capacity} ({share} are {largest.replace('_', ' ')})"


class MemoryRule(Protocol):
    """How much some stages hold on one device."""

    def held_bytes(self, job: Job, stages: Sequence[Stage]) -> Mapping[MemoryKind, float]:
        """Bytes by kind."""


def memory_of(plan: Plan, rule: MemoryRule) -> Memory:
    """What a device holds under a plan whose stages all run on it, as those of a `Sequential` schedule do."""
    held = rule.held_bytes(plan.job, plan.stages)
    return Memory({kind: size for kind, size in held.items() if size}, plan.job.cluster.memory_bytes)


@dataclass(frozen=True)
class Kept:
    """What backward needs of one layer's forward.

    Args:
        operands, result: whether these tensors are kept.
        sample_bytes: other bytes per sample.
        batch_bytes: other bytes, whatever the batch.
    """

    operands: bool = False
    result: bool = False
    sample_bytes: int = 0
    batch_bytes: int = 0


_OPERANDS, _RESULT = Kept(operands=True), Kept(result=True)

_ELEMENTWISE = {
    "relu": _RESULT,
    "sigmoid": _RESULT,
    "tanh": _RESULT,
    "softmax": _RESULT,
    "silu": _OPERANDS,
    "gelu": _OPERANDS,
    "mul": _OPERANDS,
    "add": Kept(),
}


def _elementwise(layer: Any) -> Kept:
    return Kept(sample_bytes=layer.output_items) if layer.op == "dropout" else _ELEMENTWISE[layer.op]


def _norm(layer: Any) -> Kept:
    if layer.op == "batch":  # mean and inverse deviation per channel, in float32
        return Kept(operands=True, batch_bytes=2 * 4 * layer.features)
    groups = {"layer": layer.input_items // layer.features, "group": layer.groups, "instance": layer.shape[0]}
    return Kept(operands=True, sample_bytes=2 * 4 * groups[layer.op])


def _pool(layer: Any) -> Kept:
    if layer.op == "max":
        return Kept(operands=True, sample_bytes=8 * layer.output_items)
    # Torch runs an average over everything as a mean, whose gradient needs only shapes.
    return Kept(operands=layer.kernel != layer.shape[1:])


def _attention(layer: Any) -> Kept:
    return Kept(operands=True, result=True, sample_bytes=4 * layer.heads * layer.query_tokens)


def _loss(layer: Any) -> Kept:
    return Kept(sample_bytes=4 * layer.input_items) if layer.op == "cross_entropy" else _OPERANDS


KEEPS: dict[str, Callable[[Any], Kept]] = {
    "conv": lambda _: _OPERANDS,
    "linear": lambda _: _OPERANDS,
    "norm": _norm,
    "pool": _pool,
    "elementwise": _elementwise,
    "embedding": lambda _: _OPERANDS,
    "attention": _attention,
    "loss": _loss,
}
"""What autograd keeps of each kind of layer."""


@dataclass(frozen=True)
class Autograd:
    """The `MemoryRule` of eager torch."""

    def held_bytes(self, job: Job, stages: Sequence[Stage]) -> Mapping[MemoryKind, float]:
        """Bytes by kind."""
        execution, item_bytes = job.execution, job.execution.item_bytes
        params = sum(stage.params for stage in stages)
        cast = item_bytes < execution.parameter_bytes
        return {
            MemoryKind.WEIGHTS: params * execution.parameter_bytes,
            MemoryKind.GRADIENTS: params * execution.parameter_bytes,
            MemoryKind.OPTIMIZER: params * execution.parameter_bytes * execution.optimizer_cost.states,
            MemoryKind.BUFFERS: sum(_buffer_bytes(node.layer) for stage in stages for node in stage.nodes),
            MemoryKind.CASTS: sum(map(_matrix_params, stages)) * item_bytes if cast else 0,
            MemoryKind.INPUT: sum(_input_bytes(stage) for stage in stages),
            MemoryKind.ACTIVATIONS: sum(_activation_bytes(job, stage) for stage in stages),
            MemoryKind.TRANSIENT: max(_gradient_bytes(job, stage) for stage in stages),
        }


AUTOGRAD = Autograd()
"""What plans are judged by where nothing else is asked."""


def _buffer_bytes(layer: Layer) -> int:
    # Running mean and variance in float32, and a 64-bit count of batches.
    return 2 * 4 * layer.features + 8 if isinstance(layer, Norm) and layer.op == "batch" else 0


def _matrix_params(stage: Stage) -> int:
    return sum(node.layer.params for node in stage.nodes if node.layer.kind in ("conv", "linear"))


def _input_bytes(stage: Stage) -> int:
    """The samples (float32, or 64-bit token numbers) and the targets of the loss."""
    samples_bytes = targets_bytes = 0
    for node in stage.nodes:
        for name, shape in zip(node.inputs, node.layer.input_shapes, strict=True):
            if name == INPUT:
                wide = 8 if node.layer.kind == "embedding" else 4
                samples_bytes = max(samples_bytes, wide * math.prod(shape))
        if isinstance(node.layer, Loss):
            labels = 8 * math.prod(node.layer.shape[:-1])
            targets_bytes += labels if node.layer.op == "cross_entropy" else 4 * node.layer.input_items
    return stage.samples * (samples_bytes + targets_bytes)


def _activation_bytes(job: Job, stage: Stage) -> int:
    storage: dict[str, str] = {}
    kept_items: dict[str, int] = {}
    other_bytes = 0
    for node in stage.nodes:
        result = _storage_of_result(node, storage)
        if not (job.model.needs_data_gradient[node.name] or node.layer.params):
            continue
        kept = KEEPS[node.layer.kind](node.layer)
        other_bytes += stage.samples * kept.sample_bytes + kept.batch_bytes
        tensors = [(result, node.layer.output_items)] if kept.result else []
        if kept.operands:
            shapes = zip(node.inputs, node.layer.input_shapes, strict=True)
            tensors += [(storage.get(name, name), math.prod(shape)) for name, shape in shapes]
        for name, items in tensors:
            kept_items[name] = max(kept_items.get(name, 0), items)
    if job.execution.item_bytes == job.execution.parameter_bytes:
        kept_items.pop(INPUT, None)  # counted as input; a narrower copy of it is an activation
    return other_bytes + stage.samples * job.execution.item_bytes * sum(kept_items.values())


def _storage_of_result(node: Node, storage: dict[str, str]) -> str:
    in_place = isinstance(node.layer, Elementwise) and node.layer.inplace
    before = node.inputs[0]
    storage[node.name] = storage.get(before, before) if in_place else node.name
    return storage[node.name]


def _gradient_bytes(job: Job, stage: Stage) -> int:
    largest = 0
    for node in stage.nodes:
        if any(phase in node.layer.phases for phase in (Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT)):
            operands = node.layer.input_items if job.model.needs_data_gradient[node.name] else 0
            largest = max(largest, operands + node.layer.output_items)
    return stage.samples * job.execution.item_bytes * largest
