"""Alembic's entry point. `ledger.database.migrations` passes the connection, in a transaction."""

from alembic import context

from labledger.ledger.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
