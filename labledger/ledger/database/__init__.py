"""The database itself: tables, views, triggers, migrations, connections.

In: a path. Out: connections to a ledger; `migrations` checks that it has the newest revision. It
imports no other part of the ledger. `tables.py` declares the tables for Alembic, `table_rows.py`
has the columns that are generated from it, and `statements.py` makes SQL of them. Views and
triggers are in the `.sql` files.
"""
