"""Versions that can be compared."""

from __future__ import annotations


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> version_of("2.13.0+cpu"), version_of("2.6.0a0+git1234")
    ((2, 13, 0), (2, 6, 0))
    """
    numbers = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
