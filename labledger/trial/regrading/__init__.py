"""A trial whose stored evidence is graded again, without its agent.

In: the stored trial. Out: a restored workspace and inputs for the grader, and the evidence of both
containers. The rest of `trial` knows a regrading only as a kind of trial. Never grades a workspace
that could not be restored exactly.
"""
