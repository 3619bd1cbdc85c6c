"""From a prepared folder to a container that has ended, and its removal.

In: a `AttemptSpec`. Out: a `AttemptResult`. Containers are found by labels and acted on by id.
The only part of a trial that starts, waits for and removes containers.
"""
