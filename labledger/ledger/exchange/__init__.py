"""Runs that come from another ledger or from mirrors.

In: a source. Out: checked records, written by the import in one transaction a run.
Trusts nothing of its source.
"""
