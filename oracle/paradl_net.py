"""Read the layer tables (`.net`) and layer masks (`.lc`) of ParaDL.

A table has one layer per line, `NAME|CxWxH|CxFxKxK|FxWxH|seconds per sample` (input, weights, output), after the lines
`Dataset|...`, `Input|SAMPLESxCxWxH` and `Model|...`; lines that begin with # are comments (Kahira et al., "An Oracle
for Guiding Large-Scale Model/Hybrid Parallel Training of Convolutional Neural Networks", HPDC 2021). It can be read
but not written, because it does not say all that a graph knows. What it leaves open is decided here:

Windows. There is no stride and no padding: each axis gets the smallest symmetric padding, up to half the kernel, and
with it the smallest stride, that lead from its input to its output. A pooling may need ceil_mode (a last window that
sticks out, Chainer's default); between two explanations the one with less padding holds, then the one without
ceil_mode. Where nothing explains the extents the line is refused: so it is with even kernels that keep the extents.

Weights. Convolutions and fully connected layers have no bias: the table's |w| is C F K K. A fully connected layer is
written as a convolution whose kernel is its whole input, and becomes a `Linear` on C W H features, with the same |w|.

Edges. Each line reads the line before it, and must have its output as input. ADD also reads the shortcut: what the
first convolution after the last pooling or ADD reads (the entry of the block), if it has the shape of the sum. Where
it has another shape the network projects it, but the tables lack the projections (four of ResNet-50): the sum then
reads the line before it twice, so that layers and sizes remain those of the table and nothing is invented.

No loss is added. Of the published tables COSMOFLOW.net_256 is refused at its line 8 (32x2128x128x128 for
32x128x128x128), and would be at its fifth convolution, whose kernel of 2 keeps an extent of 8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from oracle.errors import BadInput
from oracle.layer import Layer, Shape
from oracle.layers import Elementwise, Linear, Norm
from oracle.model import INPUT, GraphBuilder, ModelGraph
from oracle.windows import Conv, Pool

_SIZES = re.compile(r"[0-9]{1,8}(?:x[0-9]{1,8}){0,4}")
_KIND = re.compile(r"[A-Z]+")
_MASK_LINE = re.compile(r"(?:[0-9]+\s+)?\w+\s*\|\s*([01])")
_MAX_PADDING = 64


@dataclass(frozen=True)
class NetTable:
    """A layer table as read.

    Args:
        graph: one node per line, in the order of the table; `graph.dataset_samples` are those of its Input line.
        seconds_per_sample: of each node, forward and backward together, as the table states; 0.0 where it states none.
            (The published tables state one time per model, at its first layer.)
    """

    graph: ModelGraph
    seconds_per_sample: tuple[float, ...]


@dataclass(frozen=True)
class _Row:
    """One line: x and y are (channels, *extents), w is (C, F, *kernel)."""

    name: str
    x: Shape
    w: Shape
    y: Shape
    seconds: float

    @property
    def kind(self) -> str:
        match = _KIND.match(self.name)
        return match[0] if match else ""


def read_net(text: str, name: str) -> NetTable:
    r"""Read a layer table.

    Args:
        text: the whole table.
        name: what the graph is called, and error messages call the table.

    Raises:
        BadInput: a line that cannot be understood or does not follow from the line before it; the text names the line.

    >>> table = read_net("Input|50x3x8x8\nCONV|3x8x8|3x4x3x3|4x8x8|0.5\nFC|4x8x8|4x10x8x8|10x1x1", "tiny")
    >>> table.graph.nodes[0].layer.padding, table.graph.params, table.seconds_per_sample
    ((1, 1), 2668, (0.5, 0.0))
    """
    reader = _Reader(name)
    for number, line in enumerate(text.splitlines(), start=1):
        columns = [column.strip() for column in line.split("|")]
        if not any(columns) or columns[0].startswith("#"):
            continue
        try:
            reader.read(columns)
        except BadInput as error:
            raise BadInput(f"line {number} of table {name!r}: {error}") from None
    if reader.build is None or not reader.build.nodes:
        raise BadInput(f"table {name!r} has no layers")
    return NetTable(reader.build.graph(reader.dataset_samples, "a layer table of ParaDL"), tuple(reader.seconds))


def read_mask(text: str) -> tuple[bool, ...]:
    r"""Read a layer mask: for each layer, in order, whether it is split (`NAME|1`) or runs replicated (`NAME|0`).

    The name may follow the number of the layer; empty lines and comments are skipped.

    Raises:
        BadInput: another line; the text names it.

    >>> read_mask("CONV1|1\n1 RELU |0")
    (True, False)
    """
    mask = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _MASK_LINE.fullmatch(line.strip())
        if match is None:
            raise BadInput(f"line {number} of a layer mask is {line[:60]!r}, not 'NAME|0' or 'NAME|1'")
        mask.append(match[1] == "1")
    return tuple(mask)


class _Reader:
    """The graph as far as it has been read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dataset_samples = 0
        self.build: GraphBuilder | None = None
        self.seconds: list[float] = []
        self.entry: str | None = None
        self.uses: dict[str, int] = {}
        self.last: Shape = ()

    def read(self, columns: list[str]) -> None:
        """Take in one line."""
        if columns[0] in ("Dataset", "Model") and len(columns) == 2:
            return
        if columns[0] == "Input" and len(columns) == 2 and self.build is None:
            sizes = _sizes(columns[1])
            if len(sizes) < 2 or min(sizes) < 1:
                raise BadInput(f"{columns[1]!r} is no number of samples with the sizes of one, from 1 on")
            self.dataset_samples, self.last = sizes[0], sizes[1:]
            self.build = GraphBuilder(self.name, self.last)
        elif self.build is None:
            raise BadInput("a layer, or another line, stands before the first 'Input|SAMPLESxCxWxH'")
        else:
            self._append(self.build, _row(columns))

    def _append(self, build: GraphBuilder, row: _Row) -> None:
        if row.x != self.last:
            raise BadInput(f"{row.name} reads {_text(row.x)}, but the line before it gives {_text(self.last)}")
        layer = _layer(row)
        given = layer.output_shape + (1,) * (len(row.y) - len(layer.output_shape))
        if given != row.y:
            raise BadInput(f"{row.name} gives {_text(given)}, not {_text(row.y)}")
        before = build.nodes[-1].name if build.nodes else INPUT
        inputs: tuple[str, ...] = (before,)
        if row.kind == "ADD":
            shortcut = self.entry if self.entry and build.shape(self.entry) == row.x else before
            inputs = (before, shortcut)
        elif row.kind == "CONV" and self.entry is None:
            self.entry = before
        if row.kind in ("ADD", "MPOOL", "APOOL"):
            self.entry = None
        build.add(self._unique(row.name), layer, *inputs)
        self.seconds.append(row.seconds)
        self.last = row.y

    def _unique(self, name: str) -> str:
        """Tell the second, third... line of one name apart, as RELU.2, RELU.3..."""
        self.uses[name] = self.uses.get(name, 0) + 1
        return name if self.uses[name] == 1 else f"{name}.{self.uses[name]}"


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _sizes(text: str) -> Shape:
    if not _SIZES.fullmatch(text):
        raise BadInput(f"{text[:60]!r} is not one to five sizes such as 3x226x226")
    return tuple(map(int, text.split("x")))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise BadInput(f"{text[:60]!r} is no number of seconds") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise BadInput(f"a layer takes a finite time from 0 s on, not {text[:60]}")
    return seconds


