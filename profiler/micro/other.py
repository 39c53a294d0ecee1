"""Operations without a kind of their own: a copy that moves as many bytes stands in for them."""

from __future__ import annotations

from oracle.operations import Other
from profiler.micro.base import Builder, Prepared, layer_of


def prepare(build: Builder) -> Prepared:
    """A copy: it reads half of what the phase moves and writes the other half."""
    layer = layer_of(build, Other)
    moved = layer.moved if build.forward else layer.backward_moved
    x = build.normal((build.call.samples, -(-moved // 2)), grad=False)
    return Prepared(x.clone, (x,))


MICRO = prepare
