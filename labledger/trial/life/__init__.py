"""From a prepared folder to a container that has ended, and its removal.

In: an `AttemptSpec` and a `TrialContext`. Out: an `AttemptResult`. Containers are found by their
labels and acted on by their ids.
The only part of a trial that starts, waits for and removes containers.
"""
