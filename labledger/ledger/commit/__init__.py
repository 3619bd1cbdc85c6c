"""The rows, records and digests that a commit writes.

In: the results of a slot's attempts, or a new run. Out: rows of tables, records as canonical JSON,
digests of the chain. Opens no transaction: the writer does. May not import `read` or `exchange`.
"""
