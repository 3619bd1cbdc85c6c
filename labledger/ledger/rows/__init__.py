"""The rows of the ledger's tables, one module for each subject.

In: a connection, and values of a run or a slot. Out: rows that are written in the caller's
transaction, and the rows as values. The writer and the reader share these modules. May not import
`reading`, `checking`, `exchange` or the writer.

Read first: `slot_commits`, `slot_rows`, `leases`.
"""
