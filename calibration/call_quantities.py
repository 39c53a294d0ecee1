"""From layer calls to the quantities of their kernels: the one bridge between the oracle's layers and the regression.

Products (convolutions, linear layers, attention, products of activations) are described by their implicit matrix
product, everything else by rows and columns of what its kernel walks over: (samples x channels, extents) for poolings
and for normalisations over a batch or over groups, (all leading axes, last axis) for softmax, layer norm, elementwise
layers, embeddings and losses. A transposed convolution is the mirrored convolution with forward and backward-data
exchanged. An update is a launch for every parameter tensor and a walk over the elements of all of them, in rows as long
as the tensor in which an element lies on average, and as many as make up all elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibration.quantities import Convolutions, Processor, Quantities, convolutions, matrix_products, row_operations
from oracle.errors import BadInput
from oracle.estimate import Floats
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Attention, Linear, Norm
from oracle.operations import Matmul
from oracle.pricing import LayerCall
from oracle.updates import together
from oracle.windows import Conv, Pool

_MIRRORED = {Phase.FORWARD: Phase.BACKWARD_DATA, Phase.BACKWARD_DATA: Phase.FORWARD}


def call_quantities(calls: Sequence[LayerCall], execution: Execution, processor: Processor) -> Quantities:
    """Quantities of calls of one kernel family, one kind of layer in one phase; updates may be of any kind.

    Raises:
        BadInput: no calls, or calls of several kinds or phases.

    >>> call = LayerCall(Linear(64, 10, bias=False), Phase.FORWARD, 8)
    >>> call_quantities([call], Execution(), Processor(80, 6e6)).flop.tolist()
    [10240.0]
    """
    if len({("" if call.phase is Phase.UPDATE else call.layer.kind, call.phase) for call in calls}) != 1:
        raise BadInput("quantities are those of calls of one kind of layer in one phase")
    layers, phase = [call.layer for call in calls], calls[0].phase
    samples = np.array([float(call.samples) for call in calls])
    if isinstance(layers[0], Conv) and phase is not Phase.UPDATE:
        return _convolutions(
            [layer for layer in layers if isinstance(layer, Conv)], samples, calls[0], execution, processor
        )
    work = [call.layer.work(phase, call.samples, execution) for call in calls]
    flop, moved = np.array([w.flop for w in work], dtype=float), np.array([w.bytes for w in work], dtype=float)
    if phase is Phase.UPDATE:
        return _updates(layers, moved, processor)
    if isinstance(layers[0], Linear | Attention | Matmul):
        axes = np.array([_product(layer, phase, count) for layer, count in zip(layers, samples, strict=True)])
        named = dict(zip(("batch", "m", "n", "k"), axes.T, strict=True))
        return replace(matrix_products(named, execution.item_bytes, processor), flop=flop, bytes=moved)
    walked = np.array([_rows_and_cols(layer, count) for layer, count in zip(layers, samples, strict=True)])
    found = row_operations(walked[:, 0], walked[:, 1], moved / walked.prod(axis=1), processor)
    if isinstance(layers[0], Pool):
        windows = [(math.prod(pool.kernel), math.prod(pool.stride)) for pool in layers if isinstance(pool, Pool)]
        found = replace(found, classes=np.array(windows, dtype=float))
    return found


def _product(layer: Layer, phase: Phase, samples: float) -> tuple[float, float, float, float]:
    """Batch, m, n, k of a linear layer in any phase, or of the first product of attention or of a product."""
    if isinstance(layer, Attention):
        return samples * layer.heads, layer.query_tokens, layer.key_tokens, layer.head_width
    if isinstance(layer, Matmul):
        return samples * layer.batch, layer.rows, layer.columns, layer.inner
    if not isinstance(layer, Linear):
        raise BadInput(f"a {layer.kind} layer is no matrix product")
    rows, wide, narrow = samples * layer.rows, layer.in_features, layer.out_features
    if phase is Phase.FORWARD:
        return 1, rows, narrow, wide
    return (1, rows, wide, narrow) if phase is Phase.BACKWARD_DATA else (1, narrow, wide, rows)


def _rows_and_cols(layer: Layer, samples: float) -> tuple[float, float]:
    shape = layer.input_shapes[0]
    if isinstance(layer, Pool) or (isinstance(layer, Norm) and layer.op != "layer"):
        return samples * shape[0], math.prod(shape[1:])
    if layer.kind == "embedding":
        shape = layer.output_shape
    return samples * math.prod(shape[:-1]), shape[-1]


def _updates(layers: Sequence[Layer], moved: Floats, processor: Processor) -> Quantities:
    sizes = [together([layer]).tensors for layer in layers]
    tensors = np.array([float(sum(count for _, count in each)) for each in sizes])
    params = np.array([float(layer.params) for layer in layers])
    # The tensor that an element lies in on average: in a mix the large ones decide what caches and allocators do.
    around = np.array([float(sum(count * items**2 for items, count in each)) for each in sizes]) / params
    found = row_operations(params / around, around, moved / params, processor)
    return replace(found, launches=tensors)


def _convolutions(
    layers: Sequence[Conv], samples: Floats, first: LayerCall, execution: Execution, processor: Processor
) -> Quantities:
    mirrored = {layer.transposed for layer in layers}
    if len(mirrored) != 1:
        raise BadInput("transposed and plain convolutions are different kernel families")
    phase = _MIRRORED.get(first.phase, first.phase) if mirrored == {True} else first.phase
    inputs = [layer.output_shape if layer.transposed else (layer.in_channels, *layer.extents) for layer in layers]
    filters = [layer.in_channels if layer.transposed else layer.out_channels for layer in layers]
    shapes = Convolutions(
        samples=samples,
        channels=np.array([float(shape[0]) for shape in inputs]),
        filters=np.array(filters, dtype=float),
        groups=np.array([float(layer.groups) for layer in layers]),
        extents=_axes([shape[1:] for shape in inputs], 1),
        kernel=_axes([layer.kernel for layer in layers], 1),
        stride=_axes([layer.stride for layer in layers], 1),
        padding=_axes([layer.padding for layer in layers], 0),
        dilation=_axes([layer.dilation for layer in layers], 1),
    )
    return convolutions(shapes, phase, execution.item_bytes, processor)


def _axes(values: Sequence[tuple[int, ...]], missing: int) -> Floats:
    """Spatial axes padded in front to three, shape (n, 3)."""
    return np.array([[*[missing] * (3 - len(axes)), *axes] for axes in values], dtype=float)
