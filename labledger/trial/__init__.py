"""Run one attempt in its container: its contract, its life, its evidence and its grading.

In: an `AttemptSpec` and a `TrialContext`. Out: an `AttemptResult` of validated rows, and files with
digests. Only `life` touches running containers, each described by a `ContainerSpec`. `evidence`
reads what they left, and `collect` records it as the `EvidenceSpec` says.

Read first: `contract`, `attempt_spec`, `collect`.
"""
