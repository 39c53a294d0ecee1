"""Reads calibrations: values out, no row and no SQL leaves here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from db import calibrations, networks
from db.calibrations import CalibrationSummary
from db.errors import one_line
from db.migrations import REVISIONS
from db.networks import Network, NetworkSummary
from db.plain_sql import Ask, Source
from db.revisions import stored_revision
from db.sqlite_file import SqliteFile, find_place
from oracle.constants import Calibration
from oracle.errors import BadInput, StoreError, UnknownName


class Reader:
    """The calibrations in a database; close it, or use it in a `with` statement. `db.store.Store` can write as well.

    >>> with Reader.open("sqlite://") as reader:
    ...     reader.calibrations()
    []
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.location = source.where

    @classmethod
    def open(cls, url_or_path: str, *, create: bool = True, timeout_s: float = 20.0) -> Self:
        """Open a database, brought to the newest schema.

        Args:
            url_or_path: a path (SQLite), or any URL of SQLAlchemy; see `db.location.default_url`.
            create: make the file and the tables where there are none. Folders are not made, except for the default.
            timeout_s: how long to wait for another process that is writing.

        Raises:
            StoreError: one line that says what is in the way.
        """
        return cls(_source(url_or_path, create=create, timeout_s=timeout_s))

    def close(self) -> None:
        """Let go of the database."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def calibration(self, name: str) -> Calibration:
        """The calibration of that very name.

        Raises:
            UnknownName: there is none.
            StoreError: its rows were tampered with.
        """
        with self._asking() as ask:
            return calibrations.find_calibration(ask, name)

    def calibrations(self) -> list[CalibrationSummary]:
        """All calibrations in one line each, in the order in which they were stored."""
        with self._asking() as ask:
            return calibrations.all_calibrations(ask)

    def newest_calibration(self) -> str | None:
        """The name of the newest calibration, of those first that no profile of single models went into."""
        with self._asking() as ask:
            return calibrations.newest_calibration(ask)

    def calibration_runs(self, name: str) -> list[str]:
        """The ids of the runs that a calibration was fitted from, oldest first.

        Raises:
            UnknownName: there is no such calibration.
        """
        with self._asking() as ask:
            return calibrations.runs_of(ask, name)

    def has_calibration(self, name: str) -> bool:
        """Whether there is a calibration of that very name, of a device or of a network."""
        with self._asking() as ask:
            return is_taken(ask, name)

    def network(self, name: str) -> Network:
        """The calibration of a network of that very name.

        Raises:
            UnknownName: there is none.
        """
        with self._asking() as ask:
            return networks.find_network(ask, name)

    def networks(self) -> list[NetworkSummary]:
        """All calibrations of networks, oldest first."""
        with self._asking() as ask:
            return networks.all_networks(ask)

    @contextmanager
    def _asking(self) -> Iterator[Ask]:
        with said_if_unreadable(self.location), self._source.reading() as ask:
            yield ask


@contextmanager
def said_if_unreadable(where: str) -> Iterator[None]:
    """Turn what goes wrong with rows that nobody here wrote into one `StoreError` about `where`."""
    try:
        yield
    except UnknownName:
        raise
    except (BadInput, KeyError, IndexError, TypeError, ValueError) as error:
        raise StoreError(f"{where} holds a row that cannot be read back: {one_line(error)}") from error


def is_taken(ask: Ask, name: str) -> bool:
    """Whether a calibration of a device or of a network has that very name."""
    return calibrations.calibration_id(ask, name) is not None or networks.network_id(ask, name) is not None


def _source(url_or_path: str, *, create: bool, timeout_s: float) -> Source:
    """A file at the newest schema as it is; anything else by SQLAlchemy, which makes, migrates and refuses."""
    if "://" not in url_or_path and "\0" not in url_or_path:
        place = find_place(url_or_path or ".", create=create)
        if place.file is not None and place.file.exists():
            source = SqliteFile(place, timeout_s)
            if _revision(source) == REVISIONS[-1]:
                return source
            source.close()
    from db.opening import open_database

    return open_database(url_or_path, create=create, timeout_s=timeout_s)


def _revision(source: SqliteFile) -> str | None:
    tables = source.tables()
    with source.reading() as ask:
        return stored_revision(ask, tables, source.where)
