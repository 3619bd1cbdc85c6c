"""Benchmarks in formats of other projects, translated into experiments, and their judges.

In: `FORMAT:LOCATION`, task folders and files of other formats. Out: the files of an ordinary
experiment, and the tasks that cannot be run and why. `formats` finds a format; those of Python
tasks are in `python_tasks`, and each folder holds another. A judge reads what a format's grader
left in a trial, and is all here that knows of trials. May not import `execution`, Docker or a
database.
"""
