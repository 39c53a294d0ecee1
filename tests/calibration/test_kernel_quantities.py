from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.quantities import (
    Convolutions,
    Processor,
    alignment,
    convolutions,
    join,
    matrix_products,
    row_operations,
)
from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.windows import Conv

V100 = Processor(80, 6 * 2**20)
PRODUCT_PHASES = (Phase.FORWARD, Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT)


def shapes(layer: Conv, samples: int) -> Convolutions:
    def axes(values: tuple[int, ...], missing: int) -> np.ndarray:
        return np.array([[*[missing] * (3 - len(values)), *values]], dtype=float)

    return Convolutions(
        samples=np.array([float(samples)]),
        channels=np.array([float(layer.in_channels)]),
        filters=np.array([float(layer.out_channels)]),
        groups=np.array([float(layer.groups)]),
        extents=axes(layer.extents, 1),
        kernel=axes(layer.kernel, 1),
        stride=axes(layer.stride, 1),
        padding=axes(layer.padding, 0),
        dilation=axes(layer.dilation, 1),
    )


LAYERS = (
    Conv.of((64, 56, 56), 256, 1, bias=False),
    Conv.of((3, 224, 224), 64, 7, stride=2, padding=3, bias=False),
    Conv.of((32, 28, 28), 32, 3, padding=1, groups=32, bias=False),
    Conv.of((4, 32, 32, 32), 16, 3, padding=1, bias=False),
    Conv.of((16, 33, 31), 24, 3, dilation=2, bias=False),
)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("phase", PRODUCT_PHASES)
def test_work_of_a_convolution_is_that_of_the_layer(layer: Conv, phase: Phase) -> None:
    found = convolutions(shapes(layer, 8), phase, 4, V100)
    work = layer.work(phase, 8, Execution())
    assert found.flop[0] == work.flop
    assert found.bytes[0] == work.bytes


def test_the_phases_of_a_convolution_are_the_matrix_products_of_cudnn() -> None:
    # 2 samples, 3 -> 8 channels, 3 x 3 on 10 x 10 with padding 1 and stride 2: the result is 5 x 5.
    table = shapes(Conv.of((3, 10, 10), 8, 3, stride=2, padding=1), 2)
    expected = {
        Phase.FORWARD: (2 * 25, 8, 3 * 9),
        Phase.BACKWARD_DATA: (2 * 100, 3, 8 * 9),
        Phase.BACKWARD_WEIGHT: (8, 3 * 9, 2 * 25),
    }
    for phase, (m, n, k) in expected.items():
        product = table.product(phase)
        assert (product["m"][0], product["n"][0], product["k"][0]) == (m, n, k)


def test_a_linear_layer_is_one_product_of_its_work() -> None:
    layer = Linear(512, 1000, bias=False)
    found = matrix_products({"batch": 1, "m": np.array([32.0]), "n": 1000, "k": 512}, 4, V100)
    work = layer.work(Phase.FORWARD, 32, Execution())
    assert (found.flop[0], found.bytes[0]) == (work.flop, work.bytes)


def test_swapped_axes_are_told_apart() -> None:
    tall = matrix_products({"batch": 1, "m": np.array([4096.0]), "n": 64, "k": 512}, 4, V100)
    wide = matrix_products({"batch": 1, "m": np.array([64.0]), "n": 4096, "k": 512}, 4, V100)
    assert tall.flop[0] == wide.flop[0]
    assert not np.allclose(tall.columns, wide.columns)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 200))
def test_waves_and_tiles_stay_in_their_bounds(m: int, n: int, k: int, batch: int, units: int) -> None:
    axes = np.array([[batch], [m], [n], [k]], dtype=float)
    found = matrix_products(dict(zip(("batch", "m", "n", "k"), axes, strict=True)), 4, Processor(units, 1e6))
    assert found.wave_stretch[0] >= 1
    assert 0 < found.tile_efficiency[0] <= 1
    assert np.isfinite(found.columns).all()


@pytest.mark.parametrize("bad", [0.0, -3.0, float("nan")])
def test_an_axis_below_one_is_refused_by_name(bad: float) -> None:
    with pytest.raises(BadInput, match="n of a kernel"):
        matrix_products({"batch": 1, "m": np.array([4.0]), "n": np.array([bad]), "k": 4}, 4, V100)


def test_only_tables_with_the_same_columns_join() -> None:
    rows = row_operations(np.array([4.0]), np.array([8.0]), 8, V100)
    product = matrix_products({"batch": 1, "m": np.array([4.0]), "n": 4, "k": 4}, 4, V100)
    assert len(join([rows, rows])) == 2
    with pytest.raises(BadInput, match="same columns"):
        join([rows, product])


def test_a_processor_needs_units_and_a_cache() -> None:
    with pytest.raises(BadInput, match="needs units"):
        Processor(0, 1e6)


@given(st.integers(1, 2**53 - 1), st.integers(0, 900))
def test_alignment_is_right_for_every_float(odd_or_not: int, doublings: int) -> None:
    # Floats of any size are whole numbers here, and Python's have no largest: 64 in reach of what divides them.
    whole = int(float(odd_or_not * 2**doublings))
    power = min(whole & -whole, 64)
    assert alignment(np.array([float(whole)])).tolist() == [np.log2(power)]


def test_axes_beyond_whole_numbers_of_the_machine_have_finite_columns() -> None:
    # 1e9 samples of 1e6 x 1e6 pixels: a product of 1e21 rows, which is no 64-bit number.
    huge = convolutions(shapes(Conv.of((1, 10**6, 10**6), 1, 1), 10**9), Phase.FORWARD, 4, V100)
    assert np.isfinite(huge.columns).all()
    assert huge.flop.tolist() == [2e21]


@pytest.mark.filterwarnings("error")
def test_what_is_too_large_to_multiply_is_refused_without_a_warning() -> None:
    most = np.array([1e200])
    with pytest.raises(OutOfRange, match="too large"):
        matrix_products({"batch": 1.0, "m": most, "n": most, "k": most}, 4, V100)
    with pytest.raises(OutOfRange, match="too large"):
        row_operations(most, most, 8.0, V100)
    with pytest.raises(OutOfRange, match="too large"):
        convolutions(replace(shapes(LAYERS[0], 1), samples=most, filters=most), Phase.FORWARD, 4, V100)
