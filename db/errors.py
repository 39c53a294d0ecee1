"""Says in one line what a database's driver had to complain about; for SQLAlchemy see `db.engine`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from oracle.errors import StoreError

_SQLITE = {
    "SQLITE_NOTADB": "{where} is not an SQLite database, or is damaged; move it away or name another one",
    "SQLITE_CORRUPT": "{where} is damaged ({detail}); move it away and restore a copy, or name another one",
    "SQLITE_FULL": "the disk of {where} is full; nothing of this was stored",
    "SQLITE_BUSY": "{where} stayed locked by another process; try again when that has ended",
    "SQLITE_LOCKED": "{where} stayed locked by another process; try again when that has ended",
    "SQLITE_READONLY": "{where} may not be written ({detail}); nothing of this was stored",
    "SQLITE_CANTOPEN": "{where} cannot be opened ({detail}); check that the folder exists and may be written",
    "SQLITE_PERM": "{where} may not be opened ({detail})",
    "SQLITE_IOERR": "{where} cannot be read or written ({detail}); is the disk full or gone?",
}
"""SQLite's primary result code -> what to say."""


def one_line(error: BaseException) -> str:
    """The first line of an error's text, of a bounded length."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def driver_error(error: BaseException, where: str) -> StoreError:
    """What a driver or the operating system raised about `where`, in one line."""
    code = getattr(error, "sqlite_errorname", None) or ""
    detail = one_line(error)
    # Extended codes such as SQLITE_IOERR_WRITE begin with their primary code.
    for primary, text in _SQLITE.items():
        if code.startswith(primary):
            return StoreError(text.format(where=where, detail=detail))
    return StoreError(f"{where}: {detail}")


@contextmanager
def said_in_one_line(where: str) -> Iterator[None]:
    """Turn whatever SQLite's driver or the operating system raises into one `StoreError` about `where`."""
    try:
        yield
    except UnicodeError as error:
        raise StoreError(f"{where} cannot hold a text that is not Unicode: {one_line(error)}") from error
    except (sqlite3.Error, OSError) as error:
        raise driver_error(error, where) from error
