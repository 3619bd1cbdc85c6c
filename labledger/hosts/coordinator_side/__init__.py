"""What a coordinator does with hosts: places attempts on them and fetches their results.

In: attempts of the runner. Out: their results, with the artifacts in the coordinator's store.
`ClusterExecutor` is the entry point; nothing here is kept on disk. May not import what a host
does, or Dask.
"""
