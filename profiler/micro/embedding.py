"""Table look-ups: forward, and the dense gradient of the table."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from oracle.layers import Embedding
from profiler.micro.base import Builder, Prepared, gradient_like, layer_of


def prepare(build: Builder) -> Prepared:
    """One phase of an embedding; the indices are uniformly random, so most rows are far apart."""
    layer = layer_of(build, Embedding)
    indices = torch.randint(layer.vocabulary, (build.call.samples, layer.tokens), device=build.device)
    (table,) = build.params(grad=build.forward)
    if build.forward:
        return Prepared(lambda: functional.embedding(indices, table), (indices,), (table,))
    gradient = gradient_like(lambda: functional.embedding(indices, table))

    def backward() -> Tensor:
        result: Tensor = torch.ops.aten.embedding_dense_backward(gradient, indices, layer.vocabulary, -1, False)
        return result

    return Prepared(backward, (indices,), (table,), gradient)


MICRO = prepare
