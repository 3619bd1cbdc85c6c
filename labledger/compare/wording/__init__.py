"""Comparisons in words: figures, sentences, tables and facts.

In: a `Comparison`, the reruns of a run, what was decided. Out: texts, which the terminal, Markdown
and the report's page lay out without writing sentences of their own. Nothing is decided, computed
or printed here. May import nothing that decides (`compare.decision`) or reads a ledger's rows.
"""
