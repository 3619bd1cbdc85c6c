"""Files of a lab: the lab folder, the artifact store, durable files, the user's cache.

In: paths and bytes. Out: files that are durable once a call has returned.
Knows nothing of runs, trials or SQL, and may import only `records`, `errors` and `clock`.
"""
