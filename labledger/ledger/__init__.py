"""The SQLite ledger: writer, reader, queries and verification.

In: validated results. Out: rows, records and answers. Each slot is committed in one transaction.
Alembic alone creates and changes tables. It knows no Docker and no experiment file.
"""
