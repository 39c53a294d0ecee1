from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from oracle.errors import BadInput
from oracle.stored_array import StoredArray


@given(
    st.one_of(
        arrays(np.float64, array_shapes(max_dims=3), elements=st.floats(allow_nan=False, allow_infinity=False)),
        arrays(
            np.float32, array_shapes(max_dims=3), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
        ),
        arrays(np.int16, array_shapes(max_dims=3)),
    )
)
def test_numbers_come_back_to_the_last_bit(array: NDArray[Any]) -> None:
    again = StoredArray.of("x", array).read()
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert np.array_equal(again, array)


def test_texts_come_back() -> None:
    names = np.array(["log2_m", "fill_128x64"])
    assert StoredArray.of("names", names).read().tolist() == names.tolist()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ("[1.0, 2.0, 3.0]", "has 3 numbers, not the"),
        ("[1.0, NaN]", "not finite"),
        ("[1.0, {}]", "not written as a list"),
        ("[1.0", "not written as a list"),
        ("7.0", "has 1 numbers, not the"),
        ("[[1.0], [2.0]]", "has 2 numbers, not the"),
    ],
)
def test_a_damaged_array_is_named(numbers: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"array weights .*{said}"):
        StoredArray("weights", "float64", (2,), numbers).read()


def test_an_array_of_another_type_is_refused() -> None:
    with pytest.raises(BadInput, match="complex128"):
        StoredArray("x", "complex128", (1,), "[0]")
