"""The SQLite ledger: writer, reader, queries and verification.

In: validated results. Out: rows, records, results of queries. `writer` commits each slot in one
transaction. Nothing in this package knows Docker or experiment files.
"""
