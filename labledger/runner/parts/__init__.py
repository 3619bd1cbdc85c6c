"""What adds slots to a run that exists: `extend` grows it, `rerun` repeats chosen trials.

In: a run's id and what to add. Out: the new slots, committed to the ledger and then run as a
resume runs them.
"""
