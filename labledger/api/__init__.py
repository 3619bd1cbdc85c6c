"""The public library: what each command of `labledger` does, as typed functions.

In: paths, ids and typed options. Out: typed results; errors are `LabLedgerError`s. A module holds
the functions of one subject; users have their names from `labledger/__init__.pyi`, and so has the
command line. Nothing here prints, ends the process, changes the working directory or needs a
terminal. May not import `cli`.
"""
