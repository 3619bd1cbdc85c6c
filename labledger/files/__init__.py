"""Files of a lab, and files that a container could write: stores, tars, patches, workspaces.

In: paths and bytes. Out: files that are durable when a call returns, and contents that were read
safely. All checks of untrusted links, names and tars are here. May import only `records` and the
packages below it.

Read first: `untrusted_files`, `durable_files`, `artifact_store`.
"""
