"""Numbers of kernel arrays as their little-endian bytes, in place of JSON lists: the same values.

A revision is history: it repeats the columns as they were and never imports `db.schema`.
"""

import json
import struct

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KEY = ("calibration_id", "family", "phase", "execution")

LETTERS = {"float64": "d", "float32": "f", "int16": "h"}
"""The types of numbers and their letters in `struct`; texts stay JSON lists."""


def upgrade() -> None:
    """Make the table anew with what it holds, and the triggers that keep its rows as they were written."""
    names = ("id", *KEY, "name", "dtype", "numbers")
    old = sa.table("kernel_array", sa.column("shape", sa.JSON()), *map(sa.column, names))
    rows = [dict(row) for row in op.get_bind().execute(sa.select(old).order_by(old.c.id)).mappings()]
    op.drop_table("kernel_array")
    new = op.create_table(
        "kernel_array",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("calibration_id", sa.Integer(), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("execution", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("dtype", sa.String(16), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("numbers", sa.LargeBinary().with_variant(sa.LargeBinary(2**24), "mysql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kernel_array"),
        sa.ForeignKeyConstraint(
            KEY, [f"kernel_fit.{name}" for name in KEY], name="fk_kernel_array_calibration_id_family_phase_execution"
        ),
        sa.UniqueConstraint(*KEY, "name", name="uq_kernel_array_calibration_id_family_phase_execution_name"),
    )
    op.bulk_insert(new, [row | {"numbers": _packed(row["dtype"], row["numbers"])} for row in rows])
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER kernel_array_no_{verb.lower()} BEFORE {verb} ON kernel_array "
                f"BEGIN SELECT RAISE(ABORT, 'rows of kernel_array are immutable: no {verb}'); END"
            )


def _packed(dtype: str, numbers: str) -> bytes:
    if dtype not in LETTERS:
        return numbers.encode()
    values = json.loads(numbers)
    return struct.pack(f"<{len(values)}{LETTERS[dtype]}", *values)
