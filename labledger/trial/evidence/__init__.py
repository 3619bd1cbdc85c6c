"""What a container left, read as untrusted input: evidence, metrics, grading, isolation facts.

In: where a trial's outputs are (`TrialOutputs`), how it was isolated, and how its container ended.
Out: records that fit their schemas. `grading` reads the verdict of labledger's own contract; what
another grader leaves is read by the `Judge` of its `ResultReader`. Starts no
container, and knows no `AttemptSpec`.
"""
