"""Read the outputs of a container as untrusted input: evidence, metrics, grading, isolation facts.

In: `TrialOutputs`, how the trial was isolated, and how its container ended. Out: records that fit
their schemas.

Read first: `trial_outputs`, `grading`, `evidence_collection`.
"""
