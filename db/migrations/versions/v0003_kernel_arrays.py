"""The residual models over the rooflines of kernel families, array by array.

A revision is history: it repeats the columns as they were and never imports `db.schema`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = ("calibration_id", "family", "phase", "execution")


def upgrade() -> None:
    """Create the table, and the triggers that keep its rows as they were written."""
    op.create_table(
        "kernel_array",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("calibration_id", sa.Integer(), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("execution", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("dtype", sa.String(16), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("numbers", sa.Text().with_variant(sa.Text(2**24), "mysql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kernel_array"),
        sa.ForeignKeyConstraint(
            KEY, [f"kernel_fit.{name}" for name in KEY], name="fk_kernel_array_calibration_id_family_phase_execution"
        ),
        sa.UniqueConstraint(*KEY, "name", name="uq_kernel_array_calibration_id_family_phase_execution_name"),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER kernel_array_no_{verb.lower()} BEFORE {verb} ON kernel_array "
                f"BEGIN SELECT RAISE(ABORT, 'rows of kernel_array are immutable: no {verb}'); END"
            )
