"""Comparisons: sides, pairs, estimates, decisions and gates; in `statistics`, the numbers alone.

In: a ledger reader and the words of `labledger compare`. Out: a `Comparison`, whose JSON form is
the document `comparison_v1`. Its words are in `wording`; nothing is printed here. Imports no Docker
and nothing that runs trials.
"""
