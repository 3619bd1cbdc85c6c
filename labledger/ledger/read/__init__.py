"""Queries of the ledger's rows, each inside the caller's snapshot.

In: a connection. Out: typed rows, counts, records as a stream. Writes nothing to the ledger itself,
and may not import `leases`, `verification` or `exchange`.
"""
