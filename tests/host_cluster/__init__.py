"""A cluster of hosts on one machine, for people and for tests (`scripts/cluster`).

Each host is a set of namespaces with its own `dockerd`, `labledger worker` and files. A bridge in
the cluster's network namespace connects the hosts with a Dask scheduler. If the ancestor of all
processes, the ground, ends, the kernel ends everything.
"""
