"""A database of SQLite: where it lies, how it is opened, and reading it by the standard library's driver alone.

A file that may be read but not written, or lies in such a folder, is opened read-only. Without a log beside it nobody
is writing, and SQLite is told that the file does not change, as it could not create the log's index otherwise.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from db.errors import said_in_one_line
from db.location import URL_VARIABLE, home_path, network_file_system, read_mounts
from db.plain_sql import Ask, Row
from oracle.errors import StoreError


@dataclass(frozen=True)
class SqlitePlace:
    """Where a database of SQLite lies.

    Args:
        target: the URI that SQLite opens.
        where: what to call it in messages.
        writable: whether it may be written.
        file: its file; None for a database in memory.
    """

    target: str
    where: str
    writable: bool = True
    file: Path | None = None

    def connect(self, timeout_s: float) -> sqlite3.Connection:
        """A connection that waits so long for another process's lock, and begins no transaction by itself."""
        return sqlite3.connect(self.target, timeout=timeout_s, isolation_level=None, uri=True, check_same_thread=False)


def find_place(database: str, *, create: bool) -> SqlitePlace:
    """The place of a path, or of `:memory:`.

    Args:
        database: the path; may begin with `~`.
        create: make the file where there is none.

    Raises:
        StoreError: SQLite cannot work there, or there is no file and none is to be made.
    """
    if database == ":memory:":
        return SqlitePlace("file::memory:", "the database in memory")
    path = Path(os.path.realpath(os.path.expanduser(database)))  # SQLite keeps its log beside the file behind a link
    with said_in_one_line(str(path)):
        _check_place(path, create=create)
        may_write = os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
        reading = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    writing = "rwc" if create else "rw"
    mode = writing if may_write else reading
    return SqlitePlace(f"file:{quote(os.fsencode(path))}?mode={mode}", str(path), may_write, path)


def _check_place(path: Path, *, create: bool) -> None:
    """Refuse what SQLite would answer with a riddle, or with damage."""
    network = network_file_system(path, read_mounts())
    if network:
        raise StoreError(
            f"{path} lies on a network file system ({network}), where SQLite can lose data; "
            f"name a path on a local disk or a server's URL with --db or {URL_VARIABLE}"
        )
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a database")
    if path.exists():
        return
    if not create:
        raise StoreError(f"there is no database {path} yet")
    if path == Path(os.path.realpath(home_path())):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent} for a database; create it, or name another place")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreError(f"{path} cannot be created: its folder is read-only")


class SqliteFile:
    """A database of SQLite that is read, never written; a `db.plain_sql.Source`."""

    def __init__(self, place: SqlitePlace, timeout_s: float) -> None:
        self.where = place.where
        with said_in_one_line(self.where):
            self._connection = place.connect(timeout_s)
        self._connection.row_factory = sqlite3.Row

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[Ask]:
        """A transaction, so that all that is read in it was there at the same time."""

        def ask(statement: str, /, **values: object) -> Sequence[Row]:
            return self._connection.execute(statement, values).fetchall()

        with said_in_one_line(self.where):
            self._connection.execute("BEGIN")
            try:
                yield ask
            finally:
                self._connection.rollback()

    def tables(self) -> set[str]:
        """The names of its tables."""
        with self.reading() as ask:
            return {row["name"] for row in ask("SELECT name FROM sqlite_master WHERE type = 'table'")}
