"""Opens a database with SQLAlchemy: a file of SQLite or any server that it has a dialect for, at the newest schema.

Everything that is special to SQLite stands in `db.sqlite_file`, `_sqlite_engine` and `_prepare_sqlite`:

- A write-ahead log lets others read while one writes. Turning it on needs the file to oneself for a moment; where
  another process has it open, the rollback journal stays until the next opening. Both are safe, the log is faster.
- A transaction that will write says so when it begins (`BEGIN IMMEDIATE`), so that it waits for its turn. One that
  began by reading could not wait: SQLite refuses it at once if somebody wrote in between.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from db.errors import driver_error, one_line, said_in_one_line
from db.migrations import REVISIONS
from db.plain_sql import Ask, Row
from db.revisions import stored_revision
from db.sqlite_file import SqlitePlace, find_place
from oracle.errors import StoreError

_WRITING = {"stepgauge_writing": True}
"""The execution options of a connection whose transaction will write."""

_to_json = partial(json.dumps, allow_nan=False)


@dataclass(frozen=True)
class Opened:
    """A database that is ready; a `db.plain_sql.Source` that can be written as well.

    Args:
        engine: connects to it.
        where: what to call it in messages.
        writable: whether it may be written.
        file: of SQLite.
    """

    engine: Engine
    where: str
    writable: bool
    file: Path | None = None

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """A transaction in which nothing is written."""
        with _said_in_one_line(self.where), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Ask]:
        """A transaction in which nothing is written, for plain SQL."""
        with self.looking() as connection:
            yield asking(connection)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is stored at the end of the `with` statement, or not at all."""
        with (
            _said_in_one_line(self.where),
            self.engine.connect().execution_options(**_WRITING) as connection,
            connection.begin(),
        ):
            yield connection

    def close(self) -> None:
        """Let go of the database; everything is stored already."""
        self.engine.dispose()


def asking(connection: Connection) -> Ask:
    """Plain SQL on a connection."""

    def ask(statement: str, /, **values: object) -> Sequence[Row]:
        return connection.execute(text(statement), values).mappings().all()

    return ask


@contextmanager
def _said_in_one_line(where: str) -> Iterator[None]:
    """Turn whatever SQLAlchemy, a driver or the operating system raises into one `StoreError` about `where`."""
    try:
        with said_in_one_line(where):
            yield
    except IntegrityError as error:
        raise StoreError(f"{where} refused what does not fit its tables: {one_line(error.orig or error)}") from error
    except SQLAlchemyError as error:
        raise driver_error(getattr(error, "orig", None) or error, where) from error


def open_database(url_or_path: str, *, create: bool, timeout_s: float) -> Opened:
    """Open a database and bring it to the newest schema.

    Args:
        url_or_path: a path, or `dialect://...`.
        create: make the file or the tables where there are none.
        timeout_s: how long to wait for another process's lock (SQLite).

    Raises:
        StoreError: one line that says what is in the way.
    """
    url = _parsed(url_or_path)
    if url.get_backend_name() == "sqlite":
        place = find_place(url.database or ":memory:", create=create)
        opened = Opened(_sqlite_engine(place, timeout_s), place.where, place.writable, place.file)
    else:
        opened = Opened(_server_engine(url), url.render_as_string(hide_password=True), writable=True)
    try:
        with _said_in_one_line(opened.where):
            _bring_to_newest(opened, create=create)
    except StoreError:
        opened.close()
        raise
    return opened


def _parsed(url_or_path: str) -> URL:
    if "\0" in url_or_path:
        raise StoreError("the path of a database cannot hold a null character")
    if "://" not in url_or_path:
        return URL.create("sqlite", database=url_or_path or ".")
    try:
        url = make_url(url_or_path)
    except (ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise StoreError("not a database URL; write a path, or dialect://user:password@host:port/name") from None
    if url.get_backend_name() == "sqlite" and url.query:
        raise StoreError("a URL of SQLite takes no options here; write a path, or sqlite:/// and a path")
    return url


def _server_engine(url: URL) -> Engine:
    try:
        return create_engine(url, json_serializer=_to_json)
    except NoSuchModuleError:
        raise StoreError(f"unknown kind of database '{url.drivername}'; a path means SQLite") from None
    except ImportError as error:
        driver = error.name or url.get_driver_name()
        raise StoreError(
            f"a {url.get_backend_name()} database needs the Python package '{driver}'; install it beside stepgauge"
        ) from None


def _sqlite_engine(place: SqlitePlace, timeout_s: float) -> Engine:
    # One connection: a process has no use for a second writer, and a database in memory has only one. SQLAlchemy begins
    # and ends transactions, the driver adds none of its own.
    engine = create_engine(
        "sqlite://",
        creator=partial(place.connect, timeout_s),
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        json_serializer=_to_json,
    )
    event.listen(engine, "connect", partial(_prepare_sqlite, may_write=place.writable))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object, *, may_write: bool) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    if may_write:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not (error.sqlite_errorname or "").startswith("SQLITE_BUSY"):
                raise


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("stepgauge_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _bring_to_newest(opened: Opened, *, create: bool) -> None:
    with opened.engine.begin() as connection:
        revision = _stored_revision(connection, opened.where)
    if revision == REVISIONS[-1]:
        return
    if revision is None and not create:
        raise StoreError(f"{opened.where} has no tables of stepgauge yet")
    if not opened.writable:
        raise StoreError(f"{opened.where} needs schema {REVISIONS[-1]}, has {revision or 'none'}, and is read-only")
    from db.upgrade import upgrade

    with opened.writing() as connection:
        # Another process may have been first while this one waited for its turn.
        if _stored_revision(connection, opened.where) != REVISIONS[-1]:
            upgrade(connection)


def _stored_revision(connection: Connection, where: str) -> str | None:
    return stored_revision(asking(connection), set(inspect(connection).get_table_names()), where)
