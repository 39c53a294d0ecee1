"""Operations that traced models have beside layers: products of two activations, and what has no kind of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from oracle.layer import Layer, Phase, Shape, not_negative, positive


@dataclass(frozen=True)
class Matmul(Layer):
    """A batched product of two activations: (batch, rows, inner) times (batch, inner, columns), per sample.

    What attention is made of where it is written out by hand. Its one backward yields the gradients of both operands.
    """

    kind: ClassVar[str] = "matmul"
    batch: int
    rows: int
    inner: int
    columns: int

    def __post_init__(self) -> None:
        positive(self, batch=self.batch, rows=self.rows, inner=self.inner, columns=self.columns)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        """The two operands."""
        return ((self.batch, self.rows, self.inner), (self.batch, self.inner, self.columns))

    @property
    def output_shape(self) -> Shape:
        """The product."""
        return (self.batch, self.rows, self.columns)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        product = 2 * samples * self.batch * self.rows * self.inner * self.columns
        if phase is Phase.FORWARD:
            return product, samples * (self.input_items + self.output_items)
        return 2 * product, samples * (2 * self.input_items + self.output_items)


@dataclass(frozen=True)
class Other(Layer):
    """Operations without a kind of their own, priced by the bytes that they move.

    A phase that moves nothing does not run: a slice or an expansion is a view, and only its gradient costs anything.
    The gradients of its weights come out of the same backward kernels as that of its input, as in a normalisation.

    Args:
        operations: what it is, such as `pow+mean+rsqrt`; for people, not for prices.
        operands: items of each operand per sample.
        shape: of the result.
        moved, backward_moved: items read plus written per sample.
        flop, backward_flop: operations per sample, as far as anybody counts them.
        weights: items of each trainable tensor.
    """

    kind: ClassVar[str] = "other"
    operations: str
    operands: Shape
    shape: Shape
    moved: int = 0
    backward_moved: int = 0
    flop: int = 0
    backward_flop: int = 0
    weights: Shape = ()

    def __post_init__(self) -> None:
        positive(self, operands=self.operands, shape=self.shape)
        if self.weights:
            positive(self, weights=self.weights)
        counts = (self.moved, self.backward_moved, self.flop, self.backward_flop)
        not_negative(self, counts=counts)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        """One axis for each operand."""
        return tuple((items,) for items in self.operands)

    @property
    def output_shape(self) -> Shape:
        """The shape of the result."""
        return self.shape

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        """One axis for each trainable tensor."""
        return tuple((items,) for items in self.weights)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that move anything, and the update of its weights."""
        runs = {Phase.FORWARD: self.moved, Phase.BACKWARD_DATA: self.backward_moved, Phase.UPDATE: len(self.weights)}
        return tuple(phase for phase, cost in runs.items() if cost)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        if phase is Phase.FORWARD:  # at least one operation per item, as elsewhere
            return samples * max(self.flop, self.moved), samples * self.moved
        return samples * max(self.backward_flop, self.backward_moved), samples * self.backward_moved
