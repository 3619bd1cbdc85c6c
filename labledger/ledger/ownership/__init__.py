"""Who owns a run: leases, epochs and takeover requests.

In: a connection inside a transaction, and the time. Out: a lease, or an error naming its holder.
Every transaction in which an owner writes to its run checks the lease here. The heartbeat, which
renews a lease in time, is in `runner.heartbeat`.
"""
