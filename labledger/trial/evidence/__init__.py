"""What a container left, read as untrusted input: evidence, metrics, grading, isolation facts.

In: a trial folder and how its container ended. Out: records that fit their schemas. Verdicts are
read here alone: by labledger's own contract in `grading`, by other graders' files in
`harbor_rewards` and `swebench_results`. Starts no container of a trial.
"""
