"""Strategies with their choices as text: `data,buckets=25MiB`, `data+filter,group=4`, `pipeline,segments=8`.

What a search prints is what a command line reads back. In a hybrid every choice goes to the part that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from oracle.errors import BadInput, OutOfRange, UnknownName
from oracle.plan import Strategy
from oracle.strategies import strategy
from oracle.strategies.channel import Channel
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.owt import Owt
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.serial import Serial
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import Zero
from oracle.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class _Choice:
    """A field of a strategy and how it is read and written."""

    field: str
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


_DIGITS = 9
"""A number of segments, passes or devices with more digits is a slip."""


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise BadInput(f"'{text}' is not a whole number")
    if len(text) > _DIGITS:
        raise OutOfRange(f"{text[:40]} is more than {10**_DIGITS - 1:,}")
    return int(text)


def _grid(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split("x"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("/"))


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise BadInput(f"'{text}' is neither yes nor no")
    return text == "yes"


def _size(size_bytes: float) -> str:
    return format_bytes(size_bytes).replace(" ", "")


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


_SPLIT = {"split": _Choice("split", _names, "/".join)}
_CHOICES: Mapping[type, Mapping[str, _Choice]] = {
    Serial: {},
    Data: {
        "buckets": _Choice("bucket_bytes", parse_bytes, _size),
        "accumulation": _Choice("accumulation", _whole),
        "broadcast": _Choice("broadcast_buffers", _yes, _yes_or_no),
        "syncnorm": _Choice("synchronised_norm", _yes, _yes_or_no),
    },
    Spatial: {
        "grid": _Choice("grid", _grid, lambda grid: "x".join(map(str, grid))),
        "last": _Choice("last_split", str),
    },
    Pipeline: {
        "segments": _Choice("segments", _whole),
        "schedule": _Choice("kind", str),
        "cuts": _Choice("cuts", _names, "/".join),
    },
    Filter: _SPLIT,
    Channel: _SPLIT,
    Owt: {"scheme": _Choice("scheme", str), "update": _Choice("update", str)},
    Zero: {"stage": _Choice("stage", _whole), "unit": _Choice("unit_bytes", parse_bytes, _size)},
    Hybrid: {"group": _Choice("group", _whole)},
}
"""Every choice that can be written, by strategy and name."""


def parse_strategy(text: str) -> Strategy:
    """Read a strategy with its choices.

    Raises:
        UnknownName: no such strategy, or no such choice of it.
        BadInput: a choice without a value, or a value that cannot be.

    >>> parse_strategy("pipeline,segments=8,schedule=1f1b")
    Pipeline(cuts=None, segments=8, kind='1f1b')
    >>> write_strategy(parse_strategy("data+spatial,group=4,grid=2x2,buckets=25MiB"))
    'data+spatial,group=4,buckets=25MiB,grid=2x2'
    """
    name, *choices = text.split(",")
    found, read = strategy(name), set[str]()
    for choice in choices:
        key, equals, value = choice.partition("=")
        known = _known(found)
        if key not in known:
            raise UnknownName(f"choice of {name}", key, known)
        if not equals or not value:
            raise BadInput(f"the choice '{key}' of {name} needs a value, such as {key}=...")
        if key in read:
            raise BadInput(f"the choice '{key}' of {name} is made twice")
        read.add(key)
        try:
            found = _with(found, key, value)
        except UnknownName:
            raise
        except BadInput as error:
            raise BadInput(f"{key} of {name}: {error}") from None
    return found


def write_strategy(how: Strategy) -> str:
    """The text that `parse_strategy` reads as this strategy."""
    return ",".join([how.name, *_written(how)])


def _parts(how: Strategy) -> dict[str, Strategy]:
    """A hybrid's own parts by the field that holds them."""
    return {"outer": how.outer, "inner": how.inner} if isinstance(how, Hybrid) else {}


def _known(how: Strategy) -> list[str]:
    return [*_CHOICES[type(how)], *(key for part in _parts(how).values() for key in _known(part))]


def _with(how: Strategy, key: str, value: str) -> Strategy:
    choice = _CHOICES[type(how)].get(key)
    if choice is not None:
        return replace(how, **{choice.field: choice.read(value)})  # type: ignore[type-var]
    field = next(name for name, part in _parts(how).items() if key in _known(part))
    return replace(how, **{field: _with(_parts(how)[field], key, value)})  # type: ignore[type-var]


def _written(how: Strategy) -> Iterator[str]:
    defaults = {field.name: field.default for field in fields(how)}  # type: ignore[arg-type]
    for key, choice in _CHOICES[type(how)].items():
        value = getattr(how, choice.field)
        if value != defaults[choice.field] or defaults[choice.field] is MISSING:
            yield f"{key}={choice.write(value)}"
    for part in _parts(how).values():
        yield from _written(part)
