"""What a kernel's time is made of: families, and the four quantities that fit and price share. NumPy only.

The form. The time of one kernel call is additive,

    seconds = launch_s * launches + flop / flop_per_s + bytes / bytes_per_s

with *effective* constants of one kernel family in one phase under one execution: what this family reached on this
device, not what a data sheet promises. ParaDL (HPDC 2021) shows that a step is predicted well from such per-layer
times; the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009) says that a kernel is bound by arithmetic or by
memory traffic. A roofline takes the larger of the two; the sum is within a factor of two of it everywhere, equals it
where one term rules, is linear in its constants (so one convex fit finds them, with intervals, and no start value
matters), and errs on the side of the many kernels that overlap the two badly. `seconds` is the only place that knows
the form: a sharper one, such as a soft roofline, replaces it and the solver of `calibration.kernels`, nothing else.

Families. Kernels share constants when the same things decide how efficient they are: the algorithm (a depthwise
convolution is bound by memory, a transposed one scatters), the number of spatial axes, and, where arithmetic hides
behind memory traffic, the operation. Pointwise and general convolutions are one family, since both run as matrix
products whose axes decide, and the regression (`calibration.kernel_regression`) sees the window: of shards of
convolutions on a CPU two families missed 10.0 % in the median, one 8.8 %. Families that are bound by memory have no
FLOP term: their FLOP are proportional to their bytes, so the data could not tell the two apart.

Updates launch a kernel (or an iteration of a loop) for every parameter tensor, or walk over chunks of it: `launches`
counts tensors there, and is one elsewhere. Beside that a step of an optimizer has a price of its own, `call_s`,
whatever it updates, so the update of a model is one call with all its tensors and no sum of its layers' updates:

    seconds = call_s + launch_s * tensors + bytes / bytes_per_s

It does not matter whose the tensors are: equal sizes are equal work (`canonical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from oracle.constants import Constant
from oracle.estimate import Floats
from oracle.execution import Execution, execution_from_key
from oracle.layer import Layer, Phase
from oracle.pricing import LayerCall
from oracle.updates import Parameters, together
from oracle.windows import Conv, Pool

QUANTITIES = ("launch_s", "flop_per_s", "bytes_per_s", "call_s")
"""The constants in the order of the columns of `features`."""

_COMPUTE = ("launch_s", "flop_per_s", "bytes_per_s")
_MEMORY = ("launch_s", "bytes_per_s")
_UPDATE = ("launch_s", "bytes_per_s", "call_s")
_COMPUTE_KINDS = ("conv", "linear", "attention", "matmul")


def family(layer: Layer, phase: Phase) -> str:
    """Name the kernel family whose constants price this layer in this phase.

    >>> family(Conv.of((64, 56, 56), 256, 1), Phase.FORWARD)
    'conv2d'
    >>> family(Conv.of((64, 56, 56), 256, 1), Phase.UPDATE)
    'update'
    """
    if phase is Phase.UPDATE:
        return "update"
    if isinstance(layer, Conv):
        return f"conv{len(layer.extents)}d{_variant(layer)}"
    if isinstance(layer, Pool):
        return f"pool{len(layer.shape) - 1}d_{layer.op}"
    operation = getattr(layer, "op", None)
    return f"{layer.kind}_{operation}" if operation else layer.kind


def _variant(conv: Conv) -> str:
    if conv.transposed:
        return "_transposed"
    if conv.groups > 1:
        return "_depthwise" if conv.groups == conv.in_channels else "_grouped"
    return ""


_STAND_INS = {"matmul": ("linear",), "other": ("concat", "elementwise_add", "elementwise_relu")}
"""Products stand in for products, and what reads one tensor and writes another for what only moves bytes."""


def stand_ins(name: str) -> tuple[str, ...]:
    """Families that may stand in, as an extrapolation, for one that was not measured; the closest comes first.

    Convolutions fall back on the general kernel of the same number of axes.

    >>> stand_ins("conv2d_depthwise")
    ('conv2d_grouped', 'conv2d')
    >>> stand_ins("linear")
    ()
    """
    kind, _, variant = name.partition("_")
    if not kind.startswith("conv") or not variant:
        return _STAND_INS.get(name, ())
    return (f"{kind}_grouped", kind) if variant == "depthwise" else (kind,)


def quantities(layer: Layer, phase: Phase) -> tuple[str, ...]:
    """The constants that make sense for this family; what the data identify of them is the fit's finding."""
    if phase is Phase.UPDATE:
        return _UPDATE
    return _COMPUTE if layer.kind in _COMPUTE_KINDS else _MEMORY


def canonical(call: LayerCall) -> LayerCall:
    """The call under which equal work is found.

    An update depends on the sizes of tensors and not on the samples, other phases not on whose the weights are.

    >>> from oracle.layers import Linear
    >>> canonical(LayerCall(Linear(8, 4), Phase.UPDATE, 3))
    LayerCall(layer=Parameters(tensors=((32, 1), (4, 1))), phase=<Phase.UPDATE: 'update'>, samples=1)
    """
    if call.phase is Phase.UPDATE:
        same = isinstance(call.layer, Parameters)
        return LayerCall(call.layer if same else together([call.layer]), call.phase, 1)
    if getattr(call.layer, "tied", False):
        return LayerCall(replace(call.layer, tied=False), call.phase, call.samples)  # type: ignore[call-arg]
    return call


def execution_of(key: str, phase: Phase) -> Execution:
    """The execution behind a `kernel_key`, or an `update_key` where the phase is the update.

    Raises:
        BadInput: the key has another form; UnknownName: it names something unknown.

    >>> execution_of("bf16/adam", Phase.UPDATE).item_bytes
    2
    """
    return execution_from_key(key, update=phase is Phase.UPDATE)


def features(calls: Sequence[LayerCall], execution: Execution) -> Floats:
    """Launches, FLOP, bytes and steps of an optimizer of each call, shape (n, 4), in the order of `QUANTITIES`.

    Raises:
        OutOfRange: no samples, or a phase that the layer does not have.

    >>> from oracle.layers import Linear
    >>> features([LayerCall(Linear(4, 2, bias=False), Phase.FORWARD, 3)], Execution()).tolist()
    [[1.0, 48.0, 104.0, 0.0]]
    """
    rows = []
    for call in calls:
        work = call.layer.work(call.phase, call.samples, execution)
        update = call.phase is Phase.UPDATE
        rows.append((len(call.layer.param_shapes) if update else 1, work.flop, work.bytes, update))
    return np.array(rows, dtype=np.float64).reshape(-1, len(QUANTITIES))


def coefficients(constants: Sequence[Constant]) -> tuple[Floats, Floats]:
    """Seconds per unit of each of `QUANTITIES`, 0 for what is not known: values (4,), draws (4, DRAWS)."""
    by_quantity = {constant.quantity: constant for constant in constants}
    values = np.zeros(len(QUANTITIES))
    draws = np.zeros((len(QUANTITIES), len(constants[0].draws)))
    for index, quantity in enumerate(QUANTITIES):
        if quantity in by_quantity:
            constant = by_quantity[quantity]
            power = -1.0 if quantity.endswith("_per_s") else 1.0
            values[index] = constant.value**power
            draws[index] = np.asarray(constant.draws) ** power
    return values, draws


def seconds(table: Floats, seconds_per_unit: Floats) -> Floats:
    """The time law: features (n, k) and seconds per unit of each (k,) or (k, DRAWS) give seconds (n,) or (n, DRAWS)."""
    product: Floats = table @ seconds_per_unit
    return product
