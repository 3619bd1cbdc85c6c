"""One session of a coordinator: own the run, dispatch attempts, stage results, commit slots.

In: a registered run and an executor. Out: committed slots in schedule order. `coordinator` alone
decides what is dispatched and committed. May not import `run_start`, `extend`, `rerun` or
`regrade`.

Read first: `session`, `coordinator`, `commit_queue`.
"""
