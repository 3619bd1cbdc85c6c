"""Alembic's entry: `labledger.ledger.migrate` hands over the connection and its transaction."""

from alembic import context

from labledger.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
