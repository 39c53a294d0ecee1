"""The history of the schema: one Alembic revision per file under `versions`, and their names in order.

The names are repeated here so that opening a database whose schema is the newest one needs no Alembic (a test holds the
two together). A revision unknown here was written by a newer stepgauge.
"""

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every revision, oldest first."""
