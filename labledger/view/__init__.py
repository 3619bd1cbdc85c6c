"""`labledger view`: live pages of a lab's runs, served on loopback.

In: a lab folder. Out: HTML pages, their documents as JSON, and events, until the server stops. Each
screen has a function `document(…)` over the read-only ledger; a template and JavaScript show its
result. The only writes are requests that users make of a run. Must not import `cli`.

Read first: `serve_view`, `server`, `watcher`.
"""
