"""The Docker engine: the calls that trials need, with typed errors.

In: container configurations, names and ids. Out: states of containers, typed errors.
Knows nothing of slots, experiments or the ledger.
"""
