"""The public library: a typed function for each command of `labledger`.

In: paths, ids and typed options. Out: typed results, or a `LabLedgerError`. Users and the command
line import the names from `labledger`. Nothing here prints, ends the process, changes the working
directory or needs a terminal. Must not import `cli`.

Read first: `runs`, `ledger`, `experiments`.
"""
