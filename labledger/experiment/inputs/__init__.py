"""The files of an experiment: YAML with its lines, dataset rows, staged files, workspaces.

In: experiment.yaml and the files beside it. Out: JSON values, tasks and artifacts with digests, or
problems by field or line. Imports nothing of `experiment` but the codec of stored sections and the
sections of `settings`.
"""
