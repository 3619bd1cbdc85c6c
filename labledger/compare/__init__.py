"""Comparisons: sides, pairs, estimates, tests, decisions and gates.

In: a ledger reader and a question. Out: the document `comparison_v1`.
Words for people are made in `compare.decision` and in the report; nothing is printed here.
"""
