"""Trace a module: its graph, and what has to be said of it."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves, tree_map

from oracle.errors import BadInput
from oracle.model import ModelGraph
from oracle.operations import Other
from profiler.tracing.assembly import assemble, without_dead_ends
from profiler.tracing.factory import Example, Factory, Input, described
from profiler.tracing.recorder import Recorder
from profiler.tracing.watching import Composites, Place

BATCH = 7
"""Samples of the traced step where nobody says: a prime that hardly any other axis is divided by."""

_VALUE_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
_CANNOT = (UnsupportedOperatorException, UnsupportedFakeTensorException)


@dataclass(frozen=True)
class Traced:
    """A module's graph.

    Args:
        graph: the model.
        notes: what has no kind, what was left out, and what else differs from the module.
        operations: what ran in forward, in order: name, module, and the node that it is part of.
        holders: parameter -> the node that holds it.
    """

    graph: ModelGraph
    notes: tuple[str, ...]
    operations: tuple[tuple[str, str, str | None], ...]
    holders: Mapping[str, str]


def trace(
    factory: Factory, inputs: Sequence[Input] = (), samples: int | None = None, name: str | None = None
) -> Traced:
    """Trace the module that a factory makes, in training mode, without its weights or activations in memory.

    Args:
        factory: makes the module.
        inputs: shapes per sample; none takes the factory's own example inputs.
        samples: the batch of the traced step; None takes that of the factory's inputs, or `BATCH` where that is one or
            unknown.
        name: of the graph; None takes the factory's.

    Raises:
        BadInput: the factory or the module fails, or what runs depends on values.
    """
    count = samples or (BATCH if inputs else None)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    built_for_real = False
    try:
        with fake, catch_warnings():
            # torch's own copying of modules asks fake tensors for their address, and they grumble.
            filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            example = _example(factory, inputs, count)
    except BadInput as error:
        if not isinstance(error.__cause__, _VALUE_NEEDED + _CANNOT):
            raise
        # Such as a factory that asks `linspace(...)` for its numbers: build it for real, then forget the numbers.
        built_for_real = True
        example = _faked(_example(factory, inputs, count), fake)
    recorder = _recorded(example, fake, factory.text)
    return _traced(recorder, example, name or factory.name, factory.text, built_for_real)


def _example(factory: Factory, inputs: Sequence[Input], samples: int | None) -> Example:
    example = factory.example(inputs, samples)
    # Of a single sample nobody can tell which axis is the batch, and batch normalisation may refuse it.
    return example.resized(BATCH) if samples is None and example.samples == 1 else example


def _faked(example: Example, fake: FakeTensorMode) -> Example:
    def forget(value: Any) -> Any:
        return fake.from_tensor(value) if isinstance(value, Tensor) else value

    module = example.module
    for part in module.modules():
        for key, param in part._parameters.items():
            if param is not None:
                part._parameters[key] = torch.nn.Parameter(forget(param.detach()), param.requires_grad)
        for key, buffer in part._buffers.items():
            part._buffers[key] = None if buffer is None else forget(buffer)
    return Example(module, tree_map(forget, example.args), tree_map(forget, dict(example.kwargs)))


def _recorded(example: Example, fake: FakeTensorMode, text: str) -> Recorder:
    """Run forward and backward of a fake example under a recorder."""
    place = Place()
    with fake:
        recorder = Recorder(example.module, example.samples, place)
        for index, tensor in enumerate(example.tensors):
            recorder.is_input(tensor, first=not index)
        with place.followed(example.module), Composites(recorder.composite), recorder, _refusals(text, place):
            recorder.forward = True
            result = example.module(*example.args, **example.kwargs)
            recorder.forward = None
            total = objective(result, text)
            recorder.forward = False
            total.backward()  # type: ignore[no-untyped-call]
            recorder.forward = None
    return recorder


def objective(result: Any, text: str) -> Tensor:
    """A number to train on: what the module returns if that is one, else the sum of all that it returns.

    Raises:
        BadInput: nothing of it depends on parameters.
    """
    trained = [leaf for leaf in tree_leaves(_plain(result)) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not trained:
        raise BadInput(f"nothing that {text} returns depends on a trainable parameter")
    first = trained[0]
    if first.numel() == 1:  # a loss; what else is returned is not trained on
        return first.sum()
    return torch.stack([leaf.sum().float() for leaf in trained]).sum()


def _plain(result: Any) -> Any:
    """Results that are mappings of their own kind, as libraries return them, as plain ones."""
    if isinstance(result, Mapping):
        return [_plain(value) for value in result.values()]
    if isinstance(result, list | tuple):
        return [_plain(value) for value in result]
    if hasattr(result, "__dataclass_fields__"):
        return [_plain(value) for value in vars(result).values()]
    return result


@contextmanager
def _refusals(text: str, place: Place) -> Iterator[None]:
    """Say in one line what cannot be traced, and where.

    Raises:
        BadInput: what runs depends on values, or the module itself fails.
    """
    try:
        with redirect_stdout(sys.stderr):  # what a forward prints is no result
            yield
    except BadInput:
        raise
    except _VALUE_NEEDED as error:
        raise BadInput(
            f"{text} cannot be traced: at {_line_of(error)} what runs next depends on the values of a tensor "
            f"({_first_argument(error)})"
        ) from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"{text} fails on these inputs, at {_line_of(error)}: {described(error)}") from error


def _first_argument(error: BaseException) -> str:
    return str(error.args[0] if error.args else error)


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's code: not of torch, Python or ourselves."""
    own = Path(__file__).resolve().parents[2] / "profiler"
    ours = (str(Path(torch.__file__).parent), sys.prefix, sys.base_prefix, str(own))
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((*ours, "<"))]
    libraries = [frame for frame in frames if "site-packages" in frame.filename and "/torch/" not in frame.filename]
    for frame in [*outside[-1:], *libraries[-1:]]:
        return f"{Path(frame.filename).name}:{frame.lineno}"
    return "its forward"


