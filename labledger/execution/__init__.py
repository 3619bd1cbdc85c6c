"""Where trials run, on this machine or on hosts elsewhere, and when no more are started.

In: an `AttemptSpec` whose dispatch is journaled. Out: a future with its `AttemptResult`, and the
state of the hosts. `executor` holds the interface and its rules, `local_executor` runs trials on
this machine, `agent_needs` gives agents their programs and models. What pauses or stops dispatch:
`budget`, `dispatch_pauses` (an unusable machine) and `failure_limits` (errors, pruning). Knows no
schedule, and writes nothing to the ledger. May not import `runner`, `hosts`, `checks` or Dask.
"""
