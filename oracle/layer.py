"""What every kind of layer has: shapes, parameters, phases and the work of each phase.

Shapes are per sample, without the batch axis: (channels, *extents) for images and volumes, (tokens, features) for
sequences, (features,) for vectors. A layer has no name, so that equal shapes are equal keys wherever they occur.

`Work.bytes` counts compulsory memory traffic: every operand read once and every result written once, which is what a
kernel that fuses nothing else must move. FLOP counts a multiply-add as two (as torch's FlopCounterMode does) and adds
the operations of normalisations, poolings and elementwise layers, which torch counts as zero.

The phases are those of ParaDL (HPDC 2021), with backward split in two:
forward; backward-data (gradient of the input; with a normalisation's small parameter gradients, which come out of the
same kernel); backward-weight; update (optimizer).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, ClassVar

from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution

Shape = tuple[int, ...]


class Phase(StrEnum):
    """What a layer's kernels do."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHT = "backward_weight"
    UPDATE = "update"


WITH_WEIGHTS = (Phase.FORWARD, Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT, Phase.UPDATE)
WITH_TIED_WEIGHTS = WITH_WEIGHTS[:-1]
"""The phases of a layer with weights of its own, and of one whose weights belong to another layer."""


@dataclass(frozen=True)
class Work:
    """Operations and compulsory memory traffic of one kernel."""

    flop: float
    bytes: float


@dataclass(frozen=True)
class Layer(ABC):
    """A layer as one device runs it.

    What a prediction asks of it again and again is worked out once (`cached_property`); a layer never changes.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        # Every kind keeps the one hash that is remembered: dataclasses would write each of them another.
        cls.__hash__ = Layer.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.values)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: texts have other hashes in another process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def values(self) -> tuple[Any, ...]:
        """The fields in their order: what makes two layers of a kind equal."""
        found: tuple[Any, ...] = _values_of(type(self))(self)
        return found

    @property
    @abstractmethod
    def input_shapes(self) -> tuple[Shape, ...]:
        """One shape per operand."""

    @property
    @abstractmethod
    def output_shape(self) -> Shape:
        """The shape of the result."""

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        """The trainable tensors, in torch's order."""
        return ()

    @cached_property
    def params(self) -> int:
        """How many trainable numbers it holds."""
        return sum(math.prod(shape) for shape in self.param_shapes)

    @cached_property
    def operand_items(self) -> tuple[int, ...]:
        """Items of each operand, per sample."""
        return tuple(map(math.prod, self.input_shapes))

    @cached_property
    def input_items(self) -> int:
        """|x|: items of all operands, per sample."""
        return sum(self.operand_items)

    @cached_property
    def output_items(self) -> int:
        """|y|: items of the result, per sample."""
        return math.prod(self.output_shape)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in which it runs kernels of its own."""
        return WITH_WEIGHTS if self.params else (Phase.FORWARD, Phase.BACKWARD_DATA)

    def work(self, phase: Phase, samples: int, execution: Execution = Execution()) -> Work:
        """The operations and memory traffic of one phase.

        Args:
            phase: one of `phases`.
            samples: samples in the device's batch (the update does not depend on it).
            execution: gives the bytes of an item and the optimizer.

        Raises:
            OutOfRange: no samples, or a phase that this layer does not have.
        """
        if phase not in self.phases:
            raise OutOfRange(f"a {self.kind} layer has no {phase} phase; it has {', '.join(self.phases)}")
        if samples < 1:
            raise OutOfRange(f"a layer needs at least one sample, not {samples}")
        if phase is Phase.UPDATE:
            optimizer = execution.optimizer_cost
            # Optimizers keep weights, gradients and states in float32 whatever the activations are.
            return Work(optimizer.flop * self.params, 4 * optimizer.words_moved * self.params)
        flop, items = self._flop_and_items(phase, samples)
        return Work(flop, execution.item_bytes * items)

    @abstractmethod
    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        """FLOP, and items read plus written, of one phase other than the update."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `layer_from_dict` reads them back."""
        # Fields are numbers, texts and tuples of them: nothing to copy deep, which took most of an import of kernels.
        return {"kind": self.kind, **self.__getstate__()}


@cache
def _values_of(kind: type[Layer]) -> Callable[[Layer], Any]:
    names = [field.name for field in fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda layer: (getattr(layer, names[0]),)


def own_params(weight: Shape, out: int, layer: Any) -> tuple[Shape, ...]:
    """The trainable tensors of a layer that may have a bias of `out` numbers, and whose weight may be another's."""
    tensors = ((weight, not layer.tied), ((out,), layer.bias))
    return tuple(shape for shape, own in tensors if own)


def positive(layer: Layer, **values: int | Shape) -> None:
    """Refuse values below one, and shapes without an axis."""
    for name, value in values.items():
        if value == ():
            raise BadInput(f"{name} of a {layer.kind} layer has no axes")
        if any(item < 1 for item in (value if isinstance(value, tuple) else (value,))):
            raise OutOfRange(f"{name} of a {layer.kind} layer must be at least 1, not {value}")


def not_negative(layer: Layer, **values: int | Shape) -> None:
    """Refuse values below zero."""
    for name, value in values.items():
        if any(item < 0 for item in (value if isinstance(value, tuple) else (value,))):
            raise OutOfRange(f"{name} of a {layer.kind} layer must not be negative, not {value}")


def same_rank(layer: Layer, rank: int, **values: Shape) -> None:
    """Refuse values that have not one number per spatial axis."""
    for name, value in values.items():
        if len(value) != rank:
            raise BadInput(f"{name} of a {layer.kind} layer has {len(value)} axes, its input has {rank}")
