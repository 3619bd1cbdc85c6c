"""Runs on many hosts: the host's side, `coordinator_side`, and Dask between them.

In: attempts of a coordinator. Out: their results, with the artifacts in the coordinator's store.
May not import `runner`, `checks`, `upkeep` or the ledger. Read `host_service`, `connect` and
`coordinator_side.cluster_executor` first. Only `dask_transport`, `dask_host`, `cluster_file` and
`connect` use Dask.

Read first: `host_messages`, `host_service`, `connect`.
"""
