"""The tables, in SI with the unit in the column's name, to be read with plain SQL.

    SELECT name, value, unit, lo, hi FROM constant;
    SELECT * FROM constant JOIN kernel_fit USING (calibration_id, family, phase, execution);

Rows are typed columns of SQLAlchemy's core and not mapped objects: what goes in and what comes out are the frozen
values of `oracle.constants` and `profiler.measurement`, so a second set of classes with a session around them would do
nothing but add a fifth of a second to every command that writes (importing and mapping the same seven tables took
0.50 s with the mapper and 0.31 s without). What only reads calibrations loads none of this: see `db.plain_sql`.

Raw samples and draws are JSON arrays of numbers written with all their digits: SQLite's `json_each(device_s)` and
PostgreSQL's `json_array_elements` turn them into rows, and nothing is lost against a binary blob (a float64 has at most
17 digits). The one exception are the arrays of residual models: a prediction reads a quarter of a million numbers of
them, and `stepgauge export` writes them out for people.

Names that SQL keeps for itself are avoided, so that no query needs quotes: `case_json` for a measurement's case and
`calls_per_sample` for its `inner`. Lengths are given where a column is part of an index, for the databases that need
them; SQLite ignores them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypedColumns,
    UniqueConstraint,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables. Their names and constraints are what the newest migration leaves behind; a test compares the two."""

RUN_STATUSES = ("running", "finished", "interrupted", "failed")
"""How far a run has come. One whose process was killed stays `running`."""

IMMUTABLE = (
    "environment",
    "measurement",
    "calibration",
    "calibration_run",
    "kernel_fit",
    "constant",
    "kernel_array",
    "measured_shape",
    "imported_file",
    "imported_fact",
    "network",
    "network_run",
    "network_constant",
)
"""Tables whose rows never change and never go: the store has no method for it, and in SQLite triggers refuse it."""


class EnvironmentRow(TypedColumns):
    """Where something was measured, once for all measurements that share it.

    `id` is a hash of the content; `validity_key` one of the part that must match for constants to be reused.
    """

    id: Column[str] = Column(String(64), primary_key=True)
    validity_key: Column[str] = Column(String(64), nullable=False)
    identity: Column[dict[str, str]] = Column(JSON, nullable=False)
    state: Column[dict[str, str]] = Column(JSON, nullable=False)
    notes: Column[list[str]] = Column(JSON, nullable=False)


class RunRow(TypedColumns):
    """One command that measured; its status is the only thing in the database that changes."""

    id: Column[str] = Column(String(64), primary_key=True)
    command: Column[str] = Column(Text, nullable=False)
    device: Column[str] = Column(Text, nullable=False)
    started_at: Column[str] = Column(String(40), nullable=False)
    finished_at: Column[str | None] = Column(String(40), nullable=True)
    status: Column[str] = Column(String(16), nullable=False)
    environment_id: Column[str] = Column(String(64), ForeignKey("environment.id"), nullable=False)


class MeasurementRow(TypedColumns):
    """Raw samples of one case; `n` and `median_s` repeat what is in `device_s`, for queries."""

    id: Column[int] = Column(Integer, primary_key=True)
    run_id: Column[str] = Column(String(64), ForeignKey("run.id"), nullable=False)
    micro: Column[str] = Column(String(64), nullable=False)
    case_json: Column[dict[str, Any]] = Column(JSON, nullable=False)
    phase: Column[str] = Column(String(32), nullable=False)
    execution: Column[str] = Column(String(64), nullable=False)
    n: Column[int] = Column(Integer, nullable=False)
    median_s: Column[float] = Column(Double, nullable=False)
    device_s: Column[list[float]] = Column(JSON, nullable=False)
    host_s: Column[list[float]] = Column(JSON, nullable=False)
    calls_per_sample: Column[int] = Column(Integer, nullable=False)
    stopped: Column[str] = Column(Text, nullable=False)
    flags: Column[list[str]] = Column(JSON, nullable=False)
    device: Column[str] = Column(Text, nullable=False)
    taken_at: Column[str] = Column(String(40), nullable=False)
    environment_id: Column[str] = Column(String(64), ForeignKey("environment.id"), nullable=False)


class CalibrationRow(TypedColumns):
    """Everything that was fitted at one time for one device, under a name of its own."""

    id: Column[int] = Column(Integer, primary_key=True)
    name: Column[str] = Column(String(200), nullable=False, unique=True)
    device: Column[str] = Column(Text, nullable=False)
    created_at: Column[str] = Column(String(40), nullable=False)
    validity_key: Column[str] = Column(String(64), nullable=False)
    environment: Column[dict[str, str]] = Column(JSON, nullable=False)
    common_sd: Column[float] = Column(Double, nullable=False)
    notes: Column[list[str]] = Column(JSON, nullable=False)


class CalibrationRunRow(TypedColumns):
    """Provenance: the runs whose measurements a calibration was fitted to."""

    calibration_id: Column[int] = Column(Integer, ForeignKey("calibration.id"), primary_key=True)
    run_id: Column[str] = Column(String(64), ForeignKey("run.id"), primary_key=True)


