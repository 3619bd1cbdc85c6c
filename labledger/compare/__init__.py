"""Comparisons: sides, pairs, estimates, decisions and gates; in `statistics`, the numbers alone.

In: a ledger reader and the words of `labledger compare`. Out: a `Comparison`, whose JSON form is
the document `comparison_v1`. Its words are in `comparison_sentences`, `comparison_text` and
`ranking`; nothing is printed here. `size_plan` answers before a run, from earlier runs, how large
an experiment must be to show a difference, what it costs and takes. May not import Docker or
anything that runs trials.
"""
