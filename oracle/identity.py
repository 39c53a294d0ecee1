"""A key for caches of what is worked out from layers and models: equal only for the very same objects.

Equal graphs are equal values, but comparing hundreds of layers costs more than most of what is remembered of them. The
key holds its objects, so their identities are not given away while it is in a cache.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Same(Generic[Item]):
    """Objects that equal only themselves.

    >>> Same(([1],)) == Same(([1],))
    False
    """

    __slots__ = ("ids", "items")

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items
        self.ids = tuple(map(id, items))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)
