"""One run from its start to its end: own, dispatch, stage, commit in schedule order, resume.

In: an experiment file or a run's id, and options. Out: committed slots, mirrors, a `RunOutcome`.
May not import `cli`, `api`, `report`. The coordinator alone decides what is dispatched and
committed.

Read first: `run_start`, `run_options`, `run_outcome`.
"""
