"""What `--where` asks: a key, how it is compared, and a value."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oracle.errors import BadInput

_FORM = re.compile(r"([^<>=!]+)(<=|>=|!=|=|<|>)(.*)", re.DOTALL)

_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """One condition.

    Args:
        key: what is looked at.
        comparison: =, !=, <, <=, > or >=; the last four are of numbers.
        value: as it was written.
    """

    key: str
    comparison: str
    value: str

    @property
    def text(self) -> str:
        """How it was written."""
        return f"{self.key}{self.comparison}{self.value}"

    def holds(self, said: Sequence[str]) -> bool:
        """Whether any of the values of the key fulfils it; != holds where none is that value.

        >>> parse_condition("ranks<=32").holds(["8"]), parse_condition("ranks<=32").holds(["many"])
        (True, False)
        """
        if self.comparison in _ORDERS:
            return any(_ORDERS[self.comparison](number, _number(self.value)) for number in map(_number, said))
        return (self.value in said) == (self.comparison == "=")


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        BadInput: no comparison, or one of numbers with something that is none.

    >>> parse_condition("tag=a=b")
    Condition(key='tag', comparison='=', value='a=b')
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise BadInput(f"--where takes KEY=VALUE, such as device=A100, flag=calib or ranks<=32, not '{text}'")
    condition = Condition(*found.groups())
    if condition.comparison in _ORDERS and math.isnan(_number(condition.value)):
        raise BadInput(f"--where {text}: {condition.comparison} compares with a number, not '{condition.value}'")
    return condition


def _number(text: str) -> float:
    """A number; not a number (which no comparison holds for) where the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
