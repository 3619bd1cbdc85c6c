"""Benchmarks in formats of other projects, translated into experiments, and their judges.

In: `FORMAT:LOCATION`, and files of other formats. Out: the files of an ordinary experiment, and the
refused tasks with reasons. Judges read the results that a format's grader left in a trial. Must not
import `execution`, Docker or databases.

Read first: `formats`, `translate`, `task_file`.
"""
