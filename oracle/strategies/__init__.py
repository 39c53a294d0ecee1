"""The strategies by name."""

from __future__ import annotations

from oracle.errors import UnknownName
from oracle.plan import Strategy
from oracle.strategies.data import Data
from oracle.strategies.serial import Serial

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (Serial(), Data())}


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UnknownName: no such strategy; the text lists the known ones and the closest.

    >>> strategy("data")
    Data()
    """
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    return STRATEGIES[name]
