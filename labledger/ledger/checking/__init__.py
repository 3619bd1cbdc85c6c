"""Verification: find rows that were changed, removed or inserted after their commit.

In: a connection that only reads. Out: findings, and how much was checked. May not import `exchange`
or the writer.

Read first: `verify`, `run_checks`, `slot_checks`.
"""
