"""Which attempt is next: slots in schedule order, attempts to repeat, and those that wait for room.

In: the slots of a run, what the ledger has of them, and how full each host is. Out: specifications
of attempts, for the coordinator to record and submit. May not import the coordinator.
"""
