"""The `MemoryRule` of torch: a step's fullest moment, and what lies beside the tensors of the step.

Weights, optimizer states, buffers and the batch are there throughout. Activations go while gradients of weights come,
so the fullest moment is the beginning of backward where activations are large, its end where weights are, and the
update where the optimizer needs room to work (`oracle.liveness`). The update runs when all activations are gone.

What no tensor of the step shows is a set of numbers with sources (`Overheads`). Nothing of it is known of a device
that nobody named, so it is zero by default; `OVERHEADS` has what torch does on CPUs and on CUDA devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import chain, groupby, repeat

import numpy as np

from oracle.estimate import Floats, Ints
from oracle.identity import Same
from oracle.layer import Layer
from oracle.layers import Loss, Norm
from oracle.liveness import Moment, Placed, Sizes, moments_of
from oracle.memory import Lots, MemoryKind
from oracle.model import INPUT, ModelGraph, Node
from oracle.plan import Microbatched, Plan, StepPart


class UpdateLoop(StrEnum):
    """How an optimizer walks over the parameters."""

    SINGLE_TENSOR = "single_tensor"
    """One tensor after another: torch's default on CPUs."""
    FOREACH = "foreach"
    """All tensors at once, kernel by kernel: torch's default on CUDA devices."""
    FUSED = "fused"
    """One kernel for everything."""


_ROOM: Mapping[UpdateLoop, Mapping[str, int]] = {
    UpdateLoop.SINGLE_TENSOR: {"adam": 2, "adamw": 2},
    UpdateLoop.FOREACH: {"adam": 1, "adamw": 1},
    UpdateLoop.FUSED: {},
}
"""Copies of the largest tensor (one at a time) or of all tensors (foreach) that an update makes.

Adam's denominator is the root of the second moment divided by its bias correction: two tensors at a time in
`_single_tensor_adam`, one list of tensors that is then changed in place in `_multi_tensor_adam` (torch/optim/adam.py).
SGD works in place.
"""


@dataclass(frozen=True)
class Overheads:
    """What a device holds beside the tensors of a step; bytes, per device.

    Args:
        update_loop: how the optimizer walks over the parameters.
        fused_dropout: whether dropout keeps a mask of bytes; elsewhere it keeps a factor as wide as an activation
            (aten/src/ATen/native/Dropout.cpp).
        bucket_copies: copies of the gradients that an all_reduce of gradients sends from. 1 in torch's
            DistributedDataParallel, 0 with its `gradient_as_bucket_view`.
        communicator_bytes: buffers of each group of devices that exchanges something.
        context_bytes: the device's context and the code of loaded kernels.
        workspace_bytes: what matrix and convolution libraries work in.
        rounding_bytes: what an allocation is rounded up by, on average.
        fragmentation: memory that is reserved but cannot be used, as a share of what is allocated.
    """

    update_loop: UpdateLoop = UpdateLoop.SINGLE_TENSOR
    fused_dropout: bool = False
    bucket_copies: float = 1.0
    communicator_bytes: float = 0.0
    context_bytes: float = 0.0
    workspace_bytes: float = 0.0
    rounding_bytes: float = 0.0
    fragmentation: float = 0.0


OVERHEADS: Mapping[str, Overheads] = {
    "cpu": Overheads(),
    "cuda": Overheads(
        update_loop=UpdateLoop.FOREACH,
        fused_dropout=True,
        # Per pair of neighbours and channel a buffer of 4 MiB (NCCL_BUFFSIZE in NCCL's documentation), to send and to
        # receive, on up to 32 channels; fewer where NCCL opens fewer.
        communicator_bytes=2 * 32 * 4 * 2**20,
        # Assumed: it depends on driver, architecture and loaded modules, and is a few hundred MB with lazy loading.
        # Measured, it is what the driver counts as used less `torch.cuda.memory_reserved()`.
        context_bytes=512 * 2**20,
        # cuBLAS, per handle and stream: 2 x 4096 KiB + 8 x 16 KiB (CUBLAS_WORKSPACE_CONFIG in torch's CUDA notes; 32
        # MiB on Hopper). What cuDNN's convolutions ask for depends on the algorithm and is not known beforehand.
        workspace_bytes=(2 * 4096 + 8 * 16) * 2**10,
        # Allocations are multiples of 512 bytes (kMinBlockSize in c10/cuda/CUDACachingAllocator.cpp).
        rounding_bytes=256.0,
        # Not known beforehand. Up to a third has been seen with recomputation and offloading (GMLake, ASPLOS 2024,
        # arXiv 2401.08156); measured, it is memory_reserved / memory_allocated - 1 at the peak.
        fragmentation=0.0,
    ),
}
"""Kind of device (a backend's name) -> what torch holds there."""


