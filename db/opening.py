"""Opens a database: a file of SQLite or any server that SQLAlchemy has a dialect for, at the newest schema.

Everything that is special to SQLite stands in `_sqlite_engine` and `_prepare_sqlite`:

- A write-ahead log lets others read while one writes. Turning it on needs the file to oneself for a moment; where
  another process has it open, the rollback journal stays until the next opening. Both are safe, the log is faster.
- A transaction that will write says so when it begins (`BEGIN IMMEDIATE`), so that it waits for its turn. One that
  began by reading could not wait: SQLite refuses it at once if somebody wrote in between.
- A file that may be read but not written, or lies in such a folder, is opened read-only. Without a log beside it nobody
  is writing, and SQLite is told that the file does not change, as it could not create the log's index otherwise.
"""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, String, column, create_engine, event, inspect, select, table
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from db.errors import said_in_one_line
from db.location import URL_VARIABLE, home_path, network_file_system, read_mounts
from db.migrations import REVISIONS
from oracle.errors import StoreError

WRITING = {"stepgauge_writing": True}
"""The execution options of a connection whose transaction will write."""

_to_json = partial(json.dumps, allow_nan=False)


@dataclass(frozen=True)
class Opened:
    """A database that is ready: its engine, what to call it in messages, whether it may be written, and its file."""

    engine: Engine
    where: str
    writable: bool
    file: Path | None = None


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
        opened = _sqlite_opened(url.database or ":memory:", create=create, timeout_s=timeout_s)
    else:
        opened = Opened(_server_engine(url), url.render_as_string(hide_password=True), writable=True)
    try:
        with said_in_one_line(opened.where):
            _bring_to_newest(opened, create=create)
    except StoreError:
        opened.engine.dispose()
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


def _sqlite_opened(database: str, *, create: bool, timeout_s: float) -> Opened:
    if database == ":memory:":
        return Opened(_sqlite_engine("file::memory:", timeout_s), "the database in memory", writable=True)
    path = Path(os.path.realpath(os.path.expanduser(database)))  # SQLite keeps its log beside the file behind a link
    with said_in_one_line(str(path)):
        _check_place(path, create=create)
        may_write = os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
        reading = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    writing = "rwc" if create else "rw"
    mode = writing if may_write else reading
    target = f"file:{quote(os.fsencode(path))}?mode={mode}"
    return Opened(_sqlite_engine(target, timeout_s), str(path), writable=may_write, file=path)


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


def _sqlite_engine(target: str, timeout_s: float) -> Engine:
    def connect() -> sqlite3.Connection:
        # No isolation level: SQLAlchemy begins and ends transactions, the driver adds none of its own.
        return sqlite3.connect(target, timeout=timeout_s, isolation_level=None, uri=True, check_same_thread=False)

    # One connection: a process has no use for a second writer, and a database in memory has only one.
    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=1, max_overflow=0, json_serializer=_to_json
    )
    event.listen(engine, "connect", partial(_prepare_sqlite, may_write="mode=ro" not in target))
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

    with opened.engine.connect().execution_options(**WRITING) as connection, connection.begin():
        # Another process may have been first while this one waited for its turn.
        if _stored_revision(connection, opened.where) != REVISIONS[-1]:
            upgrade(connection)


def _stored_revision(connection: Connection, where: str) -> str | None:
    """The schema's revision; None for a database without tables.

    Raises:
        StoreError: tables that are not stepgauge's, or a revision that this version does not know.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return None
    if not {"alembic_version", "calibration", "measurement"} <= tables:
        raise StoreError(f"{where} holds tables of something else; give stepgauge a database of its own")
    query = select(column("version_num", String)).select_from(table("alembic_version"))
    versions = connection.scalars(query).all()
    if len(versions) != 1:
        raise StoreError(f"{where} is damaged: it names {len(versions)} schemas")
    if versions[0] not in REVISIONS:
        raise StoreError(
            f"{where} was written by a newer stepgauge (schema {versions[0]}); this one knows up to {REVISIONS[-1]}"
        )
    return versions[0]
