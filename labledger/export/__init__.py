"""What is derived from the ledger: mirrors, the summary, tables, data frames.

In: a ledger reader. Out: files, the same bytes for the same ledger.
Writes nothing to the ledger.
"""
