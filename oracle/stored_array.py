"""An array of numbers or texts as it is stored and carried: as JSON text, which is read only where it is needed.

A calibration holds hundreds of arrays and a prediction needs a few of them, so they stay texts until somebody asks.
Numbers are written with as many digits as their type has; reading gives the very same values.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.errors import BadInput

DTYPES = ("float64", "float32", "int16", "text")
"""The types that an array may have."""

_BY_KIND = {"f": "float64", "i": "int16", "U": "text"}


@dataclass(frozen=True)
class StoredArray:
    """One array.

    Args:
        name: dotted, such as `branch0.process.targets`.
        dtype: one of `DTYPES`.
        shape: of the array.
        numbers: a flat JSON list, the last axis fastest.

    >>> StoredArray.of("x", np.array([[1.5, 2.0]])).read()
    array([[1.5, 2. ]])
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    numbers: str

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not self.name:
            raise BadInput("an array has a name of printable characters")
        if self.dtype not in DTYPES:
            raise BadInput(f"array {self.name} is of {self.dtype!r}; there are {', '.join(DTYPES)}")
        if any(length < 0 for length in self.shape):
            raise BadInput(f"array {self.name} has the shape {self.shape}")

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> StoredArray:
        """Write an array; whole numbers must fit into 16 bits."""
        dtype = "float32" if array.dtype == np.float32 else _BY_KIND[array.dtype.kind]
        flat = array.ravel().tolist()
        if dtype == "float32":  # the few digits of a float32, not those of the same number in double precision
            flat = [float(str(number)) for number in array.ravel()]
        return cls(name, dtype, array.shape, json.dumps(flat))

    def read(self) -> NDArray[Any]:
        """The array.

        Raises:
            BadInput: the text is no list of as many finite numbers (or texts) as the shape says.
        """
        try:
            flat = self._flat()
        except (ValueError, TypeError, OverflowError, DeprecationWarning):
            raise BadInput(f"array {self.name} is not written as a list of {self.dtype}") from None
        if flat.ndim != 1 or flat.size != math.prod(self.shape):
            raise BadInput(f"array {self.name} has {flat.size} numbers, not the {self.shape} of its shape")
        if self.dtype.startswith("float") and not np.isfinite(flat).all():
            raise BadInput(f"array {self.name} has a number that is not finite")
        return flat.reshape(self.shape)

    def _flat(self) -> NDArray[Any]:
        if self.dtype == "int16" and len(self.numbers) > 2:  # a third of the time, which counts for nodes of trees
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of text that is no number
                return np.fromstring(self.numbers[1:-1], dtype=np.int16, sep=",")
        return np.array(json.loads(self.numbers), dtype="U" if self.dtype == "text" else self.dtype)
