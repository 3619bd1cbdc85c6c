"""Where trials run: on this machine, or on hosts elsewhere, behind one interface.

In: an `AttemptSpec` whose dispatch is journaled. Out: a future with its `AttemptResult`, and the
state of the hosts. `executor` holds the interface and its rules, `local_executor` runs trials on
this machine. Knows no schedule, and no ledger but by the `RunRecords` it is given. May not import
the runner, the ledger or maintenance.
"""
