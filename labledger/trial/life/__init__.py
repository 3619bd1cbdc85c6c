"""The life of an attempt: its folder, its container from creation to removal, and its adoption.

In: an `AttemptSpec` and a `TrialContext`. Out: an `AttemptResult`. Containers are found by their
labels, and started, awaited, killed and removed by their ids. No other part of `trial` does this.
"""
