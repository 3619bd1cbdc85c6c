"""One run from its start to its end: own, dispatch, stage, commit in schedule order, resume.

In: an experiment file or a run's id, and options. Out: committed slots, mirrors, a `RunOutcome`.
`start_and_resume`, `extend`, `rerun` and `regrade` begin a session by the sequence of `run_start`,
the session has a coordinator, and the coordinator alone decides what is dispatched and committed.
`retries` and `lost_hosts` hold the policies of these names. May not import `cli`, `api`, `report`.
"""
