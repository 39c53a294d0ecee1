"""The strategies by name."""

from __future__ import annotations

from oracle.errors import UnknownName
from oracle.plan import Strategy
from oracle.strategies.channel import Channel
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.owt import Owt
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.serial import Serial
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import Zero

_PLAIN: tuple[Strategy, ...] = (Serial(), Data())
_INNER: tuple[Strategy, ...] = (Spatial(), Pipeline(), Filter(), Channel(), Owt(), Zero())
_HYBRIDS: tuple[Strategy, ...] = tuple(Hybrid(Data(), inner) for inner in _INNER)

STRATEGIES: dict[str, Strategy] = {item.name: item for item in (*_PLAIN, *_INNER, *_HYBRIDS)}


def strategy(name: str) -> Strategy:
    """The strategy of that name, with its choices left to their defaults.

    Raises:
        UnknownName: no such strategy; the text lists the known ones and the closest.

    >>> strategy("data+filter").name
    'data+filter'
    """
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    return STRATEGIES[name]
