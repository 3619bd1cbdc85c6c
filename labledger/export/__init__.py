"""Files derived from the ledger: mirrors, run folder, summary, tables, data frames.

In: a ledger reader, or the rows of a query. Out: files, the same bytes for the same ledger. Writes
nothing to the ledger. May not import `runner`, `trial` or Docker.

Read first: `mirrors`, `summary`, `data_frames`.
"""