@dataclass(frozen=True)
class Autograd:
    """The `MemoryRule` of eager torch on devices with these overheads."""

    overheads: Overheads = Overheads()

    def held_bytes(self, plan: Plan, stages: range) -> Mapping[MemoryKind, float]:
        """Bytes by kind at the fullest moment of a step."""
        held, samples = self._held(plan, stages), plan.stages[stages[0]].samples
        in_flight, (once, later, update) = plan.in_flight(stages[0]), self._moments(plan, held)
        rows = [once + (in_flight - 1) * held.waiting, update]
        if any(plan.passes(stage) > 1 for stage in stages):
            rows.append(later + max(0, in_flight - 2) * held.waiting)
        moments = np.vstack(rows)
        moment = Moment(*moments[np.argmax(moments @ _weights(samples))].tolist())
        weights_bytes = held.params * plan.job.execution.parameter_bytes
        tensors = {
            MemoryKind.WEIGHTS: plan.held.weights * weights_bytes,
            MemoryKind.GRADIENTS: moment.gradient_bytes,
            MemoryKind.OPTIMIZER: plan.held.optimizer * weights_bytes * plan.job.execution.optimizer_cost.states,
            MemoryKind.BUFFERS: held.buffer_bytes,
            MemoryKind.CASTS: moment.cast_bytes,
            MemoryKind.INPUT: in_flight * samples * held.input_sample_bytes,
            MemoryKind.ACTIVATIONS: samples * moment.activation_sample_bytes + moment.activation_bytes,
            MemoryKind.TRANSIENT: samples * moment.transient_sample_bytes,
            MemoryKind.UPDATE: moment.update_bytes,
            MemoryKind.TRANSFERS: plan.held.transfer_bytes,
        }
        return tensors | self._beside(plan, stages, held, sum(tensors.values()))

    def peak_bytes(self, plan: Plan, stages: range, lots: Lots) -> Floats:
        """All that a device holds for each of many batches; see `oracle.memory.ManyBatches`."""
        held, several = self._held(plan, stages), np.asarray(plan.passes(stages[-1]) > 1)
        waiting, in_flight = _values(held.waiting[np.newaxis], lots.samples), lots.segments
        if isinstance(plan.schedule, Microbatched):
            several = lots.segments * plan.accumulation > 1
            if plan.schedule.kind == "1f1b":
                in_flight = np.minimum(lots.segments, len(plan.stages) - stages[0])
        once, later, update = self._moments(plan, held)
        peak = _values(once, lots.samples) + (in_flight - 1) * waiting
        again = _values(later, lots.samples) + np.maximum(0, in_flight - 2) * waiting
        peak = np.maximum(np.where(several, np.maximum(peak, again), peak), _values(update, lots.samples))
        weights_bytes = held.params * plan.job.execution.parameter_bytes
        states = plan.held.weights + plan.held.optimizer * plan.job.execution.optimizer_cost.states
        tensors = peak + states * weights_bytes + held.buffer_bytes + lots.transfer_bytes
        tensors += in_flight * lots.samples * held.input_sample_bytes
        return tensors * (1 + self.overheads.fragmentation) + sum(self._beside(plan, stages, held, 0.0).values())

    def kept_bytes(self, plan: Plan, stages: range) -> float:
        """Bytes of activations that one pass keeps from the end of its forward to its backward."""
        return float(self._held(plan, stages).waiting @ _weights(plan.stages[stages[0]].samples))

    def _moments(self, plan: Plan, held: _Held) -> tuple[Floats, Floats, Floats]:
        """The moments, as rows, of the first pass, of the passes after it, and of the update.

        In the first pass's backward all passes in flight wait for theirs. From the second on all gradients are there,
        and new ones until they are added.
        """
        share = plan.held.gradients
        gradient_bytes = share * held.params * plan.job.execution.parameter_bytes
        update_bytes = plan.held.optimizer * self._room(plan, held)
        update = np.array([Moment(0.0, 0.0, gradient_bytes=gradient_bytes, update_bytes=update_bytes)])
        first, later = held.moments.copy(), held.moments.copy()
        first[:, _GRADIENT] *= share
        later[:, _GRADIENT] = gradient_bytes + later[:, _FRESH]
        return first, later, update

    def _held(self, plan: Plan, stages: range) -> _Held:
        """What the layers of stages hold, per sample of the first of them."""
        execution, parts = plan.job.execution, plan.stages[stages.start : stages.stop]
        layers = Same(tuple(chain.from_iterable(stage.nodes for stage in parts)))
        ratios = groupby(parts, key=lambda stage: stage.samples / parts[0].samples)
        scales = tuple((sum(len(stage.nodes) for stage in own), ratio) for ratio, own in ratios)
        mask_bytes = 1 if self.overheads.fused_dropout else execution.item_bytes
        widths = (execution.item_bytes, execution.parameter_bytes, mask_bytes)
        # A stage of a pipeline has its share of the segments.
        segments = execution.recomputed_segments * len(layers.items) / len(plan.job.model.nodes)
        count = max(1, round(segments)) if segments else 0
        return _compiled(Same((plan.job.model,)), layers, scales, widths, count)

    def _room(self, plan: Plan, held: _Held) -> float:
        copies = _ROOM[self.overheads.update_loop].get(plan.job.execution.optimizer, 0)
        items = held.largest_param if self.overheads.update_loop is UpdateLoop.SINGLE_TENSOR else held.params
        return copies * items * plan.job.execution.parameter_bytes

    def _beside(self, plan: Plan, stages: range, held: _Held, tensors_bytes: float) -> dict[MemoryKind, float]:
        moves = [move for stage in stages for move in plan.stages[stage].exchanges if move.transfer.group > 1]
        reduced_bytes = sum(
            move.transfer.bytes * move.transfer.messages
            for move in moves
            if move.part is StepPart.GRADIENT_EXCHANGE and move.transfer.collective == "all_reduce"
        )
        groups = {(move.transfer.tier, move.transfer.group) for move in moves}
        copies = 2 + plan.job.execution.optimizer_cost.states
        return {
            MemoryKind.BUCKETS: self.overheads.bucket_copies * reduced_bytes,
            MemoryKind.COMMUNICATION: self.overheads.communicator_bytes * len(groups),
            MemoryKind.CONTEXT: self.overheads.context_bytes,
            MemoryKind.WORKSPACE: self.overheads.workspace_bytes,
            MemoryKind.ROUNDING: self.overheads.rounding_bytes * (held.param_tensors * copies + held.layers),
            MemoryKind.FRAGMENTATION: self.overheads.fragmentation * tensors_bytes,
        }


