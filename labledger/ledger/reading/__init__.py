"""Runs as readers see them: their stored form, committed rows, counts and progress.

In: a connection that only reads. Out: dataclasses and streams of rows. Nothing here writes. May not
import `checking`, `exchange` or the writer.

Read first: `stored_runs`, `committed_rows`, `counts`.
"""
