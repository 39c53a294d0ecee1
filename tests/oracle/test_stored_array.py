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


def test_numbers_are_little_endian_bytes() -> None:
    # 1.5 is 0x3ff8000000000000.
    assert StoredArray.of("x", np.array([1.5])).numbers == bytes(6) + b"\xf8\x3f"
    assert StoredArray.of("x", np.array([1.5], dtype=">f8")).numbers == bytes(6) + b"\xf8\x3f"
    assert StoredArray.of("x", np.array([258])).numbers == b"\x02\x01"


def test_a_list_has_the_digits_of_its_type_and_is_read_back() -> None:
    array = StoredArray.of("x", np.array([[0.1, 3e7]], dtype=np.float32))
    assert array.to_list() == [0.1, 3e7]
    assert StoredArray.of_list("x", "float32", (1, 2), [0.1, 3e7]) == array
    names = StoredArray.of("names", np.array(["log2_m", "log2_n"]))
    assert StoredArray.of_list("names", "text", (2,), names.to_list()) == names


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (bytes(24), "has 3 numbers, not the"),
        (np.array([1.0, np.nan]).tobytes(), "not finite"),
        (bytes(17), "not written as float64"),
    ],
)
def test_a_damaged_array_is_named(numbers: bytes, said: str) -> None:
    with pytest.raises(BadInput, match=f"array weights .*{said}"):
        StoredArray("weights", "float64", (2,), numbers).read()


@pytest.mark.parametrize("numbers", [b'["a"', b"\xff"])
def test_a_damaged_text_is_named(numbers: bytes) -> None:
    with pytest.raises(BadInput, match="array names is not written as text"):
        StoredArray("names", "text", (1,), numbers).read()


@pytest.mark.parametrize(
    ("dtype", "items", "said"),
    [
        ("float64", [1.0], "has 1 numbers, not the"),
        ("float64", [1.0, True], "not written as a list of float64"),
        ("float64", [1.0, "2.0"], "not written as a list of float64"),
        ("float64", [1.0, 10**400], "too large for float64"),
        ("float32", [1.0, 1e300], "too large for float32"),
        ("int16", [1, 2.5], "not written as a list of int16"),
        ("int16", [1, 40000], "(too large for int16|does not fit)"),
        ("text", ["a", 1], "not written as a list of text"),
    ],
)
def test_a_damaged_list_is_named(dtype: str, items: list[object], said: str) -> None:
    with pytest.raises(BadInput, match=f"array weights .*{said}"):
        StoredArray.of_list("weights", dtype, (2,), items)


def test_a_whole_number_of_more_than_16_bits_is_refused() -> None:
    with pytest.raises(BadInput, match="does not fit into 16 bits"):
        StoredArray.of("x", np.array([40000]))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_what_could_not_be_read_is_not_written(number: float, kind: type) -> None:
    with pytest.raises(BadInput, match="array x has a number that is not finite"):
        StoredArray.of("x", np.array([[1.0, number]], dtype=kind))


def test_an_array_of_another_type_is_refused() -> None:
    with pytest.raises(BadInput, match="complex128"):
        StoredArray("x", "complex128", (1,), bytes(16))
