"""Import of runs from another ledger, or from mirrors.

In: a source, which is untrusted. Out: its runs in this ledger, each written in one transaction.
Only runs that the caller has verified may be imported. May not import `maintenance`, its caller.
"""
