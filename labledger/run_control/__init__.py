"""What makes a run pause or stop: disk space, budget, error rate, stop requests.

In: results and observations. Out: pauses, causes of a stop, and the events that report them.
Decides and reports; it dispatches nothing. May not import the runner.
"""