class KernelFitRow(TypedColumns):
    """How far the constants of one (family, phase, execution) can be trusted, and the work that they were fitted on."""

    id: Column[int] = Column(Integer, primary_key=True)
    calibration_id: Column[int] = Column(Integer, ForeignKey("calibration.id"), nullable=False)
    family: Column[str] = Column(String(64), nullable=False)
    phase: Column[str] = Column(String(32), nullable=False)
    execution: Column[str] = Column(String(64), nullable=False)
    shapes: Column[int] = Column(Integer, nullable=False)
    samples: Column[int] = Column(Integer, nullable=False)
    held_out_error: Column[float] = Column(Double, nullable=False)
    residual_sd: Column[float] = Column(Double, nullable=False)
    flop_lo: Column[float] = Column(Double, nullable=False)
    flop_hi: Column[float] = Column(Double, nullable=False)
    bytes_lo: Column[float] = Column(Double, nullable=False)
    bytes_hi: Column[float] = Column(Double, nullable=False)


class ConstantRow(TypedColumns):
    """One effective hardware constant with its 80 % interval; how well it holds is in its row of `kernel_fit`."""

    id: Column[int] = Column(Integer, primary_key=True)
    calibration_id: Column[int] = Column(Integer, nullable=False)
    name: Column[str] = Column(String(200), nullable=False)
    family: Column[str] = Column(String(64), nullable=False)
    phase: Column[str] = Column(String(32), nullable=False)
    execution: Column[str] = Column(String(64), nullable=False)
    quantity: Column[str] = Column(String(64), nullable=False)
    value: Column[float] = Column(Double, nullable=False)
    unit: Column[str] = Column(String(32), nullable=False)
    lo: Column[float] = Column(Double, nullable=False)
    hi: Column[float] = Column(Double, nullable=False)
    draws: Column[list[float]] = Column(JSON, nullable=False)


class KernelArrayRow(TypedColumns):
    """One array of the residual model over a fit's roofline; a fit without any is additive.

    `numbers` are the bytes of the numbers, little-endian, the last axis fastest; of texts a JSON list. Lists of a
    quarter of a million numbers took a prediction longer to read than all the rest (`oracle.stored_array`).
    """

    id: Column[int] = Column(Integer, primary_key=True)
    calibration_id: Column[int] = Column(Integer, nullable=False)
    family: Column[str] = Column(String(64), nullable=False)
    phase: Column[str] = Column(String(32), nullable=False)
    execution: Column[str] = Column(String(64), nullable=False)
    name: Column[str] = Column(String(64), nullable=False)
    dtype: Column[str] = Column(String(16), nullable=False)
    shape: Column[list[int]] = Column(JSON, nullable=False)
    numbers: Column[bytes] = Column(LargeBinary().with_variant(LargeBinary(2**24), "mysql"), nullable=False)


class MeasuredShapeRow(TypedColumns):
    """A layer call that was measured itself, `samples` samples at once, `n` times."""

    id: Column[int] = Column(Integer, primary_key=True)
    calibration_id: Column[int] = Column(Integer, ForeignKey("calibration.id"), nullable=False)
    kind: Column[str] = Column(String(32), nullable=False)
    layer: Column[dict[str, Any]] = Column(JSON, nullable=False)
    phase: Column[str] = Column(String(32), nullable=False)
    samples: Column[int] = Column(Integer, nullable=False)
    execution: Column[str] = Column(String(64), nullable=False)
    median_s: Column[float] = Column(Double, nullable=False)
    log_sd: Column[float] = Column(Double, nullable=False)
    n: Column[int] = Column(Integer, nullable=False)


class ImportedFileRow(TypedColumns):
    """A file whose rows are the measurements and facts of one run; `sha256` is of its content, unpacked."""

    sha256: Column[str] = Column(String(64), primary_key=True)
    run_id: Column[str] = Column(String(64), ForeignKey("run.id"), nullable=False, unique=True)
    name: Column[str] = Column(Text, nullable=False)
    format: Column[str] = Column(String(64), nullable=False)
    rows_taken: Column[int] = Column(Integer, nullable=False)
    rows_dropped: Column[int] = Column(Integer, nullable=False)
    verdict: Column[str] = Column(String(16), nullable=False)
    warnings: Column[list[str]] = Column(JSON, nullable=False)


class ImportedFactRow(TypedColumns):
    """Something said beside the measurements of a run: a topology that a tool printed, a case that did not fit."""

    id: Column[int] = Column(Integer, primary_key=True)
    run_id: Column[str] = Column(String(64), ForeignKey("run.id"), nullable=False)
    kind: Column[str] = Column(String(64), nullable=False)
    subject: Column[str] = Column(Text, nullable=False)
    values_json: Column[dict[str, Any]] = Column(JSON, nullable=False)


