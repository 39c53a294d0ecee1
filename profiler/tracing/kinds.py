"""Which layer an operation is: one small function for each aten operation, or Python function, that has a kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from oracle.layer import Layer
from oracle.layers import Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.operations import Matmul
from oracle.windows import Conv, Pool

Built = tuple[Layer, Sequence[Tensor]] | None
"""A layer and its operands in order; None where the operation is none of ours in this use."""


@dataclass(frozen=True)
class Use:
    """What a function here may ask about the tensors of an operation.

    Args:
        batch: samples in the step.
        result: the operation's (first) result.
        name: the operation's name, which ends in an underscore where it writes in place.
        sampled: whether a tensor depends on the sample.
        owns: whether a tensor is a parameter that no earlier layer has; False for None.
    """

    batch: int
    result: Tensor
    name: str
    sampled: Callable[[Any], bool]
    owns: Callable[[Any], bool]

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor is a weight: not of the sample."""
        return not self.sampled(tensor)

    def per_sample(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of one sample's part: without the batch axis, where there is one."""
        return sample_shape(tuple(tensor.shape), self.batch)

    def channels_first(self, tensor: Tensor) -> tuple[int, ...] | None:
        """(channels, *extents) of a batch of images; images that are folded into the batch count as channels."""
        images, rest = divmod(tensor.shape[0], self.batch)
        if rest or tensor.dim() < 3:
            return None
        return (images * tensor.shape[1], *tensor.shape[2:])


def sample_shape(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """The shape of one sample: the first axis that the batch divides is divided, and dropped if nothing is left of it.

    >>> sample_shape((2, 3, 8), 2), sample_shape((6, 8), 2), sample_shape((5, 2, 8), 2), sample_shape((), 2)
    ((3, 8), (3, 8), (5, 8), (1,))
    """
    for axis, extent in enumerate(shape):
        if extent % batch == 0 and extent:
            kept = (extent // batch,) if extent > batch else ()
            return (*shape[:axis], *kept, *shape[axis + 1 :]) or (1,)
    return shape or (1,)


def _spread(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def _conv(use: Use, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Built:
    stride, padding, dilation, transposed, output_padding, groups = options[:6]
    rank = x.dim() - 2
    if x.shape[0] != use.batch or not use.is_weight(weight) or rank not in (1, 2, 3):
        return None
    layer = Conv(
        in_channels=x.shape[1],
        out_channels=use.result.shape[1],
        extents=tuple(x.shape[2:]),
        kernel=tuple(weight.shape[2:]),
        stride=_spread(stride, rank),
        padding=_spread(padding, rank),
        dilation=_spread(dilation, rank),
        groups=groups,
        bias=use.owns(bias),
        transposed=transposed,
        output_padding=_spread(output_padding, rank) if transposed else (),
        tied=not use.owns(weight),
    )
    return layer, [x]


def _mm(use: Use, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Built:
    x, weight, axis = (first, second, 0) if use.is_weight(second) else (second, first, 1)
    rows, rest = divmod(x.shape[axis], use.batch)
    if not use.sampled(x) or not use.is_weight(weight) or rest:
        return None
    features = (weight.shape[axis], weight.shape[1 - axis])
    return Linear(*features, rows=rows, bias=use.owns(bias), tied=not use.owns(weight)), [x]


def _addmm(use: Use, bias: Tensor, first: Tensor, second: Tensor, **_: Any) -> Built:
    return None if use.sampled(bias) else _mm(use, first, second, bias)


def _bmm(use: Use, first: Tensor, second: Tensor) -> Built:
    if use.sampled(first) and use.is_weight(second) and first.shape[0] == 1:
        built = _mm(use, first[0], second[0])
        return None if built is None else (built[0], [first])
    batch, rest = divmod(first.shape[0], use.batch)
    if rest or not (use.sampled(first) and use.sampled(second)):
        return None
    return Matmul(batch, first.shape[1], first.shape[2], second.shape[2]), [first, second]


def _baddbmm(use: Use, added: Tensor, first: Tensor, second: Tensor, **_: Any) -> Built:
    return _bmm(use, first, second)


def _batch_norm(use: Use, x: Tensor, weight: Tensor | None = None, *_: Any) -> Built:
    images, rest = divmod(x.shape[0], use.batch)
    if rest:
        return None
    shape = tuple(x.shape[1:]) if images == 1 else (x.shape[1], images * math.prod(x.shape[2:]))
    return Norm("batch", shape, affine=use.owns(weight)), [x]


def _layer_norm(use: Use, x: Tensor, normalized: Sequence[int], weight: Tensor | None, *_: Any) -> Built:
    features = math.prod(normalized)
    rows, rest = divmod(x.numel(), features * use.batch)
    shape = (features,) if rows == 1 else (rows, features)
    return None if rest else (Norm("layer", shape, affine=use.owns(weight)), [x])


def _group_norm(use: Use, x: Tensor, weight: Tensor | None, bias: Any, *sizes: Any) -> Built:
    if x.shape[0] != use.batch:
        return None
    return Norm("group", tuple(x.shape[1:]), groups=sizes[3], affine=use.owns(weight)), [x]


def _instance_norm(
    use: Use, x: Tensor, mean: Any = None, var: Any = None, weight: Any = None, *_: Any, **__: Any
) -> Built:
    return Norm("instance", tuple(x.shape[1:]), affine=use.owns(weight)), [x]


def _pool(op: str) -> Callable[..., Built]:
    def build(
        use: Use,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        *more: Any,
    ) -> Built:
        # After the padding: dilation and ceil_mode of a maximum; ceil_mode, padding included, divisor of an average.
        shape = use.channels_first(x)
        dilation, ceil_mode = (
            ((more + ((1,), False)[len(more) :])[:2]) if op == "max" else ((1,), bool(more and more[0]))
        )
        if shape is None or set(dilation) != {1}:
            return None
        rank = len(kernel) if len(kernel) > 1 else x.dim() - 2
        sizes = (_spread(kernel, rank), _spread(stride or kernel, rank), _spread(padding, rank))
        return Pool(op, shape, *sizes, ceil_mode=bool(ceil_mode)), [x]

    return build


def _adaptive_pool(op: str) -> Callable[..., Built]:
    def build(use: Use, x: Tensor, size: Sequence[int]) -> Built:
        shape = use.channels_first(x)
        if shape is None or any(extent % wanted for extent, wanted in zip(shape[1:], size, strict=True)):
            return None
        kernel = tuple(extent // wanted for extent, wanted in zip(shape[1:], size, strict=True))
        return Pool(op, shape, kernel, kernel, (0,) * len(kernel)), [x]

    return build


def _mean(use: Use, x: Tensor, axes: Sequence[int] | None = None, *_: Any, **__: Any) -> Built:
    """A mean over all extents of images is what torch makes of a global average pooling."""
    shape = use.channels_first(x) if x.dim() > 3 else None  # of three axes the last are features as often as extents
    if shape is None or axes is None or sorted(axis % x.dim() for axis in axes) != list(range(2, x.dim())):
        return None
    return Pool("avg", shape, shape[1:], shape[1:], (0,) * (len(shape) - 1)), [x]


def _unary(op: str) -> Callable[..., Built]:
    def build(use: Use, x: Tensor, *_: Any, **__: Any) -> Built:
        return Elementwise(op, use.per_sample(x), inplace=use.name.endswith("_")), [x]

    return build


def _softmax(use: Use, x: Tensor, axis: int, *_: Any) -> Built:
    shape = list(x.shape)
    features = shape.pop(axis)
    rows = math.prod(shape)
    kept = use.per_sample(x) if axis % x.dim() == x.dim() - 1 else (rows // use.batch, features)
    return Elementwise("softmax", kept), [x]


def _binary(op: str) -> Callable[..., Built]:
    def build(use: Use, first: Tensor, second: Any, **_: Any) -> Built:
        both = isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape
        if not both or not (use.sampled(first) and use.sampled(second)):
            return None
        return Elementwise(op, use.per_sample(first), inplace=use.name.endswith("_")), [first, second]

    return build


def _cat(use: Use, tensors: Sequence[Tensor], axis: int = 0) -> Built:
    rank = use.result.dim()
    axis %= rank
    together = [tensor for tensor in tensors if tensor.dim() == rank]
    if not axis or len(together) < 2 or use.result.shape[0] != use.batch or not all(map(use.sampled, together)):
        return None
    extents = tuple(extent for place, extent in enumerate(use.result.shape) if place not in (0, axis))
    return Concat(tuple(tensor.shape[axis] for tensor in together), extents), together


def _embedding(use: Use, table: Tensor, tokens: Tensor, *_: Any, **__: Any) -> Built:
    count, rest = divmod(tokens.numel(), use.batch)
    if rest or not use.sampled(tokens) or not use.is_weight(table):
        return None
    return Embedding(table.shape[0], table.shape[1], count, tied=not use.owns(table)), [tokens]


def _attention(use: Use, q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Built:
    # After the operands: mask, dropout, is_causal.
    if q.dim() != 4 or q.shape[0] != use.batch or q.shape[1] % k.shape[1] or q.shape[3] != v.shape[3]:
        return None
    causal = bool(named.get("is_causal", options[2] if len(options) > 2 else False))
    return Attention(q.shape[1], q.shape[2], k.shape[2], q.shape[3], causal=causal), [q, k, v]


def _cross_entropy(use: Use, x: Tensor, *_: Any, **__: Any) -> Built:
    classes = x.shape[1] if x.dim() > 1 else x.shape[0]
    rows, rest = divmod(x.numel() // classes, use.batch)
    if rest or use.result.numel() != 1:
        return None
    return Loss("cross_entropy", (classes,) if rows == 1 else (rows, classes)), [x]


def _mse(use: Use, x: Tensor, *_: Any, **__: Any) -> Built:
    return None if use.result.numel() != 1 else (Loss("mse", use.per_sample(x)), [x])


KINDS: dict[str, Callable[..., Built]] = {
    "convolution": _conv,
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    **dict.fromkeys(
        (
            "native_batch_norm",
            "cudnn_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
            "miopen_batch_norm",
        ),
        _batch_norm,
    ),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "max_pool2d_with_indices": _pool("max"),
    "max_pool3d_with_indices": _pool("max"),
    "avg_pool2d": _pool("avg"),
    "avg_pool3d": _pool("avg"),
    "_adaptive_avg_pool2d": _adaptive_pool("avg"),
    "_adaptive_avg_pool3d": _adaptive_pool("avg"),
    "adaptive_max_pool2d": _adaptive_pool("max"),
    "adaptive_max_pool3d": _adaptive_pool("max"),
    "mean": _mean,
    **{name + end: _unary(name) for name in ("relu", "sigmoid", "tanh", "silu", "gelu") for end in ("", "_")},
    "dropout": _unary("dropout"),
    "native_dropout": _unary("dropout"),
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    **{name + end: _binary(name) for name in ("add", "mul") for end in ("", "_")},
    "cat": _cat,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "cross_entropy": _cross_entropy,
    "mse_loss": _mse,
}
"""Name of an operation or a composite -> the layer that it is."""
