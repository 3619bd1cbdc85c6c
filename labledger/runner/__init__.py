"""One run from its start to its end: own, dispatch, stage, commit in schedule order, resume.

In: an experiment file or a run's id, and options. Out: committed slots, mirrors, a `RunOutcome`.
`run_start` starts and resumes; `extend`, `rerun` and `regrade` begin a session by its sequence. The
session has a coordinator, which alone decides what is dispatched and committed. `retries` holds the
retry policy, `lost_hosts` what losing a host means. May not import `cli`, `api`, `report`.
"""
