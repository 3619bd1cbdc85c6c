"""Import of runs from another ledger, or from mirrors.

In: a source, which is untrusted. Out: its runs in this ledger, each written in one transaction.
Nothing is written of a source that was not verified. May not import `maintenance`, its caller.
"""
