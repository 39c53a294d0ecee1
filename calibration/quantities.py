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
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oracle.errors import BadInput, OutOfRange
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

_refused_later = np.errstate(over="ignore", invalid="ignore")
"""What overflows is refused by `Quantities`, with one error in place of a warning for every column."""

_HEIGHTS, _WIDTHS = np.array((*TILES, *_MORE_TILES), dtype=float).T[:, :, None]
_LOADS = 1 + _LOAD_COST * (_HEIGHTS + _WIDTHS) / (_HEIGHTS * _WIDTHS)


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

    Raises:
        OutOfRange: a quantity is not finite: the axes are too large to be multiplied.
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

    def __post_init__(self) -> None:
        if not (_finite(self.columns) and _finite(self.flop) and _finite(self.bytes)):
            raise OutOfRange("a kernel is too large: its work or its columns are not finite numbers")

    def __len__(self) -> int:
        return len(self.flop)

    def take(self, rows: Rows) -> Quantities:
        """The same quantities of some of the kernels."""
        picked = {item.name: getattr(self, item.name)[rows] for item in fields(self) if item.name != "names"}
        return Quantities(**picked, names=self.names)


def _finite(numbers: Floats) -> bool:
    return bool(np.logical_and.reduce(np.isfinite(numbers), axis=None))


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
    """log2 of the largest power of two, up to 64, that divides the whole part of each finite number.

    >>> alignment(np.array([7, 24, 256, 1e19])).tolist()
    [0.0, 3.0, 6.0, 6.0]
    """
    # A float from 2^59 on is a multiple of 64, and one from 2^63 on is no int64.
    whole = np.where(axis < 2.0**59, axis, 64.0).astype(np.int64)
    found: Floats = np.log2(np.minimum(whole & -whole, 64))
    return found


def _alignment_class(axis: Floats) -> Floats:
    return np.searchsorted([1, 3], alignment(axis), side="right").astype(float)


def _checked(axes: Mapping[str, ArrayLike]) -> dict[str, Floats]:
    table = np.array(np.broadcast_arrays(*axes.values()), dtype=float)
    for name, good in zip(axes, (np.isfinite(table) & (table >= 1)).all(axis=1).tolist(), strict=True):
        if not good:
            raise BadInput(f"{name} of a kernel must be whole numbers from 1")
    return dict(zip(axes, table, strict=True))


@_refused_later
def matrix_products(axes: Mapping[str, ArrayLike], item_bytes: float, processor: Processor) -> Quantities:
    """Quantities of batched matrix products.

    Args:
        axes: `batch`, `m`, `n`, `k`, each of shape (count,) or a number; the result is batch x m x n.
        item_bytes: bytes of one number.
        processor: the device.

    Raises:
        BadInput: an axis below 1 or not a number, or too large.

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
        dims=np.log2(_side_by_side([batch, m, n, k])),
        classes=_side_by_side([_alignment_class(n), _alignment_class(k)]),
        columns=_side_by_side(list(columns.values())),
        names=tuple(columns),
    )


def _product_columns(axes: Mapping[str, Floats], processor: Processor) -> tuple[dict[str, Floats], Floats, Floats]:
    """Columns of one implicit matrix product, and the wave stretch and tile efficiency of the roofline's tile."""
    batch, m, n, k = (axes[name] for name in ("batch", "m", "n", "k"))
    columns = {f"log2_{name}": np.log2(axes[name]) for name in ("batch", "m", "n", "k")}
    columns["log2_narrow"] = np.log2(np.minimum(m, n))
    columns["k_fill"] = np.log2(np.ceil(k / 32) * 32 / k)
    columns |= {f"align_{name}": alignment(axes[name]) for name in ("m", "n", "k")}
    # All tiles at once, shape (tiles, count): the first of them are those of TILES.
    useful, tiles = batch * m * n, batch * np.ceil(m / _HEIGHTS) * np.ceil(n / _WIDTHS)
    per_unit = tiles / processor.units
    waves = np.ceil(per_unit)
    some = slice(len(TILES))
    stretches = waves[some] / per_unit[some]
    efficiencies = useful / (tiles[some] * _HEIGHTS[some] * _WIDTHS[some])
    log_waves = np.clip(np.log2(per_unit[some]), -6, 8)
    log_stretches, log_efficiencies = np.minimum(np.log2(stretches), 4), np.log2(efficiencies)
    for row, (height, width) in enumerate(TILES):
        tile = f"{height}x{width}"
        if height == TILES[-1][0]:
            columns[f"waves_{tile}"] = log_waves[row]
        if width == TILES[-1][1] or row == _ROOFLINE_TILE:
            columns[f"stretch_{tile}"] = log_stretches[row]
        columns[f"fill_{tile}"] = log_efficiencies[row]
    # What waves, waste and loads cost with the tile for which that is least, per useful result.
    slots = waves * processor.units * _HEIGHTS * _WIDTHS
    columns["log2_cheapest_tile"] = np.log2((slots / useful * _LOADS).min(axis=0))
    return columns, stretches[_ROOFLINE_TILE], efficiencies[_ROOFLINE_TILE]


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

    @cached_property
    def out_extents(self) -> Floats:
        """Spatial axes of the result, shape (n, 3)."""
        reach = self.dilation * (self.kernel - 1) + 1
        found: Floats = np.floor((self.extents + 2 * self.padding - reach) / self.stride) + 1
        return found

    @cached_property
    def window(self) -> Floats:
        """Items of the kernel, shape (n,)."""
        return _volume(self.kernel)

    @cached_property
    def winograd(self) -> Floats:
        """1 where the Winograd algorithm applies: 3 x 3, stride 1, no dilation, one group."""
        square = (self.kernel == (1, 3, 3)).all(axis=1)
        plain = (self.stride * self.dilation == 1).all(axis=1) & (self.groups == 1)
        found: Floats = (square & plain).astype(float)
        return found

    def product(self, phase: Phase) -> dict[str, Floats]:
        """The axes of the implicit matrix product of one phase; the groups are its batch.

        Raises:
            BadInput: the update is no matrix product.
        """
        per_group, filters = self.channels / self.groups, self.filters / self.groups
        pixels, inputs = self.samples * _volume(self.out_extents), self.samples * _volume(self.extents)
        products = {
            Phase.FORWARD: (pixels, filters, per_group * self.window),
            Phase.BACKWARD_DATA: (inputs, per_group, filters * self.window),
            Phase.BACKWARD_WEIGHT: (filters, per_group * self.window, pixels),
        }
        if phase not in products:
            raise BadInput(f"a convolution's {phase} is no matrix product; {', '.join(products)} are")
        return dict(zip(("batch", "m", "n", "k"), (self.groups, *products[phase]), strict=True))


