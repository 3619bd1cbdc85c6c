"""A cluster of hosts on one machine, for people and for tests: what `scripts/cluster` does.

Each host is a set of namespaces (processes, mounts, network, host name) with a `dockerd` and a
`labledger worker` of its own. It sees this machine's programs, which it cannot change, and files
of its own; no folder is common to two hosts, or to a host and the coordinator. The hosts and a
Dask scheduler are joined by a bridge inside one more network namespace, the cluster's.

All of it lives below one process, the ground: when that ends, however it ends, the kernel ends
everything else. Nothing here changes a link, an address, a rule or a mount of the machine.
"""
