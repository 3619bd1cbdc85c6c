"""Benchmarks in formats of other projects, translated into experiments.

In: `FORMAT:LOCATION`, task folders and files of other formats. Out: the files of an ordinary
experiment, and the tasks that cannot be run and why. `formats` finds a format, and each folder
holds one, or several of a kind. May not import `experiment`, `ledger` or Docker.
"""
