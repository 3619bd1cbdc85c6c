"""The SQLite ledger: write, read, query, lease, import and verify.

In: validated results. Out: rows, records, results of queries. `writer` commits each slot in one
transaction; `reader` and `query` never write. Nothing here knows Docker or experiment files. May
import only `files`, `records` and the modules below them.

Read first: `writer`, `reader`, `query`.
"""
