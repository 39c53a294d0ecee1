"""Which tensors are alive at each moment of a training step, after the way autograd runs it.

Forward runs the layers in order. A result lives until its last reader has run, and on until backward if a layer keeps
it (`oracle.kept`); a tensor that two layers keep is one tensor, and an in-place layer's result is the storage of its
input. Backward runs the layers in reverse: torch's engine takes the ready node that forward created last. A layer's
backward holds what the layer kept, the gradient of its result, the gradients that it makes and those of its weights;
when it is done, the first two go (torch/csrc/autograd/engine.cpp: inputs are moved into the node, whose variables are
released before its outputs are handed on). A second gradient of one tensor is added to the first in place, unless that
one is shared or a view, and then three are alive (input_buffer.cpp). Gradients of weights stay until the update.

With recomputation (Chen et al., 2016, arXiv 1604.06174; torch.utils.checkpoint) the first forward keeps only what
enters each segment, and a segment's forward runs again, keeping all, right before its backward.

Every size is a multiple of the samples plus a constant, so a step's moments are worked out once for a part of a model
and then hold for every batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from oracle.kept import KEEPS, Kept
from oracle.layer import Layer
from oracle.layers import Elementwise, Loss
from oracle.model import INPUT, Node


@dataclass(frozen=True)
class Sizes:
    """How large tensors are, and which of them have gradients.

    Args:
        item_bytes: of an activation.
        parameter_bytes: of a parameter; where activations are narrower, input and weights are cast to their width.
        mask_bytes: of an item of dropout's mask.
        trainable: which layers' results depend on trainable parameters.
    """

    item_bytes: int
    parameter_bytes: int
    mask_bytes: int
    trainable: Mapping[str, bool]

    @property
    def casts(self) -> bool:
        """Whether input and weights are cast."""
        return self.item_bytes < self.parameter_bytes


class Moment(NamedTuple):
    """Bytes alive at one moment beside weights, optimizer states and the input: per sample, or whatever the batch.

    `fresh_gradient_bytes` are those of `gradient_bytes` that backward has just made and not handed on yet.
    """

    activation_sample_bytes: float
    transient_sample_bytes: float
    activation_bytes: float = 0.0
    cast_bytes: float = 0.0
    gradient_bytes: float = 0.0
    update_bytes: float = 0.0
    fresh_gradient_bytes: float = 0.0


@dataclass(frozen=True)
class Placed:
    """A layer in its place, with how many samples it works on for each sample of the first part."""

    node: Node
    scale: float


def moments_of(layers: Sequence[Placed], sizes: Sizes, recomputed_segments: int = 0) -> tuple[Moment, list[Moment]]:
    """The end of forward, and all moments of forward and backward.

    Args:
        layers: what one device runs, in order.
        sizes: how large tensors are.
        recomputed_segments: into how many segments the layers are cut whose activations are not kept; 0 keeps all.
    """
    step = _Step(layers, sizes)
    if recomputed_segments:
        return _recomputed(step, layers, min(recomputed_segments, len(layers)))
    step.expect(layers, keeping=True)
    for layer in layers:
        step.forward(layer, keeping=True)
    end_of_forward = step.moment()
    step.start_backward(layers[-1])
    for layer in reversed(layers):
        step.backward(layer)
    return end_of_forward, step.moments


def _recomputed(step: _Step, layers: Sequence[Placed], count: int) -> tuple[Moment, list[Moment]]:
    bounds = [len(layers) * index // count for index in range(count + 1)]
    segments = [layers[first:last] for first, last in pairwise(bounds)]
    entering = [step.entering(segment) for segment in segments]
    step.expect(layers, keeping=False)
    step.hold(chain.from_iterable(entering))
    for layer in layers:
        step.forward(layer, keeping=False)
    end_of_forward = step.moment()
    step.start_backward(layers[-1])
    for segment, storages in zip(reversed(segments), reversed(entering), strict=True):
        step.expect(segment, keeping=True)
        for layer in segment:
            step.forward(layer, keeping=True)
        for layer in reversed(segment):
            step.backward(layer)
        step.let_go(storages)
    return end_of_forward, step.moments


@dataclass(slots=True)
class _Gradient:
    """The gradient of an activation and how many hold it."""

    sample_bytes: float
    holders: int = 1


class _Step:
    """The state of one step as it runs."""

    def __init__(self, layers: Sequence[Placed], sizes: Sizes) -> None:
        self.sizes = sizes
        self.keeps = {layer.node.name: _kept(layer.node, sizes) for layer in layers}
        self.storage = _storages(layers)
        self.storage_bytes = _storage_bytes(layers, self.storage, sizes)
        self.kept_storages = {layer.node.name: self._kept_storages(layer.node) for layer in layers}
        self.holders = defaultdict(int, {self.storage[layers[-1].node.name]: 1})  # the last result is held throughout
        self.made: set[str] = set()
        self.gradients: dict[str, tuple[_Gradient, bool]] = {}
        self.activation_sample_bytes = self.transient_sample_bytes = 0.0
        self.activation_bytes = self.cast_bytes = self.gradient_bytes = 0.0
        self.moments: list[Moment] = []

    def expect(self, layers: Sequence[Placed], *, keeping: bool) -> None:
        """Note the reads, and the keepings, that these layers' tensors have still to see."""
        for layer in layers:
            self.hold(self.storage[name] for name in layer.node.inputs)
            if keeping:
                self.hold(self.kept_storages[layer.node.name])

    def hold(self, storages: Iterable[str]) -> None:
        """Keep storages alive until they are let go as often."""
        for storage in storages:
            self.holders[storage] += 1

    def entering(self, layers: Sequence[Placed]) -> list[str]:
        """The storages that these layers read and do not make."""
        own = {layer.node.name for layer in layers}
        read = (self.storage[name] for layer in layers for name in layer.node.inputs)
        return list(dict.fromkeys(storage for storage in read if storage not in own))

    def _kept_storages(self, node: Node) -> list[str]:
        kept = self.keeps[node.name]
        names = (*(node.inputs if kept.operands else ()), *((node.name,) if kept.result else ()))
        return [self.storage[name] for name in names]

    def moment(self, fresh_gradient_bytes: float = 0.0) -> Moment:
        """What is alive now."""
        return Moment(
            self.activation_sample_bytes,
            self.transient_sample_bytes,
            self.activation_bytes,
            self.cast_bytes,
            self.gradient_bytes,
            fresh_gradient_bytes=fresh_gradient_bytes,
        )

    def forward(self, layer: Placed, *, keeping: bool) -> None:
        """Run a layer and let go of what nobody needs any more."""
        node, kept = layer.node, self.keeps[layer.node.name]
        for name in (*node.inputs, node.name):
            self._make(self.storage[name])
        if keeping:
            self._keep(layer, kept, 1)
        self.moments.append(self.moment())
        self.let_go(self.storage[name] for name in node.inputs)
        self._free(self.storage[node.name])

    def _make(self, storage: str) -> None:
        if storage not in self.made:
            self.made.add(storage)
            self.activation_sample_bytes += self.storage_bytes[storage]

    def let_go(self, storages: Iterable[str]) -> None:
        """Undo one `hold` of each."""
        for storage in storages:
            self.holders[storage] -= 1
            self._free(storage)

    def _free(self, storage: str) -> None:
        """Free a storage that nobody holds."""
        if not self.holders[storage] and storage in self.made:
            self.made.remove(storage)
            self.activation_sample_bytes -= self.storage_bytes[storage]

    def _keep(self, layer: Placed, kept: Kept, sign: int) -> None:
        sample_bytes = kept.sample_bytes + kept.mask_items * self.sizes.mask_bytes
        self.activation_sample_bytes += sign * sample_bytes * layer.scale
        self.activation_bytes += sign * kept.batch_bytes
        if self.sizes.casts and layer.node.layer.kind in ("conv", "linear"):
            self.cast_bytes += sign * layer.node.layer.params * self.sizes.item_bytes

    def start_backward(self, last: Placed) -> None:
        """The gradient of the last result: a number where that is a loss, else as large as the result."""
        sample_bytes = self._result_bytes(last.node.layer) * last.scale
        self.transient_sample_bytes += sample_bytes
        self.gradients[last.node.name] = (_Gradient(sample_bytes), False)

    def _result_bytes(self, layer: Layer) -> float:
        return 0.0 if isinstance(layer, Loss) else layer.output_items * self.sizes.item_bytes

    def backward(self, layer: Placed) -> None:
        """Run a layer's backward and let go of what it kept."""
        node, kept = layer.node, self.keeps[layer.node.name]
        arrived = self.gradients.pop(node.name, None)
        if arrived is not None:
            fresh_bytes = node.layer.params * self.sizes.parameter_bytes
            self.gradient_bytes += fresh_bytes
            made = self._operand_gradients(layer, arrived[0])
            working = kept.backward_sample_bytes * layer.scale
            self.transient_sample_bytes += working
            self.moments.append(self.moment(fresh_bytes))
            self.transient_sample_bytes -= working
            self._drop(arrived[0])
        self._keep(layer, kept, -1)
        self.let_go(self.kept_storages[node.name])
        if arrived is not None:
            for name, gradient in made:
                self._hand_on(name, gradient, is_view=node.layer.kind == "concat")

    def _operand_gradients(self, layer: Placed, arrived: _Gradient) -> list[tuple[str, _Gradient]]:
        made = []
        for name, items in zip(layer.node.inputs, layer.node.layer.operand_items, strict=True):
            if not self.sizes.trainable.get(name, name != INPUT):
                continue
            if self.keeps[layer.node.name].hands_on:
                gradient = arrived
                arrived.holders += 1
            else:
                gradient = _Gradient(items * self.sizes.item_bytes * layer.scale)
                self.transient_sample_bytes += gradient.sample_bytes
            made.append((name, gradient))
        return made

    def _hand_on(self, name: str, gradient: _Gradient, *, is_view: bool) -> None:
        if name not in self.gradients:
            self.gradients[name] = (gradient, is_view)
            return
        first, first_is_view = self.gradients[name]
        if first.holders == 1 and not first_is_view:
            self._drop(gradient)
            return
        both = _Gradient(gradient.sample_bytes)
        self.transient_sample_bytes += both.sample_bytes
        self.moments.append(self.moment())
        self._drop(first)
        self._drop(gradient)
        self.gradients[name] = (both, False)

    def _drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.transient_sample_bytes -= gradient.sample_bytes


