"""Who owns a run: leases, epochs and takeover requests.

In: a connection inside a transaction, and the time. Out: a lease, or an error naming its holder.
Every write of a run checks its lease here.
"""
