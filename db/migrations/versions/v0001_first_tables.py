"""The first tables: runs, measurements and environments; calibrations with their fits, constants and shapes.

A revision is history: it repeats the columns as they were and never imports `db.schema`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

IMMUTABLE = (
    "environment",
    "measurement",
    "calibration",
    "calibration_run",
    "kernel_fit",
    "constant",
    "measured_shape",
)


def upgrade() -> None:
    """Create all tables, and the triggers that keep their rows as they were written."""
    _create_measurements()
    _create_calibrations()
    # Only in SQLite, whose file is open to everybody's tools; a server has rights for that. A later revision that
    # rewrites rows drops and creates the triggers around it.
    if op.get_bind().dialect.name == "sqlite":
        for table in IMMUTABLE:
            _forbid(table, "UPDATE")
            _forbid(table, "DELETE")
        _forbid("run", "DELETE")


def _forbid(table: str, verb: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are immutable: no {verb}'); END"
    )


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=nullable)


def _integers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer(), nullable=False) for name in names]


def _doubles(*names: str) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Double(), nullable=False) for name in names]


def _json(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.JSON(), nullable=False) for name in names]


def _create_measurements() -> None:
    op.create_table(
        "environment",
        _text("id", 64),
        _text("validity_key", 64),
        *_json("identity", "state", "notes"),
        sa.PrimaryKeyConstraint("id", name="pk_environment"),
    )
    op.create_index("ix_environment_validity_key", "environment", ["validity_key"])
    op.create_table(
        "run",
        _text("id", 64),
        _text("command"),
        _text("device"),
        _text("started_at", 40),
        _text("finished_at", 40, nullable=True),
        _text("status", 16),
        _text("environment_id", 64),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_run_environment_id"),
        sa.CheckConstraint("status IN ('running', 'finished', 'interrupted', 'failed')", name="ck_run_status"),
    )
    op.create_index("ix_run_started_at", "run", ["started_at"])
    op.create_table(
        "measurement",
        *_integers("id"),
        _text("run_id", 64),
        _text("micro", 64),
        *_json("case_json"),
        _text("phase", 32),
        _text("execution", 64),
        *_integers("n"),
        *_doubles("median_s"),
        *_json("device_s", "host_s"),
        *_integers("calls_per_sample"),
        _text("stopped"),
        *_json("flags"),
        _text("device"),
        _text("taken_at", 40),
        _text("environment_id", 64),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_measurement_run_id"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_measurement_environment_id"),
        sa.CheckConstraint("n > 0 AND calls_per_sample > 0", name="ck_measurement_counts"),
        sa.CheckConstraint("median_s > 0", name="ck_measurement_median_s"),
    )
    op.create_index("ix_measurement_run_id", "measurement", ["run_id"])
    op.create_index("ix_measurement_micro_phase_execution", "measurement", ["micro", "phase", "execution"])


def _create_calibrations() -> None:
    calibration_id = "calibration_id"
    key = [calibration_id, "family", "phase", "execution"]
    op.create_table(
        "calibration",
        *_integers("id"),
        _text("name", 200),
        _text("device"),
        _text("created_at", 40),
        _text("validity_key", 64),
        *_json("environment"),
        *_doubles("common_sd"),
        *_json("notes"),
        sa.PrimaryKeyConstraint("id", name="pk_calibration"),
        sa.UniqueConstraint("name", name="uq_calibration_name"),
        sa.CheckConstraint("common_sd >= 0", name="ck_calibration_common_sd"),
    )
    op.create_table(
        "calibration_run",
        *_integers(calibration_id),
        _text("run_id", 64),
        sa.PrimaryKeyConstraint(calibration_id, "run_id", name="pk_calibration_run"),
        sa.ForeignKeyConstraint([calibration_id], ["calibration.id"], name="fk_calibration_run_calibration_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_calibration_run_run_id"),
    )
    op.create_index("ix_calibration_run_run_id", "calibration_run", ["run_id"])
    op.create_table(
        "kernel_fit",
        *_integers("id", calibration_id),
        _text("family", 64),
        _text("phase", 32),
        _text("execution", 64),
        *_integers("shapes", "samples"),
        *_doubles("held_out_error", "residual_sd", "flop_lo", "flop_hi", "bytes_lo", "bytes_hi"),
        sa.PrimaryKeyConstraint("id", name="pk_kernel_fit"),
        sa.ForeignKeyConstraint([calibration_id], ["calibration.id"], name="fk_kernel_fit_calibration_id"),
        sa.UniqueConstraint(*key, name="uq_kernel_fit_calibration_id_family_phase_execution"),
        sa.CheckConstraint("held_out_error >= 0 AND residual_sd >= 0", name="ck_kernel_fit_spread"),
        sa.CheckConstraint(
            "0 <= flop_lo AND flop_lo <= flop_hi AND 0 <= bytes_lo AND bytes_lo <= bytes_hi",
            name="ck_kernel_fit_work",
        ),
    )
    op.create_table(
        "constant",
        *_integers("id", calibration_id),
        _text("name", 200),
        _text("family", 64),
        _text("phase", 32),
        _text("execution", 64),
        _text("quantity", 64),
        *_doubles("value"),
        _text("unit", 32),
        *_doubles("lo", "hi"),
        *_json("draws"),
        sa.PrimaryKeyConstraint("id", name="pk_constant"),
        sa.ForeignKeyConstraint(
            key, [f"kernel_fit.{name}" for name in key], name="fk_constant_calibration_id_family_phase_execution"
        ),
        sa.UniqueConstraint(*key, "quantity", name="uq_constant_calibration_id_family_phase_execution_quantity"),
        sa.CheckConstraint("value > 0", name="ck_constant_value"),
        sa.CheckConstraint("0 < lo AND lo <= value AND value <= hi", name="ck_constant_interval"),
    )
    op.create_index("ix_constant_name", "constant", ["name"])
    op.create_table(
        "measured_shape",
        *_integers("id", calibration_id),
        _text("kind", 32),
        *_json("layer"),
        _text("phase", 32),
        *_integers("samples"),
        _text("execution", 64),
        *_doubles("median_s", "log_sd"),
        *_integers("n"),
        sa.PrimaryKeyConstraint("id", name="pk_measured_shape"),
        sa.ForeignKeyConstraint([calibration_id], ["calibration.id"], name="fk_measured_shape_calibration_id"),
        sa.CheckConstraint("samples > 0 AND n > 0", name="ck_measured_shape_counts"),
        sa.CheckConstraint("median_s > 0 AND log_sd >= 0", name="ck_measured_shape_median_s"),
    )
    op.create_index("ix_measured_shape_calibration_id", "measured_shape", ["calibration_id"])
