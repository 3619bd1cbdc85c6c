"""A trial whose stored evidence is graded again, without its agent.

In: the stored trial. Out: a restored workspace and inputs for the grader.
Never grades a workspace that could not be restored exactly.
"""
