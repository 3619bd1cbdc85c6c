"""One attempt in its container: the contract with it, its life, its evidence and its grading.

In: an `AttemptSpec` and a `TrialContext`. Out: an `AttemptResult` of validated rows, and files with
digests. `life` alone touches the engine's containers while they run. `evidence` reads what they
left and knows no specification: `output_folders` hands it what it needs of one, and `collect` makes
the result. Knows no database, no schedule and no other trial.
"""
