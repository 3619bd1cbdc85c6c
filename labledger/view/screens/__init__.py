"""The screens of `labledger view`: one module makes the document of each page.

In: the opened ledger and the parameters of a request. Out: a JSON object, which a template and a
JavaScript module show. A screen knows no HTTP and has no state. It must not import the server.

Read first: `runs_screen`, `run_screen`, `slot_screen`.
"""
