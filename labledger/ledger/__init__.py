"""The SQLite ledger: one transaction a slot, readers, queries, verification.

In: validated results. Out: rows, records and answers.
Alembic alone creates and changes tables. Knows no Docker and no experiment file.
"""
