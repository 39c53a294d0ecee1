"""The physical quantities of a kernel, from its shape alone: what the roofline and the residual model see. NumPy only.

Every tensor kernel is described as an implicit matrix product of `batch` problems (M, N, K), as cuDNN and cuBLAS run it
(Chetlur et al., arXiv:1410.0759): a convolution forward is (samples x output pixels, filters, channels x kernel), its
backward-data (samples x input pixels, channels, filters x kernel), its backward-weight (filters, channels x kernel,
samples x output pixels). A swapped axis hides in any model that sees only FLOP and bytes, so the axes are columns.

Why tiles. A device computes output tiles; with w tiles per parallel unit it runs ceil(w) waves, so its time has steps
(wave quantisation, NVIDIA, "Matrix Multiplication Background User's Guide") and a part of every border tile is waste.
The parallel units and the last-level cache enter through the tiles per unit and the bytes per cache, which is what
lets one device's residual inform another's. CPUs take the same form with cores and their last-level cache.

Why alignment. Vectorised loads and matrix units want axes divisible by a power of two: the column is log2 of the
largest power of two up to 64 that divides the axis; the *class* keeps three steps of it (odd, even, divisible by 8),
because only steps that a calibration has seen at all can be told from those that it has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oracle.errors import BadInput
from oracle.estimate import Floats
from oracle.layer import Phase

Rows = NDArray[np.intp] | slice
"""Which kernels of a table."""

TILES = ((64, 64), (64, 128), (128, 64), (128, 128))
"""Output tiles whose waves and waste are columns; the roofline uses 128 x 64, the middle of what libraries choose."""

_ROOFLINE_TILE = TILES.index((128, 64))

_MORE_TILES = ((32, 32), (256, 128), (128, 256))
_LOAD_COST = 12.0
"""Multiply-adds that pay for loading one number into a tile, when the cheapest tile of a product is looked for."""


@dataclass(frozen=True)
class Processor:
    """What of a device shapes its kernels: streaming multiprocessors or cores, and the last-level cache in bytes."""

    units: int
    cache_bytes: float

    def __post_init__(self) -> None:
        if self.units < 1 or not self.cache_bytes > 0:
            raise BadInput(f"a processor needs units and a cache, not {self.units} and {self.cache_bytes:g} bytes")


@dataclass(frozen=True)
class Quantities:
    """The quantities of n kernels.

    Args:
        launches: kernels started one after the other, 1 but for updates; flop, bytes: work, shape (n,).
        wave_stretch: ceil(w) / w >= 1 for w tiles per unit; tile_efficiency: useful part of all tiles, in (0, 1].
        winograd: 1 where the Winograd algorithm applies (3 x 3, stride 1), else 0.
        dims: log2 of the axes, shape (n, k): what the calibrated range is a range of.
        classes: small integers, shape (n, c): alignments, kernel, stride, groups; unseen ones are extrapolation.
        columns: what the residual model sees, shape (n, d).
        names: the names of the columns.
    """

    launches: Floats
    flop: Floats
    bytes: Floats
    wave_stretch: Floats
    tile_efficiency: Floats
    winograd: Floats
    dims: Floats
    classes: Floats
    columns: Floats
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.flop)

    def take(self, rows: Rows) -> Quantities:
        """The same quantities of some of the kernels."""
        picked = {item.name: getattr(self, item.name)[rows] for item in fields(self) if item.name != "names"}
        return Quantities(**picked, names=self.names)


def join(parts: Sequence[Quantities]) -> Quantities:
    """Stack the kernels of several tables with the same columns.

    Raises:
        BadInput: no tables, or tables of different kinds.
    """
    if not parts or any(part.names != parts[0].names for part in parts):
        raise BadInput("only tables with the same columns can be joined")
    names = [item.name for item in fields(Quantities) if item.name != "names"]
    return Quantities(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names}, names=parts[0].names)


def alignment(axis: Floats) -> Floats:
    """log2 of the largest power of two, up to 64, that divides each (positive, whole) number.

    >>> alignment(np.array([7, 24, 256])).tolist()
    [0.0, 3.0, 6.0]
    """
    whole = axis.astype(np.int64)
    found: Floats = np.log2(np.minimum(whole & -whole, 64))
    return found


def _alignment_class(axis: Floats) -> Floats:
    return np.searchsorted([1, 3], alignment(axis), side="right").astype(float)


def _checked(axes: Mapping[str, ArrayLike]) -> dict[str, Floats]:
    found = {name: np.asarray(axis, dtype=float) for name, axis in axes.items()}
    for name, axis in found.items():
        if not (np.isfinite(axis) & (axis >= 1)).all():
            raise BadInput(f"{name} of a kernel must be whole numbers from 1")
    return dict(zip(found, np.broadcast_arrays(*found.values()), strict=True))


def matrix_products(axes: Mapping[str, ArrayLike], item_bytes: float, processor: Processor) -> Quantities:
    """Quantities of batched matrix products.

    Args:
        axes: `batch`, `m`, `n`, `k`, each of shape (count,) or a number; the result is batch x m x n.
        item_bytes: bytes of one number.
        processor: the device.

    Raises:
        BadInput: an axis below 1 or not a number.

    >>> one = matrix_products({"batch": 1, "m": [128], "n": [64], "k": [32]}, 4, Processor(1, 1e6))
    >>> one.flop.tolist(), one.bytes.tolist(), one.wave_stretch.tolist()
    ([524288.0], [57344.0], [1.0])
    """
    checked = _checked(axes)
    batch, m, n, k = (checked[name] for name in ("batch", "m", "n", "k"))
    moved = item_bytes * batch * (m * k + n * k + m * n)
    columns, stretch, efficiency = _product_columns(checked, processor)
    columns |= _size_columns(2 * batch * m * n * k, moved, processor)
    return Quantities(
        launches=np.ones(len(m)),
        flop=2 * batch * m * n * k,
        bytes=moved,
        wave_stretch=stretch,
        tile_efficiency=efficiency,
        winograd=np.zeros(len(m)),
        dims=np.log2(np.stack([batch, m, n, k], axis=1)),
        classes=np.stack([_alignment_class(n), _alignment_class(k)], axis=1),
        columns=np.stack(list(columns.values()), axis=1),
        names=tuple(columns),
    )


def _product_columns(axes: Mapping[str, Floats], processor: Processor) -> tuple[dict[str, Floats], Floats, Floats]:
    """Columns of one implicit matrix product, and the wave stretch and tile efficiency of the roofline's tile."""
    batch, m, n, k = (axes[name] for name in ("batch", "m", "n", "k"))
    columns = {f"log2_{name}": np.log2(axes[name]) for name in ("batch", "m", "n", "k")}
    columns["log2_narrow"] = np.log2(np.minimum(m, n))
    columns["k_fill"] = np.log2(np.ceil(k / 32) * 32 / k)
    columns |= {f"align_{name}": alignment(axes[name]) for name in ("m", "n", "k")}
    stretches, efficiencies = [], []
    for height, width in TILES:
        tiles = batch * np.ceil(m / height) * np.ceil(n / width)
        per_unit = tiles / processor.units
        stretches.append(np.ceil(per_unit) / per_unit)
        efficiencies.append(batch * m * n / (tiles * height * width))
        tile = f"{height}x{width}"
        if height == TILES[-1][0]:
            columns[f"waves_{tile}"] = np.clip(np.log2(per_unit), -6, 8)
        if width == TILES[-1][1] or (height, width) == TILES[_ROOFLINE_TILE]:
            columns[f"stretch_{tile}"] = np.minimum(np.log2(stretches[-1]), 4)
        columns[f"fill_{tile}"] = np.log2(efficiencies[-1])
    columns["log2_cheapest_tile"] = _cheapest_tile(axes, processor)
    return columns, stretches[_ROOFLINE_TILE], efficiencies[_ROOFLINE_TILE]


