"""The database itself: tables, views, triggers, migrations, connections.

In: a path. Out: connections to a ledger of the newest revision. Imports no other part of the
ledger. `tables.py` declares the tables for Alembic, `table_rows.py` has their columns, and
`statements.py` makes SQL. Views and triggers are in the `.sql` files.

Read first: `tables`, `run_info`, `connection`.
"""
