"""What an environment, a measurement or a calibration looks like as columns, and the first two back.

Calibrations come back in `db.calibrations`, which is loaded by commands that store nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from sqlalchemy import Row

from oracle.constants import Calibration, Constant, KernelFit, MeasuredShape
from oracle.errors import BadInput
from oracle.stored_array import StoredArray
from profiler.measurement import Environment, Measurement

Columns = dict[str, Any]
"""Column -> what to store in it."""


def environment_columns(environment: Environment) -> Columns:
    """A row of `environment`; its id is a hash of the content, so that equal ones are stored once."""
    content = {
        "identity": dict(environment.identity),
        "state": dict(environment.state),
        "notes": list(environment.notes),
    }
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
    return {"id": digest, "validity_key": environment.validity_key, **content}


def environment_from(row: Row[Any]) -> Environment:
    """The environment in a row."""
    return Environment(identity=row.identity, state=row.state, notes=tuple(row.notes))


def measurement_columns(measurement: Measurement, environment_id: str) -> Columns:
    """A row of `measurement`.

    Raises:
        BadInput: no samples, or samples that no clock can have given.
    """
    _check_samples(measurement)
    return {
        "run_id": measurement.run_id,
        "micro": measurement.micro,
        "case_json": dict(measurement.case),
        "phase": measurement.phase,
        "execution": measurement.execution,
        "n": len(measurement.device_s),
        "median_s": measurement.median_s,
        "device_s": list(measurement.device_s),
        "host_s": list(measurement.host_s),
        "calls_per_sample": measurement.inner,
        "stopped": measurement.stopped,
        "flags": list(measurement.flags),
        "device": measurement.device,
        "taken_at": measurement.taken_at,
        "environment_id": environment_id,
    }


def _check_samples(measurement: Measurement) -> None:
    what = f"a {measurement.micro} measurement ({measurement.phase})"
    if not measurement.device_s or measurement.inner < 1:
        raise BadInput(f"{what} has no samples")
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in measurement.device_s):
        raise BadInput(f"{what} has a sample that is not a positive number of seconds")
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in measurement.host_s):
        raise BadInput(f"{what} has a sample of the host that is not a number of seconds")


def measurement_from(row: Row[Any], environment: Environment) -> Measurement:
    """The measurement in a row; its case comes back as plain JSON values (lists, no tuples)."""
    return Measurement(
        micro=row.micro,
        case=row.case_json,
        phase=row.phase,
        execution=row.execution,
        device_s=tuple(row.device_s),
        host_s=tuple(row.host_s),
        inner=row.calls_per_sample,
        device=row.device,
        environment=environment,
        run_id=row.run_id,
        taken_at=row.taken_at,
        stopped=row.stopped,
        flags=tuple(row.flags),
    )


def calibration_columns(calibration: Calibration) -> Columns:
    """A row of `calibration`; its fits, constants and shapes are rows of their own."""
    return {
        "name": calibration.name,
        "device": calibration.device,
        "created_at": calibration.created_at,
        "validity_key": calibration.validity_key,
        "environment": dict(calibration.environment),
        "common_sd": calibration.common_sd,
        "notes": list(calibration.notes),
    }


def fit_columns(fit: KernelFit, calibration_id: int) -> Columns:
    """A row of `kernel_fit`."""
    return {
        "calibration_id": calibration_id,
        "family": fit.family,
        "phase": str(fit.phase),
        "execution": fit.execution,
        "shapes": fit.shapes,
        "samples": fit.samples,
        "held_out_error": fit.held_out_error,
        "residual_sd": fit.residual_sd,
        "flop_lo": fit.flop_lo,
        "flop_hi": fit.flop_hi,
        "bytes_lo": fit.bytes_lo,
        "bytes_hi": fit.bytes_hi,
    }


def constant_columns(constant: Constant, calibration_id: int) -> Columns:
    """A row of `constant`."""
    return {
        "calibration_id": calibration_id,
        "name": constant.name,
        "family": constant.family,
        "phase": str(constant.phase),
        "execution": constant.execution,
        "quantity": constant.quantity,
        "value": constant.value,
        "unit": constant.unit,
        "lo": constant.lo,
        "hi": constant.hi,
        "draws": list(constant.draws),
    }


def array_columns(fit: KernelFit, array: StoredArray, calibration_id: int) -> Columns:
    """A row of `kernel_array`."""
    return {
        "calibration_id": calibration_id,
        "family": fit.family,
        "phase": str(fit.phase),
        "execution": fit.execution,
        "name": array.name,
        "dtype": array.dtype,
        "shape": list(array.shape),
        "numbers": array.numbers,
    }


def shape_columns(shape: MeasuredShape, calibration_id: int) -> Columns:
    """A row of `measured_shape`."""
    return {
        "calibration_id": calibration_id,
        "kind": shape.layer.kind,
        "layer": shape.layer.to_dict(),
        "phase": str(shape.phase),
        "samples": shape.samples,
        "execution": shape.execution,
        "median_s": shape.seconds,
        "log_sd": shape.log_sd,
        "n": shape.count,
    }
