"""The life of an attempt: its folder, its container from creation to removal, and its adoption.

In: an `AttemptSpec` and a `TrialContext`. Out: an `AttemptResult`. Only this package starts,
awaits, kills and removes containers of trials. It finds them by their labels and addresses them by
their ids.

Read first: `worker`, `container_start`, `adoption`.
"""
