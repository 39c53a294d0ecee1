"""Remembers runs, measurements and calibrations. Values in, values out: no row, no session and no SQL leaves here.

Every method is one transaction: it is stored whole or not at all, also when the process is killed in the middle. There
is no method that changes or removes a measurement or a calibration: a new fit is a new calibration under a new name.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, insert, select

from db import collected, imports, networks, rows, runs, schema
from db.environments import remember_environment
from db.errors import one_line, said_in_one_line
from db.imports import ImportedFile, ImportWriter
from db.networks import Network, NetworkSummary
from db.opening import WRITING, Opened, open_database
from db.runs import Run
from oracle.constants import Calibration
from oracle.errors import BadInput, StoreError, UnknownName
from profiler.importers.base import Fact
from profiler.measurement import Environment, Measurement

PROFILE = "profile"
"""The command of a run that times the layers of single models."""


@dataclass(frozen=True)
class CalibrationSummary:
    """A calibration in one line.

    Args:
        constants, shapes: how many it has.
        median_held_out_error, worst_held_out_error: over its fits, as a fraction of the time; None without fits.
        environment: the identity that it was measured in.
    """

    name: str
    device: str
    created_at: str
    constants: int
    shapes: int
    median_held_out_error: float | None
    worst_held_out_error: float | None
    environment: dict[str, str]


class Store:
    """A database of runs, measurements and calibrations; close it, or use it in a `with` statement.

    >>> with Store.open("sqlite://") as store:
    ...     store.calibrations()
    []
    """

    def __init__(self, opened: Opened, address: str = "") -> None:
        self.address = address  # as it was opened, for another process; it may hold a password
        self._engine = opened.engine
        self.location = opened.where
        self._writable = opened.writable
        self._file = opened.file

    @classmethod
    def open(cls, url_or_path: str, *, create: bool = True, timeout_s: float = 20.0) -> Self:
        """Open a database and bring it to the newest schema.

        Args:
            url_or_path: a path (SQLite), or any URL of SQLAlchemy; see `db.location.default_url`.
            create: make the file and the tables where there are none. Folders are not made, except for the default.
            timeout_s: how long to wait for another process that is writing.

        Raises:
            StoreError: one line that says what is in the way.
        """
        return cls(open_database(url_or_path, create=create, timeout_s=timeout_s), url_or_path)

    def close(self) -> None:
        """Let go of the database; everything is stored already."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
            taken = _is_taken(connection, network.name)
            if not taken:
                runs.check(connection, sources)
                networks.insert_network(connection, network, sources)
        if taken:
            raise self._taken(network.name)

    def network(self, name: str) -> Network:
        """The calibration of a network of that very name.

        Raises:
            UnknownName: there is none.
        """
        with self._reading() as connection:
            return networks.find_network(connection, name)

    def networks(self) -> list[NetworkSummary]:
        """All calibrations of networks, oldest first."""
        with self._reading() as connection:
            return networks.all_networks(connection)

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
            taken = _is_taken(connection, calibration.name)
            if not taken:
                runs.check(connection, sources)
                _insert_calibration(connection, calibration, sources)
                if finishes is not None:
                    runs.finish(connection, finishes, "finished")
        if taken and not (taken_ok and self._is_stored(calibration)):
            raise self._taken(calibration.name)

    def _is_stored(self, calibration: Calibration) -> bool:
        known = {summary.name for summary in self.calibrations()}
        return calibration.name in known and self.calibration(calibration.name) == calibration

    def _taken(self, name: str) -> BadInput:
        return BadInput(f"the name '{name}' is taken in {self.location}; calibrations are never replaced")

    def has_calibration(self, name: str) -> bool:
        """Whether there is a calibration of that very name, of a device or of a network."""
        with self._reading() as connection:
            return _is_taken(connection, name)

    def calibration(self, name: str) -> Calibration:
        """The calibration of that very name.

        Raises:
            UnknownName: there is none.
            StoreError: its rows were tampered with.
        """
        with self._reading() as connection:
            found = _named_id(connection, name)
            head = connection.execute(select(schema.calibration).where(schema.calibration.c.id == found)).one()
            parts = [
                connection.execute(select(part).where(part.c.calibration_id == found).order_by(part.c.id)).all()
                for part in (schema.kernel_fit, schema.constant, schema.kernel_array, schema.measured_shape)
            ]
            return rows.calibration_from(head, *parts)

    def calibration_runs(self, name: str) -> list[str]:
        """The ids of the runs that a calibration was fitted from, oldest first.

        Raises:
            UnknownName: there is no such calibration.
        """
        link = schema.calibration_run.c
        with self._reading() as connection:
            own = link.calibration_id == _named_id(connection, name)
            return list(connection.scalars(select(link.run_id).where(own).order_by(link.run_id)))

    def calibrations(self) -> list[CalibrationSummary]:
        """All calibrations in one line each, in the order in which they were stored."""
        errors: defaultdict[int, list[float]] = defaultdict(list)
        fit = schema.kernel_fit.c
        with self._reading() as connection:
            heads = connection.execute(select(schema.calibration).order_by(schema.calibration.c.id)).all()
            for calibration_id, error in connection.execute(select(fit.calibration_id, fit.held_out_error)):
                errors[calibration_id].append(error)
            constants = Counter(connection.scalars(select(schema.constant.c.calibration_id)))
            shapes = Counter(connection.scalars(select(schema.measured_shape.c.calibration_id)))
        return [
            CalibrationSummary(
                name=head.name,
                device=head.device,
                created_at=head.created_at,
                constants=constants[head.id],
                shapes=shapes[head.id],
                median_held_out_error=statistics.median(errors[head.id]) if errors[head.id] else None,
                worst_held_out_error=max(errors[head.id], default=None),
                environment=head.environment,
            )
            for head in heads
        ]

    def newest_calibration(self) -> str | None:
        """The name of the newest calibration, of those first that no profile of single models went into."""
        calibration, runs = schema.calibration.c, schema.calibration_run.c
        joined = schema.calibration_run.join(schema.run, runs.run_id == schema.run.c.id)
        profiled = select(runs.calibration_id).select_from(joined).where(schema.run.c.command == PROFILE)
        newest = select(calibration.name).order_by(
            calibration.id.in_(profiled), calibration.created_at.desc(), calibration.id
        )
        with self._reading() as connection:
            return connection.scalar(newest.limit(1))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with said_in_one_line(self.location), self._engine.begin() as connection:
                yield connection
        except UnknownName:
            raise
        except (BadInput, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self.location} holds a row that cannot be read back: {one_line(error)}") from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if not self._writable:
            raise StoreError(f"{self.location} is read-only: nothing can be stored in it")
        with (
            said_in_one_line(self.location),
            self._engine.connect().execution_options(**WRITING) as connection,
            connection.begin(),
        ):
            yield connection
        if self._file is not None and not self._file.exists():
            raise StoreError(f"{self.location} was deleted while it was open; what was stored in it is lost")


