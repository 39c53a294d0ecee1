"""An array of numbers or texts as it is stored and carried: as bytes, which are read only where they are needed.

A calibration holds hundreds of arrays and a prediction needs a few of them, so they stay bytes until somebody asks.
They are what `numpy.frombuffer` reads: little-endian, the last axis fastest. Lists of a quarter of a million numbers in
JSON took longer to read than all the rest of a prediction; files of calibrations (`oracle.interchange`) have them, as
people read those.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.errors import BadInput

_NUMBERS: dict[str, np.dtype[Any]] = {"float64": np.dtype("<f8"), "float32": np.dtype("<f4"), "int16": np.dtype("<i2")}
_TEXT = "text"

DTYPES = (*_NUMBERS, _TEXT)
"""The types that an array may have."""

_BY_KIND = {"f": "float64", "i": "int16", "U": _TEXT}
_LISTED = {"float64": (int, float), "float32": (int, float), "int16": (int,), _TEXT: (str,)}


@dataclass(frozen=True)
class StoredArray:
    """One array.

    Args:
        name: dotted, such as `branch0.process.targets`.
        dtype: one of `DTYPES`.
        shape: of the array.
        numbers: their bytes; of texts a flat JSON list in UTF-8.

    >>> StoredArray.of("x", np.array([[1.5, 2.0]])).read()
    array([[1.5, 2. ]])
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    numbers: bytes

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not self.name:
            raise BadInput("an array has a name of printable characters")
        if self.dtype not in DTYPES:
            raise BadInput(f"array {self.name} is of {self.dtype!r}; there are {', '.join(DTYPES)}")
        if any(length < 0 for length in self.shape):
            raise BadInput(f"array {self.name} has the shape {self.shape}")

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> StoredArray:
        """Write an array.

        Raises:
            BadInput: whole numbers that do not fit into 16 bits, or numbers that are not finite: `read` refuses them.
        """
        dtype = "float32" if array.dtype == np.float32 else _BY_KIND[array.dtype.kind]
        if dtype == _TEXT:
            return cls(name, dtype, array.shape, json.dumps(array.ravel().tolist()).encode())
        numbers = array.astype(_NUMBERS[dtype])
        if dtype == "int16" and not np.array_equal(numbers, array):
            raise BadInput(f"array {name} has a whole number that does not fit into 16 bits")
        _refuse_infinite(name, numbers)
        return cls(name, dtype, array.shape, numbers.tobytes())

    @classmethod
    def of_list(cls, name: str, dtype: str, shape: tuple[int, ...], items: Sequence[object]) -> StoredArray:
        """Write a flat list, the last axis fastest: `to_list` read back.

        Raises:
            BadInput: no type or shape of an array, or not a list of as many such numbers (or texts) as the shape says.
        """
        cls(name, dtype, shape, b"")  # refuses what is no type and no shape
        if not all(type(item) in _LISTED[dtype] for item in items):  # true and false are no numbers
            raise BadInput(f"array {name} is not written as a list of {dtype}")
        if len(items) != math.prod(shape):
            raise BadInput(f"array {name} has {len(items)} numbers, not the {shape} of its shape")
        try:
            with np.errstate(over="raise"):
                array = np.array(items, dtype=_NUMBERS.get(dtype, "U"))
        except (OverflowError, FloatingPointError):
            raise BadInput(f"array {name} has a number that is too large for {dtype}") from None
        return cls.of(name, array.reshape(shape))

    def to_list(self) -> list[Any]:
        """The numbers or texts as a flat list, a float32 with the few digits that tell it from its neighbours.

        Raises:
            BadInput: as `read`.
        """
        flat = self.read().ravel()
        return [float(str(number)) for number in flat] if self.dtype == "float32" else flat.tolist()

    def read(self) -> NDArray[Any]:
        """The array, which cannot be written to.

        Raises:
            BadInput: these are not the bytes of as many finite numbers (or texts) as the shape says.
        """
        try:
            flat = self._flat()
        except ValueError:
            raise BadInput(f"array {self.name} is not written as {self.dtype}") from None
        if flat.shape == self.shape:
            found = flat
        elif flat.ndim != 1 or flat.size != math.prod(self.shape):
            raise BadInput(f"array {self.name} has {flat.size} numbers, not the {self.shape} of its shape")
        else:
            found = flat.reshape(self.shape)
        _refuse_infinite(self.name, flat)
        return found

    def _flat(self) -> NDArray[Any]:
        if self.dtype == _TEXT:
            return np.array(json.loads(self.numbers), dtype="U")
        return np.frombuffer(self.numbers, dtype=_NUMBERS[self.dtype])


def _refuse_infinite(name: str, numbers: NDArray[Any]) -> None:
    if numbers.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(numbers), axis=None):  # half of `all`'s time
        raise BadInput(f"array {name} has a number that is not finite")
