"""The `swebench` package of the SWE-bench project, run in a process of its own.

In: rows of its datasets; patches and logs of tests. Out: what it prepares, and its own report. It
comes with the extra `labledger[swebench]` and is never imported by the calling process. Used by the
benchmark format and by the evidence of trials; imports neither.
"""