def _calibration_id(connection: Connection, name: str) -> int | None:
    return connection.scalar(select(schema.calibration.c.id).where(schema.calibration.c.name == name))


def _is_taken(connection: Connection, name: str) -> bool:
    return _calibration_id(connection, name) is not None or networks.network_id(connection, name) is not None


def _named_id(connection: Connection, name: str) -> int:
    found = _calibration_id(connection, name)
    if found is None:
        raise UnknownName("calibration", name, connection.scalars(select(schema.calibration.c.name)))
    return found


def _insert_calibration(connection: Connection, calibration: Calibration, run_ids: Sequence[str]) -> None:
    connection.execute(insert(schema.calibration), rows.calibration_columns(calibration))
    new = _named_id(connection, calibration.name)
    for table, columns in (
        (schema.kernel_fit, [rows.fit_columns(fit, new) for fit in calibration.fits]),
        (schema.constant, [rows.constant_columns(constant, new) for constant in calibration.constants]),
        (schema.kernel_array, [rows.array_columns(fit, a, new) for fit in calibration.fits for a in fit.arrays]),
        (schema.measured_shape, [rows.shape_columns(shape, new) for shape in calibration.shapes]),
        (schema.calibration_run, [{"calibration_id": new, "run_id": run_id} for run_id in run_ids]),
    ):
        if columns:
            connection.execute(insert(table), columns)
