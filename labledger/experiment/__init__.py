"""From experiment.yaml to the resolved experiment: parse, check, resolve, schedule.

In: an experiment file and overrides. Out: a resolved document with digests, slots in order.
Knows no Docker and no database.
"""
