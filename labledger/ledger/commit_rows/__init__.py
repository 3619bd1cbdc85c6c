"""The rows, records and digests that a commit writes, and the SQL that writes them.

In: the results of a slot's attempts, or a new run. Out: rows of tables, records as canonical JSON,
digests of the chain. The commit itself, one transaction, is in `ledger.writer`. May not import
`read`, `leases` or `exchange`.
"""
