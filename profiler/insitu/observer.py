"""Time every operation of a step; the first step is logged, the others only timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracle.errors import BadInput
from profiler.backends.torch_device import Stopwatch
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

PARTS = ("forward", "backward", "update")


@dataclass(frozen=True)
class Operation:
    """An operation of a step.

    Args:
        name: of the operation.
        part: of the step, one of `PARTS`.
        module: the module that forward was in.
        forward: of a backward operation, which of the operations of forward it is the gradient of; None for gradients
            that are added up or kept.
        accumulates: whether it keeps a parameter's gradient.
        half: `data` or `weight` for the halves of a convolution's backward.
        reads_weight: whether a parameter is among what it reads.
        touched: of an update, items of the parameters that it updates.
        shape: of its result.
    """

    name: str
    part: str
    module: str = ""
    forward: int | None = None
    accumulates: bool = False
    half: str = ""
    reads_weight: bool = False
    touched: Mapping[str, int] | None = None
    shape: tuple[int, ...] = ()


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Marks a stopwatch before and after every operation.

    Args:
        module: what is trained.
        optimizer: what updates it.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.peak_bytes = 0.0
        self._module, self._optimizer = module, optimizer
        self._stopwatch: Stopwatch | None = None
        self._part = ""
        self._log = False
        self._place = Place()
        self._numbering = Numbering()
        self._weights: set[int] = set()
        self._owners: dict[int, str] = {}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    @contextmanager
    def logging(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Log the operations of the step inside this block."""
        self._weights = {_address(param) for param in self._module.parameters()}
        self._log = True
        with self._place.followed(self._module), self.timing(stopwatch):
            yield
        self._log = False
        self._alive.clear()

    @contextmanager
    def timing(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Time the operations of the step inside this block."""
        self._stopwatch = stopwatch
        with self:
            yield
        self._part = ""

    def begins(self, part: str) -> None:
        """A part of the step begins; `TrainingStep.run` tells."""
        self._part = part
        if self._log and part == "update":
            self._owners = _owners(self._module, self._optimizer)

    def seconds(self, stopwatch: Stopwatch) -> list[float]:
        """Seconds of every operation of a timed step.

        Raises:
            BadInput: another number of operations ran than in the step that was logged.
        """
        laps_s = stopwatch.laps_s()[::2]
        if len(laps_s) != len(self.operations):
            raise BadInput(
                f"the steps of this model differ: {len(self.operations)} operations in one, {len(laps_s)} in another; "
                "layers can be timed in situ only where every step runs the same operations"
            )
        return laps_s

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation between two marks."""
        kwargs = kwargs or {}
        if self._part not in PARTS or is_bookkeeping(func):
            return func(*args, **kwargs)
        if is_view(func):
            if self._log and self._part == "forward":
                self._numbering.note(next_autograd_node() - 1, len(self.operations))
            return func(*args, **kwargs)
        if func is torch.ops.aten.convolution_backward.default and not kwargs:
            return self._halves(func, args)
        return self._timed(func, args, kwargs)

    def _halves(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Both halves of a convolution's backward, one after the other."""
        *inputs, (data, weight, bias) = args
        gradients: list[Any] = [None, None, None]
        if data:
            gradients[0] = self._timed(func, (*inputs, [True, False, False]), {}, half="data")[0]
        if weight or bias:
            gradients[1:] = self._timed(func, (*inputs, [False, weight, bias]), {}, half="weight")[1:]
        return tuple(gradients)

    def _timed(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], half: str = "") -> Any:
        if self._stopwatch is None:
            return func(*args, **kwargs)
        self._stopwatch.mark()
        result = func(*args, **kwargs)
        self._stopwatch.mark()
        if self._log:
            self._note(func, (args, kwargs), result, half)
        return result

    def _note(self, func: Any, read: Any, result: Any, half: str) -> None:
        tensors = [leaf for leaf in tree_leaves(read) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        reads_weight = any(_address(tensor) in self._weights for tensor in tensors)
        shape = tuple(made[0].shape) if made else ()
        name, forward, accumulates, touched = name_of(func), None, False, None
        if self._part == "forward":
            self._numbering.note(next_autograd_node() - 1, len(self.operations))
            if name == "_to_copy" and reads_weight:  # autocast's copy of a weight is a weight
                self._weights.update(map(_address, made))
        elif self._part == "backward":
            node = current_autograd_node()
            accumulates = node is not None and ACCUMULATE in node[0]
            if node is not None and not accumulates and not _adds_gradients(name, tensors):
                forward = self._numbering.owner_of(node[1])
        else:
            touched = self._touched(tensors)
        self.operations.append(
            Operation(name, self._part, self._place.name, forward, accumulates, half, reads_weight, touched, shape)
        )
        self._live(made)

    def _touched(self, tensors: list[Tensor]) -> dict[str, int]:
        names = {self._owners[_address(tensor)] for tensor in tensors if _address(tensor) in self._owners}
        return {name: param.numel() for name, param in self._module.named_parameters() if name in names}

    def _live(self, made: list[Tensor]) -> None:
        """Add up the tensors that are alive now, beside those that were there before the step."""
        self._alive = {key: item for key, item in self._alive.items() if not item[0].expired()}  # type: ignore[no-untyped-call]
        for tensor in made:
            storage = tensor.untyped_storage()
            self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        self.peak_bytes = max(self.peak_bytes, float(sum(size for _, size in self._alive.values())))


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _owners(module: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    """Address of a parameter, of its gradient and of its states -> the parameter."""
    owners = {}
    for name, param in module.named_parameters():
        states = [state for state in optimizer.state.get(param, {}).values() if isinstance(state, Tensor)]
        for tensor in (param, param.grad, *states):
            if tensor is not None:
                owners[_address(tensor)] = name
    return owners


def _adds_gradients(name: str, tensors: list[Tensor]) -> bool:
    """Whether autograd adds up two gradients of one tensor: it does so while the second one's node is current."""
    return name in ("add", "add_") and len(tensors) == 2 and tensors[0].shape == tensors[1].shape
