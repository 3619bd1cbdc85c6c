"""Alembic's entry: `ledger.database.migrations` hands over the connection and its transaction."""

from alembic import context

from labledger.ledger.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