def _row(columns: list[str]) -> _Row:
    if len(columns) not in (4, 5):
        raise BadInput(f"a layer has the columns NAME|INPUT|WEIGHTS|OUTPUT and perhaps SECONDS, not {len(columns)}")
    name = columns[0]
    if not name.isprintable() or len(name) > 60:
        raise BadInput(f"{name[:60]!r} is no name of a layer")
    x, w, y = map(_sizes, columns[1:4])
    if not len(x) == len(y) == len(w) - 1:
        raise BadInput(f"{name} has sizes of {len(x)}, {len(w)} and {len(y)} axes; weights have one more than the rest")
    if min(*x, *y) < 1:
        raise BadInput(f"{name} has an empty input or output")
    return _Row(name, x, w, y, _seconds(columns[4]) if len(columns) == 5 else 0.0)


def _layer(row: _Row) -> Layer:
    if row.kind not in _KINDS:
        raise BadInput(f"{row.name!r} begins with none of {', '.join(_KINDS)}")
    return _KINDS[row.kind](row)


def _conv(row: _Row) -> Layer:
    _check_channels(row)
    axes = _axes(row, ceil_mode=False)
    if axes is None:
        raise _unexplained(row)
    stride, padding = axes
    return Conv.of(row.x, row.y[0], row.w[2:], stride=stride, padding=padding, bias=False)


