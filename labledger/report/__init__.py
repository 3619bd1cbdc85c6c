"""The report of a run: its facts, and the page and the Markdown made of them.

In: a ledger reader and options. Out: the document `report_v1`, an HTML page, Markdown.
May not import the runner. Every sentence about a comparison is made in `sentences`.
"""
