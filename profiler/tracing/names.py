"""How a model in Python is called on the command line. Standard library only: predictions read names without torch."""

from __future__ import annotations


def is_factory(text: str) -> bool:
    """Whether a text names a callable: a module or a file, a colon, and a Python name.

    >>> is_factory("nets.py:small"), is_factory("resnet50:8"), is_factory("resnet50")
    (True, False, False)
    """
    place, colon, name = text.rpartition(":")
    return bool(colon and place) and name.isidentifier()
