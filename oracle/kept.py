"""What autograd keeps from each kind of layer's forward for its backward, after torch's derivatives.yaml.

Convolutions and fully connected layers keep their input, normalisations their input and statistics, ReLU, sigmoid, tanh
and softmax their result, GELU and SiLU their input, dropout a mask, a maximum pooling its input and 64-bit
indices, attention its operands, its result and the logarithms of its sums (flash attention), sums and concatenations
nothing, cross entropy its log-softmax. Of other operations the operands are assumed.

Backward makes one new tensor per operand that has a gradient. Sums and concatenations make none: they hand on the
gradient of their result, or views of it. Cross entropy makes two, because it is a negative log-likelihood of a
log-softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kept:
    """What backward needs of one layer's forward, and what it makes.

    Args:
        operands, result: whether these tensors are kept.
        sample_bytes: other bytes per sample.
        batch_bytes: other bytes, whatever the batch.
        mask_items: items per sample of a mask, whose width depends on the device.
        hands_on: whether the operands' gradients are the result's gradient (or views of it).
        backward_sample_bytes: bytes per sample that backward needs besides the gradients of result and operands.
    """

    operands: bool = False
    result: bool = False
    sample_bytes: int = 0
    batch_bytes: int = 0
    mask_items: int = 0
    hands_on: bool = False
    backward_sample_bytes: int = 0


_OPERANDS, _RESULT, _NOTHING = Kept(operands=True), Kept(result=True), Kept(hands_on=True)

_ELEMENTWISE = {
    "relu": _RESULT,
    "sigmoid": _RESULT,
    "tanh": _RESULT,
    "softmax": _RESULT,
    "silu": _OPERANDS,
    "gelu": _OPERANDS,
    "mul": _OPERANDS,
    "add": _NOTHING,
}


def _elementwise(layer: Any) -> Kept:
    return Kept(mask_items=layer.output_items) if layer.op == "dropout" else _ELEMENTWISE[layer.op]


def _norm(layer: Any) -> Kept:
    if layer.op == "batch":  # mean and inverse deviation per channel, in float32
        return Kept(operands=True, batch_bytes=2 * 4 * layer.features)
    groups = {"layer": layer.input_items // layer.features, "group": layer.groups, "instance": layer.shape[0]}
    return Kept(operands=True, sample_bytes=2 * 4 * groups[layer.op])


def _pool(layer: Any) -> Kept:
    if layer.op == "max":
        return Kept(operands=True, sample_bytes=8 * layer.output_items)
    # Torch runs an average over everything as a mean, whose gradient needs only shapes.
    return Kept(operands=layer.kernel != layer.shape[1:])


def _attention(layer: Any) -> Kept:
    return Kept(operands=True, result=True, sample_bytes=4 * layer.heads * layer.query_tokens)


def _loss(layer: Any) -> Kept:
    if layer.op == "mse":
        return _OPERANDS
    log_softmax_bytes = 4 * layer.input_items
    return Kept(sample_bytes=log_softmax_bytes, backward_sample_bytes=log_softmax_bytes)


def _other(layer: Any) -> Kept:
    return _OPERANDS if layer.backward_moved else _NOTHING


KEEPS: dict[str, Callable[[Any], Kept]] = {
    "conv": lambda _: _OPERANDS,
    "linear": lambda _: _OPERANDS,
    "norm": _norm,
    "pool": _pool,
    "elementwise": _elementwise,
    "concat": lambda _: _NOTHING,
    "embedding": lambda _: _OPERANDS,
    "attention": _attention,
    "matmul": lambda _: _OPERANDS,
    "loss": _loss,
    "other": _other,
}
"""Kind of layer -> what it keeps."""
