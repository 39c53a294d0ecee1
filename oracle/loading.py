"""Find a model by what a user calls it: a network of the zoo, a graph in JSON, or a layer table of ParaDL."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from oracle.errors import BadInput, UnknownName
from oracle.model import ModelGraph
from oracle.zoo import ZOO

MAX_FILE_BYTES = 8 * 2**20
"""A model file may be this long; the graph of ResNet-152 takes 0.13 MB."""


def load_model(name: str) -> ModelGraph:
    """Find the model that `name` means.

    Args:
        name: a name in `oracle.zoo.ZOO`, the path of a graph as JSON (`.json`, as `ModelGraph.to_json` writes it), or
            the path of a layer table (a suffix that begins with `.net`).

    Raises:
        UnknownName: none of these; the text lists the zoo and suggests the closest name.
        BadInput: the file cannot be read, is too long or no text, or does not describe a model.

    >>> load_model("alexnet").params
    61100840
    """
    if name in ZOO:
        module, function = ZOO[name].split(":")
        graph: ModelGraph = getattr(import_module(module), function)()
        return graph
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix == ".json":
        return _graph_from_json(path)
    if suffix.startswith(".net"):
        from oracle.paradl_net import read_net

        return read_net(_read_text(path), path.name).graph
    raise UnknownName("model", name, [*ZOO, "FILE.json", "FILE.net"])


def _graph_from_json(path: Path) -> ModelGraph:
    text = _read_text(path)
    try:
        return ModelGraph.from_json(text)
    except BadInput as error:
        raise BadInput(f"model {str(path)!r}: {error}") from None


def _read_text(path: Path) -> str:
    """Read a model file of bounded length, with or without a byte-order mark."""
    shown = repr(str(path))
    try:
        if not path.is_file():
            raise BadInput(f"model {shown} is {'a folder' if path.is_dir() else 'no file'}")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read model {shown}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"model {shown} is longer than {MAX_FILE_BYTES // 2**20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"model {shown} is no UTF-8 text (byte {error.start})") from None
