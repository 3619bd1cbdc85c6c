"""Estimates, intervals and tests: functions of numbers alone, without a ledger.

In: the values of trials, grouped by task. Out: estimates, p values, detectable differences.
Imports nothing else of labledger. NumPy and SciPy are imported when a function first needs them,
because an installation may lack them.
"""
