"""Find a model by what a user calls it; what is not a file or a name of the zoo is traced from Python."""

from __future__ import annotations

from functools import lru_cache

from oracle.loading import load_model
from oracle.model import ModelGraph
from profiler.tracing.names import is_factory


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
    return _traced(name) if is_factory(name) else load_model(name)


@lru_cache(maxsize=16)
def _traced(name: str) -> ModelGraph:
    from profiler.tracing.factory import load_factory
    from profiler.tracing.trace import trace

    return trace(load_factory(name)).graph
