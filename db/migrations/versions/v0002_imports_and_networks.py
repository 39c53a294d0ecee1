"""What came from files, and calibrations of networks.

A revision is history: it repeats the columns as they were and never imports `db.schema`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

IMMUTABLE = ("imported_file", "imported_fact", "network", "network_run", "network_constant")


def upgrade() -> None:
    """Create the tables, and the triggers that keep their rows as they were written."""
    _create_imports()
    _create_networks()
    if op.get_bind().dialect.name == "sqlite":
        for table in IMMUTABLE:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are immutable: no {verb}'); END"
                )


def _text(name: str, length: int | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=False)


def _integers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer(), nullable=False) for name in names]


def _json(*names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, sa.JSON(), nullable=False) for name in names]


def _create_imports() -> None:
    op.create_table(
        "imported_file",
        _text("sha256", 64),
        _text("run_id", 64),
        _text("name"),
        _text("format", 64),
        *_integers("rows_taken", "rows_dropped"),
        _text("verdict", 16),
        *_json("warnings"),
        sa.PrimaryKeyConstraint("sha256", name="pk_imported_file"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_imported_file_run_id"),
        sa.UniqueConstraint("run_id", name="uq_imported_file_run_id"),
        sa.CheckConstraint("rows_taken >= 0 AND rows_dropped >= 0", name="ck_imported_file_counts"),
    )
    op.create_table(
        "imported_fact",
        *_integers("id"),
        _text("run_id", 64),
        _text("kind", 64),
        _text("subject"),
        *_json("values_json"),
        sa.PrimaryKeyConstraint("id", name="pk_imported_fact"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_imported_fact_run_id"),
    )
    op.create_index("ix_imported_fact_run_id", "imported_fact", ["run_id"])


def _create_networks() -> None:
    op.create_table(
        "network",
        *_integers("id"),
        _text("name", 200),
        _text("fabric"),
        _text("created_at", 40),
        *_json("content"),
        sa.PrimaryKeyConstraint("id", name="pk_network"),
        sa.UniqueConstraint("name", name="uq_network_name"),
    )
    op.create_table(
        "network_run",
        *_integers("network_id"),
        _text("run_id", 64),
        sa.PrimaryKeyConstraint("network_id", "run_id", name="pk_network_run"),
        sa.ForeignKeyConstraint(["network_id"], ["network.id"], name="fk_network_run_network_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_network_run_run_id"),
    )
    op.create_index("ix_network_run_run_id", "network_run", ["run_id"])
    op.create_table(
        "network_constant",
        *_integers("id", "network_id"),
        _text("name", 200),
        _text("collective", 64),
        *_integers("ranks", "nodes"),
        _text("dtype", 32),
        _text("environment"),
        _text("job"),
        sa.Column("value", sa.Double(), nullable=False),
        _text("unit", 32),
        sa.Column("lo", sa.Double(), nullable=True),
        sa.Column("hi", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_network_constant"),
        sa.ForeignKeyConstraint(["network_id"], ["network.id"], name="fk_network_constant_network_id"),
        sa.CheckConstraint("value >= 0", name="ck_network_constant_value"),
        sa.CheckConstraint("lo <= value AND value <= hi", name="ck_network_constant_interval"),
    )
    op.create_index("ix_network_constant_network_id", "network_constant", ["network_id"])