class NetworkRow(TypedColumns):
    """A calibration of a network; `content` holds its curves as `stepgauge export` writes them."""

    id: Column[int] = Column(Integer, primary_key=True)
    name: Column[str] = Column(String(200), nullable=False, unique=True)
    fabric: Column[str] = Column(Text, nullable=False)
    created_at: Column[str] = Column(String(40), nullable=False)
    content: Column[dict[str, Any]] = Column(JSON, nullable=False)


class NetworkRunRow(TypedColumns):
    """Provenance: the runs whose measurements a network was fitted to."""

    network_id: Column[int] = Column(Integer, ForeignKey("network.id"), primary_key=True)
    run_id: Column[str] = Column(String(64), ForeignKey("run.id"), primary_key=True)


class NetworkConstantRow(TypedColumns):
    """One constant of one curve, with its 80 % interval where the sizes identify it.

    `nodes` is 0 where nobody wrote them down, `ranks` where the constant holds for all.
    """

    id: Column[int] = Column(Integer, primary_key=True)
    network_id: Column[int] = Column(Integer, ForeignKey("network.id"), nullable=False)
    name: Column[str] = Column(String(200), nullable=False)
    collective: Column[str] = Column(String(64), nullable=False)
    ranks: Column[int] = Column(Integer, nullable=False)
    nodes: Column[int] = Column(Integer, nullable=False)
    dtype: Column[str] = Column(String(32), nullable=False)
    environment: Column[str] = Column(Text, nullable=False)
    job: Column[str] = Column(Text, nullable=False)
    value: Column[float] = Column(Double, nullable=False)
    unit: Column[str] = Column(String(32), nullable=False)
    lo: Column[float | None] = Column(Double, nullable=True)
    hi: Column[float | None] = Column(Double, nullable=True)


environment = Table("environment", METADATA, EnvironmentRow, Index(None, "validity_key"))
run = Table(
    "run",
    METADATA,
    RunRow,
    CheckConstraint(f"status IN {RUN_STATUSES}", name="status"),
    Index(None, "started_at"),
)
measurement = Table(
    "measurement",
    METADATA,
    MeasurementRow,
    CheckConstraint("n > 0 AND calls_per_sample > 0", name="counts"),
    CheckConstraint("median_s > 0", name="median_s"),
    Index(None, "run_id"),
    Index(None, "micro", "phase", "execution"),
)
calibration = Table("calibration", METADATA, CalibrationRow, CheckConstraint("common_sd >= 0", name="common_sd"))
calibration_run = Table("calibration_run", METADATA, CalibrationRunRow, Index(None, "run_id"))
kernel_fit = Table(
    "kernel_fit",
    METADATA,
    KernelFitRow,
    UniqueConstraint("calibration_id", "family", "phase", "execution"),
    CheckConstraint("held_out_error >= 0 AND residual_sd >= 0", name="spread"),
    CheckConstraint("0 <= flop_lo AND flop_lo <= flop_hi AND 0 <= bytes_lo AND bytes_lo <= bytes_hi", name="work"),
)
constant = Table(
    "constant",
    METADATA,
    ConstantRow,
    ForeignKeyConstraint(
        ["calibration_id", "family", "phase", "execution"],
        ["kernel_fit.calibration_id", "kernel_fit.family", "kernel_fit.phase", "kernel_fit.execution"],
    ),
    UniqueConstraint("calibration_id", "family", "phase", "execution", "quantity"),
    CheckConstraint("value > 0", name="value"),
    CheckConstraint("0 < lo AND lo <= value AND value <= hi", name="interval"),
    Index(None, "name"),
)
kernel_array = Table(
    "kernel_array",
    METADATA,
    KernelArrayRow,
    ForeignKeyConstraint(
        ["calibration_id", "family", "phase", "execution"],
        ["kernel_fit.calibration_id", "kernel_fit.family", "kernel_fit.phase", "kernel_fit.execution"],
    ),
    UniqueConstraint("calibration_id", "family", "phase", "execution", "name"),
)
measured_shape = Table(
    "measured_shape",
    METADATA,
    MeasuredShapeRow,
    CheckConstraint("samples > 0 AND n > 0", name="counts"),
    CheckConstraint("median_s > 0 AND log_sd >= 0", name="median_s"),
    Index(None, "calibration_id"),
)
imported_file = Table(
    "imported_file",
    METADATA,
    ImportedFileRow,
    CheckConstraint("rows_taken >= 0 AND rows_dropped >= 0", name="counts"),
)
imported_fact = Table("imported_fact", METADATA, ImportedFactRow, Index(None, "run_id"))
network = Table("network", METADATA, NetworkRow)
network_run = Table("network_run", METADATA, NetworkRunRow, Index(None, "run_id"))
network_constant = Table(
    "network_constant",
    METADATA,
    NetworkConstantRow,
    CheckConstraint("value >= 0", name="value"),
    CheckConstraint("lo <= value AND value <= hi", name="interval"),
    Index(None, "network_id"),
)
