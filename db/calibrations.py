"""The rows of a device's calibration: where it is, and how it is stored."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select

from db import rows, schema
from oracle.constants import Calibration
from oracle.errors import UnknownName


def calibration_id(connection: Connection, name: str) -> int | None:
    """The key of the calibration of that very name, if there is one."""
    return connection.scalar(select(schema.calibration.c.id).where(schema.calibration.c.name == name))


def named_id(connection: Connection, name: str) -> int:
    """The key of the calibration of that very name.

    Raises:
        UnknownName: there is none.
    """
    found = calibration_id(connection, name)
    if found is None:
        raise UnknownName("calibration", name, connection.scalars(select(schema.calibration.c.name)))
    return found


def insert_calibration(connection: Connection, calibration: Calibration, run_ids: Sequence[str]) -> None:
    """Store a calibration with all it holds; its name must be free."""
    connection.execute(insert(schema.calibration), rows.calibration_columns(calibration))
    new = named_id(connection, calibration.name)
    for table, columns in (
        (schema.kernel_fit, [rows.fit_columns(fit, new) for fit in calibration.fits]),
        (schema.constant, [rows.constant_columns(constant, new) for constant in calibration.constants]),
        (schema.measured_shape, [rows.shape_columns(shape, new) for shape in calibration.shapes]),
        (schema.calibration_run, [{"calibration_id": new, "run_id": run_id} for run_id in run_ids]),
    ):
        if columns:
            connection.execute(insert(table), columns)
