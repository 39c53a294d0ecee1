"""Boosted regression trees as plain arrays, evaluated by NumPy alone. The fit lives in `calibration.residual_fit`.

All trees have the same number of slots, so that one array holds each property: `feature`, `cut` (the threshold of an
inner node, the value of a leaf), `left` and `right` (slots of the same tree; a leaf points to itself). An input goes
left if it is not larger than the threshold, compared in float32 as scikit-learn does. All trees walk down together,
one level per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.estimate import Floats

_BLOCK = 256
"""Kernels evaluated at once: their nodes stay in the cache."""


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of trees.

    Args:
        feature, left, right: shape (trees, slots), small integers; cut: shape (trees, slots), exact in float32.
        depth: steps from the root to the deepest leaf.
        base: what is added to the sum.
    """

    feature: NDArray[np.int16]
    left: NDArray[np.int16]
    right: NDArray[np.int16]
    cut: Floats
    depth: int
    base: float

    @cached_property
    def _flat(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats, NDArray[np.intp]]:
        """Features, children (left and right in turn) as places in the flat arrays, cuts, and the roots."""
        trees, slots = self.cut.shape
        roots = np.arange(trees, dtype=np.intp) * slots
        children = np.stack([self.left, self.right], axis=2).astype(np.intp) + roots[:, None, None]
        return self.feature.astype(np.intp).ravel(), children.ravel(), self.cut.ravel(), roots

    def predict(self, inputs: Floats) -> Floats:
        """The sum of all trees for inputs (m, d), shape (m,)."""
        rounded = inputs.astype(np.float32).astype(np.float64)
        blocks = [self._block(rounded[begin : begin + _BLOCK]) for begin in range(0, len(rounded), _BLOCK)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, inputs: Floats) -> Floats:
        feature, children, cut, roots = self._flat
        count, width = inputs.shape
        flat = inputs.ravel()
        rows = (np.arange(count, dtype=np.intp) * width)[:, None]
        node = np.broadcast_to(roots, (count, len(roots)))
        for _ in range(self.depth):
            goes_right = flat.take(feature.take(node) + rows) > cut.take(node)
            node = children.take(2 * node + goes_right)
        found: Floats = self.base + cut.take(node).sum(axis=1)
        return found

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays; `from_arrays` reads them back."""
        nodes = np.stack([self.feature, self.left, self.right])
        return {"nodes": nodes, "cut": self.cut.astype(np.float32), "numbers": np.array([self.depth, self.base])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Trees:
        """Read `to_arrays` back."""
        feature, left, right = arrays["nodes"]
        depth, base = arrays["numbers"].tolist()
        return cls(feature, left, right, np.asarray(arrays["cut"], dtype=np.float64), int(depth), base)
