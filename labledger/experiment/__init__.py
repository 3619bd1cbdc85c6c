"""Turn an authored experiment into a plan: validate, resolve, freeze and schedule it.

In: an experiment file (YAML), its dataset and the files it names. Out: a `ResolvedExperiment`,
whose document, task rows and slots are all that a run needs. Nothing here knows of containers,
and nothing may import `trial`, `runner` or `cli`.
"""