def _kept(node: Node, sizes: Sizes) -> Kept:
    """What the layer keeps: nothing where no gradient passes through it."""
    kept = KEEPS[node.layer.kind](node.layer)
    return kept if sizes.trainable.get(node.name, True) else Kept(hands_on=kept.hands_on)


def _storages(layers: Sequence[Placed]) -> dict[str, str]:
    """The name of each tensor's storage: an in-place layer's result lies where its first operand does."""
    storage: dict[str, str] = {}
    for layer in layers:
        node = layer.node
        for name in node.inputs:
            storage.setdefault(name, name)  # the sample, or what another device sends
        in_place = isinstance(node.layer, Elementwise) and node.layer.inplace
        storage[node.name] = storage[node.inputs[0]] if in_place else node.name
    return storage


def _storage_bytes(layers: Sequence[Placed], storage: Mapping[str, str], sizes: Sizes) -> dict[str, float]:
    """Bytes per sample of each storage: the largest of what is written and what is read.

    A reader may have more of a tensor than its writer made, because parts of it came from other devices. The sample
    itself is counted as input; only a narrower copy of it is an activation.
    """
    found: dict[str, float] = dict.fromkeys(storage.values(), 0.0)
    for layer in layers:
        node = layer.node
        tensors = [(node.name, 0 if isinstance(node.layer, Loss) else node.layer.output_items)]
        tensors += zip(node.inputs, node.layer.operand_items, strict=True)
        for name, items in tensors:
            if name == INPUT and (not sizes.casts or node.layer.kind == "embedding"):
                continue
            found[storage[name]] = max(found[storage[name]], items * sizes.item_bytes * layer.scale)
    return found
