"""A module and example inputs from what a user calls them: `package.module:callable` or `path/file.py:callable`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oracle.errors import BadInput, MissingDependency, StepgaugeError
from profiler.tracing.names import is_factory

DTYPES = {"float32": torch.float32, "int64": torch.int64}
"""What an input may hold: numbers, or the indices of tokens."""


@dataclass(frozen=True)
class Input:
    """One input of a module: its shape per sample, and a name in `DTYPES`."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def tensor(self, samples: int, vocabulary: int, device: torch.device | None = None) -> Tensor:
        """A random batch: normal numbers, or tokens below `vocabulary`."""
        if self.dtype == "int64":
            return torch.randint(vocabulary, (samples, *self.shape), device=device)
        return torch.randn(samples, *self.shape, device=device)


def parse_input(text: str) -> Input:
    """Read `3x224x224`, or `128:int64` for tokens; shapes are per sample.

    Raises:
        BadInput: anything else.

    >>> parse_input("3x224x224"), parse_input("128:int64")
    (Input(shape=(3, 224, 224), dtype='float32'), Input(shape=(128,), dtype='int64'))
    """
    shape, _, dtype = text.partition(":")
    dtype = dtype or "float32"
    extents = shape.lower().split("x")
    if dtype not in DTYPES or not all(extent.isascii() and extent.isdecimal() for extent in extents):
        raise BadInput(f"--input takes a shape per sample, such as 3x224x224, or 128:int64 for tokens, not '{text}'")
    if not all(len(extent) <= 10 and 0 < int(extent) < 2**31 for extent in extents):
        raise BadInput(f"--input {text} has an extent that no tensor has")
    return Input(tuple(map(int, extents)), dtype)


@dataclass(frozen=True)
class Example:
    """A module with the inputs of one step, by position and by name."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs that are tensors, in order."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def samples(self) -> int:
        """The batch: the first axis of the first tensor."""
        return int(self.tensors[0].shape[0])

    def resized(self, samples: int) -> Example:
        """The same with another batch: every input that has its batch axis in front is cut or repeated."""
        batch = self.samples

        def resized(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.dim() and value.shape[0] == batch):
                return value
            return value.repeat(-(-samples // batch), *[1] * (value.dim() - 1))[:samples]

        named = {key: resized(value) for key, value in self.kwargs.items()}
        return self if samples == batch else Example(self.module, tuple(map(resized, self.args)), named)


@dataclass(frozen=True)
class Factory:
    """A callable that makes a module, or a module and its example inputs.

    Args:
        text: what the user wrote.
        make: the callable.
    """

    text: str
    make: Callable[[], Any]

    @property
    def name(self) -> str:
        """The callable's own name."""
        return self.text.rpartition(":")[2]

    def example(self, inputs: Sequence[Input] = (), samples: int | None = None) -> Example:
        """Call it, and put inputs to the module.

        Args:
            inputs: shapes of its inputs; none takes those that the factory returns.
            samples: the batch; None takes that of the factory's inputs. Inputs that are returned are cut or repeated.

        Raises:
            BadInput: it fails, returns something else, or leaves the inputs open.
        """
        with _running(self.text):
            made = self.make()
        module, given = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, nn.Module):
            raise BadInput(f"{self.text} returns {type(module).__name__}, not a torch.nn.Module")
        if isinstance(module, torch.jit.ScriptModule):
            raise BadInput(f"{self.text} returns a scripted module, whose layers cannot be followed; return the module")
        module.train()
        if inputs:
            vocabulary = _vocabulary(module)
            with _running(f"making the inputs of {self.text}"):
                return Example(module, tuple(item.tensor(samples or 1, vocabulary) for item in inputs), {})
        if given is None:
            raise BadInput(f"{self.text} returns no example inputs; give their shapes: --input 3x224x224")
        return _example(self.text, module, given, samples)


def _example(text: str, module: nn.Module, given: Any, samples: int | None) -> Example:
    named = given if isinstance(given, Mapping) else {}
    placed = () if isinstance(given, Mapping) else tuple(given) if isinstance(given, tuple | list) else (given,)
    example = Example(module, placed, dict(named))
    if not example.tensors or any(not tensor.dim() for tensor in example.tensors[:1]):
        raise BadInput(f"{text} returns example inputs without a tensor that has a batch axis")
    with _running(f"making the inputs of {text}"):
        return example if samples is None else example.resized(samples)


def _vocabulary(module: nn.Module) -> int:
    """The smallest table of the module, so that every token is in all of them."""
    return min((part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)), default=2)


def load_factory(text: str) -> Factory:
    """Import the callable that a text names; modules are found as Python finds them, and in the working folder.

    Raises:
        BadInput: no such file, module or callable, or it fails when it is imported.
        MissingDependency: it imports something that is not installed.
    """
    place, _, name = text.rpartition(":")
    if not is_factory(text):
        raise BadInput(f"a model in Python is package.module:callable or path/file.py:callable, not '{text}'")
    with _running(f"importing {place}"):
        module = _imported(place)
    made = getattr(module, name, None)
    if not callable(made):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise BadInput(f"{place} has no callable '{name}'; it has {', '.join(known[:20]) or 'none'}")
    return Factory(text, made)


def _imported(place: str) -> Any:
    try:
        return _module_of_file(Path(place)) if place.endswith(".py") else _module_of_package(place)
    except ModuleNotFoundError as error:
        if error.name and place.split(".", maxsplit=1)[0] != error.name:
            raise MissingDependency(error.name, "measure") from None
        raise BadInput(f"there is no module '{place}' here or on Python's path") from None


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"stepgauge_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    with _importable(path.resolve().parent):
        sys.modules[spec.name] = module  # dataclasses of the file look their own module up
        spec.loader.exec_module(module)
    return module


def _module_of_package(name: str) -> Any:
    with _importable(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let imports find what lies in a folder, after everything that is installed."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _running(what: str) -> Iterator[None]:
    """Run code of the user's: its failure, or its end of the process, is one line, and what it prints is no result.

    Raises:
        BadInput: it fails or exits.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except StepgaugeError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"{what} failed: {described(error)}") from error


def described(error: BaseException) -> str:
    """An error in one line: its type and the first line of what it says."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
