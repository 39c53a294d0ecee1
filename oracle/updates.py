"""What an optimizer updates in one call: the trainable tensors of a layer, or of everything that a device trains.

An optimizer walks over all its tensors in one `step()`: one by one, in lists, or in one kernel that is handed as many
as fit. So the update of a model is one call and not the sum of its layers' updates, and what it costs depends on how
many tensors there are and how large they are, not on whose they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from oracle.errors import BadInput
from oracle.layer import Layer, Phase, Shape, positive

Sizes = tuple[tuple[int, int], ...]
"""Pairs of numbers: items of a tensor, and how many tensors have so many."""


@dataclass(frozen=True)
class Parameters(Layer):
    """Trainable tensors that are updated together; they are no layer of a model, and run nothing but their update.

    Args:
        tensors: items and number of the tensors of each size, the largest first.

    Raises:
        BadInput: no tensors, or sizes that do not fall; OutOfRange: a number below one.
    """

    kind: ClassVar[str] = "parameters"
    tensors: Sizes

    def __post_init__(self) -> None:
        sizes = [items for items, _ in self.tensors]
        if not sizes or any(larger <= smaller for larger, smaller in pairwise(sizes)):
            raise BadInput(f"{self.kind} are tensors of one or more sizes, the largest first, each once")
        for pair in self.tensors:
            positive(self, tensors=pair)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        """They read nothing."""
        return ()

    @property
    def output_shape(self) -> Shape:
        """They have no result."""
        return (0,)

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        """One axis for each tensor."""
        return tuple((items,) for items, count in self.tensors for _ in range(count))

    @property
    def params(self) -> int:
        """Items of all tensors."""
        return sum(items * count for items, count in self.tensors)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The update."""
        return (Phase.UPDATE,)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        raise BadInput(f"{self.kind} have no {phase} phase")  # `work` answers for the update itself

    @property
    def text(self) -> str:
        """How people call them: `40 parameters in 2 tensors`."""
        tensors = sum(count for _, count in self.tensors)
        return f"{self.params:,} parameters in {tensors} tensor{'s' if tensors > 1 else ''}"

    def halved(self) -> Parameters:
        """As many tensors with half the items of each."""
        counts: Counter[int] = Counter()
        for items, count in self.tensors:
            counts[max(1, items // 2)] += count
        return _of_sizes(counts)

    def times(self, number: int) -> Parameters:
        """So many tensors for each of these."""
        return Parameters(tuple((items, number * count) for items, count in self.tensors))


def together(layers: Iterable[Layer]) -> Parameters:
    """The trainable tensors of some layers, at least one of which has any.

    >>> from oracle.layers import Linear
    >>> together([Linear(8, 4), Linear(4, 4)])
    Parameters(tensors=((32, 1), (16, 1), (4, 2)))
    """
    return _of_sizes(Counter(math.prod(shape) for layer in layers for shape in layer.param_shapes))


def _of_sizes(counts: Mapping[int, int]) -> Parameters:
    """From how many tensors have so many items."""
    return Parameters(tuple(sorted(counts.items(), reverse=True)))
