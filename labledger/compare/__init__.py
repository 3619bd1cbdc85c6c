"""Comparisons: sides, pairs, estimates, decisions and gates; in `statistics`, the numbers alone.

In: a ledger reader and the words of `labledger compare`. Out: a `Comparison`, whose JSON form is
the document `comparison_v1`. Its words are in `sentences`, `comparison_text` and `ranking_text`;
nothing is printed here. May not import Docker or anything that runs trials.
"""
