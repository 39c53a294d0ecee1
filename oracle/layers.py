"""One frozen dataclass per kind of layer (see also `windows`), and the table of all of them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, get_type_hints

from oracle.errors import BadInput, UnknownName
from oracle.layer import WITH_TIED_WEIGHTS, WITH_WEIGHTS, Layer, Phase, Shape, own_params, positive
from oracle.operations import Matmul, Other
from oracle.updates import Parameters, Sizes
from oracle.windows import Conv, Pool


@dataclass(frozen=True)
class Linear(Layer):
    """A fully connected layer on `rows` vectors per sample (the tokens of a sequence; 1 for plain vectors).

    Tied weights are another layer's: their gradient is computed here, but they are held and updated there.
    """

    kind: ClassVar[str] = "linear"
    in_features: int
    out_features: int
    rows: int = 1
    bias: bool = True
    tied: bool = False

    def __post_init__(self) -> None:
        positive(self, in_features=self.in_features, out_features=self.out_features, rows=self.rows)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return ((self.in_features,) if self.rows == 1 else (self.rows, self.in_features),)

    @property
    def output_shape(self) -> Shape:
        return (self.out_features,) if self.rows == 1 else (self.rows, self.out_features)

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        return own_params((self.out_features, self.in_features), self.out_features, self)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return WITH_WEIGHTS if self.params else WITH_TIED_WEIGHTS

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        weights = self.in_features * self.out_features
        bias = self.out_features if self.bias and phase is not Phase.BACKWARD_DATA else 0
        items = samples * (self.input_items + self.output_items) + weights + bias
        return 2 * samples * self.rows * weights, items


NORMS = ("batch", "layer", "group", "instance")


@dataclass(frozen=True)
class Norm(Layer):
    """A normalisation: over the batch per channel, over the last `shape[-1]` features, or over groups of channels."""

    kind: ClassVar[str] = "norm"
    op: str
    shape: Shape
    groups: int = 1
    affine: bool = True

    def __post_init__(self) -> None:
        if self.op not in NORMS:
            raise UnknownName("normalisation", self.op, NORMS)
        positive(self, shape=self.shape, groups=self.groups)
        if self.op == "group" and self.shape[0] % self.groups:
            raise BadInput(f"{self.groups} groups do not divide {self.shape[0]} channels")

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    @property
    def output_shape(self) -> Shape:
        return self.shape

    @property
    def features(self) -> int:
        """How many scales and shifts there are."""
        return self.shape[-1] if self.op == "layer" else self.shape[0]

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        return ((self.features,), (self.features,)) if self.affine else ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        # One backward kernel yields the gradients of input, scale and shift.
        update = (Phase.UPDATE,) if self.affine else ()
        return (Phase.FORWARD, Phase.BACKWARD_DATA, *update)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        items = samples * self.input_items
        if phase is Phase.FORWARD:  # sum, sum of squares (2), centre, scale, scale and shift (2); x in, y out
            return 7 * items, 2 * items + 2 * self.params
        return 11 * items, 3 * items + 2 * self.params  # two reductions and an affine map of x and gy


@dataclass(frozen=True)
class _ElementwiseCost:
    """Operations and items moved per item of the result; backward 0 where autograd passes the gradient through."""

    flop: float
    moved: float
    backward_flop: float
    backward_moved: float
    operands: int = 1


ELEMENTWISE = {
    "relu": _ElementwiseCost(1, 2, 1, 3),
    "sigmoid": _ElementwiseCost(4, 2, 3, 3),
    "tanh": _ElementwiseCost(6, 2, 3, 3),
    "silu": _ElementwiseCost(5, 2, 8, 3),
    "gelu": _ElementwiseCost(10, 2, 16, 3),
    "dropout": _ElementwiseCost(2, 3, 1, 3),  # the mask is written forward and read backward
    "softmax": _ElementwiseCost(5, 2, 4, 3),  # over the last axis
    "add": _ElementwiseCost(1, 3, 0, 0, operands=2),
    "mul": _ElementwiseCost(1, 3, 2, 6, operands=2),
}


@dataclass(frozen=True)
class Elementwise(Layer):
    """An activation, dropout, softmax, or the sum or product of two tensors of one shape."""

    kind: ClassVar[str] = "elementwise"
    op: str
    shape: Shape
    inplace: bool = False

    def __post_init__(self) -> None:
        if self.op not in ELEMENTWISE:
            raise UnknownName("elementwise operation", self.op, ELEMENTWISE)
        positive(self, shape=self.shape)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return (self.shape,) * ELEMENTWISE[self.op].operands

    @property
    def output_shape(self) -> Shape:
        return self.shape

    @property
    def phases(self) -> tuple[Phase, ...]:
        passes_through = ELEMENTWISE[self.op].backward_moved == 0
        return (Phase.FORWARD,) if passes_through else (Phase.FORWARD, Phase.BACKWARD_DATA)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        cost, items = ELEMENTWISE[self.op], samples * self.output_items
        if phase is Phase.FORWARD:
            return cost.flop * items, cost.moved * items
        return cost.backward_flop * items, cost.backward_moved * items


@dataclass(frozen=True)
class Concat(Layer):
    """Tensors of equal extents joined along their channels. Their gradients are views of the result's gradient.

    Args:
        channels: of each operand; at least two operands.
        extents: what follows the channels of each.
    """

    kind: ClassVar[str] = "concat"
    channels: Shape
    extents: Shape = ()

    def __post_init__(self) -> None:
        if len(self.channels) < 2:
            raise BadInput(f"a {self.kind} layer joins two or more tensors, not {len(self.channels)}")
        positive(self, channels=(*self.channels, *self.extents))

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return tuple((channels, *self.extents) for channels in self.channels)

    @property
    def output_shape(self) -> Shape:
        return (sum(self.channels), *self.extents)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase.FORWARD,)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        items = samples * self.output_items
        return items, 2 * items  # no arithmetic: one operation per item stands for the addressing


@dataclass(frozen=True)
class Embedding(Layer):
    """A table look-up: `tokens` indices per sample become vectors of `width`. Its gradient goes to the table only.

    A tied table is another layer's.
    """

    kind: ClassVar[str] = "embedding"
    vocabulary: int
    width: int
    tokens: int
    tied: bool = False

    def __post_init__(self) -> None:
        positive(self, vocabulary=self.vocabulary, width=self.width, tokens=self.tokens)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return ((self.tokens,),)

    @property
    def output_shape(self) -> Shape:
        return (self.tokens, self.width)

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        return () if self.tied else ((self.vocabulary, self.width),)

    @property
    def phases(self) -> tuple[Phase, ...]:
        update = () if self.tied else (Phase.UPDATE,)
        return (Phase.FORWARD, Phase.BACKWARD_WEIGHT, *update)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        items = samples * self.output_items
        if phase is Phase.FORWARD:  # no arithmetic: one operation per item stands for the addressing
            return items, 2 * items + samples * self.tokens
        return (
            items,
            2 * items + self.vocabulary * self.width,
        )  # a dense gradient: the whole table is cleared, then added to


@dataclass(frozen=True)
class Attention(Layer):
    """Scaled dot-product attention of `heads` heads: operands are queries, keys and values, (heads, tokens, width)."""

    kind: ClassVar[str] = "attention"
    heads: int
    query_tokens: int
    key_tokens: int
    head_width: int
    causal: bool = False

    def __post_init__(self) -> None:
        positive(self, heads=self.heads, query_tokens=self.query_tokens)
        positive(self, key_tokens=self.key_tokens, head_width=self.head_width)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        keys = (self.heads, self.key_tokens, self.head_width)
        return (self.output_shape, keys, keys)

    @property
    def output_shape(self) -> Shape:
        return (self.heads, self.query_tokens, self.head_width)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        product = 2 * samples * self.heads * self.query_tokens * self.key_tokens * self.head_width
        items = samples * (self.input_items + self.output_items)
        if phase is Phase.FORWARD:  # Q K^T and P V
            return 2 * product, items
        return 5 * product, 2 * items  # Q K^T again, and the gradients of P, V, Q and K (Dao et al., 2022)


LOSSES = ("cross_entropy", "mse")


@dataclass(frozen=True)
class Loss(Layer):
    """The scalar that training minimises: softmax with cross entropy over the last axis, or the mean squared error."""

    kind: ClassVar[str] = "loss"
    op: str
    shape: Shape

    def __post_init__(self) -> None:
        if self.op not in LOSSES:
            raise UnknownName("loss", self.op, LOSSES)
        positive(self, shape=self.shape)

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    @property
    def output_shape(self) -> Shape:
        return (1,)

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        items = samples * self.input_items
        # cross entropy: log-softmax read and written, then the gradient from it; mse reads the target as well
        return (5 * items, 2 * items) if phase is Phase.FORWARD else (3 * items, 2 * items)


LAYERS: dict[str, type[Layer]] = {
    cls.kind: cls for cls in (Conv, Linear, Norm, Pool, Elementwise, Concat, Embedding, Attention, Matmul, Loss, Other)
}
"""Every kind of layer that a model may have, by its name."""

CALLED: dict[str, type[Layer]] = {**LAYERS, Parameters.kind: Parameters}
"""What a call may be of: layers, and tensors that are updated together."""


# Far beyond every model; within them no product of sizes leaves the range of a float, and messages stay short.
_MAX_NUMBER = 2**40
_MAX_SHAPE = 256
_MAX_SIZES = 4096
_MAX_PRODUCT = _MAX_NUMBER**8
_MAX_TEXT = 1000

_TYPES: dict[object, str] = {
    int: "a whole number",
    bool: "true or false",
    str: f"one line of up to {_MAX_TEXT} characters",
    Shape: f"a list of up to {_MAX_SHAPE} whole numbers",
    Sizes: f"a list of up to {_MAX_SIZES} pairs of whole numbers",
}


def checked(value: object, wanted: object, where: str) -> Any:
    """A JSON value as the type of a field: an int, a bool, a text, a tuple of ints (`Shape`) or of pairs (`Sizes`).

    Raises:
        BadInput: another type, a text that is not one short line, or a number or shape that no model has.
    """
    if wanted == Shape and isinstance(value, list | tuple) and len(value) <= _MAX_SHAPE:
        shape = tuple(checked(item, int, where) for item in value)
        if abs(math.prod(shape)) > _MAX_PRODUCT:
            raise BadInput(f"{where} is beyond every model")
        return shape
    if wanted == Sizes and isinstance(value, list | tuple) and len(value) <= _MAX_SIZES:
        pairs = tuple(checked(pair, Shape, where) for pair in value)
        if all(len(pair) == len(("items", "tensors")) for pair in pairs):
            return pairs
    if type(value) is not wanted or (isinstance(value, str) and not (value.isprintable() and len(value) <= _MAX_TEXT)):
        raise BadInput(f"{where} is {reprlib.repr(value)}, not {_TYPES[wanted]}")
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise BadInput(f"{where} is beyond {_MAX_NUMBER}")
    return value


@cache
def _fields_of(cls: type[Layer]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The types of the fields of a kind, and which it must have; looked up once for thousands of layers."""
    types, own = get_type_hints(cls), fields(cls)
    return {field.name: types[field.name] for field in own}, tuple(f.name for f in own if f.default is MISSING)


def layer_from_dict(values: Mapping[str, Any], kinds: Mapping[str, type[Layer]] = CALLED) -> Layer:
    """Read what `Layer.to_dict` wrote.

    Args:
        values: a JSON object.
        kinds: what it may be.

    Raises:
        BadInput: an unknown kind, a missing, unknown or ill-typed field, or an impossible shape.
    """
    kind = checked(values.get("kind"), str, "the kind of a layer")
    if kind not in kinds:
        raise UnknownName("layer kind", kind, kinds)
    cls = kinds[kind]
    types, required = _fields_of(cls)
    unknown = values.keys() - types.keys() - {"kind"}
    if unknown:
        raise BadInput(f"a {kind} layer has no field {reprlib.repr(sorted(unknown))}")
    given = {
        name: checked(values[name], types[name], f"{name} of a {kind} layer") for name in types.keys() & values.keys()
    }
    missing = [name for name in required if name not in given]
    if missing:
        raise BadInput(f"a {kind} layer is incomplete: it has no {', '.join(missing)}")
    return cls(**given)
