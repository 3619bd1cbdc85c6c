"""The coordinator's side of a cluster: places attempts on hosts and fetches their results.

In: attempts of the runner. Out: their results, with the artifacts in the coordinator's store.
Nothing here is kept on disk, except the shares of caps. May not import the host's side, or Dask.

Read first: `cluster_executor`, `host_link`, `host_results`.
"""
