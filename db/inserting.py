"""Stores calibrations of devices and of networks, with all that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, insert

from db import rows, schema
from db.calibrations import known_id
from db.networks import Network, network_id
from db.opening import asking
from oracle.constants import Calibration


def insert_calibration(connection: Connection, calibration: Calibration, run_ids: Sequence[str]) -> None:
    """Store a calibration, its parts and where it is from."""
    connection.execute(insert(schema.calibration), rows.calibration_columns(calibration))
    new = known_id(asking(connection), calibration.name)
    for table, columns in (
        (schema.kernel_fit, [rows.fit_columns(fit, new) for fit in calibration.fits]),
        (schema.constant, [rows.constant_columns(constant, new) for constant in calibration.constants]),
        (schema.kernel_array, [rows.array_columns(fit, a, new) for fit in calibration.fits for a in fit.arrays]),
        (schema.measured_shape, [rows.shape_columns(shape, new) for shape in calibration.shapes]),
        (schema.calibration_run, [{"calibration_id": new, "run_id": run_id} for run_id in run_ids]),
    ):
        if columns:
            connection.execute(insert(table), columns)


def insert_network(connection: Connection, network: Network, run_ids: Sequence[str]) -> None:
    """Store a network, its constants and where it is from."""
    head = {
        "name": network.name,
        "fabric": network.fabric,
        "created_at": network.created_at,
        "content": dict(network.content),
    }
    connection.execute(insert(schema.network), head)
    new = network_id(asking(connection), network.name)
    for table, columns in (
        (schema.network_constant, [{"network_id": new, **asdict(constant)} for constant in network.constants]),
        (schema.network_run, [{"network_id": new, "run_id": run_id} for run_id in run_ids]),
    ):
        if columns:
            connection.execute(insert(table), columns)
