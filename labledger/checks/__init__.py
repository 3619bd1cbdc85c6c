"""What is checked before a run: experiment, machine, engine, images and hosts.

In: a resolved experiment, or a run that is to be continued or regraded. Out: check results with
hints, and the ids of images. `preflight` combines all checks, `doctor` has those of a machine
alone. Missing images are pulled or built here. A failed check is a result, not an exception, and
probes run in short-lived containers. May not import `runner`, `upkeep` or `api`.
"""
