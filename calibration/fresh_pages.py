"""Fresh pages: what a kernel on a CPU pays for the memory of a large result, whatever it computes. NumPy only.

The allocator of glibc serves small requests from memory that the process has kept, and asks the system for each that
is larger than its threshold, which adapts and ends at 32 MiB (mallopt(3), M_MMAP_THRESHOLD). Such memory is given back
when the tensor is freed, so every call gets pages that have never been touched, and the system maps and clears each. On
a server CPU the backward of a ReLU took 150 ps a byte up to 25 MiB and 510 ps at 49 MiB. No law that is smooth in FLOP
and bytes can say so: it would spoil the constants below and miss the times above, where larger batches lie.

So a fit is made of kernels without that cost, and a price adds it: bytes of fresh results times seconds per byte, a
constant of the family `fresh_pages`. It is found from families that only move memory, of which some shapes lie below
the threshold and some above: what these take beyond the rate of those. Where nothing lies above, or it costs nothing
(another allocator, huge pages, an accelerator, which caches its memory), there is no such constant and nothing changes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from calibration.draws import standard_rows, unit_mean_factors
from calibration.features import execution_of, family
from oracle.constants import FRESH_PAGES, LARGEST_LOG_SD, POSSIBLE, Constant, KernelFit, MeasuredShape
from oracle.estimate import Floats, Ints
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Concat, Elementwise
from oracle.pricing import LayerCall

FRESH_FROM_BYTES = 32 * 2**20
"""Results of at least this size get fresh pages."""

_GRADIENT_ITEM_BYTES = 4
_SMALL_BYTES = 2 * 2**20
"""Kernels that move less are not at the rate of memory."""

_LEAST_SHAPES = 3
_LEAST_SD = 0.1
_LEAST_LEFT = 0.3
"""A kernel keeps at least this share of its time when fresh pages are taken off."""

_SAYING_NOTHING = 0.1
"""Less than this share of the time beyond the threshold is no cost of pages, but scatter."""

_Key = tuple[str, Phase]


def fresh_bytes(call: LayerCall, execution: Execution) -> float:
    """Bytes of the results of a call that are large enough for pages of their own.

    >>> from oracle.layers import Linear
    >>> relu = Elementwise("relu", (64, 112, 112))
    >>> fresh_bytes(LayerCall(relu, Phase.FORWARD, 8), Execution())
    0.0
    >>> fresh_bytes(LayerCall(relu, Phase.FORWARD, 16), Execution()) / 2**20
    49.0
    >>> fresh_bytes(LayerCall(Linear(25088, 4096), Phase.BACKWARD_WEIGHT, 1), Execution()) / 2**20
    392.0
    """
    return sum(size for size in _results(call, execution) if size >= FRESH_FROM_BYTES)


def _results(call: LayerCall, execution: Execution) -> Sequence[float]:
    """Bytes of every tensor that a call makes."""
    layer, phase = call.layer, call.phase
    if phase is Phase.FORWARD:
        inplace = isinstance(layer, Elementwise) and layer.inplace
        return () if inplace else (float(execution.item_bytes * call.samples * layer.output_items),)
    if phase is Phase.BACKWARD_DATA:
        if isinstance(layer, Concat):  # gradients are views of one
            return ()
        return [float(execution.item_bytes * call.samples * math.prod(shape)) for shape in layer.input_shapes]
    if phase is Phase.BACKWARD_WEIGHT:
        return (float(_GRADIENT_ITEM_BYTES * _weights(layer)),)
    return ()


def fresh_curve(call: LayerCall, execution: Execution, samples: Ints) -> Floats:
    """`fresh_bytes` of a call at many numbers of samples, shape (m,)."""
    most = int(samples.max(initial=1))
    found = np.zeros(len(samples))
    if fresh_bytes(replace(call, samples=most), execution):
        for one in _results(replace(call, samples=1), execution):
            # Gradients of weights do not grow with the samples.
            sizes = np.full(len(samples), one) if call.phase is Phase.BACKWARD_WEIGHT else one * samples
            found += np.where(sizes >= FRESH_FROM_BYTES, sizes, 0.0)
    return found


def _weights(layer: Layer) -> int:
    """Numbers in the largest tensor of parameters: a bias is never the one that counts."""
    shape = getattr(layer, "weight_shape", None)
    return math.prod(shape) if shape is not None else layer.params


def page_fit(shapes: Sequence[MeasuredShape]) -> KernelFit | None:
    """Seconds per fresh byte of one device under one execution; None where the shapes show no such cost.

    Args:
        shapes: of forward and backward kernels, all of one execution.
    """
    by_family: dict[_Key, list[MeasuredShape]] = defaultdict(list)
    for shape in shapes:
        if not shape.layer.kind.startswith(("conv", "linear", "attention", "matmul", "embedding")):
            by_family[family(shape.layer, shape.phase), shape.phase].append(shape)
    extra, shares, sizes = [], [], []
    for members in by_family.values():
        execution = execution_of(members[0].execution, members[0].phase)
        moved = np.array([s.layer.work(s.phase, s.samples, execution).bytes for s in members])
        fresh = np.array([fresh_bytes(LayerCall(s.layer, s.phase, s.samples), execution) for s in members])
        seconds = np.array([s.seconds for s in members])
        below = (fresh == 0) & (moved >= _SMALL_BYTES)
        above = fresh > 0
        if below.any() and above.any():
            beyond_s = seconds[above] - np.median(seconds[below] / moved[below]) * moved[above]
            extra += (beyond_s / fresh[above]).tolist()
            shares += (beyond_s / seconds[above]).tolist()
            sizes += fresh[above].tolist()
    if len(extra) < _LEAST_SHAPES or np.median(shares) < _SAYING_NOTHING:
        return None
    return _fit(shapes, np.array(extra), sizes)


def _fit(shapes: Sequence[MeasuredShape], extra: Floats, sizes: Sequence[float]) -> KernelFit:
    middle_s = float(np.median(extra))
    spread = 1.4826 * float(np.median(np.abs(extra - middle_s))) / middle_s
    log_sd = max(_LEAST_SD, 1.2533 * spread / math.sqrt(len(extra)))
    execution = shapes[0].execution
    row = standard_rows(f"{FRESH_PAGES}/{execution}/{middle_s}", 1)[0]
    draws = np.clip(1 / (middle_s * unit_mean_factors(log_sd * row)), *POSSIBLE["bytes_per_s"])
    lo, hi = (float(bound) for bound in np.quantile(draws, [0.1, 0.9]))
    value = float(np.clip(1 / middle_s, lo, hi))
    constant = Constant(FRESH_PAGES, Phase.FORWARD, execution, "bytes_per_s", value, "B/s", lo, hi, tuple(draws))
    return KernelFit(
        family=FRESH_PAGES,
        phase=Phase.FORWARD,
        execution=execution,
        constants=(constant,),
        shapes=len(extra),
        samples=len(extra),
        held_out_error=spread,
        residual_sd=min(spread, LARGEST_LOG_SD),
        flop_lo=0.0,
        flop_hi=0.0,
        bytes_lo=min(sizes),
        bytes_hi=max(sizes),
    )


def without_pages(shape: MeasuredShape, fits: Mapping[str, KernelFit]) -> MeasuredShape:
    """A measured shape as it would be with memory that the process has kept.

    Args:
        fits: of `page_fit`, by execution.
    """
    fit = fits.get(shape.execution)
    if fit is None or shape.phase is Phase.UPDATE:
        return shape
    execution = execution_of(shape.execution, shape.phase)
    paid_s = fresh_bytes(LayerCall(shape.layer, shape.phase, shape.samples), execution) / fit.constants[0].value
    return replace(shape, seconds=max(shape.seconds - paid_s, _LEAST_LEFT * shape.seconds)) if paid_s else shape
