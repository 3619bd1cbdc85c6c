"""Compute estimates, intervals and tests from numbers alone, without a ledger.

In: the values of trials, grouped by task. Out: estimates, p values, detectable differences. Imports
nothing else from labledger. Functions import NumPy and SciPy themselves, because an installation
may lack them.

Read first: `samples`, `paired_rates`, `paired_means`.
"""
