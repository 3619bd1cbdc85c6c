"""The database itself: tables, views, triggers, migrations, connections.

In: a path. Out: connections to a ledger of the newest revision. It imports no other part of the
ledger. `tables.py` declares the tables for Alembic, `table_rows.py` is generated from it, and
`row_sql.py` makes statements of that; views and triggers are in the `.sql` files.
"""
