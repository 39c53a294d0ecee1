"""How a row of a tidy table of kernels becomes a layer call of the oracle.

Columns: convolutions N, C, [D,] H, W (input), K (filters), kernel R, S or kD, kH, kW, with strides and padding by
axis (`stride_h` or `sH`); an output extent (`oH`...) is checked against the shape. Products gm, gn, gk; elementwise,
softmax and layer norm rows, cols.

Products come in two conventions. With `ta` and `tb` they are BLAS calls (column-major, m x k times k x n), as the
layers of DeepBench: a linear layer's forward is W X (N, N: m out, n samples, k in), its backward-data W^T dY (T, N:
m in, k out) and its backward-weight dY X^T (N, T: m out, n in, k samples). Without them they are row-major: m rows of
k features become m rows of n. The multiply-adds are the same either way.

A precision that was not stated, or that the oracle does not know (half sums in half), is not guessed. `fp32(tf32 conv)`
is torch's default on Ampere until 1.12: convolutions in TF32, the rest in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Layer, Phase, Shape
from oracle.layers import Elementwise, Linear, Norm
from oracle.pricing import LayerCall
from oracle.windows import Conv, Pool
from profiler.importers.tidy import Cells, whole, whole_of


class Unusable(BadInput):
    """A row that cannot be used; the text is the reason."""


PHASES = {
    "fwd": Phase.FORWARD,
    "forward": Phase.FORWARD,
    "ew": Phase.FORWARD,
    "bwd": Phase.BACKWARD_DATA,
    "backward": Phase.BACKWARD_DATA,
    "bwd_input": Phase.BACKWARD_DATA,
    "backward_data": Phase.BACKWARD_DATA,
    "bwd_weight": Phase.BACKWARD_WEIGHT,
    "backward_weight": Phase.BACKWARD_WEIGHT,
}
RAW_PHASES = {**{name: str(phase) for name, phase in PHASES.items()}, "bwd": "backward", "backward": "backward"}
RAW_PHASES |= {"optimizer": "update", "update": "update"}
"""The same for an operation that is no layer: nobody knows whether its backward is whole, so it keeps that name."""
_INCOMPLETE = "the shape is incomplete"
_PRECISIONS = {
    "fp32": "fp32",
    "float": "fp32",
    "float32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "half": "fp16",
    "fp16_mixed": "fp16",
    "fp16/fp32acc": "fp16",
    "fp16 in, fp32 params": "fp16",
}
_LAYOUTS = {
    "": "channels_first",
    "nchw": "channels_first",
    "ncdhw": "channels_first",
    "nhwc": "channels_last",
    "ndhwc": "channels_last",
}


@lru_cache(maxsize=256)
def _execution(precision: str, layout: str) -> Execution:
    return Execution(precision=precision, memory_format=layout)


def execution_of(row: Cells) -> Execution:
    """Precision and memory format of a row.

    Raises:
        Unusable: not stated, or not known.
    """
    dtype, op = row.text_of("dtype").lower(), row.text_of("op").lower()
    precision = _PRECISIONS.get(dtype)
    if dtype == "fp32(tf32 conv)":
        precision = "tf32" if "conv" in op else "fp32"
    if precision is None:
        raise Unusable(f"precision '{dtype[:40]}' is not stated, or not known")
    said = row.text_of("layout").lower()
    layout = _LAYOUTS.get(said.split(" ")[0])
    if layout is None:
        raise Unusable(f"memory format '{said[:40]}' is not known")
    return _execution(precision, layout)


def call_of(row: Cells) -> LayerCall | None:
    """The layer call of a row, or None where the oracle has no such layer.

    Raises:
        BadInput: the shape is impossible, or contradicts its output.
    """
    build = _BUILDERS.get(row.text_of("op").lower())
    if row.text_of("phase") not in RAW_PHASES:
        raise Unusable(f"phase '{row.text_of('phase')[:40]}' is not known")
    if build is None or row.text_of("phase") not in PHASES:
        return None
    return build(row)


def _numbers(values: Mapping[str, str], *names: tuple[str, ...]) -> tuple[int, ...] | None:
    """One whole number per group of alternative columns, or None where one is absent."""
    found = []
    for group in names:
        value = whole_of(values, group)
        if value is None:
            return None
        found.append(value)
    return tuple(found)


def _number_or(values: Mapping[str, str], names: tuple[str, ...], absent: int) -> int:
    """The first of the columns that has a value, or what stands for an absent one.

    Raises:
        Unusable: there is a value, and it is no whole number.
    """
    text = next((values[name] for name in names if name in values), None)
    if text is None:
        return absent
    value = whole(text)
    if value is None:
        raise Unusable(f"{names[-1]} '{text[:40]}' is no whole number")
    return value


def _rank(op: str) -> int:
    """Spatial axes of an operation by its name: conv1d, max_pool3d."""
    digits = [character for character in op if character in "123"]
    return int(digits[-1]) if digits else 2


def _columns_of(rank: int) -> dict[str, tuple[tuple[str, ...], ...]]:
    axes = "DHW"[3 - rank :]
    kernel = {"D": ("kD",), "H": ("kH", "R"), "W": ("kW", "S")}
    return {
        "shape": (("N",), ("C",), *((axis,) for axis in axes)),
        "kernel": tuple(kernel[axis] for axis in axes),
        "output": tuple((f"o{axis}",) for axis in axes),
        "stride": tuple((f"s{axis}", f"stride_{axis.lower()}") for axis in axes),
        "pad": tuple((f"p{axis}", f"pad_{axis.lower()}") for axis in axes),
        "dilation": tuple((f"d{axis}", f"dilation_{axis.lower()}") for axis in axes),
    }


_COLUMNS = {rank: _columns_of(rank) for rank in (1, 2, 3)}
"""Spatial axes -> what is read -> the alternative columns of each axis."""


_WINDOW_NAMES = {
    rank: tuple(name for part, axes in columns.items() if part != "shape" for names in axes for name in names)
    for rank, columns in _COLUMNS.items()
}


class _Window(NamedTuple):
    """What an operation slides over its input, by axis; kernel and output are None where a column is absent."""

    kernel: tuple[int, ...] | None
    output: tuple[int, ...] | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def _window(row: Cells, rank: int) -> _Window:
    return _read_window(rank, row.texts_of(_WINDOW_NAMES[rank]))


@lru_cache(maxsize=4096)
def _read_window(rank: int, texts: tuple[str | None, ...]) -> _Window:
    """Kernel, output, stride, padding and dilation; the last three have defaults. Tables have few windows."""
    columns = _COLUMNS[rank]
    values = {name: text for name, text in zip(_WINDOW_NAMES[rank], texts, strict=True) if text is not None}
    for names in columns["output"]:
        _number_or(values, names, 1)  # an extent that is no number must not pass for one that is absent
    stride, padding, dilation = (
        tuple([_number_or(values, names, absent) for names in columns[name]])
        for name, absent in (("stride", 1), ("pad", 0), ("dilation", 1))
    )
    kernel, output = _numbers(values, *columns["kernel"]), _numbers(values, *columns["output"])
    return _Window(kernel, output, stride, padding, dilation)


def _spatial(row: Cells, rank: int) -> tuple[int, tuple[int, ...]] | None:
    """Samples and (channels, *extents)."""
    shape = _numbers(row.values, *_COLUMNS[rank]["shape"])
    return (shape[0], shape[1:]) if shape else None


def _conv(row: Cells) -> LayerCall:
    op = row.text_of("op").lower()
    rank = _rank(op)
    spatial, window, filters = _spatial(row, rank), _window(row, rank), row.whole("K")
    kernel = window.kernel
    if spatial is None or kernel is None or filters is None:
        raise Unusable(_INCOMPLETE)
    transposed = "transpose" in op
    layer = Conv(
        in_channels=spatial[1][0],
        out_channels=filters,
        extents=spatial[1][1:],
        kernel=kernel,
        stride=window.stride,
        padding=window.padding,
        dilation=window.dilation,
        groups=_number_or(row.values, ("groups",), 1),
        bias=False,
        transposed=transposed,
        output_padding=(0,) * rank if transposed else (),
    )
    return _checked(layer, spatial[0], window.output, row)


def _pool(row: Cells) -> LayerCall | None:
    op = row.text_of("op").lower()
    rank = _rank(op)
    spatial, window = _spatial(row, rank), _window(row, rank)
    kernel = window.kernel
    if spatial is None or kernel is None:
        raise Unusable(_INCOMPLETE)
    if set(window.dilation) != {1}:
        return None  # the oracle has no dilated pooling
    layer = Pool.of(op.split("_")[0], spatial[1], kernel, stride=window.stride, padding=window.padding)
    return _checked(layer, spatial[0], window.output, row)


def _checked(layer: Layer, samples: int, output: tuple[int, ...] | None, row: Cells) -> LayerCall:
    if output is not None and layer.output_shape[1:] != output:
        raise Unusable(f"the shape gives an output of {layer.output_shape[1:]}, the row says {output}")
    return LayerCall(layer, _phase(row), samples)


def _phase(row: Cells) -> Phase:
    """What the row says; `Layer.work` refuses a phase that the layer does not have."""
    return PHASES[row.text_of("phase")]


def _product(row: Cells) -> LayerCall | None:
    sizes = _numbers(row.values, ("gm",), ("gn",), ("gk",))
    if sizes is None:
        raise Unusable(_INCOMPLETE)
    if _number_or(row.values, ("batch",), 1) != 1:
        return None
    m, n, k = sizes
    transposed = (row.text_of("ta"), row.text_of("tb"))
    bias = row.text_of("op").lower() == "linear"
    if transposed == ("", ""):
        layer = Linear(in_features=k, out_features=n, bias=bias)
        return LayerCall(layer, _phase(row), m)
    if transposed == ("N", "N"):
        return LayerCall(Linear(in_features=k, out_features=m, bias=False), Phase.FORWARD, n)
    if transposed == ("T", "N"):
        return LayerCall(Linear(in_features=m, out_features=k, bias=False), Phase.BACKWARD_DATA, n)
    if transposed == ("N", "T"):
        return LayerCall(Linear(in_features=n, out_features=m, bias=False), Phase.BACKWARD_WEIGHT, k)
    return None


def _plain_shape(row: Cells) -> tuple[int, tuple[int, ...]] | None:
    """Samples and the shape of one sample: rows and cols, or N, C and the extents that there are."""
    if table := _numbers(row.values, ("rows",), ("cols",)):
        return table[0], table[1:]
    first = _numbers(row.values, ("N",), ("C",))
    if first is None:
        return None
    extents = [
        row.whole(axis) for axis in "DHW" if row.whole(axis) is not None and not (axis == "D" and row.whole(axis) == 1)
    ]
    return first[0], (first[1], *(extent for extent in extents if extent is not None))


def _plain(kind: Callable[[str, Shape], Elementwise | Norm], name: str) -> Callable[[Cells], LayerCall]:
    def build(row: Cells) -> LayerCall:
        shape = _plain_shape(row)
        if shape is None:
            raise Unusable(_INCOMPLETE)
        layer = kind(name, shape[1])
        return LayerCall(layer, _phase(row), shape[0])

    return build


_BUILDERS: dict[str, Callable[[Cells], LayerCall | None]] = {
    **{f"conv{rank}d": _conv for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _conv for rank in (1, 2, 3)},
    **{f"{op}_pool{rank}d": _pool for op in ("max", "avg") for rank in (1, 2, 3)},
    "gemm": _product,
    "linear": _product,
    **{
        name: _plain(Elementwise, name) for name in ("relu", "sigmoid", "tanh", "silu", "gelu", "softmax", "add", "mul")
    },
    "batch_norm": _plain(Norm, "batch"),
    "ln": _plain(Norm, "layer"),
    "layer_norm": _plain(Norm, "layer"),
    "instance_norm": _plain(Norm, "instance"),
}
"""Operations that are layers of the oracle. A group norm has no column for its groups, so it stays as it is."""
