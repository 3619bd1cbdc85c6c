"""What a host does: accepts attempts, runs them as a local run does, and keeps their results.

In: requests of coordinators, as `host_messages`. Out: the replies. `HostService` is the front door.
Truth is the host's own folder and its engine. May not import the coordinator's side or Dask.
"""
