"""The report of a run: its facts, and the page, the Markdown and the JSON made from them.

In: a ledger reader and `ReportOptions`. Out: a `Report`, whose JSON form is the document
`report_v1`; an HTML page; Markdown. `run_report` is the entry. May not import `runner` or Docker.
"""
