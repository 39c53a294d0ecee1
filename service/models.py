"""Find a model by what a user calls it; what is not a file or a name of the zoo is traced from Python."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from oracle.errors import BadInput
from oracle.loading import load_model
from oracle.model import ModelGraph
from profiler.tracing.names import is_factory

if TYPE_CHECKING:
    from profiler.insitu.profile import Question
    from profiler.tracing.trace import Traced


def find_model(name: str) -> ModelGraph:
    """Find the model that `name` means.

    Args:
        name: what `oracle.loading.load_model` reads, or `package.module:callable` or `path/file.py:callable`, which is
            imported and traced; the callable has to return example inputs as well.

    Raises:
        UnknownName: none of these.
        BadInput: a file or a callable that does not describe a model.
        MissingDependency: a model in Python without torch.
    """
    return _traced(name).graph if is_factory(name) else load_model(name)


def find_question(name: str, samples: int | None) -> Question:
    """A model with what trains it for real: a graph's own module, or the module that a factory makes.

    Args:
        name: as in `find_model`.
        samples: of one step; None takes those of a factory's example inputs.

    Raises:
        BadInput: no samples for a model that has no example inputs; and as in `find_model`.
    """
    from profiler.insitu.profile import Question
    from profiler.steps.subject import of_factory, of_graph
    from profiler.tracing.factory import load_factory

    if not is_factory(name):
        graph = load_model(name)
        if samples is None:
            raise BadInput(f"say how many samples a step of {name} has, such as {name}:8")
        return Question(graph, samples, of_graph(graph, samples))
    factory, traced = load_factory(name), _traced(name)
    count = samples or factory.example().samples
    return Question(traced.graph, count, of_factory(factory, traced.graph, count), traced)


@lru_cache(maxsize=16)
def _traced(name: str) -> Traced:
    from profiler.tracing.factory import load_factory
    from profiler.tracing.trace import trace

    return trace(load_factory(name))
