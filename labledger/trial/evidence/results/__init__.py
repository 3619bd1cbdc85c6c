"""What became of a trial: its status, prediction, score and metrics.

In: the exit status and the files of the grader, all hostile. Out: a `GradingOutcome` and metrics
that fit their schemas. `collect` chooses the source of results. May not import `collect` or
`artifacts`.
"""
