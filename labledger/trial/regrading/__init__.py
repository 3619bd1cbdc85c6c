"""A trial whose stored evidence is graded again, without its agent.

In: the stored trial. Out: a restored workspace and inputs for the grader, and the evidence of both
containers. Outside of this package only the runner names it, when it chooses the kind of a trial.
Never grades a workspace that could not be restored exactly.
"""
