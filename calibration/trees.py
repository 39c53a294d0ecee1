"""Boosted regression trees as plain arrays, evaluated by NumPy alone. The fit lives in `calibration.residual_fit`.

A tree of at most 8 leaves is a list of conditions, and each condition says which leaves are still possible where an
input is not larger than its cut, and which where it is larger. One leaf is possible under all of them (QuickScorer,
Lucchese et al., SIGIR 2015, with both outcomes of every condition). So all conditions of all trees are compared at
once, without a walk from node to node: a third of its time for few kernels, a fifth for many. Numbers are compared in
float32, as scikit-learn does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.errors import BadInput
from oracle.estimate import Floats

LEAVES = 8
"""Leaves of a tree at most: one bit of a byte for each."""

_BLOCK = 256
"""Kernels evaluated at once: their comparisons stay in the cache."""

_LEAF_OF = np.zeros(256, dtype=np.intp)
_LEAF_OF[1 << np.arange(LEAVES)] = np.arange(LEAVES)

Masks = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of trees.

    Args:
        feature: the column that a condition compares, shape (trees, conditions).
        cut: what it is compared with, exact in float32, of the same shape.
        below, above: the leaves, bit by bit, that are possible up to the cut and above it, of the same shape.
        leaves: the value of each leaf, exact in float32, shape (trees, leaves).
        base: what is added to the sum.
    """

    feature: NDArray[np.int16]
    cut: NDArray[np.float32]
    below: Masks
    above: Masks
    leaves: NDArray[np.float32]
    base: float

    @classmethod
    def of_nodes(
        cls, children: NDArray[np.int16], feature: NDArray[np.int16], cut: NDArray[np.float32], base: float
    ) -> Trees:
        """Trees that are given node by node, the root first.

        Args:
            children: left and right slots of the same tree, a leaf's is its own, shape (2, trees, slots).
            feature: shape (trees, slots).
            cut: the threshold of an inner node, the value of a leaf, shape (trees, slots).
            base: what is added to the sum.

        Raises:
            BadInput: a tree has more than 8 leaves, or a child outside its slots.
        """
        trees, slots = cut.shape
        if not ((children >= 0) & (children < slots)).all():
            raise BadInput(f"a tree has a child outside its {slots} slots")
        # Slots are counted through all trees: places of flat arrays.
        roots = np.arange(0, trees * slots, slots, dtype=np.intp)
        left, right = (children.astype(np.intp) + roots[:, None]).reshape(2, -1)
        inner = left != np.arange(trees * slots)
        used = np.zeros(trees * slots, dtype=bool)
        used[roots], used[left[inner]], used[right[inner]] = True, True, True
        leaf = used & ~inner
        number = (np.cumsum(leaf.reshape(trees, slots), axis=1) - 1).ravel()
        if number.max(initial=0) >= LEAVES:
            raise BadInput(f"a tree has {number.max() + 1} leaves; there are at most {LEAVES}")
        under = np.where(leaf, np.left_shift(1, number), 0).astype(np.uint8)
        for _ in range(LEAVES - 1):  # as deep as a tree can be
            under = under | (under.take(left) | under.take(right))
        values = np.zeros((trees, LEAVES), dtype=np.float32)
        values.ravel()[(np.arange(trees * slots) // slots * LEAVES + number)[leaf]] = cut.ravel()[leaf]
        # A tree with fewer conditions than others has some that compare column 0 and rule out nothing.
        conditions, counts = np.flatnonzero(inner), inner.reshape(trees, slots).sum(axis=1)
        most = max(1, int(counts.max(initial=0)))
        places = np.arange(len(conditions)) + np.repeat(np.arange(trees) * most - (np.cumsum(counts) - counts), counts)
        possible = np.repeat(under.take(roots), most)
        below, above = (possible.copy() for _ in range(2))
        below[places] &= ~under.take(right.take(conditions))
        above[places] &= ~under.take(left.take(conditions))
        features, cuts = np.zeros(trees * most, dtype=np.int16), np.zeros(trees * most, dtype=np.float32)
        features[places], cuts[places] = feature.ravel().take(conditions), cut.ravel().take(conditions)
        return cls(
            feature=features.reshape(trees, most),
            cut=cuts.reshape(trees, most),
            below=below.reshape(trees, most),
            above=above.reshape(trees, most),
            leaves=values,
            base=base,
        )

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.feature, self.cut, self.below, self.above)}
        if len(shapes) > 1 or not self.feature.size or self.leaves.shape[:1] != self.feature.shape[:1]:
            raise BadInput("the conditions and leaves of trees do not belong together")
        if not 1 <= self.leaves.shape[1] <= LEAVES or self.feature.min() < 0:
            raise BadInput("trees have a leaf or compare a column that there is none of")

    @cached_property
    def _columns(self) -> int:
        """How many columns the conditions ask for."""
        return int(self.feature.max()) + 1

    @cached_property
    def _conditions(self) -> tuple[NDArray[np.intp], NDArray[np.float32], Masks, Masks]:
        """Features, cuts, masks below and what is other in them above: condition by condition, tree by tree."""
        feature, cut = self.feature.T.astype(np.intp).ravel(), self.cut.T.reshape(-1, 1)
        below, above = self.below.T.reshape(-1, 1), self.above.T.reshape(-1, 1)
        return feature, cut, below, below ^ above

    @cached_property
    def _values(self) -> tuple[Floats, NDArray[np.intp]]:
        """Values of all leaves, and where those of each tree begin."""
        trees, leaves = self.leaves.shape
        return self.leaves.astype(np.float64).ravel(), np.arange(0, trees * leaves, leaves, dtype=np.intp)[:, None]

    def predict(self, inputs: Floats) -> Floats:
        """The sum of all trees for inputs (m, d), shape (m,).

        Raises:
            BadInput: a condition compares a column that the inputs do not have.
        """
        if inputs.shape[1] < self._columns:
            raise BadInput(f"trees over {self._columns} columns cannot be asked about {inputs.shape[1]}")
        rounded = inputs.T.astype(np.float32)
        blocks = [self._block(rounded[:, begin : begin + _BLOCK]) for begin in range(0, len(inputs), _BLOCK)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, columns: NDArray[np.float32]) -> Floats:
        feature, cut, below, other = self._conditions
        values, first = self._values
        larger = (columns.take(feature, axis=0) > cut).view(np.uint8)
        possible = (np.negative(larger, out=larger) & other) ^ below
        one = np.bitwise_and.reduce(possible.reshape(-1, len(first), columns.shape[1]), axis=0)
        found: Floats = self.base + values.take(_LEAF_OF.take(one) + first).sum(axis=0)
        return found

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays; `from_arrays` reads them back."""
        conditions = np.stack([self.feature, self.below.astype(np.int16), self.above.astype(np.int16)])
        return {"conditions": conditions, "cut": self.cut, "leaves": self.leaves, "numbers": np.array([self.base])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Trees:
        """Read `to_arrays` back, or nodes, as trees were stored before.

        Raises:
            KeyError: an array is missing; BadInput, ValueError: one cannot be what was written.
        """
        if "nodes" in arrays:
            depth, base = arrays["numbers"].tolist()
            slots = arrays["cut"].shape[1]
            if not (0 <= depth < slots and depth == int(depth)):
                raise BadInput(f"trees of {slots} slots cannot be {depth:g} deep")
            feature, *children = arrays["nodes"]
            return cls.of_nodes(np.stack(children), feature, arrays["cut"], base)
        (base,) = arrays["numbers"].tolist()
        feature, below, above = arrays["conditions"]
        return cls(feature, arrays["cut"], below.astype(np.uint8), above.astype(np.uint8), arrays["leaves"], base)
