"""The SQLite ledger: writer, reader, queries, leases, import and verification.

In: validated results. Out: rows, records, results of queries. `writer` commits each slot in one
transaction; `reader` and `query` never write. Nothing in this package knows Docker or experiment
files, and it may import only `files`, `records` and what is below them.
"""
