"""Files of a lab, and files that a container could write: stores, tars, patches, workspaces.

In: paths and bytes. Out: files that are durable once a call has returned, or contents that were
read safely. How a link, a name or a member of a tar that somebody else wrote is checked is decided
here. Knows nothing of runs, trials, SQL or Docker, and may import only `records` and what is below
it.
"""