def _linear(row: _Row) -> Layer:
    _check_channels(row)
    if row.w[2:] != row.x[1:]:
        raise BadInput(f"{row.name} has a kernel of {_text(row.w[2:])}, not of its whole input {_text(row.x[1:])}")
    return Linear(math.prod(row.x), row.y[0], bias=False)


def _check_channels(row: _Row) -> None:
    if row.w[:2] != (row.x[0], row.y[0]):
        raise BadInput(f"{row.name} has weights of {_text(row.w[:2])} channels from {row.x[0]} to {row.y[0]}")


def _pool(row: _Row) -> Layer:
    explanations = [(axes, ceil) for ceil in (False, True) if (axes := _axes(row, ceil_mode=ceil)) is not None]
    if not explanations:
        raise _unexplained(row)
    (stride, padding), ceil_mode = min(explanations, key=lambda item: sum(item[0][1]))
    op = "max" if row.kind == "MPOOL" else "avg"
    return Pool(op, row.x, row.w[2:], stride, padding, ceil_mode)


def _axes(row: _Row, *, ceil_mode: bool) -> tuple[Shape, Shape] | None:
    """The stride and padding of all axes."""
    sizes = zip(row.x[1:], row.w[2:], row.y[1:], strict=True)
    axes = [_stride_and_padding(x, kernel, y, ceil_mode=ceil_mode) for x, kernel, y in sizes]
    found = [axis for axis in axes if axis is not None]
    if len(found) < len(axes):
        return None
    return tuple(stride for stride, _ in found), tuple(padding for _, padding in found)


def _stride_and_padding(x: int, kernel: int, y: int, *, ceil_mode: bool) -> tuple[int, int] | None:
    """The smallest padding, and with it the smallest stride, that lead from an extent of x to one of y."""
    for padding in range(min(kernel // 2, _MAX_PADDING) + 1):
        span = x + 2 * padding - kernel
        # The smallest stride that makes no more than y windows...
        stride = max(1, -(-span // max(1, y - 1)) if ceil_mode else span // y + 1)
        # ...explains the extent if it makes no fewer.
        windows = (-(-span // stride) if ceil_mode else span // stride) + 1
        if span >= 0 and windows == y:
            return stride, padding
    return None


def _unexplained(row: _Row) -> BadInput:
    sizes = f"a kernel of {_text(row.w[2:])} from {_text(row.x[1:])} to {_text(row.y[1:])}"
    return BadInput(f"no stride and symmetric padding lead {row.name} with {sizes}")


_KINDS: dict[str, Callable[[_Row], Layer]] = {
    "CONV": _conv,
    "BNORM": lambda row: Norm("batch", row.x),
    "RELU": lambda row: Elementwise("relu", row.x),
    "DROPOUT": lambda row: Elementwise("dropout", row.x),
    "ADD": lambda row: Elementwise("add", row.x),
    "MPOOL": _pool,
    "APOOL": _pool,
    "FC": _linear,
}
"""The letters that a name begins with -> the layer of its line."""
