"""Collect the facts of a run, and render them as an HTML page, Markdown or JSON.

In: a ledger reader and `ReportOptions`. Out: a `Report` (document `report_v1`), a page or Markdown.
May not import `runner` or Docker.

Read first: `run_report`, `report_document`, `page`.
"""
