"""Plain SQL, which the standard library's driver of SQLite runs as well as SQLAlchemy does.

A prediction reads one calibration. Loading SQLAlchemy and describing the tables to it takes longer than all the rest of
that, so what reads calibrations asks with statements that every database understands, and a file of SQLite at the
newest schema is read without SQLAlchemy. Whatever writes, migrates or speaks to a server goes through it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Row(Protocol):
    """A row, by the names of its columns."""

    def __getitem__(self, column: str, /) -> Any:
        """The value in a column."""


class Ask(Protocol):
    """Runs a statement inside a transaction."""

    def __call__(self, statement: str, /, **values: object) -> Sequence[Row]:
        """The rows that a SELECT finds, with `values` where the statement has `:name`."""


class Source(Protocol):
    """An open database.

    Args:
        where: what to call it in messages.
    """

    @property
    def where(self) -> str:
        """What to call it in messages."""

    def reading(self) -> AbstractContextManager[Ask]:
        """A transaction in which nothing is written."""

    def close(self) -> None:
        """Let go of it."""


def json_text(value: Any) -> str:
    """The text of a JSON column; the drivers of some servers have read it already."""
    return value if isinstance(value, str) else json.dumps(value)


def json_value(value: Any) -> Any:
    """What a JSON column holds: an object or a list."""
    return json.loads(value) if isinstance(value, str) else value
