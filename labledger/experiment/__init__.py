"""From experiment.yaml to the plan of a run: parse, check, resolve, schedule.

In: an experiment file and overrides, or a stored resolved document. Out: an `ExperimentPlan` of
frozen dataclasses with its digest, and slots in order. Read `experiment_file`, `resolve` and `plan`
first. May not import Docker, a database or the ledger.

Read first: `experiment_file`, `resolve`, `plan`.
"""
