"""What tracing and profiling share: where in the modules a step is, and which operations are what."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

COMPOSITES: dict[Any, str] = {
    functional.scaled_dot_product_attention: "scaled_dot_product_attention",
    functional.dropout: "dropout",
    functional.cross_entropy: "cross_entropy",
    functional.instance_norm: "instance_norm",
}
"""Functions that are one layer and may run several operations -> what `kinds` calls them."""

Region = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Told the name of a composite, the function and its arguments; runs it and returns its result."""


class Composites(TorchFunctionMode):
    """Hands every composite function to a `Region`.

    torch's multi-head attention is a Python function that calls two of them inside, where no mode looks: it is run
    from a copy that calls them through the region.
    """

    def __init__(self, region: Region) -> None:
        super().__init__()
        self._region = region

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, through the region if it is a composite."""
        kwargs = kwargs or {}
        if func in COMPOSITES:
            return self._region(COMPOSITES[func], func, args, kwargs)
        if func is functional.multi_head_attention_forward:
            func = self._through_region(cast(FunctionType, func))
        return func(*args, **kwargs)

    def _through_region(self, func: FunctionType) -> FunctionType:
        def marked(inner: Any) -> Callable[..., Any]:
            return lambda *args, **kwargs: self._region(COMPOSITES[inner], inner, args, kwargs)

        names = {inner.__name__: marked(inner) for inner in COMPOSITES}
        copy = FunctionType(func.__code__, {**func.__globals__, **names}, func.__name__, func.__defaults__)
        copy.__kwdefaults__ = func.__kwdefaults__
        return copy


class Place:
    """The innermost module whose forward is running, by its name in the model; the model itself is ''."""

    def __init__(self) -> None:
        self._stack: list[str] = []

    @property
    def name(self) -> str:
        """Where forward is now."""
        return self._stack[-1] if self._stack else ""

    @contextmanager
    def followed(self, module: nn.Module) -> Iterator[None]:
        """Follow the forwards of a module and its parts; a part that has several names goes by its first."""
        with ExitStack() as hooks:
            for name, part in module.named_modules():
                hooks.callback(part.register_forward_pre_hook(self._enter(name)).remove)
                hooks.callback(part.register_forward_hook(self._leave, always_call=True).remove)
            yield
        self._stack.clear()

    def _enter(self, name: str) -> Callable[..., None]:
        return lambda module, args: self._stack.append(name)

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if self._stack:
            self._stack.pop()


@lru_cache(maxsize=4096)
def name_of(func: Any) -> str:
    """`convolution` for aten.convolution.default; other libraries' operations keep the library's name."""
    library, _, name = str(func._schema.name).partition("::")
    return name if library == "aten" else f"{library}.{name}"


_FREE = ("_unsafe_view", "detach", "_reshape_alias", "lift_fresh")
"""Views that do not say so, since autograd need not know."""


@lru_cache(maxsize=4096)
def is_view(func: Any) -> bool:
    """Whether an operation only looks at its operand in another way."""
    if name_of(func) in _FREE:
        return True
    returns = func._schema.returns
    aliases = [result.alias_info for result in returns if result.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


@lru_cache(maxsize=4096)
def is_bookkeeping(func: Any) -> bool:
    """Whether an operation asks for a property and computes nothing."""
    return str(func._schema.name).startswith("prim")


def next_autograd_node() -> int:
    """The number that autograd will give to the next node that it makes.

    While an operation runs below autograd its own node exists already, so that one has the number before.
    """
    return torch._C._autograd._get_sequence_nr()


class Numbering:
    """Which operation of forward an autograd node belongs to.

    Nodes are numbered in the order of forward. A node of a view, or of something else that is nobody's, goes with the
    operation that comes next.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._owners: list[int] = []

    def note(self, number: int, owner: int) -> None:
        """Say that the node of this number, or one after it, was made by an operation."""
        self._numbers.append(number)
        self._owners.append(owner)

    def owner_of(self, number: int) -> int | None:
        """The operation whose node has this number; None before the first.

        Of several operations with one number (a function of the user's own) the first made the node.
        """
        place = bisect_right(self._numbers, number) - 1
        while place > 0 and self._numbers[place - 1] == self._numbers[place]:
            place -= 1
        return self._owners[place] if place >= 0 else None


ACCUMULATE = "AccumulateGrad"


def current_autograd_node() -> tuple[str, int] | None:
    """Name and number of the node whose gradient is being computed; None outside of nodes.

    Nodes that keep a parameter's gradient have no number of their own; they are called ...AccumulateGrad.
    """
    node = torch._C._current_autograd_node()
    return None if node is None else (node.name(), node._sequence_nr())
