"""One run from its start to its end: own, dispatch, stage, commit in schedule order, resume.

In: an experiment file or a run's id, and options. Out: committed slots, mirrors, a `RunOutcome`.
`start_and_resume`, `extend`, `rerun` and `regrade` begin a session, the session has a coordinator,
and the coordinator alone decides what is dispatched and committed. May not import `cli`, `api` or
`report`.
"""
