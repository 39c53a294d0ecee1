"""Watch one step of a module below autograd, and keep what ran: one `Record` for every operation of forward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from oracle.errors import OutOfRange
from oracle.layer import Layer
from profiler.tracing.kinds import KINDS, Use
from profiler.tracing.watching import (
    ACCUMULATE,
    Numbering,
    Place,
    current_autograd_node,
    is_bookkeeping,
    is_view,
    name_of,
    next_autograd_node,
)

_Call = tuple[tuple[Any, ...], dict[str, Any], Any]
"""Arguments by position and by name, and the result."""

SAMPLE = -1
"""Stands for the first input among the records that values come from."""


@dataclass(frozen=True)
class Value:
    """What a tensor holds.

    Args:
        record: the index of the record that made it, or SAMPLE.
        items: how many numbers; shape: of the whole batch.
        output: which of the record's results.
        sampled: whether it depends on the sample.
    """

    record: int
    items: int
    shape: tuple[int, ...]
    output: int = 0
    sampled: bool = True


@dataclass
class Record:
    """An operation of forward, or several that are one layer; all counts are of the whole batch.

    Args:
        name: of the operation; a view moves nothing.
        module: the module that it ran in.
        layer: what it is, if it is of a kind; operands: what that layer reads, in order.
        reads: every value that it reads.
        weights: items of the parameters that it is the first to read.
        moved, flop: items read plus written, and operations; backward_moved, backward_flop: of its gradients.
    """

    name: str
    module: str
    layer: Layer | None = None
    operands: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()
    weights: tuple[int, ...] = ()
    sampled: bool = True
    moved: int = 0
    flop: int = 0
    backward_moved: int = 0
    backward_flop: int = 0


@dataclass
class _Cost:
    """What an open composite has run so far."""

    moved: int = 0
    flop: int = 0
    reads: list[Tensor] = field(default_factory=list)
    number: int | None = None
    began: int = 0


@dataclass
class Ran:
    """An operation that ran in forward, where, and the record that it is part of."""

    name: str
    module: str
    record: int | None


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records forward while `forward` is set, and adds the costs of backward to it afterwards.

    Args:
        module: whose step it is.
        batch: samples in the step.
        place: where in the module forward is.
    """

    def __init__(self, module: nn.Module, batch: int, place: Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: list[Record] = []
        self.operations: list[Ran] = []
        self.holders: dict[str, int] = {}
        self.forward: bool | None = None
        self.constant_items = 0
        self.constants: Counter[str] = Counter()
        self._batch = batch
        self._place = place
        self._values = WeakTensorKeyDictionary()
        self._params = WeakTensorKeyDictionary()
        self._claimed: dict[str, dict[tuple[int, int], int]] = {}
        self._whole: dict[str, int] = {}
        for name, param in module.named_parameters():
            self._params[param] = name
            self._claimed[name] = {}
            self._whole[name] = param.numel()
        self._numbering = Numbering()
        self._composite: _Cost | None = None

    @property
    def unread(self) -> int:
        """Trainable numbers that forward has not read."""
        return sum(self._whole.values()) - sum(sum(parts.values()) for parts in self._claimed.values())

    def is_input(self, tensor: Tensor, *, first: bool) -> None:
        """Say that a tensor is an input of the module: the sample itself, or read along with it."""
        sample = Value(SAMPLE, tensor.numel(), tuple(tensor.shape))
        if first:
            self._values[tensor] = sample
        elif tensor not in self._values:
            self._add(Record("input", "input", reads=(sample,)), [tensor])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.forward is None or is_bookkeeping(func):
            return result
        read = _tensors((args, kwargs))
        made = _tensors(result)
        if self.forward:
            self._forward(func, (args, kwargs, result), read, made)
        else:
            self._backward(func, (args, kwargs, result), read, made)
        return result

    def composite(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that is one layer, whatever operations it takes."""
        if self.forward is not True or self._composite is not None:
            return func(*args, **kwargs)
        self._composite = cost = _Cost(began=len(self.operations))
        try:
            result = func(*args, **kwargs)
        finally:
            self._composite = None
        if cost.number is not None:  # dropout that is switched off runs nothing
            made = _tensors(result)
            inner = [tensor for tensor in cost.reads if tensor in self._values or self._param_of(tensor)]
            record = self._record(name, args, kwargs, (inner, made))
            record.moved, record.flop = cost.moved, cost.flop
            index = self._add(record, made)
            self._numbering.note(cost.number, index)
            self._ran(name="", record=index, since=cost.began)
        return result

    def _forward(self, func: Any, call: _Call, read: list[Tensor], made: list[Tensor]) -> None:
        name, number = name_of(func), next_autograd_node() - 1
        if is_view(func):
            self._view(name, number, read, made)
            return
        moved, flop = _moved(read, made), _flop(func, call)
        if self._composite is not None:
            cost = self._composite
            cost.moved, cost.flop = cost.moved + moved, cost.flop + flop
            cost.reads += read
            cost.number = number if cost.number is None else cost.number
            self._ran(name, None)
            return
        if not any(tensor in self._values or self._param_of(tensor) for tensor in read):
            if moved and made:
                self.constant_items += moved
                self.constants[name] += 1
            self._ran(name, None)
            return
        record = self._record(name, call[0], call[1], (read, made))
        record.moved, record.flop = moved, flop
        index = self._add(record, made, written=func._schema.is_mutable)
        self._numbering.note(number, index)
        self._ran(name, index)

    def _view(self, name: str, number: int, read: list[Tensor], made: list[Tensor]) -> None:
        source = read[0] if read else None
        self._numbering.note(number, len(self.records))
        if source is None:
            return
        if (param := self._param_of(source)) is not None:
            for view in made:
                self._params[view] = param
        elif source in self._values:
            value = self._values[source]
            for view in made:
                if view.numel() == value.items:
                    self._values[view] = value
                else:
                    self._add(Record(name, self._place.name, reads=(value,), sampled=value.sampled), [view])

    def _record(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: tuple[list[Tensor], list[Tensor]]
    ) -> Record:
        read, made = tensors
        values = tuple(dict.fromkeys(self._values[tensor] for tensor in read if tensor in self._values))
        record = Record(name, self._place.name, reads=values, sampled=any(value.sampled for value in values))
        unclaimed = {key: key[2] for key in (self._key(tensor) for tensor in read if self._owns(tensor))}
        record.weights = tuple(unclaimed.values())
        built = self._built(name, args, kwargs, made)
        if built is not None and built[0].params == sum(record.weights):
            record.layer, operands = built
            record.operands = tuple(self._values[tensor] for tensor in operands)
        for (param, *place), items in unclaimed.items():
            self._claimed[param][cast(tuple[int, int], tuple(place))] = items
            self.holders.setdefault(param, len(self.records))
        return record

    def _built(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Tensor]
    ) -> tuple[Layer, Iterable[Tensor]] | None:
        if name not in KINDS or not made:
            return None
        use = Use(self._batch, made[0], name, self._sampled, self._owns)
        try:
            built = KINDS[name](use, *args, **kwargs)
        except OutOfRange:  # a layer that ours cannot describe, such as a norm over one value
            return None
        if built is None or not all(self._sampled(tensor) for tensor in built[1]):
            return None
        layer, _ = built
        fits = layer.kind == "loss" or layer.output_items * self._batch == made[0].numel()
        return built if fits else None

    def _add(self, record: Record, made: list[Tensor], *, written: bool = False) -> int:
        index = len(self.records)
        self.records.append(record)
        for place, tensor in enumerate(made):
            value = Value(index, tensor.numel(), tuple(tensor.shape), place, record.sampled)
            if written:
                self._overwrite(tensor, value)
            self._values[tensor] = value
        return index

    def _overwrite(self, tensor: Tensor, value: Value) -> None:
        """Give what shares a tensor's memory its new value: the same one, or a part or the whole around it."""
        storage = tensor.untyped_storage()._cdata
        for other in [known for known in self._values if known is not tensor]:
            if other.untyped_storage()._cdata != storage:
                continue
            if other.numel() == tensor.numel():
                self._values[other] = value
            else:
                before = (self._values[other],) if other.numel() > tensor.numel() else ()
                self._add(Record("view", self._place.name, reads=(*before, value), sampled=value.sampled), [other])

    def _ran(self, name: str, record: int | None, since: int | None = None) -> None:
        """Note an operation, or to which record those since some place belong."""
        if since is None:
            self.operations.append(Ran(name, self._place.name, record))
        else:
            for operation in self.operations[since:]:
                operation.record = record

    def _backward(self, func: Any, call: _Call, read: list[Tensor], made: list[Tensor]) -> None:
        node = current_autograd_node()
        if is_view(func) or node is None or ACCUMULATE in node[0]:
            return
        owner = self._numbering.owner_of(node[1])
        if owner is not None and owner < len(self.records):
            record = self.records[owner]
            record.backward_moved += _moved(read, made)
            record.backward_flop += _flop(func, call)

    def _sampled(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor in self._values and self._values[tensor].sampled

    def _param_of(self, tensor: Tensor) -> str | None:
        return cast("str | None", self._params.get(tensor, None))  # type: ignore[no-untyped-call]

    def _key(self, tensor: Tensor) -> tuple[str, int, int]:
        return (
            self._params[tensor],
            int(tensor.storage_offset()),
            min(tensor.numel(), self._whole[self._params[tensor]]),
        )

    def _owns(self, tensor: Any) -> bool:
        if not isinstance(tensor, Tensor) or self._param_of(tensor) is None:
            return False
        name, *place = self._key(tensor)
        claimed = self._claimed[name]
        return tuple(place) not in claimed and sum(claimed.values()) + place[1] <= self._whole[name]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _moved(read: Iterable[Tensor], made: Iterable[Tensor]) -> int:
    """Items that are read once and written once; what is expanded is as small in memory as it was before."""
    distinct = {id(tensor): tensor for tensor in read}
    return sum(_stored_items(tensor) for tensor in distinct.values()) + sum(map(_stored_items, made))


def _stored_items(tensor: Tensor) -> int:
    return math.prod(
        extent for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or extent < 2
    )


def _flop(func: Any, call: _Call) -> int:
    """What torch's FLOP counter says of an operation; it knows products, convolutions and attention."""
    count = flop_registry.get(func._overloadpacket)
    args, kwargs, result = call
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))
