"""Removal of rows: what nothing names any more, and whole runs that a person deletes.

In: a connection inside the caller's transaction. Out: rows that are gone, and what they took.
Nothing else removes committed rows; triggers refuse it. May not import `exchange`.
"""
