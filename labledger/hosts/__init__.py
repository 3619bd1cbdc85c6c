"""Runs on many hosts: what a host does, `coordinator_side`, and Dask between them.

In: attempts of a coordinator. Out: their results, with the artifacts in the coordinator's store.
`host_service` is the entry point of a host, which accepts attempts, runs them as a local run does,
and keeps their results; it and what it uses may not import `coordinator_side` or Dask.
Truth stays in the ledger and in the engine of each host; nothing here keeps state that a restart
needs, except on the host's own disk. Only `dask_transport`, `dask_host`, `cluster_file` and
`connect` use Dask, which is an extra and imported late. The layers above come in by `connect` and
`cluster_executor`. May not import `runner`, `checks`, `upkeep` or the ledger.
"""