def _traced(recorder: Recorder, example: Example, name: str, text: str, built_for_real: bool) -> Traced:
    first = example.tensors[0]
    shape = tuple(first.shape[1:]) or (1,)
    assembled = assemble(recorder.records, example.samples, shape)
    nodes = without_dead_ends(assembled.nodes)
    graph = ModelGraph(name, shape, nodes, source=f"traced from {text.rpartition('/')[2]}")
    notes = (
        *_without_kind(graph),
        *_left_out(recorder),
        *_differences(recorder, example, graph),
        *(["it was built in memory, because its factory asks for values of tensors"] if built_for_real else []),
    )
    operations = tuple(
        (ran.name, ran.module, None if ran.record is None else assembled.node_of[ran.record])
        for ran in recorder.operations
    )
    holders = {param: assembled.node_of[record] or "" for param, record in recorder.holders.items()}
    return Traced(graph, notes, operations, holders)


def _without_kind(graph: ModelGraph) -> Iterator[str]:
    others = [node.layer for node in graph.nodes if isinstance(node.layer, Other) and node.layer.phases]
    if not others:
        return
    moved = sum(layer.moved + layer.backward_moved for layer in others)
    whole = sum(
        node.layer.work(phase, 1).bytes / 4 for node in graph.nodes for phase in node.layer.phases if phase != "update"
    )
    named = Counter(layer.operations for layer in others)
    shown = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in named.most_common())
    yield f"no layer kind for {shown}: priced by the bytes that they move, {moved / whole:.0%} of the model's"


def _left_out(recorder: Recorder) -> Iterator[str]:
    if recorder.constants:
        names = ", ".join(name for name, _ in recorder.constants.most_common(8))
        yield (
            f"left out: {recorder.constants.total()} operations that read neither the sample nor a parameter and move "
            f"{recorder.constant_items} items a step ({names})"
        )


def _differences(recorder: Recorder, example: Example, graph: ModelGraph) -> Iterator[str]:
    frozen = sum(param.numel() for param in example.module.parameters() if not param.requires_grad)
    if frozen:
        yield f"{frozen} parameters are frozen; they are priced as if they were trained"
    if recorder.unread:
        yield f"{recorder.unread} parameters take no part in forward and are not in the graph"
    if not any(node.layer.kind == "loss" for node in graph.nodes):
        yield "it computes no loss: a step is priced without one"
