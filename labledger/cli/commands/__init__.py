"""One function for each command, grouped by subject.

In: parsed options. Out: calls of the library, and its results printed. Imports the shared modules
of `cli`, which may not import this.

Read first: `runs`, `show_runs`, `compare`.
"""