def _cheapest_tile(axes: Mapping[str, Floats], processor: Processor) -> Floats:
    """log2 of what waves, waste and loads cost with the tile for which that is least, per useful result."""
    costs = []
    for height, width in (*TILES, *_MORE_TILES):
        tiles = axes["batch"] * np.ceil(axes["m"] / height) * np.ceil(axes["n"] / width)
        slots = np.ceil(tiles / processor.units) * processor.units * height * width
        loads = 1 + _LOAD_COST * (height + width) / (height * width)
        costs.append(slots / (axes["batch"] * axes["m"] * axes["n"]) * loads)
    found: Floats = np.log2(np.min(costs, axis=0))
    return found


def _size_columns(flop: Floats, moved: Floats, processor: Processor) -> dict[str, Floats]:
    return {
        "log2_flop": np.log2(flop),
        "log2_bytes": np.log2(moved),
        "log2_intensity": np.log2(flop / moved),
        "log2_bytes_per_cache": np.clip(np.log2(moved / processor.cache_bytes), -6, 6),
    }


@dataclass(frozen=True)
class Convolutions:
    """The shapes of n convolutions with three spatial axes (1 where an axis is missing).

    Args:
        samples, channels, filters, groups: shape (n,); extents: of the input.
        extents, kernel, stride, padding, dilation: shape (n, 3).
    """

    samples: Floats
    channels: Floats
    filters: Floats
    groups: Floats
    extents: Floats
    kernel: Floats
    stride: Floats
    padding: Floats
    dilation: Floats

    @property
    def out_extents(self) -> Floats:
        """Spatial axes of the result, shape (n, 3)."""
        reach = self.dilation * (self.kernel - 1) + 1
        found: Floats = np.floor((self.extents + 2 * self.padding - reach) / self.stride) + 1
        return found

    @property
    def winograd(self) -> Floats:
        """1 where the Winograd algorithm applies: 3 x 3, stride 1, no dilation, one group."""
        square = (self.kernel[:, 0] == 1) & (self.kernel[:, 1:] == 3).all(axis=1)
        plain = (self.stride == 1).all(axis=1) & (self.dilation == 1).all(axis=1) & (self.groups == 1)
        found: Floats = (square & plain).astype(float)
        return found

    def product(self, phase: Phase) -> dict[str, Floats]:
        """The axes of the implicit matrix product of one phase; the groups are its batch.

        Raises:
            BadInput: the update is no matrix product.
        """
        per_group, filters = self.channels / self.groups, self.filters / self.groups
        window = self.kernel.prod(axis=1)
        pixels, inputs = self.samples * self.out_extents.prod(axis=1), self.samples * self.extents.prod(axis=1)
        products = {
            Phase.FORWARD: (pixels, filters, per_group * window),
            Phase.BACKWARD_DATA: (inputs, per_group, filters * window),
            Phase.BACKWARD_WEIGHT: (filters, per_group * window, pixels),
        }
        if phase not in products:
            raise BadInput(f"a convolution's {phase} is no matrix product; {', '.join(products)} are")
        return dict(zip(("batch", "m", "n", "k"), (self.groups, *products[phase]), strict=True))


