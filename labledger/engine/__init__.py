"""The Docker engine: containers, images, networks and egress proxies, with typed errors.

In: configurations, names and ids. Out: states, streams of files, ids of images, typed errors. Every
call of the Docker library is in this package. Knows nothing of slots, experiments or the ledger,
and may import only `files`, `records` and what is below them.

Read first: `engine`, `engine_errors`, `container_files`.
"""
