"""Benchmarks in formats of other projects, translated into experiments.

In: `FORMAT:LOCATION`, task folders and files of other formats. Out: the files of an ordinary
experiment, and the tasks that cannot be run and why. Each format has a folder of its own, found by
`formats`; nothing else here knows a format by name. May not import `experiment`, `ledger` or
Docker.
"""
