"""Rows, lines and digests that a commit writes.

In: a trial's result. Out: rows of tables, canonical record lines, links of the chain.
Opens no transaction: the writer does.
"""