AUTOGRAD = Autograd(OVERHEADS["cpu"])
"""What plans are judged by where nothing else is asked."""


@dataclass(frozen=True)
class _Held:
    """What some layers hold, for every batch: counts, bytes, and the moments of a step.

    Args:
        moments: one row per moment, one column per field of `Moment`.
        waiting: a row of what a pass keeps from the end of its forward to its backward.
    """

    params: int
    largest_param: int
    param_tensors: int
    layers: int
    buffer_bytes: int
    input_sample_bytes: float
    moments: Floats
    waiting: Floats


_GRADIENT, _FRESH = map(Moment._fields.index, ("gradient_bytes", "fresh_gradient_bytes"))


_PER_SAMPLE = np.array([name.endswith("sample_bytes") for name in Moment._fields], dtype=np.float64)


def _weights(samples: int) -> Floats:
    """What the columns of moments count for with so many samples."""
    weights = 1 + (samples - 1) * _PER_SAMPLE
    weights[_FRESH] = 0  # a part of another column
    return weights


def _values(moments: Floats, samples: Ints) -> Floats:
    """The bytes of the fullest of some moments, rows, for each number of samples.

    Every moment is a straight line in the samples; only those that no other is above all along can be the fullest.
    """
    fixed = moments @ _weights(0)
    grows = moments @ _weights(1) - fixed
    steepest = np.lexsort((-fixed, -grows))
    fixed, grows = fixed[steepest], grows[steepest]
    above = fixed > np.concatenate(([-np.inf], np.maximum.accumulate(fixed)[:-1]))
    lines: Floats = fixed[above, np.newaxis] + grows[above, np.newaxis] * samples
    fullest: Floats = lines.max(axis=0)
    return fullest


@lru_cache(maxsize=1024)
def _compiled(
    model: Same[ModelGraph],
    nodes: Same[Node],
    scales: tuple[tuple[int, float], ...],
    widths: tuple[int, int, int],
    recomputed_segments: int,
) -> _Held:
    spread = chain.from_iterable(repeat(scale, count) for count, scale in scales)
    layers = [Placed(node, scale) for node, scale in zip(nodes.items, spread, strict=True)]
    tensors = [math.prod(shape) for placed in layers for shape in placed.node.layer.param_shapes]
    sizes = Sizes(*widths, trainable=_trainable(model.items[0]))
    end_of_forward, moments = moments_of(layers, sizes, recomputed_segments)
    return _Held(
        params=sum(tensors),
        largest_param=max(tensors, default=0),
        param_tensors=len(tensors),
        layers=len(layers),
        buffer_bytes=sum(_buffer_bytes(placed.node.layer) for placed in layers),
        input_sample_bytes=_input_bytes(layers),
        moments=np.array(moments),
        waiting=np.array(end_of_forward._replace(cast_bytes=0.0)),
    )


def _trainable(model: ModelGraph) -> dict[str, bool]:
    results = {node.name: model.needs_data_gradient[node.name] or node.layer.params > 0 for node in model.nodes}
    return {INPUT: False, **results}


def _buffer_bytes(layer: Layer) -> int:
    # Running mean and variance in float32, and a 64-bit count of batches.
    return 2 * 4 * layer.features + 8 if isinstance(layer, Norm) and layer.op == "batch" else 0


def _input_bytes(layers: Sequence[Placed]) -> float:
    """Bytes per sample of the samples (float32, or 64-bit token numbers) and of the targets of the loss."""
    samples_bytes = targets_bytes = 0.0
    for placed in layers:
        layer = placed.node.layer
        for name, items in zip(placed.node.inputs, layer.operand_items, strict=True):
            if name == INPUT:
                wide = 8 if layer.kind == "embedding" else 4
                samples_bytes = max(samples_bytes, wide * items * placed.scale)
        if isinstance(layer, Loss):
            labels = 8 * math.prod(layer.shape[:-1])
            targets_bytes += placed.scale * (labels if layer.op == "cross_entropy" else 4 * layer.input_items)
    return samples_bytes + targets_bytes
