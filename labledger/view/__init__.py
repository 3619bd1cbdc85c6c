"""`labledger view`: a page that shows the runs of a lab while they run, served on loopback.

In: a lab folder. Out: HTML pages, their documents as JSON, and events, until the server is stopped.
Each screen (`screens`) is a function `document(…)` over the ledger, opened read-only; a template
and, where the screen moves, a module of JavaScript show that document. Nothing here runs trials,
and nothing is written but what a person asks of a run. It must not import `cli`.
"""
