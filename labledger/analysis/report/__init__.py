"""A run's report: facts from the ledger (`report_v1`), and the page and Markdown made of them."""