def convolutions(shapes: Convolutions, phase: Phase, item_bytes: float, processor: Processor) -> Quantities:
    """Quantities of convolutions in one phase; FLOP and bytes are those of the layer, the same in all three phases.

    Raises:
        BadInput: an axis below 1, an empty result, or the update phase.
    """
    axes = _checked(shapes.product(phase))
    out = shapes.out_extents
    if (out < 1).any():
        raise BadInput("a convolution's result is empty: its window is larger than its padded input")
    samples, pixels = shapes.samples, out.prod(axis=1)
    weights = shapes.filters * shapes.channels / shapes.groups * shapes.kernel.prod(axis=1)
    flop = 2 * samples * pixels * weights
    inputs = samples * shapes.channels * shapes.extents.prod(axis=1)
    moved = item_bytes * (inputs + samples * shapes.filters * pixels + weights)
    columns, stretch, efficiency = _product_columns(axes, processor)
    columns |= _size_columns(flop, moved, processor) | _convolution_columns(shapes)
    window = shapes.kernel.prod(axis=1)
    return Quantities(
        launches=np.ones(len(flop)),
        flop=flop,
        bytes=moved,
        wave_stretch=stretch,
        tile_efficiency=efficiency,
        winograd=shapes.winograd,
        dims=np.log2(np.stack([samples, shapes.channels, shapes.filters, pixels], axis=1)),
        classes=np.stack([window, shapes.stride.prod(axis=1), np.minimum(shapes.groups, 2)], axis=1),
        columns=np.stack(list(columns.values()), axis=1),
        names=tuple(columns),
    )


def _convolution_columns(shapes: Convolutions) -> dict[str, Floats]:
    out = shapes.out_extents
    plane = out[:, 1:]
    return {
        "log2_samples": np.log2(shapes.samples),
        "log2_channels": np.log2(shapes.channels),
        "log2_filters": np.log2(shapes.filters),
        "log2_pixels": np.log2(out.prod(axis=1)),
        "log2_window": np.log2(shapes.kernel.prod(axis=1)),
        "log2_stride": np.log2(shapes.stride.prod(axis=1)),
        "winograd": shapes.winograd,
        "winograd_fill_2": np.log2((np.ceil(plane / 2) * 2 / plane).prod(axis=1)),
        "winograd_fill_4": np.log2((np.ceil(plane / 4) * 4 / plane).prod(axis=1)),
        "align_channels": alignment(shapes.channels),
        "align_width": alignment(shapes.extents[:, 2]),
    }


def row_operations(rows: Floats, cols: Floats, bytes_per_item: float | Floats, processor: Processor) -> Quantities:
    """Quantities of kernels that work on rows, such as softmax, normalisations and elementwise operations.

    Args:
        rows: shape (n,), for example samples; cols: items of a row, shape (n,).
        cols: items of a row, for example of a sample.
        bytes_per_item: bytes read and written for each item, all operands together, a number or shape (n,).
        processor: the device.

    Raises:
        BadInput: an axis below 1 or not a number.
    """
    axes = _checked({"rows": rows, "cols": cols})
    rows, cols = axes["rows"], axes["cols"]
    moved = bytes_per_item * rows * cols
    per_unit = rows / processor.units
    stretch = np.ceil(per_unit) / per_unit
    columns = {
        "log2_rows": np.log2(rows),
        "log2_cols": np.log2(cols),
        "log2_items": np.log2(rows * cols),
        "log2_rows_per_unit": np.log2(per_unit),
        "row_stretch": np.minimum(np.log2(stretch), 4),
        "cols_fill": np.ceil(np.log2(cols)) - np.log2(cols),
        "align_cols": alignment(cols),
        "log2_bytes_per_cache": np.clip(np.log2(moved / processor.cache_bytes), -6, 6),
    }
    ones = np.ones(len(rows))
    return Quantities(
        launches=ones,
        flop=np.zeros(len(rows)),
        bytes=moved,
        wave_stretch=ones,
        tile_efficiency=ones,
        winograd=np.zeros(len(rows)),
        dims=np.log2(np.stack([rows, cols], axis=1)),
        classes=np.zeros((len(rows), 1)),
        columns=np.stack(list(columns.values()), axis=1),
        names=tuple(columns),
    )