@_refused_later
def convolutions(shapes: Convolutions, phase: Phase, item_bytes: float, processor: Processor) -> Quantities:
    """Quantities of convolutions in one phase; FLOP and bytes are those of the layer, the same in all three phases.

    Raises:
        BadInput: an axis below 1 or too large, an empty result, or the update phase.
    """
    axes = _checked(shapes.product(phase))
    out = shapes.out_extents
    if (out < 1).any():
        raise BadInput("a convolution's result is empty: its window is larger than its padded input")
    samples, pixels = shapes.samples, _volume(out)
    weights = shapes.filters * shapes.channels / shapes.groups * shapes.window
    flop = 2 * samples * pixels * weights
    inputs = samples * shapes.channels * _volume(shapes.extents)
    moved = item_bytes * (inputs + samples * shapes.filters * pixels + weights)
    columns, stretch, efficiency = _product_columns(axes, processor)
    columns |= _size_columns(flop, moved, processor) | _convolution_columns(shapes)
    stride = _volume(shapes.stride)
    return Quantities(
        launches=np.ones(len(flop)),
        flop=flop,
        bytes=moved,
        wave_stretch=stretch,
        tile_efficiency=efficiency,
        winograd=shapes.winograd,
        dims=np.log2(_side_by_side([samples, shapes.channels, shapes.filters, pixels])),
        classes=_side_by_side([shapes.window, stride, np.minimum(shapes.groups, 2)]),
        columns=_side_by_side(list(columns.values())),
        names=tuple(columns),
    )


def _convolution_columns(shapes: Convolutions) -> dict[str, Floats]:
    out = shapes.out_extents
    return {
        "log2_samples": np.log2(shapes.samples),
        "log2_channels": np.log2(shapes.channels),
        "log2_filters": np.log2(shapes.filters),
        "log2_pixels": np.log2(_volume(out)),
        "log2_window": np.log2(shapes.window),
        "log2_stride": np.log2(_volume(shapes.stride)),
        "winograd": shapes.winograd,
        **{f"winograd_fill_{side}": _plane_fill(out, side) for side in (2, 4)},
        "align_channels": alignment(shapes.channels),
        "align_width": alignment(shapes.extents[:, 2]),
    }


def _plane_fill(out: Floats, side: int) -> Floats:
    """log2 of what square tiles of a plane compute, over the plane."""
    filled = np.ceil(out / side) * side / out
    found: Floats = np.log2(filled[:, 1] * filled[:, 2])
    return found


def _volume(axes: Floats) -> Floats:
    """The product of three axes, (n, 3) gives (n,): a tenth of the time of `prod`, for few kernels."""
    found: Floats = axes[:, 0] * axes[:, 1] * axes[:, 2]
    return found


def _side_by_side(columns: Sequence[Floats]) -> Floats:
    """Columns of shape (n,) as a table (n, k)."""
    return np.ascontiguousarray(np.array(columns).T)


@_refused_later
def row_operations(rows: Floats, cols: Floats, bytes_per_item: float | Floats, processor: Processor) -> Quantities:
    """Quantities of kernels that work on rows, such as softmax, normalisations and elementwise operations.

    Args:
        rows: shape (n,), for example samples; cols: items of a row, shape (n,).
        cols: items of a row, for example of a sample.
        bytes_per_item: bytes read and written for each item, all operands together, a number or shape (n,).
        processor: the device.

    Raises:
        BadInput: an axis below 1 or not a number, or too large.
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
        dims=np.log2(_side_by_side([rows, cols])),
        classes=np.zeros((len(rows), 1)),
        columns=_side_by_side(list(columns.values())),
        names=tuple(columns),
    )
