"""The public library: what each command of `labledger` does, as typed functions.

In: paths, ids and typed options. Out: typed results; errors are `LabLedgerError`s. Nothing here
prints, ends the process, changes the working directory or needs a terminal. The command line uses
this package, by the names in `labledger/__init__.pyi`, for everything that it does. May not import
`cli`.
"""
