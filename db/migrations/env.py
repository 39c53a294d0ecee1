"""What Alembic runs to migrate a database: `db.upgrade` hands it the connection, inside a transaction of its own."""

from alembic import context


def migrate() -> None:
    """Run the revisions that `db.upgrade` asked for."""
    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()


if __name__ == "env_py":  # the name under which Alembic loads this file; an ordinary import does nothing
    migrate()
