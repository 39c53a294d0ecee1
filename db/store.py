"""Remembers runs, measurements and calibrations. Values in, values out: no row, no session and no SQL leaves here.

Every method is one transaction: it is stored whole or not at all, also when the process is killed in the middle. There
is no method that changes or removes a measurement or a calibration: a new fit is a new calibration under a new name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from sqlalchemy import Connection, insert, select

from db import collected, imports, rows, runs, schema
from db.environments import remember_environment
from db.imports import ImportedFile, ImportWriter
from db.inserting import insert_calibration, insert_network
from db.networks import Network
from db.opening import Opened, asking, open_database
from db.reading import Reader, is_taken, said_if_unreadable
from db.runs import Run
from oracle.constants import Calibration
from oracle.errors import BadInput, StoreError
from profiler.importers.base import Fact
from profiler.measurement import Environment, Measurement


class Store(Reader):
    """A database of runs, measurements and calibrations; close it, or use it in a `with` statement.

    >>> with Store.open("sqlite://") as store:
    ...     store.calibrations()
    []
    """

    def __init__(self, opened: Opened, address: str = "") -> None:
        super().__init__(opened)
        self.address = address  # as it was opened, for another process; it may hold a password
        self._opened = opened

    @classmethod
    def open(cls, url_or_path: str, *, create: bool = True, timeout_s: float = 20.0) -> Self:
        """Open a database to write to it; see `Reader.open`."""
        return cls(open_database(url_or_path, create=create, timeout_s=timeout_s), url_or_path)

    def begin_run(self, command: str, device: str, environment: Environment, facts: Iterable[Fact] = ()) -> str:
        """Note that a command begins to measure; returns the run's id.

        Args:
            command: what was typed.
            device: the device's name.
            environment: what makes the numbers reproducible, as it was at the start.
            facts: what the run has to say from its start on.
        """
        with self._writing() as connection:
            run_id = runs.begin(connection, command, device, environment)
            runs.add_facts(connection, run_id, facts)
        return run_id

    def resume_run(self, run_id: str, fact: Fact) -> None:
        """Note that a run goes on; the caller makes sure that no other process works on it.

        Raises:
            UnknownName: no such run.
        """
        with self._writing() as connection:
            runs.resume(connection, run_id)
            runs.add_facts(connection, run_id, [fact])

    def finish_run(self, run_id: str, status: str = "finished") -> None:
        """Note how a run ended: `finished`, `interrupted` or `failed`.

        Raises:
            UnknownName: no such run, or no such end.
        """
        with self._writing() as connection:
            runs.finish(connection, run_id, status)

    def add_fact(self, run_id: str, fact: Fact) -> None:
        """Store something that a run has to say beside its measurements.

        Raises:
            UnknownName: no such run.
        """
        with self._writing() as connection:
            runs.add_facts(connection, run_id, [fact])

    def add_measurement(self, measurement: Measurement) -> None:
        """Store one measurement; see `add_measurements`."""
        self.add_measurements([measurement])

    def add_measurements(self, measurements: Sequence[Measurement]) -> None:
        """Store measurements, all or none.

        Raises:
            BadInput: one without samples, or with samples that are not positive numbers.
            UnknownName: one of a run that was never begun.
        """
        if not measurements:
            return
        with self._writing() as connection:
            runs.check(connection, {measurement.run_id for measurement in measurements})
            columns = [
                rows.measurement_columns(measurement, remember_environment(connection, measurement.environment))
                for measurement in measurements
            ]
            connection.execute(insert(schema.measurement), columns)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        with self._reading() as connection:
            return runs.all_runs(connection)

    def measurements(self, run_id: str) -> list[Measurement]:
        """The measurements of one run, in the order in which they were stored.

        Raises:
            UnknownName: no such run.
        """
        own = schema.measurement.c.run_id == run_id
        used = select(schema.measurement.c.environment_id).where(own)
        with self._reading() as connection:
            runs.check(connection, [run_id])
            query = select(schema.environment).where(schema.environment.c.id.in_(used))
            environments = {row.id: rows.environment_from(row) for row in connection.execute(query)}
            found = connection.execute(select(schema.measurement).where(own).order_by(schema.measurement.c.id)).all()
            return [rows.measurement_from(row, environments[row.environment_id]) for row in found]

    def collect(self, command: str, measurements: Sequence[Measurement]) -> int:
        """Store a run that was measured elsewhere, or what of it is not here yet; returns how many were added.

        Args:
            command: what measured it; a run of that id must be of the same command.
            measurements: of one run.

        Raises:
            BadInput: the run's id belongs to another command here, or a measurement cannot be one.
        """
        with self._writing() as connection:
            return collected.add_missing(connection, command, measurements)

    @contextmanager
    def importing(self, sha256: str, name: str) -> Iterator[ImportWriter]:
        """Write what comes out of one file; all of it is stored at the end of the `with` statement, or nothing.

        Args:
            sha256: of the file's content; where it is known, the writer says so and nothing may be added.
            name: of the file.
        """
        with self._writing() as connection:
            yield ImportWriter(connection, name, imports.find_import(connection, sha256))

    def imported_files(self) -> list[ImportedFile]:
        """Every imported file, oldest first."""
        with self._reading() as connection:
            return imports.all_imports(connection)

    def facts(self, run_id: str) -> list[Fact]:
        """What a run, or the file of an import, said beside its measurements, in that order."""
        with self._reading() as connection:
            return imports.facts_of(connection, run_id)

    def add_network(self, network: Network, run_ids: Iterable[str]) -> None:
        """Store the calibration of a network, or nothing.

        Args:
            network: its name must be free, also among the calibrations of devices.
            run_ids: the runs that it was fitted from; none for one that came from elsewhere.

        Raises:
            BadInput: the name is taken. UnknownName: a run that was never begun.
        """
        sources = sorted(set(run_ids))
        with self._writing() as connection:
            taken = is_taken(asking(connection), network.name)
            if not taken:
                runs.check(connection, sources)
                insert_network(connection, network, sources)
        if taken:
            raise self._taken(network.name)

    def add_calibration(
        self, calibration: Calibration, run_ids: Iterable[str], taken_ok: bool = False, *, finishes: str | None = None
    ) -> None:
        """Store a calibration with all it holds, or nothing.

        Args:
            calibration: its name must be free.
            run_ids: the runs that it was fitted from; none for one that came from elsewhere.
            taken_ok: accept a taken name where the very same calibration is stored under it.
            finishes: the run that has done with this all that it was asked.

        Raises:
            BadInput: the name is taken.
            UnknownName: a run that was never begun.
        """
        sources = sorted(set(run_ids))
        with self._writing() as connection:
            taken = is_taken(asking(connection), calibration.name)
            if not taken:
                runs.check(connection, sources)
                insert_calibration(connection, calibration, sources)
                if finishes is not None:
                    runs.finish(connection, finishes, "finished")
        if taken and not (taken_ok and self._is_stored(calibration)):
            raise self._taken(calibration.name)

    def _is_stored(self, calibration: Calibration) -> bool:
        known = {summary.name for summary in self.calibrations()}
        return calibration.name in known and self.calibration(calibration.name) == calibration

    def _taken(self, name: str) -> BadInput:
        return BadInput(f"the name '{name}' is taken in {self.location}; calibrations are never replaced")

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with said_if_unreadable(self.location), self._opened.looking() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        opened = self._opened
        if not opened.writable:
            raise StoreError(f"{self.location} is read-only: nothing can be stored in it")
        with opened.writing() as connection:
            yield connection
        if opened.file is not None and not opened.file.exists():
            raise StoreError(f"{self.location} was deleted while it was open; what was stored in it is lost")
