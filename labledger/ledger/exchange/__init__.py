"""Import of runs from another ledger, or from mirrors.

In: a source, which is untrusted. Out: its runs in this ledger, each written in one transaction. The
caller must have verified the runs that are imported. May not import `upkeep`.

Read first: `source`, `histories`, `import_writer`.
"""
