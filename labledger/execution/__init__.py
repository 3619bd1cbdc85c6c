"""Where trials run, on this machine or on hosts elsewhere, and what pauses or stops their start.

In: an `AttemptSpec` whose dispatch is journaled. Out: a future with its `AttemptResult`. Knows no
schedule and writes nothing to the ledger. May not import `runner`, `hosts`, `checks` or Dask.

Read first: `executor`, `local_executor`, `run_events`.
"""
