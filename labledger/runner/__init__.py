"""One run from its start to its end: dispatch, staging, commits in schedule order, resume.

In: an experiment file or a run's id, and options. Out: committed slots, mirrors, a `RunOutcome`.
May not import the command line, the API or reports.
"""
