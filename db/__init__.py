"""Remembers: SQLAlchemy and Alembic live here only."""
